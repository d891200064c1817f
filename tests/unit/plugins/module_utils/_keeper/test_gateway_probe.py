# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The keeper's probe through the gateway: what is blamed on the engine, and what on the gateway."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.probe import (
    Answer,
    ProbeError,
    Question,
    Target,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.gateway_probe import Gateway

ENGINE = Target("127.0.0.1", 8000, "tiny", "engine")


class House:
    """A gateway at 8081 and its engine at 8000; each is what its ``fate`` says."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.active = "active"
        self.awake = "abc"
        self.relay = True
        self.task = ""
        self.fates: dict[int, ProbeError | None] = {8081: None, 8000: None}
        self.asked: list[int] = []
        self.key = place / "probe.key"
        self.key.write_text("key-of-the-probe\n")
        self.describe()

    def describe(self, **changes: object) -> None:
        document = {"host": "127.0.0.1", "port": 8081, "model": "tiny", "models": ["tiny"], "key_file": str(self.key)}
        (self.place / "gateway.json").write_text(json.dumps({**document, **changes}))

    def ask(self, target: Target, question: Question) -> Answer:
        self.asked.append(target.port)
        self.task = target.task
        assert target.model == "tiny" and question.max_tokens == 1
        assert target.key == ("engine" if target.port == 8000 else "key-of-the-probe")
        fate = self.fates[target.port]
        if fate is not None:
            raise fate
        return Answer("tiny", "x", 1, 0.1, 0.1, 10.0)

    def probe(self, task: str = "generate") -> str:
        def systemctl(_argv: object) -> Completed:
            return Completed(0, f"LoadState=loaded\nActiveState={self.active}\nSubState=sub\n")

        place, machine = str(self.place / "gateway.json"), Machine("/", systemctl)
        gateway = Gateway("tiny", place, machine, self.ask, lambda: self.awake, lambda: self.relay, task)
        return gateway.probe(lambda: ENGINE, Question(max_tokens=1))


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def error(kind: str, status: int = 0) -> ProbeError:
    return ProbeError(kind, f"this is {kind}", "x", status)


def test_the_way_of_the_users_is_asked_alone(house: House) -> None:
    assert house.probe() == "" and house.asked == [8081]


def test_it_is_asked_for_what_the_engine_gives(house: House) -> None:
    house.probe(task="embed")
    assert house.task == "embed"


def test_without_a_gateway_the_engine_is_asked(house: House) -> None:
    (house.place / "gateway.json").unlink()
    assert house.probe() == "" and house.asked == [8000]


def test_a_gateway_to_other_engines_is_not_the_way(house: House) -> None:
    house.describe(models=["embed"], model="embed")
    assert house.probe() == "" and house.asked == [8000]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"active": "failed"}, "it is failed (sub). Start it: systemctl start sparkmatrix-gateway.service"),
        ({"active": "activating"}, "it is activating"),
        ({"relay": False}, "its relay does not answer"),
        ({"awake": ""}, "it does not answer. Restart it: systemctl restart sparkmatrix-gateway.service"),
    ],
)
def test_a_gateway_that_is_stopped(house: House, wrong: dict[str, str], says: str) -> None:
    for name, value in wrong.items():
        setattr(house, name, value)
    assert says in house.probe() and house.asked == [8000]


@pytest.mark.parametrize("kind", ["refused", "status", "garbage", "empty"])
def test_what_comes_wrong_through_the_gateway_is_asked_of_the_engine(house: House, kind: str) -> None:
    house.fates[8081] = error(kind, 502)
    assert f"this is {kind}" in house.probe() and house.asked == [8081, 8000]


def test_the_engine_is_blamed_by_its_own_answer(house: House) -> None:
    house.fates = {8081: error("status", 503), 8000: error("refused")}
    with pytest.raises(ProbeError) as caught:
        house.probe()
    assert caught.value.kind == "refused" and house.asked == [8081, 8000]


def test_a_busy_engine_is_not_asked_twice(house: House) -> None:
    house.fates[8081] = error("timeout")
    with pytest.raises(ProbeError, match="this is timeout"):
        house.probe()
    assert house.asked == [8081]


def test_a_stopped_gateway_does_not_hide_a_dead_engine(house: House) -> None:
    house.active, house.fates[8000] = "failed", error("refused")
    with pytest.raises(ProbeError, match="this is refused"):
        house.probe()


def test_a_damaged_description_is_the_gateways_fault(house: House) -> None:
    (house.place / "gateway.json").write_text("{")
    assert "damaged" in house.probe() and house.asked == [8000]
    house.describe()
    house.key.unlink()
    assert "the key file does not exist" in house.probe()


def test_a_missing_key_of_the_engine_is_raised(house: House) -> None:
    (house.place / "gateway.json").unlink()

    def none() -> Target:
        raise SparkError("the key file does not exist", "x")

    with pytest.raises(SparkError, match="does not exist"):
        Gateway("tiny", str(house.place / "none"), ask=house.ask).probe(none, Question())


class Frozen:
    """A gateway that gives no answer; ``spent`` is its processor time after each question."""

    def __init__(self, house: House) -> None:
        self.now, self.spent, self.notes, self.kills = 0.0, "100", [], 0
        self.gateway = Gateway(
            "tiny", str(house.place / "gateway.json"), Machine("/", self.systemctl, clock=lambda: self.now), house.ask,
            lambda: house.awake, note=self.notes.append,
        )  # fmt: skip
        house.awake = ""

    notes: list[str]
    answer = Completed(0)

    def systemctl(self, argv: Sequence[str]) -> Completed:
        if argv[1] == "kill":
            self.kills += 1
            return self.answer
        return Completed(0, f"LoadState=loaded\nActiveState=active\nSubState=running\nCPUUsageNSec={self.spent}\n")

    def after(self, seconds: float, spent: str = "100") -> str:
        self.now, self.spent = self.now + seconds, spent
        return self.gateway.probe(lambda: ENGINE, Question(max_tokens=1))


def test_a_frozen_gateway_is_killed_and_the_reason_is_told(house: House) -> None:
    frozen = Frozen(house)
    assert "it does not answer" in frozen.after(0) and "it does not answer" in frozen.after(20)
    assert "killed, systemd starts it again" in frozen.after(10)
    assert frozen.kills == 1 and frozen.notes == [
        "it is frozen: no answer and no processor time for 30 s. Killed; systemd starts it again"
    ]
    assert "it does not answer" in frozen.after(5)  # the new one gets as long
    house.awake = "abc"
    assert frozen.after(5) == ""


def test_a_gateway_that_cannot_be_killed(house: House) -> None:
    frozen = Frozen(house)
    frozen.answer = Completed(1, "", "Access denied")
    frozen.after(0)
    assert "it could not be killed: Access denied" in frozen.after(30) and frozen.notes == []


def test_a_busy_gateway_is_not_a_frozen_one(house: House) -> None:
    frozen = Frozen(house)
    for number in range(100):
        assert "it does not answer" in frozen.after(20, str(number))
    assert "it does not answer" in frozen.after(20, "[not set]") and "it does not answer" in frozen.after(
        99, "[not set]"
    )
    assert not frozen.kills


def test_an_answer_in_between_begins_anew(house: House) -> None:
    frozen = Frozen(house)
    frozen.after(0)
    house.awake = "abc"
    assert frozen.after(29) == ""
    house.awake = ""
    frozen.after(1)
    assert "it does not answer" in frozen.after(29) and not frozen.kills


def test_a_gateway_that_freezes_again_and_again_is_only_named(house: House) -> None:
    frozen = Frozen(house)
    for _ in range(4):
        frozen.after(1)
        said = frozen.after(30)
    assert frozen.kills == 3 and "killed 3 times within the hour, it froze again" in said
    frozen.after(3600)
    assert frozen.kills == 4
