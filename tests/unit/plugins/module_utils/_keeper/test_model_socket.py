# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Where asked for a model reach the keeper."""

from __future__ import annotations

import json
import os
import socket

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import at_hand
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.at_hand import AtHand
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import by_name, model_socket
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.by_name import Broken, Models
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.model_socket import ModelSocket
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.store import Store


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "run/sparkmatrix").mkdir(parents=True)
    monkeypatch.setattr(model_socket, "allowed", lambda _connection: True)
    made = ModelSocket("one", machine=Machine(str(tmp_path), now=lambda: 1000.0))
    made.models = Models("one", took={"two": 50.0}, broken={"three": Broken("p", 990.0, "no weights")})
    made.plans = dict.fromkeys(("one", "two", "three"), "p")
    made.serves_since = 100.0
    return made


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b'{"model": "one"}',
        b"one\n",
        b"[]\n",
        b'{"model": 1}\n',
        b'{"model": "a b"}\n',
        b'{"model": "one", "key": "x"}\n',
        b'{"model": "' + b"a" * model_socket.MAX_BYTES + b'"}\n',
    ],
)
def test_a_question_names_one_model_and_nothing_else(line):
    with pytest.raises(SparkError, match="no question for a model"):
        model_socket.question(line)
    assert model_socket.question(b'{"model": "Org/one"}\n').model == "Org/one"


def ask(place, text):
    with socket.socket(socket.AF_UNIX) as way:
        way.settimeout(5)
        way.connect(place)
        way.sendall(text)
        return way.makefile().read()


def test_over_the_socket(here, tmp_path):
    (tmp_path / "run/sparkmatrix/models.sock").write_text("what a keeper before has left")
    here.plans, known = {}, here.plans
    here.look = lambda: here.__dict__.update(plans=known)
    here.begin()
    place = str(tmp_path / "run/sparkmatrix/models.sock")
    for model in ("one", "two", "three", "four"):
        assert ask(place, b'{"model": "%s"}\n' % model.encode()) == ""
    assert [here.shown(model).state for model in ("one", "two", "three", "four")] == [
        "serving",
        "queued",
        "broken",
        "unknown",
    ]
    assert ask(place, b"x\n") == ""
    with pytest.raises(ConnectionError):  # too long to be read
        ask(place, b"x" * 5000)
    assert set(here.asked) == {"one", "two", "three"}
    with socket.socket(socket.AF_UNIX) as silent:  # whoever says nothing keeps nobody waiting for long
        silent.connect(place)
        here.asked = {}
        ask(place, b'{"model": "one"}\n')
        assert set(here.asked) == {"one"}


def test_who_may_ask_is_told_by_the_kernel(monkeypatch):
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert model_socket.allowed(ours) == (os.getuid() == 0)
        told = model_socket._CREDENTIALS.pack(1, 990, 991)

        class Connection:
            def getsockopt(self, *_asked):
                return told

        assert not model_socket.allowed(Connection())
        monkeypatch.setattr(model_socket.grp, "getgrnam", lambda _name: type("Group", (), {"gr_gid": 991}))
        assert model_socket.allowed(Connection())


def test_whoever_may_not_ask_cannot_even_knock(here, tmp_path, monkeypatch):
    """The relay's group may be made after the socket; meanwhile it is root's alone."""

    def group(_name):
        if not groups:
            raise KeyError
        return type("Group", (), {"gr_gid": groups[0]})

    groups = []
    monkeypatch.setattr(model_socket.grp, "getgrnam", group)
    here.begin()
    place = tmp_path / "run/sparkmatrix/models.sock"
    assert place.stat().st_mode & 0o777 == 0o600
    groups.append(os.getgroups()[0] if os.getuid() else 54321)
    before = os.getegid()
    here._let_in()
    assert (place.stat().st_mode & 0o777, place.stat().st_gid) == (0o660, groups[0])
    assert os.getegid() == before


def test_a_question_for_another_model_is_news(here):
    """For a loop that would look in a while; once, however often it is asked."""
    here.ask_for("one")
    assert not here.news.is_set()
    here.ask_for("two")
    assert here.news.is_set()
    here.wait(60)
    here.ask_for("two")
    assert not here.news.is_set()


def test_a_request_lasts_as_long_as_somebody_repeats_it(here):
    here.ask_for("two")
    here.machine.now = lambda: 1000.0 + by_name.ASKED_S
    here.ask_for("two")
    assert here.asked["two"] == by_name.Asked(1000.0, 1000.0 + by_name.ASKED_S)
    here.machine.now = lambda: 1001.0 + 2 * by_name.ASKED_S
    here.ask_for("two")
    assert here.asked["two"].first == 1001.0 + 2 * by_name.ASKED_S
    here.ask_for("nobody's")
    assert set(here.asked) == {"two"}


def test_the_list_of_models_is_a_file_for_everybody(here, tmp_path):
    here.tell()
    place = tmp_path / "run/sparkmatrix/models.json"
    assert place.stat().st_mode & 0o777 == 0o644
    told = json.loads(place.read_text())
    assert told["object"] == "list"
    assert [(one["id"], one["object"], one["state"], one["seconds"]) for one in told["data"]] == [
        ("one", "model", "serving", 0.0),
        ("two", "model", "absent", 50.0),
        ("three", "model", "broken", None),
    ]
    assert "no weights" not in place.read_text()  # what a journal says is not for clients
    before = place.stat().st_ino
    here.tell()
    assert place.stat().st_ino == before
    Store(str(tmp_path)).forget()
    assert not list(place.parent.iterdir())


def test_what_a_run_has_changed_is_seen(here, monkeypatch):
    found = {"one": AtHand("one", "p", {}), "two": AtHand("two", "p", {})}
    asked = []
    monkeypatch.setattr(at_hand, "listed", lambda _machine: asked.append(1) or found)
    changed = [5, 5, 6, 6, 0]
    monkeypatch.setattr(Machine, "changed", lambda *_asked: changed.pop(0))
    assert here.look() == here.look() == {"one": "p", "two": "p"}
    del found["two"]
    assert here.look() == {"one": "p"}
    del found["one"]
    assert here.look() == {"one": "p"}
    assert here.look() == {"one": ""}
    assert len(asked) == 2


def test_without_models_by_name_there_is_one(here):
    here.plans = {}
    assert here.look() == {"one": ""}
    assert here.shown("one").state == by_name.SERVING
