# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""From the cable map to the topology, and to the halves that share a subnet.

Two cables of one node that lead to the same place: both cages of a Spark share two PCIe Gen5 x4 links, one per half, so
that a second 200G cable adds next to nothing, and one cable is used. Two cables of 100G do add up, if one half of each
is used and the two halves are on different PCIe links: cage 0 on the first, cage 1 on the second (docs/fabric.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import cages
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.cable_map import Link
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.types import (
    CABLE_GBPS,
    RAILS,
    NodeInput,
    Port,
    Wishes,
    everywhere,
)

Nodes = Mapping[str, NodeInput]
NAMES = ("auto", "single", "direct", "ring", "switch", "mixed")
RING_MOST = 3  # what NVIDIA supports


@dataclass(frozen=True)
class Strand:
    """Halves that share a subnet: the same half (by PCIe path) of each of these cages."""

    number: int  # which pair of subnets; depends on nothing but the ranks at its ends
    half: int  # 0 or 1: which of the pair, and which PCIe path
    members: tuple[Port, ...] = field(hash=False)  # hundreds on a switch; the rest tells strands apart
    segment: str = ""  # switch
    edge: str = ""  # cable


@dataclass(frozen=True)
class Layout:
    topology: str
    strands: tuple[Strand, ...]
    links: tuple[Link, ...]  # those that carry strands

    @property
    def partial(self) -> bool:
        """No fabric address is reached by every node over a cable of its own."""
        return self.topology in ("ring", "mixed")


def count_fits(count: int, wanted: str, findings: list[Finding]) -> bool:
    """Can this many nodes have this topology at all?"""
    wrong = ""
    if wanted not in NAMES:
        findings.append(everywhere(f"fabric_topology is {wanted!r}", f"Use {', '.join(NAMES[:-1])} or {NAMES[-1]}"))
        return False
    if wanted == "single" and count != 1:
        wrong, remedy = f"there are {count} nodes", "Set it to auto, or leave one host in the group sparks"
    elif wanted == "direct" and count != 2:
        wrong, remedy = (
            f"a cable between two nodes, and there are {count}",
            "Set it to auto, or correct the group sparks",
        )
    elif wanted == "ring" and count < 3:
        wrong, remedy = f"it takes three nodes, and there are {count}", "Set it to auto, or add the other nodes"
    elif wanted in ("switch", "mixed") and count < 2:
        wrong, remedy = "there is one node", "Set it to auto, or add the other nodes"
    if wrong:
        findings.append(everywhere(f"fabric_topology is {wanted!r}: {wrong}", remedy))
    return not wrong


def layout(nodes: Nodes, wishes: Wishes, links: Sequence[Link], findings: list[Finding]) -> Layout | None:
    """None when the cables do not make the wanted topology, or none that can be planned; the findings say why."""
    hosts = sorted(nodes, key=lambda host: (nodes[host].rank, host))
    if wishes.topology == "switch" and len(hosts) == 2:
        # A switch that keeps quiet and has two ends looks like a cable.
        links = [link if link.switch else _as_switch(link, number) for number, link in enumerate(links)]
    groups = _islands(hosts, links)
    if len(groups) > 1:
        shown = "; ".join(", ".join(group[:4]) + (" …" if len(group) > 4 else "") for group in groups)
        findings.append(
            everywhere(
                f"the cables form {len(groups)} fabrics that nothing joins: {shown}",
                "Connect them by a cable or a common switch, or plan them as clusters of their own",
            )
        )
        return None
    shape = _shape(hosts, links, wishes.topology)
    if not _is_wanted(hosts, links, shape, wishes, findings):
        return None
    if shape == "switch":
        return _switch(nodes, hosts, links)
    if shape == "direct":
        return _direct(nodes, links)
    topology = "mixed" if wishes.topology == "mixed" else shape
    return _edges(nodes, hosts, links, topology, findings)


def _as_switch(link: Link, number: int) -> Link:
    return Link(link.ends, f"switch{number}", link.sources, link.systems, link.foreign)


def _islands(hosts: Sequence[str], links: Iterable[Link]) -> list[list[str]]:
    group = {host: host for host in hosts}

    def root(host: str) -> str:
        while group[host] != host:
            host = group[host]
        return host

    for link in links:
        first = root(link.hosts[0])
        for host in link.hosts[1:]:
            group[root(host)] = first
    found: dict[str, list[str]] = {}
    for host in hosts:
        found.setdefault(root(host), []).append(host)
    return list(found.values())


def _neighbors(links: Iterable[Link]) -> dict[str, set[str]]:
    """By cables only."""
    found: dict[str, set[str]] = {}
    for link in links:
        if not link.switch:
            one, other = link.hosts
            found.setdefault(one, set()).add(other)
            found.setdefault(other, set()).add(one)
    return found


def _shape(hosts: Sequence[str], links: Sequence[Link], wanted: str) -> str:
    full = any(link.switch and len(link.hosts) == len(hosts) for link in links)
    if full and (wanted != "mixed" or all(link.switch for link in links)):
        return "switch"
    if any(link.switch for link in links):
        return "mixed"
    if len(hosts) == 2:
        return "direct"
    around = _neighbors(links)
    return "ring" if all(len(around.get(host, ())) == 2 for host in hosts) else "mixed"


def _is_wanted(
    hosts: Sequence[str], links: Sequence[Link], shape: str, wishes: Wishes, findings: list[Finding]
) -> bool:
    wanted = wishes.topology
    around = _neighbors(links)
    if wanted == "ring" and shape == "mixed" and not any(link.switch for link in links):
        for host in hosts:
            near = sorted(around.get(host, ()))
            if len(near) != 2:
                findings.append(
                    Finding(
                        host,
                        f"has a cable to {', '.join(near)} only, and a ring takes two neighbours",
                        "Plug the missing cable, or set fabric_topology: mixed",
                    )
                )
        return False
    if wanted not in ("auto", "mixed", shape):
        names = [link.name if not link.switch else f"{link.switch} with {len(link.hosts)} nodes" for link in links]
        shown = ", ".join(names[:6]) + (" …" if len(names) > 6 else "")
        findings.append(
            everywhere(
                f"fabric_topology is {wanted!r}, and the cables are {shown}, which is {shape!r}",
                f"Set fabric_topology: {shape} or auto, or move the cables",
            )
        )
        return False
    if shape == "ring" and len(hosts) > RING_MOST and not wishes.allow_large_ring:
        findings.append(
            everywhere(
                f"the cables form a ring of {len(hosts)} nodes. NVIDIA supports three: nodes that are not neighbours "
                "reach each other through relays only, and NCCL needs NCCL_ALGO=Ring and a patched build",
                "Connect the nodes through a switch; or set fabric_allow_large_ring: true if you know that your NCCL "
                "works like this",
            )
        )
        return False
    if shape != "mixed" or wanted == "mixed":
        return True
    apart = _apart(hosts, links)
    if apart:
        one, other = apart
        findings.append(
            everywhere(
                f"not every node is joined with every other, for example {one} with {other}, so that they would need "
                "others as relays",
                "Plug the missing cables (three nodes: each with both others; more: all into one switch), or set "
                "fabric_topology: mixed if it is meant",
            )
        )
        return False
    return True


def _apart(hosts: Sequence[str], links: Sequence[Link]) -> tuple[str, str] | None:
    """The first two nodes that share no link."""
    near: dict[str, set[str]] = {host: {host} for host in hosts}
    for link in links:
        members = set(link.hosts)
        for host in members:
            near[host] |= members
    for host in hosts:
        if len(near[host]) < len(hosts):
            return host, next(other for other in hosts if other not in near[host])
    return None


# --- which halves ----------------------------------------------------------------------------------------------------


def _gbps(nodes: Nodes, port: Port) -> float:
    """An unknown speed counts as full: a half that is switched off does not tell it."""
    cage = cages.by_number(nodes[port[0]], port[1])
    return (cages.gbps(cage) if cage is not None else 0.0) or CABLE_GBPS


def _crosses(nodes: Nodes, ports: Sequence[Port]) -> bool:
    """One half of each cable instead of both of one: both are slow, or the user names both cages."""
    asked = any(
        not isinstance(nodes[host].use_cages, str) and len(set(nodes[host].use_cages)) > 1 for host, _c in ports
    )
    return asked or all(_gbps(nodes, port) < CABLE_GBPS for port in ports)


def _switch(nodes: Nodes, hosts: Sequence[str], links: Sequence[Link]) -> Layout:
    full = [link for link in links if link.switch and len(link.hosts) == len(hosts)]
    first = full[0]
    # The cages of each node in the order of use: on two switches the same switch first on every node.
    by_host: dict[str, list[Port]] = {host: [] for host in hosts}
    for link in full:
        for port in link.ends:
            by_host[port[0]].append(port)
    if len(full) == 1 or not all(len(own) == RAILS for own in by_host.values()):
        for own in by_host.values():
            own[:] = sorted((p for p in own if p in first.ends), key=lambda p: (-_gbps(nodes, p), p[1]))
    twice = all(len(own) == RAILS for own in by_host.values())
    if twice and _crosses(nodes, [port for own in by_host.values() for port in own]):
        if len(full) == 1:
            by_host = {host: sorted(own) for host, own in by_host.items()}
        members = [tuple(by_host[host][half] for host in hosts) for half in range(RAILS)]
    else:
        members = [tuple(by_host[host][0] for host in hosts)] * RAILS
    strands = tuple(Strand(0, half, members[half], segment=f"rail{half}") for half in range(RAILS))
    used = {port for strand in strands for port in strand.members}
    return Layout("switch", strands, tuple(link for link in full if used & set(link.ends)))


def _direct(nodes: Nodes, links: Sequence[Link]) -> Layout:
    chosen = [_best(nodes, links)] * RAILS
    ends = [port for link in links for port in link.ends]
    if len(links) == RAILS and _crosses(nodes, ends):
        chosen = list(links)
    strands = tuple(Strand(0, half, chosen[half].ends, edge=chosen[half].name) for half in range(RAILS))
    return Layout("direct", strands, tuple(dict.fromkeys(chosen)))


def _best(nodes: Nodes, links: Sequence[Link]) -> Link:
    return min(links, key=lambda link: (-min(_gbps(nodes, port) for port in link.ends), link.ends))


def edge_number(one: int, other: int) -> int:
    """A number of its own for every pair of ranks, whatever other nodes there are: (0,1) 0, (0,2) 1, (1,2) 2, …"""
    low, high = sorted((one, other))
    return high * (high - 1) // 2 + low


def _edges(
    nodes: Nodes, hosts: Sequence[str], links: Sequence[Link], topology: str, findings: list[Finding]
) -> Layout | None:
    """A ring, or cables and at most one switch."""
    segments = [link for link in links if link.switch]
    if len(segments) > 1:
        names = " and ".join(f"{link.switch} ({', '.join(link.hosts[:4])})" for link in segments[:2])
        findings.append(
            everywhere(
                f"{len(segments)} switches that are not joined, and none has all nodes: {names}",
                "Connect the switches with each other, or all nodes to one of them",
            )
        )
        return None
    strands: list[Strand] = []
    carrying: list[Link] = []
    for segment in segments:
        own = {host: [port for port in segment.ends if port[0] == host] for host in segment.hosts}
        members = tuple(min(own[host], key=lambda p: (-_gbps(nodes, p), p[1])) for host in hosts if host in own)
        strands += [Strand(0, half, members, segment=f"rail{half}") for half in range(RAILS)]
        carrying.append(segment)
    pairs: dict[tuple[str, ...], list[Link]] = {}
    for link in links:
        if not link.switch:
            pairs.setdefault(link.hosts, []).append(link)
    for (one, other), parallel in pairs.items():
        link = _best(nodes, parallel)
        # The first pair of subnets is the switch's, if there is one.
        number = edge_number(nodes[one].rank, nodes[other].rank) + len(segments)
        strands += [Strand(number, half, link.ends, edge=link.name) for half in range(RAILS)]
        carrying.append(link)
    return Layout(topology, tuple(sorted(strands, key=lambda s: (s.number, s.half))), tuple(carrying))
