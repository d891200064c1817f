#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Published sizes of KV caches against what the planner computes; prints the table of docs/performance.md.

Each row is a log line of somebody's engine: so much memory became a cache of so many tokens. Rows marked `own` were run
on vLLM's CPU build, 0.32.
"""

from __future__ import annotations

import pathlib
import sys
from dataclasses import dataclass
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "collections"))

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Parallel
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import memory_fit as fit
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.model import Architecture

LLAMA_8B = Architecture(layers=32, attention_heads=32, kv_heads=8, head_dim=128)
QWEN_235B = Architecture(layers=94, attention_heads=64, kv_heads=4, head_dim=128)
QWEN_30B = Architecture(layers=48, attention_heads=32, kv_heads=4, head_dim=128)
MINIMAX = Architecture(layers=62, attention_heads=48, kv_heads=8, head_dim=128)
TINY = Architecture(layers=4, attention_heads=4, kv_heads=2, head_dim=32)
TINY_MLA = Architecture(4, 4, 4, 128, attention="mla", kv_lora_rank=512, rope_head_dim=64)
DELTA: dict[str, Any] = {"linear_key_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128}
QWEN_27B = Architecture(64, 24, 4, 256, full_attention_layers=16, linear_value_heads=48, **DELTA)
QWEN_122B = Architecture(48, 32, 2, 256, full_attention_layers=12, linear_value_heads=64, **DELTA)
ONE, TWO, FOUR = (Parallel(size, 1, "") for size in (1, 2, 4))


@dataclass(frozen=True)
class Row:
    name: str
    kind: str  # gqa, mla or hybrid
    model: Architecture
    parallel: Parallel
    dtype: str
    gib: float
    tokens: int
    source: str
    tolerance: float = 0.03
    # hybrid: longest request of that run, state blocks of a request per group, layers of its draft (MTP), tokens of it
    context: int = 0
    state_blocks: int = 0
    draft_layers: int = 0
    drafted: int = 0
    per_request: bool = True  # the log's tokens are requests x context; older: blocks / groups x block

    def computed(self) -> float:
        size = self.gib * fit.GIB
        if self.kind != "hybrid":
            return size / fit.kv_per_token(self.model, self.parallel, self.dtype)
        load = fit.Load(self.context, 1, self.dtype, draft_layers=self.draft_layers, drafted=self.drafted)
        kept = fit.cache(self.model, self.parallel, load, self.state_blocks)
        blocks = int(size // kept.block_bytes)
        if self.per_request:
            return blocks / kept.blocks(self.context) * self.context
        groups = 1 + kept.constant // self.state_blocks
        return float(blocks // groups * kept.block)


PUBLISHED = (
    Row("Llama-3-8B on A100", "gqa", LLAMA_8B, ONE, "auto", 11.12, 91056, "vllm 12330"),
    Row("Llama-3.1-8B on RTX 3090", "gqa", LLAMA_8B, ONE, "auto", 3.81, 31232, "vllm 10517"),
    Row("Llama-3.1-8B, less memory", "gqa", LLAMA_8B, ONE, "auto", 2.89, 23648, "vllm 10517"),
    Row("Qwen3-235B-A22B TP 4", "gqa", QWEN_235B, FOUR, "auto", 8.11, 178880, "vllm 21348"),
    Row("Qwen3-235B-A22B TP 4, SGLang", "gqa", QWEN_235B, FOUR, "auto", 16.46, 367404, "vllm 21348"),
    Row("48 layers, 4 KV heads, fp8", "gqa", QWEN_30B, ONE, "fp8", 10.55, 230528, "vllm 25350"),
    Row("the same, asked for", "gqa", QWEN_30B, ONE, "fp8", 10.12, 221000, "vllm 25350"),
    Row("MiniMax-M2.7 TP 2, two Sparks", "gqa", MINIMAX, TWO, "auto", 22.5, 190272, "spark-vllm-docker 396"),
    Row("the same, asked for", "gqa", MINIMAX, TWO, "auto", 23.25, 196608, "spark-vllm-docker 396"),
    Row("the same, more memory", "gqa", MINIMAX, TWO, "auto", 28.74, 240816, "spark-vllm-docker 396"),
    Row("tiny Llama", "gqa", TINY, ONE, "auto", 1, 1048576, "own"),
    Row("tiny Llama TP 2", "gqa", TINY, TWO, "auto", 1, 2097152, "own"),
    Row("tiny Llama PP 2", "gqa", TINY, Parallel(1, 2, ""), "auto", 1, 2097152, "own"),
    Row("tiny MLA", "mla", TINY_MLA, ONE, "auto", 1, 233008, "own"),
    Row(
        "Qwen3.8-27B TP 2, fp8", "hybrid", QWEN_27B, TWO, "fp8", 4.99, 302921, "mitchross PR 1995",
        context=262144, state_blocks=4,
    ),
    Row(
        "Qwen3.5-122B-A10B with MTP, fp8", "hybrid", QWEN_122B, ONE, "fp8", 24.05, 482080, "Jetson Thor, 0.85",
        context=262144, state_blocks=3, draft_layers=1, drafted=1, per_request=False,
    ),
)  # fmt: skip


def main() -> int:
    print("| Model | Attention | Memory | Tokens in the log | Computed | Error | Source |")
    print("|---|---|---|---|---|---|---|")
    for row in PUBLISHED:
        computed = row.computed()
        error = 100 * (computed / row.tokens - 1)
        figures = f"{row.gib:g} GiB | {row.tokens:,} | {computed:,.0f} | {error:+.2f} %"
        print(f"| {row.name} | {row.kind} | {figures} | {row.source} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
