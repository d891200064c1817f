# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import argparse
import json

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils import _rank as r
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._findings import SparkError

RAY, ENGINE = "sparkmatrix-ray.service", "sparkmatrix-engine.service"


class Systemd:
    """Units by name; ``stubborn`` ones go with SIGKILL only, ``immortal`` ones not even then."""

    def __init__(self, **states):
        self.states = {RAY: "active", ENGINE: "active", **states}
        self.stubborn, self.immortal, self.load = set(), set(), "loaded"
        self.calls = []
        self.now = 0.0

    def sleep(self, seconds):
        self.now += seconds

    def clock(self):
        return self.now

    def run(self, argv):
        verb, unit = next(word for word in argv[1:] if not word.startswith("--")), argv[-1]
        if verb == "show":
            active = self.states[unit]
            return Completed(0, f"LoadState={self.load}\nActiveState={active}\nSubState=x\nInvocationID={self.now}\n")
        self.calls.append(f"{verb} {unit}")
        if verb == "start":
            self.states[unit] = "active"
        if (verb == "stop" and unit not in self.stubborn | self.immortal) or (
            verb == "kill" and unit not in self.immortal
        ):
            self.states[unit] = "failed" if verb == "kill" else "inactive"
        return Completed(0)

    def node(self, tmp_path, **changes):
        ranks = r.Ranks((RAY, ENGINE), ENGINE, "hash", **changes)
        return r.Node(ranks, runner=self.run, root=str(tmp_path), sleep=self.sleep, clock=self.clock)


@pytest.fixture
def systemd():
    return Systemd()


def test_report(tmp_path, systemd):
    (tmp_path / "proc/1").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("b\n")
    (tmp_path / "proc/1/stat").write_text("1 (systemd (x)) S " + " ".join(str(n) for n in range(40)))
    (tmp_path / "proc/meminfo").write_text("MemAvailable: 1024 kB\n")
    reason = tmp_path / "var/lib/sparkmatrix/watchdog/reason.json"
    reason.parent.mkdir(parents=True)
    reason.write_text(json.dumps({"time": "t", "reason": "low"}))
    found = systemd.node(tmp_path).report()
    assert found["boot"] == "b-18"
    assert found["available"] == 1024 * 1024
    assert found["watchdog"] == {"time": "t", "reason": "low"}
    assert found["units"][ENGINE]["active"] == "active"
    assert found["units"][ENGINE]["wanted"] == "hash"
    assert found["units"][RAY]["wanted"] == ""


def test_report_of_a_bare_machine(tmp_path, systemd):
    found = systemd.node(tmp_path).report()
    assert found["watchdog"] is None
    assert found["boot"] == "-"


def test_start_goes_in_order_and_leaves_alone_what_runs(tmp_path):
    systemd = Systemd(**{RAY: "inactive", ENGINE: "inactive"})
    systemd.node(tmp_path).start()
    assert systemd.calls == [f"start {RAY}", f"start {ENGINE}"]
    systemd.node(tmp_path).start(only=RAY)
    assert len(systemd.calls) == 2


def test_stop_goes_backwards(tmp_path, systemd):
    systemd.node(tmp_path).stop()
    assert systemd.calls == [f"stop {ENGINE}", f"stop {RAY}"]


def test_stop_of_what_is_not_installed(tmp_path, systemd):
    systemd.load = "not-found"
    systemd.node(tmp_path).stop()
    assert systemd.calls == []


def test_what_ignores_sigterm_is_killed_after_the_grace(tmp_path, systemd):
    systemd.stubborn.add(ENGINE)
    systemd.node(tmp_path).kill()
    assert systemd.calls[-1] == f"kill {ENGINE}"
    assert r.KILL_GRACE_S < systemd.now < r.KILL_GRACE_S + 1


def test_what_cannot_be_killed_is_named(tmp_path, systemd):
    systemd.immortal.add(RAY)
    with pytest.raises(SparkError, match="does not stop, not even"):
        systemd.node(tmp_path).kill()


def test_watch_until_nobody_listens(tmp_path, systemd):
    said = []
    r.watch(systemd.node(tmp_path), rounds=2, tell=said.append)
    assert [set(json.loads(line)) for line in said] == [{"units", "boot", "available", "watchdog"}] * 2


@pytest.mark.parametrize(
    "text", ["", "[]", '{"units": "x"}', '{"units": [1]}', '{"units": [], "unit": "x.service"}', "{}"]
)
def test_a_damaged_description_is_refused(tmp_path, text):
    path = tmp_path / "engine.json"
    path.write_text(text)
    with pytest.raises(SparkError, match="damaged"):
        r.read(str(path))


def test_the_command(tmp_path, monkeypatch, capsys, systemd):
    path = tmp_path / "engine.json"
    parser = argparse.ArgumentParser()
    r.configure(parser)
    assert r.run(parser.parse_args(["status", "--config", str(path)])) == 1
    assert "takes part in no engine" in capsys.readouterr().err
    path.write_text(json.dumps({"units": [RAY], "unit": "", "runtime": "container", "stop_timeout_s": 5}))
    assert r.read(str(path)) == r.Ranks((RAY,), stop_s=5.0)
    node = systemd.node(tmp_path)
    monkeypatch.setattr(r, "Node", lambda _ranks: node)
    assert r.run(parser.parse_args(["status", "--config", str(path)])) == 0
    assert "units" in json.loads(capsys.readouterr().out)
    for action in ("start", "stop", "kill"):
        assert r.run(parser.parse_args([action, "--config", str(path)])) == 0

    def gone(_node):
        raise BrokenPipeError

    monkeypatch.setattr(r, "watch", gone)
    assert r.run(parser.parse_args(["watch", "--config", str(path)])) == 0
