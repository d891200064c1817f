# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""``sparkmatrix-node prefixes``: what an engine keeps of prompts on disk is its own, of these files, and not too much.

It stands beside an engine, as the same user: ready before the engine starts, ended with it. Before: what it must not
read is gone. Another model, version or split has a directory of its own. While it runs: the directory stays below its
limit, the oldest files go first, since vLLM's tier for files removes none (0.33).
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import signal
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError, printable
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine, remove
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.systemd import notify

HELP = "keep an engine's prefix cache on disk its own, and below its limit"
GB = 10**9
FREE = 20  # of the disk a twentieth stays free, whatever the limit
LOWERED = 0.9  # of the limit, to which files are removed once it is reached
POLL_S, SCAN_S = 3.0, 120.0  # how often the disk is asked what is free, and the files at the latest
WRITTEN_S = 60.0  # after which the kernel has written what was given to it
MARK = ".of.json"  # behind a key: from what its files were computed, and since which boot of the machine
BOOT, ENDED = "/proc/sys/kernel/random/boot_id", "ended"


@dataclass(frozen=True)
class Kept:
    """``base``: the service's own directory; the engine writes below ``base/key``."""

    base: str
    key: str
    limit: int  # bytes
    unit: str  # of the engine
    model: Sequence[str] = ()  # directories whose files it reads
    mark: str = ""  # what else decides what is written, and is known on the node only


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("base", metavar="DIRECTORY")
    parser.add_argument("--key", required=True, help="what cannot be read by another engine, model or split")
    parser.add_argument("--limit-gb", required=True, type=int)
    parser.add_argument("--unit", required=True, help="of the engine")
    parser.add_argument("--model", action="append", default=[], metavar="DIRECTORY", help="that it reads")
    parser.add_argument("--mark", default="", help="what else decides what is written: the image's id")


def run(arguments: argparse.Namespace) -> int:
    given = {name: getattr(arguments, name) for name in ("base", "key", "unit", "model", "mark")}
    kept, machine = Kept(limit=arguments.limit_gb * GB, **given), Machine()
    try:
        said = prepare(kept, machine)
    except SparkError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    try:
        signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))
        sys.stdout.write("".join(f"{line}\n" for line in said))
        sys.stdout.flush()
        notify("READY=1")
        watch(kept, machine)
    finally:
        try:
            end(kept, machine)
        except SparkError as exc:  # whoever stops it twice ends what it asks systemd with
            sys.stderr.write(f"{exc}\n")


# --- before a start ---


def prepare(kept: Kept, machine: Machine) -> list[str]:
    """What is said of it. Raises :class:`SparkError` where others' files cannot be removed: they must not be read."""
    base, said = machine.real(kept.base), []
    starts = not _runs(kept, machine)  # else files are those of the engine that runs, whatever the model's are now
    try:
        if starts:
            boot, models = machine.text(BOOT) or "", [_seen(machine.real(one)) for one in kept.model]
            mine = {"mark": kept.mark, "models": models}
            same = _marked(base, kept.key) in [{**mine, "boot": boot}, {**mine, "boot": ENDED}]
            said = _remove_others(kept, base, same)
        total, files = bound(kept, machine)  # where the disk is full, room for what follows
        if starts:
            os.makedirs(os.path.join(base, kept.key), mode=0o700, exist_ok=True)
            with contextlib.suppress(OSError):  # what is left without it is nobody's
                _note(base, kept.key, {**mine, "boot": boot})
    except OSError as exc:
        raise SparkError(
            f"what must not be read cannot be removed, or its place not be made ({exc.strerror})",
            kept.base,
            "Remove the directory, or set prefix_cache_gb: 0 for this service",
        ) from exc
    return [*said, f"{total / GB:.1f} GB of computed prompts in {files} files, of at most {kept.limit / GB:.0f} GB"]


def _remove_others(kept: Kept, base: str, same: bool) -> list[str]:
    """What others have computed stays, and goes first where room is needed: each is judged when it starts again."""
    said = []
    for name in sorted(os.listdir(base)):
        path, of = os.path.join(base, name), name[: -len(MARK)] if name.endswith(MARK) else name
        own = os.path.join(base, of)
        whole = os.path.isdir(own) and not os.path.islink(own) and os.path.isfile(f"{own}{MARK}")
        if whole and (same or of != kept.key):
            continue
        directory = os.path.isdir(path) and not os.path.islink(path)
        remove(path)
        if directory:
            why = "it was computed from other files, or before the machine went down without an end"
            said.append(f"Removed {kept.base}/{printable(name)}: {why}")
    return said


