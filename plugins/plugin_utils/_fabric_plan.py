# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The fabric plan: from what every node found to one fabric fact per node, or to all reasons why not.

:func:`plan` comes before any change, :func:`seal` after it, with what the nodes then measured. Both are pure and run
once per play on the controller. This release plans one node, two nodes on one cable, and N nodes on one switch with one
cage each; rings and mixed cablings are refused.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric_fact import FabricFact, Rail
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._findings import Finding, SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._show_gids import Gid, select

RAILS = 2  # a cage has two halves, one per PCIe path
CABLE_GBPS = 200.0
# A half is PCIe Gen5 x4: 126 Gb/s, of which RoCE gets about 112 (docs/fabric.md).
HALF_GTS = 32.0
HALF_LANES = 4
RDMA_HEADERS = 96  # bytes that mlx5 leaves for headers when it derives the RDMA MTU from the interface's
# Every node pings every other up to this size. Beyond it N^2 probes say nothing that a few per node do not.
ALL_PAIRS_UP_TO = 8
NETDEV = re.compile(r"^[A-Za-z0-9_.-]{1,15}$")  # goes into file names and command lines

Network = ipaddress.IPv4Network
Found = Callable[..., None]


@dataclass(frozen=True)
class NodeInput:
    """What is known about one node before the plan.

    ``cages`` is as the module ``ibdev2netdev`` returns it, ``interfaces`` and ``routes`` as ``node_info`` does; these
    two are None when they are not known.
    """

    rank: int
    management_address: str
    management_interface: str = ""
    cages: Sequence[Mapping[str, Any]] = ()
    absence: str = ""  # why there is no RDMA device, as the discovery says it
    interfaces: Sequence[Mapping[str, Any]] | None = None
    routes: Sequence[Mapping[str, Any]] | None = None
    use_cages: str | Sequence[int] = "auto"
    environment: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Wishes:
    """What the user asked for; the defaults are those of the role ``fabric``."""

    topology: str = "auto"
    subnets: Sequence[str] = ("192.168.100.0/24", "192.168.101.0/24")
    host_offset: int = 10
    mtu: int = 9000
    transport: str = "auto"


@dataclass(frozen=True)
class Plan:
    """What :func:`plan` and :func:`seal` return. A refused plan has no facts."""

    topology: str
    facts: Mapping[str, FabricFact]
    findings: Sequence[Finding]
    summary: Sequence[str]

    @property
    def refused(self) -> bool:
        return any(finding.severity == "error" for finding in self.findings)


def node_input(host: str, raw: Mapping[str, Any], findings: list[Finding]) -> NodeInput:
    """From what the role hands over: ``rank``, ``network`` (of ``node_info``), ``rdma`` (the result of
    ``ibdev2netdev``), ``management_address`` (the user's word, may be empty), ``cages``, ``environment``.

    Adds a finding when the management address cannot be told.
    """
    network, rdma = raw.get("network") or {}, raw.get("rdma") or {}
    interfaces = network.get("interfaces")
    address = str(raw.get("management_address") or "") or _ipv4(network.get("connection_address"))
    carrier = str(network.get("connection_interface") or "")
    for interface in interfaces or ():
        addresses = [_ipv4(entry.get("address")) for entry in interface.get("addresses") or ()]
        if address and address in addresses:
            carrier = str(interface["name"])
        elif not address and interface.get("name") == carrier:
            # Connected over IPv6: the interface is right, its IPv4 address is what the engines use.
            address = next((found for found in addresses if found and not found.startswith("169.254.")), "")
    if not _ipv4(address) or not carrier:
        findings.append(
            Finding(
                host,
                f"the management address (IPv4) is not known: {address or 'none'} on {carrier or 'no interface'}",
                "Set fabric_management_address for this host to the address at which the other nodes reach it",
            )
        )
    cages = raw.get("cages", "auto")
    return NodeInput(
        rank=int(raw.get("rank", -1)),
        management_address=address or "0.0.0.0",  # noqa: S104 -- a placeholder in a plan that is refused
        management_interface=carrier,
        cages=rdma.get("cages") or (),
        absence=str(rdma.get("message") or ""),
        interfaces=interfaces,
        routes=network.get("routes"),
        use_cages=cages if isinstance(cages, str) else tuple(int(cage) for cage in cages),
        environment=raw.get("environment") or {},
    )


def _ipv4(value: Any) -> str:
    """The address in plain spelling; nothing when it is not IPv4."""
    try:
        return str(ipaddress.IPv4Address(str(value)))
    except ValueError:
        return ""


def missing_nodes(sparks: Iterable[str], nodes: Iterable[str]) -> list[Finding]:
    """A plan is for all nodes: one made for some of them would change the count and the neighbours of the rest."""
    have = set(nodes)
    return [
        Finding(host, "is in the group sparks and not part of this run", "Run the fabric layer without --limit")
        for host in sparks
        if host not in have
    ]


