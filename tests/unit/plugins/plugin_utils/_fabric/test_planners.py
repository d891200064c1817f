# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from typing import Any

from fabric_inputs import rdma, spark_cages
from fabric_rates import READY
from planning import plan as run
from sysfs_tree import gid_of


def node(rank: int, **changes: Any) -> dict[str, Any]:
    address = f"10.0.0.{rank + 1}"
    interfaces = [{"name": "enP7s7", "addresses": [{"address": address, "prefix": 24}]}]
    network = {"connection_address": address, "connection_interface": "enP7s7", "interfaces": interfaces, "routes": []}
    return {"rank": rank, "network": network, "rdma": rdma(spark_cages(**changes)), "cages": "auto", "environment": {}}


NODES = {"spark1": node(0), "spark2": {**node(1), "login": "Spark-1a2b.local"}}


def plan(planner: str, gathered: dict[str, dict[str, Any]], **options: Any) -> dict[str, Any]:
    """With what was heard, which is nothing where the task was skipped."""
    nodes = gathered.get("nodes") or ()
    skipped = {"heard": {host: {"changed": False, "skipped": True} for host in nodes}} if nodes else {}
    return run(planner, {**skipped, **gathered}, **options)


def measured(result: dict[str, Any]) -> dict[str, Any]:
    """What ``fabric_verify`` gathers when all is well."""
    probes = {
        host: [{**{key: path[key] for key in ("rail", "peer", "source", "address")}, "ok": True} for path in own]
        for host, own in result["paths"].items()
    }
    common = {"port": 1, "index": 3, "version": 2}
    gids = {
        host: [
            {"device": rail["rdma_device"], "gid": gid_of(rail["address"]), "netdev": rail["netdev"], **common}
            for rail in fact["rails"]
        ]
        for host, fact in result["facts"].items()
    }
    return {
        "pings": {host: {"probes": own} for host, own in probes.items()},
        "tables": {host: {"gids": own} for host, own in gids.items()},
    }


def test_plan_and_seal() -> None:
    planned = plan("fabric", {"nodes": NODES}, sparks=["spark1", "spark2"], topology="switch")
    assert not planned.get("failed") and planned["changed"] is False
    assert planned["facts"]["spark2"]["cluster_address"] == "192.168.100.11"
    assert json.loads(planned["texts"]["spark1"])["state"] == "planned"
    assert planned["hosts_lines"][:2] == ["10.0.0.1 spark1.local", "10.0.0.2 spark2.local spark-1a2b.local"]
    assert planned["hosts_lines"][2::2] == [
        "192.168.100.10 spark1-fabric spark1-fabric0",
        "192.168.100.11 spark2-fabric spark2-fabric0",
    ]
    assert planned["own_hosts_lines"] == {}
    assert len(planned["summary"]) == 5
    verified = plan("fabric_verify", measured(planned), facts=planned["facts"])
    assert verified["refusal"] is None
    assert json.loads(verified["texts"]["spark1"])["state"] == "applied"


def test_a_refused_plan_fails_with_all_reasons() -> None:
    result = plan("fabric", {"nodes": {"a": node(0, cabled=()), "b": node(1, cabled=())}}, sparks=["a", "b"])
    assert result["failed"]
    assert result["msg"].startswith("The fabric cannot be configured like this; nothing was changed:\n  1. a cage 0")
    assert "\n  2. b cage 0" in result["msg"]


def test_a_limited_run_is_refused() -> None:
    result = plan("fabric", {"nodes": NODES}, sparks=["spark1", "spark2", "spark3"])
    assert result["failed"] and "spark3: is in the group sparks and not part of this run" in result["msg"]


def test_warnings_are_shown() -> None:
    result = plan("fabric", {"nodes": {"a": node(0), "b": node(1)}}, mtu=1500)
    assert not result.get("failed")
    assert "fabric_mtu is 1500" in result["warnings"][0]


def test_a_refused_seal_hands_back_facts_that_nobody_accepts() -> None:
    planned = plan("fabric", {"nodes": NODES})
    verified = plan("fabric_verify", {"pings": {}, "tables": {}}, facts=planned["facts"])
    assert not verified.get("failed")
    assert verified["refusal"].startswith("The fabric does not work like this:\n  1. ")
    assert {json.loads(text)["state"] for text in verified["texts"].values()} == {"applying"}


def test_what_no_module_of_ours_returns_is_named() -> None:
    refused = plan("fabric", {"nodes": {"a": {"rank": "x", "rdma": {}}}})
    assert "the planner fabric was given something unexpected" in refused["msg"]
    assert "there is no fabric fact" in plan("fabric_verify", {"pings": {}, "tables": {}}, facts={"a": {}})["msg"]


# --- the measurement


def planned() -> dict[str, Any]:
    made = plan("fabric", {"nodes": NODES}, sparks=list(NODES), topology="direct")
    return plan("fabric_verify", measured(made), facts=made["facts"])


def test_schedule_and_judge() -> None:
    facts = {"facts": planned()["facts"]}
    looks = {"looks": {host: {**READY, "gids": []} for host in facts["facts"]}}
    pings = {"pings": {host: {"skipped": True} for host in facts["facts"]}}
    made = plan("bandwidth", facts | looks)
    assert made["reason"] == "" and made["gap"] is False and len(made["paths"]["spark1"]) == 2
    assert [len(made["rounds"][0][host]) for host in ("spark1", "spark2")] == [2, 2]

    def judged(*rates: float) -> dict[str, Any]:
        outcomes = [{"slot": slot, "rail": slot, "value": rate} for slot, rate in enumerate(rates)]
        told = {"spark1": {"results": [{"outcomes": []}]}, "spark2": {"results": [{"outcomes": outcomes}]}}
        bare: dict[str, Any] = {"looks": {host: {} for host in facts["facts"]}}
        return plan("bandwidth_verdict", facts | bare | pings | {"measured": told}, schedule=made)

    slow = judged(98.0, 60.0)
    assert slow["refusal"] is None and len(slow["warnings"]) == 1 and len(slow["summary"]) == 2
    assert set(slow["records"]) == {"spark1", "spark2"}
    assert [verdict["cause"] for verdict in slow["part"]["verdicts"]] == ["rdma_slow", ""]
    assert [one["value"] for one in slow["part"]["rdma"]] == [98.0, 60.0]
    broken = judged(98.0, 13.0)
    assert "1. spark2" in broken["refusal"] and "expected 25 or more: A ConnectX-7" in broken["refusal"]
    assert broken["records"] == {}


def test_a_limit_of_the_user_counts() -> None:
    facts = {"facts": planned()["facts"]}
    looks = {"looks": {host: {**READY, "gids": []} for host in facts["facts"]}}
    made = plan("bandwidth", facts | looks)
    outcomes = [{"slot": slot, "rail": slot, "value": 60.0} for slot in (0, 1)]
    told = {"spark1": {"results": []}, "spark2": {"results": [{"outcomes": outcomes}]}}
    rest = {"measured": told, "looks": {host: {} for host in told}, "pings": {host: {} for host in told}}
    judged = plan("bandwidth_verdict", facts | rest, schedule=made, limits={"half_good_gbps": 50})
    assert judged["warnings"] == [] and judged["part"]["verdicts"][0]["limit"][0]["owner"] == "you"
    assert "no limit" in plan("bandwidth_verdict", facts | rest, schedule=made, limits={"link": 1})["msg"]
