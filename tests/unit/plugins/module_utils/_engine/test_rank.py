# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import rank as r
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import taken
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.engine_json import Description
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Member
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.report import Stopped
from module_runner import run_program

RAY, ENGINE = "sparkmatrix-ray.service", "sparkmatrix-engine.service"


class Systemd:
    """Units by name; ``stubborn`` ones go with SIGKILL only, ``immortal`` ones not even then.

    Docker cannot kill the containers of ``stuck`` ones.
    """

    def __init__(self, **states):
        self.states = {RAY: "active", ENGINE: "active", **states}
        self.stubborn, self.immortal, self.stuck, self.load = set(), set(), set(), "loaded"
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
        if argv[0] == "docker":
            unit = f"{unit}.service"
            if unit in self.stuck:
                return Completed(1)
        if (verb == "stop" and unit not in self.stubborn | self.immortal) or (
            verb == "kill" and unit not in self.immortal
        ):
            self.states[unit] = "failed" if verb == "kill" else "inactive"
        return Completed(0)

    def node(self, tmp_path, **changes):
        ranks = r.Ranks((RAY, ENGINE), ENGINE, "hash", **changes)
        return r.Node(ranks, Machine(str(tmp_path), self.run, self.sleep, self.clock))


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
    assert found.boot == "b-18"
    assert found.available == 1024 * 1024
    assert found.watchdog == Stopped("t", "low")
    assert found.units[ENGINE].active == "active"
    assert found.units[ENGINE].wanted == "hash"
    assert found.units[RAY].wanted == ""


def process(root, pid, group, *, read=0, device=0, written=0):
    path = root / f"proc/{pid}"
    path.mkdir(parents=True, exist_ok=True)
    (path / "cgroup").write_text(f"9:name=systemd:/\n0::/system.slice/{group}\n")
    (path / "io").write_text(f"rchar: {read}\nwchar: {written}\nsyscr: 9\nread_bytes: {device}\nwrite_bytes: 1\nx\n")


def figures(node):
    return {name: (unit.read, unit.written) for name, unit in node.report().units.items() if unit.counted}


def test_report_tells_what_the_rank_has_read(tmp_path, systemd):
    process(tmp_path, 10, ENGINE, read=5, device=3, written=7)
    process(tmp_path, 11, ENGINE, read=2, device=40)  # a mapped file
    process(tmp_path, 12, "ssh.service", read=10**9)
    process(tmp_path, 13, "sparkmatrix-engine-chat.service", read=10**9)
    process(tmp_path, 14, RAY, read=6)
    (tmp_path / "proc/15").mkdir()  # it has ended
    node = systemd.node(tmp_path)
    node.machine.runner = lambda argv: Completed(0, "LoadState=loaded\nActiveState=active\nInvocationID=one\n")
    assert figures(node) == {ENGINE: (40, 7), RAY: (6, 1)}
    process(tmp_path, 11, ENGINE, device=50)
    systemd.now = 5.0
    assert figures(node)[ENGINE] == (40, 7)
    systemd.now = 10.0
    assert figures(node)[ENGINE] == (50, 7)
    # What another start has read is never told of this one.
    process(tmp_path, 11, ENGINE, device=1)
    node.machine.runner = lambda argv: Completed(0, "LoadState=loaded\nActiveState=active\nInvocationID=two\n")
    assert figures(node)[ENGINE] == (5, 7)
    node.machine.runner = lambda argv: Completed(0, "LoadState=loaded\nActiveState=inactive\nInvocationID=two\n")
    assert figures(node) == {}


def test_of_a_container_its_own_processes_count(tmp_path, systemd):
    process(tmp_path, 10, ENGINE, read=10**9)  # the client
    process(tmp_path, 11, "docker-c0ffee.scope", read=40)
    node = systemd.node(tmp_path, container=True)
    asked = []
    there = [""]

    def run(argv):
        if argv[0] == "docker":
            asked.append(argv[-1])
            return Completed(0 if there[0] else 1, there[0])
        return Completed(0, "LoadState=loaded\nActiveState=active\nInvocationID=one\n")

    node.machine.runner = run
    assert figures(node) == {}
    there[0] = "c0ffee\n"
    for _round in range(3):
        systemd.now += 10.0
        assert figures(node) == {ENGINE: (40, 1), RAY: (40, 1)}
    assert asked == ["sparkmatrix-ray", "sparkmatrix-engine"] * 2