def plan(nodes: Mapping[str, NodeInput], wishes: Wishes) -> Plan:
    """Plan all nodes together. Never raises; every reason against the plan is one of the findings."""
    findings: list[Finding] = []
    topology = _topology(nodes, wishes, findings)
    if not topology:
        return Plan("", {}, findings, ())
    _check_ranks(nodes, findings)
    facts: dict[str, FabricFact] = {}
    if topology == "single":
        for host, node in nodes.items():
            facts[host] = _single(host, node)
    else:
        subnets = _subnets(wishes, nodes, findings)
        if _check_wishes(wishes, findings) and len(subnets) == RAILS:
            facts = _switched(_Fabric(topology, nodes, wishes, subnets), findings)
    if any(finding.severity == "error" for finding in findings):
        facts = {}
    ordered = dict(sorted(facts.items(), key=lambda item: item[1].rank))
    return Plan(topology, ordered, findings, summary(ordered))


# --- topology and wishes ---------------------------------------------------------------------------------------------


def _everywhere(found: str, remedy: str, severity: str = "error") -> Finding:
    return Finding(host="all nodes", found=found, remedy=remedy, severity=severity)


def _cabled(node: NodeInput) -> list[Mapping[str, Any]]:
    return [cage for cage in node.cages if cage.get("cabled")]


def _topology(nodes: Mapping[str, NodeInput], wishes: Wishes, findings: list[Finding]) -> str:
    """The topology to plan, or nothing when it is refused."""
    count, wanted = len(nodes), wishes.topology
    if wanted in ("ring", "mixed"):
        findings.append(
            _everywhere(
                f"fabric_topology is {wanted!r}, which this release does not plan",
                "Connect the nodes through a switch (fabric_topology: switch), or two nodes with one cable (direct)",
            )
        )
    elif wanted == "auto":
        if count == 1:
            return "single"
        if count > 2 and all(len(_cabled(node)) > 1 and node.use_cages == "auto" for node in nodes.values()):
            findings.append(
                _everywhere(
                    f"both cages are cabled on each of {count} nodes, which may be a ring or two links to a switch",
                    "This release plans switches: set fabric_topology: switch if they all lead to one. "
                    "It does not plan rings",
                )
            )
            return ""
        return "direct" if count == 2 else "switch"
    elif wanted == "single" and count != 1:
        findings.append(
            _everywhere(
                f"fabric_topology is 'single' and there are {count} nodes",
                "Set fabric_topology to auto, direct or switch; or leave one host in the group sparks",
            )
        )
    elif wanted == "direct" and count != 2:
        findings.append(
            _everywhere(
                f"fabric_topology is 'direct', one cable between two nodes, and there are {count} nodes",
                "Set fabric_topology to switch, or correct the group sparks",
            )
        )
    elif wanted == "switch" and count < 2:
        findings.append(
            _everywhere(
                "fabric_topology is 'switch' and there is one node",
                "Set fabric_topology to auto, or add the other nodes",
            )
        )
    elif wanted in ("single", "direct", "switch"):
        return wanted
    else:
        findings.append(_everywhere(f"fabric_topology is {wanted!r}", "Use auto, single, direct or switch"))
    return ""


def _check_ranks(nodes: Mapping[str, NodeInput], findings: list[Finding]) -> None:
    holders: dict[int, str] = {}
    for host, node in nodes.items():
        if node.rank < 0:
            findings.append(Finding(host, f"spark_rank is {node.rank}", "Use 0 for the head, 1, 2, … for the others"))
        elif node.rank in holders:
            findings.append(
                Finding(host, f"spark_rank {node.rank} is also that of {holders[node.rank]}", "Give each host its own")
            )
        elif node.rank >= len(nodes):
            findings.append(
                Finding(
                    host,
                    f"spark_rank is {node.rank}, and there are {len(nodes)} nodes",
                    "Number the nodes from 0 without gaps; run without --limit",
                )
            )
        holders.setdefault(node.rank, host)


def _check_wishes(wishes: Wishes, findings: list[Finding]) -> bool:
    before = len(findings)
    if wishes.transport not in ("auto", "rdma", "socket"):
        findings.append(_everywhere(f"fabric_transport is {wishes.transport!r}", "Use auto, rdma or socket"))
    # 1280 is what IPv6 needs, 9978 what mlx5 takes (its 10 240 bytes less Ethernet and hardware overhead).
    if not 1280 <= wishes.mtu <= 9978:
        findings.append(_everywhere(f"fabric_mtu is {wishes.mtu}", "Use 9000, or 1280 to 9978 bytes"))
    elif wishes.mtu < 4096 + RDMA_HEADERS:
        packet = max(size for size in (256, 512, 1024, 2048) if size + RDMA_HEADERS <= wishes.mtu)
        findings.append(
            _everywhere(
                f"fabric_mtu is {wishes.mtu}, so that RDMA sends {packet}-byte packets instead of 4096",
                "Use 9000 unless the switch cannot",
                "warning",
            )
        )
    return not any(finding.severity == "error" for finding in findings[before:])


