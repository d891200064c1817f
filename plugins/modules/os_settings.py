#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: os_settings
short_description: Apply the settings of os_stabilization on a node, or restore the earlier ones
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Decides from the options and from what it finds on the node which files, sysctls, limits, held packages, swap areas
    and units are wanted, applies them, and reads back what is.
  - Whatever it replaces is kept in C(/var/lib/sparkmatrix/managed/os_stabilization.json) (files) and
    C(/var/lib/sparkmatrix/settings/os_stabilization.json) (running values) and comes back with O(state=absent), or when
    a topic is switched off.
  - What is wrong on the node, and does not keep the settings from working, is a warning; what must not be done is a
    refusal that names everything at once, before anything was changed.
options:
  options:
    description:
      - The variables of the role P(sparkmatrix.cluster.os_stabilization#role), without their prefix. What is not given
        has the role's default.
    type: dict
    default: {}
  state:
    description: Whether the settings should be applied.
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
- name: Apply the settings
  sparkmatrix.cluster.os_settings:
    options:
      headless: true
      swap_policy: swappiness
      swappiness: 10
"""

RETURN = r"""
actions:
  description: What was done, or in check mode would be.
  returned: success
  type: list
  elements: str
  sample: ["vm.swappiness: 60 -> 10"]
reboot:
  description: Reasons for a reboot; empty when there is none.
  returned: success
  type: list
  elements: str
  sample: ["the desktop still runs and keeps 1.2 to 3 GiB"]
memory_min:
  description: Bytes that the kernel protects from reclaim now, by unit; empty where systemd has no memory controller.
  returned: success
  type: dict
  sample: {"ssh.service": 67108864}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._os.stabilization import Stabilization


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "options": {"type": "dict", "default": {}},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        supports_check_mode=True,
    )
    try:
        stabilization = Stabilization(check_mode=module.check_mode)
        absent = module.params["state"] == "absent"
        outcome = stabilization.absent() if absent else stabilization.present(module.params["options"])
    except SparkError as exc:
        module.fail_json(msg=str(exc))
    for warning in outcome.warnings:
        module.warn(warning)
    module.exit_json(
        changed=outcome.changed,
        actions=outcome.actions,
        reboot=outcome.reboot,
        memory_min=outcome.memory_min,
        diff=outcome.diff,
    )


if __name__ == "__main__":
    main()
