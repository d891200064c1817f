# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import VARIABLES
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import parallelism
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.registry import ENGINES
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.parallelism import (
    Asked,
    Parallel,
    heads_obstacle,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.recipe import Architecture
from hypothesis import given
from hypothesis import strategies as st
from rules import first_words, hold, of_findings


def choose(model, nodes, asked=None, engine="vllm"):
    return parallelism.choose(model, nodes, asked, ENGINES[engine])


LLAMA_70B = Architecture(layers=80, attention_heads=64, kv_heads=8, head_dim=128)
QWEN_MOE = Architecture(
    layers=94, attention_heads=64, kv_heads=4, head_dim=128, moe_intermediate_size=1536, shard_multiple=128
)


@pytest.mark.parametrize(
    ("model", "nodes", "tensor", "pipeline", "reason"),
    [
        (LLAMA_70B, 1, 1, 1, "whole model"),
        (LLAMA_70B, 2, 2, 1, "Tensor parallel"),
        (LLAMA_70B, 4, 4, 1, "64 attention and 8 KV heads divide by 4"),
        (LLAMA_70B, 3, 1, 3, "64 attention heads do not divide by 3"),
        (LLAMA_70B, 16, 16, 1, "replicated"),
        (QWEN_MOE, 4, 4, 1, "Tensor parallel"),
        (QWEN_MOE, 8, 1, 8, "192 is no multiple of the quantization group 128"),
    ],
)
def test_computed(model, nodes, tensor, pipeline, reason):
    parallel, problems = choose(model, nodes)
    assert problems == []
    assert (parallel.tensor, parallel.pipeline) == (tensor, pipeline)
    assert reason in parallel.reason


@pytest.mark.parametrize(("vocabulary", "works"), [(128256, True), (576, True), (512, False), (0, True)])
def test_the_padded_vocabulary_divides(vocabulary, works):
    """128256 is 64 x 2004, 576 is 64 x 9; 512 and 64 x 8 do not divide by three. 0: not known."""
    model = Architecture(layers=4, attention_heads=12, kv_heads=12, head_dim=32, vocab_size=vocabulary)
    assert choose(model, 3)[0].tensor == (3 if works else 1)


@pytest.mark.parametrize(
    ("nodes", "tensor", "pipeline", "expected"),
    [
        (4, 4, 1, (4, 1)),
        (4, 2, 2, (2, 2)),
        (4, 2, 0, (2, 2)),
        (4, 0, 4, (1, 4)),
        (4, 0, 2, (2, 2)),
        (3, 0, 3, (1, 3)),
    ],
)
def test_asked_for(nodes, tensor, pipeline, expected):
    parallel, problems = choose(LLAMA_70B, nodes, Asked(tensor, pipeline))
    assert problems == []
    assert (parallel.tensor, parallel.pipeline) == expected


@pytest.mark.parametrize(
    ("nodes", "tensor", "pipeline", "expected"),
    [
        (4, 3, 0, ["= 3 ranks, and there are 4 nodes", "do not divide by 3", "work on 4 nodes: 1, 2, 4"]),
        (4, 4, 2, ["= 8 ranks"]),
        (4, -1, 0, ["negative"]),
        (100, 1, 100, ["more than the model's 80 layers"]),
    ],
)
def test_refused(nodes, tensor, pipeline, expected):
    parallel, problems = choose(LLAMA_70B, nodes, Asked(tensor, pipeline))
    text = " ".join(map(str, problems))
    assert parallel is None
    for part in expected:
        assert part in text


def test_nothing_works():
    parallel, (problem,) = choose(Architecture(2, 8, 4, 32), 3)
    assert parallel is None
    assert "3 nodes cannot share" in problem.found


@pytest.mark.parametrize(
    ("model", "size", "expected"),
    [
        (Architecture(4, 12, 4, 64), 6, "4 KV heads and 6 shards"),
        (Architecture(4, 8, 8, 64, moe_intermediate_size=1000), 8, ""),
        (Architecture(4, 16, 16, 64, moe_intermediate_size=1000), 16, "1000 does not divide by 16"),
    ],
)
def test_obstacles(model, size, expected):
    parallel, problems = choose(model, size)
    assert expected in " ".join([parallel.reason if parallel else "", *map(str, problems)])
    assert (parallel is not None and parallel.tensor == size) == (not expected)


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


@pytest.mark.parametrize(
    ("model", "nodes", "asked", "engine", "sizes", "reason"),
    [
        # Cutting the experts would cut quantization groups: spread whole, or layers instead where that is refused.
        (MOE, 8, Asked(), "vllm", (8, 1, 1, True), "128 experts are spread whole, because a shard of 1536 / 8 = 192"),
        (MOE, 8, Asked(expert=False), "vllm", (1, 8, 1, False), "192 is no multiple"),
        (MOE, 4, Asked(), "vllm", (4, 1, 1, False), "Tensor parallel"),
        (MOE, 4, Asked(expert=True), "vllm", (4, 1, 1, True), "spread whole."),
        (MOE, 4, Asked(tensor=4, expert=True), "sglang", (4, 1, 1, True), "experts spread whole: as asked for"),
        (MLA, 8, Asked(), "vllm", (8, 1, 1, False), "the compressed cache is on every rank"),
        (HYBRID, 4, Asked(), "vllm", (4, 1, 1, False), "2 KV heads are replicated"),
        (LLAMA_70B, 4, Asked(throughput=True), "vllm", (1, 4, 1, False), "many requests at once"),
        (
            LLAMA_70B,
            4,
            Asked(throughput=True, whole_on_one=True),
            "vllm",
            (1, 1, 4, False),
            "4 replicas behind one endpoint",
        ),
        (LLAMA_70B, 4, Asked(throughput=True, whole_on_one=True), "sglang", (1, 4, 1, False), "Pipeline parallel"),
        (LLAMA_70B, 4, Asked(data=2), "vllm", (2, 1, 2, False), "2 replicas: as asked for"),
        (LLAMA_70B, 1, Asked(throughput=True), "vllm", (1, 1, 1, False), "One node"),
    ],
)
def test_computed_for_other_shapes_and_goals(model, nodes, asked, engine, sizes, reason):  # noqa: PLR0917
    parallel, problems = choose(model, nodes, asked, engine)
    assert problems == []
    assert (parallel.tensor, parallel.pipeline, parallel.data, parallel.expert) == sizes
    assert parallel.ranks == nodes
    assert reason in parallel.reason


@pytest.mark.parametrize(
    ("model", "nodes", "asked", "engine", "expected"),
    [
        (LLAMA_70B, 4, Asked(data=2), "sglang", "no replicas over several nodes"),
        (LLAMA_70B, 4, Asked(data=2), "tensorrt-llm", "no replicas over several nodes"),
        (LLAMA_70B, 4, Asked(tensor=2, pipeline=1, data=1), "vllm", "= 2 ranks"),
        (LLAMA_70B, 2, Asked(tensor=2, expert=True), "vllm", "no experts to spread"),
        (MOE, 12, Asked(tensor=12), "vllm", "64 attention heads do not divide by 12"),
        (replace(MOE, experts=6), 4, Asked(tensor=4, expert=True), "sglang", "6 experts do not divide by 4"),
        (replace(MOE, experts=2), 4, Asked(tensor=4, expert=True), "vllm", "2 experts for 4 ranks"),
        (replace(HYBRID, linear_key_heads=2), 4, Asked(tensor=4), "vllm", "2 key and 64 value heads of the linear"),
        (replace(LLAMA_70B, intermediate_size=28672, shard_multiple=128), 64, Asked(tensor=64), "vllm", "group 128"),
    ],
)
def test_refused_for_other_shapes(model, nodes, asked, engine, expected):
    parallel, problems = choose(model, nodes, asked, engine)
    assert parallel is None
    assert expected in " ".join(map(str, problems))


@pytest.mark.parametrize(
    ("parallel", "engine", "options", "method", "expected"),
    [
        (Parallel(1, 2, ""), "sglang", {"disable-overlap-schedule": False}, "", "overlap schedule"),
        (Parallel(1, 2, ""), "sglang", {"speculative-algorithm": "STANDALONE"}, "", "EAGLE only"),
        (Parallel(1, 2, ""), "sglang", {}, "draft_model", "EAGLE only"),
        (Parallel(1, 2, ""), "sglang", {"speculative-algorithm": "eagle3"}, "", ""),
        (Parallel(1, 2, ""), "sglang", {}, "eagle3", ""),
        (Parallel(2, 1, ""), "sglang", {"disable-overlap-schedule": False}, "draft_model", ""),
        (Parallel(1, 2, ""), "vllm", {"speculative-config": {}}, "", "not known to work"),
        (Parallel(1, 2, ""), "vllm", {}, "mtp", "not known to work"),
        (Parallel(2, 1, "", 2, True), "vllm", {}, "", "issue 37856"),
        (Parallel(2, 1, ""), "vllm", {"speculative-config": {}}, "", ""),
        (Parallel(1, 2, ""), "tensorrt-llm", {}, "", ""),
        (Parallel(2, 1, ""), "vllm", {"tool-call-parser": "hermes"}, "", "arrive as text"),
        (Parallel(2, 1, ""), "vllm", {"tool-call-parser": "hermes", "enable-auto-tool-choice": True}, "", ""),
        (Parallel(2, 1, ""), "sglang", {"tool-call-parser": "hermes"}, "", ""),
    ],
)
def test_options_that_do_not_go_with_the_sizes(parallel, engine, options, method, expected):
    findings = list(ENGINES[engine].rules(parallel, options, method, backend="ray", where="recipe x", names=VARIABLES))
    assert expected in " ".join(finding.found for finding in findings)
    assert bool(expected) == bool(findings)


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


def test_what_serves_instead_of_replicas():
    assert parallelism.instead_of_replicas(Parallel(2, 2, "", data=3), VARIABLES) == (
        "Write 3 engine_services of 4 nodes each, each with a served_model_name of its own. Or set "
        "engine_data_parallel_size: 12 (one node each, where the model fits one) or 1 (one model over all nodes)"
    )


@pytest.mark.parametrize(
    ("sizes", "ranks", "of_one"),
    [((1, 1, "", 4), 4, True), ((2, 1, "", 2), 4, False), ((1, 2, "", 2), 4, False), ((1, 1, ""), 1, False)],
)
def test_replicas_of_one_node_each(sizes, ranks, of_one):
    parallel = Parallel(*sizes)
    assert (parallel.ranks, parallel.replicas_of_one) == (ranks, of_one)
