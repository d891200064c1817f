# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Who imports whom: a room can be read without those that read it."""

from __future__ import annotations

import ast
import pathlib
from collections import defaultdict

import pytest

PLUGINS = pathlib.Path(__file__).resolve().parents[2] / "plugins"


@pytest.mark.parametrize("side", ["module_utils", "plugin_utils"])
def test_no_two_rooms_import_each_other(side: str) -> None:
    imports: dict[str, set[str]] = defaultdict(set)
    for path in (PLUGINS / side).glob("*/**/*.py"):
        room = path.relative_to(PLUGINS / side).parts[0]
        for found in ast.walk(ast.parse(path.read_text())):
            if isinstance(found, ast.ImportFrom) and f".{side}." in (found.module or ""):
                imports[room].add(str(found.module).partition(f".{side}.")[2].partition(".")[0])
    assert len(imports) > 10
    pairs = [(room, other) for room, others in imports.items() for other in others if room < other]
    assert [(room, other) for room, other in pairs if room in imports.get(other, ())] == []
