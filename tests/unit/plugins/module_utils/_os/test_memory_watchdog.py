# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils import _node_program
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._os import memory_watchdog as wd
from hypothesis import given
from hypothesis import strategies as st

MIB = 2**20
REASON = "var/lib/sparkmatrix/watchdog/reason.json"


class Node:
    """Memory that comes back ``gives`` MiB per stopped unit, after ``delay`` seconds; ``on`` names what helps."""

    def __init__(self, root, running=("engine.service", "ray.service"), delay=2, on="stop"):
        self.root, self.running, self.delay, self.on = root, set(running), delay, on
        self.now = 0.0
        self.back_at = None
        self.calls = []
        self.refuse = ""
        self.set(500)

    def set(self, available_mib, full=0.0):
        for name in ("proc", "proc/pressure"):
            (self.root / name).mkdir(exist_ok=True)
        (self.root / "proc/meminfo").write_text(f"MemTotal: 999999999 kB\nMemAvailable: {available_mib * 1024} kB\n")
        pressure = f"some avg10=99.00 avg60=0 avg300=0 total=1\nfull avg10={full:.2f} avg60=0.00 avg300=0.00 total=1\n"
        (self.root / "proc/pressure/memory").write_text(pressure)

    def run(self, argv):
        if argv[1] == "is-active":
            return Completed(0 if argv[-1] in self.running else 3)
        self.calls.append(" ".join(argv[1:]))
        if self.refuse:
            return Completed(1, "", self.refuse)
        if self.on in argv[1:3]:
            self.back_at = self.now + self.delay
        return Completed(0)

    def sleep(self, seconds):
        self.now += seconds
        if self.back_at is not None and self.now >= self.back_at:
            self.set(90000)

    def dog(self, seconds=3):
        machine = Machine(str(self.root), self.run, self.sleep, lambda: self.now)
        return wd.Watchdog(["engine.service", "ray.service"], wd.Judge(1000 * MIB, seconds), machine)

    def reason(self):
        return json.loads((self.root / REASON).read_text())


def test_the_engine_is_stopped_and_nothing_else(tmp_path, capsys):
    node = Node(tmp_path)
    node.dog().watch(3)
    assert node.calls == []
    node.now = 0.0
    node.dog().watch(12)
    assert node.calls == ["--no-block stop engine.service"]
    assert "available memory was below 1000 MiB for 3 s (500 MiB now)" in node.reason()["reason"]
    assert node.reason()["done"] == ["systemctl --no-block stop engine.service"]
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_without_the_engine_it_is_ray(tmp_path):
    node = Node(tmp_path, running=["ray.service"])
    assert node.dog().act("x") == ["systemctl --no-block stop ray.service"]


def test_what_does_not_give_memory_back_is_killed_then_the_next_is_stopped(tmp_path):
    node = Node(tmp_path, on="never")
    assert node.dog().act("x") == [
        "systemctl --no-block stop engine.service",
        "systemctl kill --signal=SIGKILL engine.service",
        "systemctl --no-block stop ray.service",
        "systemctl kill --signal=SIGKILL ray.service",
    ]


def test_a_kill_that_helps(tmp_path):
    node = Node(tmp_path, on="kill")
    assert node.dog().act("x")[-1] == "systemctl kill --signal=SIGKILL engine.service"


def test_nothing_to_stop(tmp_path):
    node = Node(tmp_path, running=())
    assert node.dog().act("x") == ["nothing to stop: none of the units runs"]
    assert node.calls == []


def test_a_refusing_systemd_is_in_the_reason(tmp_path):
    node = Node(tmp_path, running=["ray.service"])
    node.refuse = "Access denied"
    assert node.dog().act("x")[0] == "systemctl --no-block stop ray.service failed (Access denied)"


