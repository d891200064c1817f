# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The processes of the ranks of this node: which there are, and what they have read and written.

An engine may go on without a rank that has died, so the keeper looks at the processes themselves. What they have read
is for people who wait for a long load. From ``/proc/<pid>/io`` (proc(5)): ``rchar`` counts every read(2), whatever file
system and cache it comes from, and no page of a mapped file; ``read_bytes`` counts what came from a device, mapped
files too, and nothing from the cache. The greater one is a lower bound of what was read. The process that has read most
counts: helpers, and what they read of Python, stay out. The memory of a rank tells nothing: engines reserve room for
all weights before they read any.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import engine_signs

# How processes are called without which an engine is not whole; in Ray vLLM's are RayWorkerWrapper or RayWorkerProc
# (0.20 to 0.33).
TITLES = ("ray::RayWorker", *(signs.title for signs in engine_signs.ENGINES if signs.title))
OLD_S = 10.0  # what lives for shorter is no rank, but a helper that was forked from one


@dataclass
class Unit:
    """Of one unit. ``read`` and ``written`` in bytes; ``ranks``: name by id (see :func:`alive`)."""

    read: int = 0
    written: int = 0
    ranks: dict[str, str] = field(default_factory=dict)


def look(marks: Mapping[str, str], root: str = "/") -> dict[str, Unit]:
    """``marks``: what the control groups of a unit's processes contain.

    A unit without processes, or whose counters may not be read, is left out.
    """
    found: dict[str, Unit] = {}
    born = _uptime(root) - OLD_S
    for process in (Path(root) / "proc").glob("[0-9]*") if marks else ():
        groups = _text(process / "cgroup")
        for name, mark in marks.items():
            counters = _counters(_text(process / "io")) if mark in groups else {}
            if counters:
                unit = found.setdefault(name, Unit())
                unit.read = max(unit.read, counters.get("rchar", 0), counters.get("read_bytes", 0))
                unit.written = max(unit.written, counters.get("wchar", 0), counters.get("write_bytes", 0))
                unit.ranks.update(_rank(process, born))
    return found


def alive(ident: str, root: str = "/") -> bool:
    """``ident``: the number of a process and when it was started, since numbers are used again."""
    number, started = ident.split("-")
    state, _parent, found = _stat(Path(root) / "proc" / number)
    return state not in ("", "Z", "X") and found == started


def _rank(process: Path, born: float) -> dict[str, str]:
    """``born``: before which time, in seconds since boot. A helper is called as the rank that has forked it."""
    title = _title(process)
    if not title.startswith(TITLES):
        return {}
    state, parent, started = _stat(process)
    if not state or int(started) / os.sysconf("SC_CLK_TCK") > born:
        return {}
    return {} if _kind(title) == _kind(_title(process.parent / parent)) else {f"{process.name}-{started}": title}


def _uptime(root: str) -> float:
    fields = _text(Path(root) / "proc/uptime").split()
    return float(fields[0]) if fields else 0.0


def _kind(title: str) -> str:
    """Ray adds the method that runs."""
    return title.partition(".")[0]


def _title(process: Path) -> str:
    return _text(process / "cmdline").replace("\0", " ").strip()


def _stat(process: Path) -> tuple[str, str, str]:
    """State, parent, and start time in ticks since boot; empty where it has ended (proc(5))."""
    fields = _text(process / "stat").rpartition(")")[2].split()
    return (fields[0], fields[1], fields[19]) if len(fields) > 19 else ("", "", "")


def _counters(text: str) -> dict[str, int]:
    pairs = (line.partition(":")[::2] for line in text.splitlines())
    return {name.strip(): int(value) for name, value in pairs if value.strip().isdecimal()}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # it has ended
        return ""
