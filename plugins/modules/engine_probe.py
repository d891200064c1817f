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
        O(model), O(key_file), O(task) and O(service) are.
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
  keeper:
    description:
      - The engine is started by C(sparkmatrix-keeper.service) of this node. The waiting ends when the keeper counts a
        failure or gives up, instead of with the death of O(unit), which does not run while the keeper prepares a start.
        Where the keeper gives a start longer than O(ready_timeout), the waiting is a minute longer than that.
      - Once a minute it is shown what the keeper does, and how much the ranks have read.
    type: bool
    default: false
  service:
    description: With O(keeper), O(check_keeper) or O(expected), the name of the service, where there are several.
    type: str
    default: ''
  part:
    description: With O(keeper), return RV(waiting) after this many seconds; 0 waits to the end. Set by the controller.
    type: float
    default: 0
  before:
    description: The RV(waiting) of the call before. Set by the controller.
    type: dict
    suboptions:
      words:
        description: What the keeper did.
        type: str
        default: ''
      waited_s:
        description: Seconds of waiting so far.
        type: float
        default: 0
      missing_s:
        description: Seconds for which nodes have been missing.
        type: float
        default: 0
      failures:
        description: What the keeper had counted when the waiting began.
        type: int
  check_access:
    description: Also ask with a wrong key, and fail unless that is refused.
    type: bool
    default: false
  check_rdma:
    description:
      - Also read what RDMA has moved over the halves of the fabric fact, before and after the answer, and warn when it
        is nothing. For a service whose ranks on several nodes talk to each other. Without RDMA in the fact there is
        nothing to read.
    type: bool
    default: false
  check_keeper:
    description: Ask the keeper of O(service) first, and fail at once where it is stopped, has given up or starts.
    type: bool
    default: false
  expected:
    description:
      - Tokens per second that the plan expects, the least and the most; 0 where it has no figure.
      - With it the answer is kept on this node as what was verified last, which C(sparkmatrix status) shows.
    type: list
    elements: float
  planned_tokens:
    description:
      - Tokens that the KV cache was planned for; warn when the engine's metrics say that it is much smaller. With V(0)
        nothing is compared.
    type: int
    default: 0
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
waiting:
  description: How far the waiting is.
  returned: with O(part), when that is over
  type: dict
  sample:
    words: "loading for 212 s (at most 1860 s): spark2 read 33.7 of 62.3 GB, 1.2 GB/s, 24 s left"
    waited_s: 240.0
    missing_s: 0.0
    failures: 0
rdma:
  description:
    - What RDMA moved meanwhile. C(moved) in bytes, both directions together, by device, null where the device does not
      count; C(warning) is empty unless it is nothing at all.
  returned: with O(check_rdma), where the fact has RDMA
  type: dict
  sample:
    words: "RDMA moved meanwhile: rocep1s0f0 14.2 MB, roceP2p1s0f0 13.9 MB"
    warning: ""
    moved: {rocep1s0f0: 14200000, roceP2p1s0f0: 13900000}
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
waited_s:
  description: Seconds until the answer, with all waiting.
  returned: when the engine answered
  type: float
  sample: 41.2
start_parts:
  description:
    - Seconds of the last start by part, where the keeper has seen it from the beginning. Of C(weights), C(compile) and
      C(warm_up) those are missing that the engine does not tell; C(other) is what is left of the load.
  returned: with O(keeper), when the engine answered
  type: dict
  sample: {stop: 3.1, memory: 0.4, ranks: 1.2, weights: 141.0, compile: 22.5, warm_up: 18.3, other: 21.0}
cache:
  description: Tokens that the KV cache holds and was planned for, in words, and as a warning where it is too small.
  returned: with O(planned_tokens), where the engine tells
  type: dict
  sample:
    tokens: 412320
    planned: 415000
    words: its KV cache holds 412320 tokens, 99 % of the planned 415000
    warning: ''
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

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import ports
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import cache_size, probe
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import traffic
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import Rail
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import status as keeper_status
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import wait as keeper_wait
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.store import Store, Verified, stamp