def _subnets(wishes: Wishes, nodes: Mapping[str, NodeInput], findings: list[Finding]) -> list[Network]:
    """One network per rail; fewer when one was refused."""
    networks: list[Network] = []
    if len(wishes.subnets) != RAILS:
        findings.append(
            _everywhere(
                f"fabric_subnets has {len(wishes.subnets)} entries, and a cage has {RAILS} halves with a subnet each",
                "List two subnets: in one, all traffic would leave through one half",
            )
        )
        return networks
    highest = max(node.rank for node in nodes.values())
    for text in wishes.subnets:
        try:
            network = ipaddress.IPv4Network(text)
        except ValueError as exc:
            findings.append(
                _everywhere(f"fabric_subnets: {text!r} is no IPv4 subnet ({exc})", "Write it as 192.168.100.0/24")
            )
            continue
        last = wishes.host_offset + highest
        if wishes.host_offset < 1 or last >= network.num_addresses - 1:
            findings.append(
                _everywhere(
                    f"rank {highest} gets host number {last} (fabric_host_offset {wishes.host_offset} + rank), and "
                    f"{network} has the numbers 1 to {network.num_addresses - 2}",
                    "Use a larger subnet in fabric_subnets or another fabric_host_offset",
                )
            )
            continue
        networks.append(network)
    if len(networks) == RAILS and networks[0].overlaps(networks[1]):
        findings.append(
            _everywhere(
                f"fabric_subnets overlap: {networks[0]} and {networks[1]}", "Give each half of the cage its own subnet"
            )
        )
        return []
    return networks


# --- one node --------------------------------------------------------------------------------------------------------


def _single(host: str, node: NodeInput) -> FabricFact:
    environment = {
        "NCCL_DEBUG": "WARN",
        "NCCL_SOCKET_IFNAME": f"={node.management_interface}",
        "GLOO_SOCKET_IFNAME": node.management_interface,
        "TP_SOCKET_IFNAME": node.management_interface,
        "VLLM_HOST_IP": node.management_address,
    }
    return FabricFact(
        host=host,
        state="planned",
        topology="single",
        transport="socket",
        rank=node.rank,
        nodes=1,
        management_address=node.management_address,
        cluster_address=node.management_address,
        cluster_interface=node.management_interface,
        environment=_override(environment, node.environment),
    ).with_hash()


# --- one cage per node -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Fabric:
    """What all nodes of a direct or switched fabric have in common."""

    topology: str
    nodes: Mapping[str, NodeInput]
    wishes: Wishes
    subnets: Sequence[Network]


def _switched(fabric: _Fabric, findings: list[Finding]) -> dict[str, FabricFact]:
    _check_cable_counts(fabric.nodes, findings)
    facts = {}
    for host, node in fabric.nodes.items():

        def found(device: str, text: str, remedy: str, severity: str = "error", _host: str = host) -> None:
            findings.append(Finding(_host, text, remedy, device, severity))

        cage = _choose_cage(node, found)
        if cage is None:
            continue
        halves = _halves(fabric, host, cage, found)
        if halves:
            # Both halves are one cable; one of them may be administratively down and not know its speed.
            speed = max(_link_gbps(half) for half in halves)
            rails = [_rail(fabric, host, cage, index, half, speed) for index, half in enumerate(halves)]
            _check_overlap(node, rails, fabric.subnets, found)
            facts[host] = _fact(fabric, host, rails)
    return facts


def _check_cable_counts(nodes: Mapping[str, NodeInput], findings: list[Finding]) -> None:
    """Nodes without a cable are refused one by one, so only a second cable on *some* nodes is left to see here."""
    two = [host for host, node in nodes.items() if node.use_cages == "auto" and len(_cabled(node)) > 1]
    one = [host for host, node in nodes.items() if len(_cabled(node)) == 1]
    if two and one:
        for host in two:
            findings.append(
                Finding(
                    host,
                    f"both cages are cabled here, and one on {', '.join(one)}: which cable belongs to this fabric "
                    "cannot be told",
                    "Set fabric_cages: [0] or [1] for this host, or unplug the other cable",
                )
            )


