# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

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
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import copy, folders, journal, work
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
    """The segments that are missing here. Takes the disk space of all of them."""
    of = manifests.parse(told["manifest"])
    work.make_way(machine, of.name)
    teller = work.Teller(work.Work(work.PREPARE, cache.home, of.name, of.revision), progress)
    for other in caches.coming(cache, of.name):
        if other != of.revision:
            caches.drop_partial(cache, other)  # of files that have been changed there since
    good = sorted(work.good_blobs(cache, of, teller))
    known = {"manifest": of.as_dict(), "ref": told["ref"], "good": good}
    folders.write(cache.home, (folders.OWN, "partial", of.revision), caches.COMING, json.dumps(known).encode())
    store = _store(cache, of, good)
    if not store.in_cache:
        store.open()
    store.close()
    _tell(store, progress)
    return list(journal.numbers(store.missing))


def take(cache: Cache, which: tuple[str, str], numbers: Sequence[int], stream: BinaryIO, told: str = PROGRESS) -> int:
    """These segments, one behind the other. How many bytes are missing then. ``which``: name and revision."""
    store, _ref = _known(cache, *which)
    store.open()
    try:
        for number in numbers:
            _write(store, store.segments[number], stream)
            store.verified(number)
            _tell(store, told)
    finally:
        store.close()
    return store.lacking


def end(cache: Cache, which: tuple[str, str], told: str = PROGRESS) -> work.Result:
    store, ref = _known(cache, *which)
    of = store.manifest
    if not store.in_cache:
        store.open()
        store.close()
    if not store.is_whole:
        raise SparkError(f"{store.lacking} bytes have not come", f"{of.name} {of.revision[:12]}", work.AGAIN)
    changed = work.place(cache, of, work.partial_of(cache, of.revision), ref or "main")
    result = work.Result(of.revision, of.digest, changed, of.size)
    _tell(store, told, result)
    return result


def _store(cache: Cache, of: Manifest, good: Sequence[str]) -> journal.Store:
    whole = {blob: str(cache.blob(of.name, blob)) for blob in good}
    return journal.Store(of, work.partial_of(cache, of.revision), whole, cache.home)


def _known(cache: Cache, name: str, revision: str) -> tuple[journal.Store, str]:
    """With the name by which the revision is to be known."""
    known = caches.coming(cache, name).get(revision)
    if not known:
        raise SparkError("nobody has said what is to come", f"{name} {revision[:12]}", work.AGAIN)
    return _store(cache, known["manifest"], known["good"]), known["ref"]


def _write(store: journal.Store, segment: Segment, stream: BinaryIO) -> None:
    handle = journal.regular(store.path(segment.file), os.O_WRONLY)
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
        os.fdatasync(handle)
    finally:
        os.close(handle)


def _tell(store: journal.Store, progress: str, result: work.Result | None = None) -> None:
    """For ``sparkmatrix artifacts status``."""
    now = work.Progress(
        store.fingerprint,
        store.manifest.name,
        "receiving",
        store.bytes - store.lacking,
        store.bytes,
        ended=result is not None,
        notes=("from the computer that Ansible runs on; when that is interrupted, the same run goes on where it was",),
        result=result or work.Result(),
    )
    copy.keep(now, progress)


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
        with copy.alone():
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
