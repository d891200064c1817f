# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""``sparkmatrix-node evict PATH...``: take files out of the page cache, without root.

A checkpoint that was just copied or loaded fills the page cache, and on unified memory the driver can fail to allocate
while it does. ``posix_fadvise(POSIX_FADV_DONTNEED)`` drops the clean pages of files that the caller may read, and only
those: the cache of everything else stays warm. Pages that a process has mapped, or that are locked, stay.
"""

from __future__ import annotations

import argparse
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import meminfo

GIB = 2**30
HELP = "take files out of the page cache, without root"


@dataclass
class Evicted:
    """``files`` and ``size`` (bytes) were advised; ``refused`` names what was not, with the reason."""

    files: int = 0
    size: int = 0
    refused: list[str] = field(default_factory=list)


def walk(paths: Sequence[str]) -> Iterator[tuple[str, OSError | None]]:
    """Files below ``paths``, each once per inode (model caches link one blob several times), and what is unreadable."""
    seen: set[tuple[int, int]] = set()
    trouble: list[OSError] = []
    for path in paths:
        if os.path.isdir(path):
            candidates = [
                os.path.join(directory, name)
                for directory, _directories, names in os.walk(path, onerror=trouble.append)
                for name in names
            ]
        else:
            candidates = [path]
        for candidate in sorted(candidates):
            try:
                status = os.stat(candidate)  # through links: caches of models consist of them
            except OSError as exc:
                yield candidate, exc
                continue
            if stat.S_ISREG(status.st_mode) and (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                yield candidate, None
    for error in trouble:
        yield str(error.filename), error


def evict(paths: Sequence[str]) -> Evicted:
    """Write out and drop the cached pages of every file below ``paths``."""
    result = Evicted()
    for path, trouble in walk(paths):
        try:
            if trouble is not None:
                raise trouble
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                os.fdatasync(handle)  # only clean pages can be dropped
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
                result.size += os.fstat(handle).st_size
                result.files += 1
            finally:
                os.close(handle)
        except OSError as exc:
            result.refused.append(f"{path}: {exc.strerror}")
    return result


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", metavar="PATH", nargs="+", help="file, or directory with everything below it")
    parser.add_argument("--quiet", action="store_true", help="print nothing on success")


def run(arguments: argparse.Namespace) -> int:
    before = meminfo.read()
    result = evict(arguments.paths)
    after = meminfo.read()
    for line in result.refused:
        sys.stderr.write(f"not evicted: {line}\n")
    if not arguments.quiet:
        cached = f"Cached {before.get('Cached', 0) / GIB:.1f} -> {after.get('Cached', 0) / GIB:.1f} GiB"
        sys.stdout.write(f"Evicted {result.files} files, {result.size / GIB:.1f} GiB: {cached}\n")
    return 1 if result.refused else 0
