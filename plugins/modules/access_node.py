#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: access_node
short_description: Read what a node needs for ssh between nodes, and make its key
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Returns the public host keys, the ports of sshd and the ssh connection that Ansible uses, over that connection.
  - Makes the node's own key, C(/etc/sparkmatrix/ssh/id_ed25519), where there is none or a damaged one. The private half
    is readable by root only and never leaves the node.
  - In a run of C(playbooks/site.yml) a machine that preflight has found to be exactly so is not asked once more.
options:
  state:
    description: V(absent) removes the key.
    type: str
    choices: [present, absent]
    default: present
  user:
    description: The account that peers log in to; RV(account) tells whether it is there.
    type: str
    default: sparkmatrix-peer
  rotate:
    description: Make a new key, whatever is there.
    type: bool
    default: false
  known_hosts:
    description: Return RV(known_hosts), which has a line for every other node.
    type: bool
    default: false
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
- name: Read the keys
  sparkmatrix.cluster.access_node:
"""

RETURN = r"""
public_key:
  description: Type and key, without comment. Empty in check mode where there is no key yet.
  returned: O(state=present)
  type: str
  sample: ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIExample
host_keys:
  description: Public host keys, type and key.
  returned: O(state=present)
  type: list
  elements: str
connection:
  description: Client, its port, server and its port of the ssh connection; empty where Ansible came another way.
  returned: O(state=present)
  type: list
  elements: str
  sample: [192.0.2.9, '50522', 192.0.2.1, '22']
ssh_ports:
  description: Ports at which sshd, or systemd for it, answers.
  returned: O(state=present)
  type: list
  elements: int
  sample: [22]
network:
  description: Interfaces, routes and the kept management address, as M(sparkmatrix.cluster.node_info) returns them.
  returned: O(state=present)
  type: dict
fact:
  description: The fabric fact on disk, not validated; null where there is none, and its text where it is no JSON.
  returned: O(state=present)
  type: raw
account:
  description: The account O(user) is there.
  returned: O(state=present)
  type: bool
jail:
  description: M(sparkmatrix.cluster.fail2ban_jail) has switched fail2ban on.
  returned: O(state=present)
  type: bool
known_hosts:
  description: The text of C(/etc/sparkmatrix/ssh/known_hosts), empty where there is none.
  returned: O(known_hosts=true)
  type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access.node import (
    USER,
    known_hosts,
    look,
    remove_key,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "user": {"type": "str", "default": USER},
            "rotate": {"type": "bool", "default": False},
            "known_hosts": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    try:
        if wanted["state"] == "absent":
            module.exit_json(changed=remove_key(Machine(), check_mode=module.check_mode))
        found = look(Machine(), wanted["user"], rotate=wanted["rotate"], check_mode=module.check_mode)
    except SparkError as exc:
        module.fail_json(msg=str(exc))
    known = {"known_hosts": known_hosts(Machine())} if wanted["known_hosts"] else {}
    module.exit_json(**found.as_dict(), **known)


if __name__ == "__main__":
    main()
