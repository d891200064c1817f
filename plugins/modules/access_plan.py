#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file documents an action plugin of the same name; it never runs.

from __future__ import annotations

DOCUMENTATION = r"""
module: access_plan
short_description: Plan ssh between the nodes, host names and firewall rules of all nodes
version_added: 0.1.0
description:
  - Turns what M(sparkmatrix.cluster.access_node) found on every node into the files of each node, the lines for its
    C(/etc/hosts) and its firewall rules by layer.
  - Runs once per play on the controller and contacts no host.
options:
  nodes:
    description:
      - Per host a mapping with the keys C(rank), C(address) (what the user says, may be empty), C(login)
        (C(ansible_host)), C(look) (the result of M(sparkmatrix.cluster.access_node)) and C(fact) (the fabric fact, or
        nothing).
    type: dict
    required: true
  user:
    description: The account that peers log in to.
    type: str
    default: sparkmatrix-peer
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
- name: Plan
  sparkmatrix.cluster.access_plan:
    nodes: "{{ dict(ansible_play_hosts_all | zip(ansible_play_hosts_all | map('extract', hostvars, 'found'))) }}"
  run_once: true
"""

RETURN = r"""
files:
  description: Per host the files for M(sparkmatrix.cluster.managed_files).
  returned: success
  type: dict
hosts_lines:
  description: Per host the lines for C(/etc/hosts).
  returned: success
  type: dict
rules:
  description: Per host and layer the firewall rules.
  returned: success
  type: dict
ignore:
  description: Addresses of all nodes and of the controller, which fail2ban must not lock out.
  returned: success
  type: list
  elements: str
"""
