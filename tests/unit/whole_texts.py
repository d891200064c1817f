# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""All that is said in every case of a test, to be read as a whole: one fixture for many cases."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def read_whole(fixture: str, cases: Iterable[tuple[str, str]]) -> tuple[str, str]:
    """What is said, and what should be said. Written anew, to be read again: WRITE_FIXTURES=1 pytest -n0 …"""
    path = Path(__file__).parent / "fixtures/verdicts" / fixture
    text = "".join(f"# {name}\n{said}\n\n" for name, said in cases)
    if os.environ.get("WRITE_FIXTURES"):
        path.write_text(text)
    return text, path.read_text()


def of_verdicts(verdicts: Iterable[Any]) -> str:
    """Everything that a verdict has, as a reader of its document sees it."""
    lines = []
    for one in verdicts:
        limits = "".join(
            f", at {limit.kind} {limit.value:g} {limit.unit} ({limit.source}; {limit.owner})" for limit in one.limit
        )
        lines += [
            f"{one.outcome} {one.check} ({one.scope}) {' - '.join(one.hosts)} {one.device}: {one.value:g}{limits}",
            f"  {one.found}" + (f": {one.cause}" if one.cause else ""),
            *(f"  | {line}" for line in one.evidence),
            *([f"  > {one.remedy}"] if one.remedy else []),
        ]
    return "\n".join(line.rstrip() for line in lines)
