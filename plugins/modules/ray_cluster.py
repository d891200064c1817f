#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ray_cluster
short_description: Wait until a Ray cluster has exactly the planned nodes
version_added: 0.1.0
description:
  - Asks Ray itself (C(ray.nodes()), in the engine's Python environment) which nodes are alive, until each planned
    address is there exactly once, or fails with the nodes that are missing, doubled or not planned.
options:
  python:
    description: Interpreter of the environment that has Ray.
    type: path
    default: /opt/sparkmatrix/engine/bin/python
  address:
    description: Address and port of the cluster's head.
    type: str
    required: true
  nodes:
    description: Planned nodes, host name to address on the cluster network.
    type: dict
    required: true
  environment:
    description: Environment of the query, for example Ray's token path. No secrets.
    type: dict
    default: {}
  user:
    description: User that asks, the one that Ray runs as. Unset means the module's own.
    type: str
  container:
    description: Container on this node in which to ask, where Ray runs in one. Environment and user are its own.
    type: str
    default: ''
  timeout:
    description: How long to wait, in seconds.
    type: float
    default: 180
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
  - sparkmatrix.cluster.attributes.info_module
notes:
  - In check mode it looks once, and an incomplete cluster is no failure.
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Wait for both nodes
  sparkmatrix.cluster.ray_cluster:
    address: 192.168.177.11:6379
    nodes:
      spark1: 192.168.177.11
      spark2: 192.168.177.12
    environment:
      RAY_AUTH_MODE: token
      RAY_AUTH_TOKEN_PATH: /etc/sparkmatrix/ray.token
    user: sparkmatrix
"""

RETURN = r"""
complete:
  description: Whether exactly the planned nodes are alive.
  returned: success
  type: bool
  sample: true
alive:
  description: Addresses of the nodes that are alive.
  returned: success
  type: list
  elements: str
  sample: [192.168.177.11, 192.168.177.12]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import ray_cluster


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "python": {"type": "path", "default": "/opt/sparkmatrix/engine/bin/python"},
            "address": {"type": "str", "required": True},
            "nodes": {"type": "dict", "required": True},
            "environment": {"type": "dict", "default": {}},
            "user": {"type": "str"},
            "container": {"type": "str", "default": ""},
            "timeout": {"type": "float", "default": 180},
        },
        supports_check_mode=True,
    )
    params = module.params
    names = {str(address): str(name) for name, address in params["nodes"].items()}
    query = ray_cluster.Query(
        python=params["python"],
        address=params["address"],
        addresses=tuple(names),
        environment={str(name): str(value) for name, value in params["environment"].items()},
        user=params["user"] or "",
        container=params["container"],
        timeout_s=0 if module.check_mode else params["timeout"],
    )
    try:
        verdict = ray_cluster.read(query)
    except SparkError as exc:
        if module.check_mode:
            module.exit_json(changed=False, complete=False, alive=[], reason=str(exc))
        module.fail_json(msg=str(exc))
    result = {"complete": verdict.complete, "alive": list(verdict.alive)}
    if not verdict.complete and not module.check_mode:
        problem = SparkError(verdict.sentence(names), f"Ray cluster at {params['address']}", ray_cluster.REMEDY)
        module.fail_json(msg=str(problem), **result)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
