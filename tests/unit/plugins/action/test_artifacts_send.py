# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A model goes from the controller to a node: the action, and the program of the node behind a connection."""

from __future__ import annotations

import contextlib
import io
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.action import artifacts_send
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import importing, look, program, work
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.cache import Cache
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths
from model_manifest import CONTENT, NAME
from module_runner import action, run_program


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for path, content in CONTENT.items():
        (tmp_path / "model" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "model" / path).write_bytes(content)
    return tmp_path / "model"


class Node:
    """``steps``: how it was called. ``dies_at``: the call at which the connection is lost."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[list[str]] = []
        self.dies_at = 0
        self._monkeypatch = monkeypatch

    def command(self, command: str, in_data: bytes) -> dict[str, object]:
        self.steps.append(shlex.split(command))
        if len(self.steps) == self.dies_at:
            raise OSError("the connection is lost")
        node, artifacts, *argv = self.steps[-1]
        assert (node, artifacts) == (paths.NODE_PROGRAM, "artifacts")
        out, err = io.StringIO(), io.StringIO()
        with self._monkeypatch.context() as there, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            there.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(in_data)))
            rc = run_program(program, *argv)
        return {"rc": rc, "stdout": out.getvalue(), "stderr": err.getvalue()}


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(work, "keep", lambda *_words: None)
    monkeypatch.setattr(work, "alone", contextlib.nullcontext)
    monkeypatch.setattr(work, "make_way", lambda *_words: None)
    monkeypatch.setattr(artifacts_send, "AT_ONCE", 8192)
    return Node(monkeypatch)


def send(node: Node, model: Path, home: Path, check: bool = False, **options: object) -> dict[str, object]:
    plugin = action(artifacts_send, {"home": str(home), "name": NAME, "path": str(model), **options}, check=check)
    plugin._low_level_execute_command = node.command
    return plugin.run(task_vars={"inventory_hostname": "spark1"})


def test_a_model_is_sent_in_pieces(node: Node, model: Path, tmp_path: Path) -> None:
    sent = send(node, model, tmp_path / "home")
    assert sent["changed"] and sent["result"]["digest"], sent
    assert sent["sent"] == sum(map(len, CONTENT.values()))
    assert look.held(Cache(str(tmp_path / "home")), NAME, "").state == look.WHOLE
    assert len([step for step in node.steps if "take" in step]) == 2  # of 15,000 bytes
    again = send(node, model, tmp_path / "home")
    assert not again["changed"] and again["sent"] == 0


def test_looking_and_checking_ask_no_node(node: Node, model: Path, tmp_path: Path) -> None:
    for options in ({"state": "looked"}, {"check": True}):
        seen = send(node, model, tmp_path / "home", **options)
        assert seen["listing"]["size"] == seen["listing"]["copied"] == sum(map(len, CONTENT.values()))
        assert seen["listing"]["hub"] == f"{model} on this computer"
        assert not seen["changed"] and not node.steps


def test_what_was_sent_before_the_connection_was_lost_is_not_sent_again(
    node: Node, model: Path, tmp_path: Path
) -> None:
    node.dies_at = 3  # begin, and once a piece
    lost = send(node, model, tmp_path / "home")
    assert lost["failed"] and "the connection is lost" in lost["msg"]
    node.dies_at = 0
    sent = send(node, model, tmp_path / "home")
    assert sent["changed"] and sent["sent"] == sum(map(len, CONTENT.values())) - artifacts_send.AT_ONCE


def test_what_is_wrong_is_said_with_where(
    node: Node, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = send(node, model / "x", tmp_path / "home")
    assert nowhere["failed"] and nowhere["msg"].startswith("this computer: ") and "no such directory" in nowhere["msg"]
    read = importing.read
    monkeypatch.setattr(importing, "read", lambda *words: b"!" + read(*words)[1:])
    changed = send(node, model, tmp_path / "home")
    assert changed["failed"] and changed["msg"].startswith("spark1: ")
    assert "is not what was announced" in changed["msg"]
    node.command = lambda _command, in_data: {"rc": 137, "stdout": "", "stderr": "Killed\n" if in_data else ""}
    killed = send(node, model, tmp_path / "home")
    assert (
        "spark1: the program that takes the model there ended with 137 and said: Killed. Run it again" in killed["msg"]
    )


@pytest.mark.parametrize("answer", ["", "no JSON", "{}", "7", "[" * 3000])
def test_a_node_that_answers_something_else_is_named(node: Node, model: Path, tmp_path: Path, answer: str) -> None:
    node.command = lambda _command, in_data: {"rc": 0, "stdout": answer, "stderr": ""}
    told = send(node, model, tmp_path / "home")
    assert told["failed"] and "ended with 0 and said: " in str(told["msg"])