REFUSED = (401, 403)
ARGUMENTS: dict[str, Any] = {
    "host": {"type": "str", "default": "127.0.0.1"},
    "port": {"type": "int", "default": ports.API},
    "model": {"type": "str"},
    "description": {"type": "path"},
    "key_file": {"type": "path", "no_log": False},
    "task": {"type": "str", "choices": list(probe.PATHS), "default": "generate"},
    "prompt": {"type": "str", "default": probe.PROMPT},
    "max_tokens": {"type": "int", "default": 1, "no_log": False},
    "timeout": {"type": "float", "default": 300},
    "ready_timeout": {"type": "float", "default": 0},
    "unit": {"type": "str"},
    "keeper": {"type": "bool", "default": False},
    "service": {"type": "str", "default": ""},
    "part": {"type": "float", "default": 0},
    "before": {
        "type": "dict",
        "options": {
            "words": {"type": "str", "default": ""},
            "waited_s": {"type": "float", "default": 0},
            "missing_s": {"type": "float", "default": 0},
            "failures": {"type": "int"},
        },
    },
    "check_access": {"type": "bool", "default": False},
    "check_rdma": {"type": "bool", "default": False},
    "planned_tokens": {"type": "int", "default": 0, "no_log": False},
    "check_keeper": {"type": "bool", "default": False},
    "expected": {"type": "list", "elements": "float"},
}


def main() -> None:
    module = AnsibleModule(
        argument_spec=ARGUMENTS, required_one_of=[("model", "description")], supports_check_mode=True
    )
    params = module.params
    target = partial(_target, params)
    result: dict[str, Any] = {}
    failed_at = ""
    try:
        if module.check_mode:
            answer = probe.ask(target(), _question(params))
        else:
            machine = Machine()
            rails = traffic.planned(machine) if params["check_rdma"] else ()
            before = traffic.read(machine, rails)
            waited = _waited(params, target)
            if isinstance(waited, keeper_wait.Part):
                module.exit_json(changed=False, ready=False, waiting=asdict(waited))
                return
            answer = waited
            if params["keeper"]:
                result["start_parts"] = keeper_wait.start_parts(Store(instance=_service(params)))
            for name, judged in _judged(params, target(), rails, before, machine):
                result[name] = judged.as_dict()
                if judged.warning:
                    module.warn(judged.warning)
        if params["check_access"]:
            failed_at = "access"
            result["access"] = _refused(params, target())
            failed_at = ""
        if params["expected"] and not module.check_mode:
            low, high = params["expected"]
            seen = Verified(stamp(time.time()), answer.model, answer.measured, answer.tokens_per_s, low, high)
            Store(instance=params["service"]).leave(seen)
    except SparkError as exc:
        if module.check_mode:
            module.exit_json(changed=False, ready=False, reason=str(exc))
        module.fail_json(msg=str(exc), failed_at=failed_at)
    asked = target()
    endpoint = f"http://{asked.host}:{asked.port}/v1"
    module.exit_json(changed=False, ready=True, answer=answer.as_dict(), endpoint=endpoint, task=asked.task, **result)


def _question(params: Mapping[str, Any]) -> probe.Question:
    return probe.Question(params["prompt"], params["max_tokens"], params["timeout"])


def _target(params: Mapping[str, Any]) -> probe.Target:
    if params["description"]:
        return probe.target_of(probe.read_config(params["description"]))
    key = probe.read_key(params["key_file"]) if params["key_file"] else ""
    return probe.Target(params["host"], params["port"], params["model"], key, params["task"])


def _waited(params: Mapping[str, Any], target: Callable[[], probe.Target]) -> probe.Answer | keeper_wait.Part:
    """A part, where the time of this one is over and the keeper goes on."""
    timeout = params["ready_timeout"] or params["timeout"]
    if not params["keeper"]:
        if params["check_keeper"]:
            keeper_status.check(params["service"])
        return probe.wait_ready(target, _question(params), params["unit"] or "", timeout)
    return keeper_wait.wait_ready(
        target,
        _question(params),
        timeout,
        instance=_service(params),
        part_s=params["part"],
        before=keeper_wait.Part(**(params["before"] or {})),
    )


def _service(params: Mapping[str, Any]) -> str:
    if params["description"]:
        return str(probe.read_config(params["description"]).get("instance") or "")
    return str(params["service"])


def _judged(
    params: Mapping[str, Any],
    there: probe.Target,
    rails: Sequence[Rail],
    before: traffic.Moved,
    machine: Machine,
) -> Iterator[tuple[str, Any]]:
    """What the answer has shown beside itself: RDMA that moved, a cache of the planned size."""
    unit = params["unit"] or "sparkmatrix-engine"
    if rails:
        yield "rdma", traffic.judge(rails, before, traffic.read(machine, rails), unit)
    if params["planned_tokens"]:
        held = cache_size.judge(probe.metrics(there.host, there.port, there.key), params["planned_tokens"], unit)
        if held:
            yield "cache", held


def _refused(params: Mapping[str, Any], there: probe.Target) -> int:
    """How a wrong key is refused."""
    status = probe.status_without_access(there)
    if status not in REFUSED:
        raise SparkError(
            f"a wrong key got HTTP {status}, expected 401",
            there.where,
            probe.OPEN.format(params["unit"] or "sparkmatrix-engine"),
        )
    return status


if __name__ == "__main__":
    main()
