# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The shape of a model: what decides how it can be split and how much memory it takes.

Written into recipes, so that a plan needs no network, or read from the model's own files: ``config.json`` and
``model.safetensors.index.json``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text

ATTENTIONS = ("gqa", "mla")


@dataclass(frozen=True)
class Architecture:
    """Sizes from the model's ``config.json``; the names differ between families, these follow the Llama family."""

    layers: int  # num_hidden_layers
    attention_heads: int  # num_attention_heads
    kv_heads: int  # num_key_value_heads
    head_dim: int  # head_dim, or hidden_size / num_attention_heads
    hidden_size: int = 0
    vocab_size: int = 0
    experts: int = 0  # num_experts; 0 for a dense model
    moe_intermediate_size: int = 0
    shard_multiple: int = 1  # a shard of an intermediate size must be a multiple: the quantization's group or block
    intermediate_size: int = 0  # of dense layers; needed only where shard_multiple is not 1
    max_context: int = 0  # max_position_embeddings; 0: not known
    attention: str = "gqa"  # or mla: one compressed vector per token and layer
    kv_lora_rank: int = 0  # mla
    rope_head_dim: int = 0  # mla: qk_rope_head_dim
    indexer_dim: int = 0  # mla that chooses what it attends to: index_head_dim, keys of which are kept for every token
    indexer_layers: int = 0  # that have such keys of their own; 0: all
    full_attention_layers: int = 0  # hybrid models: layers whose cache grows with the context; 0: all of them
    plain_layers: int = 0  # hybrid models: layers that keep nothing (Nemotron's experts are layers of their own)
    linear_key_heads: int = 0  # hybrid models: sizes of the linear attention's state (Mamba 2: n_groups)
    linear_value_heads: int = 0  # Mamba 2: mamba_num_heads
    linear_key_head_dim: int = 0  # Mamba 2: ssm_state_size
    linear_value_head_dim: int = 0  # Mamba 2: mamba_head_dim
    linear_conv_kernel: int = 4
    state_bytes: int = 4  # bytes per value of that state (mamba_ssm_dtype); 4: float32
    sliding_window: int = 0  # tokens that a sliding layer sees
    sliding_layers: int = 0  # layers that see only the window
    sliding_kv_heads: int = 0  # where those layers have others (Gemma 4); 0: the same
    sliding_head_dim: int = 0

    @property
    def indexer_bytes(self) -> float:
        """Of one token, on average over the layers: eight bits for each value, and a scale of four bytes per 128."""
        return self.indexer_dim * (1 + 4 / 128) * (self.indexer_layers or self.layers) / self.layers

    @property
    def linear_layers(self) -> int:
        """Layers with a state of constant size instead of a growing cache."""
        return self.layers - self.full_attention_layers - self.plain_layers if self.full_attention_layers else 0

    @property
    def growing_layers(self) -> int:
        """Layers whose cache grows with every token."""
        return (self.full_attention_layers or self.layers) - self.sliding_layers


@dataclass(frozen=True)
class Draft:
    """Speculative decoding."""

    method: str  # draft_model, eagle3, mtp (layers of the model itself), dflash or dspark (a block of tokens at once)
    tokens: int  # drafted in each step
    model: str = ""  # empty for mtp
    weights_gb: float = 0.0  # 10^9 bytes
    layers: int = 0  # attention layers that it adds to the cache
    kv_heads: int = 0  # of these layers, where they are not as the model's
    head_dim: int = 0
    revision: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)  # further keys of vLLM's speculative-config


@dataclass(frozen=True)
class Weights:
    """Bytes of all tensors, and of those that every tensor parallel rank holds whole."""

    total: int
    replicated: int = 0


# Tensors that vLLM, SGLang and TensorRT-LLM hold on every tensor parallel rank.
_REPLICATED = re.compile(
    r"(norm[^.]*\.(weight|bias)|(mlp|block_sparse_moe|ffn)\.(gate|router)\.[a-z_]+|kv_a_proj[a-z_]*\.[a-z_]+"
    r"|q_a_proj\.[a-z_]+|fused_qkv_a_proj[a-z_]*\.[a-z_]+|indexer\.[a-z_.]+|shared_expert_gate\.weight)$"
)


def read(directory: Path) -> tuple[Architecture, Weights | None]:
    """Shape and weights of the model in a directory on the controller; no weights where there is no index."""
    config = _document(directory / "config.json")
    index = directory / "model.safetensors.index.json"
    model = from_config(config)
    return model, from_index(_document(index), model) if index.is_file() else None


def _document(path: Path) -> Mapping[str, Any]:
    with json_text.Reading("it cannot be read", str(path), "Name a directory with the model's config.json"):
        return json_text.mapping(path.read_bytes())


