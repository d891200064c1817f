# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

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


def test_all_that_a_node_with_it_reaches_get_it_at_once_over_both_halves() -> None:
    (only,), apart = fanout.rounds(switch(4), ["spark0", "spark3"], ["spark1", "spark2"])
    assert {host: pull.host for host, pull in only.items()} == {"spark1": "spark0", "spark2": "spark3"} and not apart
    assert only["spark2"] == fanout.Pull("spark3", ("10.100.0.4", "10.100.1.4"), ("10.100.0.3", "10.100.1.3"))


@pytest.mark.parametrize(("nodes", "rounds"), [(3, 1), (4, 2), (5, 2), (8, 4)])
def test_a_ring_passes_it_on(nodes: int, rounds: int) -> None:
    made, apart = fanout.rounds(ring(nodes), ["spark0"], [f"spark{rank}" for rank in range(1, nodes)])
    assert len(made) == rounds and not apart


def test_who_reaches_nobody_that_has_it_is_named() -> None:
    made, apart = fanout.rounds(ring(5), ["spark0"], ["spark2", "spark3"])
    assert (made, apart) == ([], ["spark2", "spark3"])


@pytest.mark.parametrize("facts", [switch(4), ring(4)])
def test_the_firewall_of_the_fabric_lets_all_of_them_in(facts: Mapping[str, FabricFact]) -> None:
    """And it has no rule of its own that could be forgotten."""
    rules = firewall.rules(facts)
    made, _apart = fanout.rounds(facts, ["spark0"], [host for host in facts if host != "spark0"])
    for pull in (pull for one in made for pull in one.values()):
        for there, here in zip(pull.addresses, pull.own):
            (netdev,) = [one.netdev for one in facts[pull.host].rails if one.address == there]
            assert f"allow in on {netdev} from {here}" in rules[pull.host]
