# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The profile on two halves, driven through the lab's simulated dcb, and its subcommand."""

from __future__ import annotations

import argparse
import contextlib
import json
from pathlib import Path

import pytest
import simulated
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import files as managed_files
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._qos import port as qos_port
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._qos import profile as qos_profile
from ansible_collections.sparkmatrix.cluster.plugins.modules import mlnx_qos
from module_runner import run_module

HALVES = ["enP2p1s0f0np0", "enp1s0f0np0"]
FACTORY = ("pcp", [0, 0, 0, 0, 0, 0, 0, 0])
ROCE = ("dscp", [0, 0, 0, 1, 0, 0, 0, 0])


class Spark(Machine):
    """Two halves with the simulated tool, and a systemd that knows what was there at the last daemon-reload."""

    def __init__(self, root):
        super().__init__(root=str(root / "node"), runner=self.program, sysfs_root=root / "sim/sys")
        self.sim = root / "sim"
        (root / "node").mkdir()
        self.reloads = 0
        self.known = ""
        self.broken = ""
        self.now = 0.0
        self.clock = lambda: self.now
        self.sleep = self.pass_time
        for name in HALVES:
            self.plug(name)

    def pass_time(self, seconds):
        self.now += seconds

    def plug(self, name, carrier="1"):
        (self.sim / "sys/class/net" / name).mkdir(parents=True, exist_ok=True)
        (self.sim / "sys/class/net" / name / "carrier").write_text(carrier + "\n")

    def program(self, argv):
        if argv[0] == "systemctl":
            if argv[1] == "show":
                return Completed(0, self.known)
            if self.broken:
                return Completed(1, "", self.broken)
            self.reloads += 1
            self.known = "\n".join(
                f"Wants={link.name}" for link in Path(self.root).rglob("*.device.wants/*") if link.is_symlink()
            )
            return Completed(0)
        return Completed(*simulated.dcb(argv[1:], self.sim))

    def set(self, name, **values):
        file = self.sim / "qos" / f"{name}.json"
        state = json.loads(file.read_text()) if file.exists() else {}
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps({**state, **values}))

    def start_lldpad(self):
        comm = Path(self.root, "proc/77/comm")
        comm.parent.mkdir(parents=True)
        comm.write_text("lldpad\n")

    def reboot(self):
        for file in (self.sim / "qos").glob("*.json"):
            file.unlink()

    def state(self, name):
        read = qos_port.read(self, name)
        return read.trust, list(read.pfc)

    def tree(self):
        root = Path(self.root)
        return sorted(
            str(path.relative_to(root))
            for path in root.rglob("*")
            if ("proc" not in path.parts and path.is_file()) or path.is_symlink()
        )


@pytest.fixture
def spark(tmp_path, monkeypatch):
    monkeypatch.setattr(managed_files.os, "fchown", lambda *args: None)
    monkeypatch.setattr(managed_files.os, "chown", lambda *args, **kwargs: None)
    return Spark(tmp_path)


def reconcile(spark, profile, interfaces, outcome=None, check_mode=False):
    outcome = outcome or qos_port.Outcome()
    qos_profile.reconcile(spark, profile, interfaces, outcome, check_mode=check_mode)
    return outcome


def bounces(outcome):
    return [name for name, change in outcome.interfaces.items() if change.bounced]


def states(spark):
    return [spark.state(name) for name in HALVES]


def test_set_kept_and_given_back(spark):
    told = reconcile(spark, "roce", HALVES, check_mode=True)
    assert told.changed
    assert bounces(told) == HALVES
    assert states(spark) == [FACTORY] * 2
    assert spark.tree() == []
    done = reconcile(spark, "roce", HALVES)
    assert done.interfaces[HALVES[0]].state.dscp2prio[26] == 3
    assert done.interfaces[HALVES[0]].applied == ["trust", "pfc"]
    assert states(spark) == [ROCE] * 2
    assert spark.reloads == 1
    again = reconcile(spark, "roce", HALVES)
    assert (again.changed, bounces(again), again.diff, spark.reloads) == (False, [], [], 1)
    back = reconcile(spark, "none", [])
    assert back.changed
    assert states(spark) == [FACTORY] * 2
    assert spark.tree() == []
    assert not reconcile(spark, "none", HALVES).changed


