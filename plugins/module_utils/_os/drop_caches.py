# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""``sparkmatrix-node drop-caches``: give the page cache back before an engine starts.

On unified memory the driver can fail to allocate (NV_ERR_NO_MEMORY) while ``MemAvailable`` still counts tens of GiB of
page cache as free. So the cache is dropped once right before an engine start and once after a checkpoint was copied,
never on a schedule: a cold cache makes every load slow and distorts what the engine measures while it starts.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import meminfo
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError

GIB = 2**30
HELP = "write out and drop the page cache, dentries and inodes"


@dataclass(frozen=True)
class Dropped:
    """Memory before and after, in bytes by the names of /proc/meminfo."""

    before: dict[str, int]
    after: dict[str, int]

    def __str__(self) -> str:
        parts = [
            f"{name} {self.before.get(name, 0) / GIB:.1f} -> {self.after.get(name, 0) / GIB:.1f} GiB"
            for name in ("MemAvailable", "MemFree", "Cached")
        ]
        return f"Caches dropped: {', '.join(parts)}"


def drop(root: str = "/", sync: Callable[[], None] = os.sync) -> Dropped:
    """Sync first, because only clean pages can be dropped; then 3: page cache, dentries, inodes (kernel, sysctl/vm).

    Raises :class:`SparkError` where it is not permitted.
    """
    path = Path(root) / "proc/sys/vm/drop_caches"
    before = meminfo.read(root)
    sync()
    try:
        path.write_text("3\n", encoding="ascii")
    except OSError as exc:
        raise SparkError(
            f"cannot drop the caches: {exc.strerror}",
            str(path),
            "Run as root; inside a container the file may be read-only, then drop them on its host",
        ) from exc
    return Dropped(before, meminfo.read(root))


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quiet", action="store_true", help="print nothing on success")


def run(arguments: argparse.Namespace) -> int:
    try:
        dropped = drop()
    except SparkError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    if not arguments.quiet:
        sys.stdout.write(f"{dropped}\n")
    return 0
