#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: management_reach
short_description: Try to reach other nodes at their management addresses
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Tries every address at the same time. A node is reached where it answers a ping, or where its sshd answers.
  - The module does not fail where a node is not reached, so that the results of all nodes can be judged together.
options:
  node:
    description: Name of this node, which is left out of O(peers).
    type: str
    default: ''
  peers:
    description: Whom to reach.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name of the node, handed back in the result.
        type: str
        required: true
      address:
        description: Its management address.
        type: str
        required: true
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
  - sparkmatrix.cluster.attributes.info_module
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Try to reach the second node
  sparkmatrix.cluster.management_reach:
    node: spark1
    peers:
      - {name: spark2, address: 10.0.0.12}
  register: result
"""

RETURN = r"""
unreached:
  description: The nodes that do not answer, in the given order. All others do.
  returned: success
  type: list
  elements: dict
  contains:
    name: {description: As given., type: str, sample: spark2}
    address: {description: As given., type: str, sample: 10.0.0.12}
    reason: {description: Why it was not reached., type: str, sample: no answer to ping}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.reach import unreached


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "node": {"type": "str", "default": ""},
            "peers": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "name": {"type": "str", "required": True},
                    "address": {"type": "str", "required": True},
                },
            },
        },
        supports_check_mode=True,
    )
    others = [peer for peer in module.params["peers"] if peer["name"] != module.params["node"]]
    module.exit_json(changed=False, unreached=unreached(others))


if __name__ == "__main__":
    main()
