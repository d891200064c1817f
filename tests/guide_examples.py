# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The examples in README, docs/ and the roles' READMEs: fenced blocks, and the commands in them.

The first word after the fence says what a block is; `run=site` after it that the Molecule scenario `site` runs it.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parents[1]
GUIDES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("roles/*/README.md"))]
FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    place: str  # file:line
    kind: str
    marks: str  # what stands after the kind
    text: str


@dataclass(frozen=True)
class Command:
    place: str
    text: str
    marks: str


def blocks(*kinds: str) -> list[Block]:
    found = []
    for path in GUIDES:
        page = path.read_text(encoding="utf-8")
        for match in FENCE.finditer(page):
            kind, _, marks = match["info"].partition(" ")
            line = page.count("\n", 0, match.start()) + 1
            found.append(Block(f"{path.relative_to(ROOT)}:{line}", kind, marks, match["text"]))
    return [block for block in found if not kinds or block.kind in kinds]


def commands(block: Block) -> Iterator[Command]:
    """Lines after a prompt; what follows without one is output."""
    for match in re.finditer(r"^\$ ((?:[^\n]*\\\n)*[^\n]*)$", block.text, re.MULTILINE):
        line = int(block.place.rpartition(":")[2]) + 1 + block.text.count("\n", 0, match.start())
        text = match[1].replace("\\\n", " ")
        yield Command(f"{block.place.rpartition(':')[0]}:{line}", re.sub(r"\s+# .*", "", text), block.marks)
