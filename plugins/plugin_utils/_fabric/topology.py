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
from dataclasses import dataclass, field, replace

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import cages
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.cable_map import Link
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.types import (
    CABLE_GBPS,
    RAILS,
    NodeInput,
    Port,
    Settings,
    everywhere,
)

Nodes = Mapping[str, NodeInput]
NAMES = ("auto", "single", "direct", "ring", "switch")
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
    elif wanted == "switch" and count < 2:
        wrong, remedy = "there is one node", "Set it to auto, or add the other nodes"
    if wrong:
        findings.append(everywhere(f"fabric_topology is {wanted!r}: {wrong}", remedy))
    return not wrong


def layout(nodes: Nodes, settings: Settings, links: Sequence[Link], findings: list[Finding]) -> Layout | None:
    """None when the cables do not make the wanted topology, or none that can be planned; the findings say why."""
    hosts = sorted(nodes, key=lambda host: (nodes[host].rank, host))
    if settings.topology == "switch" and len(hosts) == 2:
        # A switch that keeps quiet and has two ends looks like a cable.
        links = [link if link.switch else replace(link, switch=f"switch{place}") for place, link in enumerate(links)]
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
    shape = _shape(hosts, links)
    if not _is_wanted(hosts, links, shape, settings, findings):
        return None
    if shape == "switch":
        return _switch(nodes, hosts, links)
    if shape == "direct":
        return _direct(nodes, links)
    if len(hosts) > RING_MOST and not _is_ring_by_rank(nodes, hosts, links, findings):
        return None
    return _ring(nodes, links)


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


def _shape(hosts: Sequence[str], links: Sequence[Link]) -> str:
    """``switch``, ``direct`` or ``ring``; nothing for cables that make none of them."""
    if any(link.switch and len(link.hosts) == len(hosts) for link in links):
        return "switch"
    if any(link.switch for link in links):
        return ""
    if len(hosts) == 2:
        return "direct"
    around = _neighbors(links)
    return "ring" if all(len(around.get(host, ())) == 2 for host in hosts) else ""


def _is_wanted(
    hosts: Sequence[str], links: Sequence[Link], shape: str, settings: Settings, findings: list[Finding]
) -> bool:
    wanted = settings.topology
    names = [link.name if not link.switch else f"{link.switch} with {len(link.hosts)} nodes" for link in links]
    shown = ", ".join(names[:6]) + (" …" if len(names) > 6 else "")
    if not shape:
        findings.append(
            everywhere(
                f"the cables are {shown}: neither a ring nor one switch with all nodes{_apart(hosts, links)}. No node "
                "is reached through another one, since NVIDIA does not support RDMA through a relay",
                "Connect all nodes to one switch, or three nodes each with both others",
            )
        )
        return False
    if wanted not in ("auto", shape):
        findings.append(
            everywhere(
                f"fabric_topology is {wanted!r}, and the cables are {shown}, which is {shape!r}",
                f"Set fabric_topology: {shape} or auto, or move the cables",
            )
        )
        return False
    if shape == "ring" and len(hosts) > RING_MOST:
        findings.append(
            everywhere(
                f"the cables form a ring of {len(hosts)} nodes, and NVIDIA supports three. Reports contradict each "
                "other: some ran NCCL 2.30 with NCCL_ALGO=Ring, for others it failed in ncclTransportTreeConnect and "
                "took a patched build",
                "Connect the nodes through a switch; or set fabric_allow_large_ring: true if your NCCL can do it",
                "warning" if settings.allow_large_ring else "error",
            )
        )
        return settings.allow_large_ring
    return True


def _is_ring_by_rank(nodes: Nodes, hosts: Sequence[str], links: Sequence[Link], findings: list[Finding]) -> bool:
    """NCCL's ring goes from each rank to the next, and a cable has to lead there."""
    around = _neighbors(links)
    if all(other in around[host] for host, other in zip(hosts, [*hosts[1:], hosts[0]])):
        return True
    order = [hosts[0]]
    while len(order) < len(hosts):
        order.append(next(host for host in hosts if host in around[order[-1]] and host not in order))
    findings.append(
        everywhere(
            "the cables do not follow spark_rank around the ring, and NCCL sends from each rank to the next",
            f"Number the nodes as the cables go: {', '.join(f'{host} {rank}' for rank, host in enumerate(order))}",
        )
    )
    return False


def _apart(hosts: Sequence[str], links: Sequence[Link]) -> str:
    """The first two nodes that share no link, for the message."""
    for host in hosts:
        near = {host, *(other for link in links if host in link.hosts for other in link.hosts)}
        apart = next((other for other in hosts if other not in near), "")
        if apart:
            return f"; {host} and {apart}, for example, share none"
    return ""


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


def _ring(nodes: Nodes, links: Sequence[Link]) -> Layout:
    strands = []
    for link in links:
        number = edge_number(*(nodes[host].rank for host in link.hosts))
        strands += [Strand(number, half, link.ends, edge=link.name) for half in range(RAILS)]
    return Layout("ring", tuple(sorted(strands, key=lambda s: (s.number, s.half))), tuple(links))
