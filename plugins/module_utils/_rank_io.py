# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the ranks of this node have read and written, for people who wait for a long load.

From ``/proc/<pid>/io`` (proc(5)): ``rchar`` counts every read(2), whatever file system and cache it comes from, and no
page of a mapped file; ``read_bytes`` counts what came from a device, mapped files too, and nothing from the cache. The
greater one is a lower bound of what was read. A rank is the process that has read most: its helpers, and what they
read of Python, stay out. The memory of a rank tells nothing: engines reserve room for all weights before they read any.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def read(marks: Mapping[str, str], root: str = "/") -> dict[str, tuple[int, int]]:
    """``{unit: (bytes read, bytes written)}``. ``marks``: what the control groups of a unit's processes contain.

    A unit without processes, or whose counters may not be read, is left out.
    """
    found: dict[str, tuple[int, int]] = {}
    for process in (Path(root) / "proc").glob("[0-9]*") if marks else ():
        groups = _text(process / "cgroup")
        for unit, mark in marks.items():
            counters = _counters(_text(process / "io")) if mark in groups else {}
            if counters:
                before = found.get(unit, (0, 0))
                read_most = max(before[0], counters.get("rchar", 0), counters.get("read_bytes", 0))
                written = max(before[1], counters.get("wchar", 0), counters.get("write_bytes", 0))
                found[unit] = (read_most, written)
    return found


def _counters(text: str) -> dict[str, int]:
    pairs = (line.partition(":")[::2] for line in text.splitlines())
    return {name.strip(): int(value) for name, value in pairs if value.strip().isdigit()}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # it has ended
        return ""
