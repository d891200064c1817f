#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_apply
short_description: Configure the fabric interfaces of a node, or give them back
version_added: 0.1.0
description:
  - Compares the addresses, MTU and ARP sysctls in force on the fabric interfaces with the plan and changes only these
    interfaces, through netplan and systemd-networkd.
  - It never calls C(netplan apply) or C(netplan try), which restart NetworkManager and the management network with it.
  - Before the first change the fabric fact on the node is written in state V(applying). Whatever interrupts a run, no
    later layer accepts the node before a run has finished.
  - A change that does not become effective within O(timeout) is taken back, and the step that failed is named.
  - It refuses to touch the interface that carries Ansible's connection, and interfaces that another netplan file or a
    connection of NetworkManager configures differently.
options:
  state:
    description: V(absent) gives back what was there before, from files to MTU, and removes the fabric fact.
    type: str
    choices: [present, absent]
    default: present
  fact:
    description: The fabric fact of this node as M(sparkmatrix.cluster.fabric_plan) returns it. Required for
      O(state=present).
    type: dict
  hosts_lines:
    description: Lines of the marked block in C(/etc/hosts). Other lines there are left alone.
    type: list
    elements: str
    default: []
  connection_interface:
    description: The interface that carries Ansible's connection.
    type: str
    default: ''
  timeout:
    description: Seconds to wait for addresses and MTU to become effective.
    type: float
    default: 30
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Configure the fabric interfaces
  sparkmatrix.cluster.fabric_apply:
    fact: "{{ plan.facts[inventory_hostname] }}"
    hosts_lines: "{{ plan.hosts_lines }}"
    connection_interface: enP7s7

- name: Give them back
  sparkmatrix.cluster.fabric_apply:
    state: absent
"""

RETURN = r"""
changes:
  description: What was changed, or in check mode would be, one line each.
  returned: success
  type: list
  elements: str
  sample: ["enp1s0f0np0: up, MTU 9000, 192.168.100.10/24", /etc/netplan/60-sparkmatrix-fabric.yaml]
fact_applied:
  description: The fact on the node is that of this plan, and a run has finished it.
  returned: success
  type: bool
  sample: false
fact:
  description: The fabric fact that was on the node, null when there was none or it was damaged.
  returned: success
  type: dict
  sample: null
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils import _sysfs
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric_apply import Machine, Wanted, reconcile
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric_fact import load
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._findings import SparkError


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "fact": {"type": "dict"},
            "hosts_lines": {"type": "list", "elements": "str", "default": []},
            "connection_interface": {"type": "str", "default": ""},
            "timeout": {"type": "float", "default": 30},
        },
        required_if=[("state", "present", ["fact"])],
        supports_check_mode=True,
    )
    wanted = module.params
    try:
        fact = load(wanted["fact"], "this node") if wanted["state"] == "present" else None
        outcome = reconcile(
            Machine(sysfs_root=_sysfs.root()),
            Wanted(fact, wanted["hosts_lines"], wanted["connection_interface"], wanted["timeout"]),
            check_mode=module.check_mode,
        )
    except SparkError as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(
        changed=outcome.changed,
        diff=outcome.diff,
        changes=outcome.changes,
        fact_applied=outcome.fact_applied,
        fact=outcome.fact,
    )


if __name__ == "__main__":
    main()