def test_settings_of_the_user_come_back(spark):
    spark.set(HALVES[0], dscp={"26": 5, "8": 1}, pfc=[0, 0, 0, 0, 0, 1, 0, 0])
    reconcile(spark, "roce", HALVES)
    assert qos_port.read(spark, HALVES[0]).dscp2prio == {26: 3, 8: 1}
    reconcile(spark, "none", [])
    assert qos_port.read(spark, HALVES[0]).dscp2prio == {26: 5, 8: 1}
    assert spark.state(HALVES[0])[1] == [0, 0, 0, 0, 0, 1, 0, 0]


def test_another_cage_gives_the_old_halves_back(spark):
    reconcile(spark, "roce", HALVES)
    spark.plug("enp1s0f1np1")
    reconcile(spark, "roce", ["enp1s0f1np1"])
    assert states(spark) == [FACTORY] * 2
    assert spark.state("enp1s0f1np1") == ROCE
    assert sum("device.wants" in path for path in spark.tree()) == 1
    assert list(qos_profile.parse_record(spark.read(qos_profile.RECORD))) == ["enp1s0f1np1"]


def test_a_half_that_refuses_leaves_none_with_the_profile(spark):
    spark.set(HALVES[0], dscp={"26": 5, "8": 1})
    spark.set(HALVES[1], fail=["pfc"])
    with pytest.raises(SparkError, match="taken back on every interface"):
        reconcile(spark, "roce", HALVES)
    assert qos_port.read(spark, HALVES[0]).dscp2prio == {26: 5, 8: 1}
    assert spark.state(HALVES[0])[1] == FACTORY[1]
    assert not any("systemd" in path for path in spark.tree())
    spark.set(HALVES[1], fail=[])
    assert reconcile(spark, "roce", HALVES).changed
    assert states(spark) == [ROCE] * 2


@pytest.mark.parametrize(
    ("values", "lldpad", "says"),
    [
        ({"dcbx": "firmware"}, False, "DCBX is firmware controlled"),
        ({"supported": False}, False, "no DCB support"),
        ({}, True, "lldpad is running"),
    ],
)
def test_every_problem_is_found_before_anything_changes(spark, values, lldpad, says):
    for name in HALVES:
        spark.set(name, **values)
    if lldpad:
        spark.start_lldpad()
    told = qos_port.Outcome()
    with pytest.raises(SparkError):
        reconcile(spark, "roce", HALVES, told, check_mode=True)
    assert [problem.where for problem in told.problems] == HALVES
    with pytest.raises(SparkError) as raised:
        reconcile(spark, "roce", HALVES)
    assert all(name in str(raised.value) for name in HALVES)
    assert says in str(raised.value)
    assert spark.tree() == []


@pytest.mark.parametrize("number", range(8))
def test_a_run_that_dies_is_completed_by_the_next(spark, monkeypatch, number):
    """Killed before each step: record, first half, second half, files, reload."""
    steps = iter(range(100))

    def mortal(function):
        def call(*args, **kwargs):
            if next(steps) == number:
                raise KeyboardInterrupt
            return function(*args, **kwargs)

        return call

    real = (qos_profile.apply_set, qos_profile.write_state, qos_port._set)
    monkeypatch.setattr(qos_profile, "apply_set", mortal(qos_profile.apply_set))
    monkeypatch.setattr(qos_profile, "write_state", mortal(qos_profile.write_state))
    monkeypatch.setattr(qos_port, "_set", mortal(qos_port._set))
    spark.runner = lambda argv: mortal(spark.program)(argv) if argv[0] == "systemctl" else spark.program(argv)
    with contextlib.suppress(KeyboardInterrupt):
        reconcile(spark, "roce", HALVES)
    monkeypatch.setattr(qos_profile, "apply_set", real[0])
    monkeypatch.setattr(qos_profile, "write_state", real[1])
    monkeypatch.setattr(qos_port, "_set", real[2])
    spark.runner = spark.program
    reconcile(spark, "roce", HALVES)
    assert states(spark) == [ROCE] * 2
    assert all(qos_profile.service_unit(name) in spark.known for name in HALVES)
    assert not reconcile(spark, "roce", HALVES).changed
    reconcile(spark, "none", [])
    assert states(spark) == [FACTORY] * 2
    assert spark.tree() == []


def test_waiting_for_the_links(spark):
    spark.plug(HALVES[0], "0")
    outcome = reconcile(spark, "roce", HALVES)
    qos_port.wait_for_carrier(spark, outcome, 5)
    assert [outcome.interfaces[name].carrier for name in HALVES] == [False, True]
    assert 5 <= spark.now < 6
    spark.plug(HALVES[0])
    qos_port.wait_for_carrier(spark, outcome, 5)
    assert all(change.carrier for change in outcome.interfaces.values())
    assert spark.now < 6


