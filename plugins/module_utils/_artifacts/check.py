# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Whether the files of a model are those of its manifest.

Warm: by size, time and inode of each file, as they were when it was verified; nothing is read. Otherwise by the hashes
of the segments, many at once; which segments are broken is what has to be fetched.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import cache as caches
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import folders, hashing
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.cache import Cache
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.hashing import Stamp, Tell, nothing
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.manifest import File, Manifest, Segment


@dataclass(frozen=True)
class Broken:
    path: str
    found: str


@dataclass(frozen=True)
class Checked:
    """``broken``: what is not whole. ``unlinked``: files whose content is there and whose link in the snapshot is not;
    :func:`cache.place` makes it. ``read``: bytes that were read for it."""

    broken: tuple[Broken, ...] = ()
    unlinked: tuple[str, ...] = ()
    read: int = 0

    @property
    def whole(self) -> bool:
        return not self.broken and not self.unlinked


def warm(cache: Cache, manifest: Manifest) -> Checked:
    """Without reading a file: what has changed since it was verified counts as broken as a whole."""
    return _check(cache, manifest, _Way(read=False, all=False))


def check(cache: Cache, manifest: Manifest, full: bool = False, tell: Tell = nothing) -> Checked:
    """What has changed is read, with ``full`` everything; what fits is remembered for the next warm check."""
    return _check(cache, manifest, _Way(read=True, all=full, tell=hashing.Counter(tell)))


@dataclass(frozen=True)
class _Way:
    read: bool
    all: bool
    tell: Tell = nothing


def _check(cache: Cache, manifest: Manifest, way: _Way) -> Checked:
    known = caches.state(cache, manifest).stamps
    segments: dict[str, list[Segment]] = {one.path: [] for one in manifest.files}
    for piece in manifest.segments():
        segments[piece.file.path].append(piece)
    verified: dict[str, Stamp] = {}
    found: dict[str, str] = {}  # by blob, what is wrong with it
    bad: dict[str, int] = {}  # by blob, how many of its segments are broken
    count = 0
    firsts = list({one.blob: one for one in manifest.files}.values())
    try:
        with folders.inside(cache.home, (*cache.folder(manifest.name), "blobs")) as blobs:
            todo = []
            for one in firsts:
                seen, wrong = _look(one, blobs)
                if seen is None:
                    found[one.blob] = wrong
                elif seen == known.get(one.blob) and not way.all:
                    verified[one.blob] = seen
                elif way.read:
                    todo.append((one, seen))
                else:
                    found[one.blob] = (
                        "has changed since it was verified" if one.blob in known else "was not verified yet"
                    )
            pieces = [(one, piece) for one, _seen in todo for piece in segments[one.path]]
            right = hashing.at_once(lambda item: fits(item[1], blobs, way.tell), pieces)
            count = sum(piece.size for _one, piece in pieces)
            for (one, _piece), fit in zip(pieces, right):
                if not fit:
                    bad[one.blob] = bad.get(one.blob, 0) + 1
            for one, seen in todo:
                after, wrong = _look(one, blobs)
                if one.blob in bad:
                    many = f"{bad[one.blob]} of {len(segments[one.path])}"
                    found[one.blob] = f"does not have the content that it should have ({many} segments)"
                elif after != seen:
                    found[one.blob] = wrong or "changed while it was read"
                else:
                    verified[one.blob] = seen
    except FileNotFoundError:
        found = {one.blob: "is missing" for one in firsts}
    if way.read and verified != known:
        caches.remember(cache, manifest, verified)
    # Two files with one content are fetched once.
    broken = [Broken(one.path, found[one.blob]) for one in firsts if one.blob in found]
    return Checked(tuple(broken), _unlinked(cache, manifest), count)


def _look(one: File, blobs: int) -> tuple[Stamp | None, str]:
    try:
        opened = folders.open_file(one.blob, blobs)
    except FileNotFoundError:
        return None, "is missing"
    except OSError:
        return None, "is no file of its own (a link, perhaps to nothing)"
    seen = hashing.stamp(os.fstat(opened))
    os.close(opened)
    if seen.size > one.size:
        return None, f"has {seen.size} bytes of {one.size}"
    return seen, ""


def fits(piece: Segment, blobs: int, tell: Tell = nothing) -> bool:
    """Whether the directory has it."""
    try:
        opened = folders.open_file(piece.file.blob, blobs)
        try:
            return hashing.segment(opened, piece.offset, piece.size, tell) == piece.sha256
        finally:
            os.close(opened)
    except OSError:  # it is gone, or the disk cannot read it
        return False


def _unlinked(cache: Cache, manifest: Manifest) -> tuple[str, ...]:
    snapshot = cache.snapshot(manifest.name, manifest.revision)
    lacking = []
    for one in manifest.files:
        try:
            leads = os.path.realpath(snapshot / one.path) == os.path.realpath(cache.blob(manifest.name, one.blob))
        except OSError:
            leads = False
        if not leads:
            lacking.append(one.path)
    return tuple(lacking)
