# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The manifest of a model: which files one revision of it has, and what has to be in them.

It is written once, where the model came in, and is the same on every node: a model is there when its files are those
of its manifest. :func:`parse` is its only reader; what it lets in is safe to make files from.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Words

SCHEMA_VERSION = 1
SEGMENT_BYTES = 64 * 1024 * 1024  # what is copied, checked and repaired at once
_SMALLEST_SEGMENT = 4096
_MOST_FILES = 20_000
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII)
_REVISION = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PART = re.compile(r"[A-Za-z0-9_.+=@,][A-Za-z0-9_.+=@,~ ()\[\]-]{0,199}")
_LONGEST_PATH = 1000


@dataclass(frozen=True)
class File:
    """``path``: below the snapshot, in the hub's notation. ``blob``: what the hub calls this content (SHA-256, or git's
    SHA-1 for small files). ``segments``: SHA-256 of each piece of ``segment_bytes``, the last one may be shorter."""

    path: str
    size: int
    sha256: str
    blob: str
    segments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Segment:
    """``number``: counted over all files, which is how nodes name it to each other. Bytes."""

    number: int
    file: File
    offset: int
    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """``revision``: the hub's commit; of a directory that has none, a hash over its files. ``source``: where it came
    from, for people."""

    name: str
    revision: str
    files: tuple[File, ...]
    source: Words = ""
    segment_bytes: int = SEGMENT_BYTES
    schema: int = SCHEMA_VERSION

    @property
    def size(self) -> int:
        return sum(one.size for one in self.files)

    @property
    def digest(self) -> str:
        """The same on two nodes that have to have the same files."""
        told = [self.name, self.revision, sorted((one.path, one.size, one.sha256) for one in self.files)]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()

    def segments(self) -> Iterator[Segment]:
        number = 0
        for one in self.files:
            for offset, sha256 in zip(range(0, one.size, self.segment_bytes), one.segments):
                yield Segment(number, one, offset, min(self.segment_bytes, one.size - offset), sha256)
                number += 1

    def as_dict(self) -> dict[str, Any]:
        made: dict[str, Any] = document.plain(self)
        return made


def check_name(name: str) -> None:
    """Whether directories of it may be made; raises :class:`ValueError`."""
    _must(bool(_NAME.fullmatch(name)) and "--" not in name, "name", name)


def check_revision(revision: str) -> None:
    _must(bool(_REVISION.fullmatch(revision)), "revision", revision)


def parse(values: Any) -> Manifest:
    """Raises :class:`ValueError` or :class:`TypeError` with what does not fit."""
    read: Manifest = document.load(Manifest, values)
    if read.schema != SCHEMA_VERSION:
        raise ValueError(f"schema is {read.schema}, this release reads {SCHEMA_VERSION}")
    check_name(read.name)
    check_revision(read.revision)
    _must(read.segment_bytes >= _SMALLEST_SEGMENT, "segment_bytes", read.segment_bytes)
    for one in read.files:
        _check_file(one, read.segment_bytes)
    check_paths([one.path for one in read.files])
    _check_blobs(read.files)
    return read


def is_path(path: str) -> bool:
    """Whether a file of a model may have it."""
    parts = path.split("/")
    fits = len(path) <= _LONGEST_PATH and all(_PART.fullmatch(part) for part in parts)
    return fits and not {".", ".."} & set(parts)


def _check_file(one: File, segment_bytes: int) -> None:
    _must(is_path(one.path), "path", one.path)
    _must(one.size >= 0, f"size of {one.path}", one.size)
    _must(bool(_SHA256.fullmatch(one.sha256)), f"sha256 of {one.path}", one.sha256)
    _must(bool(_SHA256.fullmatch(one.blob) or _REVISION.fullmatch(one.blob)), f"blob of {one.path}", one.blob)
    _must(len(one.segments) == -(-one.size // segment_bytes), f"number of segments of {one.path}", len(one.segments))
    for sha256 in one.segments:
        _must(bool(_SHA256.fullmatch(sha256)), f"segments of {one.path}", sha256)


def check_paths(paths: list[str]) -> None:
    """Some files, none of them twice, and none where another one needs a directory."""
    _must(0 < len(paths) <= _MOST_FILES, "number of files", len(paths))
    folders = {path[:place] for path in paths for place, char in enumerate(path) if char == "/"}
    _must(len(set(paths)) == len(paths), "path", "there twice")
    for path in paths:
        _must(path not in folders, "path", f"{path}, file and directory")


def _check_blobs(files: tuple[File, ...]) -> None:
    """One content under one name."""
    seen: dict[str, str] = {}
    for one in files:
        _must(seen.setdefault(one.blob, one.sha256) == one.sha256, f"blob of {one.path}", one.blob)


def _must(holds: bool, what: str, value: Any) -> None:
    if not holds:
        raise ValueError(f"{what} is {ascii(value)[:80]}")
