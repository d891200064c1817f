# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What a node writes for Prometheus, of the head of two that serves."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.gpu import Clocks
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import kept_plan
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import show_gids
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FACT_PATH, dump
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.show_gids import Gid
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.status import Relayed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._metrics import collect
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._metrics.collect import Collector
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict import document, store
from fake_spark import HALVES, Spark

GPU = Clocks(96, 71, 2405, ("hardware thermal slowdown",), 84.5)
FIRST = 'cage="0",device="rocep1s0f0",interface="net0"'


def counter(name):
    return FIRST.replace(",", f',counter="{name}",', 1)


def addresses(mtu=9000, second="192.168.101.10"):
    def one(name, address, mtu):
        info = [{"family": "inet", "local": address, "prefixlen": 24, "scope": "global"}]
        return {"ifname": name, "flags": ["UP", "LOWER_UP"], "mtu": mtu, "addr_info": info, "operstate": "UP"}

    return Completed(0, json.dumps([one("net0", "192.168.100.10", mtu), one("net1", second, 9000)]))


class Node(Spark):
    def __init__(self, root, monkeypatch):
        super().__init__(root)
        self.answers["ip -j addr show"] = addresses()
        self.answers["ethtool -S net0"] = Completed(0, "     rx_prio3_pause_duration: 7\n     rx_bytes: 5\n")
        for device in HALVES:
            place = f"sys/class/infiniband/{device}/ports/1"
            for name, count in (("counters/port_xmit_data", 10), ("counters/port_rcv_data", 5)):
                self.write(f"{place}/{name}", f"{count}\n")
            for name, count in (("out_of_sequence", 3), ("np_cnp_sent", 4), ("lifespan", 10)):
                self.write(f"{place}/hw_counters/{name}", f"{count}\n")
        gids = [Gid(rail.rdma_device, 1, 3, _mapped(rail.address), 2, rail.netdev) for rail in self.fact.rails]
        monkeypatch.setattr(show_gids, "read", lambda _sysfs: gids)
        entry = {"time": "2026-11-23T10:00:00+00:00", "event": "rank", "host": "spark2", "reason": 'died: "x"'}
        state = {"phase": "serving", "failures": 1, "history": [entry, entry]}
        self.write("var/lib/sparkmatrix/keeper/state.json", json.dumps(state))
        self.write("run/sparkmatrix/keeper.lock", "7 48.0 1000.5 1 0.25")
        self.collector = self.new()

    def new(self, **parts):
        machine = Machine(str(self.root), self.run, clock=lambda: 50.0)
        return Collector(
            machine, **{"gpu": lambda _machine: GPU, "gateway": lambda: None, "relay": lambda: None, **parts}
        )

    def lines(self):
        return [line for line in self.collector.all().splitlines() if not line.startswith("#")]


def _mapped(address):
    digits = "".join(f"{int(part):02x}" for part in address.split("."))
    return f"0000:0000:0000:0000:0000:ffff:{digits[:4]}:{digits[4:]}"


@pytest.fixture
def node(tmp_path, monkeypatch):
    return Node(tmp_path, monkeypatch)


def test_a_healthy_head_tells_all_of_itself(node):
    lines = node.lines()
    for line in (
        "sparkmatrix_gpu_utilization_ratio 0.96",
        "sparkmatrix_gpu_power_watts 84.5",
        "sparkmatrix_gpu_sm_clock_hertz 2405000000",
        'sparkmatrix_gpu_slowed{reason="hardware thermal slowdown"} 1',
        'sparkmatrix_gpu_slowed{reason="hardware power brake"} 0',
        "sparkmatrix_fabric_applied 1",
        f"sparkmatrix_half_up{{{FIRST}}} 1",
        f"sparkmatrix_half_mtu_bytes{{{FIRST}}} 9000",
        f'sparkmatrix_fabric_drift{{{FIRST},kind="wrong_mtu"}} 0',
        f"sparkmatrix_rdma_bytes_total{{{FIRST}}} 60",
        f"sparkmatrix_rdma_events_total{{{counter('np_cnp_sent')}}} 4",
        f"sparkmatrix_rdma_events_total{{{counter('rx_prio3_pause_duration')}}} 7",
        'sparkmatrix_keeper_running{service="engine"} 1',
        'sparkmatrix_keeper_phase{phase="serving",service="engine"} 1',
        'sparkmatrix_keeper_phase{phase="gave_up",service="engine"} 0',
        'sparkmatrix_keeper_failures{service="engine"} 1',
        'sparkmatrix_keeper_restarts{event="rank",service="engine"} 2',
        'sparkmatrix_probe_answered{service="engine"} 1',
        'sparkmatrix_probe_seconds{service="engine"} 0.25',
        'sparkmatrix_rank_unit_up{service="engine",unit="sparkmatrix-engine.service"} 1',
        'sparkmatrix_rank_processes{service="engine",unit="sparkmatrix-engine.service"} 1',
        *(f'sparkmatrix_metrics_part_ok{{part="{part}"}} 1' for part in ("gpu", "fabric", "keeper", "ranks", "models")),
    ):
        assert line in lines
    assert 'event="rank",host="spark2",reason="died: \\"x\\"",service="engine"} 1795428000' in "".join(lines)
    assert not any("lifespan" in line or ("drift" in line and line.endswith(" 1")) for line in lines)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            lambda node: node.answers.update({"ip -j addr show": addresses(mtu=1500)}),
            f'drift{{{FIRST},kind="wrong_mtu"}} 1',
        ),
        (lambda node: node.answers.update({"ip -j addr show": Completed(1)}), 'part_ok{part="fabric"} 0'),
        (lambda node: node.write("etc/sparkmatrix/engine.json", "{"), 'part_ok{part="ranks"} 0'),
        (lambda node: node.write("var/lib/sparkmatrix/keeper/state.json", "torn"), 'running{service="engine"} 1'),
        (lambda node: node.write("run/sparkmatrix/keeper.lock", "7 x"), 'running{service="engine"} 1'),
        (
            lambda node: node.write(FACT_PATH, dump(replace(node.fact, state="applying"))),
            "sparkmatrix_fabric_applied 0",
        ),
    ],
)
def test_what_is_wrong_or_torn_is_told_and_hides_nothing_else(node, change, line):
    change(node)
    lines = node.lines()
    assert any(one.endswith(line) for one in lines)
    assert "sparkmatrix_gpu_power_watts 84.5" in lines
    assert 'sparkmatrix_metrics_part_ok{part="models"} 1' in lines


