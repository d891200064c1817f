# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which way a node takes to the cables that it is not on, where not every node is the neighbour of every other."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import Rail, Route
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.addresses import network_of
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.topology import Strand

Rails = Mapping[str, Mapping[Strand, Rail]]  # of every host: its rail on each of its strands


def routes(rails: Rails, ranks: Mapping[str, int]) -> tuple[dict[str, tuple[Route, ...]], frozenset[str]]:
    """The routes of every node, and who relays.

    Every cable has a subnet per half, and every node that is not on it a route to both, over the same half of the
    cables on the way. The way is the shortest; of several, the one over the lowest rank, so that it does not depend on
    the order of the inventory. A pair that no way joins gets no route: the caller has refused islands before.
    """
    strands = sorted({strand for own in rails.values() for strand in own}, key=lambda s: (s.number, s.half))
    on = {strand: {host for host, _cage in strand.members} & set(rails) for strand in strands}
    near = {
        host: sorted({other for strand in own for other in on[strand]} - {host}, key=lambda other: ranks[other])
        for host, own in rails.items()
    }
    if all(len(others) == len(rails) - 1 for others in near.values()):
        return {}, frozenset()
    found: dict[str, list[Route]] = {}
    relays = set()
    distances: dict[int, dict[str, int]] = {}
    for strand in strands:
        if strand.number not in distances:
            distances[strand.number] = _distances(on[strand], near)
        distance = distances[strand.number]
        network = str(network_of(rails[next(iter(on[strand]))][strand]))
        for host in sorted(distance, key=lambda host: ranks[host]):
            if distance[host] == 0:
                continue
            relay = next(other for other in near[host] if distance.get(other) == distance[host] - 1)
            way = _shared(rails[host], rails[relay], strand.half)
            found.setdefault(host, []).append(Route(network, rails[relay][way].address, rails[host][way].netdev))
            relays.add(relay)
    return {host: tuple(own) for host, own in found.items()}, frozenset(relays)


def _distances(start: Iterable[str], near: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Cables between each node and the nearest of ``start``."""
    distance = dict.fromkeys(start, 0)
    queue = deque(distance)
    while queue:
        host = queue.popleft()
        for other in near[host]:
            if other not in distance:
                distance[other] = distance[host] + 1
                queue.append(other)
    return distance


def _shared(mine: Mapping[Strand, Rail], theirs: Mapping[Strand, Rail], half: int) -> Strand:
    """The strand to this neighbour, of the wanted half."""
    common = [strand for strand in mine if strand in theirs]
    return min(common, key=lambda strand: (strand.half != half, strand.number))
