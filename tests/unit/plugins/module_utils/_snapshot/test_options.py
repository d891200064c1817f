# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._snapshot import options
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._snapshot.snapshot import Difference

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


# As SGLang 0.5 answers /server_info, shortened.
INFO = {
    "model_path": "/models/qwen3-8b",
    "context_length": 32768,
    "tp_size": 2,
    "kv_cache_dtype": "fp8_e4m3",
    "mem_fraction_static": 0.8,
    "disable_radix_cache": True,
    "chunked_prefill_size": 4096,
    "api_key": "sk-secret",
    "admin_api_key": "sk-secret",
    "hf_token": None,
    "internal_states": [{"last_gen_throughput": 9.1}],
    "max_total_num_tokens": 200000,
}


def test_what_sglang_tells_of_itself_without_its_keys():
    has = options.parse("", {}, "m", INFO)
    assert "sk-secret" not in str(has) and "internal_states" not in has
    assert (has["context_length"], has["max_total_num_tokens"]) == ("32768", "200000")
    planned = ["--model-path", "Qwen/Qwen3-8B", "--context-length", "32768", "--tp-size", "2", "--disable-radix-cache"]
    planned += ["--kv-cache-dtype", "fp8_e4m3", "--mem-fraction-static", "0.80", "--tensor-parallel-size", "2"]
    assert options.compare(planned, has) == []
    lowered = ["--chunked-prefill-size", "8192", "--tp-size=4"]
    assert options.compare(lowered, has) == [
        Difference("--chunked-prefill-size", "8192", "4096"),
        Difference("--tp-size", "4", "2"),
    ]


@pytest.mark.parametrize("models", [{}, {"data": None}, {"data": ["x", {"id": "m", "max_model_len": "y"}]}])
def test_an_engine_that_tells_nothing_is_compared_with_nothing(models):
    assert options.parse("", models, "m") == {}
    assert options.compare(["--max-model-len", "1"], {}) == []
