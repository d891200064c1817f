# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The management address of a node: the IPv4 address at which the other nodes reach it besides the fabric.

It is chosen once, by what the machine has and not by how the operator logged in: his session may come over IPv6, over
a VPN, or over the fabric itself. Afterwards it stays, for as long as the machine has it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.address import ipv4
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.network import Network, NetworkInterface

VARIABLE = "fabric_management_address"
# The ConnectX-7 functions of each cage, as systemd names them (net naming scheme: f<function>np<port>).
_CONNECTX_NAME = re.compile(r"en[pP]\d+[a-zA-Z0-9]*f\d+np\d+")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@-]{0,14}")
_DOWN = ("DOWN", "LOWERLAYERDOWN", "NOTPRESENT")
# Devices that stand on others: they are as physical as what is below them.
_STACKED = ("bond", "bridge", "macvlan", "team", "vlan")
_PHYSICAL, _CONTAINER = 0, 1


@dataclass(frozen=True)
class Management:
    """``refusal``: why there is none; ``notice``: what the user should know of this one."""

    address: str = ""
    interface: str = ""
    notice: Finding | None = None
    refusal: Finding | None = None


def choose(host: str, network: Network, setting: str = "") -> Management:
    """``setting``: ``fabric_management_address``, which wins.

    Next is the address of the fabric fact, for as long as the node has it; then the rule of :func:`_ranked`. None is
    chosen that would be refused once the fact has it.
    """
    ranked = list(_ranked(network))
    by_rule = next(
        (management for management in ranked if _sender(network, management.address) in ("", management.interface)),
        Management(),
    )
    here = {address: item.name for item in _usable(network) for address in _addresses(item)}
    if setting:
        wanted = ipv4(setting)
        carrier = here.get(wanted) or next(
            (management.interface for management in ranked), ""
        )  # behind NAT it is on no interface
        sender = _sender(network, wanted) if wanted in here else ""
        if sender not in ("", carrier):
            return _hidden(host, wanted, carrier, sender)
        if wanted and carrier:
            return Management(wanted, carrier)
        found = "is on no interface with a link" if wanted else "is no IPv4 address"
        return _refused(host, f"{VARIABLE} is {setting!r}, which {found}")
    old = ipv4(network.kept.address) if network.kept else ""
    if old in here:
        sender = _sender(network, old)
        if sender not in ("", here[old]):
            return _hidden(host, old, here[old], sender)
        return Management(old, here[old], _other(host, old, here[old], by_rule))
    if not by_rule.address and ranked:
        first = ranked[0]
        return _hidden(host, first.address, first.interface, _sender(network, first.address))
    if not by_rule.address:
        return _refused(host, f"no address of it fits as management address{_unfit(network)}")
    gone = Finding(
        host,
        f"its management address was {old}, which it no longer has; now it is {by_rule.address}",
        "Run site.yml, so that every node learns it. To keep an address, reserve it in the DHCP server",
        by_rule.interface,
        "warning",
    )
    return Management(by_rule.address, by_rule.interface, gone if old else None)


def fabric_ports(network: Network) -> set[str]:
    """Interfaces of the ConnectX-7, by its RDMA devices and by name."""
    named = {item.name for item in network.interfaces or () if _CONNECTX_NAME.fullmatch(item.name)}
    return named.union(network.rdma_interfaces)


def _ranked(network: Network) -> Iterator[Management]:
    """Physical interfaces first, of these the carrier of the default route (least metric). Where that leaves two, the
    one that the session came over; then the order of the names, in which Ethernet comes before Wi-Fi."""
    metrics: dict[str, int] = {}
    for route in network.routes or ():
        if route.dst == "default" and route.table == "main":
            metric, device = route.metric or 0, str(route.dev)
            metrics[device] = min(metric, metrics.get(device, metric))
    places = []
    for item in _usable(network):
        name, kind, addresses = item.name, _kind(network, item), list(_addresses(item))
        if kind is None or not addresses:
            continue
        ours = name == network.connection_interface
        places.append((kind, name not in metrics, metrics.get(name, 0), not ours, name, addresses[0]))
    for *_rank, name, address in sorted(places):
        yield Management(address, name)


