# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import Names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import status
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.by_name import Models
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.pulse import Sign
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.store import Entry, Stop, Store

WHAT = "org/model at http://127.0.0.1:8000/v1"
STATE = {"phase": "serving", "detail": "it serves", "since": "t", "failures": 1, "start_limit": 5, "end": ""}
LOADING = {**STATE, "phase": "loading", "detail": "the ranks run"}
GAVE_UP = {**STATE, "phase": "gave_up", "detail": "no such model", "end": "gave_up"}
ALIVE, SILENT, STOPPED = Sign(7, 1.0), Sign(7, 41.0), Sign(7, 1.0, stopped=True)
GONE = Sign(6, 0.0)  # of a keeper that does not run any more
REFUSED = "http://127.0.0.1:8000: nothing listens there."


class Head:
    """A head with its keeper. ``asked``: how often the engine was asked."""

    def __init__(self, root: Path) -> None:
        self.store = Store(str(root))
        self.unit = "LoadState=loaded\nActiveState=active\n"
        self.sign: Sign | None = ALIVE
        self.answer, self.asked = "", 0

    def run(self, argv: Sequence[str]) -> Completed:
        return Completed(0, self.unit)

    def ask(self, _instance: str) -> str:
        self.asked += 1
        return self.answer

    def found(self, store: Store | None = None, unit: str = status.UNIT) -> status.Served:
        return status.collect(
            *(store or self.store, Machine(self.store.root, self.run)),
            unit=unit,
            sign=lambda _name: self.sign,
            ask=self.ask,
            what=lambda _name: WHAT,
        )


@pytest.fixture
def head(tmp_path: Path) -> Head:
    made = Head(tmp_path)
    made.store.write(print, **STATE)
    return made


@pytest.mark.parametrize(
    ("state", "sign", "answer", "told"),
    [
        (STATE, ALIVE, "", (0, f"serving: it serves {WHAT}\n")),
        (STATE, ALIVE, REFUSED, (1, f"Asked just now: {REFUSED}")),
        (LOADING, ALIVE, "", (1, "loading: the ranks run")),
        # A keeper that does not live says nothing about now.
        (
            STATE,
            SILENT,
            "",
            (3, f"nobody looks after the engine. It said last: serving: it serves {WHAT}"),
        ),
        (STATE, STOPPED, "", (3, "Asked just now: it answers")),
        (STATE, None, "", (3, "no sign of life, so")),
        (STATE, SILENT, REFUSED, (1, REFUSED)),
        (STATE, GONE, "", (3, "nobody starts the engine again")),
        (STATE, GONE, REFUSED, (1, "Begin anew: systemctl restart sparkmatrix-keeper.service")),
        (GAVE_UP, GONE, REFUSED, (1, "The keeper gave up: no such model")),
    ],
)
def test_what_monitoring_may_trust(
    head: Head, state: Mapping[str, Any], sign: Sign | None, answer: str, told: tuple[int, str]
) -> None:
    head.store.write(print, **state)
    head.sign, head.answer = sign, answer
    if sign is GONE:
        head.unit = "LoadState=loaded\nActiveState=inactive\n"
    found, (code, words) = head.found(), told
    assert found.code == code
    assert found.serving == (code == 0)
    assert words in status.text(found)


