# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Checks of the fabric: what makes a link that looks healthy slow, or a change of it dangerous."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding, SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.network import NetworkInterface
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fabric_drift
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fact as fabric_fact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.ibdev2netdev import Rdma, RdmaPort
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.interfaces import Effective
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.leftover_units import Leftover
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import awx_job
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.images import MIN_RING, MIN_SEVERAL
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.cages import half_gbps
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.discovery import discovery
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.management import VARIABLE, below
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.plan import judge_cables
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.types import Plan, Settings, node_input
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import ranks
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight.base import (
    Context,
    Judge,
    Network,
    as_list,
    as_network,
    as_version,
    environment,
    fabric_interfaces,
    nccl_version,
    whole,
)

CABLE_GBPS = 200.0  # a Spark's QSFP cable
HALF_GTS, HALF_LANES = 32.0, 4  # PCIe of each half: Gen5 x4
SET_AGAIN = "This run sets it again"
# What Docker names its bridges: the default one, and those of its networks.
_DOCKER = re.compile(r"(docker\d+|br-[0-9a-f]{12})")


def is_docker(name: Any) -> bool:
    return bool(_DOCKER.fullmatch(str(name or "")))


def links(context: Context, host: str) -> Iterator[tuple[str, RdmaPort]]:
    """``(device, port)`` of the ConnectX halves that have a link."""
    for port in context.rdma_ports(host):
        if port.driver == "mlx5_core" and port.carrier and port.link_layer != "InfiniBand":
            yield f"{port.rdma_device} ({port.netdev})", port


def wants_fabric(context: Context, host: str) -> bool:
    return len(context.hosts) > 1 and context.value(host, "fabric_topology", "auto") != "single"


def over_rdma(context: Context, host: str) -> bool:
    return str(context.value(host, "fabric_transport", "auto")) != "socket"


def check_subnets(context: Context) -> Iterator[Finding]:
    for host, node in context.nodes.items():
        subnets = [n for n in map(as_network, as_list(context.value(host, "fabric_subnets", []))) if n is not None]
        own = fabric_interfaces(context, host)
        used: dict[Network, str] = {}
        for interface in node.network.interfaces or ():
            if interface.name in own or is_docker(interface.name) or interface.name == "lo":
                continue
            for item in interface.addresses:
                found = as_network(f"{item.address}/{item.prefix or ''}".rstrip("/"))
                if found is not None and item.scope != "link":
                    used.setdefault(found, f"address {item.address} on {interface.name}")
        for route in node.network.routes or ():
            found = as_network(route.dst)
            # "throw": a VPN leaves this network to the table main, as it does with the fabric once it is there.
            ours = route.dev in own or is_docker(route.dev) or route.type == "throw"
            # The default route, also in two halves (OpenVPN's redirect-gateway): no other subnet would be outside it,
            # and the fabric's own routes in the table main are narrower.
            default = 1 if route.table == "main" else 0
            if found is not None and found.prefixlen > default and not ours and not found.is_link_local:
                used.setdefault(found, f"route {route.dst} through {route.dev or route.type}")
        for subnet in subnets:
            for other, what in used.items():
                if subnet.version == other.version and subnet.overlaps(other):
                    yield Finding(host, f"the fabric subnet {subnet} overlaps {what}")
                    break


def check_rules(context: Context) -> Iterator[Finding]:
    """What a VPN puts before the table main, where the routes of the fabric are. Routes to single networks are
    :func:`check_subnets`' business."""
    for host, node in context.nodes.items():
        if not wants_fabric(context, host):
            continue
        subnets = [str(subnet) for subnet in as_list(context.value(host, "fabric_subnets", []))]
        for rule in node.network.rules or ():
            routes = [route for route in node.network.routes or () if route.table == rule.table]
            # A VPN that lets the local network alone says so with a route that hands it on.
            spared = {route.dst for route in routes if route.type == "throw"}
            default = next((route for route in routes if route.dst == "default"), None)
            if rule.action != "lookup":
                does = f"ends them ({rule.action})"
            elif default is not None and not _all_within(subnets, spared):
                does = f"sends them to {default.dev or default.type} (table {rule.table})"
            else:
                continue
            yield Finding(
                host,
                f"the routing rule {rule.priority} comes before the routes of the fabric, and {does}",
                f"Let the VPN leave local networks alone (Tailscale: tailscale set --exit-node-allow-lan-access), or: "
                f"ip rule add to {subnets[0] if subnets else '<subnet>'} lookup main priority 100, for each subnet",
                f"ip rule {rule.priority}",
            )


