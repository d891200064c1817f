#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_observation
short_description: Look at a node that serves, without disturbing it
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Reads the journal, the processes of the ranks, the settings that are active, image and weights, and asks the
    services whose head the node is for one token. Writes nothing.
  - What cannot be looked at is named; the module does not fail for it.
options:
  days:
    description: How far back the journal is read, in days.
    type: float
    default: 7
  gpu:
    description: Measure a matrix-vector product on the GPU where no engine runs.
    type: bool
    default: false
  ask:
    description: Ask the services whose head the node is for a token.
    type: bool
    default: true
  here:
    description: Ask the status of this node only, not of the others.
    type: bool
    default: true
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
  - sparkmatrix.cluster.attributes.info_module
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Look at the node
  sparkmatrix.cluster.node_observation:
    days: 1
  register: result
"""

RETURN = r"""
observation:
  description: What was seen (C(plugins/module_utils/_verdict/observation.py)).
  returned: success
  type: dict
status:
  description: What C(sparkmatrix status --json) prints, or C(problem).
  returned: success
  type: dict
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._status import node
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict import gpu
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.observe import Asked, observe


def status(here: bool) -> dict[str, Any]:
    try:
        return node.collect(node.Asked(), here=here)
    except SparkError as exc:
        return {"schema": node.SCHEMA_VERSION, "problem": str(exc)}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "days": {"type": "float", "default": 7},
            "gpu": {"type": "bool", "default": False},
            "ask": {"type": "bool", "default": True},
            "here": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    params = module.params
    seen = observe(Machine(), Asked(days=params["days"], gpu=gpu.measure if params["gpu"] else None, ask=params["ask"]))
    module.exit_json(changed=False, observation=seen.as_dict(), status=status(params["here"]))


if __name__ == "__main__":
    main()
