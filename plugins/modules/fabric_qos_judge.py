#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file documents an action plugin of the same name; it never runs.

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_qos_judge
short_description: Judge the QoS settings of all machines before and after a change
version_added: 0.1.0
description:
  - In phase V(before) it fails with everything that speaks against the change, on all machines, for example a running
    engine, settings that belong to the switch, or an C(NCCL_IB_TC) that marks packets for another priority.
  - In phase V(after) it fails with every interface that does not have the profile or has no link.
  - Runs once per play on the controller and contacts no host.
options:
  phase:
    description: Whether the change is still to come.
    type: str
    choices: [before, after]
    required: true
  profile:
    description: The profile that was asked for.
    type: str
    choices: [none, roce]
    required: true
  nodes:
    description: Per host the result of M(sparkmatrix.cluster.mlnx_qos) in check mode.
    type: dict
    required: true
  facts:
    description: Per host the planned fabric fact, as returned by M(sparkmatrix.cluster.fabric_plan).
    type: dict
    required: true
  confirm:
    description: Whether links may go down while an engine runs.
    type: bool
    default: false
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
  - sparkmatrix.cluster.attributes.info_module
seealso:
  - module: sparkmatrix.cluster.mlnx_qos
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Judge all machines before the change
  sparkmatrix.cluster.fabric_qos_judge:
    phase: before
    profile: roce
    nodes: "{{ dict(ansible_play_hosts_all | zip(ansible_play_hosts_all | map('extract', hostvars, 'seen'))) }}"
    facts: "{{ plan.facts }}"
  run_once: true
"""

RETURN = r"""
changes:
  description: Whether any machine has something to change.
  returned: success
  type: bool
findings:
  description: Every finding, as C(host), C(device), C(found), C(remedy) and C(severity).
  returned: always
  type: list
  elements: dict
"""
