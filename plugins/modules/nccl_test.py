#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_test
short_description: Run this node's rank in a test of NCCL
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Times collectives of NCCL between all nodes, in the Python environment or the image of the engine and with the
    engine's environment, so it measures the library that serves. All nodes have to run it at the same time.
  - It runs in the unit C(sparkmatrix-nccl.service), which systemd ends when its time is over.
  - A test without a result is reported with the reason; the module does not fail, so that the answers of all nodes can
    be judged together.
options:
  phase:
    description: V(look) only says whether this node can take part now, V(measure) does O(part).
    type: str
    choices: [look, measure]
    default: look
  plan:
    description: The node's part of the engine plan.
    type: dict
    required: true
  part:
    description: Phase V(measure). What this node has to do, as M(sparkmatrix.cluster.plan) returns it.
    type: dict
    default: {}
  user:
    description: Whom a Python environment runs as; a container has its own root.
    type: str
    default: sparkmatrix
  memlock:
    description: Memory that it may lock, as in a unit of systemd.
    type: str
    default: infinity
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
  - sparkmatrix.cluster.attributes.info_module
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Check whether the machine can take part
  sparkmatrix.cluster.nccl_test:
    plan: "{{ spark_plan }}"

- name: Run the rank of the machine
  sparkmatrix.cluster.nccl_test:
    phase: measure
    plan: "{{ spark_plan }}"
    part: "{{ schedule.parts[inventory_hostname] }}"
"""

RETURN = r"""
ready:
  description:
    - C(engine), whether the plan has one here; C(program), whether its Python or image is there; C(busy), the units
      that the test would disturb; C(available), bytes of memory that are free.
  returned: phase V(look)
  type: dict
  sample: {engine: true, program: true, busy: [], available: 120000000000}
answer:
  description:
    - C(rc), the exit code; C(results), of rank 0, sizes with times and rates; C(log), what NCCL said of its network;
      C(moved), bytes by RDMA device, -1 where they are not counted; C(trouble), why there is no result.
  returned: phase V(measure), outside of check mode
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import plan_document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._nccl import run


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "phase": {"type": "str", "choices": ["look", "measure"], "default": "look"},
            "plan": {"type": "dict", "required": True},
            "part": {"type": "dict", "default": {}},
            "user": {"type": "str", "default": "sparkmatrix"},
            "memlock": {"type": "str", "default": "infinity"},
        },
        supports_check_mode=True,
    )
    params, machine = module.params, Machine()
    try:
        plan = plan_document.load(params["plan"])
        if params["phase"] == "look":
            module.exit_json(changed=False, ready=run.look(plan, machine))
        if module.check_mode:
            module.exit_json(changed=False)
        part = document.load(run.Part, params["part"])
        answer = run.measure(part, plan, run.Account(params["user"], params["memlock"]), machine)
    except (SparkError, TypeError, ValueError) as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(changed=False, answer=document.plain(answer))


if __name__ == "__main__":
    main()
