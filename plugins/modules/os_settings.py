#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: os_settings
short_description: Bring kernel settings and systemd's default limits into force, and take them back
version_added: 0.1.0
description:
  - Sets the running value of sysctls, and makes systemd read its configuration again when its effective default limits
    are not the wanted ones. The files that make both permanent are placed with M(sparkmatrix.cluster.managed_files).
  - The values that the machine had before are kept in C(/var/lib/sparkmatrix/settings/<name>.json) and come back with
    O(state=absent), or when a setting leaves the group.
options:
  name:
    description: Name of the group of settings.
    type: str
    required: true
  sysctl:
    description: Kernel settings and their values.
    type: dict
    default: {}
  manager_limits:
    description:
      - Default limits of systemd as in C(system.conf), for example C(DefaultLimitMEMLOCK), and their values,
        V(infinity), a number, or C(soft:hard).
      - The configuration file has to hold them already.
    type: dict
    default: {}
  state:
    description: Whether the settings shall be in force.
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
- name: Bring the settings into force
  sparkmatrix.cluster.os_settings:
    name: example
    sysctl:
      vm.swappiness: 10
    manager_limits:
      DefaultLimitMEMLOCK: infinity
"""

RETURN = r"""
actions:
  description: What was done, or in check mode which values differ.
  returned: success
  type: list
  elements: str
  sample: ["vm.swappiness: 60 -> 10"]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._os_settings import Settings


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "sysctl": {"type": "dict", "default": {}},
            "manager_limits": {"type": "dict", "default": {}},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        settings = Settings(params["name"], check_mode=module.check_mode)
        if params["state"] == "absent":
            result = settings.remove()
        else:
            result = settings.apply(params["sysctl"], params["manager_limits"])
    except SparkError as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(changed=result.changed, actions=result.actions, diff=result.diff)


if __name__ == "__main__":
    main()
