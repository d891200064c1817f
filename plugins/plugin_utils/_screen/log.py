# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Where the whole log of a run goes, and how many are kept."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TextIO

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import strict

KEPT = 20
ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def default_folder() -> Path:
    """Of the user and not of the checkout, which may be read-only, shared or swept into a commit."""
    state = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state) if state.startswith("/") else Path.home() / ".local/state") / "sparkmatrix/logs"


def from_home(text: str) -> str:
    """Paths in it as people write them."""
    return text.replace(f"{Path.home()}{os.sep}", f"~{os.sep}")


def create(folder: Path, playbook: str) -> TextIO:
    """A new file for this run, readable by its user only. Removes the oldest ones."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    stem = re.sub(r"[^\w.-]", "_", Path(playbook).stem) or "run"
    path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{stem}.log"
    stream = open(path, "x", buffering=1, encoding="utf-8", errors="replace", opener=_private)  # noqa: SIM115
    for old in sorted(folder.glob("[0-9]*-[0-9]*-*.log"))[:-KEPT]:
        old.unlink(missing_ok=True)
    return stream


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def plain(text: str) -> str:
    """Without colours, and harmless."""
    return strict.harmless(ESCAPES.sub("", text))