def rank_process(root, pid, title, *, parent=1, state="S", started=500):
    """Of Ray's unit; ``started`` in ticks since boot. Titles that a process gives itself are padded with zeros."""
    process(root, pid, RAY)
    (root / f"proc/{pid}/cmdline").write_text(f"{title}\0\0\0")
    (root / f"proc/{pid}/stat").write_text(f"{pid} (x (y)) {state} {parent} " + "0 " * 17 + f"{started} 0\n")


def boot(root, seconds):
    (root / "proc/uptime").write_text(f"{seconds} 0.0\n")


def ranks(node):
    """None: it cannot tell yet."""
    unit = node.report().units[RAY]
    return unit.ranks if unit.looked else None


@pytest.fixture
def watched(tmp_path, systemd, monkeypatch):
    """A node whose Ray has a rank."""
    monkeypatch.setattr("os.sysconf", lambda _name: 100)
    node = systemd.node(tmp_path)
    node.machine.runner = lambda argv: Completed(0, "LoadState=loaded\nActiveState=active\nInvocationID=one\n")
    rank_process(tmp_path, 10, "ray::RayWorkerProc.run")
    rank_process(tmp_path, 11, "ray::IDLE")
    boot(tmp_path, 15.5)
    assert ranks(node) == {"10-500": "ray::RayWorkerProc.run"}
    return node


@pytest.mark.parametrize(
    "end",
    [
        lambda root: (root / "proc/10/stat").unlink(),
        lambda root: rank_process(root, 10, "ray::RayWorkerProc", state="Z"),  # nobody has fetched its exit code yet
        lambda root: rank_process(root, 10, "ray::RayWorkerProc", started=501),  # its number is used again
    ],
)
def test_a_rank_that_is_gone_is_missed_at_once(tmp_path, watched, end):
    end(tmp_path)
    assert ranks(watched) == {}


def test_a_rank_that_hangs_or_changes_its_title_is_there(tmp_path, watched, systemd):
    rank_process(tmp_path, 10, "ray::RayWorkerProc.init", state="T")
    systemd.now = 20.0
    assert set(ranks(watched)) == {"10-500"}


def test_helpers_and_what_is_young_are_no_ranks(tmp_path, watched, systemd):
    rank_process(tmp_path, 20, "ray::RayWorkerProc.init", parent=10)  # forked, and not yet another program
    rank_process(tmp_path, 21, "ray::RayWorkerProc.run", started=600)
    systemd.now = 10.0
    assert set(ranks(watched)) == {"10-500"}
    boot(tmp_path, 16.0)
    systemd.now = 20.0
    assert set(ranks(watched)) == {"10-500", "21-600"}


def test_a_look_that_fails_misses_nobody(tmp_path, watched, systemd):
    (tmp_path / "proc/10/io").unlink()
    (tmp_path / "proc/11/io").unlink()
    systemd.now = 20.0
    assert set(ranks(watched)) == {"10-500"}
    anew = systemd.node(tmp_path)
    anew.machine.runner = watched.machine.runner
    assert ranks(anew) is None


def test_another_start_has_ranks_of_its_own(tmp_path, watched):
    watched.machine.runner = lambda argv: Completed(0, "LoadState=loaded\nActiveState=active\nInvocationID=two\n")
    rank_process(tmp_path, 10, "ray::RayWorkerProc", started=501)
    boot(tmp_path, 100)
    assert set(ranks(watched)) == {"10-501"}


def test_report_of_a_bare_machine(tmp_path, systemd):
    found = systemd.node(tmp_path).report()
    assert found.watchdog == Stopped()
    assert found.boot == "-"


def test_start_goes_in_order_and_leaves_alone_what_runs(tmp_path):
    systemd = Systemd(**{RAY: "inactive", ENGINE: "inactive"})
    systemd.node(tmp_path).start()
    assert systemd.calls == [f"start {RAY}", f"start {ENGINE}"]
    systemd.node(tmp_path).start(only=RAY)
    assert len(systemd.calls) == 2


