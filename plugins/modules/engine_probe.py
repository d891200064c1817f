#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: engine_probe
short_description: Ask an engine for generated tokens, or for an embedding
version_added: 0.1.0
description:
  - Asks an OpenAI-compatible engine on this node for a chat completion and measures it. A generated token is the only
    sign that an engine serves; C(/health) of vLLM answers 200 while its cluster is dead.
  - With O(ready_timeout) it waits for an engine that is starting. It ends early when the unit has died, with the known
    cause and the telling lines of its journal.
options:
  host:
    description: Address that the engine listens on.
    type: str
    default: 127.0.0.1
  port:
    description: Port that the engine listens on.
    type: int
    default: 8000
  model:
    description: Name that the model is served under. Required without O(description).
    type: str
  description:
    description:
      - File on the node that describes the service, which the role engine has written. It says what O(host), O(port),
        O(model), O(key_file) and O(task) are.
    type: path
  key_file:
    description:
      - File on the node with the API key, C(VLLM_API_KEY="...") or the bare key. The key itself is no option, so it can
        appear in no command line and no log.
    type: path
  task:
    description: What the engine is for, tokens, embeddings or rankings.
    type: str
    choices: [generate, embed, rank]
    default: generate
  prompt:
    description: What to ask.
    type: str
    default: the quick brown fox
  max_tokens:
    description: How many tokens to generate.
    type: int
    default: 1
  timeout:
    description: Limit for one complete answer, in seconds.
    type: float
    default: 300
  ready_timeout:
    description: How long to go on asking an engine that does not answer yet, in seconds.
    type: float
    default: 0
  unit:
    description: The engine's systemd unit, whose death ends the waiting.
    type: str
  check_access:
    description: Also ask with a wrong key, and fail unless that is refused.
    type: bool
    default: false
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
  - sparkmatrix.cluster.attributes.info_module
notes:
  - In check mode an engine that does not answer is no failure, since an earlier task would have started it; RV(ready)
    tells.
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Wait for the first token
  sparkmatrix.cluster.engine_probe:
    model: qwen3-8b
    key_file: /etc/sparkmatrix/engine-key.env
    unit: sparkmatrix-engine.service
    ready_timeout: 1800

- name: Measure an answer
  sparkmatrix.cluster.engine_probe:
    model: qwen3-8b
    key_file: /etc/sparkmatrix/engine-key.env
    prompt: Why is the sky blue?
    max_tokens: 128
    check_access: true
"""

RETURN = r"""
ready:
  description: Whether the engine answered with tokens.
  returned: success
  type: bool
  sample: true
answer:
  description: The answer. Times are in seconds; C(tokens_per_s) is all tokens over the whole time of the request.
    An embedding has C(dimensions) and no tokens.
  returned: when the engine answered
  type: dict
  sample:
    model: qwen3-8b
    text: " because"
    completion_tokens: 1
    seconds: 0.21
    first_token_s: 0.2
    tokens_per_s: 4.76
    finish_reason: length
    dimensions: 0
    measured: 1 token in 0.21 s, 4.8 tokens/s, the first after 0.20 s
endpoint:
  description: Where the engine was asked.
  returned: when the engine answered
  type: str
  sample: http://127.0.0.1:8000/v1
task:
  description: What the engine is for.
  returned: when the engine answered
  type: str
  sample: generate
failed_at:
  description: V(access) where the engine answered, and a wrong key was not refused.
  returned: failure
  type: str
  sample: access
access:
  description: HTTP status that a wrong key got.
  returned: with O(check_access)
  type: int
  sample: 401
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import api_paths, document, ports
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import probe
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import wait


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "default": "127.0.0.1"},
            "port": {"type": "int", "default": ports.API},
            "model": {"type": "str"},
            "description": {"type": "path"},
            "key_file": {"type": "path", "no_log": False},
            "task": {"type": "str", "choices": list(api_paths.PROBED), "default": "generate"},
            "prompt": {"type": "str", "default": probe.PROMPT},
            "max_tokens": {"type": "int", "default": 1, "no_log": False},
            "timeout": {"type": "float", "default": 300},
            "ready_timeout": {"type": "float", "default": 0},
            "unit": {"type": "str"},
            "check_access": {"type": "bool", "default": False},
        },
        required_one_of=[("model", "description")],
        supports_check_mode=True,
    )
    given = {name: value for name, value in module.params.items() if value is not None}
    answer = document.plain(wait.answer(wait.Request(**given), module.check_mode))
    (module.fail_json if answer["failed"] else module.exit_json)(changed=False, **answer)


if __name__ == "__main__":
    main()
