# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The manifest of a model: which files one revision of it has, and what has to be in them.

It is written once, where the model came in, and is the same on every node: a model is there when its files are those
of its manifest. :func:`parse` is its only reader; what it lets in is safe to make files from.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Words

SCHEMA_VERSION = 2
_MAX_FILES = 20_000
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII)
_REVISION = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PART = re.compile(r"[A-Za-z0-9_.+=@,][A-Za-z0-9_.+=@,~ ()\[\]-]{0,199}")
_LONGEST_PATH = 1000


@dataclass(frozen=True)
class File:
    """``path``: below the snapshot, in the hub's notation. ``blob``: what the hub calls this content (SHA-256, or git's
    SHA-1 for small files)."""

    path: str
    size: int
    sha256: str
    blob: str


@dataclass(frozen=True)
class Manifest:
    """``revision``: the hub's commit; of a directory that has none, a hash over its files. ``source``: where it came
    from, for people."""

    name: str
    revision: str
    files: tuple[File, ...]
    source: Words = ""
    schema: int = SCHEMA_VERSION

    @property
    def contents(self) -> list[File]:
        """One file of each content."""
        return list({file.blob: file for file in self.files}.values())

    @property
    def size(self) -> int:
        """Bytes that it takes in a cache."""
        return sum(file.size for file in self.contents)

    @property
    def digest(self) -> str:
        """The same on two nodes that have to have the same files."""
        told = [self.name, self.revision, sorted((file.path, file.size, file.sha256) for file in self.files)]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()

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
    for file in read.files:
        _check_file(file)
    check_paths([file.path for file in read.files])
    _check_blobs(read.files)
    return read


def is_path(path: str) -> bool:
    """Whether a file of a model may have it."""
    parts = path.split("/")
    fits = len(path) <= _LONGEST_PATH and all(_PART.fullmatch(part) for part in parts)
    return fits and not {".", ".."} & set(parts)


def _check_file(file: File) -> None:
    _must(is_path(file.path), "path", file.path)
    _must(file.size >= 0, f"size of {file.path}", file.size)
    _must(bool(_SHA256.fullmatch(file.sha256)), f"sha256 of {file.path}", file.sha256)
    _must(bool(_REVISION.fullmatch(file.blob)), f"blob of {file.path}", file.blob)


def check_paths(paths: list[str]) -> None:
    """Some files, none of them twice, and none where another one needs a directory."""
    _must(0 < len(paths) <= _MAX_FILES, "number of files", len(paths))
    folders = {path[:place] for path in paths for place, char in enumerate(path) if char == "/"}
    _must(len(set(paths)) == len(paths), "path", "there twice")
    for path in paths:
        _must(path not in folders, "path", f"{path}, file and directory")


def _check_blobs(files: tuple[File, ...]) -> None:
    """One content under one name."""
    seen: dict[str, str] = {}
    for file in files:
        _must(seen.setdefault(file.blob, file.sha256) == file.sha256, f"blob of {file.path}", file.blob)


def _must(holds: bool, what: str, value: Any) -> None:
    if not holds:
        raise ValueError(f"{what} is {ascii(value)[:80]}")
