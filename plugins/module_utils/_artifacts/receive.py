# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""``sparkmatrix-node artifacts receive``: a model that comes from the computer that Ansible runs on.

That computer is to this node what another node is in a copy: it tells the manifest (``begin``), sends the segments that
are missing here through standard input (``take``), a few with each call, and the model becomes visible as a whole
(``end``). A segment counts with its SHA-256 only, and stays when the rest does not come.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any, BinaryIO

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import cache as caches
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import check, folders, hashing, work
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import manifest as manifests
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.cache import Cache
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.manifest import Manifest, Segment
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.work import PROGRESS
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine

BEGIN, TAKE, END = "begin", "take", "end"
_PIECE = 1024 * 1024
_MOST = 256 * 1024 * 1024


def begin(cache: Cache, told: Any, machine: Machine, progress: str = PROGRESS) -> list[int]:
    """The segments that are missing here."""
    of = manifests.parse(told["manifest"])
    work.make_way(machine, of.name)
    teller = work.Teller(work.Work(work.COPY, cache.home, of.name, of.revision), progress)
    for other in caches.coming(cache, of.name):
        if other != of.revision:
            caches.drop_partial(cache, other)  # of files that have been changed there since
    good = sorted(work.good_blobs(cache, of, teller))
    known = {"manifest": of.as_dict(), "ref": told["ref"], "good": good}
    folders.write(cache.home, (folders.OWN, "partial", of.revision), caches.COMING, json.dumps(known).encode())
    with folders.inside(cache.home, cache.arriving(of.revision), make=True) as directory:
        pieces = _coming(of, good)
        fits = hashing.at_once(lambda one: check.fits(one, directory), pieces)
        _tell(of, good, directory, progress)
    return [one.number for one, fit in zip(pieces, fits) if not fit]


def take(cache: Cache, which: tuple[str, str], numbers: Sequence[int], stream: BinaryIO, told: str = PROGRESS) -> int:
    """These segments, one behind the other; their bytes. ``which``: name and revision."""
    of, _ref, good = _known(cache, *which)
    pieces = {one.number: one for one in _coming(of, good)}
    with folders.inside(cache.home, cache.arriving(of.revision)) as directory:
        for number in numbers:
            _write(pieces[number], directory, stream)
            _tell(of, good, directory, told)
    return sum(pieces[number].size for number in numbers)


def end(cache: Cache, which: tuple[str, str], told: str = PROGRESS) -> work.Result:
    of, ref, good = _known(cache, *which)
    with folders.inside(cache.home, cache.arriving(of.revision)) as directory:
        pieces = _coming(of, good)
        fits = hashing.at_once(lambda one: check.fits(one, directory), pieces)
        lacking = sum(one.size for one, fit in zip(pieces, fits) if not fit)
        if lacking:
            raise SparkError(f"{lacking} bytes have not come", f"{of.name} {of.revision[:12]}", work.AGAIN)
        changed = work.place(cache, of, work.partial_of(cache, of.revision), ref or "main")
        result = work.Result(of.revision, of.digest, changed, of.size)
        _tell(of, good, directory, told, result)
    return result


def _coming(of: Manifest, good: Sequence[str]) -> list[Segment]:
    """Of each content once."""
    firsts = {one.blob: one.path for one in reversed(of.files)}
    return [one for one in of.segments() if one.file.blob not in good and firsts[one.file.blob] == one.file.path]


def _known(cache: Cache, name: str, revision: str) -> tuple[Manifest, str, Sequence[str]]:
    """With the name by which the revision is to be known, and the blobs that were here before."""
    known = caches.coming(cache, name).get(revision)
    if not known:
        raise SparkError("nobody has said what is to come", f"{name} {revision[:12]}", work.AGAIN)
    return known["manifest"], known["ref"], known["good"]


def _write(segment: Segment, directory: int, stream: BinaryIO) -> None:
    how = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(segment.file.blob, how, 0o644, dir_fd=directory)
    try:
        hashed, at, end_ = hashlib.sha256(), segment.offset, segment.offset + segment.size
        while at < end_:
            part = stream.read(min(_PIECE, end_ - at))
            if not part:
                raise SparkError("the connection ended", segment.file.path, work.AGAIN)
            hashed.update(part)
            view = memoryview(part)
            while view:
                done = os.pwrite(handle, view, at)
                view, at = view[done:], at + done
        if hashed.hexdigest() != segment.sha256:
            raise SparkError(
                f"byte {segment.offset} to {end_} are not what was announced",
                segment.file.path,
                "Look at whether the file is being changed, or its disk is failing, and run it again",
            )
        if os.fstat(handle).st_size > segment.file.size:
            os.ftruncate(handle, segment.file.size)
        os.fdatasync(handle)
    finally:
        os.close(handle)


def _tell(of: Manifest, good: Sequence[str], directory: int, progress: str, result: work.Result | None = None) -> None:
    """For ``sparkmatrix artifacts status``."""
    sizes = {one.blob: one.size for one in of.files if one.blob not in good}
    now = work.Progress(
        of.digest,
        of.name,
        "receiving",
        sum(sizes.values()) if result else sum(map(_taken, sizes, [directory] * len(sizes))),
        sum(sizes.values()),
        ended=result is not None,
        notes=("from the computer that Ansible runs on; when that is interrupted, the same run goes on where it was",),
        result=result or work.Result(),
    )
    work.keep(now, progress)


def _taken(blob: str, directory: int) -> int:
    """Bytes on the disk."""
    try:
        return os.stat(blob, dir_fd=directory, follow_symlinks=False).st_blocks * 512
    except OSError:
        return 0


# --- the program ---


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("step", choices=(BEGIN, TAKE, END))
    parser.add_argument("--home", required=True, help="engine_model_cache")
    parser.add_argument("--model", default="@", help="org/name@commit")
    parser.add_argument("numbers", nargs="*", type=int, help="of segments")


def run(arguments: argparse.Namespace) -> int:
    """One line of JSON. A copy that runs meanwhile is left alone."""
    cache, given = Cache(arguments.home), sys.stdin.buffer
    name, _at, revision = arguments.model.partition("@")
    try:
        with work.alone():
            told: Any
            if arguments.step == BEGIN:
                told = begin(cache, json_text.read(given.read(_MOST)), Machine())
            elif arguments.step == TAKE:
                told = take(cache, (name, revision), arguments.numbers, given)
            else:
                told = document.plain(end(cache, (name, revision)))
    except (OSError, ValueError, TypeError, LookupError) as exc:
        raise SparkError(str(exc), arguments.home, work.AGAIN) from exc
    finally:
        while given.read(_PIECE):  # who sends would else take this for a lost connection, and not see the reason
            pass
    sys.stdout.write(f"{json.dumps(told)}\n")
    return 0
