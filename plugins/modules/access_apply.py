#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: access_apply
short_description: Apply sshd settings and the firewall of a node without locking anybody out
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Places a drop-in for sshd that C(sshd -t) and C(sshd -T) have accepted, and reloads sshd; running sessions go on.
  - Switches ufw on with rules that let ssh in on every port at which sshd answers, the one of this very connection
    among them, and drops what no rule allows.
  - Before the first change the node arms a timer and a boot unit that take the change back. It stays only after a call
    with O(transaction) that came over a fresh ssh connection.
  - Rules and settings of others are left alone. What would lock somebody out is refused before anything is changed.
options:
  state:
    description: V(absent) gives back what was there before the first change.
    type: str
    choices: [present, absent]
    default: present
  sshd:
    description: Settings of the drop-in by name; none removes it.
    type: dict
    default: {}
  firewall:
    description: Whether ufw should filter. V(false) gives back what it was before this module switched it on.
    type: bool
    default: false
  ssh_sources:
    description: Addresses and networks that ssh is let in from; none means everywhere.
    type: list
    elements: str
    default: []
  rules:
    description:
      - Rules by layer, as C(ufw show added) prints them without C(ufw). Those of layers other than C(access) are placed
        only together with the first switching on; afterwards M(sparkmatrix.cluster.firewall_rules) looks after them.
    type: dict
    default: {}
  rollback_seconds:
    description: The node takes the change back after this time, in seconds, unless it is confirmed.
    type: float
    default: 150
  transaction:
    description: Confirm this change, which an earlier call returned, and do nothing else.
    type: str
    default: ''
  elsewhere:
    description: With O(transaction), for Ansible on the node itself. Another machine has tested a login.
    type: bool
    default: false
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
- name: Switch the firewall on
  sparkmatrix.cluster.access_apply:
    firewall: true
  register: applied

- name: Keep the change, over a connection of its own
  sparkmatrix.cluster.access_apply:
    transaction: "{{ applied.transaction }}"
  vars:
    ansible_control_path: none
"""

RETURN = r"""
changes:
  description: What was changed, or in check mode would be, one line each.
  returned: success
  type: list
  elements: str
  sample: ["firewall (on, what no rule allows is dropped): 7 rules more, 0 less"]
transaction:
  description: What has to be confirmed; empty when nothing has to.
  returned: success
  type: str
  sample: 4fd0c2a1
settled:
  description: >-
    Layers with a SHA-256 of their rules, joined by a space. Of O(rules) only those whose rules are there, and no others
    of theirs; besides, those that O(rules) does not name. Nothing where anything has to be changed.
  returned: success
  type: dict
  sample: {ray: 2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae}
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access import rollback
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access.apply import (
    Outcome,
    Wanted,
    give_back,
    reconcile,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.network import ssh_connection
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.rollback import SECONDS


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "sshd": {"type": "dict", "default": {}},
            "firewall": {"type": "bool", "default": False},
            "ssh_sources": {"type": "list", "elements": "str", "default": []},
            "rules": {"type": "dict", "default": {}},
            "rollback_seconds": {"type": "float", "default": SECONDS},
            "transaction": {"type": "str", "default": ""},
            "elsewhere": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    machine = Machine()
    connection = ssh_connection(machine) or ()
    try:
        outcome = _run(module.params, machine, connection, module.check_mode)
    except SparkError as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(
        changed=outcome.changed,
        changes=outcome.changes,
        diff=outcome.diff,
        transaction=outcome.transaction,
        settled=outcome.settled,
    )


def _run(wanted: Mapping[str, Any], machine: Machine, connection: Sequence[str], check_mode: bool) -> Outcome:
    if wanted["transaction"]:
        if not check_mode:
            rollback.confirm(machine, wanted["transaction"], connection, elsewhere=wanted["elsewhere"])
        return Outcome()
    if wanted["state"] == "absent":
        return give_back(machine, check_mode=check_mode)
    return reconcile(
        machine,
        Wanted(
            {str(name): str(value) for name, value in wanted["sshd"].items()},
            wanted["firewall"],
            wanted["ssh_sources"],
            wanted["rules"],
            connection,
            wanted["rollback_seconds"],
        ),
        check_mode=check_mode,
    )


if __name__ == "__main__":
    main()
