#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: engine_smoke
short_description: Ask an engine one request of every kind
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Asks for a chat completion with a long prompt, a stream, a tool call, an answer by a JSON schema and an answer to a
    picture; or for an embedding, or a ranking. A kind that fails does not fail the task.
options:
  host:
    description: Address at which the engine listens.
    type: str
    default: 127.0.0.1
  port:
    description: Port of the API.
    type: int
    default: 8000
  model:
    description: Name under which the model is served.
    type: str
    required: true
  key_file:
    description: File with the API key. Omitted, none is sent.
    type: path
  task:
    description: What the engine is for.
    type: str
    choices: [generate, embed, rank]
    default: generate
  service:
    description: The name of the service, where there are several; it is only returned.
    type: str
    default: ''
  context:
    description: Tokens of the longest request, which bounds the long prompt; V(0) where nobody knows.
    type: int
    default: 0
  timeout:
    description: Limit for each answer, in seconds.
    type: float
    default: 300
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
  - sparkmatrix.cluster.attributes.info_module
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Ask one request of every kind
  sparkmatrix.cluster.engine_smoke:
    model: qwen3-8b
    key_file: /etc/sparkmatrix/engine-key.env
    context: 32768
"""

RETURN = r"""
model:
  description: The model that was asked.
  returned: success
  type: str
  sample: qwen3-8b
service:
  description: The name of the service, empty for one that is alone.
  returned: success
  type: str
  sample: ''
tried:
  description: What became of each kind. C(outcome) is C(ok), C(failed), C(not offered) or C(not judged).
  returned: success
  type: list
  elements: dict
  sample: [{kind: json, outcome: ok, seconds: 0.4, found: an answer by the schema}]
"""

from dataclasses import asdict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import ports
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import probe, smoke


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "default": "127.0.0.1"},
            "port": {"type": "int", "default": ports.API},
            "model": {"type": "str", "required": True},
            "key_file": {"type": "path", "no_log": False},
            "task": {"type": "str", "choices": list(smoke.KINDS), "default": "generate"},
            "service": {"type": "str", "default": ""},
            "context": {"type": "int", "default": 0},
            "timeout": {"type": "float", "default": 300},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        key = probe.read_key(params["key_file"]) if params["key_file"] else ""
        target = probe.Target(params["host"], params["port"], params["model"], key, params["task"])
        tried = smoke.run(target, params["context"], params["timeout"])
    except SparkError as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(
        changed=False, model=params["model"], service=params["service"], tried=[asdict(one) for one in tried]
    )


if __name__ == "__main__":
    main()