def _marked(base: str, key: str) -> object:
    path = os.path.join(base, f"{key}{MARK}")
    if not os.path.isfile(path):  # a pipe would be read for ever
        return None
    with contextlib.suppress(OSError, ValueError, SparkError), open(path, "rb") as stream:
        return json_text.read(stream.read())
    return None


def _note(base: str, key: str, mark: object) -> None:
    with open(os.path.join(base, f"{key}{MARK}"), "w", encoding="utf-8") as stream:
        json.dump(mark, stream)
        stream.flush()
        os.fsync(stream.fileno())


def _seen(directory: str) -> str:
    """By names, links, sizes and times. Of one that is not there nothing can be said, so nothing is kept for it."""
    if not os.path.isdir(directory):
        return os.urandom(16).hex()
    digest = hashlib.sha256()
    for here, folders, names in os.walk(directory):
        folders.sort()
        for name in sorted([*names, *(one for one in folders if os.path.islink(os.path.join(here, one)))]):
            path = os.path.join(here, name)
            with contextlib.suppress(OSError):
                status = os.lstat(path)
                link = os.readlink(path) if stat.S_ISLNK(status.st_mode) else f"{status.st_size} {status.st_mtime_ns}"
                digest.update(f"{os.path.relpath(path, directory)}\0{link}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


# --- while it runs ---


def watch(kept: Kept, machine: Machine) -> NoReturn:
    """Until it is ended. Files are looked at when so much may have come that the limit is reached."""
    free, room, looked = 0, -1, 0.0
    while True:
        now = _free(machine.real(kept.base))
        if room < 0 or free - now >= room or machine.clock() - looked >= SCAN_S:
            total, _files_there = bound(kept, machine)
            free, looked = _free(machine.real(kept.base)), machine.clock()
            room = max(0, limit(kept, total, free) - total) // 2
        machine.sleep(POLL_S)


def limit(kept: Kept, total: int, free: int) -> int:
    """Bytes that may lie there: what was asked for, as far as a twentieth of the disk stays free."""
    return max(0, min(kept.limit, total + free))


def bound(kept: Kept, machine: Machine) -> tuple[int, int]:
    """(bytes, files) that are left. The oldest go first, by when they were last written or read."""
    base = machine.real(kept.base)
    files = sorted((used, path, size) for path, size, used in _files(base) if not path.endswith(MARK))
    total, left = sum(size for _used, _path, size in files), len(files)
    most = limit(kept, total, _free(base))
    for _used, path, size in files if total > most else ():
        if total <= most * LOWERED:
            break
        if _unlink(path):
            total, left = total - size, left - 1
            with contextlib.suppress(OSError):  # others are in it
                os.rmdir(os.path.dirname(path))
    return total, left


def _files(base: str) -> Iterator[tuple[str, int, float]]:
    """(path, bytes on the disk, when it was last used) of every file that is one; no link is followed."""
    for here, _folders, names in os.walk(base):
        for name in names:
            path = os.path.join(here, name)
            with contextlib.suppress(OSError):
                status = os.lstat(path)
                if not stat.S_ISREG(status.st_mode):
                    continue
                yield path, status.st_blocks * 512, max(status.st_atime, status.st_mtime)


def _free(base: str) -> int:
    status = os.statvfs(base)
    return status.f_frsize * (status.f_bavail - status.f_blocks // FREE)


# --- after it ---


def end(kept: Kept, machine: Machine) -> None:
    """What was written last is on the disk before it is noted that nothing is missing: nobody looks at what is in the
    files, and after a loss of power they could hold zeros."""
    if _runs(kept, machine):
        return
    base = machine.real(kept.base)
    for path, _size, used in _files(base):
        if machine.now() - used < WRITTEN_S:
            with contextlib.suppress(OSError), open(path, "rb") as stream:
                os.fsync(stream.fileno())
    mark = _marked(base, kept.key)
    if isinstance(mark, dict):
        _note(base, kept.key, {**mark, "boot": ENDED})


def _runs(kept: Kept, machine: Machine) -> bool:
    return not machine.unit(kept.unit).stopped


def _unlink(path: str) -> bool:
    try:
        os.unlink(path)
    except OSError:
        return False
    return True
