# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Whether the files of a model are those of its manifest.

Warm: by size, time and inode of each file, as they were when it was verified; nothing is read. Otherwise by their
hashes, many files at once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import cache as caches
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import folders, hashing
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.cache import Cache
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.hashing import Stamp, Tell, nothing
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.manifest import File, Manifest


@dataclass(frozen=True)
class Broken:
    path: str
    found: str


@dataclass(frozen=True)
class Checked:
    """``broken``: what is not whole, of files with one content one. ``unlinked``: files whose content is
    there and whose link in the snapshot is not; :func:`cache.place` makes it."""

    broken: tuple[Broken, ...] = ()
    unlinked: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        return not self.broken and not self.unlinked


def warm(cache: Cache, manifest: Manifest) -> Checked:
    """Without reading a file: what has changed since it was verified counts as broken."""
    return _check(cache, manifest, read=False, known=caches.state(cache, manifest).stamps)


def check(cache: Cache, manifest: Manifest, full: bool = False, tell: Tell = nothing) -> Checked:
    """What has changed is read, with ``full`` everything; what fits is remembered for the next warm check."""
    known = {} if full else caches.state(cache, manifest).stamps
    return _check(cache, manifest, read=True, known=known, tell=hashing.Counter(tell))


def _check(
    cache: Cache, manifest: Manifest, *, read: bool, known: Mapping[str, Stamp], tell: Tell = nothing
) -> Checked:
    files = manifest.contents
    try:
        with folders.inside(cache.home, (*cache.folder(manifest.name), "blobs")) as blobs:
            looked = hashing.at_once(lambda file: _look(file, blobs, known.get(file.blob), read, tell), files)
    except FileNotFoundError:
        looked = [_Look(wrong="is missing")] * len(files)
    verified = {file.blob: look.verified for file, look in zip(files, looked) if look.verified}
    if read and verified != caches.state(cache, manifest).stamps:
        caches.remember(cache, manifest, verified)
    broken = [Broken(file.path, look.wrong) for file, look in zip(files, looked) if look.wrong]
    return Checked(tuple(broken), _unlinked(cache, manifest))


@dataclass(frozen=True)
class _Look:
    """``verified``: as it was then. ``wrong``: why it is not."""

    verified: Stamp | None = None
    wrong: str = ""


def _look(file: File, directory: int, known: Stamp | None, read: bool, tell: Tell) -> _Look:
    try:
        opened = folders.open_file(file.blob, directory)
    except FileNotFoundError:
        return _Look(wrong="is missing")
    except OSError:
        return _Look(wrong="is no file of its own (a link, perhaps to nothing)")
    try:
        seen = hashing.stamp(os.fstat(opened))
        if seen.size != file.size:
            return _Look(wrong=f"has {seen.size} bytes of {file.size}")
        if seen == known:
            return _Look(seen)
        if not read:
            return _Look(wrong="has changed since it was verified" if known else "was not verified yet")
        found = hashing.measure(opened, tell)
    except OSError as exc:
        return _Look(wrong=f"cannot be read ({exc.strerror or exc})")
    finally:
        os.close(opened)
    if found.sha256 != file.sha256:
        return _Look(wrong="does not have the content that it should have")
    return _Look(found.stamp)


def fits(file: File, directory: int) -> bool:
    """Whether the directory has it, by its hash."""
    return not _look(file, directory, None, True, nothing).wrong


def _unlinked(cache: Cache, manifest: Manifest) -> tuple[str, ...]:
    snapshot = cache.snapshot(manifest.name, manifest.revision)
    lacking = []
    for file in manifest.files:
        try:
            leads = os.path.realpath(snapshot / file.path) == os.path.realpath(cache.blob(manifest.name, file.blob))
        except OSError:
            leads = False
        if not leads:
            lacking.append(file.path)
    return tuple(lacking)