def test_a_full_disk_does_not_keep_the_engine_running(tmp_path, monkeypatch, capsys):
    def full(*_args, **_kwargs):
        raise SparkError("cannot write: the disk is full", "/var")

    monkeypatch.setattr(wd, "write_state", full)
    node = Node(tmp_path)
    assert node.dog().act("x")
    assert "the disk is full" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("samples", "seconds", "expected"),
    [
        ([(0, 999, 0), (1, 1001, 0), (2, 999, 0), (4, 999, 0)], 3, ""),  # a break starts the count again
        ([(0, 999, 0), (3, 999, 0)], 3, "below 1000 MiB"),
        ([(0, 1000, 0), (9, 1000, 0)], 3, ""),  # at the threshold is not below it
        ([(0, 3999, 50), (3, 3999, 50)], 3, "all tasks waited"),
        ([(0, 4000, 99), (3, 4000, 99)], 3, ""),  # pressure with memory left: a cold start
        ([(0, 3999, 39.9), (3, 3999, 39.9)], 3, ""),
        ([(0, 999, 0)], 0, "below"),
    ],
)
def test_judge(samples, seconds, expected):
    judge = wd.Judge(1000 * MIB, seconds)
    reason = ""
    for now, available, stalled in samples:
        reason = judge.look(now, wd.Sample(available * MIB, stalled))
    assert expected in reason
    assert bool(expected) == bool(reason)


@given(st.lists(st.tuples(st.integers(0, 5000), st.floats(0, 100)), max_size=30), st.integers(1, 10))
def test_it_never_acts_before_its_time(samples, seconds):
    judge = wd.Judge(1000 * MIB, seconds)
    for now, (available, stalled) in enumerate(samples):
        reason = judge.look(now, wd.Sample(available * MIB, stalled))
        if reason:
            recent = samples[now - seconds : now + 1] if now >= seconds else []
            low = recent and all(a < 1000 for a, _ in recent)
            stalling = recent and all(s >= wd.STALLED_PERCENT and a < 4000 for a, s in recent)
            assert low or stalling


def test_no_pressure_file_is_no_pressure(tmp_path):
    Node(tmp_path)
    (tmp_path / "proc/pressure/memory").unlink()
    assert wd.read(str(tmp_path)).stalled == 0.0
    (tmp_path / "proc/pressure/memory").write_text("odd\n")
    assert wd.read(str(tmp_path)).stalled == 0.0
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1 kB\n")
    with pytest.raises(SparkError, match="MemAvailable is not there"):
        wd.read(str(tmp_path))


@pytest.mark.parametrize("units", [[], ["engine"], ["a.service; b"], ["sshd.socket"]])
def test_bad_units(units):
    with pytest.raises(SparkError, match="to stop"):
        wd.Watchdog(units, wd.Judge(1, 1), Machine())


def test_subcommand(monkeypatch, capsys):
    seen = []
    monkeypatch.setattr(wd.Watchdog, "watch", lambda self: seen.append((self.units, self.judge, self.reason_path)))
    locked = []
    monkeypatch.setattr(wd.ctypes, "CDLL", lambda name: type("Libc", (), {"mlockall": staticmethod(locked.append)}))
    infinite = (wd.resource.RLIM_INFINITY, wd.resource.RLIM_INFINITY)
    monkeypatch.setattr(wd.resource, "getrlimit", lambda which: infinite)
    argv = ["watch-memory", "--unit", "a.service", "--unit", "b.service", "--available-mib", "7"]
    assert _node_program.main(argv) == 1
    assert seen == [(("a.service", "b.service"), wd.Judge(7 * MIB, 5.0), wd.REASON)]
    assert locked == [3]
    monkeypatch.setattr(wd.resource, "getrlimit", lambda which: (8 * MIB, 8 * MIB))
    assert _node_program.main([*argv, "--reason-file", "/x"]) == 1
    assert (len(seen), locked) == (2, [3])
    assert _node_program.main(["watch-memory", "--unit", "a", "--available-mib", "7"]) == 1
    assert "to stop" in capsys.readouterr().err
