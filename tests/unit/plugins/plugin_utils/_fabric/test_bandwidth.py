# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import yaml
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.bandwidth import Look
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.ping import Path
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.bandwidth import (
    Schedule,
    schedule,
)
from fabric_rates import DEVICES, fabric, gids, look
from hypothesis import given
from hypothesis import strategies as st

ROOT = pathlib.Path(__file__).resolve().parents[5]


def all_paths(facts: Mapping[str, FabricFact]) -> dict[str, list[Path]]:
    return {
        host: [
            Path(rail.index, rail.netdev, rail.address, peer, other.rails[rail.index].address, 9000)
            for rail in fact.rails
            for peer, other in facts.items()
            if peer != host
        ]
        for host, fact in facts.items()
    }


def plan(facts: Mapping[str, FabricFact], test: str = "auto", **changes: Any) -> Schedule:
    ready = changes.pop("ready", dict.fromkeys(facts, look()))
    options = {"paths": all_paths(facts), "changed": False, "forks": 64, "first_port": 18515, **changes}
    return schedule(test, facts, ready=ready, **options)


def steps(made: Schedule, host: str, number: int = 0) -> list[tuple[Any, ...]]:
    return [(part.slot, part.test, part.role, part.rail, part.tcp_port) for part in made.rounds[number][host]]


def test_two_nodes_measure_both_halves_one_after_the_other() -> None:
    made = plan(fabric(2))
    assert made.reason == "" and len(made.rounds) == 1
    assert steps(made, "spark2") == [(0, "write", "client", 0, 18515), (1, "write", "client", 1, 18516)]
    assert [(part.role, part.source, part.peer, part.address) for part in made.rounds[0]["spark1"]] == [
        ("server", "192.168.100.10", "spark2", "192.168.100.11"),
        ("server", "192.168.101.10", "spark2", "192.168.101.11"),
    ]
    assert made.rounds[0]["spark1"][0].gid_index == 3


def test_everything_is_every_half_alone_and_all_together_and_back() -> None:
    made = plan(fabric(2), "always", everything=True)
    both = [(6, "write"), (7, "write"), (8, "write_both_directions")]
    assert [(slot, test) for slot, test, _role, _rail, _port in steps(made, "spark1")] == [
        *((slot, test) for slot, test in enumerate(["latency", "write", "write"] * 2)),
        *(step for step in both for _half in DEVICES),
    ]
    roles = {slot: role for slot, _test, role, _rail, _port in steps(made, "spark1")}
    assert [slot for slot, role in roles.items() if role == "client"] == [2, 5, 7]
    assert len({part.tcp_port for part in made.rounds[0]["spark1"]}) == 12, "nobody meets the server of another test"


def test_beside_an_engine_only_the_latency_is_measured() -> None:
    busy = {host: look(busy=["sparkmatrix-engine.service"]) for host in ("spark1", "spark2")}
    made = plan(fabric(2), "always", ready=busy, everything=True)
    assert [test for _slot, test, *_rest in steps(made, "spark1")] == ["latency", "latency"]
    assert made.reason == "the engine is running and would be disturbed on all nodes" and made.gap


def test_the_index_of_the_gid_is_that_of_now() -> None:
    """It moves whenever somebody gives the interface another address."""
    ready = {"spark1": look(gids=gids("192.168.100.10", 5)), "spark2": look()}
    made = plan(fabric(2), ready=ready)
    assert [part.gid_index for part in made.rounds[0]["spark1"]] == [5, 3]


