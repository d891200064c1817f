# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from dataclasses import replace

from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import parallelism
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.registry import ENGINES
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.parallelism import (
    Asked,
    heads_obstacle,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.recipe import Architecture
from hypothesis import given
from hypothesis import strategies as st
from rules import first_words, hold, of_findings


def choose(model, nodes, asked=None, engine="vllm"):
    return parallelism.choose(model, nodes, asked, ENGINES[engine])


LLAMA_70B = Architecture(layers=80, attention_heads=64, kv_heads=8, head_dim=128)


@given(
    st.integers(1, 64),
    st.integers(1, 16),
    st.integers(1, 8),
    st.integers(1, 32),
    st.integers(0, 33),
    st.integers(0, 33),
)
def test_what_is_chosen_always_works(layers, kv_heads, group, nodes, tensor, pipeline):  # noqa: PLR0917
    model = Architecture(layers, kv_heads * group, kv_heads, 64)
    parallel, problems = choose(model, nodes, Asked(tensor, pipeline))
    assert (parallel is None) == bool(problems)
    if parallel:
        assert parallel.tensor * parallel.pipeline == nodes
        assert not heads_obstacle(model, parallel.tensor)
        assert parallel.pipeline <= layers


MOE = Architecture(
    layers=94,
    attention_heads=64,
    kv_heads=4,
    head_dim=128,
    experts=128,
    moe_intermediate_size=1536,
    shard_multiple=128,
)
MLA = Architecture(layers=61, attention_heads=128, kv_heads=128, head_dim=128, attention="mla", kv_lora_rank=512)
HYBRID = Architecture(
    layers=60,
    attention_heads=32,
    kv_heads=2,
    head_dim=256,
    full_attention_layers=15,
    linear_key_heads=16,
    linear_value_heads=64,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
)


VLLM, SGLANG = "vllm", "sglang"
GROUPS = replace(LLAMA_70B, intermediate_size=28672, shard_multiple=128)
# Model, nodes, what is asked for, engine; what comes of it is in the fixture.
SPLITS = [
    *((name, model, nodes, Asked(), engine)
      for name, model in (("dense", LLAMA_70B), ("MoE", MOE), ("MLA", MLA), ("hybrid", HYBRID), ("groups", GROUPS))
      for nodes in (1, 2, 3, 4, 8, 16) for engine in (VLLM, SGLANG)),
    *(("dense", LLAMA_70B, nodes, Asked(*sizes), VLLM) for nodes, sizes in (
        (4, (2,)), (4, (0, 2)), (4, (3,)), (4, (0, 3)), (4, (0, 0, 2)), (8, (2, 2, 2)), (4, (2, 1, 1)), (4, (4, 2)),
        (8, (2, 2, 1)), (8, (0, 2, 2)), (2, (0, 0, 4)), (81, (1, 81)), (80, (1, 80)), (4, (-1,)), (4, (0, -1)),
        (4, (0, 0, -1)), (1, (1,)), (6, (3, 2)))),
    *(("dense for throughput", replace(LLAMA_70B, layers=layers), 4, Asked(throughput=True, whole_on_one=whole), engine)
      for layers in (3, 15, 16) for whole in (False, True) for engine in (VLLM, SGLANG)),
    *(("whole on one, but not for throughput", LLAMA_70B, 4, Asked(whole_on_one=True), engine)
      for engine in (VLLM, SGLANG)),
    *(("replicas", LLAMA_70B, 4, Asked(data=data), engine) for data in (1, 2, 4) for engine in (VLLM, "tensorrt-llm")),
    *((f"{experts} experts, asked: {asked}", replace(MOE, experts=experts), 8, Asked(expert=asked), engine)
      for experts in (0, 4, 12, 128) for asked in (None, True, False) for engine in (VLLM, SGLANG)),
    *((f"{experts} experts, tensor 4", replace(MOE, experts=experts), 4, Asked(4, expert=True), engine)
      for experts in (0, 3, 4, 6) for engine in (VLLM, SGLANG)),
    ("MoE, tensor 12", MOE, 12, Asked(12), VLLM),
    ("MLA whole", MLA, 8, Asked(4, 2), SGLANG),
    ("no experts", LLAMA_70B, 2, Asked(2, expert=True), VLLM),
    ("groups on 64", GROUPS, 64, Asked(64), VLLM),
    ("KV heads in a row", Architecture(4, 8, 8, 64, moe_intermediate_size=1000), 8, Asked(), VLLM),
    ("vocabulary that divides", Architecture(4, 12, 12, 32, vocab_size=576), 3, Asked(), VLLM),
    ("vocabulary that is not known", Architecture(4, 12, 12, 32), 3, Asked(), VLLM),
    ("more stages than layers", LLAMA_70B, 100, Asked(1, 100), VLLM),
    ("no layers for a pipeline", Architecture(2, 8, 4, 32), 3, Asked(), VLLM),
    ("linear heads", replace(HYBRID, linear_key_heads=2), 4, Asked(), VLLM),
    ("linear value heads", replace(HYBRID, linear_value_heads=6), 4, Asked(), VLLM),
    ("KV heads", Architecture(8, 12, 4, 64), 6, Asked(), VLLM),
    ("vocabulary", Architecture(8, 12, 12, 32, vocab_size=512), 3, Asked(), VLLM),
    ("vocabulary that is padded", Architecture(8, 12, 12, 32, vocab_size=570), 3, Asked(), VLLM),
    ("intermediate size", replace(GROUPS, intermediate_size=28674), 4, Asked(), VLLM),
    ("whole groups", replace(GROUPS, intermediate_size=1024), 8, Asked(), VLLM),
    ("no whole groups on two", replace(GROUPS, intermediate_size=384), 2, Asked(), VLLM),
    ("experts that cannot be cut", Architecture(16, 16, 16, 64, moe_intermediate_size=1000), 16, Asked(), VLLM),
    ("no whole groups", replace(GROUPS, intermediate_size=1024), 16, Asked(), VLLM),
]  # fmt: skip


def test_how_every_model_is_split():
    told = []
    for name, model, nodes, asked, engine in SPLITS:
        wanted = "".join(f", {key} {value}" for key, value in vars(asked).items() if value != getattr(Asked(), key))
        made, problems = choose(model, nodes, asked, engine)
        found = of_findings(problems)
        if made:
            whole = " experts whole" if made.expert else ""
            sizes = f"tensor {made.tensor} pipeline {made.pipeline} data {made.data}{whole}"
            found.append((sizes, first_words(made.reason), made.reason))
        told.append((f"{name} on {nodes} with {engine}{wanted}", found))
    hold("splits", told)
