# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether an engine that answers has the KV cache that was planned, by what its metrics say."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

LEAST = 0.9  # of the planned cache; below it the promise of the plan may not hold
# vLLM: labels of an information metric, one for each engine. SGLang: a gauge.
_VLLM = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_SGLANG = re.compile(r"^sglang:max_total_num_tokens(?:\{.*\})? ([0-9.e+]+)", re.MULTILINE)


@dataclass(frozen=True)
class Verdict:
    tokens: int
    planned: int
    words: str
    warning: str = ""

    def as_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def tokens(metrics: str) -> int:
    """Of the smallest engine; 0 where the metrics do not tell."""
    found = [int(float(value)) for value in _SGLANG.findall(metrics)]
    for labels in _VLLM.findall(metrics):
        numbers = [re.search(rf'(?:^|,){name}="([0-9]+)"', labels) for name in ("num_gpu_blocks", "block_size")]
        if all(numbers):
            blocks, size = (int(one[1]) for one in numbers if one)
            found.append(blocks * size)
    return min(found, default=0)


def judge(metrics: str, planned: int, unit: str) -> Verdict | None:
    """Nothing where none was planned, or the engine does not tell."""
    real = tokens(metrics)
    if not planned or not real:
        return None
    words = f"its KV cache holds {real} tokens, {100 * real // planned} % of the planned {planned}"
    if real >= LEAST * planned:
        return Verdict(real, planned, words)
    warning = (
        f"{unit}: {words}, so fewer requests fit than the plan says. Look for KV cache in journalctl -u {unit}; is"
        " engine_pin_kv_cache off, or kv-cache-memory-bytes in engine_options?"
    )
    return Verdict(real, planned, words, warning)
