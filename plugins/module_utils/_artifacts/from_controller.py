# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""``sparkmatrix-node artifacts receive``: a model that comes from the computer that Ansible runs on.

That computer tells the manifest (``begin``), sends what is missing here through standard input (``take``), a piece with
each call, and the model becomes visible as a whole (``end``). What has come of a file stays when the rest does not
come, and counts with the SHA-256 of the whole file only.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Optional

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import cache as caches
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import (
    check,
    folders,
    from_node,
    hashing,
    work,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import manifest as manifests
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.cache import Cache
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.manifest import File, Manifest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Count, Word
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine

BEGIN, TAKE, END = "begin", "take", "end"
_CHUNK = 1024 * 1024
_MOST = 256 * 1024 * 1024


@dataclass(frozen=True)
class Piece:
    """Bytes of a file."""

    blob: str
    offset: int
    size: int


@dataclass(frozen=True)
class Pieces:
    """The first line of what ``take`` reads; then come the bytes, one piece behind the other."""

    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Told:
    """``lacking``: by blob, how many bytes of it are here already."""

    lacking: Mapping[Word, Count]
    result: Optional[work.Result] = None


def begin(cache: Cache, told: Any, machine: Machine) -> Told:
    of = manifests.parse(told)
    work.make_way(machine, of.name)
    teller = work.Teller(work.Work(work.COPY, cache.home, of.name, of.revision))
    for other in caches.coming(cache, of.name):
        if other != of.revision:
            caches.drop_partial(cache, other)  # of files that have been changed there since
    files = work.lacking(cache, of, teller)
    text = json.dumps(of.as_dict()).encode()
    folders.write(cache.home, (folders.OWN, "partial", of.revision), caches.COMING, text)
    with folders.inside(cache.home, cache.arriving(of.revision), make=True) as directory:
        begun = hashing.at_once(lambda file: _begun(file, directory), files)
        _tell(cache, of, directory)
    return Told({file.blob: count for file, count in zip(files, begun) if count < file.size})


def _begun(file: File, directory: int) -> int:
    """Bytes that it goes on behind. One that is all there, and something else, begins anew."""
    count = from_node.there(file, directory)
    if count == file.size and not check.fits(file, directory):
        os.unlink(file.blob, dir_fd=directory)
        return 0
    return count


def take(cache: Cache, which: tuple[str, str], stream: BinaryIO) -> Told:
    """``which``: name and revision."""
    of = _known(cache, *which)
    told: Pieces = document.load(Pieces, json_text.read(stream.readline(_MOST)))
    files = {file.blob: file for file in of.contents}
    with folders.inside(cache.home, cache.arriving(of.revision)) as directory:
        for piece in told.pieces:
            _write(files[piece.blob], piece, directory, stream)
        _tell(cache, of, directory)
    return Told({})


def end(cache: Cache, which: tuple[str, str], ref: str) -> Told:
    of = _known(cache, *which)
    with folders.inside(cache.home, cache.arriving(of.revision)) as directory:
        came = [file for file in of.contents if file.size and from_node.there(file, directory) == file.size]
        for file, fits in zip(came, hashing.at_once(lambda file: check.fits(file, directory), came)):
            if not fits:
                os.unlink(file.blob, dir_fd=directory)
                raise SparkError(
                    "what came is not what was announced",
                    file.path,
                    "Look at whether the file is being changed, or its disk is failing, and run it again",
                )
        changed = caches.place(cache, of, work.refs_of(of, ref or "main"))
        result = work.Result(of.revision, of.digest, changed)
        _tell(cache, of, directory, result)
    return Told({}, result)


def _known(cache: Cache, name: str, revision: str) -> Manifest:
    of = caches.coming(cache, name).get(revision)
    if of is None:
        raise SparkError("nobody has said what is to come", f"{name} {revision[:12]}", work.AGAIN)
    return of


def _write(file: File, piece: Piece, directory: int, stream: BinaryIO) -> None:
    how = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(file.blob, how, 0o644, dir_fd=directory), "wb") as target:
        target.seek(piece.offset)
        left = piece.size
        while left:
            data = stream.read(min(_CHUNK, left))
            if not data:
                raise SparkError("the connection ended", file.path, work.AGAIN)
            left -= target.write(data)
        target.flush()
        os.fdatasync(target.fileno())


def _tell(cache: Cache, of: Manifest, directory: int, result: work.Result | None = None) -> None:
    """For ``sparkmatrix artifacts status``."""
    with folders.inside(cache.home, (*cache.folder(of.name), "blobs"), make=True) as blobs:
        done = sum(from_node.there(file, directory) or from_node.there(file, blobs) for file in of.contents)
    now = work.Progress(
        of.digest,
        of.name,
        "receiving",
        done,
        of.size,
        ended=result is not None,
        notes=("from the computer that Ansible runs on; when that is interrupted, the same run goes on where it was",),
        result=result or work.Result(),
    )
    work.keep(now, work.PROGRESS)


# --- the program ---


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("step", choices=(BEGIN, TAKE, END))
    parser.add_argument("--home", required=True, help="engine_model_cache")
    parser.add_argument("--model", required=True, help="org/name@commit")
    parser.add_argument("--ref", default="", help="branch or tag; empty for main")


def run(arguments: argparse.Namespace) -> int:
    """One line of JSON. A copy that runs meanwhile is left alone."""
    cache, given = Cache(arguments.home), sys.stdin.buffer
    name, _at, revision = arguments.model.partition("@")
    try:
        with work.alone():
            if arguments.step == BEGIN:
                told = begin(cache, json_text.read(given.read(_MOST)), Machine())
            elif arguments.step == TAKE:
                told = take(cache, (name, revision), given)
            else:
                told = end(cache, (name, revision), arguments.ref)
    except (OSError, ValueError, TypeError, LookupError) as exc:
        raise SparkError(str(exc), arguments.home, work.AGAIN) from exc
    finally:
        while given.read(_CHUNK):  # who sends would else take this for a lost connection, and not see the reason
            pass
    sys.stdout.write(f"{json.dumps(document.plain(told))}\n")
    return 0