# -- the subcommand


def apply_at_boot(spark, name):
    return qos_profile.run(argparse.Namespace(interface=name), spark)


def test_the_profile_comes_back_after_a_reboot(spark, capsys):
    assert apply_at_boot(spark, HALVES[0]) == 0
    assert "no QoS profile is wanted" in capsys.readouterr().out
    reconcile(spark, "roce", HALVES)
    spark.reboot()
    assert states(spark) == [FACTORY] * 2
    for name in HALVES:
        assert apply_at_boot(spark, name) == 0
    assert "changed: trust, pfc" in capsys.readouterr().out
    assert states(spark) == [ROCE] * 2
    assert apply_at_boot(spark, HALVES[0]) == 0
    assert "changed: nothing" in capsys.readouterr().out
    assert not reconcile(spark, "roce", HALVES).changed
    # What there was before is what was recorded before the first change, not what the reboot left.
    reconcile(spark, "none", [])
    assert states(spark) == [FACTORY] * 2


def test_the_subcommand_names_what_stands_in_the_way(spark, capsys):
    reconcile(spark, "roce", HALVES)
    spark.start_lldpad()
    assert apply_at_boot(spark, HALVES[0]) == 0  # nothing to change: a warning
    assert "lldpad" in capsys.readouterr().err
    spark.reboot()
    assert apply_at_boot(spark, HALVES[0]) == 1
    assert "lldpad is running" in capsys.readouterr().err
    Path(spark.root + qos_profile.WANTED).write_text("{")
    assert apply_at_boot(spark, HALVES[0]) == 1
    assert "damaged" in capsys.readouterr().err


# -- pure parts


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"schema": 1, "profile": "x", "interfaces": []}',
        '{"schema": 1, "profile": "roce", "interfaces": ["../x"]}',
        '{"schema": 1, "profile": "roce"}',
    ],
)
def test_a_damaged_wanted_file(text):
    with pytest.raises(SparkError, match="Run the fabric layer again"):
        qos_profile.parse_wanted(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"schema": 1, "interfaces": {"a b": {}}}',
        '{"schema": 1, "interfaces": {"eth0": {"trust": "pcp", "pfc": [1], "dscp2prio": {}}}}',
        '{"schema": 1, "interfaces": {"eth0": {"trust": "x", "pfc": [0,0,0,0,0,0,0,0], "dscp2prio": {}}}}',
    ],
)
def test_a_damaged_record(text):
    with pytest.raises(SparkError, match="Delete it"):
        qos_profile.parse_record(text)


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("enp1s0f0np0", "sys-subsystem-net-devices-enp1s0f0np0.device"),
        ("a-b.c_d", "sys-subsystem-net-devices-a\\x2db.c_d.device"),
        (".x", "sys-subsystem-net-devices-\\x2ex.device"),
    ],
)
def test_device_unit(name, unit):
    assert qos_profile.device_unit(name) == unit


# -- the module


def test_the_module(spark, monkeypatch):
    monkeypatch.setattr(mlnx_qos, "Machine", lambda: spark)
    monkeypatch.setattr(mlnx_qos.running_engines, "running", lambda: ["unit x is active"])
    told, failed = run_module(mlnx_qos, {"profile": "roce", "interfaces": HALVES}, check=True)
    assert not failed
    assert (told["differs"], told["engines"], told["problems"]) == (True, ["unit x is active"], [])
    done, _ = run_module(mlnx_qos, {"profile": "roce", "interfaces": HALVES, "wait_carrier": 1})
    assert (done["changed"], done["engines"]) == (True, [])
    assert done["interfaces"][HALVES[0]]["carrier"]
    assert done["interfaces"][HALVES[0]]["link_bounced"]
    spark.set(HALVES[0], dcbx="firmware", pfc=[0] * 8)
    for check in (True, False):
        refused, failed = run_module(mlnx_qos, {"profile": "roce", "interfaces": HALVES}, check=check)
        assert failed
        assert [problem["device"] for problem in refused["problems"]] == [HALVES[0]]
        assert "firmware controlled" in refused["msg"]
    spark.set(HALVES[0], dcbx="os")
    back, failed = run_module(mlnx_qos, {"profile": "none"})
    assert (failed, back["changed"], states(spark)) == (False, True, [FACTORY] * 2)
