# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact, Rail
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.hosts_names import (
    hosts_lines,
    labels,
    local_lines,
)


def fact(rank: int, addresses: list[str], cluster: str = "") -> FabricFact:
    rails = tuple(
        Rail(n, n // 2, "0000", f"e{n}", f"r{n}", 1, address, 24, 9000, 200.0) for n, address in enumerate(addresses)
    )
    management = f"10.0.0.{rank + 1}"
    return FabricFact(
        *(f"s{rank + 1}", "planned", "switch", "rdma", rank, 4, management, cluster or management, "e0"),
        rails=rails,
    )


def test_one_list_where_all_share_all_subnets() -> None:
    facts = {f"s{n + 1}": fact(n, [f"192.168.100.{n}", f"192.168.101.{n}"], f"192.168.100.{n}") for n in range(3)}
    common, own = hosts_lines(facts)
    assert own == {}
    assert common[:3] == [
        "192.168.100.0 s1-fabric s1-fabric0",
        "192.168.101.0 s1-fabric1",
        "192.168.100.1 s2-fabric s2-fabric0",
    ]
    assert len(common) == 6


def test_a_ring_has_a_list_per_node() -> None:
    """Edges 1-2: 100/101, 2-3: 102/103, 3-1: 104/105."""
    net = "192.168.{}.{}".format
    edges = {1: (100, 101, 104, 105), 2: (100, 101, 102, 103), 3: (102, 103, 104, 105)}
    facts = {f"s{n}": fact(n - 1, [net(subnet, n) for subnet in edges[n]]) for n in edges}
    common, own = hosts_lines(facts)
    assert common == []
    assert "192.168.100.2 s2-fabric s2-fabric0" in own["s1"] and "192.168.101.2 s2-fabric1" in own["s1"]
    assert "192.168.102.2 s2-fabric s2-fabric0" in own["s3"]
    assert not any("192.168.102.2 " in line for line in own["s1"])
    assert [line for line in own["s2"] if " s2-" in line][-1] == "192.168.103.2 s2-fabric3"


def test_who_shares_no_subnet_has_no_name() -> None:
    facts = {
        "s1": fact(0, ["192.168.100.1"]),
        "s2": fact(1, ["192.168.100.2", "192.168.101.2"]),
        "s3": fact(2, ["192.168.101.3", "192.168.109.3"]),
        "s4": fact(3, []),
    }
    _common, own = hosts_lines(facts)
    assert not any("s1" in line for line in own["s3"])
    assert "s4" not in own
    assert hosts_lines({"s4": replace(facts["s4"])}) == ([], {})


def test_names_of_mdns_lead_to_management() -> None:
    facts = {f"s{n + 1}": fact(n, [f"192.168.100.{n}"]) for n in range(3)}
    logins = {"s1": "spark-1a2b.local", "s2": "s2.local", "s3": "a b.local"}
    assert local_lines(facts, logins) == [
        "10.0.0.1 s1.local spark-1a2b.local",
        "10.0.0.2 s2.local",
        "10.0.0.3 s3.local",
    ]
    assert local_lines({"s4": fact(3, [])}, {}) == []


@pytest.mark.parametrize(
    ("hosts", "names"),
    [
        (["a.x.org", "b"], ["a", "b"]),
        (["n.rack1", "n.rack2"], ["n-rack1", "n-rack2"]),
        (["10.0.0.1", "10.0.0.2"], ["10-0-0-1", "10-0-0-2"]),
        (["..", "x_y"], ["node", "x-y"]),
    ],
)
def test_labels(hosts: list[str], names: list[str]) -> None:
    assert list(labels(hosts).values()) == names
