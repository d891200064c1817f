# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Subnets and addresses. An address follows from the ranks at the two ends of a cable, and from nothing else."""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.network import (
    InterfaceAddress,
    NetworkInterface,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact, Rail
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.topology import Strand, edge_number
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.types import (
    RAILS,
    Found,
    Network,
    NodeInput,
    Settings,
    about,
    as_network,
    everywhere,
)

try:
    import netaddr
except ImportError:  # reported by subnets()
    netaddr = None

MORE = "List more subnets in fabric_subnets (two per cable), or begin with smaller or lower ones, such as 10.100.0.0/24"
Subnets = Mapping[tuple[int, int], Network]  # (number of the pair, half)


def subnets(settings: Settings, strands: Sequence[Strand], findings: list[Finding]) -> dict[tuple[int, int], Network]:
    """The subnet of every strand; nothing when one was refused.

    Pair 0 is the first two of ``fabric_subnets``. Further pairs are the further entries; when only two are listed, the
    networks that follow them.
    """
    if netaddr is None:
        findings.append(
            everywhere("the Python of Ansible has no netaddr", "Install it beside ansible: pip install netaddr")
        )
        return {}
    networks = listed(settings, findings)
    if not networks:
        return {}
    found: dict[tuple[int, int], Network] = {}
    for number, half in sorted({(strand.number, strand.half) for strand in strands}):
        network = _at(networks, number, half)
        if network is None:
            last, only = networks[-RAILS:], len(networks) == RAILS
            findings.append(
                everywhere(
                    f"fabric_subnets has no subnet for pair {number + 1}: it lists {len(networks)}"
                    + (f", and what follows {last[0]} and {last[1]} is no private network" if only else ""),
                    MORE,
                )
            )
            return {}
        found[number, half] = network
    return found if _apart(list(found.values()), findings) else {}


def _apart(networks: Sequence[Network], findings: list[Finding]) -> bool:
    ordered = sorted(networks)
    for network, other in zip(ordered, ordered[1:]):
        if network.overlaps(other):
            findings.append(
                everywhere(
                    f"fabric_subnets overlap: {network} and {other}", "Give each half of each cable its own subnet"
                )
            )
            return False
    return True


def listed(settings: Settings, findings: list[Finding]) -> list[Network]:
    """``fabric_subnets`` as networks; none when one of them was refused."""
    count = len(settings.subnets)
    if count < RAILS or count % RAILS:
        findings.append(
            everywhere(
                f"fabric_subnets lists {count} subnet{'' if count == 1 else 's'}, and a cable has {RAILS} halves with "
                "a subnet each",
                "List two subnets, or two per cable: in one, all traffic would leave through one half",
            )
        )
        return []
    networks: list[Network] = []
    for text in settings.subnets:
        try:
            networks.append(ipaddress.IPv4Network(text))
        except ValueError as exc:
            findings.append(
                everywhere(f"fabric_subnets: {text!r} is no IPv4 subnet ({exc})", "Write it as 192.168.100.0/24")
            )
    return networks if len(networks) == count and _apart(networks, findings) else []


def _at(listed: Sequence[Network], number: int, half: int) -> Network | None:
    if len(listed) > RAILS or number == 0:
        place = number * RAILS + half
        return listed[place] if place < len(listed) else None
    first, second = (netaddr.IPNetwork(str(network)) for network in listed)
    # 100/24 and 101/24 go on with 102 and 103; two that are apart each go on by themselves.
    adjacent = first.prefixlen == second.prefixlen and abs(first.first - second.first) == first.size
    base = (first, second)[half]
    try:
        network = base.next(number * (RAILS if adjacent else 1))
    except IndexError:  # behind the last address
        return None
    if base.network.is_ipv4_private_use() and not network.network.is_ipv4_private_use():
        return None
    return ipaddress.IPv4Network(str(network))


def pair_of(fact: FabricFact, rail: Rail, rank: int, ranks: Mapping[str, Any]) -> int | None:
    """The number of the pair of subnets of a cable that is there; None where the machine at its other end has left."""
    if fact.topology != "ring":
        return 0
    far = ranks.get(rail.neighbor)
    return edge_number(rank, far) if isinstance(far, int) else None


