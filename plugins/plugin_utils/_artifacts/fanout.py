# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Which node gets a model or an image from which other one, over cables that both have.

Those that a node with it reaches get it at once, spread over the nodes that have it; in a ring the others get it in the
next round, from those. The firewall needs no rule for it: the layer fabric lets the other nodes in on the interfaces of
the same subnets, and nobody else (:mod:`.._fabric.firewall`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.addresses import network_of

Facts = Mapping[str, "FabricFact | None"]


@dataclass(frozen=True)
class Pull:
    """From a host, at addresses of it, one per half; ``own``: those of the node that gets it, in the same subnets."""

    host: str
    addresses: tuple[str, ...]
    own: tuple[str, ...]


def rounds(facts: Facts, holders: Sequence[str], lacking: Sequence[str]) -> tuple[list[dict[str, Pull]], list[str]]:
    """By receiver, one round after the other; and the hosts that nobody who has it, or gets it, reaches."""
    made: list[dict[str, Pull]] = []
    while lacking:
        took = dict.fromkeys(holders, 0)
        reached = {}
        for host in lacking:
            near = [
                (took[holder], place, pull)
                for place, holder in enumerate(holders)
                if (pull := _pull(facts, holder, host))
            ]
            if near:
                reached[host] = min(near, key=lambda one: one[:2])[2]
                took[reached[host].host] += 1
        if not reached:
            break
        made.append(reached)
        holders = [*holders, *reached]
        lacking = [host for host in lacking if host not in reached]
    return made, list(lacking)


def _pull(facts: Facts, source: str, target: str) -> Pull | None:
    here, there = facts.get(source), facts.get(target)
    if here is None or there is None:
        return None
    own = {network_of(rail): rail.address for rail in there.rails}
    both = [rail for rail in here.rails if network_of(rail) in own]
    if not both:
        return None
    return Pull(source, tuple(rail.address for rail in both), tuple(own[network_of(rail)] for rail in both))
