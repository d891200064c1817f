# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Cases of the module mlnx_qos: arguments, the commands it must run in this order with their answers, the result."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import simulated
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._qos import port as qos_port
from ansible_collections.sparkmatrix.cluster.plugins.modules import mlnx_qos
from module_runner import run_module
from sysfs_tree import SysfsTree

ROOT = Path(__file__).parents[4]
FIXTURES = ROOT / "tests/unit/fixtures"
FACTORY = (FIXTURES / "mlnx_qos/24.10-factory-all-classes.txt").read_text()
PORT = "enp1s0f0np0"
TOOL = "/usr/bin/mlnx_qos"
DCB = "/sbin/dcb"
SHOW = [TOOL, "-i", PORT, "-a"]
PFC3 = [0, 0, 0, 1, 0, 0, 0, 0]
OFF = [0] * 8
PFC_LINE = "enabled     0   0   0   0   0   0   0   0"
PFC3_LINE = "enabled     0   0   0   1   0   0   0   0"
MAP = "".join(
    f"\tprio:{priority} dscp:{''.join(f'{code:02d},' for code in range(8 * priority + 7, 8 * priority - 1, -1))}\n"
    for priority in range(8)
)
STATE: dict[str, Any] = {
    "dcbx": "os",
    "trust": "pcp",
    "dscp2prio": {},
    "default_priority": [],
    "pfc": OFF,
    "prio_tc": [1, 0, 2, 3, 4, 5, 6, 7],
    "tsa": ["vendor"] * 8,
    "tcbw": OFF,
    "ratelimit": [0.0] * 8,
    "cable_len": 7,
    "prio2buffer": [1] * 8,
    "buffer_size": [0, 523296, 0, 0, 0, 0, 0, 0],
    "buffer_total": 2039616,
    "lldpad": False,
}
IDENTITY = {str(dscp): dscp >> 3 for dscp in range(64)}


def replaced(*pairs: tuple[str, str], text: str = FACTORY) -> str:
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text


def dscp_text(mapping: str = MAP) -> str:
    return replaced(("trust state: pcp\n", f"trust state: dscp\ndscp2prio mapping:\n{mapping}"))


PFC_ON = replaced((PFC_LINE, PFC3_LINE))
DSCP = dscp_text()
DSCP_26_4 = dscp_text(replaced(("27,26,25", "27,25"), ("39,38,37,36", "26,39,38,37,36"), text=MAP))


@dataclass(frozen=True)
class Call:
    argv: list[str]
    out: str = ""
    rc: int = 0
    err: str = ""


@dataclass(frozen=True)
class Case:
    name: str
    args: dict[str, Any]
    calls: list[Call]
    result: dict[str, Any]
    check: bool = False
    failed: bool = False
    tools: tuple[str, ...] = ("mlnx_qos", "dcb")
    lldpad: bool = False
    warnings: list[str] = field(default_factory=list)


def show(text: str = FACTORY) -> Call:
    return Call(SHOW, text)


def do(*options: str, **answer: Any) -> Call:
    return Call([TOOL, "-i", PORT, *options], **answer)


def outcome(changed: bool = False, applied: str = "", bounced: bool = False, **more: Any) -> dict[str, Any]:
    result: dict[str, Any] = {
        "changed": changed,
        "applied": applied.split(),
        "link_bounced": bounced,
        "backend": "mlnx_qos",
        "state": STATE,
    }
    result.update(more)
    return {name: value for name, value in result.items() if value is not None}


def state(**difference: Any) -> dict[str, Any]:
    return {**STATE, **difference}


