#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Published sizes of KV caches against what the planner computes; prints the table of docs/performance.md.

Each row is a log line of somebody's engine: so much memory became a cache of so many tokens. Rows marked `own` were run
on vLLM's CPU build, 0.32.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "collections"))

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Parallel
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import cache_layout as layout
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.model import Architecture, Kept, from_config

GIB = 1024**3
CARDS = pathlib.Path(__file__).resolve().parents[1] / "unit/fixtures/engine_on_h200.yml"

LLAMA_8B = Architecture(layers=32, attention_heads=32, kv_heads=8, head_dim=128)
QWEN_235B = Architecture(layers=94, attention_heads=64, kv_heads=4, head_dim=128)
QWEN_30B = Architecture(layers=48, attention_heads=32, kv_heads=4, head_dim=128)
MINIMAX = Architecture(layers=62, attention_heads=48, kv_heads=8, head_dim=128)
TINY = Architecture(layers=4, attention_heads=4, kv_heads=2, head_dim=32)
TINY_MLA = Architecture(4, 4, 4, 128, attention="mla", kv_lora_rank=512, rope_head_dim=64)
DELTA: dict[str, Any] = {"linear_key_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128}
LAGUNA = Architecture(48, 48, 8, 128, sliding_layers=36, sliding_window=512)
HY3 = Architecture(layers=80, attention_heads=64, kv_heads=8, head_dim=128)
QWEN_27B = Architecture(64, 24, 4, 256, full_attention_layers=16, linear_value_heads=48, **DELTA)
QWEN_122B = Architecture(48, 32, 2, 256, full_attention_layers=12, linear_value_heads=64, **DELTA)
QWEN_35B = Architecture(40, 16, 2, 256, full_attention_layers=10, linear_value_heads=32, **DELTA)
# DeepSeek-V4-Flash, as from_config reads it: 43 layers with a window, compressed tokens of 21 and of 20.
DEEPSEEK_V4 = Architecture(
    43, 64, 1, 512, attention="listed",
    caches=(
        Kept(21, 584, bits=8, tokens=4, align=576),
        Kept(20, 584, bits=8, tokens=128, align=576),
        Kept(21, 132, bits=8, tokens=4, align=576),
        Kept(43, 584, bits=8, window=128, block=64, align=576),
        Kept(21, 2048, bits=32, window=8, block=4, align=576),
        Kept(21, 512, bits=32, window=8, block=4, align=576),
        Kept(20, 1024, bits=32, window=128, block=8, align=576),
    ),
)  # fmt: skip
ONE, TWO, FOUR = (Parallel(size, 1, "") for size in (1, 2, 4))


@dataclass(frozen=True)
class Row:
    name: str
    kind: str  # gqa, mla, hybrid (or with a window), listed
    model: Architecture
    parallel: Parallel
    dtype: str
    gib: float
    tokens: int
    source: str
    context: int = 32768  # longest request of that run
    # Blocks of a request per group of linear layers, and what blocks are aligned to, before vLLM 0.33; 0: two, and one
    # for each drafted token.
    state_blocks: int = 0
    align: int = 16
    per_request: bool = True  # the log's tokens are requests x context; older: blocks / groups x block
    load: Mapping[str, Any] = field(default_factory=dict)
    draft: bool = False

    def computed(self) -> float:
        load = layout.Load(self.context, 1, self.dtype, **self.load)
        kept = layout.cache(self.model, self.parallel, load, self.state_blocks or 2 + load.drafted, self.align)
        blocks = int(self.gib * GIB) // kept.block_bytes
        if self.per_request:
            return blocks / kept.blocks(self.context) * self.context
        groups = 1 + kept.constant // self.state_blocks
        return float(blocks // groups * kept.block)

    @property
    def error(self) -> float:
        return self.computed() / self.tokens - 1


DFLASH = {"draft_kv": (8, 128)}  # as z-lab's drafts by DFlash and DSpark
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
        context=262144, state_blocks=3, load={"draft_layers": 1, "drafted": 1}, per_request=False, draft=True,
    ),
    Row(
        "Qwen3.5-122B, DFlash 4", "hybrid", QWEN_122B, ONE, "auto", 19.15, 361258, "styles01, 2026-07-13",
        context=262144, load={"drafted": 4, "draft_layers": 6, **DFLASH}, draft=True,
    ),
    Row(
        "Qwen3.5-122B, DFlash 12", "hybrid", QWEN_122B, ONE, "auto", 19.27, 307200, "styles01, 2026-07-13",
        context=262144, load={"drafted": 12, "draft_layers": 6, **DFLASH}, draft=True,
    ),
    Row(
        "Qwen3.8-27B, DSpark 7, fp8", "hybrid", QWEN_27B, ONE, "fp8", 27.06, 506909, "jschmied, vLLM 0.27",
        context=262144, load={"drafted": 7, "draft_layers": 5, **DFLASH}, draft=True,
    ),
    Row(
        "Qwen3.8-27B, MTP 4, fp8", "hybrid", QWEN_27B, ONE, "fp8", 47.65, 1316513, "styles01, 2026-07-27",
        context=262144, load={"drafted": 4, "draft_layers": 1}, draft=True,
    ),
    Row(
        "Qwen3.8-27B, MTP 3, fp8", "hybrid", QWEN_27B, ONE, "fp8", 66.74, 1883336, "jschmied, vLLM 0.27",
        context=262144, load={"drafted": 3, "draft_layers": 1}, draft=True,
    ),
    Row(
        "Qwen3.5-122B, DFlash 6", "hybrid", QWEN_122B, ONE, "auto", 27.92, 458423, "styles01, 2026-07-13",
        context=165000, load={"drafted": 6, "draft_layers": 6, **DFLASH}, draft=True,
    ),
    Row(
        "Qwen3.8-27B, MTP 3, fp8, less memory", "hybrid", QWEN_27B, ONE, "fp8", 46.98, 1325364, "jschmied, vLLM 0.27",
        context=262144, load={"drafted": 3, "draft_layers": 1}, draft=True,
    ),
    Row(
        "Qwen3.8-27B, fp8", "hybrid", QWEN_27B, ONE, "fp8", 35.45, 1114865, "jschmied, vLLM 0.27", context=262144,
    ),
    Row(
        "Qwen3.5-122B, DFlash 7, fp8, patched image", "hybrid", QWEN_122B, ONE, "fp8", 35.55, 1372342,
        "styles01, vLLM 0.26", context=262144, load={"drafted": 7, "draft_layers": 6, **DFLASH}, draft=True,
    ),
    Row(
        "DeepSeek-V4-Flash-0731 TP 2, 1M, DSpark, patched image", "listed", DEEPSEEK_V4, TWO, "fp8", 12, 1139967,
        "FujitsuPolycom/sparkring", context=1048576, draft=True,
        load={"draft_caches": (Kept(3, 584, bits=8, window=128, block=64, align=576),)},
    ),
    Row(
        "DeepSeek-V4-Flash-0731 TP 2, 500K, 16384 per step", "listed", DEEPSEEK_V4, TWO, "fp8", 20e9 / GIB, 652465,
        "luisefigueroa/pulsar, 2026-08-01", context=500000, load={"batched": 16384},
    ),
    Row(
        "DeepSeek-V4-Flash-0731 TP 2, 1M, DSpark", "listed", DEEPSEEK_V4, TWO, "fp8", 26.3, 2740813,
        "nepenth/deepseek-v4-flash-gb10, vLLM 0.27", context=1048576, draft=True,
        load={"draft_caches": (Kept(3, 584, bits=8, window=128, block=64, align=576),)},
    ),
    Row(
        "Laguna S 2.1, DFlash 7, fp8", "hybrid", LAGUNA, ONE, "fp8", 32.07, 918419, "styles01, vLLM 0.25",
        context=300000, load={"batched": 2048, "ahead": 0, "drafted": 7, "draft_layers": 6}, draft=True,
    ),
    Row(
        "Hy3 295B TP 2, MTP 1, fp8", "gqa", HY3, TWO, "fp8", 9.4, 121648, "leo-dcfa, 2026-07-09", context=65536,
        load={"drafted": 1, "draft_layers": 1}, draft=True,
    ),
    Row(
        "Qwen3.6-35B, no prefix cache", "hybrid", QWEN_35B, ONE, "auto", 47.55, 2416967, "djangodevreng, 2026-08-20",
        context=131072, state_blocks=1,
    ),
)  # fmt: skip


