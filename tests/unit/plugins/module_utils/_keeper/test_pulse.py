# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.engine_json import STOPPING_S
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import pulse


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_no_sign_where_no_keeper_was(tmp_path: Path) -> None:
    assert pulse.last(root=str(tmp_path)) is None


def test_a_beat_is_read_with_its_age(tmp_path: Path, clock: Clock) -> None:
    told: list[str] = []
    one = pulse.Pulse(pulse.hold("chat", str(tmp_path)), told.append, clock)
    one.step()
    one.beat()
    clock.now += 4.0
    assert pulse.last("chat", str(tmp_path), clock) == pulse.Sign(os.getpid(), 4.0)
    clock.now += pulse.STALE_S
    found = pulse.last("chat", str(tmp_path), clock)
    assert found and found.frozen
    assert told == ["WATCHDOG=1"]


def test_what_the_last_question_has_found_is_told_with_a_beat(tmp_path: Path, clock: Clock) -> None:
    one = pulse.Pulse(pulse.hold(root=str(tmp_path)), lambda _text: None, clock, lambda: 1.8e9)

    def ask(seconds: float, problem: str = "") -> str:
        clock.now += seconds
        if problem == "none":
            raise SparkError("no answer")
        return problem

    def told() -> pulse.Probed | None:
        one.step()
        one.beat()
        sign = pulse.last(root=str(tmp_path), clock=clock)
        return sign.probed if sign else None

    assert told() is None
    assert one.noted(lambda: ask(0.75, "the gateway is slow")) == "the gateway is slow"
    assert told() == pulse.Probed(1.8e9, True, 0.75)
    with pytest.raises(SparkError, match="no answer"):
        one.noted(lambda: ask(60.0, "none"))
    assert told() == pulse.Probed(1.8e9, False, 60.0)


def test_a_process_that_is_stopped_is_frozen_at_once(tmp_path: Path, clock: Clock) -> None:
    one = pulse.Pulse(pulse.hold(root=str(tmp_path)), lambda _text: None, clock)
    one.step()
    one.beat()
    stat = tmp_path / f"proc/{os.getpid()}/stat"
    stat.parent.mkdir(parents=True)
    for state, frozen in (("S", False), ("T", True)):
        stat.write_text(f"{os.getpid()} (python3 (x) T) {state} 1 1\n")
        found = pulse.last(root=str(tmp_path), clock=clock)
        assert found and found.frozen == frozen


def test_a_loop_that_hangs_gets_no_beat(tmp_path: Path, clock: Clock) -> None:
    told: list[str] = []
    one = pulse.Pulse(pulse.hold(root=str(tmp_path)), told.append, clock)
    one.step()
    clock.now += pulse.LOOP_S
    one.beat()
    clock.now += 1.0
    one.beat()
    assert len(told) == 1
    one.step()
    one.beat()
    assert len(told) == 2
    assert pulse.LOOP_S > 2 * STOPPING_S  # the head, then all others


def test_a_second_keeper_is_refused_with_the_id_of_the_first(tmp_path: Path, clock: Clock) -> None:
    first = pulse.Pulse(pulse.hold(root=str(tmp_path)), lambda _text: None, clock)
    with pytest.raises(SparkError, match=r"runs already \(another process\)"):
        pulse.hold(root=str(tmp_path))
    first.step()
    first.beat()
    with pytest.raises(
        SparkError, match=rf"runs already \(process {os.getpid()}\).*systemctl status sparkmatrix-keeper"
    ):
        pulse.hold(root=str(tmp_path))
    os.close(pulse.hold("chat", str(tmp_path)))  # that of another service is another one
    os.close(first.handle)
    os.close(pulse.hold(root=str(tmp_path)))


def test_no_child_keeps_the_lock(tmp_path: Path) -> None:
    handle = pulse.hold(root=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        os.close(handle)
        os.close(pulse.hold(root=str(tmp_path)))
        child.kill()


@pytest.mark.parametrize("text", ["", "7", "x y", "\ufffd", "7 1.0 2", "7 1.0 2 1 x"])
def test_what_is_no_sign_is_none(tmp_path: Path, text: str) -> None:
    place = Path(pulse.path(root=str(tmp_path)))
    place.parent.mkdir(parents=True)
    place.write_text(text)
    assert pulse.last(root=str(tmp_path)) is None


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told(tmp_path: Path, abstract: bool) -> None:
    place = f"@spark-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0{place[1:]}" if abstract else place)
        pulse.notify("WATCHDOG=1", {"NOTIFY_SOCKET": place})
        assert systemd.recv(100) == b"WATCHDOG=1"
    pulse.notify("WATCHDOG=1", {"NOTIFY_SOCKET": str(tmp_path / "gone")})
    pulse.notify("WATCHDOG=1", {})
