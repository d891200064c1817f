# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What users read is in plain words: messages, help and documentation of plugins, arguments of roles, task names,
guides."""

from __future__ import annotations

import pathlib
import re

from . import words

ROOT = pathlib.Path(__file__).resolve().parents[2]
KINDS = {".py", ".yml", ".j2", ".js", ".md"}
READ = [
    *sorted(
        path
        for folder in ("plugins", "roles", "playbooks", "inventories", "molecule", "tools")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in KINDS and path.is_file()
    ),
    *sorted(ROOT.glob("*.yml")),
    ROOT / "Makefile",
    ROOT / "README.md",
    *sorted(ROOT.glob("docs/**/*.md")),
]
TASK_FILES = sorted([*(ROOT / "roles").glob("*/tasks/**/*.yml"), *(ROOT / "playbooks").rglob("*.yml")])
TASK = re.compile(r"^\s*- name: (?:\w+ \| )?(.+?)(?: # noqa.*)?$", re.MULTILINE)
# What a line of a run says on its own: not "Say it", "Place them", "Install it", "Report".
UNCLEAR_TASK = re.compile(
    r"(?:Say|See|Carry|Place|Forget|Leave|Lead|Note|Name|Hand)\b|\w+ (?:it|its|them|they|those)\b|(?!Reboot)\w+$"
)


def test_files_use_the_words_of_the_field() -> None:
    assert len(READ) > 400
    found = [f"{path.relative_to(ROOT)}:{line}" for path in READ for line in words.unclear(path.read_text("utf-8"))]
    assert found == []


def test_task_names_say_what_happens() -> None:
    names = [(path, name) for path in TASK_FILES for name in TASK.findall(path.read_text("utf-8"))]
    assert len(names) > 300
    assert [f"{path.relative_to(ROOT)}: {name}" for path, name in names if UNCLEAR_TASK.match(name)] == []
