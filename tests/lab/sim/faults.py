# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

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
KINDS = {
    "no_cable": "the QSFP cables are pulled: no carrier on any port",
    "nic_removed": "no cable, and the platform removed all four ConnectX functions, as DGX OS does after boot",
    "wrong_cage": "each cable sits in the other cage",
    "half_down": "one half of a cabled cage has no carrier (--half, default 1)",
    "mtu_mismatch": "the other end of the cable carries only 1500 bytes (--half: only that one)",
    "extra_ipv6": "a random link-local IPv6 address, registered before IPv4: GID indices shift by two (--netdev)",
    "stale_ipv4": "a second IPv4 address, left over from another configuration (--netdev, --address)",
    "degraded_pcie": "PCIe trained to fewer lanes (--width, default 2) or an older speed (--speed)",
    "management_lost": "the management cable is pulled: ssh does not reach the node",
}


@dataclass(frozen=True)
class Fault:
    node: str
    kind: str
    half: int | None = None
    netdev: str | None = None
    address: str | None = None
    width: int = 2
    speed: str = "32.0 GT/s PCIe"

    @property
    def key(self) -> tuple[str, str, int | None, str | None]:
        """Injecting a fault again with the same key replaces it."""
        return (self.node, self.kind, self.half, self.netdev)

    def hits(self, nic: spark.Nic) -> bool:
        return self.half in (None, nic.half) and self.netdev in (None, nic.netdev)


@dataclass
class Port:
    """The host's end of the cable of one netdev."""

    node: str
    nic: spark.Nic
    segment: str | None = None  # the bridge it is plugged into
    mtu: int = JUMBO
    present: bool = True


@dataclass
class Lab:
    """The wanted state of the whole lab."""

    ports: dict[tuple[str, str], Port]  # by node and netdev
    management: dict[str, bool]
    addresses: dict[str, list[tuple[str, str]]] = field(default_factory=dict)  # node to (netdev, address/prefix)
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)  # what the simulator of each node is told

    def segments(self) -> dict[str, list[Port]]:
        found: dict[str, list[Port]] = {}
        for port in self.ports.values():
            if port.segment and port.present:
                found.setdefault(port.segment, []).append(port)
        return found


def cables(topology: str, nodes: int) -> list[list[tuple[str, int]]]:
    """Each cable as its ends (node, cage). The cable of a switch is one with many ends; its name is its index."""
    names = spark.node_names(nodes)
    if topology == "switch":
        return [[(name, 0) for name in names]]
    if topology == "direct" and nodes == 2:
        return [[(names[0], 0), (names[1], 0)]]
    if topology == "ring" and nodes >= 3:
        return [[(name, 1), (names[(index + 1) % nodes], 0)] for index, name in enumerate(names)]
    if topology == "single" and nodes == 1:
        return []
    raise ValueError(
        f"topology {topology} cannot have {nodes} node(s): single has 1, direct 2, ring 3 or more, switch any number"
    )


def is_cable(segment: str) -> bool:
    """On a cable the two ends lose carrier together; on a switch each port is alone."""
    return segment.startswith("cable")


def wanted(topology: str, nodes: int, faults: Iterable[Fault]) -> Lab:
    names = spark.node_names(nodes)
    lab = Lab(
        ports={(name, nic.netdev): Port(name, nic) for name in names for nic in spark.NICS},
        management=dict.fromkeys(names, True),
        addresses={name: [] for name in names},
        nodes={name: {"ipv6_first": [], "pcie": {}} for name in names},
    )
    for index, ends in enumerate(cables(topology, nodes)):
        for node, cage in ends:
            for nic in spark.NICS:
                if nic.cage == cage:
                    kind = "rail" if topology == "switch" else f"cable{index}h"
                    lab.ports[node, nic.netdev].segment = f"{kind}{nic.half}"
    order = list(KINDS)
    # wrong_cage moves cables, so it comes before what cuts them.
    for fault in sorted(faults, key=lambda f: (f.kind != "wrong_cage", order.index(f.kind))):
        _apply(lab, fault)
    return lab


def _apply(lab: Lab, fault: Fault) -> None:
    own = [lab.ports[fault.node, nic.netdev] for nic in spark.NICS]
    hit = [port for port in own if fault.hits(port.nic)]
    number = spark.node_number(fault.node)
    told = lab.nodes[fault.node]
    if fault.kind == "wrong_cage":
        segments = {(port.nic.cage, port.nic.half): port.segment for port in own}
        for port in own:
            port.segment = segments[1 - port.nic.cage, port.nic.half]
    elif fault.kind in ("no_cable", "nic_removed"):
        for port in own:
            port.segment = None
            port.present = port.present and fault.kind == "no_cable"
    elif fault.kind == "half_down":
        for port in own:
            if port.nic.half == (1 if fault.half is None else fault.half):
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
    elif fault.kind == "management_lost":
        lab.management[fault.node] = False


def _first_cage(ports: list[Port], fault: Fault) -> list[Port]:
    """Unless a netdev is named, address faults hit the cabled cage, or cage 0 where none is."""
    cabled = [port for port in ports if port.segment]
    return ports if fault.netdev else cabled or [port for port in ports if port.nic.cage == 0]


def inject(faults: list[Fault], new: Fault) -> list[Fault]:
    return [*(fault for fault in faults if fault.key != new.key), new]


def clear(faults: list[Fault], node: str | None, kind: str | None) -> list[Fault]:
    return [fault for fault in faults if node not in (None, fault.node) or kind not in (None, fault.kind)]
