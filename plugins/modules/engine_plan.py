# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file documents an action plugin of the same name; it never runs.

from __future__ import annotations

DOCUMENTATION = r"""
module: engine_plan
short_description: Compute what Ray and the engine run on each node
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Computes from a recipe, the fabric facts of all hosts, their memory and settings one plan per host. Command lines,
    environment, memory budget and the reason for the parallel sizes are in it.
  - Refuses, with all reasons at once, a model that does not fit, sizes that do not divide, options that this version of
    the engine does not know, and a fabric that is not applied.
  - Runs on the controller, once for all hosts, and contacts none of them. It reads C(spark_fabric) of this run,
    else the fact that preflight has read (C(spark_node_info)); memory comes from the result of preflight, too.
  - What is asked for are the variables of the roles engine and ray (C(engine_recipe), C(engine_services),
    C(ray_port), ...), as C(docs/reference.md) lists them.
options:
  variables:
    description: Variables of these roles by name, in place of those of the play.
    type: dict
    default: {}
  group:
    description: Inventory group of the nodes.
    type: str
    default: sparks
attributes:
  check_mode:
    support: full
    details:
      - A fabric that is only planned is good enough then.
  diff_mode:
    support: none
  idempotent:
    support: full
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Compute the plan of all nodes
  sparkmatrix.cluster.engine_plan:
    variables:
      engine_recipe: qwen3-8b
      engine_venv_requirements: [vllm==0.33.0]
  register: engine
  run_once: true

- name: Set each node's part of the plan
  ansible.builtin.set_fact:
    spark_plan: "{{ engine.plans[inventory_hostname] }}"
"""

RETURN = r"""
plans:
  description:
    - One plan per host, as C(docs/engine-plan.schema.json) describes it.
  returned: success
  type: dict
  contains:
    here:
      description: The services on this host, the one that spans hosts first; empty where there is none.
      type: list
      elements: dict
    identity: {description: The same on all hosts; changes with every service of any of them., type: str}
summary:
  description: The plan in a few sentences.
  returned: success
  type: list
  elements: str
  sample: ['Endpoint: http://127.0.0.1:8000/v1 on spark1, model name qwen3.8-flash-next-nvfp4']
sbatch:
  description: The same plan as a batch script for Slurm, with what was assumed, or why there is none.
  returned: success
  type: dict
  contains:
    script: {description: The script., type: str}
    assumed:
      description: Interfaces and addresses that no machine was asked for, in lines.
      type: list
      elements: str
    refused: {description: Why there is none., type: str}
"""
