# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What each fault means. Pure: from topology and active faults to the wanted state of cables, ports and nodes.

State is declared, not changed step by step: clearing a fault is computing the same without it, so faults compose and
any subset can be cleared in any order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sim import spark

JUMBO = 9216  # what switches and cables of the lab carry
SLOW_MBPS = 100000
KINDS = {
    # Moves of cables come first: what cuts or slows a cable is about where it is then.
    "wrong_cage": "each cable sits in the other cage",
    "cable_swapped": "the plug of one cage (--cage, default the cabled one) and that of --to NODE --to-cage N change "
    "places (default: the other cage of the next node)",
    "loop_cable": "the cables are pulled, and one cable joins both cages of this node",
    "no_cable": "the QSFP cables are pulled: no carrier on any port",
    "nic_removed": "no cable, and the platform removed all four ConnectX functions, as DGX OS does after boot",
    "half_down": "one half of a cabled cage has no carrier (--half, default 1)",
    "mtu_mismatch": "the other end of the cable carries only 1500 bytes (--half: only that one)",
    "extra_ipv6": "a random link-local IPv6 address, registered before IPv4: GID indices shift by two (--netdev)",
    "stale_ipv4": "a second IPv4 address, left over from another configuration (--netdev, --address)",
    "degraded_pcie": "PCIe trained to fewer lanes (--width, default 2) or an older speed (--speed)",
    "speed_100g": "the links came up with 100 Gb/s (--cage, --half, --netdev: only those)",
    "gid_missing": "the RDMA driver missed the IPv4 addresses: no GID for them (--cage, --half, --netdev: only those)",
    "duplicate_mac": "a port of cage 0 has the MAC address of the same port of another node (--to, default the next; "
    "--netdev)",
    "management_lost": "the management cable is pulled: ssh does not reach the node",
    "cma_leak": "/proc/meminfo as on a kernel that leaks CMA: CmaTotal 0, CmaFree above 0 (nothing else moves)",
    "stale_nccl_conf": "an /etc/nccl.conf of another set-up",
    "lldpad": "a unit lldpad.service is active",
    "bond": "a netplan file that bonds both halves of cage 0 (the device itself where the kernel has bonding)",
    "netplan_mode": "the netplan file of the system is readable for everybody",
    "docker_subnet": "docker0 has 192.168.100.1/24 (--address: another one)",
    "aer_journal": "the journal of this boot reports fatal PCIe errors and low power of the ConnectX",
}
MOVES = ("wrong_cage", "cable_swapped", "loop_cable")
# Faults of a node's files and services: made and cleared by node_file_faults.py.
ON_NODE = ("stale_nccl_conf", "lldpad", "bond", "netplan_mode", "docker_subnet", "aer_journal")


@dataclass(frozen=True)
class Fault:
    node: str
    kind: str
    half: int | None = None
    netdev: str | None = None
    address: str | None = None
    width: int = 2
    speed: str = "32.0 GT/s PCIe"
    cage: int | None = None
    to: str | None = None
    to_cage: int | None = None

    @property
    def key(self) -> tuple[str, str, int | None, str | None, int | None]:
        """Injecting a fault again with the same key replaces it."""
        return (self.node, self.kind, self.half, self.netdev, self.cage)

    def hits(self, nic: spark.Nic) -> bool:
        return self.half in (None, nic.half) and self.netdev in (None, nic.netdev) and self.cage in (None, nic.cage)


@dataclass
class Port:
    """The host's end of the cable of one netdev."""

    node: str
    nic: spark.Nic
    segment: str | None = None  # the bridge it is plugged into
    mtu: int = JUMBO
    present: bool = True
    mac: str = ""


@dataclass
class Lab:
    """The wanted state of the whole lab."""

    ports: dict[tuple[str, str], Port]  # by node and netdev
    management: dict[str, bool]
    addresses: dict[str, list[tuple[str, str]]] = field(default_factory=dict)  # node to (netdev, address/prefix)
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)  # what the simulator of each node is told
    on_node: dict[str, dict[str, str]] = field(default_factory=dict)  # node to kind of ON_NODE to its argument

    def segments(self) -> dict[str, list[Port]]:
        found: dict[str, list[Port]] = {}
        for port in self.ports.values():
            if port.segment and port.present:
                found.setdefault(port.segment, []).append(port)
        return found


Ends = list[tuple[str, int]]


def cables(topology: str, nodes: int) -> dict[str, Ends]:
    """Each Ethernet segment as its ends (node, cage): a cable has two, a switch any number.

    Both halves of a cage are ends of the same segment: the ConnectX switches between the cable and its functions.
    """
    names = spark.node_names(nodes)
    first, last = names[0], names[-1]
    if topology == "single" and nodes == 1:
        return {}
    if topology in spark.PAIRS and nodes == 2:
        return {
            "direct": {"cable0": [(first, 0), (last, 0)]},
            "direct_crossed": {"cable0": [(first, 0), (last, 1)]},
            "direct_two": {"cable0": [(first, 0), (last, 0)], "cable1": [(first, 1), (last, 1)]},
        }[topology]
    if topology == "ring" and nodes >= 3:
        return {f"cable{index}": [(name, 1), (names[(index + 1) % nodes], 0)] for index, name in enumerate(names)}
    if topology == "switch":
        return {"switch0": [(name, 0) for name in names]}
    if topology in ("switch_two", "crossed_100g"):
        return {"switch0": [(name, cage) for name in names for cage in (0, 1)]}
    if topology == "mixed" and nodes >= 3:
        return {"switch0": [(name, 0) for name in names[:-1]], "cable0": [(first, 1), (last, 0)]}
    raise ValueError(
        f"topology {topology} cannot have {nodes} node(s): single has 1, {', '.join(spark.PAIRS)} 2, ring and mixed "
        "3 or more, switch, switch_two and crossed_100g any number"
    )