NOTHING_READ = {"backend": None, "state": None}
ETS = ["ets"] * 6 + ["strict", "ets"]
EVERYTHING = {
    "trust": "dscp",
    "dscp2prio": {26: 4},
    "prio_tc": [0, 0, 0, 3, 0, 0, 6, 0],
    "tsa": ETS,
    "tcbw": [50, 0, 0, 50, 0, 0, 0, 0],
    "ratelimit": [10, 0, 0, 0, 0, 0, 0, 0],
    "pfc": PFC3,
    "cable_len": 3,
    "prio2buffer": [0, 0, 0, 1, 0, 0, 0, 0],
    "buffer_size": [100000, 0, 0, 0, 0, 0, 0, 0],
}
EVERYTHING_STEPS = [
    do("--trust", "dscp"),
    do("--dscp2prio", "set,26,4"),
    do(
        "--prio_tc", "0,0,0,3,0,0,6,0",
        "--tsa", "ets,ets,ets,ets,ets,ets,strict,ets",
        "--tcbw", "50,0,0,50,0,0,0,0",
    ),
    do("--ratelimit", "10,0,0,0,0,0,0,0"),
    do("--pfc", "0,0,0,1,0,0,0,0", "--cable_len", "3"),
    do("--prio2buffer", "0,0,0,1,0,0,0,0", "--buffer_size", "99936,0,0,0,0,0,0,0"),
]  # fmt: skip
EVERYTHING_STATE = state(
    trust="dscp",
    dscp2prio={**IDENTITY, "26": 4},
    prio_tc=[0, 0, 0, 3, 0, 0, 6, 0],
    tsa=ETS,
    tcbw=[50, 0, 0, 50, 0, 0, 0, 0],
    ratelimit=[10.0] + [0.0] * 7,
    pfc=PFC3,
    cable_len=3,
    prio2buffer=[0, 0, 0, 1, 0, 0, 0, 0],
    buffer_size=[99936, 0, 0, 0, 0, 0, 0, 0],
)
EVERYTHING_NAMES = "trust dscp2prio prio_tc tsa tcbw ratelimit pfc cable_len prio2buffer buffer_size"
FIRMWARE = replaced(("OS controlled", "Firmware controlled"))
LLDPAD = f"****** WARNING: lldpad service is running and may overwrite your settings ******\n\n{FACTORY}"
UNSUPPORTED = (FIXTURES / "mlnx_qos/unsupported.txt").read_text()
REFUSED_BY_NIC = "Traceback (most recent call last):\nOSError: Netlink error: Operation not supported (95)\n"


def dcb_calls(app: str = "", pfc: str = "pfc-off.json") -> list[Call]:
    answers = {
        "dcbx": (FIXTURES / "dcb/dcbx-host.json").read_text(),
        "pfc": (FIXTURES / "dcb" / pfc).read_text(),
        "ets": (FIXTURES / "dcb/ets-vendor.json").read_text(),
        "buffer": (FIXTURES / "dcb/buffer.json").read_text(),
        "app": app,
    }
    return [
        Call([DCB, "-N" if name == "app" else "-j", name, "show", "dev", PORT], out) for name, out in answers.items()
    ]


