# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Interfaces, routes and the connection that Ansible comes in by, as iproute2 and sshd tell them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text, strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.address import canonical
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine

_MAX_ANCESTORS = 24


def network(machine: Machine, connection_host: str = "") -> dict[str, Any]:
    """Interfaces and routes from ``ip -j`` (iproute2), and the interface that carries Ansible's connection."""
    interfaces = parse_addresses(machine.output("ip", "-j", "-d", "addr", "show"))
    routes = parse_routes(machine.output("ip", "-j", "route", "show", "table", "all"))
    rules = parse_rules(machine.output("ip", "-j", "-4", "rule", "show"))
    address, source = connection_address(machine, connection_host, interfaces)
    carrier = next((item["name"] for item in interfaces or [] if address in _plain(item)), None)
    gateway = next((r for r in routes or [] if r["dst"] == "default" and r["table"] == "main" and r["gateway"]), None)
    if carrier is None and gateway is not None:
        carrier, source = gateway["dev"], "default_route"
        address = next((a["address"] for i in interfaces or [] if i["name"] == carrier for a in i["addresses"]), None)
    return {
        "interfaces": interfaces,
        "routes": routes,
        "rules": rules,
        "default_gateway": gateway and {"address": gateway["gateway"], "interface": gateway["dev"]},
        "connection_address": address,
        "connection_interface": carrier,
        "connection_source": source,
    }


def _plain(interface: Mapping[str, Any]) -> set[str]:
    return {item["address"] for item in interface["addresses"]}


def _json_list(text: str | None) -> list[dict[str, Any]] | None:
    """``ip -j`` prints a list of objects, some of them empty; nothing at all when there is nothing to list."""
    if text is None:
        return None
    try:
        return [item for item in json_text.mappings(text) if item] if text.strip() else []
    except SparkError:
        return None


def parse_addresses(text: str | None) -> list[dict[str, Any]] | None:
    """``[{name, mac, mtu, state, kind, master, link, addresses: [{address, prefix, family, scope, dynamic}]}]``.

    ``kind`` is that of a virtual device (bond, bridge, veth …), ``master`` the bond or bridge that an interface is in,
    ``link`` the one that a VLAN stands on.
    """
    entries = _json_list(text)
    if entries is None:
        return None
    found = []
    for entry in entries:
        infos = entry.get("addr_info")
        addresses = [
            {
                "address": str(info["local"]),
                "prefix": info.get("prefixlen"),
                "family": info.get("family"),
                "scope": info.get("scope"),
                "dynamic": bool(info.get("dynamic")),
            }
            for info in (infos if isinstance(infos, list) else [])
            if isinstance(info, dict) and info.get("local")
        ]
        found.append(
            {
                "name": str(entry.get("ifname", "")),
                "mac": entry.get("address"),
                "mtu": entry.get("mtu"),
                "state": entry.get("operstate"),
                "kind": info.get("info_kind") if isinstance(info := entry.get("linkinfo"), dict) else None,
                "master": entry.get("master"),
                "link": entry.get("link"),
                "addresses": addresses,
            }
        )
    return found


def parse_routes(text: str | None) -> list[dict[str, Any]] | None:
    """``[{dst, gateway, dev, table, metric, type}]``; the tables ``local`` and multicast are left out."""
    entries = _json_list(text)
    if entries is None:
        return None
    found = []
    for entry in entries:
        table = str(entry.get("table", "main"))
        if table in ("local", "255") or entry.get("type") in ("local", "broadcast", "multicast", "anycast"):
            continue
        found.append(
            {
                "dst": str(entry.get("dst", "")),
                "gateway": entry.get("gateway"),
                "dev": entry.get("dev"),
                "table": table,
                "metric": entry.get("metric"),
                "type": entry.get("type", "unicast"),
            }
        )
    return found


# A rule with one of these is about some packets only (ip-rule(8)); with "not", about all others.


_SELECTORS = ("fwmark", "dst", "iif", "oif", "ipproto", "sport", "dport", "uid_start", "tos", "tun_id")


def parse_rules(text: str | None) -> list[dict[str, Any]] | None:
    """``[{priority, table, action}]``: the rules that any packet of the machine's own meets before the table main, in
    the order of the kernel. Without those whose default route does not count (``suppress_prefixlength``).
    """
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
        found.append({"priority": entry.get("priority"), "table": table, "action": action})
    return found


def connection_address(
    machine: Machine, connection_host: str, interfaces: Sequence[Mapping[str, Any]] | None
) -> tuple[str | None, str | None]:
    """This machine's end of the ssh connection, and how it was found: ``ssh``, ``host`` or nothing.

    ``connection_host`` counts when it is an address that this machine has.
    """
    ssh = ssh_connection(machine)
    if ssh:
        return canonical(ssh[2]) or None, "ssh"
    mine = {address for item in interfaces or [] if item["name"] != "lo" for address in _plain(item)}
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
