#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: support_capture
short_description: Collect what a machine prints, without its secrets
version_added: 0.2.0
description:
  - "Internal to this collection: no compatibility promise."
  - Runs programs that only show something, and reads files of the system. Secrets are left out on the machine itself.
    Changes nothing.
options:
  logs:
    description: Also journals, settings, engine plan, verdicts and the keeper's history.
    type: bool
    default: false
  anonymous:
    description: Leave out addresses, names, serial numbers and identities, too.
    type: bool
    default: false
  names:
    description: Names of machines, and what stands for each.
    type: dict
    default: {}
  name:
    description: What stands for this machine.
    type: str
    default: ""
  key:
    description: What stands for an address is made from it; the same on all machines of a run.
    type: str
    default: ""
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
  - sparkmatrix.cluster.attributes.info_module
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Collect the outputs
  sparkmatrix.cluster.support_capture:
    logs: true
  register: result
"""

RETURN = r"""
packed:
  description: Text by name of a program or path of a file, as JSON, compressed by zlib, in base64.
  returned: success
  type: str
  sample: "eJyrVspLzE1VslKoBQARvgNG"
counts:
  description: How often something was left out, by kind.
  returned: success
  type: dict
  sample: {"tokens": 2}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._support.capture import capture, runner
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._support.redaction import Redactor


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "logs": {"type": "bool", "default": False},
            "anonymous": {"type": "bool", "default": False},
            "names": {"type": "dict", "default": {}},
            "name": {"type": "str", "default": ""},
            "key": {"type": "str", "default": "", "no_log": True},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    redactor = Redactor(anonymous=wanted["anonymous"], names=wanted["names"], key=wanted["key"])
    found = capture(Machine(runner=runner), redactor, logs=wanted["logs"], name=wanted["name"])
    module.exit_json(changed=False, packed=found.packed(), counts=found.counts)


if __name__ == "__main__":
    main()
