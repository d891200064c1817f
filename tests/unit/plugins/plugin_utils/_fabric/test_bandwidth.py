# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact, Rail
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.bandwidth import (
    Schedule,
    Thresholds,
    as_dicts,
    judge,
    schedule,
)
from hypothesis import given
from hypothesis import strategies as st

READY = {"tool": "/usr/bin/ib_write_bw", "verbs": True, "busy": [], "software": [], "record": None}
DEVICES = ("rocep1s0f0", "roceP2p1s0f0")


def fabric(count: int) -> dict[str, FabricFact]:
    made = {}
    for rank in range(count):
        rails = tuple(
            Rail(
                index=index,
                cage=0,
                pcie_path=f"000{index * 2}",
                netdev=f"net{index}",
                rdma_device=device,
                rdma_port=1,
                address=f"192.168.10{index}.{10 + rank}",
                prefix=24,
                mtu=9000,
                link_gbps=200,
                segment=f"rail{index}",
                gid_index=3,
            )
            for index, device in enumerate(DEVICES)
        )
        host = f"spark{rank + 1}"
        made[host] = FabricFact(
            host=host,
            state="applied",
            topology="switch",
            transport="rdma",
            rank=rank,
            nodes=count,
            management_address=f"10.0.0.{rank + 1}",
            cluster_address=rails[0].address,
            cluster_interface="net0",
            rails=rails,
        ).with_hash()
    return made


def all_paths(facts: Mapping[str, FabricFact]) -> dict[str, list[dict[str, Any]]]:
    return {
        host: [
            {"rail": rail.index, "source": rail.address, "peer": peer, "address": other.rails[rail.index].address}
            for rail in fact.rails
            for peer, other in facts.items()
            if peer != host
        ]
        for host, fact in facts.items()
    }


def plan(facts: Mapping[str, FabricFact], test: str = "auto", **changes: Any) -> Schedule:
    ready = changes.pop("ready", dict.fromkeys(facts, READY))
    options = {"paths": all_paths(facts), "changed": False, "forks": 64, "first_port": 18515, **changes}
    return schedule(test, facts, ready=ready, **options)


def test_two_nodes_measure_both_halves_one_after_the_other() -> None:
    made = plan(fabric(2))
    assert made.reason == ""
    assert [(t.slot, t.role, t.device, t.address, t.tcp_port) for t in made.tests["spark2"]] == [
        (0, "client", "rocep1s0f0", "192.168.100.10", 18515),
        (1, "client", "roceP2p1s0f0", "192.168.101.10", 18516),
    ]
    assert [(t.slot, t.role, t.source) for t in made.tests["spark1"]] == [
        (0, "server", "192.168.100.10"),
        (1, "server", "192.168.101.10"),
    ]
    assert as_dicts(made.tests)["spark1"][0]["gid_index"] == 3


@given(st.integers(2, 12), st.data())
def test_every_pair_once_and_no_node_twice_at_a_time(count: int, data: st.DataObject) -> None:
    facts = fabric(count)
    paths = {host: [p for p in own if data.draw(st.booleans())] for host, own in all_paths(facts).items()}
    made = plan(facts, paths=paths)
    wanted = {frozenset((path["source"], path["address"])) for own in paths.values() for path in own}
    clients = [(t.slot, host, t) for host, own in made.tests.items() for t in own if t.role == "client"]
    assert {frozenset((t.source, t.address)) for _slot, _host, t in clients} == wanted
    assert len(clients) == len(wanted)
    for host, own in made.tests.items():
        assert len({t.slot for t in own}) == len(own)
        for t in own:
            (back,) = [other for other in made.tests[t.peer] if other.slot == t.slot]
            assert (back.peer, back.address, back.tcp_port) == (host, t.source, t.tcp_port)
            assert {back.role, t.role} == {"server", "client"}


def other(**changes: Any) -> dict[str, dict[str, Any]]:
    return {"spark1": READY, "spark2": {**READY, **changes}}


@pytest.mark.parametrize(
    ("changes", "reason", "gap"),
    [
        ({"test": "never"}, "never", False),
        ({"ready": other(tool=None)}, "ib_write_bw is missing (install the package perftest) on spark2", True),
        ({"ready": {"spark1": {}, "spark2": {}}}, "is missing (install the package perftest) on all nodes", True),
        ({"ready": other(verbs=False)}, "no /dev/infiniband", True),
        ({"ready": other(busy=["x"])}, "the engine is running and would be disturbed on spark2", True),
        ({"forks": 1}, "set --forks 2", True),
        ({"paths": {}}, "no two nodes share a subnet", False),
    ],
)
def test_reasons_for_not_measuring(changes: dict[str, Any], reason: str, gap: bool) -> None:
    made = plan(fabric(2), **changes)
    assert reason in made.reason
    assert made.gap is gap
    assert not any(made.tests.values())


