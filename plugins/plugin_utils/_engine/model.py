# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The shape of a model: what decides how it can be split and how much memory it takes.

Written into recipes, so that a plan needs no network, or read from the model's own files: ``config.json`` and
``model.safetensors.index.json``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text

ATTENTIONS = ("gqa", "mla", "listed")


@dataclass(frozen=True)
class Kept:
    """What some layers keep of a request, beside what the other fields of an architecture or a draft say."""

    layers: int
    values: int  # of one entry and head: key and value together
    heads: int = 1  # that tensor parallel ranks share out; 1: every rank keeps it whole
    bits: int = 0  # of a value; 0: as the cache's dtype says
    tokens: int = 1  # that become one entry
    window: int = 0  # tokens after which it stops growing; 0: never
    once: int = 0  # entries that a request has once, whatever its length, and one more for each drafted token
    state: bool = False  # of those, one before the last tokens, one after, and one for each drafted token
    block: int = 0  # tokens of a page, where they are not the cache's
    align: int = 1  # bytes that a page is a multiple of


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
    experts_per_token: int = 0  # num_experts_per_tok
    moe_intermediate_size: int = 0
    shard_multiple: int = 1  # a shard of an intermediate size must be a multiple: the quantization's group or block
    intermediate_size: int = 0  # of dense layers; needed only where shard_multiple is not 1
    max_context: int = 0  # max_position_embeddings; 0: not known
    attention: str = "gqa"  # mla: one compressed vector per token and layer; listed: all that is kept is in caches
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
    caches: tuple[
        Kept, ...
    ] = ()  # what layers keep beside that: compressed tokens, rings, keys and values of two widths

    @property
    def linear_layers(self) -> int:
        """Layers with a state of constant size instead of a growing cache."""
        return self.layers - self.full_attention_layers - self.plain_layers if self.full_attention_layers else 0

    @property
    def growing_layers(self) -> int:
        """Layers whose cache grows with every token, of one kind."""
        if self.attention == "listed":
            return 0
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
    caches: tuple[Kept, ...] = ()  # what its layers keep beside that
    revision: str = ""
    acceptance: float = 0.0  # tokens that one step gives on average, the model's own among them; 0: assumed by method
    acceptance_source: str = ""
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


def document(made: Architecture | Kept) -> dict[str, Any]:
    """As a recipe says it: what differs from the defaults."""
    told = {item.name: getattr(made, item.name) for item in fields(made) if getattr(made, item.name) != item.default}
    return {name: [*map(document, value)] if isinstance(value, tuple) else value for name, value in told.items()}


def _document(path: Path) -> Mapping[str, Any]:
    with json_text.Reading("it cannot be read", str(path), "Name a directory with the model's config.json"):
        return json_text.mapping(path.read_bytes())


# Names of keys that say what layers keep. One that is not in _READ, and is set, makes a family that is not understood.
_LAYOUT = re.compile(
    r"swa_|compress_|kv_source|local_layer|hybrid_|attn_layer_|mamba_d_|attention_chunk|lru_|index_kpool|ple_layer"
    r"|cross_decoder|num_kv_shared|(sliding|attention|attn|layers?)[a-z_]*_pattern"
)
_READ = frozenset({
    *("compress_ratios", "compress_rates", "compress_rope_theta", "kv_source_layer_ids", "index_kpool"),
    *("hybrid_override_pattern", "hybrid_layer_pattern", "sliding_window_pattern", "local_layer_ids"),
    *("swa_num_key_value_heads", "swa_head_dim", "swa_v_head_dim", "swa_num_attention_heads", "ple_layer_ids"),
    *("swa_rope_theta", "swa_rope_parameters", "index_kpool_always_select_tail"),
})  # fmt: skip
_ALL_SLIDE = ("mistral", "mixtral", "phi3")  # families whose layers all have the window that their config names
_EVERY = {"gemma2": 2, "gemma3_text": 6, "cohere2": 4}  # families of which every second, sixth or fourth layer has none
_RATIOS = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}


