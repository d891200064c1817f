#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file documents an action plugin of the same name; it never runs.

from __future__ import annotations

DOCUMENTATION = r"""
module: plan
short_description: Turn what was read on all machines into decisions
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Runs one of the planners of the roles on the controller, and contacts no host.
  - Fails with everything that speaks against the plan, on all machines.
options:
  planner:
    description:
      - Its name in C(PLANNERS) of C(plugins/plugin_utils/*/planners.py), where each says what it decides.
    type: str
    required: true
  options:
    description:
      - Options of the planner, as C(PLANNERS) in C(plugins/plugin_utils/*/planners.py) lists them.
      - Some of them say in which variable something is, and the planner gets its value of every host of the play.
        That is a variable, a field of one (C(a.b)), a list of such of which the first counts that a host has, or a
        mapping of such.
    type: dict
    default: {}
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
  - sparkmatrix.cluster.attributes.info_module
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Judge all machines before the change
  sparkmatrix.cluster.plan:
    planner: qos_before
    options:
      profile: roce
      nodes: seen # the variable that every host has registered
      facts: "{{ plan.facts }}"
  run_once: true
"""

RETURN = r"""
warnings:
  description: Every finding that is no reason to refuse. What else is returned depends on the planner.
  returned: success
  type: list
  elements: str
"""
