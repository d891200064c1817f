# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What an engine says of itself in ``/metrics``: its work, by the names of vLLM and SGLang. TensorRT-LLM does not count
it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Optional

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Number

TOKENS = ("vllm:generation_tokens_total", "sglang:generation_tokens_total")
RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs")
WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs")
CACHE = ("vllm:kv_cache_usage_perc", "sglang:token_usage")


@dataclass(frozen=True)
class Work:
    """Generated tokens since its start, requests, and how full its KV cache is (0 to 1)."""

    tokens: Optional[Number] = None
    running: Optional[Number] = None
    waiting: Optional[Number] = None
    cache: Optional[Number] = None


def work(text: str) -> Work:
    return Work(*(total(text, names) for names in (TOKENS, RUNNING, WAITING, CACHE)))


def total(text: str, names: tuple[str, ...]) -> float | None:
    """Of all ranks and replicas that tell it; None where nobody does."""
    values = []
    for line in text.splitlines():
        if line.startswith(names) and line.partition("{")[0].partition(" ")[0] in names:
            try:
                values.append(float(line.rsplit(maxsplit=1)[-1]))
            except ValueError:
                continue
    return sum(values) if values and all(map(math.isfinite, values)) else None