def from_config(config: Mapping[str, Any]) -> Architecture:
    """``config.json`` of the families that vLLM 0.33 lays out as this collection counts them; others are refused."""
    with json_text.Reading("it is not understood", "config.json", "Write the architecture into the recipe"):
        text = {**config, **(config.get("text_config") or config.get("llm_config") or {})}
        kinds = text.get("layer_types") or ()
        if "compressed_sparse_attention" in kinds and not text.get("compress_ratios"):
            text["compress_ratios"] = [_RATIOS.get(kind, -1) for kind in kinds]
        linear = text.get("linear_attn_config")
        text.update({f"linear_{key}": value for key, value in linear.items()} if isinstance(linear, Mapping) else {})
        unknown = sorted(key for key in text if _LAYOUT.match(key) and key not in _READ and text[key])
        kinds = _kinds(text)
        unknown += sorted(set(kinds) - {"full_attention", "linear_attention", "sliding_attention", "plain"})
        if unknown:
            raise ValueError(f"this family is not understood, what its layers keep is in {', '.join(unknown)}")
        if kinds:
            text.setdefault("num_hidden_layers", len(kinds))
        layers, heads, hidden = (int(text[key]) for key in ("num_hidden_layers", "num_attention_heads", "hidden_size"))
        kinds = kinds[:layers]  # some name the draft's, too
        full = kinds.count("full_attention") if "linear_attention" in kinds else 0
        if not full and text.get("full_attention_interval"):
            full = layers // int(text["full_attention_interval"])
        sliding = kinds.count("sliding_attention")
        kv_heads = _first(text, "num_key_value_heads", "num_attention_groups") or heads
        head_dim = int(text.get("head_dim") or hidden // heads)
        made = Architecture(
            layers=layers,
            attention_heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            hidden_size=hidden,
            vocab_size=int(text.get("vocab_size") or 0),
            experts=_first(text, "num_experts", "n_routed_experts", "num_local_experts"),
            experts_per_token=_first(text, "num_experts_per_tok", "experts_per_token", "top_k_experts"),
            moe_intermediate_size=_moe_size(text),
            shard_multiple=_shard_multiple(config.get("quantization_config") or text.get("quantization_config") or {}),
            intermediate_size=_first(text, "intermediate_size"),
            max_context=_first(text, "max_position_embeddings"),
            full_attention_layers=full,
            plain_layers=kinds.count("plain"),
            linear_key_heads=_first(text, "linear_num_key_heads", "linear_num_heads", "n_groups") if full else 0,
            linear_value_heads=_first(text, "linear_num_value_heads", "linear_num_heads", "mamba_num_heads"),
            linear_key_head_dim=_first(text, "linear_key_head_dim", "linear_head_dim", "ssm_state_size"),
            linear_value_head_dim=_first(text, "linear_value_head_dim", "linear_head_dim", "mamba_head_dim"),
            linear_conv_kernel=_first(
                text, "linear_conv_kernel_dim", "linear_short_conv_kernel_size", "conv_kernel", "conv_kernel_size"
            )
            or 4,
            state_bytes=_state_bytes(text),
            sliding_window=_first(text, "sliding_window", "sliding_window_size") if sliding else 0,
            sliding_layers=sliding,
        )
        if made.linear_layers and not made.linear_key_heads * made.linear_value_heads * made.linear_key_head_dim:
            raise ValueError("this family is not understood, the sizes of its linear layers are not there")
        return _with_caches(made, text, kinds)


def _with_caches(made: Architecture, text: Mapping[str, Any], kinds: Sequence[str]) -> Architecture:
    """What differs between families: vLLM's ``get_kv_cache_spec`` of their layers."""
    if text.get("compress_ratios") or text.get("compress_rates"):
        return replace(made, attention="listed", caches=_deepseek_v4(text, made))
    if text.get("kv_lora_rank"):
        made = replace(
            made,
            attention="mla",
            kv_lora_rank=_first(text, "kv_lora_rank"),
            rope_head_dim=_first(text, "qk_rope_head_dim"),
            indexer_dim=_first(text, "index_head_dim"),
            indexer_layers=_indexers(text, kinds, made.layers),
        )
        pool = _first(text, "index_kpool")
        if not pool:
            return made
        dim, counted = made.indexer_dim, made.indexer_layers or made.growing_layers
        return replace(
            made,
            indexer_dim=0,
            indexer_layers=0,
            caches=(Kept(counted, dim + 4, bits=8, tokens=pool), Kept(counted, 2 * dim, bits=16, once=pool)),
        )
    width = made.head_dim + (_first(text, "v_head_dim") or made.head_dim)
    heads, dim = _first(text, "swa_num_key_value_heads"), _first(text, "swa_head_dim") or made.head_dim
    short = dim + (_first(text, "swa_v_head_dim") or (width - made.head_dim if dim == made.head_dim else dim))
    if made.sliding_layers and (heads or width != 2 * made.head_dim):
        heads, conv = heads or made.kv_heads, 0
        if text.get("d_rel"):  # Inkling: short convolutions of keys, values and both outputs
            conv = _first(text, "sconv_kernel_size", "conv_kernel_size") or made.linear_conv_kernel
        seen = [
            Kept(made.growing_layers, width, made.kv_heads),
            Kept(made.sliding_layers, short, heads, window=made.sliding_window),
        ]
        for layers, one, own in ((made.growing_layers, made.kv_heads, width), (made.sliding_layers, heads, short)):
            values = 1 << (own + 2 * made.hidden_size // one - 1).bit_length()
            seen += [Kept(layers, values, one, bits=16, window=conv, block=conv)] if conv else []
        return replace(made, attention="listed", sliding_layers=0, sliding_window=0, caches=tuple(seen))
    if width != 2 * made.head_dim:
        return replace(made, attention="listed", caches=(Kept(made.layers, width, made.kv_heads),))
    if made.sliding_layers and text.get("global_head_dim"):  # Gemma 4: its growing layers have heads of their own
        return replace(
            made,
            kv_heads=_first(text, "num_global_key_value_heads") or made.kv_heads,
            head_dim=int(text["global_head_dim"]),
            sliding_kv_heads=made.kv_heads,
            sliding_head_dim=made.head_dim,
        )
    sparse = text.get("sparse_attention_config") or {}
    dim = _first(sparse, "sparse_index_dim") or _first(text, "index_head_dim")
    if dim:  # MiniMax M3: one more key for each token, in the layers that choose
        chosen = sum(map(bool, sparse.get("sparse_attention_freq") or ())) or made.growing_layers
        return replace(made, caches=(Kept(chosen, dim, bits=16),))
    if text.get("indexer_compress_ratio"):  # Qwen4Exp: keys of groups of tokens, a ring of the open group, n-grams
        dim, group, layers = (
            _first(text, "indexer_head_dim"),
            _first(text, "indexer_compress_ratio"),
            made.growing_layers,
        )
        kept = Kept(layers, dim, bits=16, tokens=group), Kept(layers, dim + 12, bits=16, once=group)
        wide = made.hidden_size * _first(text, "hc_count")
        grams = (_first(text, "ple_conv_kernel_size") - 1) * _first(text, "ngram_size")
        count = len(text.get("ple_layer_ids") or ())
        return replace(made, caches=(*kept, Kept(count, wide, bits=16, once=grams, state=True)) if count else kept)
    return made


def _deepseek_v4(text: Mapping[str, Any], made: Architecture) -> tuple[Kept, ...]:
    """DeepSeek V4 and V4.1: a window in every layer, and compressed tokens beside it, 584 bytes each on a Spark."""

    def packed(layers: int, values: int = 584, tokens: int = 1, window: int = 0) -> Kept:
        return Kept(layers, values, bits=8, tokens=tokens, window=window, block=64 if window else 0, align=576)

    ratios = [int(ratio) for ratio in text.get("compress_ratios") or ()][: made.layers]
    window, dim, index = _first(text, "sliding_window"), made.head_dim, _first(text, "index_head_dim") or 128
    if not ratios or len(ratios) < made.layers or dim != 512:
        raise ValueError("this family is not understood, compress_ratios or head_dim are not those of DeepSeek V4")
    sources = text.get("kv_source_layer_ids")
    every = packed(made.layers, window=window)
    if sources is not None:  # V4.1: few layers keep what the others read, too
        kept = [every]
        for ratio in sorted({ratios[int(layer)] for layer in sources}):
            count = sum(ratios[int(layer)] == ratio for layer in sources)
            kept += [packed(count, tokens=ratio), packed(count, index + 4, tokens=ratio)]
            kept += [Kept(count, 2 * dim, bits=32, once=8)] if ratio > 1 else []
        return tuple(kept)
    few, many = ratios.count(4), ratios.count(128)
    if few + many + ratios.count(0) + ratios.count(1) != made.layers:
        raise ValueError("this family is not understood, its compress_ratios are others than 4 and 128")
    return (
        packed(few, tokens=4),
        packed(many, tokens=128),
        packed(few, index + 4, tokens=4),
        every,
        Kept(few, 4 * dim, bits=32, window=8, block=4, align=576),
        Kept(few, 4 * index, bits=32, window=8, block=4, align=576),
        Kept(many, 2 * dim, bits=32, window=128, block=8, align=576),
    )


def _indexers(text: Mapping[str, Any], kinds: Sequence[str], layers: int) -> int:
    """Layers whose indexer has keys of its own, where others use theirs; 0: all of them."""
    own, every = text.get("indexer_types") or (), _first(text, "index_topk_freq")
    if own:
        return sum(kind == "full" for kind, layer in zip(own, kinds or own) if layer in {kind, "full_attention"})
    first = _first(text, "index_skip_topk_offset")
    return first + math.ceil((layers - first) / every) if every > 1 else 0


# Nemotron-H writes its layers as one letter each, others have words of their own.
_WORDS = {"M": "linear_attention", "*": "full_attention", "E": "plain", "-": "plain"} | {
    "mamba": "linear_attention",
    "attention": "full_attention",
    "moe": "plain",
    "mlp": "plain",
    "indexed_attention": "full_attention",
    "deepseek_sparse_attention": "full_attention",
    "hybrid": "full_attention",
    "hybrid_sliding": "sliding_attention",
}


def _kinds(text: Mapping[str, Any]) -> list[str]:
    """What each layer keeps, where the configuration says so."""
    if text.get("compress_ratios"):
        return []
    kinds = text.get("layer_types") or text.get("layers_block_type") or text.get("hybrid_override_pattern") or ()
    if kinds:
        return [_WORDS.get(kind, kind) for kind in kinds]
    layers, slides = range(int(text["num_hidden_layers"])), None
    window = text.get("sliding_window") or text.get("sliding_window_size")
    if text.get("linear_kda_layers"):
        slides, word = {int(layer) - 1 for layer in text["linear_kda_layers"]}, "linear_attention"
    elif window and text.get("use_sliding_window", True):
        word = "sliding_attention"
        pattern, family = text.get("hybrid_layer_pattern"), text.get("model_type")
        every = text.get("sliding_window_pattern") or _EVERY.get(str(family))
        if pattern:
            slides = {number for number, kind in enumerate(pattern) if kind == 1}
        elif text.get("local_layer_ids") is not None:
            slides = set(text["local_layer_ids"])
        elif isinstance(every, int) and every:
            slides = {number for number in layers if (number + 1) % every}
        elif isinstance(every, list) and every:
            slides = {number for number in layers if every[number % len(every)]}
        elif family in _ALL_SLIDE:
            slides = set(layers)
        else:
            raise ValueError("it has a sliding_window, and does not say of which layers")
    return [] if slides is None else [word if number in slides else "full_attention" for number in layers]


def _state_bytes(text: Mapping[str, Any]) -> int:
    """Where the file does not say it, a gated delta net has the model's own, others float32."""
    dtype = text.get("mamba_ssm_dtype") or text.get("mamba_ssm_cache_dtype")
    return 2 if dtype in {"bfloat16", "float16"} or (not dtype and text.get("linear_num_key_heads")) else 4


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
