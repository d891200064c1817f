# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What engines look like from outside: a node knows one by its processes and by what it counts, whoever started it.

What the plan knows of an engine is its class (``plugin_utils/_engine/kinds``).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Signs:
    """Empty where it has no such thing. ``tokens`` and the rest are names in ``/metrics``; ``moving``: what moves with
    every step beside the tokens, also while one long prompt is read in parts and no token is finished."""

    package: str  # in Python
    programs: tuple[str, ...]
    comms: tuple[str, ...]  # what the names of its processes begin with, at most 15 characters
    title: str = ""  # what its ranks call themselves
    tokens: str = ""  # generated, since the start
    running: str = ""  # requests
    waiting: str = ""
    cache: str = ""  # how full, 0 to 1
    moving: tuple[str, ...] = ()


ENGINES = (
    # 0.20 to 0.33 (v1/metrics/loggers.py). Its counters move only in steps that finish something, the share of the
    # cache in use in every step.
    Signs(
        "vllm",
        ("vllm",),
        ("VLLM::", "vllm"),
        "VLLM::",
        tokens="vllm:generation_tokens_total",
        running="vllm:num_requests_running",
        waiting="vllm:num_requests_waiting",
        cache="vllm:kv_cache_usage_perc",
        moving=(
            "vllm:prompt_tokens_total",
            "vllm:iteration_tokens_total_count",
            "vllm:kv_cache_usage_perc",
        ),
    ),
    # 0.5 (metrics collector; needs --enable-metrics, which the plan sets).
    Signs(
        "sglang",
        ("sglang",),
        ("sglang",),
        "sglang::",
        tokens="sglang:generation_tokens_total",
        running="sglang:num_running_reqs",
        waiting="sglang:num_queue_reqs",
        cache="sglang:token_usage",
        moving=(
            "sglang:prompt_tokens_total",
            "sglang:realtime_tokens_total",
            "sglang:num_used_tokens",
            "sglang:gen_throughput",
        ),
    ),
    # Its processes have no titles; Open MPI ends all of them with the first.
    Signs("tensorrt_llm", ("trtllm-serve", "trtllm-llmapi-launch"), ("trtllm",)),
)
RAY = ("ray::", "raylet")  # how processes of Ray begin
