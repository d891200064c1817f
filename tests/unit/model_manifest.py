# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Models of a few bytes with their manifests, for the tests of copies, checks and repairs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.manifest import File, Manifest

NAME, REVISION = "org/model", "0f" * 20


def safetensors(data: bytes) -> bytes:
    header = json.dumps({"a": {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}}).encode()
    return len(header).to_bytes(8, "little") + header + data


CONTENT = {
    "config.json": b'{"model_type": "llama"}',
    "model-00001-of-00002.safetensors": safetensors(bytes(range(256)) * 40),
    "model-00002-of-00002.safetensors": safetensors(b"b" * 5000),
    "tokenizer/vocab.txt": b"a\nb\n",
    "empty.txt": b"",
}


def git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def file(path: str, content: bytes) -> File:
    sha256 = hashlib.sha256(content).hexdigest()
    blob = sha256 if path.endswith(".safetensors") else git_hash(content)
    return File(path, len(content), sha256, blob)


def manifest(content: Mapping[str, bytes] = CONTENT, name: str = NAME, revision: str = REVISION) -> Manifest:
    return Manifest(name, revision, tuple(file(*one) for one in content.items()), "a test")


def blobs(place: Path, content: Mapping[str, bytes] = CONTENT) -> Path:
    """Whole and verified, as a copy leaves them; nothing for an empty file, which nobody brings."""
    place.mkdir(parents=True)
    for path, data in content.items():
        if data:
            (place / file(path, data).blob).write_bytes(data)
    return place
