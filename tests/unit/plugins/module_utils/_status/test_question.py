# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""``sparkmatrix ask``: an answer as it comes, by an engine that answers well or badly."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils import _node_program
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.engine_json import Description
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Member
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._status import question
from fake_engine import KEY, MODEL, fake_engine


@pytest.fixture
def head(tmp_path, monkeypatch):
    monkeypatch.setattr(question.os, "geteuid", lambda: 0)
    monkeypatch.setattr(question.keeper_status, "kept", lambda: [])
    (tmp_path / "etc/sparkmatrix").mkdir(parents=True)
    (tmp_path / "key.env").write_text(f'VLLM_API_KEY="{KEY}"\n')

    def run(port, *words, **values):
        member = Member("spark1", 0, "a", True, True)
        told = Description("127.0.0.1", port, MODEL, str(tmp_path / "key.env"), ("u",), (member,), **values)
        (tmp_path / "etc/sparkmatrix/engine.json").write_text(json.dumps(told.as_dict()))
        return question.run(_node_program.parser("ask").parse_args(["ask", *words]), str(tmp_path))

    return run


def stdin(monkeypatch, data):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_the_answer_and_a_quiet_line(head, capsys):
    with fake_engine() as engine:
        assert head(engine.port, "what", "is this?") == 0
    shown = capsys.readouterr()
    assert shown.out == "w0 \n"
    assert shown.err.startswith(f"-- {MODEL}: 1 token in ") and "tokens/s, the first after" in shown.err
    body = engine.requests[0][2]
    assert body["messages"] == [{"role": "user", "content": "what is this?"}]
    assert not {"max_tokens", "ignore_eos"} & set(body)


def test_the_question_of_standard_input(head, monkeypatch, capsys):
    stdin(monkeypatch, "wie heißt\ndu?\n".encode())
    with fake_engine() as engine:
        assert head(engine.port, "--model", MODEL) == 0
    assert engine.requests[0][2]["messages"][0]["content"] == "wie heißt\ndu?"
    capsys.readouterr()
    stdin(monkeypatch, b" \n")
    assert head(1) == 2
    assert "There is no question" in capsys.readouterr().err
    monkeypatch.setattr(question.probe, "MAX_BODY", 3)
    stdin(monkeypatch, b"long")
    assert head(1) == 1
    assert "longer than 3 bytes" in capsys.readouterr().err


def test_thoughts_are_not_shown_and_nothing_acts_on_the_terminal(head, monkeypatch, capsys):
    with fake_engine("thinking") as engine:
        assert head(engine.port, "2 + 2?") == 0
        shown = capsys.readouterr()
        assert shown.out == "It is \\x1b[2J4\n" and "thinking" not in shown.err
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        monkeypatch.setenv("NO_COLOR", "1")
        assert head(engine.port, "2 + 2?") == 0
    note = question.NOTE
    assert capsys.readouterr().err.startswith(f"{note}\r{' ' * len(note)}\r-- {MODEL}")


def test_thoughts_alone_are_no_answer(head, capsys):
    with fake_engine("reasoning") as engine:
        assert head(engine.port, "?") == 1
    assert "said nothing (1 token in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("404", "does not exist. The running engine is not the planned one"),
        ("500", "EngineCore encountered an issue. How it is: sudo sparkmatrix status"),
        ("cut", "the answer ends in the middle"),
    ],
)
def test_no_answer(head, capsys, mode, says):
    with fake_engine(mode) as engine:
        assert head(engine.port, "?") == 1
    shown = capsys.readouterr()
    assert says in shown.err and not shown.out


def test_half_an_answer(head, capsys):
    with fake_engine("cut later") as engine:
        assert head(engine.port, "?") == 1
    shown = capsys.readouterr()
    assert shown.out == "w0 \n" and "no whole answer" in shown.err


def test_who_loads_is_named_by_its_keeper(head, monkeypatch, capsys):
    def check(_instance):
        raise SparkError("it does not serve: starting: loads", "u", "See how it goes on: sudo sparkmatrix status")

    monkeypatch.setattr(question.keeper_status, "kept", lambda: [""])
    monkeypatch.setattr(question.keeper_status, "check", check)
    assert head(1, "?") == 1
    assert capsys.readouterr().err == (
        "u: it does not serve: starting: loads. See how it goes on: sudo sparkmatrix status.\n"
    )


@pytest.mark.parametrize(("task", "path"), [("embed", "/embeddings"), ("rank", "/rerank")])
def test_a_model_that_answers_no_questions(head, capsys, task, path):
    assert head(1, "?", task=task) == 1
    said = capsys.readouterr().err
    assert "it answers no questions" in said and f'"$OPENAI_BASE_URL{path}"' in said and "env --model tiny" in said


def test_another_model(head, capsys):
    assert head(1, "--model", "big", "?") == 1
    assert "there is no model 'big'. There is: tiny" in capsys.readouterr().err


def test_only_root(head, monkeypatch, capsys):
    monkeypatch.setattr(question.os, "geteuid", lambda: 1000)
    assert head(1, "?") == 1
    assert "sudo sparkmatrix ask" in capsys.readouterr().err


def test_an_interrupted_answer_ends_quietly(head, monkeypatch, capsys):
    def ask(_target, _question, hear):
        hear("so far")
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(question.probe, "ask", ask)
    assert head(1, "?") == 130
    assert capsys.readouterr() == ("so far\n", "")


AS_ROOT = """
import os, sys
from ansible_collections.sparkmatrix.cluster.plugins.module_utils import _node_program
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._status import question
os.geteuid = lambda: 0
sys.exit(question.run(_node_program.parser("ask").parse_args(["ask", "?"]), sys.argv[1]))
"""


def test_nobody_reads_any_more(head, tmp_path, capsys):
    """Whoever read it has gone: the request ends, although no more of the answer comes, and nothing is said of it."""
    reading, writing = os.pipe()
    os.close(reading)
    with fake_engine("404") as engine:
        head(engine.port, "?")
        engine.mode = "hang"
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", AS_ROOT, str(tmp_path)],
            env={**os.environ, "PYTHONPATH": str(Path(_node_program.__file__).resolve().parents[2] / "collections")},
            stdout=writing,
            stderr=subprocess.PIPE,
            check=False,
        )
        assert (done.returncode, done.stderr) == (question.INTERRUPTED, b"")
        assert time.monotonic() - began < 10
    os.close(writing)
    capsys.readouterr()
