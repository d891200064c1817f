#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: serving_bench
short_description: Load a service with requests, and measure its answers
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Runs C(vllm bench serve) of the engine's own Python environment or container on the head of a service, at one point
    of a sweep, several times. Where there is no generator it says so.
  - Nothing but the answers is measured, and nothing is left on the machine.
options:
  description:
    description: File on the node that describes the service, which the role engine has written.
    type: path
    required: true
  service:
    description: Name of the service, where there are several.
    type: str
    default: ''
  generator:
    description: How the generator is started, and by which tokenizer it makes prompts.
    type: dict
    required: true
    suboptions:
      python: {description: Interpreter of the environment that has vLLM., type: str, default: python3}
      container: {description: Container in which it runs; empty for an environment., type: str, default: ''}
      user: {description: User that runs it in a Python environment., type: str, default: ''}
      environment: {description: Environment of it there. No secrets., type: dict, default: {}}
      program: {description: A static C(vllm-bench) on the node that is used instead., type: str, default: ''}
      tokenizer: {description: Model whose tokenizer is used; a path or a name., type: str, required: true}
      revision: {description: Commit of that model where it is a name., type: str, default: ''}
      cache: {description: Directory of the node's model cache where it is a name., type: str, default: ''}
      tokenizer_mode: {description: The engine's option of this name., type: str, default: ''}
      remote_code: {description: Whether the engine runs code of the model., type: bool, default: false}
  point:
    description: What is measured.
    type: dict
    required: true
    suboptions:
      concurrency: {description: Requests at a time., type: int, required: true}
      prompt_tokens: {description: Length of a prompt., type: int, required: true}
      output_tokens: {description: Length of an answer., type: int, required: true}
      requests: {description: Requests of one repetition., type: int, required: true}
      repetitions: {description: How often., type: int, required: true}
      seed: {description: Of the prompts., type: int, required: true}
      text: {description: Plain English instead of random tokens., type: bool, default: false}
  goodput:
    description: Limits of an answer that counts as good, as C(ttft:2000).
    type: list
    elements: str
    default: []
  timeout:
    description: Limit for all repetitions, in seconds.
    type: float
    default: 900
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
  - sparkmatrix.cluster.attributes.info_module
notes:
  - In check mode nothing is asked.
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Measure four requests at a time
  sparkmatrix.cluster.serving_bench:
    description: /etc/sparkmatrix/engine.json
    generator:
      python: /opt/sparkmatrix/engine/bin/python
      user: sparkmatrix
      tokenizer: /opt/sparkmatrix/models/qwen3-8b
    point: {concurrency: 4, prompt_tokens: 512, output_tokens: 128, requests: 8, repetitions: 3, seed: 1}
"""

RETURN = r"""
measured:
  description: The repetitions, or why there are none (C(missing), C(broken)), with the last lines of the generator.
  returned: success
  type: dict
  sample:
    repetitions:
      - requests: 8
        failed: 0
        seconds: 21.4
        prompt_tokens: 512.0
        output_tokens: 128.0
        output_rate: 47.9
        ttft_ms: {median: 310.2, p90: 402.8, p99: 411.0}
        tpot_ms: {median: 79.1, p90: 82.4, p99: 83.0}
        goodput: 0.0
        acceptance: null
        acceptance_length: null
    missing: ''
    broken: ''
    lines: []
silent:
  description: Why nothing was measured, where the service does not answer. Mostly empty.
  returned: success
  type: str
  sample: ''
others:
  description: Requests of others that the engine worked on when the measurement began, null where it does not tell.
  returned: success
  type: int
  sample: 0
gpu:
  description: The GPU under this load, where nvidia-smi tells. The lowest clock while it was busy, the highest
    temperature, and why its clock was held down.
  returned: success
  type: dict
  sample: {mhz: 2405, celsius: 71, slowed: []}
seconds:
  description: How long it took.
  returned: success
  type: float
  sample: 74.2
"""

import time
from collections.abc import Mapping
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._bench import generator, surroundings
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._bench.generator import (
    Load,
    Outcome,
    Place,
    Point,
    Tokenizer,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import probe
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import status as keeper_status

POINT: dict[str, Any] = {
    **{
        name: {"type": "int", "required": True, "no_log": False}
        for name in ("concurrency", "prompt_tokens", "output_tokens", "requests", "repetitions", "seed")
    },
    "text": {"type": "bool", "default": False},
}
GENERATOR: dict[str, Any] = {
    "python": {"type": "str", "default": "python3"},
    **{name: {"type": "str", "default": ""} for name in ("container", "user", "program", "revision", "cache")},
    "environment": {"type": "dict", "default": {}},
    "tokenizer": {"type": "str", "required": True, "no_log": False},
    "tokenizer_mode": {"type": "str", "default": "", "no_log": False},
    "remote_code": {"type": "bool", "default": False},
}
ARGUMENTS: dict[str, Any] = {
    "description": {"type": "path", "required": True},
    "service": {"type": "str", "default": ""},
    "generator": {"type": "dict", "required": True, "options": GENERATOR},
    "point": {"type": "dict", "required": True, "options": POINT},
    "goodput": {"type": "list", "elements": "str", "default": []},
    "timeout": {"type": "float", "default": 900},
}
PROBE_TIMEOUT_S = 60.0


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    params = module.params
    if module.check_mode:
        module.exit_json(changed=False)
    began = time.monotonic()
    found: dict[str, Any] = {"silent": "", "measured": Outcome().as_dict(), "others": None, "gpu": {}}
    try:
        target, found["others"] = _asked(params)
    except SparkError as exc:
        # Verdicts judge that: what else a run has measured is shown, too.
        module.exit_json(changed=False, **{**found, "silent": str(exc)}, seconds=round(time.monotonic() - began, 1))
    try:
        found |= _measured(params, target)
    except SparkError as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(changed=False, **found, seconds=round(time.monotonic() - began, 1))


def _asked(params: Mapping[str, Any]) -> tuple[probe.Target, int | None]:
    keeper_status.check(params["service"])
    target = probe.target_of(probe.read_config(params["description"]))
    others = surroundings.others(lambda: probe.metrics(target.host, target.port, target.key))
    # Also who listens there is looked at: a stranger gets no key.
    probe.ask(target, probe.Question(timeout_s=PROBE_TIMEOUT_S))
    return target, others


def _measured(params: Mapping[str, Any], target: probe.Target) -> dict[str, Any]:
    start = params["generator"]
    environment = {str(name): str(value) for name, value in start["environment"].items()}
    place = Place(start["python"], start["container"], start["user"], environment, start["program"])
    name = surroundings.tokenizer(start["tokenizer"], start["revision"], start["cache"])
    tokenizer = Tokenizer(name, start["tokenizer_mode"], start["remote_code"])
    load = Load(target, tokenizer, tuple(params["goodput"]), params["timeout"])
    with surroundings.Gpu() as gpu:
        measured = generator.measure(place, load, Point(**params["point"]))
    return {"measured": measured.as_dict(), "gpu": gpu.seen()}


if __name__ == "__main__":
    main()