def cards() -> list[Row]:
    """Runs on two H200: facts of tests/unit/fixtures/engine_on_h200.yml."""
    told = yaml.safe_load(CARDS.read_text(encoding="utf-8"))
    rows = []
    for name, run in told["runs"].items():
        model = from_config(told["models"][run["model"]])
        draft = "method" in run
        load = {"batched": run["batched"], "drafted": run.get("drafted", 0), "draft_layers": int(draft)}
        rows.append(
            Row(
                name=f"{name} on H200",
                kind="hybrid" if model.linear_layers or model.sliding_layers else model.attention,
                model=model,
                parallel=Parallel(run.get("tensor", 1), run.get("pipeline", 1), ""),
                dtype=run.get("dtype", "auto"),
                gib=run["kv"] / GIB,
                tokens=run["tokens"],
                source="2026-11-26",
                state_blocks=1 + run.get("drafted", 0),
                load=load,
                draft=draft,
            )
        )
    return rows


def main() -> int:
    print("| Model | Attention | Memory | Tokens in the log | Computed | Error | Source |")
    print("|---|---|---|---|---|---|---|")
    for row in (*PUBLISHED, *cards()):
        figures = f"{row.gib:.4g} GiB | {row.tokens:,} | {row.computed():,.0f} | {100 * row.error:+.2f} %"
        print(f"| {row.name} | {row.kind} | {figures} | {row.source} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