CASES = [
    Case("only read", {}, [show()], outcome(commands=[])),
    Case("already so", {"pfc": OFF, "trust": "pcp", "cable_len": 7}, [show()], outcome(commands=[])),
    Case(
        "change the PFC mask",
        {"pfc": PFC3},
        [show(), do("--pfc", "0,0,0,1,0,0,0,0", "--cable_len", "7"), show(PFC_ON)],
        outcome(True, "pfc", True, state=state(pfc=PFC3)),
    ),
    Case(
        "change the PFC mask, check mode",
        {"pfc": PFC3},
        [show()],
        outcome(
            True,
            "pfc",
            True,
            state=state(pfc=PFC3),
            commands=[[TOOL, "-i", PORT, "--pfc", "0,0,0,1,0,0,0,0", "--cable_len", "7"]],
        ),
        check=True,
    ),
    Case(
        "the cable does not bounce the link",
        {"cable_len": 30},
        [show(), do("--pfc", "0,0,0,0,0,0,0,0", "--cable_len", "30"), show(replaced(("len: 7", "len: 30")))],
        outcome(True, "cable_len", state=state(cable_len=30)),
    ),
    Case(
        "trust and one DSCP entry",
        {"trust": "dscp", "dscp2prio": {26: 4}},
        [show(), do("--trust", "dscp"), do("--dscp2prio", "set,26,4"), show(DSCP_26_4)],
        outcome(True, "trust dscp2prio", state=state(trust="dscp", dscp2prio={**IDENTITY, "26": 4})),
    ),
    Case(
        "trust brings another map than expected",
        {"trust": "dscp", "dscp2prio": {"26": 3}},
        [show(), do("--trust", "dscp"), show(DSCP_26_4), do("--dscp2prio", "set,26,3"), show(DSCP)],
        outcome(True, "trust dscp2prio", state=state(trust="dscp", dscp2prio=IDENTITY)),
    ),
    Case(
        "everything, check mode",
        EVERYTHING,
        [show()],
        outcome(
            True, EVERYTHING_NAMES, True, state=EVERYTHING_STATE, commands=[call.argv for call in EVERYTHING_STEPS]
        ),
        check=True,
    ),
    Case(
        "a failure half way",
        {"trust": "dscp", "pfc": PFC3, "prio2buffer": OFF, "buffer_size": OFF},
        [
            show(),
            do("--trust", "dscp"),
            do("--pfc", "0,0,0,1,0,0,0,0", "--cable_len", "7"),
            do(
                "--prio2buffer",
                "0,0,0,0,0,0,0,0",
                "--buffer_size",
                "0,0,0,0,0,0,0,0",
                out="Buffers commands error\n",
                rc=1,
            ),
            show(replaced((PFC_LINE, PFC3_LINE), text=DSCP)),
        ],
        outcome(
            True,
            "trust pfc",
            True,
            state=state(trust="dscp", dscp2prio=IDENTITY, pfc=PFC3),
            not_applied=["prio2buffer", "buffer_size"],
            msg=f"{PORT}: {TOOL} -i {PORT} --prio2buffer 0,0,0,0,0,0,0,0 --buffer_size 0,0,0,0,0,0,0,0 failed: Buffers "
            "commands error. Applied before: trust, pfc; not applied: prio2buffer, buffer_size. Correct it and run "
            "again: what is in force already is not repeated.",
        ),
        failed=True,
    ),
    Case(
        "the first command fails and the state cannot be read again",
        {"pfc": PFC3, "prio2buffer": OFF},
        [
            show(),
            do("--pfc", "0,0,0,1,0,0,0,0", "--cable_len", "7", rc=1, err=REFUSED_BY_NIC),
            Call(SHOW, "", 1, "gone\n"),
        ],
        outcome(
            not_applied=["pfc", "prio2buffer"],
            commands=[],
            msg=f"{PORT}: {TOOL} -i {PORT} --pfc 0,0,0,1,0,0,0,0 --cable_len 7 failed: OSError: Netlink error: "
            "Operation not supported (95). Applied before: nothing; not applied: pfc, prio2buffer. Correct it and run "
            "again: what is in force already is not repeated.",
        ),
        failed=True,
    ),
    Case(
        "a failing command that had an effect",
        {"pfc": PFC3},
        [show(), do("--pfc", "0,0,0,1,0,0,0,0", "--cable_len", "7", rc=137), show(PFC_ON)],
        outcome(
            True,
            "",
            True,
            state=state(pfc=PFC3),
            not_applied=["pfc"],
            commands=[],
            msg=f"{PORT}: {TOOL} -i {PORT} --pfc 0,0,0,1,0,0,0,0 --cable_len 7 failed: exit code 137 without a message"
            ". Applied before: nothing; not applied: pfc. Correct it and run again: what is in force already is not "
            "repeated.",
        ),
        failed=True,
    ),
    Case(
        "the NIC ignores a setting",
        {"ratelimit": [3, 0, 0, 0, 0, 0, 0, 0]},
        [show(), do("--ratelimit", "3,0,0,0,0,0,0,0"), show()],
        outcome(
            True,
            "ratelimit",
            msg=f"{PORT}: the NIC did not take over all settings: ratelimit shall be 3,0,0,0,0,0,0,0 but is "
            "0,0,0,0,0,0,0,0. See dmesg for the driver's reason.",
        ),
        failed=True,
    ),
    Case(
        "firmware controlled, nothing to do",
        {"pfc": OFF},
        [show(FIRMWARE)],
        outcome(state=state(dcbx="firmware"), commands=[]),
        warnings=[f"{PORT}: DCBX is firmware controlled, so the switch decides about these settings"],
    ),
    Case(
        "firmware controlled",
        {"pfc": PFC3},
        [show(FIRMWARE)],
        outcome(
            state=state(dcbx="firmware"),
            commands=[],
            msg=f"{PORT}: DCBX is firmware controlled, so the switch decides about these settings. Make the change on "
            f"the switch, or take over with: mlnx_qos -i {PORT} -d os.",
        ),
        failed=True,
    ),
    Case(
        "lldpad, nothing to do",
        {},
        [show(LLDPAD)],
        outcome(state=state(lldpad=True)),
        warnings=[f"{PORT}: lldpad is running and may overwrite these settings"],
    ),
    Case(
        "lldpad, something to do",
        {"pfc": PFC3},
        [show(LLDPAD)],
        outcome(
            state=state(lldpad=True),
            msg=f"{PORT}: lldpad is running and may overwrite these settings. Stop it (systemctl disable --now lldpad) "
            "or set allow_lldpad: true.",
        ),
        failed=True,
    ),
    Case(
        "lldpad seen as a process, check mode",
        {"pfc": PFC3},
        [show()],
        outcome(
            msg=f"{PORT}: lldpad is running and may overwrite these settings. Stop it (systemctl disable --now lldpad) "
            "or set allow_lldpad: true.",
        ),
        check=True,
        failed=True,
        lldpad=True,
    ),
    Case(
        "lldpad allowed",
        {"pfc": PFC3, "allow_lldpad": True},
        [show(), do("--pfc", "0,0,0,1,0,0,0,0", "--cable_len", "7"), show(PFC_ON)],
        outcome(True, "pfc", True, state=state(pfc=PFC3)),
        lldpad=True,
        warnings=[f"{PORT}: lldpad is running and may overwrite these settings"],
    ),
    Case(
        "missing interface",
        {"interface": "enp9s0"},
        [],
        outcome(
            **NOTHING_READ,
            msg=f"enp9s0: there is no such interface; present are: {PORT}, lo. Correct the option interface. Without a "
            "cable a Spark removes its ConnectX interfaces.",
        ),
        failed=True,
    ),
    Case(
        "impossible interface",
        {"interface": "../lo"},
        [],
        outcome(
            **NOTHING_READ,
            msg="option interface: '../lo' is not an interface name. Give a netdev, for example enp1s0f0np0.",
        ),
        failed=True,
    ),
    Case(
        "unsupported interface",
        {},
        [Call(SHOW, UNSUPPORTED, 1)],
        outcome(
            state=None,
            msg=f"{PORT}: the NIC or its driver has no DCB support. Name a ConnectX netdev (driver mlx5_core, not a "
            "virtual function or a bond), see /sys/class/net/*/device/driver.",
        ),
        failed=True,
    ),
    Case(
        "no permission",
        {},
        [Call(SHOW, "[Errno 1] Operation not permitted\n", 1)],
        outcome(
            state=None,
            msg=f"{PORT}: mlnx_qos cannot read the settings: [Errno 1] Operation not permitted. Run the module as root "
            "(become: true) and try the command by hand.",
        ),
        failed=True,
    ),
    Case(
        "wrong length and range at once",
        {"pfc": [0, 0, 0, 2]},
        [],
        outcome(
            **NOTHING_READ,
            msg=f"{PORT}: pfc has 4 items, expected 8, one per priority from 0 to 7; pfc[3] is 2, expected 0 to 1. "
            "Correct the options; nothing was changed.",
        ),
        failed=True,
    ),
    Case(
        "no backend",
        {},
        [],
        outcome(
            **NOTHING_READ,
            msg=f"{PORT}: the command mlnx_qos or dcb is not installed. Install nvidia-mlnx-tools (DGX OS) for "
            "mlnx_qos, or iproute2 for dcb.",
        ),
        tools=(),
        failed=True,
    ),
    Case(
        "the backend that was asked for is not there",
        {"backend": "mlnx_qos"},
        [],
        outcome(
            **NOTHING_READ,
            msg=f"{PORT}: the command mlnx_qos is not installed. Install nvidia-mlnx-tools (DGX OS) for mlnx_qos, or "
            "iproute2 for dcb.",
        ),
        tools=("dcb",),
        failed=True,
    ),
    Case(
        "dcb is the second choice",
        {},
        dcb_calls(),
        outcome(backend="dcb", state=state(ratelimit=None)),
        tools=("dcb",),
    ),
    Case(
        "dcb, change the PFC mask",
        {"backend": "dcb", "pfc": [0, 0, 0, 1, 0, 0, 0, 1], "cable_len": 30},
        [
            *dcb_calls(),
            Call([DCB, "pfc", "set", "dev", PORT, "prio-pfc", "all:off", "3:on", "7:on", "delay", "30"]),
            *dcb_calls(pfc="pfc-statistics.json"),
        ],
        outcome(
            True,
            "pfc cable_len",
            True,
            backend="dcb",
            state=state(ratelimit=None, pfc=[0, 0, 0, 1, 0, 0, 0, 1], cable_len=30),
        ),
    ),
    Case(
        "dcb, two commands for one setting and the second fails",
        {"backend": "dcb", "dscp2prio": {"26": 4}, "dscp2prio_purge": True},
        [
            *dcb_calls("dscp-prio 26:3 48:6 \n"),
            Call([DCB, "app", "add", "dev", PORT, "dscp-prio", "26:4"]),
            Call([DCB, "app", "del", "dev", PORT, "dscp-prio", "48:6"], "", 1, "Attribute write: No such file\n"),
            *dcb_calls("dscp-prio 26:4 48:6 \n"),
        ],
        outcome(
            True,
            "dscp2prio",
            backend="dcb",
            not_applied=["dscp2prio"],
            state=state(ratelimit=None, trust="dscp", dscp2prio={"26": 4, "48": 6}),
            msg=f"{PORT}: {DCB} app del dev {PORT} dscp-prio 48:6 failed: Attribute write: No such file. Applied "
            "before: dscp2prio; not applied: dscp2prio. Correct it and run again: what is in force already is not "
            "repeated.",
        ),
        failed=True,
    ),
    Case(
        "dcb cannot limit rates",
        {"backend": "dcb", "ratelimit": [0] * 8},
        [],
        outcome(
            backend="dcb",
            state=None,
            msg=f"{PORT}: backend dcb cannot set ratelimit. Leave out ratelimit, or install mlnx_qos (package "
            "nvidia-mlnx-tools on DGX OS) and use it.",
        ),
        failed=True,
    ),
    Case(
        "dcb on an unsupported interface",
        {"backend": "dcb"},
        [Call(call.argv, "\n", 1, "Attribute read: Operation not supported\n") for call in dcb_calls()],
        outcome(
            backend="dcb",
            state=None,
            msg=f"{PORT}: the NIC or its driver has no DCB support. Name a ConnectX netdev (driver mlx5_core, not a "
            "virtual function or a bond), see /sys/class/net/*/device/driver.",
        ),
        failed=True,
    ),
    Case(
        "a contradiction",
        {"dscp2prio": {"26": 3}},
        [show()],
        outcome(
            msg=f"{PORT}: dscp2prio needs trust dscp, but trust is pcp. Set trust: dscp as well, or leave out "
            "dscp2prio."
        ),
        failed=True,
    ),
]


