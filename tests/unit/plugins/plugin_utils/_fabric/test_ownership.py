# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import plan as fabric_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.types import Settings
from fabric_inputs import wired
from planning import plan
from ssh_keys import ssh_key

FACTS = {host: fact.as_dict() for host, fact in fabric_plan.plan(wired("spark1.0 spark2.0"), Settings()).facts.items()}


def node(rank: int, address: str = "", **changes: Any) -> dict[str, Any]:
    own = address or f"10.0.0.{rank + 1}"
    look = {
        "public_key": ssh_key(f"own {rank}"),
        "host_keys": [ssh_key(f"host {rank}")],
        "connection": ["10.0.0.99", "50000", own, "22"],
        "ssh_ports": [22],
        "network": {"interfaces": [{"name": "enP7s7", "addresses": [{"address": own, "prefix": 24}]}]},
    }
    fact = {**FACTS[f"spark{rank + 1}"], **changes}
    return {"rank": rank, "address": "", "login": f"10.0.0.{rank + 1}", "addresses": {}, "look": look, "fact": fact}


def run(liar: dict[str, Any]) -> dict[str, Any]:
    return plan("peers", {"nodes": {"spark1": node(0), "spark2": liar}})


def test_everybody_has_what_is_his() -> None:
    made = run(node(1))
    assert not made.get("failed") and not made["warnings"]
    assert "allow from 192.168.100.11" in made["rules"]["spark1"]["ray"]


@pytest.mark.parametrize(
    ("liar", "words"),
    [
        (node(1, "10.0.0.1"), "spark2: it says that 10.0.0.1 is its management address, and"),
        (node(1, "240.0.0.9"), "spark2: it says that 240.0.0.9 is its management address"),
        (
            node(1, rails=[{**rail, "address": "10.0.0.66"} for rail in FACTS["spark2"]["rails"][:1]]),
            "cluster_address 192.168.100.11 is neither",
        ),
        (node(1, management_address="fe80::1%x\n  ProxyCommand id"), "the fabric fact is damaged"),
    ],
)
def test_what_is_somebody_elses_is_refused(liar: dict[str, Any], words: str) -> None:
    made = run(liar)
    assert made["failed"] and words in made["msg"], made


def test_an_address_outside_the_plan_of_the_fabric_is_let_in_nowhere() -> None:
    rails = [{**rail, "address": "10.0.0.66"} for rail in FACTS["spark2"]["rails"][:1]]
    made = run(node(1, rails=rails, cluster_address="10.0.0.66"))
    assert "spark2 enp1s0f0np0: its fabric fact says 10.0.0.66/24, which the plan of the fabric" in made["warnings"][0]
    others = {name: made[name]["spark1"] for name in ("files", "hosts_lines", "rules", "ignore")}
    assert "10.0.0.66" not in str(others)


@pytest.mark.parametrize("old", [("10.0.0.2", "10.0.0.1"), ("10.0.0.7", "10.0.0.1"), ("10.0.0.2", "127.0.0.1")])
def test_the_management_addresses_of_the_last_run_may_be_others_by_now(old: tuple[str, str]) -> None:
    """Leases of DHCP that were swapped or inherited: what counts is what each machine has today."""
    alone = {"topology": "single", "rails": [], "cables": []}
    today = plan("peers", {"nodes": {f"spark{rank + 1}": node(rank, **alone) for rank in (0, 1)}})
    for more in (alone, {}):
        was = [{"management_address": one, **({"cluster_address": one} if more else {}), **more} for one in old]
        made = plan("peers", {"nodes": {f"spark{rank + 1}": node(rank, **was[rank]) for rank in (0, 1)}})
        assert not made.get("failed"), made
        assert not more or made["rules"] == today["rules"]


def test_where_a_node_is_logged_in_from_counts_for_itself() -> None:
    liar = node(1)
    liar["look"]["connection"][0] = "10.0.0.66"
    made = run(liar)
    assert "10.0.0.66" not in made["ignore"]["spark1"] and "10.0.0.66" in made["ignore"]["spark2"]
