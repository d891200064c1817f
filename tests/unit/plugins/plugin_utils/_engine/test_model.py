# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import model as engine_model
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import recipe as engine_recipe

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
    ("more", "dim", "layers"),
    [
        ({"index_head_dim": 128, "index_topk": 2048}, 128, 0),
        ({"index_head_dim": 128, "index_topk_freq": 4, "index_skip_topk_offset": 3}, 128, 18),
        ({"index_head_dim": 128, "indexer_types": ["full"] * 20 + ["shared"] * 41}, 128, 20),
        ({}, 0, 0),
    ],
)
def test_keys_of_an_indexer_are_kept_for_every_token(more, dim, layers):
    made = engine_model.from_config({**DEEPSEEK, **more})
    assert (made.indexer_dim, made.indexer_layers) == (dim, layers)


# What the models' own files say of their layers; sizes that decide nothing here are left out.
DEEPSEEK_V4 = {  # DeepSeek-V4-Flash
    "num_hidden_layers": 43,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "hidden_size": 4096,
    "sliding_window": 128,
    "index_head_dim": 128,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],  # the last one is its draft's
}
FLASH_NEXT = {  # Qwen3.8-Flash-Next
    "text_config": {
        **QWEN_NEXT["text_config"],
        "num_hidden_layers": 48,
        "hidden_size": 2560,
        "num_attention_heads": 24,
        "linear_num_value_heads": 48,
        "indexer_head_dim": 128,
        "indexer_compress_ratio": 4,
        "hc_count": 4,
        "ple_layer_ids": [2],
        "ple_conv_kernel_size": 4,
        "ngram_size": 3,
    }
}
GLM_FLASH = {  # GLM-5.3-Flash
    "text_config": {
        "num_hidden_layers": 45,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "hidden_size": 4096,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 0,
        "v_head_dim": 256,
        "index_head_dim": 128,
        "index_kpool": 16,
        "layer_types": (["linear_attention"] * 3 + ["deepseek_sparse_attention"]) * 11 + ["linear_attention"],
        "indexer_types": ["full"] * 45,
        "linear_attn_config": {"num_heads": 64, "head_dim": 128, "short_conv_kernel_size": 4},
    }
}
MIMO = {  # MiMo-V2-Flash
    "num_hidden_layers": 48,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "hidden_size": 4096,
    "head_dim": 192,
    "v_head_dim": 128,
    "swa_num_key_value_heads": 8,
    "swa_head_dim": 192,
    "swa_v_head_dim": 128,
    "sliding_window": 128,
    "hybrid_layer_pattern": [0, *[1, 1, 1, 1, 0] * 9, 1, 0],
}
INKLING = {  # as Inkling's
    "num_hidden_layers": 66,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 6144,
    "swa_num_key_value_heads": 16,
    "swa_head_dim": 128,
    "sliding_window_size": 512,
    "conv_kernel_size": 4,
    "local_layer_ids": [number for number in range(66) if (number + 1) % 6],
    "d_rel": 16,
}


def test_layers_that_keep_compressed_tokens():
    made = engine_model.from_config(DEEPSEEK_V4)
    assert (made.attention, made.growing_layers) == ("listed", 0)
    assert [(one.layers, one.values, one.tokens, one.window) for one in made.caches[:4]] == [
        (21, 584, 4, 0),
        (20, 584, 128, 0),
        (21, 132, 4, 0),
        (43, 584, 1, 128),
    ]
    words = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
    kinds = [words[ratio] for ratio in DEEPSEEK_V4["compress_ratios"][:43]]
    assert engine_model.from_config({**DEEPSEEK_V4, "compress_ratios": None, "layer_types": kinds}) == made
    # V4.1: four layers keep for all.
    ratios = {"compress_ratios": [0, 0, *[2] * 6, *[1] * 32, 0], "kv_source_layer_ids": [2, 8, 14, 20]}
    later = engine_model.from_config({"text_config": {**DEEPSEEK_V4, **ratios, "num_hidden_layers": 40}})
    assert [(one.layers, one.tokens, one.window, one.once) for one in later.caches] == [
        (40, 1, 128, 0),
        (3, 1, 0, 0),
        (3, 1, 0, 0),
        (1, 2, 0, 0),
        (1, 2, 0, 0),
        (1, 1, 0, 8),
    ]


