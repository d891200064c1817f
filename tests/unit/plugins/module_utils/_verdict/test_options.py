# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict import options
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.observation import Difference

# As vLLM 0.32 prints it (CPU build), shortened.
METRICS = (
    "# TYPE vllm:cache_config_info gauge\n"
    'vllm:cache_config_info{block_size="16",cache_dtype="fp8",enable_prefix_caching="True",engine="0",'
    'gpu_memory_utilization="0.8",kv_cache_memory_bytes="67108864",num_gpu_blocks="1000",sliding_window="None"} 1.0\n'
)
MODELS = {"object": "list", "data": [{"id": "m", "max_model_len": 65536}, {"id": "other", "max_model_len": 1}]}
HAS = options.parse(METRICS, MODELS, "m")


def test_what_an_engine_tells_of_itself():
    assert HAS["max_model_len"] == "65536"
    assert HAS["kv_cache_memory_bytes"] == "67108864"
    assert "sliding_window" not in HAS and "engine" not in HAS


@pytest.mark.parametrize(
    "words",
    [
        ["--max-model-len", "65536", "--gpu-memory-utilization", "0.80"],
        ["--max-model-len=64K", "--kv-cache-dtype", "fp8_e4m3", "--block-size", "auto"],
        ["--enable-prefix-caching", "--tensor-parallel-size", "2", "--kv-cache-memory-bytes", "64M"],
        [],
    ],
)
def test_an_engine_that_has_what_was_planned(words):
    assert options.compare(words, HAS) == []


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--max-model-len", "131072"], Difference("--max-model-len", "131072", "65536")),
        (["--no-enable-prefix-caching"], Difference("--enable-prefix-caching", "false", "True")),
        (["--kv-cache-dtype", "bfloat16"], Difference("--kv-cache-dtype", "bfloat16", "fp8")),
        (["--max-model-len", "64k"], Difference("--max-model-len", "64k", "65536")),  # 64,000
    ],
)
def test_an_option_that_the_engine_has_otherwise(words, found):
    assert options.compare(words, HAS) == [found]


@pytest.mark.parametrize("models", [{}, {"data": None}, {"data": ["x", {"id": "m", "max_model_len": "y"}]}])
def test_an_engine_that_tells_nothing_is_compared_with_nothing(models):
    assert options.parse("", models, "m") == {}
    assert options.compare(["--max-model-len", "1"], {}) == []
