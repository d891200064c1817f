#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: engine_inputs
short_description: See what this node has of what its engine plan needs
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Asks Python environments which requirements they meet, and looks whether models can be had, in a directory of the
    node, in the cache, or at the hub.
  - Makes the directories for downloaded models and for what containers compile. Changes nothing else.
options:
  environments:
    description: Python environments.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Where it is.
        type: path
        required: true
      requirements:
        description: As pip takes them.
        type: list
        elements: str
        default: []
  oldest_ray:
    description: By path, the first Ray that may be in an environment from which one is started.
    type: dict
    default: {}
  question:
    description: Program that the Python of an environment runs; it prints C(complete), or what is not met.
    type: str
    default: ''
  models:
    description: C(models) of the engine plan.
    type: list
    elements: dict
    default: []
  cache:
    description: Directory for downloaded models; empty where none are downloaded.
    type: str
    default: ''
  brought:
    description:
      - Models from the hub are brought to O(cache) by the layer artifacts, so this node does not ask the hub whether
        they can be had.
    type: bool
    default: false
  kernels:
    description: Directory for what containers compile; empty where none are run.
    type: str
    default: ''
  user:
    description: Whose that directory is, and who reads models outside of containers.
    type: str
    required: true
  group:
    description: Its group.
    type: str
    required: true
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: full
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: See whether the model is there
  sparkmatrix.cluster.engine_inputs:
    models:
      - name: /opt/sparkmatrix/models/qwen3-8b
    user: sparkmatrix
    group: sparkmatrix
"""

RETURN = r"""
environments:
  description: By path, whose it is, the requirements that are not met (empty where there is no environment yet), and
    the FlashInfer whose compiled kernels are not there.
  returned: success
  type: dict
  sample:
    /opt/sparkmatrix/engine:
      owner: root
      unmet: complete
      kernels: ''
models:
  description: In the order of O(models), where each was found, what is the same on nodes with the same files, and what
    is wrong.
  returned: success
  type: list
  elements: dict
  sample:
    - name: /opt/sparkmatrix/models/qwen3-8b
      ref: ''
      where: files
      signature: 0a1b2c3d4e5f6071
      problem: ''
      remedy: ''
"""

import os
import pwd
from collections.abc import Mapping
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import look
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.cache import Cache
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import command
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import inputs, model_files


def directory(module: AnsibleModule, path: str, user: str, group: str, mode: str = "0755") -> bool:
    """Whether it had to be made, or given to its owner. Through a link: models may be on another disk."""
    path = os.path.realpath(path)
    there = os.path.isdir(path)
    if module.check_mode and (not there or user not in {one.pw_name for one in pwd.getpwall()}):
        return True
    if not there:
        os.makedirs(path, mode=int(mode, 8))
    changed = module.set_owner_if_different(path, user, not there)
    changed = module.set_group_if_different(path, group, changed)
    return bool(module.set_mode_if_different(path, mode, changed))


def model(wanted: Mapping[str, Any], home: str, user: str, brought: bool) -> dict[str, Any]:
    name, ref = wanted["name"], str(wanted.get("revision") or "")
    ours = not name.startswith("/") and look.is_cache_of(wanted.get("environment") or {}, home)
    seen = inputs.model(wanted, user, command.run, brought and ours).as_dict()
    if ours and seen["where"] != model_files.ELSEWHERE:
        seen["held"] = look.held(Cache(home), name, ref).as_dict()
    return {"name": name, "ref": ref, **seen}


def main() -> None:
    one = {
        "path": {"type": "path", "required": True},
        "requirements": {"type": "list", "elements": "str", "default": []},
    }
    module = AnsibleModule(
        argument_spec={
            "environments": {"type": "list", "elements": "dict", "default": [], "options": one},
            "oldest_ray": {"type": "dict", "default": {}},
            "question": {"type": "str", "default": ""},
            "models": {"type": "list", "elements": "dict", "default": []},
            "cache": {"type": "str", "default": ""},
            "brought": {"type": "bool", "default": False},
            "kernels": {"type": "str", "default": ""},
            "user": {"type": "str", "required": True},
            "group": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    params, changed = module.params, False
    try:
        environments = {
            one["path"]: inputs.environment(
                one["path"],
                one["requirements"],
                str(params["oldest_ray"].get(one["path"], "")),
                params["question"],
                command.run,
            )
            for one in params["environments"]
        }
        models = [model(wanted, params["cache"], params["user"], params["brought"]) for wanted in params["models"]]
        if params["cache"]:
            changed = directory(module, params["cache"], params["user"], params["group"])
        if params["kernels"]:
            changed = directory(module, params["kernels"], "root", "root", "0700") or changed
    except (SparkError, OSError) as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(changed=changed, environments=environments, models=models)


if __name__ == "__main__":
    main()
