# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Interfaces, routes and the connection that Ansible comes in by, as iproute2 and sshd tell them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text, kinds, strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.address import canonical
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine

_MAX_ANCESTORS = 24


@dataclass(frozen=True)
class InterfaceAddress:
    address: kinds.Address
    prefix: Optional[kinds.PrefixLength] = None
    family: Optional[kinds.Word] = None
    scope: kinds.Word = "global"
    dynamic: kinds.Flag = False


@dataclass(frozen=True)
class NetworkInterface:
    """``kind`` is that of a virtual device (bond, bridge, veth …), ``master`` the bond or bridge that an interface is
    in, ``link`` the one that a VLAN stands on; ``up``: switched on, ``carrier``: with a link."""

    name: kinds.Interface
    mac: Optional[kinds.Word] = None  # of a tunnel it is an IP address
    mtu: Optional[kinds.Count] = None
    state: Optional[kinds.Word] = None
    kind: Optional[kinds.Word] = None
    master: Optional[kinds.Interface] = None
    link: Optional[kinds.Interface] = None
    up: Optional[kinds.Flag] = None
    carrier: Optional[kinds.Flag] = None
    addresses: list[InterfaceAddress] = field(default_factory=list)


@dataclass(frozen=True)
class Route:
    dst: kinds.Destination
    gateway: Optional[kinds.Address] = None
    dev: Optional[kinds.Interface] = None
    table: kinds.Word = "main"
    metric: Optional[kinds.Count] = None
    type: Optional[kinds.Word] = None


@dataclass(frozen=True)
class Rule:
    priority: Optional[kinds.Count]
    table: kinds.Word
    action: kinds.Word


@dataclass(frozen=True)
class Gateway:
    address: kinds.Address
    interface: kinds.Interface


@dataclass(frozen=True)
class Kept:
    """The management address that the fabric fact keeps, of whatever release, and what the machine was set up as."""

    address: kinds.Words
    interface: kinds.Words = ""
    host: kinds.Words = ""
    rank: Optional[kinds.Count] = None
    nodes: Optional[kinds.Count] = None


@dataclass(frozen=True)
class Network:
    """``rdma_interfaces`` and ``kept``: where :mod:`_fabric.management` has read them; what iproute2 does not tell is
    None."""

    interfaces: Optional[list[NetworkInterface]] = None
    routes: Optional[list[Route]] = None
    rules: Optional[list[Rule]] = None
    default_gateway: Optional[Gateway] = None
    connection_address: Optional[kinds.AddressOrEmpty] = None
    connection_interface: Optional[kinds.InterfaceOrEmpty] = None
    connection_source: Optional[kinds.Word] = None
    rdma_interfaces: list[kinds.Interface] = field(default_factory=list)
    kept: Optional[Kept] = None


def network(machine: Machine, connection_host: str = "") -> Network:
    """Interfaces and routes from ``ip -j`` (iproute2), and the interface that carries Ansible's connection."""
    interfaces = parse_addresses(machine.output("ip", "-j", "-d", "addr", "show"))
    routes = parse_routes(machine.output("ip", "-j", "route", "show", "table", "all"))
    address, source = connection_address(machine, connection_host, interfaces)
    carrier = next((item.name for item in interfaces or [] if address in _plain(item)), None)
    gateway = next(
        (
            Gateway(route.gateway, route.dev or "")
            for route in routes or []
            if route.dst == "default" and route.table == "main" and route.gateway
        ),
        None,
    )
    if carrier is None and gateway is not None:
        carrier, source = gateway.interface, "default_route"
        address = next(
            (
                interface_address.address
                for item in interfaces or []
                if item.name == carrier
                for interface_address in item.addresses
            ),
            None,
        )
    return Network(
        interfaces=interfaces,
        routes=routes,
        rules=parse_rules(machine.output("ip", "-j", "-4", "rule", "show")),
        default_gateway=gateway,
        connection_address=address,
        connection_interface=carrier,
        connection_source=source,
    )


def _plain(interface: NetworkInterface) -> set[str]:
    return {interface_address.address for interface_address in interface.addresses}


def _json_list(text: str | None) -> list[dict[str, Any]] | None:
    """``ip -j`` prints a list of objects, some of them empty; nothing at all when there is nothing to list."""
    if text is None:
        return None
    try:
        return [item for item in json_text.mappings(text) if item] if text.strip() else []
    except SparkError:
        return None


def parse_addresses(text: str | None) -> list[NetworkInterface] | None:
    """Of ``ip -j -d addr``; None where it cannot be read."""
    entries = _json_list(text)
    return None if entries is None else [_interface(entry) for entry in entries]


