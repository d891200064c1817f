# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.sparkmatrix.cluster.plugins.modules import ibdev2netdev
from module_runner import run_module
from sysfs_tree import SysfsTree

# A stand-in for the vendor's tool. $0.out and $0.v.out hold what it prints without and with -v.
TOOL = """#!/bin/sh
[ "$LC_ALL" = C ] || { echo "the locale decides the order" >&2; exit 1; }
if [ "$1" = -v ]; then cat "$0.v.out" 2>/dev/null || exit 255; else cat "$0.out" 2>/dev/null || exit 255; fi
"""
PLAIN = "rocep1s0f0 port 1 ==> enp1s0f0np0 (Up)\n"
VERBOSE = "0000:01:00.0 rocep1s0f0 (MT4129 - NA)  fw 28.45.1020 port 1 (ACTIVE) ==> enp1s0f0np0 (Up)\n"


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "bin" / "ibdev2netdev"
    path.parent.mkdir()
    path.write_text(TOOL)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    return path


@pytest.fixture
def no_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")


def run(**args: Any) -> dict[str, Any]:
    result, failed = run_module(ibdev2netdev, args)
    assert not failed, result
    return result


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("diff", [False, True])
def test_a_spark(sysfs: SysfsTree, check: bool, diff: bool) -> None:
    sysfs.spark(cabled={1})
    result, failed = run_module(ibdev2netdev, check=check, diff=diff)
    assert not failed
    assert "diff" not in result
    assert (result["changed"], result["source"], result["reason"], result["message"]) == (False, "sysfs", None, None)
    assert [device["rdma_device"] for device in result["devices"]] == [
        "rocep1s0f0", "rocep1s0f1", "roceP2p1s0f0", "roceP2p1s0f1"
    ]  # fmt: skip
    last = result["devices"][3]
    assert (last["pci_address"], last["pcie_path"], last["pci"]["bandwidth_gbps"]) == ("0002:01:00.1", "0002", 126.0)
    assert [(cage["cage"], cage["port_name"], cage["cabled"], cage["admin_down"]) for cage in result["cages"]] == [
        (0, "p0", False, False),
        (1, "p1", True, False),
    ]
    assert result["cages"][1]["halves"] == [result["devices"][1], result["devices"][3]]


def test_everything_that_is_returned_is_documented(sysfs: SysfsTree) -> None:
    sysfs.spark()
    result = run()
    documented = yaml.safe_load(ibdev2netdev.RETURN)
    assert set(result) - {"changed", "invocation"} == set(documented)
    devices = documented["devices"]["contains"]
    assert set(devices) == set(result["devices"][0])
    assert set(devices["pci"]["contains"]) == set(result["devices"][0]["pci"])
    assert set(documented["cages"]["contains"]) == set(result["cages"][0])


def test_a_filter_that_matches_nothing(sysfs: SysfsTree) -> None:
    result = run(name="nothing") if sysfs.spark() else {}
    assert (result["devices"], result["reason"]) == ([], "filtered")
    assert result["message"] == "The filter matches none of the 4 RDMA port(s)."
    assert len(result["cages"]) == 2


@pytest.mark.usefixtures("no_tool")
@pytest.mark.parametrize("reason", ["class_missing", "nic_removed", "driver_not_loaded"])
def test_nothing_there_is_an_answer(sysfs: SysfsTree, reason: str) -> None:
    if reason == "nic_removed":
        sysfs.path("module/mlx5_core").mkdir(parents=True)
    if reason == "driver_not_loaded":
        sysfs.pci("0000:01:00.0", driver="")
    result = run()
    assert (result["devices"], result["cages"], result["reason"], result["source"]) == ([], [], reason, "sysfs")
    assert len(result["message"]) > 80


def test_the_command_on_request(sysfs: SysfsTree, tool: Path) -> None:
    sysfs.spark()
    tool.with_name("ibdev2netdev.v.out").write_text(VERBOSE)
    result = run(source="command")
    (device,) = result["devices"]
    assert (device["rdma_device"], device["firmware"], device["pcie_path"]) == ("rocep1s0f0", "28.45.1020", "0000")
    assert (result["source"], result["cages"], result["reason"]) == ("command", [], None)


@pytest.mark.parametrize("verbose", [None, ""])
def test_the_command_without_v(sysfs: SysfsTree, tool: Path, verbose: str | None) -> None:
    if verbose is not None:
        tool.with_name("ibdev2netdev.v.out").write_text(verbose)
    tool.with_name("ibdev2netdev.out").write_text(PLAIN)
    result = run(source="auto")
    assert (result["source"], result["devices"][0]["netdev"], result["devices"][0]["rdma_state"]) == (
        "command", "enp1s0f0np0", None
    )  # fmt: skip
    assert not sysfs.path("class/infiniband").exists()


def test_the_command_has_nothing_to_say(sysfs: SysfsTree, tool: Path) -> None:
    """It exits with 255 and no word when the class is missing."""
    assert tool.exists()
    assert run()["reason"] == "class_missing"
    sysfs.rxe()
    assert run()["source"] == "sysfs"
    assert run(source="command")["reason"] == "not_listed"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'bash: ip: command not found' >&2; exit 3", ["exit code 3", "ip: command not found", "source: sysfs"]),
        ("echo 'a port 1 ==> b (Sideways)'", ["cannot read the row"]),
    ],
)
def test_the_command_fails(sysfs: SysfsTree, tool: Path, script: str, words: list[str]) -> None:
    sysfs.spark()
    tool.write_text(f"#!/bin/sh\n{script}\n")
    result, failed = run_module(ibdev2netdev, {"source": "command"})
    assert failed
    assert all(word in result["msg"] for word in words), result["msg"]


@pytest.mark.usefixtures("no_tool")
def test_the_command_is_missing(sysfs: SysfsTree) -> None:
    sysfs.spark()
    result, failed = run_module(ibdev2netdev, {"source": "command"})
    assert failed
    assert result["msg"] == "the tool ibdev2netdev is not installed. Use source: sysfs, which needs no tool."
