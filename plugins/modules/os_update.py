#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: os_update
short_description: Update kernel and driver packages of a node, with a new kernel on probation
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Looks at what apt would do, installs it, and boots a new kernel once while the previous one stays the default.
options:
  phase:
    description:
      - V(look) reads and simulates, and changes nothing but apt's lists (O(refresh)).
      - V(install) installs. What was on hold is on hold again afterwards.
      - V(try_kernel) chooses O(kernel) for the next boot only, and O(previous) for all later ones.
      - V(keep_kernel) gives the machine its own choice of the default back, after O(kernel) has passed its probation.
      - V(firmware) lets fwupd install the firmware that it has.
    type: str
    choices: [look, install, try_kernel, keep_kernel, firmware]
    required: true
  packages:
    description: Names of installed packages, with shell wildcards.
    type: list
    elements: str
    default: []
  versions:
    description: Versions of packages, by name; what is not named becomes what apt prefers.
    type: dict
    default: {}
  refresh:
    description: Read the package sources first.
    type: bool
    default: false
  kernel:
    description: The kernel to boot, as C(uname -r) prints it.
    type: str
    default: ''
  previous:
    description: The kernel to return to.
    type: str
    default: ''
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
attributes:
  check_mode:
    support: partial
    details: V(look) reads; the other phases do nothing.
  diff_mode:
    support: none
  idempotent:
    support: partial
    details: V(try_kernel) chooses anew every time.
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: List the available updates
  sparkmatrix.cluster.os_update:
    phase: look
    packages: ["linux-image-*", "nvidia-*"]
"""

RETURN = r"""
look:
  description: Kernels, packages, what apt would change, and what keeps GRUB from returning to the previous kernel.
  returned: O(phase=look)
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._os import update as os_update


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "phase": {
                "type": "str",
                "choices": ["look", "install", "try_kernel", "keep_kernel", "firmware"],
                "required": True,
            },
            "packages": {"type": "list", "elements": "str", "default": []},
            "versions": {"type": "dict", "default": {}},
            "refresh": {"type": "bool", "default": False},
            "kernel": {"type": "str", "default": ""},
            "previous": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    params = module.params
    versions = {name: str(version) for name, version in params["versions"].items()}
    phase = params["phase"]
    machine = Machine(runner=os_update.patient)
    try:
        if phase == "look":
            refresh = params["refresh"] and not module.check_mode
            found = os_update.look(machine, params["packages"], versions, refresh=refresh)
            module.exit_json(changed=False, look=found.as_dict())
        if module.check_mode:
            module.exit_json(changed=True)
        if phase == "install":
            found = os_update.look(machine, params["packages"], versions)
            if found.problems:
                raise SparkError("; ".join(found.problems))
            if found.changes:
                os_update.install(machine, found.packages, versions, found.held)
            module.exit_json(changed=bool(found.changes))
        if phase == "try_kernel":
            os_update.try_kernel(machine, params["kernel"], params["previous"])
            module.exit_json(changed=True)
        if phase == "firmware":
            os_update.update_firmware(machine)
            module.exit_json(changed=True)
        module.exit_json(changed=os_update.keep_kernel(machine, params["kernel"]))
    except SparkError as exc:
        module.fail_json(msg=str(exc))


if __name__ == "__main__":
    main()