def test_what_is_served_where_is_read_from_the_description(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "engine.json"
    monkeypatch.setattr(Names, "description", property(lambda _self: str(place)))
    assert status.what("") == ""
    told = {"host": "127.0.0.1", "port": 8000, "model": "org/model", "key_file": "/none"}
    place.write_text(json.dumps(told))
    assert status.what("") == "org/model at http://127.0.0.1:8000"
    place.write_text(json.dumps({**told, "endpoint": "http://127.0.0.1:8000/v1"}))
    assert status.what("") == WHAT


def test_a_keeper_that_a_run_has_stopped_comes_back(head: Head, tmp_path: Path) -> None:
    timer = tmp_path / "run/systemd/transient/sparkmatrix-keeper-return.timer"
    timer.parent.mkdir(parents=True)
    timer.touch()
    head.unit = "LoadState=loaded\nActiveState=inactive\n"
    assert "goes on with that run, or by itself after it" in status.text(head.found())
    assert head.found().code == status.UNATTENDED


def test_an_engine_that_loads_is_not_asked(head: Head) -> None:
    head.store.write(print, **LOADING)
    assert head.found().answers is None
    assert head.asked == 0


def test_how_fast_the_last_start_read(head: Head) -> None:
    assert "last start" not in status.text(head.found())
    head.store.write(print, start_load="weights at 0.31 GB/s")
    assert "The last start: weights at 0.31 GB/s" in status.text(head.found())


def test_restarts_and_their_reasons(head: Head) -> None:
    assert "No restart so far" in status.text(head.found())
    head.store.add(Entry("t1", "dead", "one\ntwo"), print)
    head.store.recovered(12.0, print)
    assert "t1  dead: one (served again after 12 s)" in status.text(head.found())


@pytest.mark.parametrize(("content", "code"), [("{", 3), ("[]", 3), ("", 3)])
def test_a_damaged_state_is_called_that(head: Head, tmp_path: Path, content: str, code: int) -> None:
    place = tmp_path / "var/lib/sparkmatrix/keeper/state.json"
    place.write_text(content)
    found = head.found()
    text = status.text(found)
    assert found.code == code  # who looks after it is not known
    assert "The keeper runs; /var/lib/sparkmatrix/keeper/state.json is damaged (" in text
    assert "it answers" in text
    head.answer = REFUSED
    assert head.found().code == 1


def test_no_state(head: Head, tmp_path: Path) -> None:
    head.store = Store(str(tmp_path / "none"))
    assert "The keeper runs; it has kept nothing yet" in status.text(head.found())
    head.unit = ""
    with pytest.raises(SparkError, match=r"there is no keeper on this node.*spark_rank 0"):
        head.found()


def test_who_may_not_read_is_told_that(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_more: object) -> str:
        raise PermissionError(13, "no")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(SparkError, match=r"no permission to read the keeper's state.*sudo"):
        head.found()


def test_who_stopped_it_is_named(head: Head) -> None:
    head.store.stop(Stop("t", "stop.yml", "anna"))
    assert head.found().stopped is None, "it runs again"
    head.unit = "LoadState=loaded\nActiveState=inactive\n"
    head.answer = REFUSED
    assert status.text(head.found()).splitlines()[:2] == [
        "Stopped by stop.yml at t, run by anna",
        "Start it: ansible-playbook playbooks/start.yml",
    ]
    assert head.found().code == 1
    head.store.begin("boot")
    head.store.write(print, phase="serving")
    assert "nobody starts the engine again" in status.text(head.found())


def test_a_young_start_says_when_it_counts_as_stable(head: Head) -> None:
    head.store.write(print, since="2026-01-01T00:00:00+00:00", stable_s=600.0)
    assert "counted as stable after 600 s" in status.text(head.found())
    head.store.write(print, stable=True)
    assert "stable" not in status.text(head.found())


@pytest.mark.parametrize(
    ("state", "unit", "answer", "says"),
    [
        (STATE, "active", "", ""),
        (STATE, "inactive", "", ""),  # it answers, whoever looks after it
        (LOADING, "active", REFUSED, "it does not serve: loading: the ranks run. See how it goes on: sudo sparkmatrix"),
        (STATE, "active", REFUSED, f"it says serving: it serves {WHAT}; {REFUSED} See how"),
        (GAVE_UP, "inactive", REFUSED, "The keeper gave up: no such model. Begin anew: systemctl restart"),
    ],
)
def test_verify_asks_the_keeper_first(head: Head, state: Mapping[str, Any], unit: str, answer: str, says: str) -> None:
    head.store.write(print, **state)
    head.unit, head.answer = f"LoadState=loaded\nActiveState={unit}\n", answer
    if not says:
        status.check("", lambda _store, _machine, unit: head.found(unit=unit))
        return
    with pytest.raises(SparkError) as refused:
        status.check("", lambda _store, _machine, unit: head.found(unit=unit))
    assert str(refused.value).startswith(f"sparkmatrix-keeper.service: {says}")


@pytest.mark.parametrize(
    ("loaded", "asked", "fine"), [("", "one", True), ("one", "one", True), ("other", "", True), ("other", "one", False)]
)
def test_what_judges_by_the_plan_is_told_that_clients_have_loaded_another_model(
    head: Head, loaded: str, asked: str, fine: bool
) -> None:
    head.store.write(print, models=Models(loaded))

    def check() -> None:
        status.check("", lambda _store, _machine, unit: head.found(unit=unit), model=asked)

    if fine:
        check()
        return
    with pytest.raises(SparkError, match=r"other is loaded, since a client has asked for it.*the plan of one"):
        check()


def test_asked_without_a_description(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Names, "description", property(lambda _self: str(tmp_path / "none")))
    assert "no engine serves on this node" in status.asked("")
