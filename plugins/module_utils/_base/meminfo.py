# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""``/proc/meminfo`` (proc(5)) in bytes."""

from __future__ import annotations

import re
from pathlib import Path

_LINE = re.compile(r"([A-Za-z][\w()]*):\s+([0-9]{1,18})(?: (kB))?\s*")


def parse(text: str) -> dict[str, int]:
    """``{"MemTotal": 130663829504, ...}``: bytes, except for the few lines that count pages. Odd lines are skipped."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match:
            found[match.group(1)] = int(match.group(2)) * (1024 if match.group(3) else 1)
    return found


def read(root: str = "/") -> dict[str, int]:
    """The memory of this machine now; empty when there is no ``/proc``."""
    try:
        return parse((Path(root) / "proc/meminfo").read_text(encoding="ascii", errors="replace"))
    except OSError:
        return {}