def _all_within(subnets: Iterable[str], spared: Iterable[str]) -> bool:
    wanted = [found for found in map(as_network, subnets) if found is not None]
    free = [found for found in map(as_network, spared) if found is not None]
    return all(
        any(one.version == 4 and other.version == 4 and one.subnet_of(other) for other in free) for one in wanted
    )


def check_management(context: Context) -> Iterator[Finding]:
    for host, node in context.nodes.items():
        interface = node.network.connection_interface
        if interface and {interface, *below(interface, context.interfaces(host))} & fabric_interfaces(context, host):
            address = context.management(host).address or "the address of the machine's other network"
            yield Finding(
                host,
                "Ansible reaches the machine over a fabric interface",
                f"Write {address} into ansible_host. A name that ends in .local may have led there: mDNS announces the "
                "fabric, too. On the nodes the layer fabric binds these names to the management addresses",
                interface,
                # Nothing but the layer fabric touches the interface.
                severity="error" if "fabric" in context.layers else "info",
            )


def check_management_address(context: Context) -> Iterator[Finding]:
    owners: dict[str, list[str]] = defaultdict(list)
    for host, node in context.nodes.items():
        if node.network.interfaces is None:
            continue  # not read: access and fabric refuse it
        chosen = context.management(host)
        if chosen.refusal:
            yield chosen.refusal
        else:
            owners[chosen.address].append(host)
    for address, hosts in owners.items():
        if len(hosts) > 1:
            yield Finding(
                ", ".join(hosts),
                f"{address} is the management address of {len(hosts)} machines",
                f"Give each machine an address of its own, or set {VARIABLE} where another interface was meant",
            )


def check_management_kept(context: Context) -> Iterator[Finding]:
    for host in context.nodes:
        notice = context.management(host).notice
        if notice:
            yield notice


def check_management_reach(context: Context) -> Iterator[Finding]:
    failed: dict[tuple[str, str], list[str]] = defaultdict(list)
    reasons: dict[tuple[str, str], str] = {}
    for host, lost in context.reach.items():
        for one in lost:
            failed[one.name, one.address].append(host)
            reasons.setdefault((one.name, one.address), one.reason)
    for (peer, address), hosts in failed.items():
        yield Finding(
            peer,
            f"its management address {address} is not reached from {context.who(hosts)} ({reasons[peer, address]})",
            "Connect all machines to one network that lets them talk to each other (guest Wi-Fi often does not), or "
            f"set {VARIABLE} for {peer} to an address that the others reach",
        )


def check_fabric_fact(context: Context) -> Iterator[Finding]:
    if "fabric" in context.layers:
        return
    for host in context.nodes:
        if host not in context.earlier:
            continue
        try:
            fact = fabric_fact.load(context.earlier[host], host)
            fabric_fact.require_applied(fact)
        except SparkError as exc:
            yield Finding(host, exc.found, exc.remedy, fabric_fact.FACT_PATH)
            continue
        rank = context.hosts.get(host, {}).get("spark_rank")
        if (fact.host, fact.nodes, fact.rank) != (host, len(context.hosts), rank):
            name = "" if fact.host == host else f" and the name {fact.host}"
            yield Finding(
                host,
                f"the fabric was made for rank {fact.rank} of {fact.nodes}{name},"
                f" the inventory says {rank} of {len(context.hosts)}",
                fabric_fact.REMEDY,
                fabric_fact.FACT_PATH,
            )