def test_a_part_that_fails_is_said_once(node, capsys):
    node.answers["ip -j addr show"] = Completed(1, "", "broken")
    node.lines()
    node.lines()
    assert capsys.readouterr().err.count("fabric: ") == 1
    node.answers["ip -j addr show"] = addresses()
    node.lines()
    assert capsys.readouterr().err == "fabric: it can be read again\n"


def test_a_machine_without_anything_of_ours_tells_what_it_has(tmp_path):
    found = Collector(Machine(str(tmp_path), lambda _argv: Completed(127)), gpu=lambda _machine: None).all()
    names = {line.partition(" ")[0].partition("{")[0] for line in found.splitlines() if not line.startswith("#")}
    assert names == {
        "sparkmatrix_metrics_part_ok",
        "sparkmatrix_metrics_took_seconds",
        "sparkmatrix_metrics_cpu_seconds_total",
    }


def test_a_gpu_and_a_plan_that_nobody_can_read_are_no_gpu_and_no_plan(node):
    """Without a word their warnings would end."""
    node.write("proc/driver/nvidia/gpus/000f:01:00.0/information", "Model: NVIDIA GB10\n")
    node.write(f"{kept_plan.DIRECTORY}/current.json", "{}")
    lines = node.new(gpu=lambda _machine: None).all().splitlines()
    assert {line for line in lines if line.endswith(" 0") and "part_ok" in line} == {
        'sparkmatrix_metrics_part_ok{part="gpu"} 0',
        'sparkmatrix_metrics_part_ok{part="models"} 0',
    }


def test_a_gateway_that_answers_has_its_connections(node):
    node.write("etc/sparkmatrix/gateway.json", "{}")
    assert not any("relay" in line for line in node.lines())
    node.write("etc/sparkmatrix/gateway/relay.json", "{}")
    relayed = Relayed(held=3, held_total=40, gave_up=2, late=1)
    node.collector = node.new(gateway=lambda: {"waiting": 2, "requests": 31}, relay=lambda: relayed)
    lines = node.lines()
    assert "sparkmatrix_gateway_answers 1" in lines
    assert "sparkmatrix_gateway_requests_total 31" in lines
    assert 'sparkmatrix_gateway_connections{state="waiting"} 2' in lines
    assert {"sparkmatrix_gateway_relay_answers 1", "sparkmatrix_gateway_held 3"} <= set(lines)
    assert 'sparkmatrix_gateway_held_lost_total{how="left"} 2' in lines
    node.collector = node.new()
    assert {"sparkmatrix_gateway_answers 0", "sparkmatrix_gateway_relay_answers 0"} <= set(node.lines())


def test_the_last_verdicts_and_models_are_looked_at_seldom(node):
    verdict = document.Verdict("x", document.PASS, "cluster", "fine")
    run = document.Run("one", "doctor", "2026-11-23T10:00:00Z", 1, "0.1.0", verdicts=(verdict,))
    store.keep(run, str(node.root))
    assert 'sparkmatrix_verdicts{outcome="pass",playbook="doctor"} 1' in node.lines()
    store.keep(replace(run, playbook="verify", at="2026-11-23T10:05:00Z"), str(node.root))
    assert not any('playbook="verify"' in line for line in node.lines())


def test_models_of_the_plan_are_here_or_not(node):
    own = replace(node.service.models[0], name="/models/own")
    other = replace(node.service.models[0], environment={"HF_HOME": "/elsewhere"}, name="o/other")
    models = (own, *node.service.models, other)
    node.keep(replace(node.plan, models=models, model_cache=node.service.model_cache))
    node.write("models/own/config.json", "{}")
    found = [line for line in node.lines() if line.startswith("sparkmatrix_model_present")]
    assert [line.split('"')[1] + line[-2:] for line in found] == ["/models/own 1", f"{node.service.models[0].name} 0"]


def test_the_program_writes_the_file_or_says_why_not(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(collect, "Collector", type("C", (), {"all": lambda _self: "a 1\n"}))
    arguments = type("A", (), {"file": str(tmp_path / "node.prom"), "every": 0})()
    assert collect.run(arguments) == 0
    assert (tmp_path / "node.prom").read_text() == "a 1\n"
    arguments.file = "-"
    assert collect.run(arguments) == 0
    assert capsys.readouterr().out == "a 1\n"
    arguments.file = str(tmp_path / "gone/node.prom")
    assert collect.run(arguments) == 1
    assert "No such file" in capsys.readouterr().err