def _choose_cage(node: NodeInput, found: Found) -> Mapping[str, Any] | None:
    if not node.cages:
        found(
            "",
            f"no QSFP cage was found. {node.absence}".strip().rstrip("."),
            "Then run again"
            if node.absence
            else "This needs RDMA devices that tell their cage (phys_port_name), as the ConnectX-7 of a Spark does",
        )
        return None
    numbers = [int(cage["cage"]) for cage in node.cages]
    wanted = node.use_cages
    if isinstance(wanted, str):
        if wanted != "auto":
            found("", f"fabric_cages is {wanted!r}", "Use auto, [0] or [1]")
            return None
        cabled = _cabled(node)
        if not cabled:
            _explain_dark(node.cages, found)
            return None
        return min(cabled, key=lambda cage: int(cage["cage"]))
    if len(wanted) != 1:
        found(
            "",
            f"fabric_cages is {list(wanted)}, and one cage per node is planned",
            "Name one cage. A second cable to the same switch adds no bandwidth: both cages share the PCIe lanes",
        )
        return None
    chosen = next((cage for cage in node.cages if int(cage["cage"]) == wanted[0]), None)
    if chosen is None:
        found("", f"fabric_cages is {list(wanted)}, and this node has {numbers}", "Name one of these")
        return None
    if not chosen.get("cabled"):
        others = [str(cage["cage"]) for cage in _cabled(node)]
        if others:
            found(
                f"cage {wanted[0]}",
                f"no link here, while cage {', '.join(others)} has one",
                f"Move the cable to cage {wanted[0]}, or set fabric_cages: [{others[0]}] or auto",
            )
        else:
            _explain_dark([chosen], found)
        return None
    return chosen


def _explain_dark(cages: Iterable[Mapping[str, Any]], found: Found) -> None:
    dark = [cage for cage in cages if cage.get("admin_down")]
    if dark:
        netdevs = [str(half.get("netdev")) for cage in dark for half in cage["halves"]]
        found(
            ", ".join(netdevs),
            "these interfaces are administratively down, so a cable in their cage cannot be seen",
            f"Bring one up and run again: ip link set {netdevs[0]} up",
        )
        return
    names = " and ".join(f"cage {cage['cage']}" for cage in cages)
    found(
        names,
        "no link: no cable, or the other end is dark",
        "Plug the QSFP cable at both ends (it locks with a click), and check that the switch port or the other node is "
        "on and set to 200G",
    )


def _halves(fabric: _Fabric, host: str, cage: Mapping[str, Any], found: Found) -> list[Mapping[str, Any]]:
    """The halves of the cage by PCIe path, or nothing when they cannot carry a rail each."""
    halves = sorted(cage["halves"], key=_pcie_order)
    label = f"cage {cage['cage']}"
    if len(halves) != RAILS:
        found(
            label,
            f"{len(halves)} of its {RAILS} halves were found ({', '.join(str(h.get('rdma_device')) for h in halves)})",
            "Power the node off, wait a minute and start it with the cable attached",
        )
        return []
    netdevs = [half.get("netdev") for half in halves]
    if netdevs[0] and netdevs[0] == netdevs[1]:
        found(
            str(netdevs[0]),
            f"both halves of {label} belong to this interface, a bond or bridge",
            "Dissolve it: each half needs an address of its own, and a bond carries no more RDMA than one half",
        )
        return []
    usable = [half for half in halves if _check_half(fabric, host, half, label, found)]
    return usable if len(usable) == RAILS else []


def _pcie_order(half: Mapping[str, Any]) -> tuple[int, str]:
    try:
        return (int(str(half.get("pcie_path")), 16), str(half.get("rdma_device")))
    except ValueError:
        return (1 << 32, str(half.get("rdma_device")))


def _is_switched_off(half: Mapping[str, Any]) -> bool:
    """Administratively down. No fault: applying the plan brings it up."""
    return half.get("admin_up") is False


def _other_end_is_switched_off(fabric: _Fabric, host: str) -> bool:
    """On a cable between two nodes, a half that is administratively down takes the link of the other end with it."""
    return fabric.topology == "direct" and any(
        _is_switched_off(half)
        for other, node in fabric.nodes.items()
        if other != host
        for cage in _cabled(node)
        for half in cage["halves"]
    )