def from_config(config: Mapping[str, Any]) -> Architecture:
    """``config.json`` of the Llama, Qwen, DeepSeek, Mixtral, gpt-oss, Gemma, Nemotron-H and Qwen3-Next families."""
    with json_text.Reading("it is not understood", "config.json", "Write the architecture into the recipe"):
        text = {**config, **(config.get("text_config") or config.get("llm_config") or {})}
        if text.get("compress_ratios"):
            raise ValueError("its layers keep compressed tokens (compress_ratios), and engines differ in how")
        kinds = _kinds(text)
        if kinds:
            text.setdefault("num_hidden_layers", len(kinds))
        layers, heads, hidden = (int(text[key]) for key in ("num_hidden_layers", "num_attention_heads", "hidden_size"))
        mla = bool(text.get("kv_lora_rank"))
        full = kinds.count("full_attention") if "linear_attention" in kinds else 0
        if not full and text.get("full_attention_interval"):
            full = layers // int(text["full_attention_interval"])
        sliding = kinds.count("sliding_attention")
        wide = bool(sliding and text.get("global_head_dim"))  # its growing layers have heads of their own
        kv_heads, head_dim = int(text.get("num_key_value_heads") or heads), int(text.get("head_dim") or hidden // heads)
        return Architecture(
            layers=layers,
            attention_heads=heads,
            kv_heads=(_first(text, "num_global_key_value_heads") if wide else 0) or kv_heads,
            head_dim=int(text["global_head_dim"]) if wide else head_dim,
            hidden_size=hidden,
            vocab_size=int(text.get("vocab_size") or 0),
            experts=_first(text, "num_experts", "n_routed_experts", "num_local_experts"),
            moe_intermediate_size=_moe_size(text),
            shard_multiple=_shard_multiple(config.get("quantization_config") or text.get("quantization_config") or {}),
            intermediate_size=_first(text, "intermediate_size"),
            max_context=_first(text, "max_position_embeddings"),
            attention="mla" if mla else "gqa",
            kv_lora_rank=_first(text, "kv_lora_rank"),
            rope_head_dim=_first(text, "qk_rope_head_dim"),
            indexer_dim=_first(text, "index_head_dim") if mla else 0,
            indexer_layers=_indexers(text, layers) if mla else 0,
            full_attention_layers=full,
            plain_layers=kinds.count("plain"),
            linear_key_heads=_first(text, "linear_num_key_heads", "n_groups") if full else 0,
            linear_value_heads=_first(text, "linear_num_value_heads", "mamba_num_heads"),
            linear_key_head_dim=_first(text, "linear_key_head_dim", "ssm_state_size"),
            linear_value_head_dim=_first(text, "linear_value_head_dim", "mamba_head_dim"),
            linear_conv_kernel=_first(text, "linear_conv_kernel_dim", "conv_kernel") or 4,
            state_bytes=2 if _state_dtype(text) in {"bfloat16", "float16"} else 4,
            sliding_window=_first(text, "sliding_window") if sliding else 0,
            sliding_layers=sliding,
            sliding_kv_heads=kv_heads if wide else 0,
            sliding_head_dim=head_dim if wide else 0,
        )


def _indexers(text: Mapping[str, Any], layers: int) -> int:
    """Layers whose indexer has keys of its own, where others use theirs; 0: all of them."""
    kinds, every = text.get("indexer_types") or (), _first(text, "index_topk_freq")
    if kinds:
        return sum(kind == "full" for kind in kinds)
    first = _first(text, "index_skip_topk_offset")
    return first + math.ceil((layers - first) / every) if every > 1 else 0


# Nemotron-H writes its layers as one letter each, or as words of its own.
_WORDS = {"M": "linear_attention", "*": "full_attention", "E": "plain", "-": "plain"} | {
    "mamba": "linear_attention",
    "attention": "full_attention",
    "moe": "plain",
    "mlp": "plain",
}


def _kinds(text: Mapping[str, Any]) -> list[str]:
    """What each layer keeps, where the configuration says so."""
    kinds = text.get("layer_types") or text.get("layers_block_type") or text.get("hybrid_override_pattern") or ()
    return [_WORDS.get(kind, kind) for kind in kinds]


def _state_dtype(text: Mapping[str, Any]) -> str:
    return str(text.get("mamba_ssm_dtype") or text.get("mamba_ssm_cache_dtype"))


def _first(text: Mapping[str, Any], *keys: str) -> int:
    return next((int(text[key]) for key in keys if text.get(key)), 0)


def _moe_size(text: Mapping[str, Any]) -> int:
    """Mixtral and gpt-oss call the experts' size just ``intermediate_size``."""
    size = _first(text, "moe_intermediate_size")
    return size or (_first(text, "intermediate_size") if _first(text, "num_local_experts") else 0)


def _shard_multiple(quantization: Mapping[str, Any]) -> int:
    """The block or group of a quantization that a shard must not cut apart."""
    block = quantization.get("weight_block_size")
    if isinstance(block, list) and block:
        return int(block[0])
    size = quantization.get("group_size")
    if size is None:
        groups = quantization.get("config_groups") or {}
        size = next((group["weights"].get("group_size") for group in groups.values() if group.get("weights")), 1)
    return max(1, int(size or 1))


def from_index(index: Mapping[str, Any], model: Architecture) -> Weights:
    """``model.safetensors.index.json``: the sum of all tensors, and what of it every rank holds, by the tensors' names.

    The index has no sizes of single tensors, so those of the replicated ones come from the shape of the model.
    """
    with json_text.Reading("it is not understood", "model.safetensors.index.json", "Set weights_gb instead"):
        total = int(json_text.entry(index, "metadata").get("total_size") or 0)
        if total <= 0:
            raise ValueError("it has no metadata.total_size")
        names = [name for name in json_text.entry(index, "weight_map") if _REPLICATED.search(name)]
        return Weights(total, sum(_replicated_bytes(name, model) for name in names))


def _replicated_bytes(name: str, model: Architecture) -> int:
    if not name.endswith(("weight", "bias")):
        return 0  # scales: small
    if "kv_a_proj" in name or "fused_qkv_a" in name:
        return 2 * model.hidden_size * (model.kv_lora_rank + model.rope_head_dim)
    if name.endswith(("gate.weight", "router.weight")) and "shared" not in name:
        return 2 * model.hidden_size * model.experts
    return 2 * model.hidden_size
