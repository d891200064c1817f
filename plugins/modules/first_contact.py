#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: first_contact
short_description: Collect what a real Spark prints, without what tells whose it is
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Runs programs that only show something, and reads files of the system. Serial numbers, identities, MAC addresses and
    public addresses are replaced on the machine itself. Changes nothing.
options: {}
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
  - sparkmatrix.cluster.attributes.info_module
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Collect the outputs
  sparkmatrix.cluster.first_contact:
  register: result
"""

RETURN = r"""
outputs:
  description: Text by name of a program or path of a file.
  returned: success
  type: dict
  sample: {ip_link: "enp1s0f0np0 UP 4c:bb:47:00:00:01"}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.first_contact import collect


def main() -> None:
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    module.exit_json(changed=False, outputs=collect(Machine()))


if __name__ == "__main__":
    main()