def _check_half(fabric: _Fabric, host: str, half: Mapping[str, Any], label: str, found: Found) -> bool:
    device, netdev = str(half.get("rdma_device")), half.get("netdev")
    path = f"the half of {label} on PCIe path {half.get('pcie_path')}"
    if not netdev or not NETDEV.match(str(netdev)):
        found(device, f"{path} has no network interface", "Check dmesg for mlx5_core, and power-cycle the node")
        return False
    where = f"{device} ({netdev})"
    if netdev == fabric.nodes[host].management_interface:
        found(
            where,
            f"{path} carries Ansible's connection",
            "Connect to this node over its management network (ansible_host), so that the fabric can be changed",
        )
        return False
    if half.get("link_layer") == "InfiniBand":
        found(where, "the port is in InfiniBand mode", "Set LINK_TYPE to ETH with mlxconfig and reboot")
        return False
    if not _is_switched_off(half):
        if not half.get("carrier"):
            if _other_end_is_switched_off(fabric, host):
                return True
            found(
                where,
                f"{path} has no link, while its twin has one",
                "Reseat the cable at both ends; if that does not help, power the node off and start it with the cable "
                "attached",
            )
            return False
        if fabric.wishes.transport != "socket" and half.get("rdma_state") not in (None, "ACTIVE"):
            found(
                where,
                f"the interface has a link, and its RDMA port is {half.get('rdma_state')}",
                f"Run: ip link set {netdev} down; ip link set {netdev} up. If that does not help, reboot; or choose "
                "fabric_transport: socket, which is several times slower",
            )
            return False
        _check_speed(half, where, found)
    _check_pcie(half, where, found)
    return True


def _link_gbps(half: Mapping[str, Any]) -> float:
    return float(half.get("speed_gbps") or half.get("rate_gbps") or 0.0)


def _check_speed(half: Mapping[str, Any], where: str, found: Found) -> None:
    speed = _link_gbps(half)
    if 0 < speed < CABLE_GBPS:
        found(
            where,
            f"the link runs at {speed:g} Gb/s, not {CABLE_GBPS:g}",
            "Use a 200G cable, and set the switch port to 200G without autonegotiation",
            "warning",
        )


def _check_pcie(half: Mapping[str, Any], where: str, found: Found) -> None:
    pci = half.get("pci") or {}
    speed, width = pci.get("link_speed_gts"), pci.get("link_width")
    if (speed is not None and speed < HALF_GTS) or (width is not None and width < HALF_LANES):
        found(
            where,
            f"its PCIe link runs at {speed or 0:g} GT/s x{width or 0}, a Spark's at {HALF_GTS:g} GT/s x{HALF_LANES}; "
            "this half will be slow",
            "Update the firmware of the node and power-cycle it (off for a minute)",
            "warning",
        )


def _rail(  # noqa: PLR0917
    fabric: _Fabric, host: str, cage: Mapping[str, Any], index: int, half: Mapping[str, Any], speed: float
) -> Rail:
    subnet, rank = fabric.subnets[index], fabric.nodes[host].rank
    direct = fabric.topology == "direct"
    return Rail(
        index=index,
        cage=int(cage["cage"]),
        pcie_path=str(half.get("pcie_path") or ""),
        netdev=str(half["netdev"]),
        rdma_device=str(half["rdma_device"]),
        rdma_port=int(half.get("port") or 1),
        address=str(subnet.network_address + fabric.wishes.host_offset + rank),
        prefix=subnet.prefixlen,
        mtu=fabric.wishes.mtu,
        link_gbps=_link_gbps(half) or speed,
        segment="" if direct else f"rail{index}",
        neighbor=next(other for other in fabric.nodes if other != host) if direct else "",
    )


def _check_overlap(node: NodeInput, rails: Sequence[Rail], subnets: Sequence[Network], found: Found) -> None:
    """Nothing but our own rails may have to do with our subnets."""
    remedy = "Set fabric_subnets to subnets that no node uses, or remove the address"
    known = node.interfaces
    if known is None:
        known = [{"name": node.management_interface, "addresses": [{"address": node.management_address, "prefix": 32}]}]
    for interface in known:
        name = str(interface.get("name"))
        for entry in interface.get("addresses") or ():
            text = f"{entry.get('address')}/{entry.get('prefix')}"
            network = _network(text)
            for subnet in subnets:
                if network and network.overlaps(subnet) and not _is_ours(node, rails, name, entry.get("address")):
                    found(name, f"has the address {text}, which overlaps the fabric subnet {subnet}", remedy)
    for route in node.routes or ():
        network, name = _network(str(route.get("dst"))), str(route.get("dev") or route.get("type") or "")
        if network is None or network.prefixlen == 0 or any(rail.netdev == name for rail in rails):
            continue
        if any(interface.get("name") == name and _is_onlink(interface, network) for interface in known):
            continue  # the interface's own subnet, seen above
        for subnet in subnets:
            if network.subnet_of(subnet):
                via = f" via {route['gateway']}" if route.get("gateway") else ""
                found(name, f"has a route to {network}{via}, inside the fabric subnet {subnet}", remedy)
            elif network.overlaps(subnet):
                found(
                    name,
                    f"has a route to {network}, which the fabric subnet {subnet} will be cut out of",
                    "Nothing to do if no machine behind that route has an address in the fabric subnet",
                    "warning",
                )


