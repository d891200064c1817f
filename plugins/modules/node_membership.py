#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file documents an action plugin of the same name; it never runs.

from __future__ import annotations

DOCUMENTATION = r"""
module: node_membership
short_description: Report which machines join, leave or were replaced
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Compares the groups C(sparks) and C(sparks_leaving) of the inventory with what the nodes know of themselves and of
    each other, and refuses what would renumber a node or trust another machine unasked.
  - Runs once per play on the controller and contacts no host.
options:
  phase:
    description: V(request) looks at the inventory alone, V(compare) at what was read on the nodes as well.
    type: str
    choices: [request, compare]
    required: true
  change:
    description: What the playbook is for.
    type: str
    choices: [add, remove, replace]
    required: true
  look_variable:
    description: Variable of each host that holds the result of M(sparkmatrix.cluster.access_node).
    type: str
    default: spark_peer
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: full
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Compare the inventory with the nodes
  sparkmatrix.cluster.node_membership:
    phase: compare
    change: add
  run_once: true
"""

RETURN = r"""
departing:
  description:
    - Hosts of C(sparks_leaving), each with the variables that a member of C(sparks) has and it has not, such as the
      user to log in with.
  returned: O(phase=request)
  type: list
  elements: dict
joins:
  description: Hosts that no node knows yet.
  returned: O(phase=compare)
  type: list
  elements: str
replaced:
  description: Hosts with other host keys than their peers know.
  returned: O(phase=compare)
  type: list
  elements: str
departed:
  description: Hosts that the nodes know and that are not in C(sparks).
  returned: O(phase=compare)
  type: list
  elements: str
summary:
  description: One line per host.
  returned: O(phase=compare)
  type: list
  elements: str
  sample: ["rank 0: spark1 stays", "rank 3: spark4 joins"]
"""
