# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths

ROOT = Path(__file__).resolve().parents[5]
KNOWN = {value for name, value in vars(paths).items() if name.isupper()}
OURS = re.compile(r"/(?:etc|var/lib|usr/local/lib)/sparkmatrix(?:/[\w.-]+)*")
SOURCES = [
    path
    for folder in ("module_utils", "plugin_utils", "action")
    for path in sorted((ROOT / "plugins" / folder).rglob("*.py"))
    if path.name != "paths.py"
]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "plugins")))
def test_paths_are_put_together_from_those_of_one_place(source: Path) -> None:
    texts = [node.value for node in ast.walk(ast.parse(source.read_text())) if isinstance(node, ast.Constant)]
    # A docstring is a sentence: it may name a path, and begins with none.
    own = [
        text for text in texts if isinstance(text, str) and text.startswith((paths.ETC, paths.STATE, f"{paths.RUN}/"))
    ]
    units = [text for text in texts if isinstance(text, str) and re.match(rf"{paths.UNITS}(/|$)", text)]
    assert own + units == []


def test_roles_and_playbooks_name_no_other_paths() -> None:
    files = [
        *ROOT.glob("roles/*/vars/*.yml"),
        *ROOT.glob("roles/*/tasks/**/*.yml"),
        *ROOT.glob("playbooks/**/*.yml"),
    ]
    found = {
        (str(path.relative_to(ROOT)), named)
        for path in files
        for line in path.read_text().splitlines()
        if not line.lstrip().startswith("#")
        for named in OURS.findall(line)
    }
    assert found, "they name some"
    below = tuple(f"{one}/" for one in KNOWN - {paths.ETC, paths.STATE})
    assert {one for one in found if one[1] not in KNOWN and not one[1].startswith(below)} == set()