def _is_ours(node: NodeInput, rails: Sequence[Rail], name: str, address: Any) -> bool:
    """On a rail, or left on the other cage from before the cable was moved."""
    if any(rail.netdev == name for rail in rails):
        return True
    behind_cages = {half.get("netdev") for cage in node.cages for half in cage["halves"]}
    return name in behind_cages and any(rail.address == address for rail in rails)


def _network(text: str) -> Network | None:
    """None for IPv6, ``default`` and whatever else is no IPv4 network."""
    try:
        return ipaddress.IPv4Network(text, strict=False)
    except ValueError:
        return None


def _is_onlink(interface: Mapping[str, Any], network: Network) -> bool:
    return any(
        _network(f"{entry.get('address')}/{entry.get('prefix')}") == network
        for entry in interface.get("addresses") or ()
    )


def _fact(fabric: _Fabric, host: str, rails: Sequence[Rail]) -> FabricFact:
    node = fabric.nodes[host]
    transport = "socket" if fabric.wishes.transport == "socket" else "rdma"
    return FabricFact(
        host=host,
        state="planned",
        topology=fabric.topology,
        transport=transport,
        rank=node.rank,
        nodes=len(fabric.nodes),
        management_address=node.management_address,
        cluster_address=rails[0].address,
        cluster_interface=rails[0].netdev,
        rails=tuple(rails),
        environment=_override(environment(rails, transport, node.management_interface), node.environment),
    ).with_hash()


def environment(rails: Sequence[Rail], transport: str, management_interface: str) -> dict[str, str]:
    """What NCCL, Gloo, UCX and Open MPI need on this node of a direct or switched fabric.

    Source: NCCL 2.30 (environment variables, net_ib), NVIDIA's playbooks for two and four Sparks.
    NCCL_IB_GID_INDEX is not among them: it is one number for all adapters, and the index differs between them.
    NCCL 2.21 and newer select by content.
    """
    first = rails[0]
    subnet = str(ipaddress.IPv4Network(f"{first.address}/{first.prefix}", strict=False))
    common = {
        "NCCL_DEBUG": "WARN",
        # The plugin in NGC images falls back to TCP on GB10 without a word.
        "NCCL_NET_PLUGIN": "none",
        # Gloo and the tensor pipe do not read NCCL's variables, and would pick docker0.
        "GLOO_SOCKET_IFNAME": first.netdev,
        "TP_SOCKET_IFNAME": first.netdev,
        # docker0 has the same address on every node, on which Open MPI hangs. A subnet, since mpirun hands the head's
        # environment to nodes where the interface has another name.
        "OMPI_MCA_btl_tcp_if_include": subnet,
        "OMPI_MCA_oob_tcp_if_include": subnet,
        "VLLM_HOST_IP": first.address,
    }
    if transport == "socket":
        return {
            **common,
            "NCCL_IB_DISABLE": "1",
            "NCCL_SOCKET_IFNAME": f"={first.netdev}",
            "UCX_NET_DEVICES": first.netdev,
        }
    devices = [rail.rdma_device if rail.rdma_port == 1 else f"{rail.rdma_device}:{rail.rdma_port}" for rail in rails]
    return {
        **common,
        "NCCL_IB_HCA": "=" + ",".join(devices),
        "NCCL_SOCKET_IFNAME": f"={management_interface}",
        "UCX_NET_DEVICES": ",".join(f"{rail.rdma_device}:{rail.rdma_port}" for rail in rails),
    }


def _override(planned: Mapping[str, str], wanted: Mapping[str, Any]) -> dict[str, str]:
    """The user's word is last; a null takes a variable away."""
    merged: dict[str, Any] = {**planned, **{str(name): value for name, value in wanted.items()}}
    return {name: _text(value) for name, value in sorted(merged.items()) if value is not None}


def _text(value: Any) -> str:
    """YAML's true and false are 1 and 0 to everything that reads these variables."""
    return str(int(value)) if isinstance(value, bool) else str(value)


# --- peers -----------------------------------------------------------------------------------------------------------


def peers(facts: Mapping[str, FabricFact]) -> dict[str, list[str]]:
    """Whom each node pings, so that every half is proved in both directions.

    Up to ALL_PAIRS_UP_TO nodes everybody pings everybody; beyond it, the next and the previous rank and the head.
    """
    order = sorted(facts, key=lambda host: facts[host].rank)
    count = len(order)
    found = {}
    for place, host in enumerate(order):
        chosen = order if count <= ALL_PAIRS_UP_TO else [order[(place + 1) % count], order[place - 1], order[0]]
        found[host] = sorted({peer for peer in chosen if peer != host}, key=order.index)
    return found