def test_what_is_available_before_a_start_is_noted(tmp_path):
    for folder in ("proc", "run/sparkmatrix"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    (tmp_path / "proc/meminfo").write_text("MemAvailable: 100 kB\n")
    systemd = Systemd(**{RAY: "inactive", ENGINE: "inactive"})
    systemd.node(tmp_path).start(only=RAY)
    assert not (tmp_path / "run/sparkmatrix/available.json").exists()
    systemd.node(tmp_path).start()
    (tmp_path / "proc/meminfo").write_text("MemAvailable: 40 kB\n")
    systemd.node(tmp_path).start()  # it runs: the note stays
    assert taken.by(ENGINE, systemd.node(tmp_path).machine) == 60 * 1024


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


def test_a_container_is_killed_and_its_clients_end_by_themselves(tmp_path, systemd):
    systemd.stubborn.add(ENGINE)
    systemd.node(tmp_path, container=True).kill()
    assert systemd.calls[-1] == "kill sparkmatrix-engine"
    assert r.KILL_GRACE_S < systemd.now < r.KILL_GRACE_S + 1


def test_a_container_that_has_outlived_its_unit_is_killed_too(tmp_path, systemd):
    systemd.states[ENGINE] = systemd.states[RAY] = "failed"
    systemd.node(tmp_path, container=True).kill()
    assert systemd.calls == ["kill sparkmatrix-engine"]
    systemd.calls.clear()
    systemd.node(tmp_path).kill()
    assert systemd.calls == []


def test_clients_that_hang_are_killed_too(tmp_path, systemd):
    systemd.stubborn.add(ENGINE)
    systemd.stuck.add(ENGINE)
    systemd.node(tmp_path, container=True).kill()
    assert systemd.calls[-2:] == ["kill sparkmatrix-engine", f"kill {ENGINE}"]
    assert systemd.now > r.KILL_GRACE_S + r.CLIENT_S


def test_what_cannot_be_killed_is_named(tmp_path, systemd):
    systemd.immortal.add(RAY)
    with pytest.raises(SparkError, match="does not stop, not even"):
        systemd.node(tmp_path).kill()


def test_watch_goes_on_after_systemd_gave_no_answer(tmp_path, systemd):
    node = systemd.node(tmp_path)
    answers = [Completed(1, "", "Connection reset by peer")]
    node.machine.runner = lambda argv: answers.pop() if answers else systemd.run(argv)
    said = []
    r.watch(node, rounds=2, tell=said.append)
    assert "Connection reset" in said[0]
    assert "units" in json.loads(said[1])


def test_what_peers_ask_for_is_named_where_it_is_damaged(tmp_path):
    directory = tmp_path / "etc/sparkmatrix"
    directory.mkdir(parents=True)
    assert r.config(str(tmp_path)) == "/etc/sparkmatrix/engine.json"
    members = (Member("spark1", 0, "a", True, True),)
    description = Description("h", 1, "m", "/key", (), members)
    (directory / "engine-small.json").write_text(json.dumps(description.as_dict()))
    (directory / "engine-chat.json").write_text("{")
    assert r.config(str(tmp_path)) == "/etc/sparkmatrix/engine-chat.json"
    (directory / "engine-wide.json").write_text(json.dumps(replace(description, nodes=2).as_dict()))
    assert r.config(str(tmp_path)) == "/etc/sparkmatrix/engine-wide.json"
    (directory / "engine.json").write_text(json.dumps(description.as_dict()))
    assert r.config(str(tmp_path)) == "/etc/sparkmatrix/engine.json"


def test_the_command(tmp_path, monkeypatch, capsys, systemd):
    path = tmp_path / "engine.json"
    assert run_program(r, "status", "--config", str(path)) == 1
    assert "takes part in no engine" in capsys.readouterr().err
    members = (Member("spark1", 0, "a", True, True),)
    told = Description("h", 1, "m", "/key", (RAY,), members, runtime="container", stop_timeout_s=5)
    assert r.of(told) == r.Ranks((RAY,), container=True, stop_s=5.0)
    path.write_text(json.dumps(told.as_dict()))
    node = systemd.node(tmp_path)
    monkeypatch.setattr(r, "Node", lambda _ranks: node)
    assert run_program(r, "status", "--config", str(path)) == 0
    assert "units" in json.loads(capsys.readouterr().out)
    systemd.stubborn = {RAY}
    for action, state in (("kill", "failed"), ("start", "active")):
        assert run_program(r, action, "--config", str(path)) == 0
        assert systemd.states[RAY] == state, action
    systemd.stubborn = set()
    assert run_program(r, "stop", "--config", str(path)) == 0
    assert systemd.states[RAY] == "inactive"

    def gone(_node):
        raise BrokenPipeError

    monkeypatch.setattr(r, "watch", gone)
    assert run_program(r, "watch", "--config", str(path)) == 0
