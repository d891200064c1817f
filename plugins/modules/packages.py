#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: packages
short_description: Install Debian packages, or remove them
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Waits for another apt that is at work, and installs although package sources of others are broken; it fails only
    where the packages themselves cannot be installed.
options:
  names:
    description: Names of the packages.
    type: list
    elements: str
    required: true
  state:
    description: V(absent) removes them with their configuration.
    type: str
    choices: [present, absent]
    default: present
  recommends:
    description: Install what they recommend, too.
    type: bool
    default: false
  start:
    description: Let their services start.
    type: bool
    default: true
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
- name: Install nftables
  sparkmatrix.cluster.packages:
    names: [nftables]
"""

RETURN = r"""
packages:
  description: Those that were installed or removed, or in check mode would be.
  returned: success
  type: list
  elements: str
  sample: [nftables]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import run
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import packages

LIMIT_S = 3600.0


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "names": {"type": "list", "elements": "str", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "recommends": {"type": "bool", "default": False},
            "start": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    machine = Machine(runner=lambda argv: run(argv, LIMIT_S))
    wanted = module.params
    present = wanted["state"] == "present"
    try:
        there = packages.installed(machine, wanted["names"])
        names = [name for name in wanted["names"] if (name in there) != present]
        if names and not present and not module.check_mode:
            packages.purge(machine, names)
        elif names and not module.check_mode:
            packages.install(machine, names, recommends=wanted["recommends"], start=wanted["start"])
    except SparkError as exc:
        module.fail_json(msg=str(exc))
    lines = "".join(f"package {name}\n" for name in names)
    diff = {"before": "" if present else lines, "after": lines if present else ""}
    module.exit_json(changed=bool(names), packages=names, diff=diff)


if __name__ == "__main__":
    main()
