# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import word
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import store as keeper_store
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.store import (
    GATEWAY,
    Entry,
    State,
    Stop,
    Store,
    Verified,
)

# As the release before wrote it.
EARLIER = {"boot": "b", "pid": 7, "phase": "loading", "start_parts": {}, "failures": 2, "end": "", "reason": ""}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path))


def place(store: Store) -> Path:
    return Path(f"{store.root}{store.directory}/state.json")


def test_a_keeper_goes_on_with_the_history_and_forgets_who_stopped_the_one_before(store: Store) -> None:
    store.add(Entry("t", "dead", "x"), print)
    store.write(print, phase="serving", end="stopped", failures=2)
    store.stop(Stop("t", "stop.yml", "anna"))
    again = Store(store.root)
    before = again.begin("boot")
    assert (before.phase, before.failures, before.stopped) == ("serving", 2, Stop("t", "stop.yml", "anna"))
    again.write(print, phase="starting")
    state = store.read()
    assert (state.boot, state.phase, state.end, state.failures, state.stopped) == ("boot", "starting", "", 0, None)
    assert [entry.event for entry in state.history] == ["dead"]


def test_the_history_is_bounded_and_the_gateway_is_no_failure_of_the_engine(store: Store) -> None:
    store.recovered(1.0, print)
    for number in range(keeper_store.MAX_ENTRIES + 5):
        store.add(Entry("t", str(number), "x"), print)
    store.add(Entry("t", GATEWAY, "it is frozen"), print)
    store.recovered(2.04, print)
    history = store.read().history
    assert len(history) == keeper_store.MAX_ENTRIES
    assert [entry.back_after_s for entry in history[-2:]] == [2.0, None]


def test_whatever_a_journal_says_can_be_read_again(store: Store) -> None:
    store.add(Entry("t", "dead", "\x1b[2J one\ntwo\r\x00"), print)
    assert store.read().history[0].reason == "\\x1b[2J one\ntwo\\x0d\\x00"


def test_a_full_disk_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said: list[str] = []
    full = Store(str(tmp_path / "file"))
    full.write(said.append, phase="serving")
    assert "Not kept" in said[0]
    assert (full.state.phase, full.read()) == ("serving", State())


def test_what_an_earlier_release_has_kept_is_read_once(store: Store) -> None:
    store.write(print)
    place(store).write_text(json.dumps(EARLIER))
    before = store.begin("boot")
    assert (before.boot, before.phase, before.failures) == ("b", "loading", 2)


@pytest.mark.parametrize("wrong", [{"schema": 2}, {"schema": None}, {"failures": "x"}, {"history": [{"event": 1}]}])
def test_what_does_not_fit_is_as_if_nothing_were_kept(store: Store, wrong: dict[str, object]) -> None:
    store.write(print, phase="serving")
    place(store).write_text(json.dumps({**EARLIER, **wrong}))
    assert store.read() == State()
    assert "state.json is damaged (" in store.look()[1]


def test_everybody_is_told_whether_it_serves(store: Store) -> None:
    place = Path(word.path(root=store.root))
    assert word.read(str(place)) == word.NONE
    store.write(print, phase="serving")
    told = word.read(str(place))
    assert told.phase == "serving" and place.stat().st_mode & 0o777 == 0o644
    store.write(print, detail="it serves still")
    assert word.read(str(place)) == told, "since when does not change"
    for by, phase in (("restart.yml", "serving"), ("stop.yml", word.STOPPED)):
        store.stop(Stop("t", by))
        assert word.read(str(place)).phase == phase
    store.forget()
    assert word.read(str(place)) == word.NONE
    place.write_bytes(b"\xff" * 100)
    assert word.read(str(place)) == word.NONE


def test_what_was_verified_and_everything_kept_goes(store: Store) -> None:
    assert (store.verified(), store.forget()) == (None, False)
    store.verify(Verified("t", "m", "x"))
    store.write(print)
    assert store.verified() == Verified("t", "m", "x")
    place(store).with_name("history.json").write_text("[]")  # of an earlier release
    assert (store.forget(), store.verified(), place(store).parent.exists()) == (True, None, False)


@pytest.mark.parametrize(("off_s", "draining"), [(0, True), (-100, True), (-140, False), (100, True), (3600, False)])
def test_a_drain_ends_whatever_the_clock_was_then(off_s: int, draining: bool) -> None:
    assert word.Word(word.DRAINING, time.time_ns() + off_s * 10**9).draining == draining