def check_vanished(context: Context) -> Iterator[Finding]:
    """Only AWX has a switch that takes a machine out of an inventory that still lists it."""
    facts = {host: context.fact(host) for host in context.nodes if awx_job.JOB in context.hosts[host]}
    before = {host: fact.nodes for host, fact in facts.items() if fact is not None and fact.nodes > len(context.hosts)}
    if before:
        yield Finding(
            context.who(before),
            f"this fabric was made for {max(before.values())} machines, and this job sees {len(context.hosts)}",
        )


def check_docker(context: Context) -> Iterator[Finding]:
    # The other machines' management addresses, too: answers to them would end in the bridge.
    management = {}
    for host in context.nodes:
        carrier = context.management(host).interface
        for interface in context.interfaces(host):
            if interface.name == carrier:
                management.update(dict.fromkeys(_networks(interface), "management"))
    for host in context.nodes:
        subnets = as_list(context.value(host, "fabric_subnets", [])) if wants_fabric(context, host) else []
        wanted = {**{n: "fabric" for n in map(as_network, subnets) if n}, **management}
        for interface in context.interfaces(host):
            if not is_docker(interface.name):
                continue
            for own in _networks(interface):
                hit = next((item for item in wanted if item.version == own.version and item.overlaps(own)), None)
                if hit is not None:
                    yield Finding(
                        host,
                        f"Docker's network {own} overlaps the {wanted[hit]} network {hit}",
                        device=interface.name,
                    )


def _networks(interface: NetworkInterface) -> list[Network]:
    found = (
        as_network(f"{item.address}/{item.prefix or ''}".rstrip("/"))
        for item in interface.addresses
        if item.scope not in ("link", "host")
    )
    return [item for item in found if item is not None]


_ABSENT = {
    "nic_removed": (
        "all ConnectX functions are gone: the platform removes them when no QSFP cable is plugged at boot",
        "",
    ),
    "class_missing": (
        "there is no RDMA device and no ConnectX function on the PCI bus",
        "Check the machine (lspci); for a fabric without RDMA set fabric_transport: socket",
    ),
    "driver_not_loaded": (
        "the ConnectX functions are there, but no RDMA device",
        "Run modprobe mlx5_ib and look for mlx5 in dmesg; or set fabric_transport: socket, several times slower",
    ),
    "unreadable": ("the RDMA devices cannot be read", "See the kernel log: dmesg"),
}


def check_nic(context: Context) -> Iterator[Finding]:
    for host, node in context.nodes.items():
        reason = node.rdma.reason if node.rdma else None
        if reason not in _ABSENT or not wants_fabric(context, host):
            continue
        # Without RDMA any netdev will do; where the platform removed the NIC, there is none of those either.
        if reason == "nic_removed" or over_rdma(context, host):
            found, remedy = _ABSENT[reason]
            yield Finding(host, found, remedy, "ConnectX-7")


def check_link_100g(context: Context) -> Iterator[Finding]:
    # Two 100G cables per machine carry 200G together: a cabling of its own, if every machine has it.
    cabled = [[port for _device, port in links(context, host)] for host in context.nodes]
    pair = all(
        {half_gbps(port) for port in ports} == {100.0} and len({port.phys_port_name for port in ports}) == 2
        for ports in cabled
        if ports
    )
    for host in context.nodes:
        for device, port in links(context, host):
            speed = half_gbps(port)
            if 0 < speed < CABLE_GBPS:
                yield Finding(
                    host,
                    f"the link runs at {speed:g} Gb/s, not {CABLE_GBPS:g}",
                    "Nothing to do: every machine has two cables of 100G" if pair else "",
                    device,
                    "info" if pair else "error",
                )


