# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Single settings through the module mlnx_qos, with the lab's simulated dcb."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import simulated
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.modules import mlnx_qos
from module_runner import run_module

PORT = "enp1s0f0np0"
OTHER = "enP2p1s0f0np0"
PFC3 = [0, 0, 0, 1, 0, 0, 0, 0]
OFF = [0] * 8
STATE: dict[str, Any] = {
    "dcbx": "os",
    "trust": "pcp",
    "dscp2prio": {},
    "pfc": OFF,
}
IDENTITY = {str(dscp): dscp >> 3 for dscp in range(64)}
EVERYTHING: dict[str, Any] = {"trust": "dscp", "dscp2prio": {26: 4}, "pfc": PFC3}
EVERYTHING_STATE = {**STATE, **EVERYTHING, "dscp2prio": {**IDENTITY, "26": 4}}
EVERYTHING_NAMES = ["trust", "dscp2prio", "pfc"]
NOT_MELLANOX = (
    "the NIC or its driver has no DCB support. Name a ConnectX netdev (driver mlx5_core, not a virtual function or a "
    "bond), see /sys/class/net/*/device/driver."
)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node with two ports and the simulated dcb; returns the folder of the ports' state."""
    sim = tmp_path / "sim"
    for name in ("lo", PORT, OTHER):
        (sim / "sys/class/net" / name).mkdir(parents=True)
    (sim / "qos").mkdir()
    machine = Machine(
        root=str(sim), sysfs_root=sim / "sys", runner=lambda argv: Completed(*simulated.dcb(argv[1:], sim))
    )
    monkeypatch.setattr(mlnx_qos, "Machine", lambda: machine)
    monkeypatch.setattr(mlnx_qos.running_engines, "running", lambda: [])
    return sim / "qos"


def dcb(lab: Path, arguments: str) -> tuple[int, str, str]:
    return simulated.dcb(arguments.split(), lab.parent)


def store(lab: Path, name: str = PORT, **values: Any) -> None:
    file = lab / f"{name}.json"
    file.write_text(json.dumps({**(json.loads(file.read_text()) if file.exists() else {}), **values}))


def run(check: bool = False, diff: bool = False, **options: Any) -> tuple[dict[str, Any], bool]:
    return run_module(mlnx_qos, {"interfaces": [PORT], **options}, check=check, diff=diff)


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    texts: list[str] = []
    monkeypatch.setattr(mlnx_qos.AnsibleModule, "warn", lambda _self, text: texts.append(text))
    return texts


def test_only_read(lab: Path) -> None:
    result, failed = run(interfaces=[PORT, OTHER])
    assert (failed, result["changed"], result["link_bounced"], result["diff"]) == (False, False, False, [])
    assert result["interfaces"][PORT] == result["interfaces"][OTHER]
    assert result["interfaces"][PORT] == {
        "applied": [],
        "commands": [],
        "link_bounced": False,
        "carrier": False,
        "state": STATE,
    }
    assert list(lab.iterdir()) == []


def test_everything_twice(lab: Path) -> None:
    predicted = run(check=True, **EVERYTHING)[0]
    assert list(lab.iterdir()) == []
    first, failed = run(**EVERYTHING)
    assert not failed
    assert (first["changed"], first["link_bounced"]) == (True, True)
    assert first["interfaces"][PORT]["state"] == EVERYTHING_STATE
    assert first["interfaces"][PORT]["applied"] == EVERYTHING_NAMES
    # ansible-core 2.21 leaves out how the module was called.
    assert {**predicted, "invocation": None} == {**first, "invocation": None}
    second, failed = run(**EVERYTHING)
    assert (failed, second["changed"], second["interfaces"][PORT]["commands"]) == (False, False, [])
    assert second["interfaces"][PORT]["state"] == EVERYTHING_STATE


