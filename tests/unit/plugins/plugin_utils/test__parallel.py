# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._parallel import choose, tensor_obstacle
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._recipe import Architecture
from hypothesis import given
from hypothesis import strategies as st

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
    parallel, problems = choose(LLAMA_70B, nodes, tensor, pipeline)
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
    parallel, problems = choose(LLAMA_70B, nodes, tensor, pipeline)
    text = " ".join(part for problem in problems for part in problem)
    assert parallel is None
    for part in expected:
        assert part in text


def test_nothing_works():
    parallel, ((found, _),) = choose(Architecture(2, 8, 4, 32), 3)
    assert parallel is None
    assert "3 nodes cannot share" in found


@pytest.mark.parametrize(
    ("model", "size", "expected"),
    [
        (Architecture(4, 12, 4, 64), 6, "4 KV heads and 6 shards"),
        (Architecture(4, 8, 8, 64, moe_intermediate_size=1000), 8, ""),
        (Architecture(4, 16, 16, 64, moe_intermediate_size=1000), 16, "1000 does not divide by 16"),
    ],
)
def test_obstacles(model, size, expected):
    assert expected in tensor_obstacle(model, size)
    assert bool(tensor_obstacle(model, size)) == bool(expected)


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
    parallel, problems = choose(model, nodes, tensor, pipeline)
    assert (parallel is None) == bool(problems)
    if parallel:
        assert parallel.tensor * parallel.pipeline == nodes
        assert not tensor_obstacle(model, parallel.tensor)
        assert parallel.pipeline <= layers
