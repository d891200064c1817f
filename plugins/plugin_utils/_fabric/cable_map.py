# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The cable map: what each cage is plugged into, as heard by the nodes, as declared by the user, or as assumed.

Both halves of a cage are on one Ethernet segment, since the adapter switches between them. So everything here counts
per (node, cage). Two ends that hear each other are a cable; three or more, or a switch that announces itself, are a
switch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import Cable
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.neighbors import Heard
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import cages
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.types import (
    NodeInput,
    Port,
    about,
    columns,
    everywhere,
)

Nodes = Mapping[str, NodeInput]
FORM = (
    'Write "spark1.0 spark2.1" for a cable between two cages, "spark1.1 switch" or "spark1.1 switch:NAME" for a switch'
)
LOOP = "a cable in a loop"
MAX_NAMED = 6
DECLARE = "list the cables in fabric_cables"
_SWITCH = re.compile(r"switch(?::(\S+))?")


@dataclass(frozen=True)
class Link:
    """One Ethernet segment with its ends on our nodes, ordered by rank and cage."""

    ends: tuple[Port, ...]
    switch: str = ""  # its name; nothing for a cable
    sources: Mapping[Port, str] = field(default_factory=dict, hash=False)  # of CABLE_SOURCES
    systems: Mapping[Port, str] = field(default_factory=dict, hash=False)  # what LLDP calls the switch at this end
    foreign: tuple[str, ...] = ()  # nodes heard on it that are none of ours

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(host for host, _cage in self.ends))

    @property
    def name(self) -> str:
        """Of a cable: the same at both ends."""
        return "-".join(f"{host}.{cage}" for host, cage in self.ends)

    def far(self, port: Port) -> Port | None:
        return next((end for end in self.ends if end != port), None) if not self.switch else None


def cabling(nodes: Nodes, wanted: str, declared: Sequence[str], findings: list[Finding]) -> list[Link]:
    """Every link of two or more nodes, and dead ends. What is heard comes first, then what is declared; where there is
    neither, the count of nodes decides (see :func:`_assumed`)."""
    heard = _heard(nodes, findings)
    if declared:
        before = len(findings)
        links = _declared(nodes, declared, findings)
        if len(findings) > before:
            # What cannot be read would look like cables that are missing, or are in the wrong place.
            return heard or links
        return _compared(nodes, links, heard, findings)
    return heard or _assumed(nodes, wanted, findings)


def _order(nodes: Nodes, ports: Iterable[Port]) -> tuple[Port, ...]:
    return tuple(sorted(ports, key=lambda port: (nodes[port[0]].rank, port[0], port[1])))


# --- what was heard --------------------------------------------------------------------------------------------------


class Groups:
    """Disjoint sets of nodes, or of (node, cage) and ("", system name) for a switch."""

    def __init__(self) -> None:
        self.of: dict[Any, list[Any]] = {}

    def add(self, member: Any) -> list[Any]:
        return self.of.setdefault(member, [member])

    def join(self, one: Any, other: Any) -> None:
        first, second = self.add(one), self.add(other)
        if first is not second:
            first += second
            self.of.update(dict.fromkeys(second, first))

    def sets(self) -> list[list[Any]]:
        return list({id(members): members for members in self.of.values()}.values())