def check_pcie_downtrained(context: Context) -> Iterator[Finding]:
    for host in context.nodes:
        for device, port in links(context, host):
            speed, width = (port.pci.link_speed_gts, port.pci.link_width) if port.pci else (None, None)
            if (speed is not None and speed < HALF_GTS) or (width is not None and width < HALF_LANES):
                known = [f"{speed:g} GT/s"] if speed is not None else []
                known += [f"x{width}"] if width is not None else []
                yield Finding(
                    host,
                    f"its PCIe link runs at {' '.join(known)}, a Spark's at {HALF_GTS:g} GT/s x{HALF_LANES}",
                    device=device,
                )


def check_bond(context: Context) -> Iterator[Finding]:
    for host in context.nodes:
        own = fabric_interfaces(context, host)
        members: dict[str, list[str]] = defaultdict(list)
        for interface in context.interfaces(host):
            if interface.master:
                members[interface.master].append(interface.name)
        for interface in context.interfaces(host):
            name = interface.name
            inside = sorted(own & set(members.get(name, [])))
            # An empty bond is what is left of one: nobody uses it, and it takes its members back when they appear.
            if inside or (interface.kind == "bond" and not members.get(name)):
                what = f"holds {', '.join(inside)}" if inside else "is left over, without a member"
                way = context.nodes[host].network.connection_interface == name
                others = sorted({*members.get(name, [])} - own)
                if others or way:
                    remedy = (
                        f"Take {', '.join(inside)} out of it where it is declared, and leave it to "
                        f"{', '.join(others) or 'the connection'}: it may be the way to the machine"
                    )
                else:
                    remedy = (
                        f"Remove it where it is declared (netplan: bonds/bridges; nmcli con delete {name}), then: "
                        f"ip link delete {name}"
                    )
                yield Finding(
                    host,
                    f"the {interface.kind or 'bond'} {name} {what}",
                    remedy,
                    name,
                )
        for path, names in context.nodes[host].netplan_bonds.items():
            inside = sorted(own & set(names))
            if inside:
                remedy = (
                    "Take the bond out of that file, and leave what it says of other ports: one may be the way to the "
                    "machine. Then: netplan generate"
                )
                yield Finding(host, f"it bonds {', '.join(inside)}", remedy, path)


def check_duplicate_mac(context: Context) -> Iterator[Finding]:
    owners: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for host in context.nodes:
        wanted = fabric_interfaces(context, host) | {context.management(host).interface}
        for interface in context.interfaces(host):
            if interface.name in wanted and interface.mac:
                owners[interface.mac.lower()].append((host, interface.name))
    for mac, places in owners.items():
        hosts = list(dict.fromkeys(host for host, _name in places))
        if len(hosts) > 1 and mac != "00:00:00:00:00:00":
            yield Finding(
                ", ".join(hosts),
                f"the MAC address {mac} is on {' and '.join(f'{host} {name}' for host, name in places)}",
                device=places[0][1],
            )


def check_netplan_mode(context: Context) -> Iterator[Finding]:
    for host, node in context.nodes.items():
        for path, mode in node.netplan_modes.items():
            # What packages ship below /lib is theirs.
            if mode and int(mode, 8) & 0o077 and not path.startswith("/lib/"):
                yield Finding(host, f"its mode is {mode}", f"sudo chmod 600 {path}", path)


def check_lldpad(context: Context) -> Iterator[Finding]:
    for host, node in context.nodes.items():
        state = node.units.get("lldpad.service")
        if state and state.active in ("active", "activating", "reloading"):
            yield Finding(host, "lldpad runs", device="lldpad.service")


def cables_asked(context: Context) -> bool:
    """Whether the layer fabric will ask who is at the other end of each cable."""
    first = next(iter(context.hosts), "")
    if "fabric" not in context.layers or not wants_fabric(context, first) or context.failures:
        return False
    return float(context.value(first, "fabric_neighbor_timeout_s", 10)) != 0


def cables_unknown(context: Context) -> bool:
    """Whether cables are judged here: not all machines have a fabric of the wanted topology from an earlier run."""
    wanted = str(context.value(next(iter(context.hosts), ""), "fabric_topology", "auto"))
    if not cables_asked(context):
        return False
    facts = [context.fact(host) for host in context.hosts]
    return not all(fact and fact.state == "applied" and wanted in ("auto", fact.topology) for fact in facts)


