# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.sparkmatrix.cluster.plugins.modules import show_gids
from module_runner import run_module
from sysfs_tree import SysfsTree

TABLE = """DEV\tPORT\tINDEX\tGID\t\t\t\t\tIPv4  \t\tVER\tDEV
---\t----\t-----\t---\t\t\t\t\t------------  \t---\t---
rocep1s0f0\t1\t3\t0000:0000:0000:0000:0000:ffff:0a00:0101\t10.0.1.1  \tv2\tenp1s0f0np0
n_gids_found=1
"""
ENTRY = {
    "device": "rocep1s0f0",
    "port": 1,
    "index": 3,
    "gid": "0000:0000:0000:0000:0000:ffff:0a00:0101",
    "version": 2,
    "ipv4": "10.0.1.1",
    "netdev": "enp1s0f0np0",
}


@pytest.fixture
def spark(sysfs: SysfsTree) -> SysfsTree:
    """Cage 0 is cabled; one half has one more IPv6 address, so that its IPv4 address has another index."""
    sysfs.spark(cabled={0})
    sysfs.address("rocep1s0f0", 2, "10.0.1.1", "enp1s0f0np0")
    sysfs.address("roceP2p1s0f0", 2, "fe80::9c1d:5b7e:2a44:8f10", "enP2p1s0f0np0")
    return sysfs.address("roceP2p1s0f0", 4, "10.0.2.1", "enP2p1s0f0np0")


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "bin" / "show_gids"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n[ \"$LC_ALL\" = C ] && cat <<'END'\n{TABLE}END\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    return path


def run(**args: Any) -> dict[str, Any]:
    result, failed = run_module(show_gids, args)
    assert not failed, result
    return result


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("diff", [False, True])
def test_the_whole_table(spark: SysfsTree, check: bool, diff: bool) -> None:
    result, failed = run_module(show_gids, check=check, diff=diff)
    assert not failed
    assert spark.root.exists()
    assert "diff" not in result
    assert (result["changed"], result["selected"], result["source"]) == (False, {}, "sysfs")
    assert len(result["gids"]) == 2 + 2 + 4 + 6
    assert ENTRY in result["gids"]


def test_everything_that_is_returned_is_documented(spark: SysfsTree) -> None:
    assert spark.root.exists()
    result = run(family="ipv4")
    documented = yaml.safe_load(show_gids.RETURN)
    assert set(result) - {"changed", "invocation"} == set(documented)
    assert set(documented["gids"]["contains"]) == set(result["gids"][0])
    assert set(documented["selected"]["sample"]["rocep1s0f1:1"]) == set(result["selected"]["rocep1s0f0:1"])


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"family": "ipv4"}, {"rocep1s0f0:1": 3, "roceP2p1s0f0:1": 5}),
        ({"roce_version": 2}, {"rocep1s0f0:1": 3, "roceP2p1s0f0:1": 5}),
        ({"roce_version": 1}, {"rocep1s0f0:1": 2, "roceP2p1s0f0:1": 4}),
        ({"cidr": "10.0.0.0/16"}, {"rocep1s0f0:1": 3, "roceP2p1s0f0:1": 5}),
        ({"cidr": ["10.0.1.0/24", "10.0.2.0/24"]}, {"rocep1s0f0:1": 3, "roceP2p1s0f0:1": 5}),
        ({"netdev": "enP2p1s0f0np0"}, {"roceP2p1s0f0:1": 5}),
        ({"device": ["rocep1s0f0"]}, {"rocep1s0f0:1": 3}),
        ({"device": ["rocep1s0f0"], "cidr": ["10.0.1.1/32"], "roce_version": 1}, {"rocep1s0f0:1": 2}),
    ],
)
def test_selection(spark: SysfsTree, args: dict[str, Any], expected: dict[str, int]) -> None:
    assert spark.root.exists()
    result = run(**args)
    assert {name: entry["index"] for name, entry in result["selected"].items()} == expected
    assert len(result["gids"]) == 14, "the list stays complete"
    assert all(entry in result["gids"] for entry in result["selected"].values())


def test_no_rdma_device(sysfs: SysfsTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert sysfs.root.exists()
    result = run()
    assert (result["gids"], result["selected"], result["source"]) == ([], {}, "sysfs")
    result, failed = run_module(show_gids, {"family": "ipv4"})
    assert failed
    assert "no active RDMA port" in result["msg"]


def test_the_command(spark: SysfsTree, tool: Path) -> None:
    assert tool.exists()
    assert run()["source"] == "sysfs"
    result = run(source="command", family="ipv4")
    assert (result["source"], result["gids"], result["selected"]) == ("command", [ENTRY], {"rocep1s0f0:1": ENTRY})
    spark.remove("class/infiniband")
    assert run()["source"] == "command"
    assert run(source="sysfs")["gids"] == []


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo no python >&2; exit 7", ["exit code 7, no python", "source: sysfs"]),
        ("echo on stdout; exit 7", ["exit code 7, on stdout"]),
        ("echo n_gids_found=4", ["n_gids_found=4"]),
    ],
)
def test_the_command_fails(sysfs: SysfsTree, tool: Path, script: str, words: list[str]) -> None:
    assert sysfs.root.exists()
    tool.write_text(f"#!/bin/sh\n{script}\n")
    result, failed = run_module(show_gids, {"source": "command"})
    assert failed
    assert all(word in result["msg"] for word in words), result["msg"]


def test_the_command_is_missing(sysfs: SysfsTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert sysfs.root.exists()
    result, failed = run_module(show_gids, {"source": "command"})
    assert failed
    assert result["msg"] == "the tool show_gids is not installed. Use source: sysfs, which needs no tool."
