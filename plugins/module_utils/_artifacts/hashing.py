# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Reads files once for both their hashes: SHA-256, and git's SHA-1.

Many at once, with little memory, and without taking the page cache from an engine that serves.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

_CHUNK = 4 * 1024 * 1024
_MAX_WORKERS = 8
_LARGEST_IN_GIT = 64 * 1024 * 1024  # the hub wants what is larger in LFS
_Item = TypeVar("_Item")
_Made = TypeVar("_Made")
Tell = Callable[[int], None]  # bytes read since it was told last


@dataclass(frozen=True)
class Stamp:
    """By which a file is known again without reading it."""

    size: int
    mtime_ns: int
    inode: int


@dataclass(frozen=True)
class Measured:
    sha256: str
    git: str  # what git and the hub call it, if it is no LFS file
    stamp: Stamp


def nothing(_count: int) -> None:
    return None


def stamp(seen: os.stat_result) -> Stamp:
    return Stamp(seen.st_size, seen.st_mtime_ns, seen.st_ino & (2**63 - 1))


def measure(opened: int, tell: Tell = nothing) -> Measured:
    """The whole file behind a descriptor."""
    seen = os.fstat(opened)
    whole, git = hashlib.sha256(), hashlib.sha1(usedforsecurity=False)
    git.update(b"blob %d\0" % seen.st_size)
    small = seen.st_size <= _LARGEST_IN_GIT
    for chunk in chunks(opened, 0, seen.st_size, tell):
        whole.update(chunk)
        if small:
            git.update(chunk)
    after = os.fstat(opened)
    if stamp(after) != stamp(seen):
        raise OSError("it changed while it was read")
    return Measured(whole.hexdigest(), git.hexdigest() if small else "", stamp(seen))


def chunks(opened: int, offset: int, size: int, tell: Tell = nothing) -> Iterable[bytes]:
    end = offset + size
    while offset < end:
        chunk = os.pread(opened, min(_CHUNK, end - offset), offset)
        if not chunk:
            return
        yield chunk
        # What has been read is not needed again; the memory belongs to the engine.
        if sys.platform == "linux":
            os.posix_fadvise(opened, offset, len(chunk), os.POSIX_FADV_DONTNEED)
        offset += len(chunk)
        tell(len(chunk))


def at_once(act: Callable[[_Item], _Made], items: Sequence[_Item]) -> list[_Made]:
    """The results in the order of the items; the first error ends it."""
    with ThreadPoolExecutor(max_workers=min(_MAX_WORKERS, os.cpu_count() or 1)) as pool:
        waiting: list[Future[Any]] = [pool.submit(act, item) for item in items]
        try:
            return [future.result() for future in waiting]
        except BaseException:
            for future in waiting:
                future.cancel()
            raise


class Counter:
    """Adds up what several threads tell."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._lock = threading.Lock()

    def __call__(self, count: int) -> None:
        with self._lock:
            self._tell(count)