@given(st.integers(2, 12), st.data())
def test_every_pair_once_and_no_node_twice_at_a_time(count: int, data: st.DataObject) -> None:
    facts = fabric(count)
    paths = {host: [p for p in own if data.draw(st.booleans())] for host, own in all_paths(facts).items()}
    made = plan(facts, paths=paths, everything=data.draw(st.booleans()))
    wanted = {frozenset((path.source, path.address)) for own in paths.values() for path in own}
    met = [(host, part) for own in made.rounds for host, parts in own.items() for part in parts]
    assert {frozenset((part.source, part.address)) for _host, part in met} == wanted
    pairs = [
        pair
        for own in made.rounds
        for pair in {frozenset((h, part.peer)) for h, parts in own.items() for part in parts}
    ]
    assert len(pairs) == len(set(pairs)), "a pair meets once"
    for own in made.rounds:
        for host, parts in own.items():
            assert len({part.peer for part in parts}) == 1
            for part in parts:
                (back,) = [o for o in own[part.peer] if (o.slot, o.source) == (part.slot, part.address)]
                assert (back.peer, back.address, back.tcp_port, back.test) == (
                    host,
                    part.source,
                    part.tcp_port,
                    part.test,
                )
                assert {back.role, part.role} == {"server", "client"}


def other(**changes: Any) -> dict[str, Look]:
    return {"spark1": look(), "spark2": look(**changes)}


@pytest.mark.parametrize(
    ("changes", "reason", "gap"),
    [
        ({"test": "never"}, "never", False),
        ({"ready": other(tool=None)}, "ib_write_bw is missing (install the package perftest) on spark2", True),
        (
            {"ready": {"spark1": Look(), "spark2": Look()}},
            "is missing (install the package perftest) on all nodes",
            True,
        ),
        ({"ready": other(verbs=False)}, "no /dev/infiniband", True),
        ({"ready": other(busy=["x"])}, "the engine is running and would be disturbed on spark2", True),
        ({"forks": 1}, "set --forks 2", True),
        ({"paths": {}}, "no two nodes share a subnet", True),
    ],
)
def test_reasons_for_not_measuring(changes: dict[str, Any], reason: str, gap: bool) -> None:
    made = plan(fabric(2), **changes)
    assert reason in made.reason
    assert made.gap is gap
    assert not made.rounds and not made.no_infiniband


def test_neither_tcp_nor_a_single_node_is_measured() -> None:
    facts = fabric(2)
    assert "socket" in plan({**facts, "spark2": replace(facts["spark2"], transport="socket")}).reason
    assert "no fabric" in plan({"spark1": replace(fabric(1)["spark1"], rails=())}).reason


def test_what_was_measured_is_not_measured_again() -> None:
    facts = fabric(2)
    ready = {host: look(measured=fact.plan_hash) for host, fact in facts.items()}
    assert "nothing has changed" in plan(facts, ready=ready).reason
    serving = {host: replace(own, busy=["sparkmatrix-engine.service"], tool=None) for host, own in ready.items()}
    assert not plan(facts, ready=serving).gap and plan(facts, ready=serving, changed=True).gap
    assert plan(facts, ready=ready, changed=True).reason == ""
    assert plan(facts, "always", ready=ready).reason == ""
    stale = {**ready, "spark1": look(measured="other")}
    assert plan(facts, ready=stale).reason == ""


def test_without_dev_infiniband_only_the_benchmark_finds_a_fault() -> None:
    assert plan(fabric(2), ready=other(verbs=False)).no_infiniband == []
    assert plan(fabric(2), ready=other(verbs=False), everything=True).no_infiniband == ["spark2"]


def test_soft_roce_at_one_end_makes_both_use_small_queues() -> None:
    made = plan(fabric(2), ready=other(software=DEVICES[:1]))
    assert [[part.software for part in own] for own in made.rounds[0].values()] == [[True, False], [True, False]]


def test_every_round_is_a_task_of_its_own() -> None:
    """A task with a loop runs it on each machine at its own pace: one would meet the machine of another round."""
    tasks = yaml.safe_load((ROOT / "roles/fabric/tasks/bandwidth_round.yml").read_text())
    (measuring,) = [task for task in tasks if task.get("sparkmatrix.cluster.node", {}).get("call") == "rdma_rates"]
    assert "loop" not in measuring
    assert "bandwidth_round.yml" in (ROOT / "roles/fabric/tasks/bandwidth_measure.yml").read_text()
