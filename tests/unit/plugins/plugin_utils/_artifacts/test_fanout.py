# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Mapping

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact, Rail
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._artifacts import fanout
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import firewall


def rail(index: int, network: int, number: int) -> Rail:
    half = index % 2
    return Rail(
        index=index,
        cage=index // 2,
        pcie_path=f"000{2 * half}",
        netdev=f"en{index}",
        rdma_device=f"roce{index}",
        rdma_port=1,
        address=f"10.100.{network}.{number}",
        prefix=24,
        mtu=9000,
        link_gbps=200.0,
    )


def fact(rank: int, topology: str, rails: tuple[Rail, ...]) -> FabricFact:
    return FabricFact(
        host=f"spark{rank}",
        state="applied",
        topology=topology,
        transport="rdma",
        rank=rank,
        nodes=4,
        management_address=f"192.168.1.{rank + 1}",
        cluster_address=rails[0].address,
        cluster_interface=rails[0].netdev,
        rails=rails,
    )


def switch(nodes: int) -> dict[str, FabricFact]:
    return {
        f"spark{rank}": fact(rank, "switch", tuple(rail(half, half, rank + 1) for half in (0, 1)))
        for rank in range(nodes)
    }


def ring(nodes: int) -> dict[str, FabricFact]:
    """Cage 0 to the next node, cage 1 to the one before; networks 2n and 2n+1 between n and n+1."""
    return {
        f"spark{rank}": fact(
            rank,
            "ring",
            (
                *(rail(half, 2 * rank + half, 1) for half in (0, 1)),
                *(rail(2 + half, 2 * ((rank - 1) % nodes) + half, 2) for half in (0, 1)),
            ),
        )
        for rank in range(nodes)
    }


def order(made: fanout.FanOut) -> dict[str, list[str]]:
    return {host: [peer.host for peer in peers] for host, peers in made.peers.items()}


def test_a_chain_through_a_switch() -> None:
    facts = switch(4)
    made = fanout.plan(facts, ["spark1"], ["spark0", "spark2", "spark3", "spark1"])
    assert made.receivers == ("spark0", "spark2", "spark3") and not made.findings
    assert order(made) == {
        "spark1": ["spark0", "spark2", "spark3"],
        "spark0": ["spark1", "spark2", "spark3"],
        "spark2": ["spark0", "spark1", "spark3"],
        "spark3": ["spark2", "spark0", "spark1"],
    }
    (first, second) = made.peers["spark3"][0].links
    assert (first.here, first.there) == ("10.100.0.4", "10.100.0.3")
    assert (second.here, second.there) == ("10.100.1.4", "10.100.1.3")


def test_several_have_it_already() -> None:
    made = fanout.plan(switch(4), ["spark0", "spark3"], ["spark1", "spark2"])
    assert order(made)["spark1"] == ["spark3", "spark0", "spark2"]
    assert order(made)["spark2"][0] == "spark1"


@pytest.mark.parametrize("nodes", [3, 4, 5, 8])
def test_a_ring_asks_neighbours_only_and_the_nearer_to_the_model_first(nodes: int) -> None:
    facts = ring(nodes)
    made = fanout.plan(facts, ["spark0"], list(facts))
    told = order(made)
    for rank in range(nodes):
        assert set(told[f"spark{rank}"]) == {f"spark{(rank + 1) % nodes}", f"spark{(rank - 1) % nodes}"}
    for rank in range(1, nodes):
        nearer = min((rank - 1, rank + 1), key=lambda one: min(one % nodes, -one % nodes))
        assert told[f"spark{rank}"][0] == f"spark{nearer % nodes}"
    assert all(len(peer.links) == 2 for peers in made.peers.values() for peer in peers)


def test_who_reaches_nobody_with_the_model_is_found() -> None:
    facts = ring(5)
    made = fanout.plan(facts, ["spark0"], ["spark2", "spark3"])
    assert [finding.host for finding in made.findings] == ["spark2", "spark3"]


def test_nobody_takes_part_who_needs_nothing() -> None:
    assert set(fanout.plan(switch(4), ["spark0"], ["spark1"]).peers) == {"spark0", "spark1"}


@pytest.mark.parametrize("facts", [switch(4), ring(4)])
def test_the_firewall_of_the_fabric_lets_all_of_them_in(facts: Mapping[str, FabricFact]) -> None:
    """And it has no rule of its own that could be forgotten."""
    rules = firewall.rules(facts)
    for host, peers in fanout.plan(facts, ["spark0"], list(facts)).peers.items():
        for peer in peers:
            for link in peer.links:
                (netdev,) = [one.netdev for one in facts[peer.host].rails if one.address == link.there]
                assert f"allow in on {netdev} from {link.here}" in rules[peer.host], host