def paths(facts: Mapping[str, FabricFact]) -> dict[str, list[dict[str, Any]]]:
    """The option ``paths`` of ``fabric_probe`` for each node: every rail to every peer of :func:`peers`."""
    return {
        host: [
            {"rail": mine.index, "source": mine.address, "peer": peer, "address": other.address, "mtu": mine.mtu}
            for mine in facts[host].rails
            for peer in chosen
            for other in facts[peer].rails
            if other.index == mine.index
        ]
        for host, chosen in peers(facts).items()
    }


def hosts_lines(facts: Mapping[str, FabricFact]) -> list[str]:
    """The block of /etc/hosts: ``<host>-fabric`` is the cluster address. The plain name stays with management, so that
    a node whose cable is pulled can still be reached by it."""
    ordered = sorted((fact for fact in facts.values() if fact.rails), key=lambda fact: fact.rank)
    short = [_label(fact.host.partition(".")[0] if not _ipv4(fact.host) else fact.host) for fact in ordered]
    names = short if len(set(short)) == len(short) else [_label(fact.host) for fact in ordered]
    return [f"{fact.cluster_address} {name}-fabric" for fact, name in zip(ordered, names)]


def _label(name: str) -> str:
    """What a host name may consist of."""
    return re.sub(r"[^A-Za-z0-9-]+", "-", name).strip("-") or "node"


# --- after the change ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """What a node found after the change: ``gids`` of the module ``show_gids``, ``probes`` of ``fabric_probe``."""

    gids: Sequence[Mapping[str, Any]] = ()
    probes: Sequence[Mapping[str, Any]] = ()


def seal(facts: Mapping[str, FabricFact], measured: Mapping[str, Measured]) -> Plan:
    """Facts in state ``applied`` with the resolved GIDs; or every half that does not work, and facts in state
    ``applying``, which no later layer accepts."""
    findings: list[Finding] = []
    sealed: dict[str, FabricFact] = {}
    wanted_peers = peers(facts)
    _judge_probes(facts, measured, wanted_peers, findings)
    for host, fact in facts.items():
        node = measured.get(host, Measured())
        rails = fact.rails
        if fact.transport == "rdma":
            rails = tuple(_resolve_gid(host, rail, node.gids, findings) for rail in rails)
        sealed[host] = replace(fact, state="applied", rails=rails).with_hash()
    topology = next((fact.topology for fact in facts.values()), "")
    if findings:
        return Plan(topology, {host: replace(fact, state="applying") for host, fact in facts.items()}, findings, ())
    return Plan(topology, sealed, findings, verdict(sealed, wanted_peers))


Pair = tuple[str, str]


def _judge_probes(
    facts: Mapping[str, FabricFact],
    measured: Mapping[str, Measured],
    wanted: Mapping[str, Sequence[str]],
    findings: list[Finding],
) -> None:
    """One finding per cause, not per ping: a bad cable fails towards every peer and back."""
    results = {
        (host, int(probe["rail"]), str(probe["peer"])): probe
        for host, node in measured.items()
        for probe in node.probes
    }
    silent: dict[str, set[str]] = {}
    for index in sorted({rail.index for fact in facts.values() for rail in fact.rails}):
        failed: dict[Pair, Mapping[str, Any]] = {}
        tested: set[Pair] = set()
        for host in facts:
            for peer in wanted[host]:
                probe = results.get((host, index, peer))
                if probe is None:
                    silent.setdefault(host, set()).add(peer)
                else:
                    tested.add((host, peer))
                    if not probe.get("ok"):
                        failed[host, peer] = probe
        _judge_rail(facts, index, tested, failed, findings)
    for host, missing in silent.items():
        findings.append(Finding(host, f"{', '.join(sorted(missing))} was not pinged", "Run the fabric layer again"))


def _judge_rail(
    facts: Mapping[str, FabricFact],
    index: int,
    tested: set[Pair],
    failed: Mapping[Pair, Mapping[str, Any]],
    findings: list[Finding],
) -> None:
    hosts = {host for pair in tested for host in pair}
    many = len(hosts) > 2
    lonely = {host for host in hosts if all(pair in failed for pair in tested if host in pair)} if many else set()
    rails = {host: next(rail for rail in facts[host].rails if rail.index == index) for host in hosts}
    if lonely == hosts and lonely:
        reason, remedy = _usual(failed.values())
        findings.append(
            Finding("all nodes", f"nobody reaches anybody over rail {index}: {reason}", remedy, f"rail {index}")
        )
        return
    for host in sorted(lonely, key=lambda h: facts[h].rank):
        own = [probe for pair, probe in failed.items() if pair[0] == host]
        reason, remedy = _usual(own or [probe for pair, probe in failed.items() if host in pair])
        rail = rails[host]
        findings.append(
            Finding(
                host,
                f"this half reaches no other node, and none reaches it: {reason}",
                remedy,
                f"{rail.rdma_device} ({rail.netdev})",
            )
        )
    for (host, peer), probe in failed.items():
        both = (peer, host) in failed
        if host in lonely or peer in lonely or (both and facts[peer].rank < facts[host].rank):
            continue
        mine, other = rails[host], rails[peer]
        found = f"no way to {peer} {other.netdev} ({mine.address} to {other.address})"
        reason, remedy = _usual([probe])
        findings.append(
            Finding(
                host,
                f"{found}{', nor back' if both else ', but back'}: {reason}",
                remedy,
                f"{mine.rdma_device} ({mine.netdev})",
            )
        )


