#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: port_filter
short_description: Keep a table of nftables active
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Loads a table of our own, replaces it in one step when it is another one, and has it loaded at every boot before
    there is a network. What the kernel has is compared, so a table that somebody has flushed is loaded again.
  - Tables of others are not touched.
  - In a run of C(playbooks/site.yml) a machine that preflight has found to be exactly so is not asked once more.
options:
  name:
    description: Which table, C(inet sparkmatrix_<name>). Required; V(in_force) is about all of them.
    type: str
    choices: [fabric, services, gateway, web_ui, observability]
  rules:
    description: The whole table, as the planners print it.
    type: str
    default: ""
  users:
    description: Accounts that the rules call C($accounts), beside root.
    type: list
    elements: str
    default: []
  state:
    description:
      - V(absent), and empty O(rules), take the table, its unit and its file away.
      - V(in_force) changes nothing, and fails where a table that the node keeps is not what the kernel has.
    type: str
    choices: [present, absent, in_force]
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
- name: Close Ray and the ranks to strangers
  sparkmatrix.cluster.port_filter:
    name: services
    rules: "{{ planned.rules[inventory_hostname] }}"
    users: [sparkmatrix]

- name: Take it away
  sparkmatrix.cluster.port_filter:
    name: services
    state: absent
"""

RETURN = r"""
changes:
  description: What was done, or in check mode would be.
  returned: success
  type: list
  elements: str
  sample: [load table inet sparkmatrix_services]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access import port_filter
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "choices": list(port_filter.NAMES)},
            "rules": {"type": "str", "default": ""},
            "users": {"type": "list", "elements": "str", "default": []},
            "state": {"type": "str", "choices": ["present", "absent", "in_force"], "default": "present"},
        },
        required_if=[("state", state, ("name",)) for state in ("present", "absent")],
        supports_check_mode=True,
    )
    params, check_mode = module.params, module.check_mode
    try:
        if params["state"] == "in_force":
            for name in port_filter.NAMES:
                port_filter.require(Machine(), name)
            outcome = port_filter.Outcome()
        elif params["state"] == "present" and params["rules"]:
            outcome = port_filter.present(
                Machine(), params["name"], params["rules"], params["users"], check_mode=check_mode
            )
        else:
            outcome = port_filter.absent(Machine(), params["name"], check_mode=check_mode)
    except SparkError as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(changed=bool(outcome.changes), changes=outcome.changes, diff=outcome.diff)


if __name__ == "__main__":
    main()