@pytest.fixture
def node(sysfs: SysfsTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A node with two interfaces and a /proc of its own; yields the latter."""
    for name in ("lo", PORT):
        (sysfs.root / "class/net" / name).mkdir(parents=True)
    proc = tmp_path / "proc"
    for pid, comm in (("1", "systemd"), ("self", "lldpad"), ("77", None)):
        (proc / pid).mkdir(parents=True)
        if comm:
            (proc / pid / "comm").write_text(f"{comm}\n")
        else:
            (proc / pid / "comm").mkdir()  # unreadable, as a process that just ended
    monkeypatch.setattr(qos_port, "PROC", proc)
    yield proc


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_cases(case: Case, node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list(case.calls)

    def run_command(_self: AnsibleModule, argv: list[str], **options: Any) -> tuple[int, str, str]:
        assert options == {"environ_update": {"LANG": "C", "LC_ALL": "C", "LANGUAGE": "C"}}
        assert calls, f"unexpected: {argv}"
        call = calls.pop(0)
        assert argv == call.argv
        return call.rc, call.out, call.err

    paths = {"mlnx_qos": TOOL, "dcb": DCB}
    monkeypatch.setattr(AnsibleModule, "run_command", run_command)
    monkeypatch.setattr(
        AnsibleModule, "get_bin_path", lambda _self, name, *_args: paths[name] if name in case.tools else None
    )
    if case.lldpad:
        (node / "4711").mkdir()
        (node / "4711/comm").write_text("lldpad\n")
    warned: list[str] = []
    monkeypatch.setattr(AnsibleModule, "warn", lambda _self, text: warned.append(text))
    result, failed = run_module(mlnx_qos, {"interface": PORT, **case.args}, check=case.check)
    assert calls == []
    assert failed == case.failed, result
    expected = {"commands": changing(case), **case.result}
    shown = {name: value for name, value in result.items() if name in {*expected, "not_applied", "state", "msg"}}
    assert shown == expected
    assert warned == case.warnings


def changing(case: Case) -> list[list[str]]:
    """The successful commands among the calls that change something."""
    return [call.argv for call in case.calls if call.rc == 0 and call.argv != SHOW and "show" not in call.argv]


def test_diff(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [FACTORY, "", "", DSCP_26_4]
    monkeypatch.setattr(AnsibleModule, "run_command", lambda *_args, **_options: (0, answers.pop(0), ""))
    monkeypatch.setattr(AnsibleModule, "get_bin_path", lambda *_args: TOOL)
    result, _failed = run_module(mlnx_qos, {"interface": PORT, "trust": "dscp", "dscp2prio": {"26": 4}}, diff=True)
    before, after = result["diff"]["before"], result["diff"]["after"]
    assert {name: (before[name], after[name]) for name in before if before[name] != after[name]} == {
        "trust": ("pcp", "dscp"),
        "dscp2prio": (
            {},
            {
                "priority 0": "0,1,2,3,4,5,6,7",
                "priority 1": "8,9,10,11,12,13,14,15",
                "priority 2": "16,17,18,19,20,21,22,23",
                "priority 3": "24,25,27,28,29,30,31",
                "priority 4": "26,32,33,34,35,36,37,38,39",
                "priority 5": "40,41,42,43,44,45,46,47",
                "priority 6": "48,49,50,51,52,53,54,55",
                "priority 7": "56,57,58,59,60,61,62,63",
            },
        ),
    }


# --- with the simulated command of the lab ---


@pytest.fixture
def lab(node: Path, sysfs: SysfsTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The simulated mlnx_qos on PATH; returns the state file of the port."""
    sim = tmp_path / "sim"
    for name in ("lo", PORT):
        (sim / "sys/class/net" / name).mkdir(parents=True)
    tools = tmp_path / "bin"
    tools.mkdir()
    shutil.copy(ROOT / "tests/lab/tools/mlnx_qos", tools / "mlnx_qos")
    assert (tools / "mlnx_qos").stat().st_mode & stat.S_IXUSR
    monkeypatch.setenv("SIM_ROOT", str(sim))
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    run_command = AnsibleModule.run_command

    def in_this_process(module: AnsibleModule, argv: list[str], **options: Any) -> tuple[int, str, str]:
        if Path(argv[0]).name == "mlnx_qos":
            return simulated.mlnx_qos(argv[1:], sim)
        return run_command(module, argv, **options)

    monkeypatch.setattr(AnsibleModule, "run_command", in_this_process)
    (sim / "qos").mkdir()
    return sim / "qos" / f"{PORT}.json"


def test_lab_everything_twice(lab: Path) -> None:
    args = {"interface": PORT, **EVERYTHING}
    predicted = run_module(mlnx_qos, args, check=True)[0]
    assert not lab.exists()
    first, failed = run_module(mlnx_qos, args)
    assert not failed
    assert (first["changed"], first["link_bounced"], first["backend"]) == (True, True, "mlnx_qos")
    assert first["state"] == predicted["state"] == EVERYTHING_STATE
    assert first["commands"] == predicted["commands"]
    assert first["applied"] == predicted["applied"] == EVERYTHING_NAMES.split()
    second, failed = run_module(mlnx_qos, args)
    assert (failed, second["changed"], second["commands"], second["link_bounced"]) == (False, False, [], False)
    assert second["state"] == first["state"]


def test_lab_there_and_back(lab: Path) -> None:
    run_module(mlnx_qos, {"interface": PORT, **EVERYTHING})
    back = {
        "trust": "pcp",
        "prio_tc": STATE["prio_tc"],
        "tsa": STATE["tsa"],
        "ratelimit": OFF,
        "pfc": OFF,
        "cable_len": 7,
        "prio2buffer": [1] * 8,
        "buffer_size": STATE["buffer_size"],
    }
    result, failed = run_module(mlnx_qos, {"interface": PORT, **back})
    assert not failed
    assert result["state"] == STATE


def test_lab_purge(lab: Path) -> None:
    args = {"interface": PORT, "trust": "dscp", "dscp2prio": {"26": 3, "48": 6}, "dscp2prio_purge": True}
    result, failed = run_module(mlnx_qos, args)
    assert not failed
    assert result["state"]["dscp2prio"] == {"26": 3, "48": 6}
    assert run_module(mlnx_qos, args)[0]["changed"] is False


def test_lab_cable_alone_keeps_pfc(lab: Path) -> None:
    """24.10 clears the mask when --cable_len comes alone; the simulated tool does the same."""
    run_module(mlnx_qos, {"interface": PORT, "pfc": PFC3})
    result = run_module(mlnx_qos, {"interface": PORT, "cable_len": 40})[0]
    assert (result["state"]["pfc"], result["state"]["cable_len"], result["link_bounced"]) == (PFC3, 40, False)


def test_lab_failure_half_way_and_next_run(lab: Path) -> None:
    lab.write_text(json.dumps({"fail": ["buffer_size"]}))
    args = {"interface": PORT, "pfc": PFC3, "buffer_size": OFF}
    result, failed = run_module(mlnx_qos, args)
    assert failed
    assert (result["applied"], result["not_applied"], result["changed"]) == (["pfc"], ["buffer_size"], True)
    assert result["link_bounced"] is True
    assert "failed: Buffers commands error. Applied before: pfc; not applied: buffer_size." in result["msg"]
    lab.write_text(json.dumps({**json.loads(lab.read_text()), "fail": []}))
    result, failed = run_module(mlnx_qos, args)
    assert (failed, result["applied"], result["link_bounced"]) == (False, ["buffer_size"], False)


@pytest.mark.parametrize("setting", ["trust", "tsa", "pfc", "prio2buffer", "ratelimit", "prio_tc"])
def test_lab_setting_without_effect(lab: Path, setting: str) -> None:
    lab.write_text(json.dumps({"ignore": [setting, "tcbw"]}))
    value = {**EVERYTHING, "tsa": ["strict"] * 8}[setting]
    result, failed = run_module(mlnx_qos, {"interface": PORT, setting: value})
    assert failed
    assert f"the NIC did not take over all settings: {setting} shall be " in result["msg"]


def test_lab_without_buffers(lab: Path) -> None:
    lab.write_text(json.dumps({"buffers": False}))
    result, failed = run_module(mlnx_qos, {"interface": PORT, "pfc": PFC3})
    assert not failed
    assert result["commands"] == [[result["commands"][0][0], "-i", PORT, "--pfc", "0,0,0,1,0,0,0,0"]]
    assert (result["state"]["pfc"], result["state"]["cable_len"], result["state"]["buffer_size"]) == (PFC3, 0, None)
    result, failed = run_module(mlnx_qos, {"interface": PORT, "prio2buffer": OFF})
    assert failed
    assert "does not report prio2buffer, so it cannot be set" in result["msg"]


def test_lab_without_rate_limits(lab: Path) -> None:
    lab.write_text(json.dumps({"rate": False}))
    result, failed = run_module(mlnx_qos, {"interface": PORT, "prio_tc": OFF})
    assert not failed
    assert (result["state"]["prio_tc"], result["state"]["ratelimit"]) == (OFF, None)


@pytest.mark.parametrize(
    ("arguments", "code", "output"),
    [
        ([], 1, "Interface name is required\nUsage: mlnx_qos -i <interface> [options]\n\n"),
        (["-i", "nosuch0"], 1, UNSUPPORTED),
        (["-i", "lo"], 1, UNSUPPORTED),
        (["-i", "../lo"], 1, UNSUPPORTED),
        (["-i", PORT, "--pfc", "0,0,0,1"], 1, "pfc list must have 8 items\n"),
        (["-i", PORT, "--pfc", "0,0,0,1,0,0,0,0,0"], 1, "Too many items for PFC\n"),
        (
            ["-i", PORT, "--pfc", "0,0,0,2,0,0,0,0"],
            1,
            "Bad value for PFC: 2 is not in the range 0..1\nUsage: mlnx_qos -i <interface> [options]\n\n",
        ),
        (["-i", PORT, "--trust", "foo"], 1, "Invalid trust state command. Refer to the help.\n"),
        (["-i", "lo", "--trust", "dscp"], 1, "Priority trust state is not supported on your system\n"),
        (["-i", "lo", "--pfc", "0,0,0,1,0,0,0,0"], 1, "Netlink error: Operation not supported (95)\n"),
        (
            ["-i", PORT, "--trust", "dscp", "--dscp2prio", "set,1,1"],
            1,
            "trust and dscp2prio commands cannot be used at the same time.\n",
        ),
        (["-i", PORT, "--dscp2prio", "set,64,1"], 1, "Invalid dscp2prio command. Refer to the help.\n"),
        (["-i", PORT, "--dscp2prio", "del,26,3"], 1, "dscp2prio command failed\n"),
        (["-i", PORT, "--tsa", "ets"], 1, "tsa list must have 8 items\n"),
        (["-i", PORT, "--buffer_size", "2039761"], 1, "Buffers commands error\n"),
        (["-i", PORT, "surplus"], 1, "Bad arguments\nUsage: mlnx_qos -i <interface> [options]\n\n"),
        (["-i", PORT], 0, None),
    ],
)
def test_lab_command(lab: Path, arguments: list[str], code: int, output: str | None) -> None:
    """What the simulated command says where the real one was seen to say it."""
    found = simulated.mlnx_qos(arguments, lab.parents[1])
    assert found == (code, FACTORY if output is None else output, "")


def test_lab_unknown_option(lab: Path) -> None:
    """As a process of its own, as on a node."""
    done = subprocess.run(["mlnx_qos", "--bogus"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "Usage: mlnx_qos -i <interface> [options]\n\nmlnx_qos: error: no such option: --bogus\n"
