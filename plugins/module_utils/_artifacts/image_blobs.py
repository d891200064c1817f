# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The blobs of container images, as a node offers them to the others: where their bytes are, and how they are sent.

Nothing is copied before: a blob is a piece of a file, a text, or the archive of a layer, put together again while it is
sent. Whoever made an image chose the names in its layers, and what leads out of a layer would have left this node
before anybody compares a digest: every part of such a name is opened without following a link.
"""

from __future__ import annotations

import base64
import gzip
import os
import socket
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import folders
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text

_TOGETHER = 1 << 20  # bytes; what is smaller is sent with its neighbours
_SMALL = 1 << 17


@dataclass(frozen=True)
class Blob:
    """``size`` bytes: ``text``, or those of the file ``path`` from ``offset`` on.

    ``tree``: a directory with the unpacked files of a layer. ``path`` is then Docker's list (tar-split) by which its
    archive is made from them as it was, byte by byte.
    """

    size: int
    text: str = ""
    path: str = ""
    offset: int = 0
    tree: str = ""
    media: str = ""  # the type of a manifest


@dataclass(frozen=True)
class Offered:
    """One image. ``root``: digest of its manifest or index. ``places``: directories and files that it is read from."""

    root: str
    blobs: Mapping[str, Blob]
    places: tuple[str, ...] = ()


@dataclass(frozen=True)
class Offer:
    """What the server is told. ``allowed``: addresses of the nodes that may read, with ``token``. ``images``: by
    :func:`repository`."""

    port: int
    token: str
    addresses: tuple[str, ...]
    allowed: tuple[str, ...]
    images: Mapping[str, Offered] = field(default_factory=dict)


@dataclass(frozen=True)
class Piece:
    """Of a file: the last of ``parts``, the others are directories below ``folder``."""

    folder: str
    parts: Sequence[str]
    offset: int
    size: int


Part = Union[bytes, Piece]
DAMAGED = "Docker's list of what a layer consists of is damaged"


def parts(blob: Blob) -> Iterator[Part]:
    if blob.tree:
        yield from layer(blob.path, blob.tree)
    elif blob.path:
        folder, name = os.path.split(blob.path)
        yield Piece(folder, (name,), blob.offset, blob.size)
    else:
        yield blob.text.encode()


def layer(listed: str, tree: str) -> Iterator[Part]:
    """The archive of a layer that Docker has unpacked. Its list has two kinds of entries: bytes of the archive, and
    files whose content comes from the tree (github.com/vbatts/tar-split)."""
    with json_text.Reading(DAMAGED, listed):
        for entry in _entries(listed):
            if entry["type"] == 2:
                yield base64.b64decode(entry.get("payload") or "")
            elif entry.get("size"):
                name = base64.b64decode(entry["name_raw"]) if entry.get("name_raw") else entry["name"].encode()
                yield Piece(tree, _parts(os.fsdecode(name)), 0, int(entry["size"]))


def _parts(name: str) -> list[str]:
    """As Docker has laid it down: ``/a`` and ``./a`` are ``a``."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if not parts or ".." in parts or "\0" in name:
        raise ValueError(f"{ascii(name)[:80]} is no name of a file in it")
    return parts


def layer_size(listed: str) -> int:
    size = 0
    with json_text.Reading(DAMAGED, listed):
        for entry in _entries(listed):
            text = entry.get("payload") or ""
            size += (len(text) * 3 // 4 - text[-2:].count("=")) if entry["type"] == 2 else int(entry.get("size") or 0)
    return size


def _entries(listed: str) -> Iterator[Mapping[str, Any]]:
    try:
        with gzip.open(listed, "rb") as stream:
            for line in stream:
                yield json_text.mapping(line)
    except (EOFError, zlib.error) as exc:
        raise ValueError(str(exc)) from exc


def send(connection: socket.socket, blob: Blob, start: int = 0) -> None:
    """From the byte ``start`` on. Raises :class:`OSError` or :class:`SparkError` where the files are not what they
    were."""
    waiting = bytearray()
    for part in parts(blob):
        size = part.size if isinstance(part, Piece) else len(part)
        skipped, start = min(start, size), max(start - size, 0)
        if skipped == size:
            continue
        if isinstance(part, bytes):
            waiting += part[skipped:]
        else:
            with folders.inside(part.folder, part.parts[:-1]) as directory:
                opened = folders.open_file(part.parts[-1], directory)
            with open(opened, "rb", buffering=0) as stream:
                if size - skipped > _SMALL:
                    connection.sendall(waiting)
                    waiting.clear()
                    _all(part, size - skipped, connection.sendfile(stream, part.offset + skipped, size - skipped))
                else:
                    found = os.pread(stream.fileno(), size - skipped, part.offset + skipped)
                    _all(part, size - skipped, len(found))
                    waiting += found
        if len(waiting) >= _TOGETHER:
            connection.sendall(waiting)
            waiting.clear()
    connection.sendall(waiting)


def _all(part: Piece, wanted: int, found: int) -> None:
    if found != wanted:
        raise OSError(f"{'/'.join((part.folder, *part.parts))} has {wanted - found} bytes less than it had")
