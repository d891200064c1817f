#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: engine_version
short_description: Ask engines on this node for their version and their options
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - For images and Python environments whose version the plan does not know. The engine's own parser lists its options.
    In a container it has no network, in a Python environment it runs as the service user.
options:
  engines:
    description: C(unknown) of the engine plan.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: The image, or the path of the environment.
        type: str
        required: true
      contained:
        description: Whether it is an image.
        type: bool
        required: true
      distributions:
        description: Python packages that may bring the engine.
        type: list
        elements: str
        required: true
      help_words:
        description: Command that lists all options.
        type: list
        elements: str
        required: true
      gpus:
        description: How the container gets its GPU.
        type: str
        choices: [all, cdi, none]
        default: all
  user:
    description: Whom environments are asked as.
    type: str
    required: true
  home:
    description: Home directory meanwhile.
    type: path
    required: true
  timeout:
    description: How long one engine may take, in seconds.
    type: float
    default: 600
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
attributes:
  check_mode:
    support: full
    details: What is not there yet is not asked.
  diff_mode:
    support: none
  idempotent:
    support: full
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Ask an image for its engine
  sparkmatrix.cluster.engine_version:
    user: sparkmatrix
    home: /var/lib/sparkmatrix/home
    engines:
      - name: vllm/vllm-openai:nightly
        contained: true
        distributions: [vllm]
        help_words: [vllm, serve, --help=all]
"""

RETURN = r"""
engines:
  description: What each of them said. C(options) is empty where it did not list them.
  returned: success
  type: dict
  sample:
    vllm/vllm-openai:nightly:
      version: 0.34.0
      options: [--max-model-len, --tensor-parallel-size]
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import command
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import image as engine_image
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import version as engine_version


def main() -> None:
    one = {
        "name": {"type": "str", "required": True},
        "contained": {"type": "bool", "required": True},
        "distributions": {"type": "list", "elements": "str", "required": True},
        "help_words": {"type": "list", "elements": "str", "required": True},
        "gpus": {"type": "str", "choices": ["all", "cdi", "none"], "default": "all"},
    }
    module = AnsibleModule(
        argument_spec={
            "engines": {"type": "list", "elements": "dict", "required": True, "options": one},
            "user": {"type": "str", "required": True},
            "home": {"type": "path", "required": True},
            "timeout": {"type": "float", "default": 600},
        },
        supports_check_mode=True,
    )
    params, engines = module.params, {}

    def ask(wanted: Mapping[str, Any]) -> dict[str, Any]:
        def run(argv: Sequence[str]) -> command.Completed:
            return command.run(argv, params["timeout"])

        return engine_version.ask(wanted, run, user=params["user"], home=params["home"]).as_dict()

    try:
        for wanted in params["engines"]:
            name = wanted["name"]
            image = engine_image.find(name).id if wanted["contained"] else ""
            if not image and module.check_mode and not Path(name, "bin/python").exists():
                continue
            # An environment may be another one tomorrow, an image with this id not.
            question = " ".join(["engine", *wanted["distributions"], *wanted["help_words"]])
            asked = partial(ask, wanted)
            engines[name] = (
                engine_image.remembered(image, question, asked, check_mode=module.check_mode) if image else asked()
            )
    except SparkError as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(changed=False, engines=engines)


if __name__ == "__main__":
    main()
