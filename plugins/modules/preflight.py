# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file documents an action plugin of the same name; it never runs.

from __future__ import annotations

DOCUMENTATION = r"""
module: preflight
short_description: Refuse a run that cannot work, with all reasons at once
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Checks the inventory (O(phase=inventory), no machine is contacted), or judges what M(sparkmatrix.cluster.node_info)
    has read on every machine (O(phase=hosts)).
  - Makes only the checks that the layers of the run need, and reports every finding with host, reason and remedy.
  - Runs on the controller, once for all hosts.
options:
  phase:
    description:
      - What to check. V(request) only looks at tags and group, so that a mistyped tag cannot end green.
      - V(peers) judges nothing; it says whom each machine has to reach.
    type: str
    required: true
    choices: [request, inventory, peers, hosts]
  layers:
    description: Layers that the run touches. Computed from the playbook's layers and the tags when not given.
    type: list
    elements: str
  playbook_layers:
    description: Layers that the playbook contains. Empty means all of them.
    type: list
    elements: str
    default: []
  playbook_parts:
    description: Tags that the playbook has besides those of layers, each with the layers that it needs.
    type: dict
    default: {}
  followed_layers:
    description: Layers that the playbook leaves alone where no earlier run has set them up.
    type: list
    elements: str
    default: []
  run_tags:
    description: The value of C(ansible_run_tags).
    type: list
    elements: str
    default: []
  skip_tags:
    description: The value of C(ansible_skip_tags).
    type: list
    elements: str
    default: []
  group:
    description: Group of the machines that form the cluster.
    type: str
    default: sparks
  play_hosts:
    description: Hosts of this run, the value of C(ansible_play_hosts_all).
    type: list
    elements: str
    default: []
  result_variable:
    description: Variable that holds the result of M(sparkmatrix.cluster.node_info) on every host.
    type: str
    default: spark_node_info
  answer_variable:
    description: Variable that holds the result of the first contact with every host.
    type: str
    default: __preflight_answer
  reach_variable:
    description: Variable that holds the result of the call C(reach) on every host.
    type: str
    default: spark_reached
  forks:
    description: The value of C(ansible_forks). Over the cables all machines listen at the same time, or none.
    type: int
    default: 5
  require_gb10:
    description: Whether a machine without GB10 is refused.
    type: bool
    default: true
  severity:
    description: Severity per name of a check, V(fail), V(warn), V(info) or V(skip). C(docs/preflight.md) lists them.
    type: dict
    default: {}
  settled:
    description: The same of checks that the playbook settles itself; it comes before O(severity).
    type: dict
    default: {}
  report:
    description: Return all findings, each with the name of its check, and never fail for one.
    type: bool
    default: false
  inventory_sources:
    description: The value of C(ansible_inventory_sources), named where an inventory has no machine.
    type: list
    elements: str
    default: []
  config_file:
    description: The configuration that Ansible has read, C(ansible_config_file); empty for none, which is a warning.
    type: str
    default: ""
  playbook_dir:
    description: Where the playbook is, C(playbook_dir); C(ansible.cfg) is there or one directory above.
    type: str
    default: ""
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
  - sparkmatrix.cluster.attributes.info_module
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Check the inventory
  sparkmatrix.cluster.preflight:
    phase: inventory
    play_hosts: "{{ ansible_play_hosts_all }}"
  run_once: true
"""

RETURN = r"""
layers:
  description: The layers that were checked for.
  returned: success
  type: list
  elements: str
findings:
  description: Warnings and notes, each with C(host), C(device), C(found), C(why), C(remedy) and C(severity).
  returned: success
  type: list
  elements: dict
infos:
  description: The notes as sentences.
  returned: success
  type: list
  elements: str
alike:
  description:
    - What is the same on all machines, of C(settled) of M(sparkmatrix.cluster.node_info). C(qos) tells that none has
      anything left of a QoS profile, C(secrets) has marks and owners.
  returned: with O(phase=hosts)
  type: dict
peers:
  description: By machine, name and management address of the others. Empty where the run does not check it.
  returned: O(phase=peers)
  type: dict
request:
  description: Options for M(sparkmatrix.cluster.node_info), so that one call per machine answers the other phase.
  returned: success
  type: dict
"""