def test_hybrid_models_whose_layers_choose_what_they_attend_to():
    qwen = engine_model.from_config(FLASH_NEXT)
    assert (qwen.full_attention_layers, qwen.linear_layers) == (12, 36)
    keys, ring, grams = qwen.caches
    assert (keys.layers, keys.values, keys.tokens, ring.once) == (12, 128, 4, 4)
    assert (grams.layers, grams.values, grams.once, grams.state) == (1, 4 * 2560, 9, True)
    glm = engine_model.from_config(GLM_FLASH)
    assert (glm.attention, glm.full_attention_layers, glm.linear_layers, glm.indexer_dim) == ("mla", 11, 34, 0)
    assert (glm.linear_key_heads, glm.linear_value_heads, glm.linear_key_head_dim) == (64, 64, 128)
    assert [(one.layers, one.values, one.tokens, one.once) for one in glm.caches] == [
        (11, 132, 16, 0),
        (11, 256, 1, 16),
    ]


def test_layers_with_one_more_key_for_each_token():
    chosen = {"sparse_attention_config": {"sparse_index_dim": 128, "sparse_attention_freq": [0, 0, 0] + [1] * 57}}
    made = engine_model.from_config({**LLAMA, "num_hidden_layers": 60, **chosen})
    assert (made.growing_layers, made.caches) == (60, (engine_model.Kept(57, 128, bits=16),))
    assert engine_model.from_config({**LLAMA, "index_head_dim": 128}).caches[0].layers == 80


def test_keys_and_values_of_two_widths_and_heads_that_differ_between_layers():
    mimo = engine_model.from_config(MIMO)
    assert [(one.layers, one.heads, one.values, one.window) for one in mimo.caches] == [
        (11, 4, 320, 0),
        (37, 8, 320, 128),
    ]
    inkling = engine_model.from_config(INKLING)
    assert [(one.layers, one.heads, one.values, one.window) for one in inkling.caches] == [
        (11, 8, 256, 0),
        (55, 16, 256, 512),
        (11, 8, 2048, 4),
        (55, 16, 1024, 4),
    ]


@pytest.mark.parametrize("config", [LLAMA, DEEPSEEK_V4, FLASH_NEXT, GLM_FLASH, MIMO, INKLING], ids=str)
def test_a_recipe_can_say_what_was_read(config):
    made = engine_model.from_config(config)
    told = {"model": "a/b", "weights_gb": 1, "context": 64, "concurrency": 1}
    recipe, findings = engine_recipe.parse({**told, "architecture": engine_model.document(made)}, "here", "name")
    assert (recipe and recipe.architecture, findings) == (made, [])


@pytest.mark.parametrize(
    ("more", "slide"),
    [
        ({"sliding_window_pattern": 6}, 67),
        ({"sliding_window_pattern": [128, 128, 128, 0]}, 60),
        ({"model_type": "mistral"}, 80),
        ({"model_type": "gemma2"}, 40),
        ({"use_sliding_window": False}, 0),
    ],
)
def test_a_window_without_kinds_of_layers(more, slide):
    assert engine_model.from_config({**LLAMA, "sliding_window": 128, **more}).sliding_layers == slide


def test_kinds_of_layers_may_go_on_into_the_draft():
    assert engine_model.from_config({**GPT_OSS, "num_hidden_layers": 3}).sliding_layers == 2


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"compress_ratios": [0, 0, 4, 128]}, "compress_ratios"),
        ({"compress_ratios": [8] * 80, "head_dim": 512}, "compress_ratios"),
        ({"sliding_window": 4096}, "does not say of which layers"),
        ({"layer_types": ["full_attention", "conv"] * 40}, "conv"),
        ({"attention_chunk_size": 8192}, "attention_chunk_size"),
        ({"num_kv_shared_layers": 20}, "num_kv_shared_layers"),
        ({"layer_types": ["full_attention", "linear_attention"] * 40}, "linear layers"),
        ({"global_layer_kinds": 1, "hybrid_layer_kinds": [1]}, "hybrid_layer_kinds"),
    ],
)
def test_a_family_that_is_not_understood_is_said(more, named):
    with pytest.raises(SparkError, match=named) as caught:
        engine_model.from_config({**LLAMA, **more})
    assert "Write the architecture into the recipe" in caught.value.remedy