def listeners(context: Context, forks: int) -> dict[str, Any]:
    """Who listens for the others over the cables, for the layer fabric, which plans with what is heard; nobody where
    not all can listen at the same time."""
    timeout = float(context.value(next(iter(context.hosts), ""), "fabric_neighbor_timeout_s", 10))
    made = discovery(
        "auto" if cables_asked(context) else "single",
        forks,
        timeout,
        found=[host for host in context.nodes if context.rdma_ports(host)],
        addresses={host: str(values.get("ansible_host") or "") for host, values in context.hosts.items()},
    )
    nodes = [] if made["background_s"] else made["speakers"]
    return {"nodes": nodes, "cluster": made["cluster"], "timeout_s": timeout}


def cables(context: Context) -> Plan | None:
    """The cables as the machines have heard each other; None where they have not listened."""
    if not context.neighbors or not cables_unknown(context):
        return None
    nodes = {}
    said: list[Finding] = []  # by check_management_address
    for host, node in context.nodes.items():
        raw = {
            "rank": whole(context.value(host, "spark_rank")),
            "network": node.network,
            "rdma": node.rdma,
            "neighbors": context.neighbors.get(host),
            "management_address": context.value(host, "fabric_management_address", ""),
            "cages": context.value(host, "fabric_cages", "auto"),
        }
        nodes[host] = node_input(host, raw, said)
    return judge_cables(nodes, fabric_settings(context))


def fabric_settings(context: Context) -> Settings:
    first = next(iter(context.hosts), "")
    given = {item.name: context.value(first, f"fabric_{item.name}") for item in fields(Settings)}
    return Settings(**{name: value for name, value in given.items() if value is not None})


def check_cables(context: Context) -> Iterator[Finding]:
    if any(not (node.rdma and node.rdma.cages) for node in context.nodes.values()):
        return  # said by check_nic
    made = cables(context)
    if made is None:
        if cables_unknown(context):
            yield Finding(
                context.who(context.hosts),
                "not checked: which cable leads where, since not all machines can listen at the same time",
                "Set forks to the number of machines; the layer fabric looks before it changes anything",
                severity="info",
            )
        return
    wrong = [finding for finding in made.findings if finding.severity == "error"]
    off = [
        str(half.netdev)
        for node in context.nodes.values()
        for cage in (node.rdma or Rdma()).cages
        for half in cage.halves
        if half.admin_up is False
    ]
    if wrong and off:
        # The layer switches them on for as long as it looks, which preflight must not.
        yield Finding(
            context.who(context.nodes),
            f"not checked: which cable leads where, since ports are switched off ({', '.join(sorted(set(off)))})",
            "Nothing to do: the layer fabric switches them on and looks before it changes anything",
            severity="info",
        )
        return
    yield from wrong


def check_nccl_conf(context: Context) -> Iterator[Finding]:
    for host, node in context.nodes.items():
        fact = context.fact(host)
        ours = fact.environment if fact else {}
        for path, settings in (node.nccl.settings if node.nccl else {}).items():
            other = [f"{name}={value}" for name, value in settings.items() if ours.get(name) != value]
            if other:
                yield Finding(
                    host,
                    f"it sets {', '.join(other)}",
                    f"Move what you need into fabric_environment, then: sudo mv {path} {path}.old",
                    path,
                )


def _ring(context: Context, host: str) -> str:
    """``ring`` where that is known, ``perhaps`` where both cages of every node are cabled, else empty."""
    declared = str(context.value(host, "fabric_topology", "auto"))
    fact = context.fact(host)
    known = declared if declared != "auto" else fact.topology if fact else ""
    if known:
        return known if known == "ring" else ""
    cages = [{port.phys_port_name for _device, port in links(context, other)} for other in context.nodes]
    return "perhaps" if len(cages) > 2 and all(len(found) > 1 for found in cages) else ""


