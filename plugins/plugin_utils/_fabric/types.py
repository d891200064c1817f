# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What goes into the fabric planner and what comes out: nodes, settings, plan.

The planner's parts, in the order of their work: ``_fabric.cable_map`` (what is cabled to what, and which halves are
used), ``_fabric.cages`` (is each of these halves fit), ``_fabric.addresses``, ``_fabric.environment``;
``_fabric.plan`` calls them, ``_fabric.verify`` judges what was measured afterwards.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.network import Network as NodeNetwork
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.network import NetworkInterface, Route
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.ibdev2netdev import Cage, Rdma
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.neighbors import Neighbors
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import management

RAILS = 2  # a cage has two halves, one per PCIe path
CABLE_GBPS = 200.0

Network = ipaddress.IPv4Network
Port = tuple[str, int]  # a node and the number of one of its cages
Found = Callable[..., None]  # (device, found, remedy, severity="error"): a finding about one node


@dataclass(frozen=True)
class NodeInput:
    """What is known about one node before the plan.

    ``interfaces`` and ``routes`` are None when they are not known.
    """

    rank: int
    management_address: str
    management_interface: str = ""
    cages: Sequence[Cage] = ()
    absence: str = ""  # why there is no RDMA device, as the discovery says it
    interfaces: Sequence[NetworkInterface] | None = None
    routes: Sequence[Route] | None = None
    neighbors: Neighbors = field(default_factory=Neighbors)
    use_cages: str | Sequence[int] = "auto"
    addresses: Mapping[str, str] = field(default_factory=dict)  # netdev or index of a rail: IPv4, prefix optional
    environment: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """What the user asked for; the defaults are those of the role ``fabric``."""

    topology: str = "auto"
    subnets: Sequence[str] = ("192.168.100.0/24", "192.168.101.0/24")
    host_offset: int = 10
    mtu: int = 9000
    transport: str = "auto"
    cables: Sequence[str] = ()  # "spark1.0 spark2.1", "spark1.1 switch", "spark1.1 switch:NAME"
    allow_large_ring: bool = False
    qos: str = "none"
    qos_force: bool = False


@dataclass(frozen=True)
class Plan:
    """What the planner and ``verify`` return. A refused plan has no facts."""

    topology: str
    facts: Mapping[str, FabricFact]
    findings: Sequence[Finding]
    summary: Sequence[str]
    cable_map: Sequence[str] = ()  # also of a refused plan
    gbps: float = 0.0  # of the slowest link in use, 0 when unknown; of cables that were judged alone

    @property
    def refused(self) -> bool:
        return any(finding.severity == "error" for finding in self.findings)


def everywhere(found: str, remedy: str, severity: str = "error") -> Finding:
    return Finding(host="all nodes", found=found, remedy=remedy, severity=severity)


def about(host: str, findings: list[Finding]) -> Found:
    """Adds findings about one node."""

    def found(device: str, text: str, remedy: str, severity: str = "error") -> None:
        findings.append(Finding(host, text, remedy, device, severity))

    return found


def has_errors(findings: Iterable[Finding]) -> bool:
    return any(finding.severity == "error" for finding in findings)


def node_input(host: str, raw: Mapping[str, Any], findings: list[Finding]) -> NodeInput:
    """From what the role hands over: ``rank``, ``network`` (:class:`Network`), ``rdma`` (:class:`Rdma`), ``neighbors``
    (:class:`Neighbors`), ``management_address`` (the user's word, may be empty), ``cages``, ``addresses``,
    ``environment``.

    Adds a finding where no management address can be chosen.
    """
    network, rdma = raw.get("network") or NodeNetwork(), raw.get("rdma") or Rdma()
    chosen = management.choose(host, network, str(raw.get("management_address") or ""))
    if chosen.refusal:
        findings.append(chosen.refusal)
    return NodeInput(
        rank=int(raw.get("rank", -1)),
        management_address=chosen.address or "0.0.0.0",  # noqa: S104 -- a placeholder in a plan that is refused
        management_interface=chosen.interface,
        cages=rdma.cages,
        absence=rdma.message or "",
        interfaces=network.interfaces,
        routes=network.routes,
        neighbors=raw.get("neighbors") or Neighbors(),
        use_cages=_use_cages(raw.get("cages", "auto")),
        addresses={str(name): str(value) for name, value in (raw.get("addresses") or {}).items()},
        environment=raw.get("environment") or {},
    )


def _use_cages(value: Any) -> str | tuple[int, ...]:
    """``fabric_cages``; what is no list of numbers stays text, which is refused unless it is ``auto``."""
    try:
        return value if isinstance(value, str) else tuple(int(cage) for cage in value)
    except (TypeError, ValueError):
        return str(value)


def missing_nodes(sparks: Iterable[str], nodes: Iterable[str]) -> list[Finding]:
    """A plan is for all nodes: one made for some of them would change the count and the neighbours of the rest."""
    have = set(nodes)
    return [
        Finding(host, "is in the group sparks and not part of this run", "Run the fabric layer without --limit")
        for host in sparks
        if host not in have
    ]


def as_network(text: str) -> Network | None:
    """None for IPv6, ``default`` and whatever else is no IPv4 network."""
    try:
        return ipaddress.IPv4Network(text, strict=False)
    except ValueError:
        return None


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """One line for each row, for people."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