class _Ears:
    """Collects the evidence of all nodes: beacons say where the other machines are, LLDP names the switches."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.groups = Groups()
        self.sources: dict[Port, str] = {}
        self.systems: dict[Port, str] = {}
        self.foreign: dict[Port, set[str]] = {}
        self.one_way: dict[Port, set[str]] = {}
        # MAC and IP addresses of all interfaces, the management port among them; nothing where several nodes have one.
        self.owners: dict[str, str] = {}
        self.known = {(host, number) for host, node in nodes.items() for number in cages.numbers(node)}
        for host, node in nodes.items():
            for cage in node.cages:
                for half in cage.halves:
                    self._owns(host, half.mac)
            for interface in node.interfaces or ():
                for known in (interface.mac, *(item.address for item in interface.addresses)):
                    self._owns(host, known)

    def _owns(self, host: str, known: Any) -> None:
        if known:
            name = str(known).lower()
            self.owners[name] = host if self.owners.get(name, host) == host else ""

    def listen(self, host: str, entry: Heard) -> None:
        port = (host, -1 if entry.cage is None else entry.cage)
        if port not in self.known:
            return
        if entry.source == "lldp":
            # MAC and IP addresses tell a machine from a switch, and not what it calls itself.
            ours = any(self.owners.get(name.lower()) for name in (*entry.ids, entry.system))
            if entry.system and not ours:
                self.groups.join(port, ("", entry.system))
                self.systems[port] = min(entry.system, self.systems.get(port, entry.system))
                self.sources.setdefault(port, "lldp")
            return
        far = (entry.node, -1 if entry.peer_cage is None else entry.peer_cage)
        if entry.node not in self.nodes:
            self.groups.add(port)
            self.foreign.setdefault(port, set()).add(entry.node)
        elif far in self.known and far != port:  # its own beacon comes from the other half of the same cage
            self.groups.join(port, far)
            if entry.both_ways is False:
                self.one_way.setdefault(port, set()).add(entry.node)
        else:
            return
        self.sources[port] = "probe"

    def tell(self, findings: list[Finding]) -> None:
        for (host, cage), peers in self.one_way.items():
            findings.append(
                Finding(
                    host,
                    f"hears {_some(sorted(peers))} and is not heard there",
                    "Check the cable; the verification after the change will show whether packets pass both ways",
                    f"cage {cage}",
                    "warning",
                )
            )


def _heard(nodes: Nodes, findings: list[Finding]) -> list[Link]:
    """Links from the neighbour evidence of all nodes; nothing when nobody heard anything."""
    ears = _Ears(nodes)
    for host, node in nodes.items():
        for entry in node.neighbors.heard:
            ears.listen(host, entry)
    ears.tell(findings)
    links = []
    for members in ears.groups.sets():
        ends = _order(nodes, [member for member in members if member[0]])
        names = sorted(name for host, name in members if not host)
        links.append(
            Link(
                ends,
                # A name that is replaced below, when the switch says none.
                switch=names[0] if names else "switch" if len(ends) > 2 else "",
                sources={port: ears.sources.get(port, "probe") for port in ends},
                systems={port: ears.systems[port] for port in ends if port in ears.systems},
                foreign=tuple(sorted({name for port in ends for name in ears.foreign.get(port, ())})),
            )
        )
    return _numbered(nodes, links)


def _numbered(nodes: Nodes, links: Iterable[Link]) -> list[Link]:
    """In the order of ranks, with a name for every switch that has none."""
    ordered = sorted(links, key=lambda link: [(nodes[host].rank, host, cage) for host, cage in link.ends[:1]])
    nameless = 0
    found = []
    for link in ordered:
        if link.switch == "switch":
            found.append(replace(link, switch=f"switch{nameless}"))
            nameless += 1
        else:
            found.append(link)
    return found


# --- what is declared ------------------------------------------------------------------------------------------------


def _declared(nodes: Nodes, texts: Sequence[str], findings: list[Finding]) -> list[Link]:
    links: list[Link] = []
    switches: dict[str, list[Port]] = {}
    seen: set[Port] = set()

    def port_of(text: str, line: str) -> Port | None:
        host, _dot, cage = text.rpartition(".")
        number = strict.digits(cage)
        if host not in nodes or number is None:
            why = f"there is no node {host!r}" if number is not None and host else f"{text!r} names no cage"
            findings.append(everywhere(f"fabric_cables: {line!r}: {why}", FORM))
            return None
        port = (host, number)
        known = cages.numbers(nodes[host])
        if known and port[1] not in known:
            findings.append(everywhere(f"fabric_cables: {line!r}: {host} has the cages {known}", FORM))
            return None
        if port in seen:
            findings.append(everywhere(f"fabric_cables: cage {port[1]} of {host} is listed twice", "List it once"))
            return None
        seen.add(port)
        return port

    for line in texts:
        words = str(line).split()
        if len(words) != 2:
            findings.append(everywhere(f"fabric_cables: {line!r} has not two ends", FORM))
            continue
        switch = _SWITCH.fullmatch(words[1]) or _SWITCH.fullmatch(words[0])
        ends = [port_of(word, str(line)) for word in words if not _SWITCH.fullmatch(word)]
        whole = [port for port in ends if port is not None]
        if switch and len(whole) == 1:
            switches.setdefault(switch[1] or "switch", []).append(whole[0])
        elif not switch and len(whole) == 2:
            links.append(Link(_order(nodes, whole), sources=dict.fromkeys(whole, "declared")))
        elif switch and not ends:
            findings.append(everywhere(f"fabric_cables: {line!r} names no cage", FORM))
    for name, ports in switches.items():
        links.append(Link(_order(nodes, ports), switch=name, sources=dict.fromkeys(ports, "declared")))
    return _numbered(nodes, links)


def _compared(nodes: Nodes, declared: list[Link], heard: list[Link], findings: list[Finding]) -> list[Link]:
    """The declared links, with how each end is known. Every end that is elsewhere is a finding; what was heard is
    returned then."""
    expected = {port: link for link in declared for port in link.ends}
    found = {port: link for link in heard for port in link.ends}
    told: set[Port] = set()
    for link in heard:
        wrong = [port for port in link.ends if not _agrees(port, link, expected.get(port), found)]
        if not link.switch and len(link.ends) == 2 and wrong:
            # One cable, one finding: by the end that is expected elsewhere, of two the one that joined later.
            wrong = [next((port for port in reversed(link.ends) if port in expected), link.ends[-1])]
            told.update(link.ends)
        for port in wrong:
            told.add(port)
            wanted = _place(port, expected[port]) if port in expected else "nothing there"
            findings.append(
                Finding(
                    port[0],
                    f"{port[0]} cage {port[1]} is plugged into {_place(port, link)}; expected {wanted}",
                    "Move the cable, or correct fabric_cables",
                )
            )
    for port, link in expected.items():
        if port in found:
            continue
        node = nodes[port[0]]
        plugged = port[1] in cages.cabled(node)
        if plugged and heard:
            findings.append(
                Finding(
                    port[0],
                    f"nobody was heard over cage {port[1]}; fabric_cables says that it leads to {_place(port, link)}",
                    "Check this cable if the verification after the change fails",
                    severity="warning",
                )
            )
        elif not plugged and node.cages and not _is_dark(node, port[1]):
            findings.append(
                Finding(
                    port[0],
                    f"{port[0]} cage {port[1]} has no link; expected {_place(port, link)}",
                    "Plug the cable at both ends, or correct fabric_cables",
                )
            )
    if told:
        return heard
    merged = []
    for link in declared:
        systems = {p: found[p].systems[p] for p in link.ends if p in found and p in found[p].systems}
        named = link.switch.startswith("switch") and systems
        merged.append(
            replace(
                link,
                switch=min(systems.values()) if named else link.switch,
                sources={p: found[p].sources[p] if p in found else "declared" for p in link.ends},
                systems=systems,
            )
        )
    return merged


def _is_dark(node: NodeInput, number: int) -> bool:
    cage = cages.by_number(node, number)
    return cage is not None and cage.admin_down


def _agrees(port: Port, link: Link, wanted: Link | None, found: Mapping[Port, Link]) -> bool:
    if wanted is None:
        return False
    if wanted.switch:
        # Two ends of a switch that keeps quiet look like a cable; but not while its others hear each other.
        if not link.switch:
            apart = any(found.get(end, link) is not link and len(found[end].ends) > 1 for end in wanted.ends)
            return len(link.ends) > 1 and all(end in wanted.ends for end in link.ends) and not apart
        named = not wanted.switch.startswith("switch")
        return not named or link.systems.get(port, wanted.switch) == wanted.switch
    return not link.switch and set(link.ends) == set(wanted.ends)


def _place(port: Port, link: Link) -> str:
    """Where the other end of this port is."""
    if link.switch:
        name = link.systems.get(port, link.switch)
        return "a switch" if re.fullmatch(r"switch\d*", name) else f"switch {name}"
    far = link.far(port)
    if far is not None:
        return f"{far[0]} cage {far[1]}"
    return f"{', '.join(link.foreign)}, which is none of these nodes" if link.foreign else "nothing that answers"


# --- what is assumed -------------------------------------------------------------------------------------------------


def _assumed(nodes: Nodes, wanted: str, findings: list[Finding]) -> list[Link]:
    """Nobody was heard: two nodes share a cable, more a switch. What could as well be something else is refused, or
    said where the verification after the change will find it out."""
    kind = wanted if wanted in ("direct", "switch") else "direct" if len(nodes) == 2 else "switch"
    plugged = {host: cages.cabled(node) for host, node in nodes.items()}
    automatic = {host for host, node in nodes.items() if node.use_cages == "auto"}
    two = [host for host in nodes if host in automatic and len(plugged[host]) > 1]
    one = [host for host in nodes if len(plugged[host]) == 1]
    if wanted == "ring" or (wanted == "auto" and len(nodes) > 2 and len(two) == len(nodes)):
        why = (
            f"fabric_topology is {wanted!r}"
            if wanted != "auto"
            else f"both cages are cabled on each of {len(nodes)} nodes, which may be a ring or two links to a switch"
        )
        findings.append(
            everywhere(
                f"{why}, and no node heard another, so which cable leads where is not known",
                f"Set fabric_topology: switch if all lead to one, or {DECLARE}",
            )
        )
        return []
    if two and one:
        for host in two:
            findings.append(
                Finding(
                    host,
                    f"both cages are cabled here, and one on {_some(one)}: which cable belongs to this fabric cannot "
                    "be told",
                    "Set fabric_cages: [0] or [1] for this host, or unplug the other cable",
                )
            )
    ports = {host: [(host, number) for number in plugged[host] if cages.may_use(nodes[host], number)] for host in nodes}
    if kind == "switch":
        ends = _order(nodes, [port for own in ports.values() for port in own])
        return [Link(ends, "switch0", dict.fromkeys(ends, "assumed"))] if ends else []
    if two and not one:
        findings.append(
            everywhere(
                "both cages are cabled on both nodes and no node heard the other: it is assumed that cage 0 leads to "
                "cage 0",
                f"If the verification after the change fails, {DECLARE}",
                "warning",
            )
        )
    return [
        Link(_order(nodes, pair), sources=dict.fromkeys(pair, "assumed"))
        for pair in zip(*ports.values())
        if len(pair) > 1
    ]


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MAX_NAMED])
    return shown if len(names) <= MAX_NAMED else f"{shown} and {len(names) - MAX_NAMED} more"


# --- dead ends -------------------------------------------------------------------------------------------------------


def in_use(nodes: Nodes, links: Sequence[Link], findings: list[Finding]) -> list[Link]:
    """The links that join nodes over cages that may be used. A node that none of them reaches is refused with what its
    cages lead to; what a connected node has beside that is a warning. Where cables are assumed nothing is known of
    that."""
    known = any(source != "assumed" for link in links for source in link.sources.values())
    ports = {host: set(cages.choose(node, about(host, findings))) for host, node in nodes.items()}
    by_port = {port: link for link in links for port in link.ends}
    joining = []
    for link in links:
        ends = tuple(port for port in link.ends if port[1] in ports[port[0]])
        if len({host for host, _cage in ends}) > 1:
            joining.append(replace(link, ends=ends))
    joined = {port for link in joining for port in link.ends}
    for host, numbers in ports.items():
        loose = [(host, number) for number in sorted(numbers) if (host, number) not in joined]
        connected = len(loose) < len(numbers)
        for place, port in enumerate(loose if known else ()):
            text, remedy = _loose(nodes, port, by_port.get(port), ports)
            if text.endswith(LOOP) and place:
                continue  # one cable, one finding
            severity = "warning" if connected else "error"
            findings.append(Finding(host, text, remedy, f"cage {port[1]}", severity))
    for link in joining:
        for host in link.hosts:
            systems = {link.systems[end] for end in link.ends if end[0] == host and end in link.systems}
            if len(systems) > 1:
                findings.append(
                    Finding(
                        host,
                        f"its cages lead to different switches: {', '.join(sorted(systems))}",
                        "Connect one cage of every node to the same switch",
                        severity="warning",
                    )
                )
        if link.foreign:
            findings.append(
                Finding(
                    link.ends[0][0],
                    f"{_some(link.foreign)} was heard on the same switch and is none of these nodes",
                    "Nothing to do if it uses other subnets; else add it to the group sparks",
                    f"cage {link.ends[0][1]}",
                    "warning",
                )
            )
    return joining


def _loose(nodes: Nodes, port: Port, link: Link | None, ports: Mapping[str, set[int]]) -> tuple[str, str]:
    host = port[0]
    if link is not None:
        if not link.switch and len(link.ends) == 2 and link.hosts == (host,):
            other = next(end for end in link.ends if end != port)
            return (
                f"it is joined with cage {other[1]} of the same node: {LOOP}",
                "Plug the other end into another node or a switch; if both are in a switch, no other node is",
            )
        far = link.far(port)
        if far is not None and far[1] not in ports[far[0]]:
            if cages.may_use(nodes[far[0]], far[1]):
                return (
                    f"it leads to {far[0]} cage {far[1]}, which has no link",
                    "Check the cable at that end, and that the interfaces there are switched on",
                )
            return (
                f"it leads to {far[0]} cage {far[1]}, which is not to be used there (fabric_cages)",
                f"Correct fabric_cages of {host} or {far[0]}",
            )
        if link.foreign:
            return (
                f"it leads to {_some(link.foreign)}, which is none of these nodes",
                "Add that node to the group sparks, or move the cable",
            )
        if link.switch:
            return (
                f"it leads to switch {link.switch}, where no other of these nodes was heard",
                "Check the VLANs of the switch ports, or connect the other nodes to this switch",
            )
    return (
        "it has a link, and no node of this cluster was heard over it",
        f"Check where the other end is plugged; if it is right, {DECLARE}",
    )


# --- for the fact and for people -------------------------------------------------------------------------------------


def cables_of(links: Iterable[Link]) -> dict[str, list[Cable]]:
    """The cables of each node, by cage. Dead ends are left out."""
    found: dict[str, list[Cable]] = {}
    for link in links:
        for port in link.ends:
            host, cage = port
            far, source = link.far(port), link.sources.get(port, "assumed")
            if link.switch:
                found.setdefault(host, []).append(Cable(cage, source, switch=link.systems.get(port, link.switch)))
            elif far is not None and far[0] != host:
                found.setdefault(host, []).append(Cable(cage, source, far[0], far[1]))
    return {host: sorted(own, key=lambda cable: cable.cage) for host, own in found.items()}


def cable_map(nodes: Nodes, links: Sequence[Link], used: set[Port] | None) -> list[str]:
    """One line per cable, as ``spark1 cage 0 - spark2 cage 1  200 Gb/s  declared``. ``used`` is None without a plan."""
    words = {
        "probe": "seen by the other end",
        "lldp": "announced by LLDP",
        "declared": "declared in fabric_cables",
        "assumed": "assumed",
    }
    rows = []
    for link in links:
        pairs = [(port, _place(port, link)) for port in (link.ends if link.switch else link.ends[:1])]
        for port, place in pairs:
            ends = [cages.by_number(nodes[host], number) for host, number in ([port] if link.switch else link.ends)]
            speed = min(filter(None, (cages.gbps(cage) for cage in ends if cage is not None)), default=0.0)
            rows.append(
                (
                    f"{port[0]} cage {port[1]} - {place}",
                    f"{speed:g} Gb/s" if speed else "? Gb/s",
                    words.get(link.sources.get(port, "assumed"), "assumed"),
                    "" if used is None or port in used else "not used",
                )
            )
    return columns(rows)