def check_nccl_ring(context: Context) -> Iterator[Finding]:
    wanted = ".".join(map(str, MIN_RING))
    remedy = f"Install NCCL {wanted} or later (nvidia-nccl-cu13 in the engine's environment, or the package libnccl2)"
    for host, node in context.nodes.items():
        kind = _ring(context, host)
        if not kind or not over_rdma(context, host) or not (node.environments or node.nccl):
            continue
        version = nccl_version(context, host)
        where = "if this is a ring, it" if kind == "perhaps" else f"the topology {kind}"
        if version is None:
            yield Finding(
                host,
                f"not checked: {where} needs NCCL {wanted} or later, and no NCCL was found yet",
                remedy,
                severity="info",
            )
        elif as_version(version, 3) < MIN_RING:
            yield Finding(
                host,
                f"NCCL is {version}, {where} needs {wanted} or later",
                f"{remedy}; with NVIDIA's patched branch set preflight_severity: {{nccl_ring: warn}}",
                severity="info" if kind == "perhaps" else "error",
            )


def check_nccl_several(context: Context) -> Iterator[Finding]:
    """Of the engine's environment; an image is asked when it is there."""
    wanted = ".".join(map(str, MIN_SEVERAL))
    for host in context.nodes:
        version = environment(context, host).nccl
        several = len(context.nodes) > 1 and not _ring(context, host)
        if several and version and over_rdma(context, host) and as_version(version, 3) < MIN_SEVERAL:
            yield Finding(
                host,
                f"NCCL of the engine's environment is {version}, several nodes need {wanted} or later",
                f"Install nvidia-nccl-cu13 {wanted} or later there, or use the versions of the lock",
            )


@functools.lru_cache(maxsize=1)
def _drifts(context: Context) -> list[fabric_drift.Drift]:
    """What has changed on the nodes since their fabric was verified; several checks share it."""
    made: list[fabric_drift.Drift] = []
    for host, node in context.nodes.items():
        fact, own = context.fact(host), context.interfaces(host)
        now = {interface.name: Effective.of(interface, link_local=True) for interface in own}
        if fact is not None and now:
            made += fabric_drift.drift(replace(fact, host=host), now, node.gids)
    return made


def check_one_half_only(context: Context) -> Iterator[Finding]:
    yield from _drifted(fabric_drift.HALF, SET_AGAIN)(context)
    for item in _off(context):
        if context.nodes[item.host].rdma and not context.rdma_ports(item.host):
            continue  # the whole card is gone: said by check_nic
        culprits = [
            leftover for leftover in context.nodes[item.host].leftover_units if item.rail.netdev in leftover.netdevs
        ]
        names = ", ".join(leftover.unit or leftover.file for leftover in culprits)
        by = f" ({names} changes it at every boot: {culprits[0].line!r} in {culprits[0].file})" if culprits else ""
        first = f"{_without(culprits)}; then: " if culprits else ""
        first = first[:1].upper() + first[1:] if first.startswith("take") else first
        yield Finding(
            item.host, f"a half of the applied fabric: {item.found}{by}", f"{first}{item.remedy}", item.device
        )


def _off(context: Context) -> list[fabric_drift.Drift]:
    """In a run of the layer fabric its own plan judges what is there now."""
    return [] if "fabric" in context.layers else [item for item in _drifts(context) if item.off]


def _without(found: Iterable[Leftover]) -> str:
    units = " ".join(dict.fromkeys(leftover.unit for leftover in found if leftover.unit))
    files = ", ".join(dict.fromkeys(leftover.file for leftover in found if not leftover.unit))
    ways = [f"sudo systemctl disable --now {units}"] if units else []
    return "; ".join([*ways, *([f"take that line out of {files}"] if files else [])])


def check_leftover_units(context: Context) -> Iterator[Finding]:
    """Where a half is off because of one, the check one_half_only says it."""
    off = {(item.host, item.rail.netdev) for item in _off(context)}
    for host, node in context.nodes.items():
        for leftover in node.leftover_units:
            if not any((host, netdev) in off for netdev in leftover.netdevs):
                yield Finding(
                    host,
                    f"it changes {', '.join(leftover.netdevs)} at every boot: {leftover.line!r} in {leftover.file}",
                    f"If it comes from another guide: {_without([leftover])}",
                    leftover.unit or leftover.file,
                )