def stays(settings: Settings, rail: Rail, rank: int, pair: int, own: Mapping[str, str]) -> bool:
    """Whether a rail of an earlier run would keep its address, as the cables were then. ``pair``: number of its pair of
    subnets; ``own``: the ``fabric_addresses`` of its node."""
    texts = [own[key] for key in (rail.netdev, str(rail.index)) if key in own]
    if texts:
        wanted = _with_address(rail, str(texts[0]), about("", []))
        return (wanted.address, wanted.prefix) == (rail.address, rail.prefix)
    given = listed(settings, [])
    if not given or netaddr is None:  # refused by the plan
        return True
    network = network_of(rail)
    number = int(ipaddress.IPv4Address(rail.address)) - int(network.network_address)
    return network == _at(given, pair, rail.index % RAILS) and number == settings.host_offset + rank


def spanning(networks: Sequence[Network]) -> Network:
    """The smallest network that holds all of these."""
    ends = [str(address) for network in networks for address in (network[0], network[-1])]
    return ipaddress.IPv4Network(str(netaddr.spanning_cidr(ends)))


def planned(
    settings: Settings,
    nodes: Mapping[str, NodeInput],
    strands: Iterable[Strand],
    networks: Subnets,
    findings: list[Finding],
) -> bool:
    """Does every node's number fit into its subnets?"""
    ranks: dict[Network, list[int]] = {}
    for strand in strands:
        own = sorted(nodes[host].rank for host, _cage in strand.members)
        ranks[networks[strand.number, strand.half]] = [own[0], own[-1]]
    fits = True
    for network, ends in ranks.items():
        last = network.num_addresses - 2
        outside = [rank for rank in ends if not 1 <= settings.host_offset + rank <= last]
        if outside:
            fits = False
            findings.append(
                everywhere(
                    f"rank {outside[-1]} gets host number {settings.host_offset + outside[-1]} (fabric_host_offset "
                    f"{settings.host_offset} + rank), and {network} has the numbers 1 to {last}",
                    "Use a larger subnet in fabric_subnets or another fabric_host_offset",
                )
            )
    return fits


# --- the user's own addresses ----------------------------------------------------------------------------------------


def explicit(host: str, node: NodeInput, rails: Sequence[Rail], findings: list[Finding]) -> list[Rail]:
    """The rails with the addresses that ``fabric_addresses`` gives this host, by netdev or index."""
    found, placed = about(host, findings), []
    left = dict(node.addresses)
    for rail in rails:
        keys = [key for key in (rail.netdev, str(rail.index)) if key in left]
        texts = [left.pop(key) for key in keys]
        if len(set(texts)) > 1:
            found(rail.netdev, f"fabric_addresses gives it {' and '.join(texts)}", "Name it once, by interface or rail")
        placed.append(_with_address(rail, texts[0], found) if texts else rail)
    for key in left:
        names = ", ".join(f"{rail.index} ({rail.netdev})" for rail in rails)
        found("", f"fabric_addresses names {key!r}, and this node has the rails {names}", "Name one of these")
    return placed


def _with_address(rail: Rail, text: str, found: Found) -> Rail:
    try:
        interface = ipaddress.IPv4Interface(text if "/" in text else f"{text}/{rail.prefix}")
    except ValueError as exc:
        found(rail.netdev, f"fabric_addresses: {text!r} is no IPv4 address ({exc})", "Write it as 192.168.100.10/24")
        return rail
    network = interface.network
    if interface.ip in (network.network_address, network.broadcast_address) or interface.ip.is_multicast:
        found(rail.netdev, f"fabric_addresses: {interface} is no address of a machine", "Use another number")
    return replace(rail, address=str(interface.ip), prefix=network.prefixlen)


def network_of(rail: Rail) -> Network:
    return _network(rail.address, rail.prefix)


@functools.lru_cache(maxsize=4096)  # asked for by every node for every other one
def _network(address: str, prefix: int) -> Network:
    return ipaddress.IPv4Network(f"{address}/{prefix}", strict=False)


