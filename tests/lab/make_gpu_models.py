#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Make models of real shapes with random weights: ``make_gpu_models.py DIRECTORY [NAME...]``, all when none is named.

Runs in the engine environment with CUDA; a card is not needed, the disk decides how long it takes. What is complete is
left alone. Every value comes from one pool of random numbers, each tensor from a place of its own in it: the same
weights everywhere, and nothing that costs time but writing. Of ``tiny-llama`` (``make_tiny_model.py``) come the
tokenizer and the chat template, with a word for each further token, so that every token of an answer is text.
"""

# ruff: noqa: PLC0415 -- imported where they exist: in the engine environment
from __future__ import annotations

import concurrent.futures
import json
import math
import os
import pathlib
import shutil
import sys
import time
import zlib
from collections.abc import Iterator
from typing import Any

import make_tiny_model

STD = 0.02  # logits of a hidden size of 4096 then spread by 1.3
POOL = 2**26 + 1  # values; odd, so that no two rows of a table begin at the same place
PIECE = 4 * 10**9  # bytes of a file, about
TOKENIZER = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json"
VOCABULARY = 151936
_QWEN3 = {
    "vocab_size": VOCABULARY,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "dtype": "bfloat16",
    "torch_dtype": "bfloat16",
}
_DENSE = {**_QWEN3, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
SHAPES: dict[str, dict[str, Any]] = {
    # Qwen3-8B: 16.4 GB
    "qwen8b": {
        **_DENSE,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
    },
    # Qwen3-0.6B: 1.2 GB
    "qwen06b": {
        **_DENSE,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "tie_word_embeddings": True,
    },
    # Qwen3-30B-A3B with 24 of its 48 layers and 64 of its 128 experts: 17 GB
    "moe30b": {
        **_QWEN3,
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
    },
}


def tensors(shape: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and sizes as in the files that Qwen publishes."""
    hidden, head = shape["hidden_size"], shape["head_dim"]
    queries, keys = shape["num_attention_heads"] * head, shape["num_key_value_heads"] * head
    yield "model.embed_tokens.weight", (VOCABULARY, hidden)
    for layer in range(shape["num_hidden_layers"]):
        start = f"model.layers.{layer}"
        yield f"{start}.input_layernorm.weight", (hidden,)
        yield f"{start}.self_attn.q_proj.weight", (queries, hidden)
        yield f"{start}.self_attn.k_proj.weight", (keys, hidden)
        yield f"{start}.self_attn.v_proj.weight", (keys, hidden)
        yield f"{start}.self_attn.o_proj.weight", (hidden, queries)
        yield f"{start}.self_attn.q_norm.weight", (head,)
        yield f"{start}.self_attn.k_norm.weight", (head,)
        yield f"{start}.post_attention_layernorm.weight", (hidden,)
        parts = {f"{start}.mlp": shape["intermediate_size"]}
        if experts := shape.get("num_experts"):
            yield f"{start}.mlp.gate.weight", (experts, hidden)
            parts = {f"{start}.mlp.experts.{number}": shape["moe_intermediate_size"] for number in range(experts)}
        for part, inner in parts.items():
            yield f"{part}.gate_proj.weight", (inner, hidden)
            yield f"{part}.up_proj.weight", (inner, hidden)
            yield f"{part}.down_proj.weight", (hidden, inner)
    yield "model.norm.weight", (hidden,)
    if not shape["tie_word_embeddings"]:
        yield "lm_head.weight", (VOCABULARY, hidden)


def files(shape: dict[str, Any]) -> list[list[tuple[str, tuple[int, ...]]]]:
    """The tensors of each file."""
    made: list[list[tuple[str, tuple[int, ...]]]] = [[]]
    size = 0
    for name, sizes in tensors(shape):
        if size > PIECE:
            made.append([])
            size = 0
        made[-1].append((name, sizes))
        size += 2 * math.prod(sizes)
    return made


def header(part: list[tuple[str, tuple[int, ...]]]) -> bytes:
    """Of a safetensors file: its length, then where each tensor lies."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, sizes in part:
        end = offset + 2 * math.prod(sizes)
        entries[name] = {"dtype": "BF16", "shape": sizes, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def random_pool() -> memoryview:
    """Normal random numbers as bytes of bfloat16, which is the upper half of a float."""
    import numpy as np

    values = np.random.default_rng(0).standard_normal(POOL, dtype=np.float32) * np.float32(STD)
    return memoryview((values.view(np.uint32) >> 16).astype("<u2").tobytes())


def write_file(path: pathlib.Path, part: list[tuple[str, tuple[int, ...]]], pool: memoryview) -> None:
    with path.open("wb", buffering=0) as output:
        output.write(header(part))
        for name, sizes in part:
            if len(sizes) == 1:
                output.write(b"\x80\x3f" * sizes[0])  # 1.0
                continue
            left = 2 * math.prod(sizes)
            start = 2 * (zlib.crc32(name.encode()) % POOL)
            while left:
                left -= output.write(pool[start : start + left])
                start = 0


def write_tokenizer(tiny: pathlib.Path, place: pathlib.Path) -> None:
    for name in TOKENIZER:
        if (tiny / name).exists():
            shutil.copy(tiny / name, place / name)
    path = place / "tokenizer.json"
    made = json.loads(path.read_text())
    words = made["model"]["vocab"]
    known = {*words.values(), *(token["id"] for token in made["added_tokens"])}
    words |= {f"\u0120{number}": number for number in range(VOCABULARY) if number not in known}  # a space in front
    path.write_text(json.dumps(made))


def make(base: pathlib.Path, name: str, pool: memoryview) -> float:
    shape, place = SHAPES[name], base / name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    started = time.monotonic()
    write_tokenizer(base / "tiny-llama", place)
    parts = files(shape)
    named = {f"model-{number:05}-of-{len(parts):05}.safetensors": part for number, part in enumerate(parts, 1)}
    with concurrent.futures.ThreadPoolExecutor(8) as workers:
        for job in [workers.submit(write_file, place / file, part, pool) for file, part in named.items()]:
            job.result()
    where = {tensor: file for file, part in named.items() for tensor, _sizes in part}
    total = sum(2 * math.prod(sizes) for _tensor, sizes in tensors(shape))
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (place / "model.safetensors.index.json").write_text(json.dumps(index))
    (place / "config.json").write_text(json.dumps(shape, indent=1) + "\n")  # last: what has one is complete
    print(f"{name}: {total / 1e9:.1f} GB, {time.monotonic() - started:.0f} s", flush=True)
    return total / 1e9


def main(base: pathlib.Path, names: list[str]) -> None:
    unknown = [name for name in names if name not in SHAPES]
    if unknown:
        sys.exit(f"There is no {', '.join(unknown)}; there are {', '.join(SHAPES)}")
    os.umask(0o022)  # read by ordinary users of the nodes
    tiny = base / "tiny-llama"
    if not (tiny / "config.json").exists():
        tiny.mkdir(parents=True, exist_ok=True)
        make_tiny_model.main(str(tiny))
        for path in tiny.iterdir():
            path.chmod(0o644)  # safetensors are written with 0600
    todo = [name for name in names or SHAPES if not (base / name / "config.json").exists()]
    pool = random_pool() if todo else memoryview(b"")
    for name in todo:
        make(base, name, pool)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