def _usable(network: Network) -> list[NetworkInterface]:
    return [
        item
        for item in network.interfaces or ()
        if _NAME.fullmatch(item.name) and item.state not in _DOWN and item.name != "lo"
    ]


def _addresses(interface: NetworkInterface) -> Iterator[str]:
    """Global IPv4 addresses, the primary one first, as the kernel lists them."""
    for entry in interface.addresses:
        address = ipv4(entry.address)
        if address and (entry.scope or "global") == "global":
            parsed = ipaddress.IPv4Address(address)
            if not (parsed.is_link_local or parsed.is_loopback or parsed.is_multicast or parsed.is_unspecified):
                yield address


def _kind(network: Network, interface: NetworkInterface) -> int | None:
    """None for what leads to no other node by itself: tunnels, bridges of containers, ports of the fabric."""
    if interface.master:
        return None
    lower = below(interface.name, network.interfaces or ())
    if lower:
        return None if lower & fabric_ports(network) else _PHYSICAL
    # A machine that is a container itself, whose line to the world is one end of a pair.
    return _CONTAINER if interface.kind == "veth" and interface.name not in fabric_ports(network) else None


def below(name: str, interfaces: Sequence[NetworkInterface], seen: Collection[str] = ()) -> set[str]:
    """The physical interfaces that this one stands on; itself when it is one."""
    item = next((item for item in interfaces if item.name == name), None)
    if item is None or name in seen or name == "lo":
        return set()
    if not item.kind:
        return {name}
    if item.kind not in _STACKED:
        return set()
    lower = {other.name for other in interfaces if other.master == name} | {str(item.link)}
    return {found for one in lower for found in below(one, interfaces, {*seen, name})}


def _other(host: str, old: str, carrier: str, by_rule: Management) -> Finding | None:
    if by_rule.address in ("", old):
        return None
    return Finding(
        host,
        f"its management address stays {old}, while {by_rule.address} on {by_rule.interface} would be chosen today",
        f"To change it, set {VARIABLE}: {by_rule.address} for this host and run site.yml, which restarts what serves; "
        f"to keep it without this warning, set {VARIABLE}: {old}",
        carrier,
        "warning",
    )


def _sender(network: Network, address: str) -> str:
    """The interface over which the kernel sends to the neighbours of an address; empty where no route says it. What a
    half has in the way is not looked at: the layer fabric gives it other addresses, and refuses those that overlap."""
    found, halves = [], fabric_ports(network)
    for route in network.routes or ():
        if route.dev and route.dev not in halves and "/" in route.dst and route.table == "main":
            subnet = ipaddress.ip_network(route.dst, strict=False)
            if ipaddress.ip_address(address) in subnet:
                found.append((-subnet.prefixlen, route.metric or 0, route.dev))
    # Of equal ones the first of the list is taken.
    return min(found, key=lambda way: way[:2])[2] if found else ""


def _hidden(host: str, address: str, carrier: str, sender: str) -> Management:
    found = f"its management address {address} is on {carrier}, and it sends to that network over {sender}"
    remedy = f"Set {VARIABLE} for this host to its address on {sender}, or take {sender} off this network"
    why = "The other nodes let in its management address, and nothing that comes from another one"
    return Management(refusal=Finding(host, found, remedy, carrier, why=why))


def _unfit(network: Network) -> str:
    shown = []
    for item in network.interfaces or ():
        why = "of the fabric" if item.name in fabric_ports(network) else item.kind or ""
        why = "without a link" if item.state in _DOWN else why
        shown += [f"{address} on {item.name}{f' ({why})' if why else ''}" for address in _addresses(item)]
    return f": {', '.join(shown)}" if shown else ": it has no IPv4 address"


def _refused(host: str, found: str) -> Management:
    remedy = f"Set {VARIABLE} for this host to the IPv4 address at which the other nodes reach it"
    return Management(refusal=Finding(host, found, remedy))
