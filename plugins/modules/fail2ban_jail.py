#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fail2ban_jail
short_description: Apply fail2ban's jail for sshd, with addresses that are never banned
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Enables and starts C(fail2ban.service) and compares the addresses that the running jail ignores with those that it
    should ignore. Where they differ, the server reads its files again. The file of the jail is placed before, see
    M(sparkmatrix.cluster.managed_files).
  - An address to ignore that is banned already is let in again.
  - O(state=absent) brings the service into the state that it had before. Call it after the file of the jail is gone.
options:
  ignore:
    description: Addresses that are never banned, beside loopback. Used with O(state=present) only.
    type: list
    elements: str
    default: []
  state:
    description: Whether the jail should be applied.
    type: str
    choices: [present, absent]
    default: present
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
- name: Never ban the other nodes
  sparkmatrix.cluster.fail2ban_jail:
    ignore: [192.0.2.11, 192.0.2.12]
"""

RETURN = r"""
actions:
  description: What was done, or in check mode would be.
  returned: success
  type: list
  elements: str
  sample: [reload the jail sshd]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access.fail2ban import Jail
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "ignore": {"type": "list", "elements": "str", "default": []},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        supports_check_mode=True,
    )
    jail = Jail(check_mode=module.check_mode)
    try:
        outcome = jail.absent() if module.params["state"] == "absent" else jail.present(module.params["ignore"])
    except SparkError as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(changed=outcome.changed, actions=outcome.actions, diff=outcome.diff)


if __name__ == "__main__":
    main()
