# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The engine's services of a node together, and what they are called."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import names as engine_names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import word
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.engine_json import Description
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Member
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import units as engine_units
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.store import Stop, Store
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.service import Result
from module_runner import run_call

LOADED = """\
sparkmatrix-keeper-old.service loaded active running Start the ranks
sparkmatrix-keeper-.service not-found inactive dead x
"""


class Recorded:
    """In place of systemd's units."""

    def __init__(self):
        self.asked = []

    def __call__(self, wanted, _machine, **_options):
        self.asked.append((wanted.name, wanted.state, wanted.enabled))

        class Unit:
            def run(self):
                return Result(action="stopped", changed=True, before={"a": 1}, after={"a": 2})

        return Unit()


def runner(argv, *_args):
    return Completed(0, LOADED if "list-units" in argv and "keeper" in argv[-1] else "", "")


@pytest.fixture
def node(tmp_path):
    units = tmp_path / "etc/systemd/system"
    units.mkdir(parents=True)
    for name in ("keeper", "keeper-chat", "engine-chat", "keeper-chat.service.d", "keeperx"):
        (units / (name if name.endswith(".d") else f"{name}.service")).touch()
        (units / f"sparkmatrix-{name}.service").touch()
    return str(tmp_path)


def bring(node, kind, state, **options):
    recorded = Recorded()
    outcome = engine_units.bring(kind, state, Machine(node, runner), service=recorded, **options)
    return outcome, recorded.asked


def described(**values):
    made = Description("h", 1, "m", "/key", (), (Member("spark1", 0, "a", True, True),))
    return json.dumps(replace(made, **values).as_dict())


def test_what_is_installed_or_still_runs(node):
    keepers = ["sparkmatrix-keeper-chat.service", "sparkmatrix-keeper-old.service", "sparkmatrix-keeper.service"]
    assert engine_units.found("keeper", Machine(node, runner)) == keepers
    assert engine_units.found("engine", Machine(node, runner)) == ["sparkmatrix-engine-chat.service"]


def test_start_what_is_installed(node):
    outcome, asked = bring(node, "keeper", "started")
    assert asked == [
        ("sparkmatrix-keeper-chat.service", "started", True),
        ("sparkmatrix-keeper.service", "started", True),
    ]
    assert outcome.descriptions == [
        "/etc/sparkmatrix/engine-chat.json",
        "/etc/sparkmatrix/engine.json",
    ]


def test_one_of_several(node):
    assert bring(node, "keeper", "stopped", only="chat")[1] == [("sparkmatrix-keeper-chat.service", "stopped", False)]
    assert bring(node, "keeper", "started", only="other")[1] == []


def test_who_stops_it_is_kept(node):
    stop = Stop("t", "stop.yml", "anna")
    bring(node, "keeper", "stopped", only="chat", stop=stop, check_mode=True)
    assert not Store(node, "chat").exists
    bring(node, "keeper", "stopped", only="chat", stop=stop)
    assert (Store(node, "chat").read().stopped, Store(node).exists) == (stop, False)
    bring(node, "keeper", "absent", only="chat")
    assert not Store(node, "chat").exists


@pytest.mark.parametrize(
    ("by", "return_s", "waits"), [("restart.yml", 0.0, True), ("stop.yml", 0.0, False), ("", 60.0, True)]
)
def test_answers_may_end_before_what_is_to_serve_again_is_stopped(node, tmp_path, by, return_s, waits):
    (tmp_path / "etc/sparkmatrix").mkdir()
    (tmp_path / "etc/sparkmatrix/engine-chat.json").write_text(described())
    words = []

    def busy(_config):
        words.append(word.read(word.path("chat", node)).phase)
        return len(words) < 4

    Store(node, "chat").write(print, phase="serving")
    machine = Machine(node, runner, sleep=lambda _seconds: None)
    stop = Stop("t", by) if by else None
    engine_units.bring(
        "keeper", "stopped", machine, only="chat", stop=stop, return_s=return_s, service=Recorded(), busy=busy
    )
    assert words == (["serving", "draining", "draining", "draining"] if waits else [])
    assert word.read(word.path("chat", node)).phase == ("draining" if waits else "stopped")


def test_keepers_that_wait_start_at_boot_as_before(node):
    assert bring(node, "keeper", "stopped", only="chat", return_s=60)[1] == [
        ("sparkmatrix-keeper-chat.service", "stopped", None)
    ]


def test_whose_ranks_are_in_ray(tmp_path):
    assert not engine_units.over_ray("chat", Machine(str(tmp_path)))
    directory = tmp_path / "etc/sparkmatrix"
    directory.mkdir(parents=True)
    for name, units in (("chat", [engine_names.RAY_UNIT]), ("small", ["sparkmatrix-engine-small.service"])):
        (directory / f"engine-{name}.json").write_text(described(units=tuple(units)))
    (directory / "engine-torn.json").write_text("{")
    assert [engine_units.over_ray(name, Machine(str(tmp_path))) for name in ("chat", "small", "none")] == [
        True,
        False,
        False,
    ]
    with pytest.raises(SparkError, match=r"engine-torn\.json: the description of the engine is damaged"):
        engine_units.over_ray("torn", Machine(str(tmp_path)))


def test_stop_ranks(node):
    assert bring(node, "engine", "stopped")[1] == [("sparkmatrix-engine-chat.service", "stopped", None)]


def test_take_away_all_but_those_that_are_planned(node):
    for instance in ("", "chat", "old"):
        Store(node, instance).write(print, phase="serving")
    outcome, asked = bring(node, "keeper", "absent", keep=["sparkmatrix-keeper-chat.service"], check_mode=True)
    assert Store(node).exists
    outcome, asked = bring(node, "keeper", "absent", keep=["sparkmatrix-keeper-chat.service"])
    assert [name for name, _state, _enabled in asked] == outcome.units
    assert outcome.units == ["sparkmatrix-keeper-old.service", "sparkmatrix-keeper.service"]
    assert outcome.changed
    assert set(outcome.diff[0]["before"]) == set(outcome.units)
    assert [Store(node, instance).exists for instance in ("", "old", "chat")] == [False, False, True]


def test_nothing_to_do(tmp_path):
    outcome = engine_units.bring("engine", "absent", Machine(str(tmp_path), runner))
    assert (outcome.changed, outcome.units) == (False, [])


def test_nothing_is_stopped_where_the_description_is_damaged(monkeypatch):
    """Whether its ranks are in Ray would not be known."""
    calls = []

    def bring(kind, state, _machine, **options):
        calls.append((kind, state, options["keep"]))
        return engine_units.Units(True, ["sparkmatrix-keeper-chat.service"])

    monkeypatch.setattr(engine_units, "bring", bring)
    result, failed = run_call("engine_units", {"kind": "keeper", "state": "absent", "keep": ["k"]})
    assert (failed, result["over_ray"]) == (False, False)
    assert calls == [("keeper", "absent", ("k",))]
    stop = {"kind": "keeper", "state": "stopped", "service": "chat"}
    monkeypatch.setattr(engine_units, "over_ray", lambda service, _machine: service == "chat")
    assert run_call("engine_units", stop)[0]["over_ray"]

    def damaged(*_asked):
        raise SparkError("the description of the engine is damaged", "engine-chat.json")

    monkeypatch.setattr(engine_units, "over_ray", damaged)
    assert run_call("engine_units", stop)[1] and len(calls) == 2