def _interface(entry: dict[str, Any]) -> NetworkInterface:
    infos, link, flags = entry.get("addr_info"), entry.get("linkinfo"), entry.get("flags")
    return NetworkInterface(
        name=str(entry.get("ifname", "")),
        mac=entry.get("address"),
        mtu=entry.get("mtu"),
        state=entry.get("operstate"),
        kind=link.get("info_kind") if isinstance(link, dict) else None,
        master=entry.get("master"),
        link=entry.get("link"),
        up="UP" in flags if isinstance(flags, list) else None,
        carrier="LOWER_UP" in flags if isinstance(flags, list) else None,
        addresses=[
            InterfaceAddress(
                address=str(info["local"]),
                prefix=info.get("prefixlen"),
                family=info.get("family"),
                scope=info.get("scope", "global"),
                dynamic=bool(info.get("dynamic")),
            )
            for info in (infos if isinstance(infos, list) else [])
            if isinstance(info, dict) and info.get("local")
        ],
    )


def parse_routes(text: str | None) -> list[Route] | None:
    """The tables ``local`` and multicast are left out."""
    entries = _json_list(text)
    if entries is None:
        return None
    return [
        Route(
            dst=str(entry.get("dst", "")),
            gateway=entry.get("gateway"),
            dev=entry.get("dev"),
            table=str(entry.get("table", "main")),
            metric=entry.get("metric"),
            type=entry.get("type", "unicast"),
        )
        for entry in entries
        if str(entry.get("table", "main")) not in ("local", "255")
        and entry.get("type") not in ("local", "broadcast", "multicast", "anycast")
    ]


# A rule with one of these is about some packets only (ip-rule(8)); with "not", about all others.
_SELECTORS = ("fwmark", "dst", "iif", "oif", "ipproto", "sport", "dport", "uid_start", "tos", "tun_id")


def parse_rules(text: str | None) -> list[Rule] | None:
    """The rules that any packet of the machine's own meets before the table main, in the order of the kernel. Without
    those whose default route does not count (``suppress_prefixlength``)."""
    entries = _json_list(text)
    if entries is None:
        return None
    found = []
    for entry in sorted(entries, key=lambda one: one["priority"] if isinstance(one.get("priority"), int) else 0):
        table = str(entry.get("table", "main"))
        some = [name for name in _SELECTORS if name in entry] or entry.get("src", "all") != "all"
        action = str(entry.get("action", "goto" if "goto" in entry else "lookup"))
        if table in ("local", "255") or bool(some) != ("not" in entry) or action in ("goto", "nop"):
            continue
        if table in ("main", "254") and action == "lookup":
            break
        if "suppress_prefixlen" in entry:
            continue
        found.append(Rule(entry.get("priority"), table, action))
    return found


def connection_address(
    machine: Machine, connection_host: str, interfaces: Sequence[NetworkInterface] | None
) -> tuple[str | None, str | None]:
    """This machine's end of the ssh connection, and how it was found: ``ssh``, ``host`` or nothing.

    ``connection_host`` counts when it is an address that this machine has.
    """
    ssh = ssh_connection(machine)
    if ssh:
        return canonical(ssh[2]) or None, "ssh"
    mine = {address for item in interfaces or [] if item.name != "lo" for address in _plain(item)}
    wanted = canonical(connection_host)
    return (wanted, "host") if wanted in mine else (None, None)


def ssh_connection(machine: Machine) -> tuple[str, str, str, str] | None:
    """Client, its port, server and its port, as sshd wrote them; None where this process came another way.

    sudo removes SSH_CONNECTION (ssh(1)) from the environment, but not from that of the processes above.
    """
    value = machine.environment.get("SSH_CONNECTION")
    pid = machine.pid
    for _step in range(_MAX_ANCESTORS):
        if value:
            break
        pid = parent(machine, pid)
        if pid <= 1:
            break
        value = environment(machine, pid).get("SSH_CONNECTION")
    fields = (value or "").split()
    return (fields[0], fields[1], fields[2], fields[3]) if len(fields) == 4 else None


def parent(machine: Machine, pid: int) -> int:
    """Field 4 of /proc/<pid>/stat; the name in field 2 may hold blanks and parentheses (proc(5))."""
    text = machine.text(f"/proc/{pid}/stat") or ""
    fields = text.rpartition(")")[2].split()
    return strict.digits(fields[1]) or 0 if len(fields) > 1 else 0


def environment(machine: Machine, pid: int) -> dict[str, str]:
    try:
        content = machine.content(f"/proc/{pid}/environ") or b""
    except SparkError:
        return {}
    pairs = (entry.decode("utf-8", "replace").partition("=") for entry in content.split(b"\0") if entry)
    return {name: value for name, _equals, value in pairs}
