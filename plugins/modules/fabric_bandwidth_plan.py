#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file documents an action plugin of the same name; it never runs.

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_bandwidth_plan
short_description: Plan RDMA measurements between all nodes, and judge them
version_added: 0.1.0
description:
  - In phase V(schedule) it says which node measures which half with which other node, in an order in which no node has
    two tests at once, or why nothing is to be measured.
  - In phase V(judge) it holds the results of M(sparkmatrix.cluster.fabric_bandwidth) against the thresholds. Soft RoCE
    has only to run.
  - Runs once per play on the controller and contacts no host.
options:
  phase:
    description: What to do.
    type: str
    choices: [schedule, judge]
    default: schedule
  test:
    description: V(auto) measures after a change and where no measurement of this plan is kept.
    type: str
    choices: [auto, never, always]
    default: auto
  facts:
    description: The fabric fact of each host.
    type: dict
    required: true
  paths:
    description: Phase V(schedule). What each host pings, as M(sparkmatrix.cluster.fabric_plan) returns it.
    type: dict
    default: {}
  ready:
    description: Phase V(schedule). RV(sparkmatrix.cluster.fabric_bandwidth#module:ready) of each host.
    type: dict
    default: {}
  changed:
    description: Phase V(schedule). Something was changed in this run.
    type: bool
    default: false
  forks:
    description: Phase V(schedule). How many hosts Ansible works on at once.
    type: int
    default: 5
  first_port:
    description: Phase V(schedule). TCP port of the first slot; each slot has the next one.
    type: int
    default: 18515
  tests:
    description: Phase V(judge). What phase V(schedule) returned.
    type: dict
    default: {}
  outcomes:
    description: Phase V(judge). The outcomes of each host.
    type: dict
    default: {}
  good_gbps:
    description: Phase V(judge). A half that is slower is a warning, in Gb/s.
    type: float
    default: 90
  least_gbps:
    description: Phase V(judge). A half that is slower is refused, in Gb/s.
    type: float
    default: 25
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
  - sparkmatrix.cluster.attributes.info_module
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Plan the measurements
  sparkmatrix.cluster.fabric_bandwidth_plan:
    facts: "{{ sealed.facts }}"
    paths: "{{ plan.paths }}"
    ready: "{{ my_ready }}"
  run_once: true
"""

RETURN = r"""
tests:
  description: Phase V(schedule). What each host has to do.
  returned: success
  type: dict
reason:
  description: Phase V(schedule). Why nothing is measured; empty when something is.
  returned: success
  type: str
  sample: ib_write_bw is missing (install the package perftest) on all nodes
summary:
  description: Phase V(judge). One line per measurement.
  returned: success
  type: list
  elements: str
refusal:
  description: Phase V(judge). Every half that is too slow or does not work, null when there is none.
  returned: success
  type: str
  sample: null
records:
  description: Phase V(judge). Text of the record that each host keeps; empty when a half failed.
  returned: success
  type: dict
"""