def check_uplink(context: Context) -> Iterator[Finding]:
    """A default route or a lease on a half goes with the layer's change."""
    for host, node in context.nodes.items():
        used = _planned_halves(context, host)
        routes = [route for route in node.network.routes or () if route.dst == "default" and route.table == "main"]
        ways = {route.dev for route in routes if route.dev}
        spare = sorted(ways - used)
        for netdev in sorted(ways & used):
            goes = "This run takes it away" if "fabric" in context.layers else "The layer fabric takes it away"
            if spare:
                found, remedy, severity = f"it has a default route, beside that of {', '.join(spare)}", goes, "info"
            else:
                found, severity = "the machine has no default route but the one of this half", "error"
                remedy = (
                    "Give the machine a default route over its management network, or leave this cage out: fabric_cages"
                )
            yield Finding(host, found, remedy, netdev, severity)
        for interface in context.interfaces(host):
            leased = [
                f"{item.address}/{item.prefix}"
                for item in interface.addresses
                if item.dynamic and item.family == "inet" and item.scope != "link"
            ]
            if leased and interface.name in used:
                yield Finding(
                    host,
                    f"a DHCP server has given it {', '.join(leased)}: its cable leads to more than Sparks",
                    "Look where the cable leads. If the switch is meant to have a DHCP server nothing is to be done: "
                    "the layer fabric asks none",
                    interface.name,
                    "info",
                )


def _planned_halves(context: Context, host: str) -> set[str]:
    """The interfaces that the fabric has, or before the first run may have: all that have a link, of the cages that
    the inventory names."""
    fact, cages = context.fact(host), context.value(host, "fabric_cages", "auto")
    if fact is not None and fact.rails:
        return {rail.netdev for rail in fact.rails}
    named = {f"p{cage}" for cage in as_list(cages)}
    return {str(port.netdev) for _device, port in links(context, host) if not named or port.phys_port_name in named}


def _drifted(kind: str, cured: str = "") -> Judge:
    """``cured``: what the fabric layer of this very run does about it, so that it is only told."""

    def check(context: Context) -> Iterator[Finding]:
        cures = cured and "fabric" in context.layers
        for item in _drifts(context):
            if item.kind == kind and not item.off:
                remedy, severity = (cured, "info") if cures else (item.remedy, "error")
                yield Finding(item.host, item.found, remedy, item.device, severity)

    return check


JUDGES: Mapping[str, Judge] = {
    "subnets": check_subnets,
    "routing_rules": check_rules,
    "docker_subnet": check_docker,
    "management": check_management,
    "vanished": check_vanished,
    "readdressed": ranks.check_readdressed,
    "management_address": check_management_address,
    "management_kept": check_management_kept,
    "management_reach": check_management_reach,
    "fabric_fact": check_fabric_fact,
    "cables": check_cables,
    "nic_removed": check_nic,
    "pcie_downtrained": check_pcie_downtrained,
    "link_100g": check_link_100g,
    "one_half_only": check_one_half_only,
    "leftover_unit": check_leftover_units,
    "half_uplink": check_uplink,
    "wrong_mtu": _drifted(fabric_drift.MTU, SET_AGAIN),
    "foreign_address": _drifted(fabric_drift.FOREIGN),
    "gid_missing": _drifted(fabric_drift.NO_GID),
    "gid_mismatch": _drifted(fabric_drift.GID, "This run writes the fact anew"),
    "bond": check_bond,
    "duplicate_mac": check_duplicate_mac,
    "netplan_mode": check_netplan_mode,
    "lldpad": check_lldpad,
    "nccl_conf": check_nccl_conf,
    "nccl_ring": check_nccl_ring,
    "nccl_several": check_nccl_several,
}
