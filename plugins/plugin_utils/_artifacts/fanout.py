# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Who fetches a model from whom, and over which addresses.

A node asks only those with whom it shares a subnet of the fabric: in a ring its neighbours, through a switch everybody.
Through a switch the nodes form a chain, each node sends about once and none sends for all; in a ring the model goes
from neighbour to neighbour in both directions. The others that a node can reach come after the one before it, and are
asked where that one is dead, slow or wrong.

The firewall needs no rule for it: the layer fabric lets the other nodes in on the interfaces of the same subnets, and
nobody else (:mod:`.._fabric.firewall`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.copy import Peer
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.fetch import Link
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.addresses import network_of


@dataclass(frozen=True)
class FanOut:
    """``receivers``: who must be whole in the end. ``peers``: by host, in the order in which it asks them.
    ``findings``: receivers that no node with the model reaches."""

    receivers: tuple[str, ...]
    peers: Mapping[str, tuple[Peer, ...]]
    findings: tuple[Finding, ...] = ()


def plan(facts: Mapping[str, FabricFact], whole: Collection[str], receivers: Collection[str]) -> FanOut:
    """``whole``: hosts that have the model. Those who neither have nor get it take no part."""
    sources = _by_rank(facts, set(whole))
    wanting = _by_rank(facts, set(receivers) - set(whole))
    order = [*sources, *wanting]
    cables = {
        host: {
            other: found for other in order if other != host for found in [links(facts[host], facts[other])] if found
        }
        for host in order
    }
    distance = _distances(cables, sources)
    findings = [
        Finding(
            host,
            "no node that has the model, or gets it, shares a cable with this one",
            "Let a node between them serve the model too, or name a node that is its neighbour as artifacts_seed",
        )
        for host in wanting
        if host not in distance
    ]
    chain = any(facts[host].topology == "switch" for host in order)
    place = {host: order.index(host) if chain else distance.get(host, len(order)) for host in order}
    return FanOut(
        tuple(wanting),
        {
            host: tuple(
                Peer(other, reached[other]) for other in sorted(reached, key=lambda one: _turn(host, one, place, order))
            )
            for host, reached in cables.items()
        },
        tuple(findings),
    )


def links(here: FabricFact, there: FabricFact) -> tuple[Link, ...]:
    """Both halves of each cable, or of the way through the switch."""
    far = {network_of(rail): rail.address for rail in there.rails}
    return tuple(
        Link(rail.address, far[network_of(rail)])
        for rail in sorted(here.rails, key=lambda rail: rail.index)
        if network_of(rail) in far
    )


def _by_rank(facts: Mapping[str, FabricFact], hosts: set[str]) -> list[str]:
    return sorted(hosts, key=lambda host: (facts[host].rank, host))


def _turn(host: str, other: str, place: Mapping[str, int], order: Sequence[str]) -> tuple[bool, int, int]:
    """First the nearest of those before it, at last those behind it."""
    behind = place[other] >= place[host]
    return behind, abs(place[host] - place[other]), order.index(other)


def _distances(cables: Mapping[str, Mapping[str, object]], sources: Sequence[str]) -> dict[str, int]:
    """Cables between a node and the nearest that has the model."""
    found = dict.fromkeys(sources, 0)
    edge = list(sources)
    while edge:
        near = dict.fromkeys(other for host in edge for other in cables[host] if other not in found)
        found.update(dict.fromkeys(near, found[edge[0]] + 1))
        edge = list(near)
    return found
