#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_apply
short_description: Configure the fabric interfaces of a node, or restore them
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Compares the addresses, routes, MTU and sysctls of the fabric interfaces with the plan and changes only
    these interfaces, through netplan and systemd-networkd or NetworkManager.
  - It never calls C(netplan apply) or C(netplan try), which restart NetworkManager and the management network with it.
  - Before the first change the fabric fact on the node is written in state V(applying). Whatever interrupts a run, no
    later layer accepts the node before a run has finished.
  - A change that does not become effective within O(timeout) is taken back, and the step that failed is named.
  - A change that nobody confirms within O(rollback_seconds) is taken back by the node itself, after a reboot at the
    latest. Call O(state=confirmed) once the change was tested, O(state=restored) if it does not work, both with
    the RV(transaction) of the change. Needs M(sparkmatrix.cluster.node_tool) on the node.
  - It refuses to touch the interface that carries Ansible's connection, and interfaces that another netplan file, a
    connection of NetworkManager or a file of systemd-networkd configures differently. It refuses any change while the
    files of netplan lack what that connection runs with.
options:
  state:
    description:
      - V(present) changes what is not as planned, and leaves the change pending.
      - V(confirmed) makes a pending change stay. It fails when the node has taken the change back meanwhile.
      - V(restored) takes a pending change back now. Without one there is nothing to do.
      - V(absent) gives back what was there before the first change, from files to MTU, and removes the fabric fact.
    type: str
    choices: [present, confirmed, restored, absent]
    default: present
  fact:
    description: The fabric fact of this node as M(sparkmatrix.cluster.plan) returns it. Required for
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
  rollback_seconds:
    description: Seconds after which the node takes a change back that nobody has confirmed. At least 10 more than
      O(timeout).
    type: float
    default: 150
  transaction:
    description: The pending change, as O(state=present) returned it. Required for O(state=confirmed) and
      O(state=restored).
    type: str
  backend:
    description:
      - What configures the interfaces.
      - V(auto) is what was used before, else systemd-networkd, or NetworkManager where networkd is masked or missing.
    type: str
    choices: [auto, networkd, networkmanager]
    default: auto
  foreign:
    description:
      - What to do with netplan files, profiles of NetworkManager and files of systemd-networkd that configure the
        interfaces differently.
      - V(adopt) disables what they say about interfaces of the NIC. Their content comes back with O(state=absent).
        Bonds, routes and definitions that fit other interfaces as well are refused all the same.
      - Netplan files that ask DHCP at most, for interfaces of O(fact) only, are disabled in any case. A warning
        names them.
    type: str
    choices: [refuse, adopt]
    default: refuse
  ipv6:
    description: Leave IPv6 on on the fabric interfaces. Its addresses add GIDs and shift the index of the others.
    type: bool
    default: false
  macs:
    description:
      - MAC addresses of all ports that belong to the cluster. Nobody else may have an address that a half is to get.
    type: list
    elements: str
    default: []
requirements:
  - PyYAML (C(python3-yaml)), which netplan depends on as well
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
  register: applied

- name: Make the tested change stay
  sparkmatrix.cluster.fabric_apply:
    state: confirmed
    transaction: "{{ applied.transaction }}"

- name: Give them back
  sparkmatrix.cluster.fabric_apply:
    state: absent
"""

RETURN = r"""
transaction:
  description: The change that is pending now. Empty when nothing is.
  returned: O(state=present)
  type: str
  sample: 9f2c41aa
backend:
  description: What configures the interfaces, empty when nothing is configured.
  returned: O(state=present) or O(state=absent)
  type: str
  sample: networkd
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

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import rollback
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.apply import Wanted, reconcile
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import load
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.rollback import SECONDS

OPTIONS = {
    "state": {"type": "str", "choices": ["present", "confirmed", "restored", "absent"], "default": "present"},
    "fact": {"type": "dict"},
    "hosts_lines": {"type": "list", "elements": "str", "default": []},
    "connection_interface": {"type": "str", "default": ""},
    "timeout": {"type": "float", "default": 30},
    "rollback_seconds": {"type": "float", "default": SECONDS},
    "transaction": {"type": "str"},
    "backend": {"type": "str", "choices": ["auto", "networkd", "networkmanager"], "default": "auto"},
    "foreign": {"type": "str", "choices": ["refuse", "adopt"], "default": "refuse"},
    "ipv6": {"type": "bool", "default": False},
    "macs": {"type": "list", "elements": "str", "default": []},
}


def main() -> None:
    module = AnsibleModule(
        argument_spec=OPTIONS,
        required_if=[
            ("state", "present", ["fact"]),
            ("state", "confirmed", ["transaction"]),
            ("state", "restored", ["transaction"]),
        ],
        supports_check_mode=True,
    )
    machine = Machine()
    act = settle if module.params["state"] in ("confirmed", "restored") else configure
    try:
        result = act(machine, module.params, module.check_mode)
    except SparkError as exc:
        module.fail_json(msg=str(exc))
    for warning in result.pop("warnings", []):
        module.warn(warning)
    module.exit_json(**result)


def settle(machine: Machine, options: dict[str, Any], check_mode: bool) -> dict[str, Any]:
    """Make the pending change stay, or take it back."""
    transaction = options["transaction"]
    if check_mode:
        found = rollback.GUARD.pending(machine)
        return {"changed": found is not None and found.id == transaction, "changes": []}
    if options["state"] == "confirmed":
        rollback.confirm(machine, transaction)
        return {"changed": True, "changes": []}
    left = rollback.restore(machine, transaction)
    return {"changed": left is not None, "changes": left or []}


def configure(machine: Machine, options: dict[str, Any], check_mode: bool) -> dict[str, Any]:
    present = options["state"] == "present"
    wanted = Wanted(
        load(options["fact"], "this node") if present else None,
        options["hosts_lines"],
        options["connection_interface"],
        options["timeout"],
        options["rollback_seconds"],
        options["backend"],
        options["foreign"],
        options["ipv6"],
        options["macs"],
    )
    outcome = reconcile(machine, wanted, check_mode=check_mode)
    result = {
        "changed": outcome.changed,
        "diff": outcome.diff,
        "changes": outcome.changes,
        "warnings": outcome.warnings,
        "fact_applied": outcome.fact_applied,
        "fact": outcome.fact,
        "backend": outcome.backend,
    }
    return {**result, "transaction": outcome.transaction} if present else result


if __name__ == "__main__":
    main()
