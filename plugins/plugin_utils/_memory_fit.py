# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether a model fits into the memory of one node, before anything is loaded.

vLLM (0.33, GPU worker) takes ``total memory x gpu_memory_utilization`` and puts weights, activations and CUDA graphs
into it; what is left becomes KV cache. Grouped-query attention needs per token and rank

    layers / PP x max(1, KV heads / TP) x head_dim x 2 (key and value) x bytes per value

which matches published logs of Llama and Qwen models within 1.2 % (vllm issues 12330, 10517, 21348).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._parallel import Parallel
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._recipe import Architecture

GIB = 1024**3
# What CUDA reports on GB10 is 121.63 to 121.69 GiB; used where no machine was measured.
GB10_TOTAL = int(121.6 * GIB)
# The operating system lives in the same memory. 0.80 leaves it 24 GiB.
DEFAULT_UTILIZATION = 0.80
# Prefills of 131k tokens reset whole hosts at 0.80 and not at 0.75 (NVIDIA dgx-spark-playbooks issue 97).
LONG_CONTEXT = 65536
LONG_CONTEXT_UTILIZATION = 0.75
# Above it only when the user says so. At 0.90 nodes freeze without an OOM kill (open-gpu-kernel-modules issue 1358).
MAX_UTILIZATION = 0.85
HARD_MAX_UTILIZATION = 0.90
# A rest of the budget below this share is called tight.
TIGHT = 0.05
# Bytes per value in the KV cache, by vLLM's kv-cache-dtype. NVFP4 has one scale byte per 16 values.
KV_BYTES = {"auto": 2.0, "bfloat16": 2.0, "float16": 2.0, "nvfp4": 0.5625}


@dataclass(frozen=True)
class Load:
    """What is asked of the KV cache: tokens per request, requests of that length at once, vLLM's kv-cache-dtype."""

    context: int
    concurrency: int
    dtype: str = "auto"


@dataclass(frozen=True)
class Budget:
    """Memory of one rank in bytes. ``verdict`` is ``fits``, ``tight`` or ``too large``."""

    total: int
    assumed: bool
    utilization: float
    budget: int
    weights: int
    overhead: int
    kv_bytes_per_token: int
    kv_needed: int
    kv_available: int
    context: int
    concurrency: int
    max_concurrency: int
    max_context: int
    verdict: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def sentence(self) -> str:
        def gib(number: int) -> str:
            return f"{number / GIB:.1f}"

        origin = "assumed" if self.assumed else "measured"
        return (
            f"{gib(self.budget)} GiB of {gib(self.total)} GiB ({origin}) at {self.utilization:.2f}: weights"
            f" {gib(self.weights)} + overhead {gib(self.overhead)} + KV cache {gib(self.kv_needed)} GiB for"
            f" {self.concurrency} x {self.context} tokens; {self.verdict}"
        )


def kv_bytes(dtype: str) -> float:
    """Bytes per value of a KV cache dtype; all eight-bit floats begin with ``fp8``."""
    return 1.0 if dtype.startswith("fp8") else KV_BYTES.get(dtype, 2.0)


def kv_per_token(model: Architecture, parallel: Parallel, dtype: str = "auto") -> int:
    layers = math.ceil(model.layers / parallel.pipeline)
    heads = max(1, model.kv_heads // parallel.tensor)
    return math.ceil(layers * heads * model.head_dim * 2 * kv_bytes(dtype))


def utilization(context: int, asked: float) -> float:
    """The share to use: what was asked for, or a default that depends on the longest prompt."""
    if asked:
        return asked
    return LONG_CONTEXT_UTILIZATION if context > LONG_CONTEXT else DEFAULT_UTILIZATION


def fit(
    model: Architecture,
    parallel: Parallel,
    weights_gb: float,
    load: Load,
    *,
    share: float,
    overhead_gib: float = 8.0,
    total: int = 0,
) -> Budget:
    """The budget of one rank. ``total`` is measured memory in bytes, 0 when no machine was asked."""
    memory = total or GB10_TOTAL
    budget = int(memory * share)
    weights = math.ceil(weights_gb * 1e9 / (parallel.tensor * parallel.pipeline))
    overhead = int(overhead_gib * GIB)
    per_token = kv_per_token(model, parallel, load.dtype)
    available = max(0, budget - weights - overhead)
    needed = per_token * load.context * load.concurrency
    tokens = available // per_token
    verdict = "fits" if available - needed >= TIGHT * budget else "tight" if available >= needed else "too large"
    return Budget(
        total=memory,
        assumed=not total,
        utilization=share,
        budget=budget,
        weights=weights,
        overhead=overhead,
        kv_bytes_per_token=per_token,
        kv_needed=needed,
        kv_available=available,
        context=load.context,
        concurrency=load.concurrency,
        max_concurrency=tokens // load.context,
        max_context=tokens // load.concurrency,
        verdict=verdict,
    )


def refusal(budget: Budget, nodes: int) -> tuple[str, str]:
    """(found, remedy) for a budget that is too large."""
    found = f"the model does not fit: {budget.sentence()}"
    if not budget.kv_available:
        return found, f"Use more than {nodes} node(s) or a smaller quantization; no context length makes it fit"
    options = [f"engine_context: {budget.max_context}"]
    if budget.max_concurrency:
        options.append(f"engine_concurrency: {budget.max_concurrency}")
    return found, f"Set {' or '.join(options)}, or use more nodes"
