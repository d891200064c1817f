# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The fabric plan: from what every node found to one fabric fact per node, or to all reasons why not.

:func:`plan` comes before any change, :func:`.verify.verify` after it, with what the nodes then measured. Both are pure
and run once per play on the controller. The parts: see ``_fabric.types``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding, errors
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import QOS, FabricFact, Rail
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.ibdev2netdev import RdmaPort
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import addresses, cages
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import cable_map as fabric_cable_map
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import environment as fabric_environment
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.cable_map import Link
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.topology import (
    Layout,
    Strand,
    count_fits,
    layout,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.types import (
    Network,
    NodeInput,
    Plan,
    Port,
    Settings,
    about,
    columns,
    everywhere,
    has_errors,
)

RDMA_HEADERS = 96  # bytes that mlx5 leaves for headers when it derives the RDMA MTU from the interface's


def plan(nodes: Mapping[str, NodeInput], settings: Settings) -> Plan:
    """Plan all nodes together. Never raises; every reason against the plan is one of the findings."""
    findings: list[Finding] = []
    if not count_fits(len(nodes), settings.topology, findings):
        return Plan("", {}, findings, ())
    _check_ranks(nodes, findings)
    if len(nodes) == 1:
        alone = {host: _single(host, node, findings) for host, node in nodes.items()}
        return _made("single", nodes, alone, findings, ())
    _check_settings(settings, findings)
    cabling, found = _cabled(nodes, settings, findings)
    if found is None:
        _check_halves_anyway(nodes, settings, findings)
        return _made("", nodes, {}, findings, fabric_cable_map.cable_map(nodes, cabling, None))
    facts = _Fabric(nodes, settings, found).facts(cabling, findings)
    used = {port for strand in found.strands for port in strand.members} if facts else None
    return _made(found.topology, nodes, facts, findings, fabric_cable_map.cable_map(nodes, cabling, used))


def judge_cables(nodes: Mapping[str, NodeInput], settings: Settings) -> Plan:
    """What speaks against the cables alone; no facts. Settings are judged by :func:`judge_settings`."""
    findings: list[Finding] = []
    if len(nodes) < 2 or not count_fits(len(nodes), settings.topology, []):
        return Plan("", {}, findings, ())
    cabling, found = _cabled(nodes, settings, findings)
    shown = fabric_cable_map.cable_map(nodes, cabling, None)
    return Plan(found.topology, {}, findings, (), shown, found.gbps) if found else Plan("", {}, findings, (), shown)


def _cabled(
    nodes: Mapping[str, NodeInput], settings: Settings, findings: list[Finding]
) -> tuple[list[Link], Layout | None]:
    cabling = fabric_cable_map.cabling(nodes, settings.topology, settings.cables, findings)
    links = fabric_cable_map.in_use(nodes, cabling, findings)
    # Without one node the cables have a shape that nobody meant, and what is wrong with that node has been said.
    whole = {host for link in links for host in link.hosts} == set(nodes)
    return cabling, layout(nodes, settings, links, findings) if whole else None


def judge_settings(count: int, settings: Settings) -> list[Finding]:
    """What is wrong whatever the machines and cables of ``count`` nodes turn out to be."""
    findings: list[Finding] = []
    if count_fits(count, settings.topology, findings) and count > 1:
        _check_settings(settings, findings)
        addresses.listed(settings, findings)
    return errors(findings)


def _made(
    topology: str,
    nodes: Mapping[str, NodeInput],
    facts: Mapping[str, FabricFact],
    findings: Sequence[Finding],
    cable_map: Sequence[str],
) -> Plan:
    place = {host: number for number, host in enumerate(nodes)}
    told = sorted(findings, key=lambda finding: place.get(finding.host, -1))
    if has_errors(told):
        return Plan(topology, {}, told, (), cable_map)
    ordered = dict(sorted(facts.items(), key=lambda item: item[1].rank))
    return Plan(topology, ordered, told, summary(ordered), cable_map)


def _check_ranks(nodes: Mapping[str, NodeInput], findings: list[Finding]) -> None:
    holders: dict[int, str] = {}
    for host, node in nodes.items():
        if node.rank < 0:
            findings.append(Finding(host, f"spark_rank is {node.rank}", "Use 0 for the head, 1, 2, … for the others"))
        elif node.rank in holders:
            findings.append(
                Finding(host, f"spark_rank {node.rank} is also that of {holders[node.rank]}", "Give each host its own")
            )
        holders.setdefault(node.rank, host)
    if 0 not in holders:
        findings.append(everywhere("no node has spark_rank 0, which is the head", "Give it to one of them"))


def _check_settings(settings: Settings, findings: list[Finding]) -> None:
    if settings.transport not in ("auto", "rdma", "socket"):
        findings.append(everywhere(f"fabric_transport is {settings.transport!r}", "Use auto, rdma or socket"))
    if settings.qos not in QOS:
        findings.append(everywhere(f"fabric_qos is {settings.qos!r}", f"Use {' or '.join(QOS)}"))
    elif settings.qos == "roce" and settings.transport == "socket":
        findings.append(
            everywhere(
                "fabric_qos is 'roce' and fabric_transport 'socket', which sends no RoCE",
                "Set fabric_qos: none, or fabric_transport: auto",
            )
        )
    # 1280 is what IPv6 needs, 9978 what mlx5 takes (its 10 240 bytes less Ethernet and hardware overhead).
    if not 1280 <= settings.mtu <= 9978:
        findings.append(everywhere(f"fabric_mtu is {settings.mtu}", "Use 9000, or 1280 to 9978 bytes"))
    elif settings.mtu < 4096 + RDMA_HEADERS:
        packet = max(size for size in (256, 512, 1024, 2048) if size + RDMA_HEADERS <= settings.mtu)
        findings.append(
            everywhere(
                f"fabric_mtu is {settings.mtu}, so that RDMA sends {packet}-byte packets instead of 4096",
                "Use 9000 unless the switch cannot",
                "warning",
            )
        )


def _check_halves_anyway(nodes: Mapping[str, NodeInput], settings: Settings, findings: list[Finding]) -> None:
    """Where there is no topology: the halves of the cage that each node would probably use, so that all is said at
    once."""
    cable = len(nodes) == 2 and settings.topology != "switch"
    for host, node in nodes.items():
        usable = [number for number in cages.cabled(node) if cages.may_use(node, number)]
        cage = cages.by_number(node, usable[0]) if usable else None
        if cage is not None:
            others = [half for name, other in nodes.items() if name != host for c in other.cages for half in c.halves]
            off = cable and any(cages.is_switched_off(half) for half in others)
            cages.usable_halves(
                node, cage, (0, 1), transport=settings.transport, far_is_off=off, found=about(host, findings)
            )


def _single(host: str, node: NodeInput, findings: list[Finding]) -> FabricFact:
    return FabricFact(
        host=host,
        state="planned",
        topology="single",
        transport="socket",
        rank=node.rank,
        nodes=1,
        management_address=node.management_address,
        management_interface=node.management_interface,
        cluster_address=node.management_address,
        cluster_interface=node.management_interface,
        environment=fabric_environment.override(
            fabric_environment.single(node), node.environment, about(host, findings), node
        ),
    ).with_hash()


# --- two nodes and more ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Fabric:
    """Two nodes and more, with the halves that are to carry rails."""

    nodes: Mapping[str, NodeInput]
    settings: Settings
    layout: Layout

    @property
    def transport(self) -> str:
        return "socket" if self.settings.transport == "socket" else "rdma"

    def facts(self, cabling: Sequence[Link], findings: list[Finding]) -> dict[str, FabricFact]:
        """Nothing when there is an error; all of them are in the findings."""
        self._check_settings(findings)
        strands = self.layout.strands
        subnets = addresses.subnets(self.settings, strands, findings)
        halves = self._halves(findings)
        if not subnets or not addresses.planned(self.settings, self.nodes, strands, subnets, findings):
            return {}
        rails = {host: self._rails(host, own, subnets, findings) for host, own in halves.items()}
        used = addresses.check_together(rails, findings)
        for host, own in rails.items():
            addresses.check_overlap(host, self.nodes[host], list(own.values()), used, findings)
            self._check_prefixes(host, list(own.values()), findings)
        if has_errors(findings):
            return {}
        cables = fabric_cable_map.cables_of(cabling)
        return {
            host: replace(
                self._fact(host, list(own.values()), used, findings),
                cables=tuple(cables.get(host, ())),
            ).with_hash()
            for host, own in rails.items()
        }

    def _check_settings(self, findings: list[Finding]) -> None:
        direct = sorted({strand.edge for strand in self.layout.strands if strand.edge})
        if self.settings.qos == "roce" and direct and not self.settings.qos_force:
            findings.append(
                everywhere(
                    f"fabric_qos is 'roce', and {', '.join(direct[:4])}{' …' if len(direct) > 4 else ''} "
                    f"{'is a direct cable' if len(direct) == 1 else 'are direct cables'}: nothing in the middle could "
                    "congest, link pause is on already, and the profile adds only a way to fail",
                    "Set fabric_qos: none, or fabric_qos_force: true",
                )
            )
        if self.transport == "socket" and self.layout.topology == "ring":
            findings.append(
                everywhere(
                    "fabric_transport is 'socket', and in a ring no address is reached by every node over its own "
                    "cable, so that TCP goes over the management network",
                    "Set fabric_transport: auto",
                    "warning",
                )
            )

    def _check_prefixes(self, host: str, rails: Sequence[Rail], findings: list[Finding]) -> None:
        lengths = sorted({rail.prefix for rail in rails})
        if self.layout.topology == "ring" and len(lengths) > 1:
            findings.append(
                Finding(
                    host,
                    f"its subnets have the prefix lengths {', '.join(map(str, lengths))}, and NCCL finds the neighbour "
                    "of a half by one length for all (NCCL_IB_SUBNET_PREFIX_LEN)",
                    "Use subnets of one size",
                )
            )

    def _halves(self, findings: list[Finding]) -> dict[str, dict[Strand, tuple[Port, RdmaPort]]]:
        """For each node whose halves are all fit, the half on each of its strands."""
        links = {port: link for link in self.layout.links for port in link.ends}
        wanted: dict[Port, list[Strand]] = {}
        for strand in self.layout.strands:
            for port in strand.members:
                wanted.setdefault(port, []).append(strand)
        found: dict[str, dict[Strand, tuple[Port, RdmaPort]]] = {host: {} for host in self.nodes}
        unfit = set()
        for port, strands in wanted.items():
            host, number = port
            cage = cages.by_number(self.nodes[host], number)
            far = links[port].far(port)
            other = cages.by_number(self.nodes[far[0]], far[1]) if far is not None else None
            off = other is not None and any(cages.is_switched_off(half) for half in other.halves)
            places = [strand.half for strand in strands]
            halves = (
                cages.usable_halves(
                    self.nodes[host],
                    cage,
                    places,
                    transport=self.settings.transport,
                    far_is_off=off,
                    found=about(host, findings),
                )
                if cage is not None
                else {}
            )
            if not halves:
                unfit.add(host)
            for strand in strands if halves else ():
                found[host][strand] = (port, halves[strand.half])
        return {
            host: dict(sorted(own.items(), key=lambda item: (item[0].number, item[0].half)))
            for host, own in found.items()
            if host not in unfit
        }

    def _rails(
        self,
        host: str,
        halves: Mapping[Strand, tuple[Port, RdmaPort]],
        subnets: addresses.Subnets,
        findings: list[Finding],
    ) -> dict[Strand, Rail]:
        node, planned = self.nodes[host], []
        for index, (strand, (port, half)) in enumerate(halves.items()):
            subnet = subnets[strand.number, strand.half]
            cage = cages.by_number(node, port[1])
            neighbor = next((end[0] for end in strand.members if end[0] != host), "") if strand.edge else ""
            planned.append(
                Rail(
                    index=index,
                    cage=port[1],
                    pcie_path=half.pcie_path or "",
                    netdev=half.netdev or "",
                    rdma_device=half.rdma_device,
                    rdma_port=half.port,
                    address=str(subnet.network_address + self.settings.host_offset + node.rank),
                    prefix=subnet.prefixlen,
                    mtu=self.settings.mtu,
                    # Both halves are one cable; one of them may be administratively down and not know its speed.
                    link_gbps=cages.half_gbps(half) or (cages.gbps(cage) if cage is not None else 0.0),
                    segment=strand.segment,
                    neighbor=neighbor,
                    edge=strand.edge,
                )
            )
        return dict(zip(halves, addresses.explicit(host, node, planned, findings)))

    def _fact(self, host: str, rails: Sequence[Rail], used: Sequence[Network], findings: list[Finding]) -> FabricFact:
        node, found = self.nodes[host], about(host, findings)
        topology, ring, qos = self.layout.topology, self.layout.topology == "ring", self.settings.qos
        environment = fabric_environment.planned(
            node, rails, topology=topology, nodes=len(self.nodes), transport=self.transport, qos=qos
        )
        if self.transport == "rdma":
            environment.update(fabric_environment.address_range(node, rails, used, found))
        return FabricFact(
            host=host,
            state="planned",
            topology=topology,
            transport=self.transport,
            rank=node.rank,
            nodes=len(self.nodes),
            management_address=node.management_address,
            management_interface=node.management_interface,
            # In a ring no fabric address is reached by every node over its own cable.
            cluster_address=node.management_address if ring else rails[0].address,
            cluster_interface=node.management_interface if ring else rails[0].netdev,
            rails=tuple(rails),
            environment=fabric_environment.override(environment, node.environment, found, node, rails),
            qos=qos,
        )


# --- for people ------------------------------------------------------------------------------------------------------


_COLUMNS = ("node", "rank", "cage", "PCIe path", "interface", "RDMA device", "address", "MTU", "Gb/s")


def summary(facts: Mapping[str, FabricFact]) -> list[str]:
    """One line per rail, in columns; a single node is one sentence."""
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
    return lines + (columns(rows) if len(rows) > 1 else [])
