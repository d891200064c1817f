# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""From the cable map to the topology, and to the halves that share a subnet.

What is cabled may make more than one: two nodes with a direct cable that are both in a LAN's switch as well. The named
topology decides, else the faster one, by its slowest end.

Two cables of one node that lead to the same place: both cages of a Spark share two PCIe Gen5 x4 links, one per half, so
that a second 200G cable adds next to nothing, and one cable is used. Two cables of 100G do add up, if one half of each
is used and the two halves are on different PCIe links: cage 0 on the first, cage 1 on the second (docs/fabric.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import cages
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.cable_map import Groups, Link
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
    gbps: float = 0.0  # of the slowest end in use, 0 when unknown


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
    if settings.topology == "switch" and len(hosts) == 2 and not any(link.switch for link in links):
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
    made = _candidates(nodes, hosts, links, settings)
    shape = settings.topology if settings.topology in made else next(iter(made), "")
    if not _is_wanted(hosts, links, shape, settings, findings):
        return None
    if shape == "ring" and len(hosts) > RING_MOST and not _is_ring_by_rank(hosts, made[shape], findings):
        return None
    found = {"switch": _switch, "direct": _direct, "ring": _ring}[shape](nodes, made[shape])
    found = replace(found, gbps=_gbps(nodes, [port for strand in found.strands for port in strand.members]))
    _say_unused(nodes, links, found, made, findings)
    if shape == "ring" and settings.transport != "socket":
        _say_same_cages(found, findings)
    return found


def _say_unused(
    nodes: Nodes,
    links: Sequence[Link],
    made: Layout,
    candidates: Mapping[str, Sequence[Link]],
    findings: list[Finding],
) -> None:
    """What is faster than all that is used, or may be, since it does not tell its speed."""
    for link in links:
        speed = _gbps(nodes, _first(nodes, link))
        if link in made.links or not 0 < made.gbps < (speed or CABLE_GBPS):
            continue
        host, cage = link.ends[0]
        far = link.far(link.ends[0])
        whither = f"{far[0]} cage {far[1]}" if far else f"switch {link.switch}"
        other = next((name for name, those in candidates.items() if link in those and name != made.topology), "")
        used = ", ".join(one.switch or one.name for one in made.links[:3])
        if not speed:
            remedy = "Switch its interfaces on (ip link set <interface> up, at both ends) and run again"
        elif other:
            remedy = f"Set fabric_topology: {other} or auto to use it, or unplug it"
        else:
            remedy = "It does not join all nodes: connect the others to it, too, or unplug it"
        findings.append(
            Finding(
                host,
                f"its link to {whither} {f'runs at {speed:g} Gb/s' if speed else 'does not tell its speed'} and stays "
                f"unused; the fabric is {made.topology!r} over {used}, at {made.gbps:g} Gb/s",
                remedy,
                f"cage {cage}",
                "warning",
            )
        )


def _say_same_cages(made: Layout, findings: list[Finding]) -> None:
    for link in made.links:
        (host, cage), (other, far) = link.ends
        if cage == far:
            findings.append(
                Finding(
                    host,
                    f"{link.name}: the cable leads to a cage of the same number ({other} cage {far}), and with those "
                    "RDMA connections of a ring are reported to time out",
                    "Plug it, while both machines are off, from cage 1 of each machine to cage 0 of the next",
                    f"cage {cage}",
                    "warning",
                )
            )


def _islands(hosts: Sequence[str], links: Iterable[Link]) -> list[list[str]]:
    groups = Groups()
    for host in hosts:
        groups.add(host)
    for link in links:
        for host in link.hosts[1:]:
            groups.join(link.hosts[0], host)
    return sorted((sorted(group, key=hosts.index) for group in groups.sets()), key=lambda group: hosts.index(group[0]))


def _neighbors(links: Iterable[Link]) -> dict[str, set[str]]:
    """By cables only."""
    found: dict[str, set[str]] = {}
    for link in links:
        if not link.switch:
            one, other = link.hosts
            found.setdefault(one, set()).add(other)
            found.setdefault(other, set()).add(one)
    return found


def _candidates(nodes: Nodes, hosts: Sequence[str], links: Sequence[Link], settings: Settings) -> dict[str, list[Link]]:
    """Every topology that the links make, with those that make it; the fastest first, of equals the switch."""
    found: dict[str, list[Link]] = {}
    gbps: dict[str, float] = {}
    switches = [link for link in links if link.switch and len(link.hosts) == len(hosts)]
    cables = [link for link in links if not link.switch]
    around = _neighbors(cables)
    if switches:
        found["switch"], gbps["switch"] = switches, _gbps(nodes, _best(nodes, switches).ends)
    if cables and len(hosts) == 2:
        found["direct"], gbps["direct"] = cables, _gbps(nodes, _best(nodes, cables).ends)
    elif all(len(around.get(host, ())) == 2 for host in hosts) and len(_islands(hosts, cables)) == 1:
        usable = len(hosts) <= RING_MOST or settings.allow_large_ring
        found["ring"], gbps["ring"] = cables, _gbps(nodes, [e for c in cables for e in c.ends]) if usable else -1.0
    return {shape: found[shape] for shape in sorted(found, key=lambda shape: -gbps[shape])}


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


def _is_ring_by_rank(hosts: Sequence[str], links: Sequence[Link], findings: list[Finding]) -> bool:
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


def _gbps(nodes: Nodes, ports: Iterable[Port]) -> float:
    """Of the slowest end; one that does not tell is as fast as the others of its link. 0: none tells."""
    found = (cages.by_number(nodes[host], number) for host, number in ports)
    return min(filter(None, (cages.gbps(cage) for cage in found if cage is not None)), default=0.0)


def _best(nodes: Nodes, links: Iterable[Link]) -> Link:
    """The fastest, by its slowest end; of equals the one whose ends all tell their speed, then the lower cages. In a
    switch the best cage of each node counts."""

    def order(link: Link) -> tuple[float, int, tuple[Port, ...]]:
        ends = _first(nodes, link)
        return (-_gbps(nodes, ends), sum(not _gbps(nodes, [port]) for port in ends), link.ends)

    return min(links, key=order)


def _of_host(nodes: Nodes, link: Link) -> dict[str, list[Port]]:
    """The ends of a link on each node, the fastest first."""
    found: dict[str, list[Port]] = {host: [] for host in link.hosts}
    for port in sorted(link.ends, key=lambda port: (-_gbps(nodes, [port]), port[1])):
        found[port[0]].append(port)
    return found


def _first(nodes: Nodes, link: Link) -> tuple[Port, ...]:
    return tuple(own[0] for own in _of_host(nodes, link).values())


def _crosses(nodes: Nodes, two: Sequence[Sequence[Port]], one: Sequence[Port]) -> bool:
    """One half of each of two cables instead of both of ``one``: both are slow and together faster, or the user names
    both cages."""
    named = [nodes[host].use_cages for ends in two for host, _cage in ends]
    asked = any(not isinstance(wanted, str) and len(set(wanted)) > 1 for wanted in named)
    speeds = [_gbps(nodes, ends) for ends in two]
    return asked or (0 < min(speeds) <= max(speeds) < CABLE_GBPS and RAILS * min(speeds) > _gbps(nodes, one))


def _switch(nodes: Nodes, links: Sequence[Link]) -> Layout:
    best = _best(nodes, links)
    halves = [_first(nodes, best)] * RAILS
    # The second cage of each node: on the same switch, or on a second one, then the same switch first on every node.
    if len(links) == RAILS:
        two = [_first(nodes, link) for link in links]
    else:
        own = [sorted(ports) for ports in _of_host(nodes, best).values()]
        two = list(zip(*own)) if all(len(ports) == RAILS for ports in own) else []
    if two and _crosses(nodes, two, halves[0]):
        halves = two
    strands = tuple(Strand(0, half, halves[half], segment=f"rail{half}") for half in range(RAILS))
    used = {port for ends in halves for port in ends}
    return Layout("switch", strands, tuple(link for link in links if used & set(link.ends)))


def _direct(nodes: Nodes, links: Sequence[Link]) -> Layout:
    best = _best(nodes, links)
    crossed = len(links) == RAILS and _crosses(nodes, [link.ends for link in links], best.ends)
    chosen = list(links) if crossed else [best] * RAILS
    strands = tuple(Strand(0, half, chosen[half].ends, edge=chosen[half].name) for half in range(RAILS))
    return Layout("direct", strands, tuple(dict.fromkeys(chosen)))


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