def is_cable(segment: str) -> bool:
    """On a cable the two ends lose carrier together; on a switch each port is alone."""
    return segment.startswith("cable")


def wanted(topology: str, nodes: int, faults: Iterable[Fault]) -> Lab:
    names = spark.node_names(nodes)
    lab = Lab(
        ports={
            (name, nic.netdev): Port(name, nic, mac=spark.mac(spark.node_number(name), nic.mac_offset))
            for name in names
            for nic in spark.NICS
        },
        management=dict.fromkeys(names, True),
        addresses={name: [] for name in names},
        nodes={
            name: {"ipv6_first": [], "pcie": {}, "speed": {}, "gid_missing": [], "cma_leak": False} for name in names
        },
        on_node={name: {} for name in names},
    )
    for segment, ends in cables(topology, nodes).items():
        for node, cage in ends:
            for nic in spark.NICS:
                if nic.cage == cage:
                    lab.ports[node, nic.netdev].segment = segment
                    if topology == "crossed_100g":
                        lab.nodes[node]["speed"][nic.netdev] = SLOW_MBPS
    order = list(KINDS)
    for fault in sorted(faults, key=lambda f: order.index(f.kind)):
        _apply(lab, fault)
    return lab


def _apply(lab: Lab, fault: Fault) -> None:
    own = [lab.ports[fault.node, nic.netdev] for nic in spark.NICS]
    hit = [port for port in own if fault.hits(port.nic)]
    number = spark.node_number(fault.node)
    told = lab.nodes[fault.node]
    if fault.kind in MOVES:
        _move(lab, fault, own)
    elif fault.kind in ("no_cable", "nic_removed"):
        for port in own:
            port.segment = None
            port.present = port.present and fault.kind == "no_cable"
    elif fault.kind == "half_down":
        for port in own:
            if port.nic.half == (1 if fault.half is None else fault.half) and fault.cage in (None, port.nic.cage):
                port.segment = None
    elif fault.kind == "mtu_mismatch":
        for port in hit:
            port.mtu = 1500
    elif fault.kind == "extra_ipv6":
        for port in _first_cage(hit, fault):
            told["ipv6_first"].append(port.nic.netdev)
            address = f"fe80::5eed:{number:x}:{port.nic.mac_offset:x}:1/64"
            lab.addresses[fault.node].append((port.nic.netdev, address))
    elif fault.kind == "stale_ipv4":
        for port in _first_cage(hit, fault)[:1]:
            address = fault.address or f"10.99.{port.nic.half}.{number}/24"
            lab.addresses[fault.node].append((port.nic.netdev, address))
    elif fault.kind == "degraded_pcie":
        for port in hit:
            told["pcie"][port.nic.netdev] = {"width": fault.width, "speed": fault.speed}
    elif fault.kind == "speed_100g":
        told["speed"].update({port.nic.netdev: SLOW_MBPS for port in hit})
    elif fault.kind == "gid_missing":
        told["gid_missing"] = sorted({*told["gid_missing"], *(port.nic.netdev for port in hit)})
    elif fault.kind == "duplicate_mac":
        other = spark.node_number(fault.to or _next(lab, fault.node))
        for port in hit[:1]:
            port.mac = spark.mac(other, port.nic.mac_offset)
    elif fault.kind == "management_lost":
        lab.management[fault.node] = False
    elif fault.kind == "cma_leak":
        told["cma_leak"] = True
    else:
        lab.on_node[fault.node][fault.kind] = fault.address or ""


def _move(lab: Lab, fault: Fault, own: list[Port]) -> None:
    if fault.kind == "wrong_cage":
        _swap(lab, (fault.node, 0), (fault.node, 1))
    elif fault.kind == "loop_cable":
        for port in own:
            port.segment = f"cable-loop{spark.node_number(fault.node)}"
    else:
        cabled = [port.nic.cage for port in own if port.segment]
        cage = fault.cage if fault.cage is not None else min(cabled, default=0)
        other = 1 - cage if fault.to_cage is None else fault.to_cage
        _swap(lab, (fault.node, cage), (fault.to or _next(lab, fault.node), other))


def _swap(lab: Lab, one: tuple[str, int], two: tuple[str, int]) -> None:
    """What is plugged into the one cage goes into the other."""
    ends = [[lab.ports[node, nic.netdev] for nic in spark.NICS if nic.cage == cage] for node, cage in (one, two)]
    for first, second in zip(*ends, strict=True):
        first.segment, second.segment = second.segment, first.segment


def _next(lab: Lab, node: str) -> str:
    names = list(lab.management)
    return names[(names.index(node) + 1) % len(names)]


def _first_cage(ports: list[Port], fault: Fault) -> list[Port]:
    """Unless a netdev is named, address faults hit the cabled cage, or cage 0 where none is."""
    cabled = [port for port in ports if port.segment]
    return ports if fault.netdev else cabled or [port for port in ports if port.nic.cage == 0]


def inject(faults: list[Fault], new: Fault) -> list[Fault]:
    return [*(fault for fault in faults if fault.key != new.key), new]


def clear(faults: list[Fault], node: str | None, kind: str | None) -> list[Fault]:
    return [fault for fault in faults if node not in (None, fault.node) or kind not in (None, fault.kind)]