def _usual(probes: Iterable[Mapping[str, Any]]) -> tuple[str, str]:
    """Reason and remedy of most of them."""
    said = [(str(p.get("reason") or "no answer"), str(p.get("remedy") or "Check the cable")) for p in probes]
    reasons = [reason for reason, _remedy in said]
    return next(pair for pair in said if pair[0] == max(reasons, key=reasons.count))


def _resolve_gid(host: str, rail: Rail, gids: Sequence[Mapping[str, Any]], findings: list[Finding]) -> Rail:
    """The entry that NCCL takes on this half; it must hold the planned address, whatever its index."""
    device = f"{rail.rdma_device} ({rail.netdev})"
    try:
        table = [_gid(entry) for entry in gids if entry.get("device") == rail.rdma_device]
        picked = select([gid for gid in table if gid.port == rail.rdma_port], devices=[rail.rdma_device])
        gid = picked[f"{rail.rdma_device}:{rail.rdma_port}"]
    except (SparkError, KeyError, TypeError, ValueError) as exc:
        text = exc.found if isinstance(exc, SparkError) else f"its GID table cannot be read ({exc})"
        findings.append(Finding(host, f"no GID for {rail.address}: {text}", _gid_remedy(rail), device))
        return rail
    if gid.ipv4 != rail.address:
        findings.append(
            Finding(
                host,
                f"the RoCE v2 GID (index {gid.index}) is that of {gid.ipv4}, not of {rail.address}",
                _gid_remedy(rail),
                device,
            )
        )
        return rail
    return replace(rail, gid_index=gid.index, gid=gid.gid)


def _gid(entry: Mapping[str, Any]) -> Gid:
    return Gid(
        **{name: entry.get(name) for name in ("device", "port", "index", "gid", "version", "netdev")}  # type: ignore[arg-type]
    )


def _gid_remedy(rail: Rail) -> str:
    return (
        f"Give {rail.netdev} no other IPv4 address. If it has none, the RDMA driver missed the change: run "
        f"ip link set {rail.netdev} down; ip link set {rail.netdev} up; then run the fabric layer again"
    )


# --- for people ------------------------------------------------------------------------------------------------------

_COLUMNS = ("node", "rank", "cage", "PCIe path", "interface", "RDMA device", "address", "MTU", "Gb/s")


def summary(facts: Mapping[str, FabricFact]) -> list[str]:
    """One line per rail, in columns; a single node is one sentence."""
    if not facts:
        return []
    rows = [_COLUMNS]
    lines = []
    for fact in sorted(facts.values(), key=lambda f: f.rank):
        if not fact.rails:
            lines.append(f"{fact.host}: single node, no fabric to configure; {fact.cluster_address} is its address")
        for rail in fact.rails:
            rows.append(
                (
                    fact.host,
                    str(fact.rank),
                    str(rail.cage),
                    rail.pcie_path,
                    rail.netdev,
                    rail.rdma_device,
                    f"{rail.address}/{rail.prefix}",
                    str(rail.mtu),
                    f"{rail.link_gbps:g}" if rail.link_gbps else "?",
                )
            )
    if len(rows) > 1:
        widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
        lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    return lines


def verdict(facts: Mapping[str, FabricFact], wanted: Mapping[str, Sequence[str]]) -> list[str]:
    """What was proved, and where the GIDs are: one index for all, and every half that has another."""
    halves = [(fact, rail) for fact in facts.values() for rail in fact.rails]
    if not halves:
        return []
    pings = sum(len(fact.rails) * len(wanted[host]) for host, fact in facts.items())
    lines = [
        f"{len(halves)} halves on {len(facts)} nodes work: {pings} pings of {halves[0][1].mtu} bytes were answered, "
        "none of them fragmented"
    ]
    indices = [rail.gid_index for _fact, rail in halves if rail.gid_index is not None]
    if indices:
        usual = max(sorted(set(indices)), key=indices.count)
        others = [
            f"{rail.gid_index} on {fact.host} {rail.rdma_device}" for fact, rail in halves if rail.gid_index != usual
        ]
        lines.append(f"RoCE v2 GIDs hold the planned addresses, at index {', '.join([str(usual), *others])}")
    return lines
