# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""``fabric_apply`` and ``fabric_probe`` from their options to their results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import bandwidth, ping
from ansible_collections.sparkmatrix.cluster.plugins.modules import fabric_apply, fabric_bandwidth, fabric_probe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.plan import Settings, plan
from fabric_inputs import sparks
from fake_node import FakeNode
from module_runner import run_module

A, B = "enp1s0f0np0", "enP2p1s0f0np0"
FACT = plan(sparks(2), Settings()).facts["spark1"].as_dict()


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNode:
    fake = FakeNode(tmp_path / "root", (A, B))
    real = fabric_apply.Machine

    def machine(**_options: Any) -> Any:
        return real(str(fake.root), fake.run, fake.sleep, fake.clock, fake.root / "sys")

    monkeypatch.setattr(fabric_apply, "Machine", machine)
    return fake


def test_apply_in_check_mode(node: FakeNode) -> None:
    before = node.tree()
    result, failed = run_module(fabric_apply, {"fact": FACT, "hosts_lines": ["1.2.3.4 a"]}, check=True)
    assert not failed and result["changed"]
    assert f"{A}: up, MTU 9000, 192.168.100.10/24" in result["changes"]
    assert result["fact"] is None and result["fact_applied"] is False
    assert node.tree() == before


def test_nothing_to_give_back(node: FakeNode) -> None:
    result, failed = run_module(fabric_apply, {"state": "absent"})
    assert not failed and not result["changed"] and result["changes"] == []


def test_apply_refuses(node: FakeNode) -> None:
    result, failed = run_module(fabric_apply, {"fact": FACT, "connection_interface": A}, check=True)
    assert failed and "carries Ansible's connection" in result["msg"]
    result, failed = run_module(fabric_apply, {"fact": {**FACT, "schema": 9}})
    assert failed and "schema 9" in result["msg"]
    result, failed = run_module(fabric_apply, {})
    assert failed and "fact" in result["msg"]


def test_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    path = {"rail": 0, "netdev": A, "source": "10.0.0.1", "peer": "b", "address": "10.0.0.2"}
    asked: list[Any] = []
    heard = [{"netdev": A, "address": "10.0.0.2", "mac": "02:00:00:00:00:01"}]
    monkeypatch.setattr(fabric_probe.arp, "holders", lambda _machine, wanted: asked.append(wanted) or heard)
    answer = Completed(0, "8980 bytes from 10.0.0.2: icmp_seq=1 ttl=64 time=0.1 ms")
    probe = ping.probe
    monkeypatch.setattr(fabric_probe, "probe", lambda paths, timeout: probe(paths, timeout, lambda _argv: answer))
    result, failed = run_module(fabric_probe, {"paths": [path]})
    assert not failed and not result["changed"]
    assert result["probes"][0]["ok"] and result["probes"][0]["rtt_ms"] == 0.1
    assert asked == [{A: {"10.0.0.1", "10.0.0.2"}}] and result["holders"] == heard
    missing = Completed(127, "", "ping: not found")
    monkeypatch.setattr(fabric_probe, "probe", lambda paths, timeout: probe(paths, timeout, lambda _argv: missing))
    result, failed = run_module(fabric_probe, {"paths": [path], "timeout": 1})
    assert failed and "Install iputils-ping" in result["msg"]


def test_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    test = {"slot": 0, "role": "client", "test": "write", "rail": 0, "device": "rocep1s0f0", "port": 1, "gid_index": 3}
    test |= {"netdev": "enp1s0f0np0", "source": "10.0.0.1", "peer": "spark2", "address": "10.0.0.2", "tcp_port": 18515}
    outcome = bandwidth.Outcome(0, "client", "write", 0, "spark2", "rocep1s0f0", 97.5, 4096)
    asked = []

    def measure(tests: Any, *given: Any) -> bandwidth.Measured:
        asked.append((tests, *given))
        return bandwidth.Measured([outcome] if tests else [], {"rocep1s0f0": 0.0}, {}, 5.0)

    monkeypatch.setattr(bandwidth, "measure", measure)
    result, failed = run_module(fabric_bandwidth, {"phase": "measure", "tests": [test], "duration": 7})
    assert not failed
    assert (result["outcomes"][0]["value"], result["outcomes"][0]["peer"]) == (97.5, "spark2")
    assert [(tests[0].address, seconds) for tests, seconds, _wait, _machine in asked] == [("10.0.0.2", 7)]
    result, failed = run_module(fabric_bandwidth, {"phase": "measure", "tests": [test]}, check=True)
    assert not failed and result["outcomes"] == []
