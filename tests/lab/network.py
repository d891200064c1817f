# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The networks of a lab: one namespace per node, and one that holds the switches and cables.

Every interface of a node is one end of a veth pair; the other end stays in the fabric namespace. There a switch is one
bridge, and a cable is a bridge too, with both halves of both ends: the ConnectX switches frames of a cage to both of
its functions. Bridges hide carrier loss of the far end, so on cables the keeper watches both nodes and takes the near
end down when the far one is down. Only one interface is in the host's own
namespace (management), so neither the host's firewall nor its address plan sees the fabric.
"""

from __future__ import annotations

import ipaddress
import json
import pathlib
import re
import zlib

from labstate import Lab, LabError, Record, run, wiring
from sim import faults, spark

MANAGEMENT_BRIDGE = "management"


def ip(netns: str, *words: str, check: bool = True) -> str:
    return run(["ip", "-n", netns, *words], check)


def batch(netns: str, lines: list[str]) -> None:
    if lines:
        run(["ip", "-n", netns, "-batch", "-"], stdin="\n".join(lines) + "\n")


def host_end(node: str, nic: spark.Nic) -> str:
    """The far end of a netdev in the fabric namespace."""
    return f"n{spark.node_number(node)}c{nic.cage}h{nic.half}"


def management_end(node: str) -> str:
    return f"n{spark.node_number(node)}m"


def namespaces(lab: Lab) -> list[str]:
    names = [line.split()[0] for line in run(["ip", "netns", "list"]).splitlines() if line.strip()]
    # Ids may be prefixes of each other: only what is exactly ours.
    return [name for name in names if re.fullmatch(rf"smlab-{lab.id}-(fabric|spark[0-9]+)", name)]


def free_subnet(lab: Lab) -> str:
    """A /24 for management that the host does not know yet, the same for the same id when it can be."""
    taken = []
    for route in json.loads(run(["ip", "-4", "-j", "route", "show", "table", "all"]) or "[]"):
        if route.get("dst") not in (None, "default"):
            taken.append(ipaddress.ip_network(route["dst"], strict=False))
    start = zlib.crc32(lab.id.encode())
    for offset in range(256):
        subnet = f"10.213.{(start + offset) % 256}"
        network = ipaddress.ip_network(f"{subnet}.0/24")
        if not any(network.overlaps(other) for other in taken):
            return subnet
    raise LabError("All of 10.213.0.0/16 is routed on this machine; the lab needs one free /24 of it.")


def create(lab: Lab, record: Record) -> None:
    """Namespaces, interfaces and cables, all as they are before a node boots."""
    run(["ip", "netns", "add", lab.fabric])
    quiet = ["sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1"]
    run(["ip", "netns", "exec", lab.fabric, *quiet], check=False)
    run(["ip", "link", "add", lab.uplink, "type", "veth", "peer", "name", "uplink", "netns", lab.fabric])
    run(["ip", "addr", "add", f"{record.gateway}/24", "dev", lab.uplink])
    run(["ip", "link", "set", lab.uplink, "up"])
    lines = [
        f"link add {MANAGEMENT_BRIDGE} type bridge stp_state 0 mcast_snooping 0",
        f"link set uplink master {MANAGEMENT_BRIDGE} up",
        f"link set {MANAGEMENT_BRIDGE} up",
    ]
    for node in record.names:
        run(["ip", "netns", "add", lab.netns(node)])
        number = spark.node_number(node)
        lines.append(
            f"link add {management_end(node)} type veth peer name {spark.MANAGEMENT} "
            f"address {spark.management_mac(number)} netns {lab.netns(node)}"
        )
        lines.append(f"link set {management_end(node)} master {MANAGEMENT_BRIDGE}")
        for nic in spark.NICS:
            lines.append(
                f"link add {host_end(node, nic)} mtu {faults.JUMBO} type veth peer name {nic.netdev} "
                f"address {spark.mac(number, nic.mac_offset)} mtu 1500 netns {lab.netns(node)}"
            )
    batch(lab.fabric, lines)
    for node in record.names:
        batch(
            lab.netns(node),
            [
                "link set lo up",
                f"addr add {record.address(node)}/24 dev {spark.MANAGEMENT}",
                f"link set {spark.MANAGEMENT} up",
                f"route add default via {record.gateway}",
                # NetworkManager does this on a Spark: ports are up before anybody configured them.
                *(f"link set {nic.netdev} up" for nic in spark.NICS),
            ],
        )
    wire(lab, lab.wanted())


def destroy(lab: Lab) -> None:
    for name in namespaces(lab):
        run(["ip", "netns", "delete", name])
    run(["ip", "link", "delete", lab.uplink], check=False)  # a namespace that a process still holds keeps its end


def links(netns: str) -> dict[str, dict[str, object]]:
    return {link["ifname"]: link for link in json.loads(ip(netns, "-j", "-d", "link", "show") or "[]")}


def wire(lab: Lab, wanted: faults.Lab) -> None:
    """Plug and unplug so that the fabric is as wanted. Only differences are touched."""
    with wiring():
        _move(lab, wanted)
        here = links(lab.fabric)
        lines = []
        for segment in sorted(wanted.segments().keys() - here.keys()):
            # LLDP passes through a cable and ends at a switch. Fixed MTU: a bridge otherwise takes the smallest of its
            # ports.
            lldp = "0x4000" if faults.is_cable(segment) else "0"
            lines.append(f"link add {segment} type bridge stp_state 0 mcast_snooping 0 group_fwd_mask {lldp}")
            lines.append(f"link set {segment} mtu {faults.JUMBO} up")
        alive = _alive(lab, wanted)
        for (node, _netdev), port in wanted.ports.items():
            name = host_end(node, port.nic)
            if name not in here:
                continue
            found = here[name]
            if found["mtu"] != port.mtu:
                lines.append(f"link set {name} mtu {port.mtu}")
            if found.get("master") != port.segment:
                lines.append(f"link set {name} master {port.segment}" if port.segment else f"link set {name} nomaster")
            lines += _set_up(name, found, (node, port.nic.netdev) in alive)
        for node, up in wanted.management.items():
            lines += _set_up(management_end(node), here[management_end(node)], up)
        batch(lab.fabric, lines)


def _set_up(name: str, found: dict[str, object], up: bool) -> list[str]:
    flags = found["flags"]
    assert isinstance(flags, list)
    return [] if ("UP" in flags) == up else [f"link set {name} {'up' if up else 'down'}"]


def _alive(lab: Lab, wanted: faults.Lab) -> set[tuple[str, str]]:
    """The ports that see light: those on a switch, and those on a cable whose other end is there and switched on."""
    alive: set[tuple[str, str]] = set()
    cables = {s: ports for s, ports in wanted.segments().items() if faults.is_cable(s)}
    up = {node: links(lab.netns(node)) for node in {port.node for ports in cables.values() for port in ports}}
    for segment, ports in wanted.segments().items():
        for port in ports:
            end = (port.node, port.nic.cage)
            others = [other for other in ports if (other.node, other.nic.cage) != end]
            if segment not in cables or any(
                "UP" in str(up[other.node].get(other.nic.netdev, {}).get("flags")) for other in others
            ):
                alive.add((port.node, port.nic.netdev))
    return alive


def _move(lab: Lab, wanted: faults.Lab) -> None:
    """Netdevs of a removed card wait in the fabric namespace; a card that comes back starts with factory settings."""
    parked = links(lab.fabric)
    for (node, netdev), port in wanted.ports.items():
        name = f"parked-{host_end(node, port.nic)}"
        if port.present and name in parked:
            batch(lab.fabric, [f"link set {name} name {netdev} mtu 1500 netns {lab.netns(node)}"])
            batch(lab.netns(node), [f"link set {netdev} up"])
        elif not port.present and name not in parked:
            ip(lab.netns(node), "link", "set", netdev, "down")
            ip(lab.netns(node), "link", "set", netdev, "name", name, "netns", lab.fabric)


def set_addresses(lab: Lab, before: faults.Lab, after: faults.Lab) -> None:
    """Addresses that faults add to nodes: gone with the fault, there with it (again, if the node dropped them)."""
    for node, wanted in after.addresses.items():
        netns = lab.netns(node)
        for netdev, address in before.addresses[node]:
            if (netdev, address) not in wanted:
                ip(netns, "addr", "delete", address, "dev", netdev, check=False)
        for netdev, address in wanted:
            if not after.ports[node, netdev].present:
                continue
            shown = ip(netns, "-o", "addr", "show", "dev", netdev)
            if f" {address} " not in shown:
                nodad = ["nodad"] if ":" in address else []
                if nodad:  # the fabric role turns IPv6 off; whoever adds such an address has turned it on again
                    switch = f"net.ipv6.conf.{netdev}.disable_ipv6=0"
                    run(["ip", "netns", "exec", netns, "sysctl", "-qw", switch])
                ip(netns, "addr", "add", address, "dev", netdev, *nodad)


def set_macs(lab: Lab, before: faults.Lab, after: faults.Lab) -> None:
    """MAC addresses that faults change. A removed card has its ports parked in the fabric namespace."""
    for key, port in after.ports.items():
        if port.mac != before.ports[key].mac:
            where = (lab.netns(port.node), port.nic.netdev)
            if not port.present:
                where = (lab.fabric, f"parked-{host_end(port.node, port.nic)}")
            ip(where[0], "link", "set", where[1], "address", port.mac)


def netns_file(name: str) -> pathlib.Path:
    return pathlib.Path("/run/netns") / name