def check_together(rails: Mapping[str, Mapping[Strand, Rail]], findings: list[Finding]) -> list[Network]:
    """All ends of a strand are in one subnet, no two strands share one, and no address is used twice. Returns every
    subnet in use."""
    holders: dict[str, str] = {}
    subnets_of: dict[Strand, dict[Network, tuple[str, Rail]]] = {}
    for host, own in rails.items():
        for strand, rail in own.items():
            if rail.address in holders:
                findings.append(
                    Finding(
                        host,
                        f"its address {rail.address} is also that of {holders[rail.address]}",
                        "Correct fabric_addresses",
                        rail.netdev,
                    )
                )
            holders.setdefault(rail.address, f"{host} {rail.netdev}")
            subnets_of.setdefault(strand, {}).setdefault(network_of(rail), (host, rail))
    used: list[tuple[Network, str, Rail]] = []
    for found in subnets_of.values():
        (network, (first, one)), *others = found.items()
        for other_network, (host, rail) in others:
            findings.append(
                Finding(
                    host,
                    f"{rail.address} is in {other_network}, and the other end, {first} {one.netdev}, has {one.address} "
                    f"in {network}",
                    "Give both ends of a cable (all nodes of a switch) addresses in one subnet",
                    rail.netdev,
                )
            )
        used.append((network, first, one))
    used.sort(key=lambda entry: (entry[0].network_address, entry[0].prefixlen))
    for (network, first, one), (other_network, host, rail) in zip(used, used[1:]):
        if network.overlaps(other_network):
            findings.append(
                Finding(
                    host,
                    f"its subnet {other_network} overlaps {network} of {first} {one.netdev}, which is another cable or "
                    "half",
                    "Give each half of each cable its own subnet",
                    rail.netdev,
                )
            )
    return [network for network, _host, _rail in used]


# --- what is there already -------------------------------------------------------------------------------------------


def check_overlap(
    host: str,
    node: NodeInput,
    rails: Sequence[Rail],
    used: Sequence[Network],
    findings: list[Finding],
) -> None:
    """Nothing but our own rails may have to do with our subnets."""
    found = about(host, findings)
    remedy = "Set fabric_subnets to subnets that no node uses, or remove the"
    known = node.interfaces
    if known is None:
        known = [NetworkInterface(node.management_interface, addresses=[InterfaceAddress(node.management_address, 32)])]
    for interface in known:
        name = interface.name
        for entry in interface.addresses:
            text = f"{entry.address}/{entry.prefix}"
            network = as_network(text)
            if network is None or _is_ours(node, rails, name, entry.address):
                continue
            for subnet in used:
                if network.overlaps(subnet):
                    found(
                        name, f"has the address {text}, which overlaps the fabric subnet {subnet}", f"{remedy} address"
                    )
    own = {rail.netdev for rail in rails}
    for route in node.routes or ():
        network, name = as_network(route.dst), route.dev or route.type or ""
        if network is None or network.prefixlen == 0 or name in own:
            continue
        if any(interface.name == name and _is_onlink(interface, network) for interface in known):
            continue  # the interface's own subnet, seen above
        for subnet in used:
            if network.subnet_of(subnet):
                via = f" via {route.gateway}" if route.gateway else ""
                found(name, f"has a route to {network}{via}, inside the fabric subnet {subnet}", f"{remedy} route")
            elif network.overlaps(subnet):
                found(
                    name,
                    f"has a route to {network}, which the fabric subnet {subnet} will be cut out of",
                    "Nothing to do if no machine behind that route has an address in the fabric subnet",
                    "warning",
                )


def _is_ours(node: NodeInput, rails: Sequence[Rail], name: str, address: str) -> bool:
    """On a rail, or left on the other cage from before the cable was moved."""
    if any(rail.netdev == name for rail in rails):
        return True
    behind_cages = {half.netdev for cage in node.cages for half in cage.halves}
    return name in behind_cages and any(rail.address == address for rail in rails)


def _is_onlink(interface: NetworkInterface, network: Network) -> bool:
    return any(as_network(f"{entry.address}/{entry.prefix}") == network for entry in interface.addresses)
