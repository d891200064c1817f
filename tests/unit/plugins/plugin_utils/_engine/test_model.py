# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import model as engine_model

LLAMA = {
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}
DEEPSEEK = {
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "hidden_size": 7168,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "n_routed_experts": 256,
    "moe_intermediate_size": 2048,
    "quantization_config": {"weight_block_size": [128, 128]},
}
QWEN_NEXT = {
    "text_config": {
        "num_hidden_layers": 8,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "hidden_size": 2048,
        "num_experts": 512,
        "moe_intermediate_size": 512,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "mamba_ssm_dtype": "float32",
    }
}
GPT_OSS = {
    "num_hidden_layers": 4,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_local_experts": 128,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}


def test_llama():
    model = engine_model.from_config(LLAMA)
    assert (model.layers, model.kv_heads, model.head_dim, model.growing_layers) == (80, 8, 128, 80)
    assert (model.max_context, model.shard_multiple, model.attention, model.linear_layers) == (131072, 1, "gqa", 0)


def test_latent_attention():
    model = engine_model.from_config(DEEPSEEK)
    assert (model.attention, model.kv_lora_rank, model.rope_head_dim) == ("mla", 512, 64)
    assert (model.kv_heads, model.experts, model.shard_multiple) == (128, 256, 128)


def test_hybrid():
    model = engine_model.from_config(QWEN_NEXT)
    assert (model.full_attention_layers, model.linear_layers, model.growing_layers) == (2, 6, 2)
    assert (model.linear_value_heads, model.state_bytes) == (32, 4)
    kinds = {"text_config": {**QWEN_NEXT["text_config"], "layer_types": ["linear_attention"] * 7 + ["full_attention"]}}
    assert engine_model.from_config(kinds).full_attention_layers == 1


def test_sliding():
    model = engine_model.from_config(GPT_OSS)
    assert (model.sliding_layers, model.sliding_window, model.growing_layers) == (2, 128, 2)
    assert (model.experts, model.moe_intermediate_size) == (128, 2880)


@pytest.mark.parametrize(
    ("quantization", "multiple"),
    [
        ({"weight_block_size": [128, 128]}, 128),
        ({"quant_method": "awq", "group_size": 128}, 128),
        ({"group_size": -1}, 1),
        ({"config_groups": {"group_0": {"weights": {"group_size": 16}}}}, 16),
        ({"config_groups": {"group_0": {"weights": None}}}, 1),
        ({"config_groups": {"group_0": {"weights": {"group_size": None}}}}, 1),
        ({}, 1),
    ],
)
def test_what_a_shard_must_not_cut(quantization, multiple):
    assert engine_model.from_config({**LLAMA, "quantization_config": quantization}).shard_multiple == multiple


def test_a_config_without_sizes():
    with pytest.raises(SparkError, match="'num_hidden_layers' is missing"):
        engine_model.from_config({})


NAMES = {
    "model.layers.0.self_attn.q_proj.weight": "1",
    "model.layers.0.input_layernorm.weight": "1",
    "model.layers.0.mlp.gate.weight": "1",
    "model.layers.0.mlp.gate_proj.weight": "1",
    "model.layers.0.mlp.experts.0.gate_proj.weight": "1",
    "model.layers.0.self_attn.kv_a_proj_with_mqa.weight": "1",
    "model.layers.0.self_attn.kv_a_proj_with_mqa.weight_scale_inv": "1",
}


def test_weights_from_the_index():
    model = engine_model.from_config(DEEPSEEK)
    weights = engine_model.from_index({"metadata": {"total_size": 10**9}, "weight_map": NAMES}, model)
    assert weights.total == 10**9
    assert weights.replicated == 2 * 7168 * (1 + 256 + 576)


def test_an_index_without_a_sum():
    with pytest.raises(SparkError, match="total_size"):
        engine_model.from_index({"weight_map": {}}, engine_model.from_config(LLAMA))


def test_from_a_directory(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert engine_model.read(tmp_path)[1] is None
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 5}}))
    assert engine_model.read(tmp_path)[1] == engine_model.Weights(5)


@pytest.mark.parametrize(
    ("text", "expected"), [(None, "cannot be read"), ("{", "this is no JSON"), ("[]", "this is JSON, but no object")]
)
def test_files_that_cannot_be_used(tmp_path, text, expected):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(SparkError, match=expected):
        engine_model.read(tmp_path)


@pytest.mark.parametrize(
    ("more", "dim", "layers", "share"),
    [
        ({"index_head_dim": 128, "index_topk": 2048}, 128, 0, 1),
        ({"index_head_dim": 128, "index_topk_freq": 4, "index_skip_topk_offset": 3}, 128, 18, 18 / 61),
        ({"index_head_dim": 128, "indexer_types": ["full"] * 20 + ["shared"] * 41}, 128, 20, 20 / 61),
        ({}, 0, 0, 0),
    ],
)
def test_keys_of_an_indexer_are_kept_for_every_token(more, dim, layers, share):
    made = engine_model.from_config({**DEEPSEEK, **more})
    assert (made.indexer_dim, made.indexer_layers) == (dim, layers)
    assert made.indexer_bytes == pytest.approx(132 * share)  # 128 values of eight bits, and a scale


def test_a_cache_that_is_not_understood_is_said():
    config = {"num_hidden_layers": 43, "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512}
    with pytest.raises(SparkError, match="compress_ratios") as caught:
        engine_model.from_config({**config, "hidden_size": 4096, "compress_ratios": [0, 0, 4, 128]})
    assert "Write the architecture into the recipe" in caught.value.remedy
