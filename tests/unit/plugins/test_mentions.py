# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Comments and docstrings name utilities as ``_room.file`` or ``_room.file.Name``: what they name is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PLUGINS = Path(__file__).resolve().parents[3] / "plugins"
UTILITIES = [PLUGINS / "module_utils", PLUGINS / "plugin_utils"]
ROOMS = "|".join(sorted({path.name for folder in UTILITIES for path in folder.glob("_*") if path.is_dir()}))
MENTION = re.compile(rf":(?:mod|func|class|data|meth):`(_[a-z][\w.]*\.[\w.]+)`|``((?:{ROOMS})\.[\w.]+)``")


def exists(mention: str) -> bool:
    words = mention.split(".")
    if any(folder.joinpath(*words).is_dir() for folder in UTILITIES):
        return True
    for count in range(2, len(words) + 1):
        for path in (folder.joinpath(*words[:count]).with_suffix(".py") for folder in UTILITIES):
            if path.is_file():
                return words[count : count + 1] in ([], *([name] for name in names(path)))
    return False


def names(path: Path) -> list[str]:
    found = []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.append(node.name)
        elif isinstance(node, ast.Assign):
            found += [target.id for target in node.targets if isinstance(target, ast.Name)]
    return found


@pytest.mark.parametrize("source", sorted(PLUGINS.rglob("*.py")), ids=lambda path: str(path.relative_to(PLUGINS)))
def test_what_is_mentioned_is_there(source: Path) -> None:
    found = {first or second for first, second in MENTION.findall(source.read_text())}
    assert {mention for mention in found if not exists(mention)} == set()