def test_a_failure_takes_everything_back(lab: Path) -> None:
    """The second port refuses its last setting, after the first port was set whole and the second in part."""
    store(lab, PORT, dscp={"26": 5})
    before = run()[0]["interfaces"][PORT]["state"]
    store(lab, OTHER, fail=["pfc"])
    result, failed = run(interfaces=[PORT, OTHER], **EVERYTHING)
    assert failed
    assert f"{OTHER}: dcb pfc set dev {OTHER}" in result["msg"]
    assert "failed: Attribute write: Invalid argument. The change was taken back on every interface" in result["msg"]
    assert [result["interfaces"][name]["state"] for name in (PORT, OTHER)] == [before, STATE]
    assert [result["interfaces"][name]["applied"] for name in (PORT, OTHER)] == [[], []]
    assert result["link_bounced"]
    assert run()[0]["interfaces"][PORT]["state"] == before
    store(lab, OTHER, fail=[])
    assert not run(interfaces=[PORT, OTHER], **EVERYTHING)[1]


@pytest.mark.parametrize("setting", ["dscp", "pfc"])
def test_a_setting_without_effect(lab: Path, setting: str) -> None:
    store(lab, ignore=[setting])
    name = "trust" if setting == "dscp" else setting
    result, failed = run(**{name: EVERYTHING[name]})
    assert failed
    assert f"the NIC did not take over all settings: {name} should be " in result["msg"]


@pytest.mark.parametrize("check", [True, False])
def test_firmware_controlled(lab: Path, warned: list[str], check: bool) -> None:
    store(lab, dcbx="firmware")
    found = f"{PORT}: DCBX is firmware controlled, so the switch decides about these settings"
    result, failed = run(pfc=OFF)
    assert (failed, result["changed"], warned) == (False, False, [found])
    result, failed = run(pfc=PFC3, check=check)
    assert (failed, result["changed"]) == (True, False)
    remedy = f"Make the change on the switch, or take over with: dcb dcbx set dev {PORT} host ieee"
    assert result["msg"] == f"{found}. {remedy}."
    assert result["problems"] == [{"device": PORT, "found": found.partition(": ")[2], "remedy": remedy}]
    # What the message names works.
    assert dcb(lab, f"dcbx set dev {PORT} host ieee")[0] == 0
    assert not run(pfc=PFC3)[1]


def test_lldpad(lab: Path, warned: list[str]) -> None:
    for pid, comm in (("1", "systemd"), ("self", "bash"), ("4711", "lldpad")):
        (lab.parent / "proc" / pid).mkdir(parents=True)
        (lab.parent / "proc" / pid / "comm").write_text(f"{comm}\n")
    found = f"{PORT}: lldpad is running and may overwrite these settings"
    assert not run()[1]
    assert warned == [found]
    result, failed = run(pfc=PFC3)
    assert failed
    assert result["msg"] == f"{found}. Stop it (systemctl disable --now lldpad) or set allow_lldpad: true."
    result, failed = run(pfc=PFC3, allow_lldpad=True)
    assert (failed, result["changed"], warned) == (False, True, [found] * 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"interfaces": ["enp9s0"]},
            f"enp9s0: there is no such interface; present are: {OTHER}, {PORT}, lo. Correct the option interfaces. "
            "Without a cable a Spark removes its ConnectX interfaces.",
        ),
        (
            {"interfaces": ["../lo"]},
            "option interface: '../lo' is not an interface name. Give a netdev, for example enp1s0f0np0.",
        ),
        ({"interfaces": ["lo"]}, f"lo: {NOT_MELLANOX}"),
        (
            {"pfc": [0, 0, 0, 2]},
            f"{PORT}: pfc is [0, 0, 0, 2], expected 8 times 0 or 1, one per priority. Correct the options; nothing was "
            "changed.",
        ),
        (
            {"dscp2prio": {"26": 3}},
            f"{PORT}: dscp2prio needs trust dscp, but trust is pcp. Set trust: dscp as well, or leave out dscp2prio.",
        ),
        ({"profile": "roce", "pfc": PFC3}, "parameters are mutually exclusive: profile|pfc"),
    ],
)
def test_refused(lab: Path, options: dict[str, Any], message: str) -> None:
    for check in (True, False):
        result, failed = run(check=check, **options)
        assert (failed, result["msg"]) == (True, message)
        assert not result.get("changed")
