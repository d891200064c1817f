# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Models as they lie on a disk, whole and of a few bytes."""

from __future__ import annotations

import json
from pathlib import Path


def safetensors(path: Path, size: int = 64) -> Path:
    header = json.dumps({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))
    return path


def model(place: Path, shards: int = 2) -> Path:
    place.mkdir(parents=True)
    (place / "config.json").write_text('{"model_type": "llama"}')
    (place / "tokenizer.json").write_text("{}")
    names = [f"model-{number:05}-of-{shards:05}.safetensors" for number in range(1, shards + 1)]
    for name in names:
        safetensors(place / name)
    index = {"metadata": {}, "weight_map": {f"layer.{number}": name for number, name in enumerate(names)}}
    (place / "model.safetensors.index.json").write_text(json.dumps(index))
    return place


def cached(home: Path, name: str, commit: str = "0f" * 20, revision: str = "main") -> Path:
    """In the cache of huggingface_hub: files by their content, and links to them."""
    there = home / "hub" / f"models--{name.replace('/', '--')}"
    blobs, snapshot = model(there / "blobs"), there / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(file)
    (there / "refs").mkdir()
    (there / "refs" / revision).write_text(commit)
    return snapshot
