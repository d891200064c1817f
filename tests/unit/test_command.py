# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The command ``sparkmatrix``: what it runs, asks and keeps. A whole first time: tests/scenarios/test_one_line.py."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._screen import verbs
from click.testing import CliRunner, Result
from sparkmatrix import head, play
from sparkmatrix import main as command
from sparkmatrix.main import main, playbooks

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(name="ran")
def _ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """Words of what would have been started; a home with one inventory."""
    started: list[list[str]] = []

    class Started:
        returncode = None
        stdout = None

        def __init__(self, words: list[str], **settings: Any) -> None:
            started.append([*words, *(os.read(pipe, 99).decode() for pipe in settings["pass_fds"])])

        def wait(self) -> None:
            self.returncode = 0

    monkeypatch.setattr(command, "PLACE", tmp_path / "sparkmatrix")
    monkeypatch.setattr(play, "subprocess", SimpleNamespace(Popen=Started, PIPE=-1))
    monkeypatch.setattr(head.Head, "sudo", lambda self: self.password or "")
    place = tmp_path / "sparkmatrix/mine"
    (place / "group_vars").mkdir(parents=True)
    (place / "hosts.yml").write_text(
        "all: {children: {sparks: {hosts: {s1: {ansible_host: 192.0.2.1, spark_rank: 0}}}}}\n"
    )
    (place / "group_vars/sparks.yml").write_text("# mine\nengine_recipe: qwen3-8b # 16 GB\n# more\n")
    yield started


def call(*words: str, text: str | None = None) -> Result:
    return CliRunner().invoke(main, list(words), input=text, standalone_mode=False)


def test_every_verb_is_a_playbook_and_stands_in_the_guide() -> None:
    """One to one: the verbs of the command, the table that runs are told by, the playbooks, and the page."""
    page = (ROOT / "docs/command.md").read_text()
    rows = re.findall(r"^\| `([a-z]+)[^|`]*` \| ([^|]+) \|", page, re.MULTILINE)
    told = {verb: re.findall(r"`([a-z_]+)\.yml`", where) for verb, where in rows}
    assert set(told) == set(main.commands)
    played = {verb: [playbook] for verb, (playbook, _help) in verbs.PLAYED.items()} | {"init": [*verbs.FIRST]}
    assert {verb: books[:2] for verb, books in told.items() if books and verb != "up"} == {
        verb: books for verb, books in played.items() if verb != "up"
    }
    assert "site" in told["up"]
    assert {playbook for books in played.values() for playbook in books} <= set(playbooks())


@pytest.mark.parametrize("verb", [verb for verb in verbs.PLAYED if verb not in ("plan", "models", "up", "run", "undo")])
def test_a_verb_prints_and_runs_its_playbook(ran: list[list[str]], verb: str) -> None:
    done = call(verb, "--limit", "s1", "-v")
    assert not done.exception, done.output
    ((program, name, *words),) = ran
    assert done.return_value == 0 and program.endswith("ansible-playbook")
    assert name == f"sparkmatrix.cluster.{verbs.PLAYED[verb][0]}"
    assert words == ["-i", str(command.PLACE / "mine"), "--limit", "s1", "-v"]
    assert f"$ ansible-playbook {name} -i " in done.output
