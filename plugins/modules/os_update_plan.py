#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file documents an action plugin of the same name; it never runs.

from __future__ import annotations

DOCUMENTATION = r"""
module: os_update_plan
short_description: Bring all nodes to one kernel and driver set, or say why that cannot be done
version_added: 0.1.0
description:
  - Judges what M(sparkmatrix.cluster.os_update) found on all nodes, and refuses with everything that is in the way.
  - Runs once per play on the controller and contacts no host.
options:
  nodes:
    description: Per host the return value C(look) of M(sparkmatrix.cluster.os_update).
    type: dict
    required: true
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
- name: Plan the update
  sparkmatrix.cluster.os_update_plan:
    nodes: "{{ dict(ansible_play_hosts | zip(ansible_play_hosts | map('extract', hostvars, ['seen', 'look']))) }}"
  run_once: true
"""

RETURN = r"""
nodes:
  description: Per host the kernel that boots next, the previous one where it is another, changes, whether to reboot.
  returned: success
  type: dict
summary:
  description: Lines for people.
  returned: success
  type: list
  elements: str
"""