def test_neither_tcp_nor_a_single_node_is_measured() -> None:
    facts = fabric(2)
    assert "socket" in plan({**facts, "spark2": replace(facts["spark2"], transport="socket")}).reason
    assert "no fabric" in plan({"spark1": replace(fabric(1)["spark1"], rails=())}).reason


def test_what_was_measured_is_not_measured_again() -> None:
    facts = fabric(2)
    ready = {host: {**READY, "record": {"plan_hash": fact.plan_hash}} for host, fact in facts.items()}
    assert "nothing has changed" in plan(facts, ready=ready).reason
    serving = {host: {**own, "busy": ["sparkmatrix-engine.service"], "tool": None} for host, own in ready.items()}
    assert not plan(facts, ready=serving).gap and plan(facts, ready=serving, changed=True).gap
    assert plan(facts, ready=ready, changed=True).reason == ""
    assert plan(facts, "always", ready=ready).reason == ""
    stale = {**ready, "spark1": {**READY, "record": {"plan_hash": "other"}}}
    assert plan(facts, ready=stale).reason == ""


def verdict(rates: Sequence[float | None], software: Sequence[str] = ()) -> Any:
    facts = fabric(2)
    made = plan(facts, ready={host: {**READY, "software": software} for host in facts})
    outcomes = {
        "spark1": [{"slot": slot, "gbps": None, "reason": None} for slot in (0, 1)],
        "spark2": [
            {"slot": slot, "gbps": rate, "reason": None if rate else "broken", "remedy": "mend"}
            for slot, rate in enumerate(rates)
        ],
    }
    return judge(facts, made.tests, outcomes, Thresholds())


@pytest.mark.parametrize(
    ("rate", "severity"),
    [
        (112.0, None),
        (90.0, None),
        (89.9, "warning"),
        (25.0, "warning"),
        (24.9, "error"),
        (0.0, "error"),
        (None, "error"),
    ],
)
def test_thresholds(rate: float | None, severity: str | None) -> None:
    made = verdict([rate, 98.0])
    assert [finding.severity for finding in made.findings] == ([severity] if severity else [])
    assert made.refused == (severity == "error")
    assert bool(made.records) == (severity != "error")
    for finding in made.findings:
        assert (finding.host, finding.device) == ("spark2", "rocep1s0f0") and "spark1" in finding.found


def test_a_degraded_card_gets_its_remedy() -> None:
    (finding,) = verdict([13.3, 98.0]).findings
    assert "13.3 Gb/s" in finding.found and "Reboot both nodes with the cable attached" in finding.remedy


def test_soft_roce_only_has_to_run() -> None:
    made = verdict([0.13, 0.2], software=DEVICES)
    assert not made.findings
    assert made.summary[0] == "spark2 rocep1s0f0 to spark1 rocep1s0f0: 0.13 Gb/s (soft RoCE: not judged)"
    nothing = verdict([0.0, 0.2], software=DEVICES)
    assert nothing.refused


def test_soft_roce_at_one_end_makes_both_use_small_queues() -> None:
    made = plan(fabric(2), ready=other(software=DEVICES[:1]))
    assert [[test.software for test in own] for own in made.tests.values()] == [[True, False], [True, False]]


def test_the_record_is_for_this_plan_and_names_both_ends() -> None:
    made = verdict([98.0, 97.0])
    record = json.loads(made.records["spark1"])
    assert record["plan_hash"] == fabric(2)["spark1"].plan_hash
    assert [(half["device"], half["peer"], half["gbps"]) for half in record["halves"]] == [
        ("rocep1s0f0", "spark2", 98.0),
        ("roceP2p1s0f0", "spark2", 97.0),
    ]


def test_what_the_server_says_is_part_of_the_finding() -> None:
    facts = fabric(2)
    made = plan(facts)
    outcomes = {"spark1": [{"slot": 0, "reason": "memory"}, {"slot": 1, "reason": "memory"}], "spark2": []}
    found = judge(facts, made.tests, outcomes, Thresholds())
    assert len(found.findings) == 2
    assert "no result came back; spark1 says: memory" in found.findings[0].found
