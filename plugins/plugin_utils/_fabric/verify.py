# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Who pings whom, and the verdict on what was measured: facts in state ``applied``, or every half that fails."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding, SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import arp, show_gids
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact, Rail
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.ping import Path, Probe
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.show_gids import Gid
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import environment as fabric_environment
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.addresses import network_of
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.types import Network, Plan, about

# In a subnet of this many nodes everybody pings everybody. Beyond it N^2 probes say nothing that a few per node do not.
ALL_PAIRS_UP_TO = 8

End = tuple[str, Rail]
Pair = tuple[str, str]


# --- who pings whom --------------------------------------------------------------------------------------------------


def _subnets(facts: Mapping[str, FabricFact]) -> dict[Network, list[End]]:
    """The rails that share each subnet, by rank: one subnet for each half of each cable or switch."""
    found: dict[Network, list[End]] = {}
    for fact in sorted(facts.values(), key=lambda fact: fact.rank):
        for rail in fact.rails:
            found.setdefault(network_of(rail), []).append((fact.host, rail))
    return found


def _chosen(ends: Sequence[End]) -> dict[str, list[End]]:
    """Whom each end of a subnet pings: all others, or in a large one the next and the previous rank and the first."""
    count = len(ends)
    found = {}
    for place, (host, _rail) in enumerate(ends):
        near = range(count) if count <= ALL_PAIRS_UP_TO else sorted({(place + 1) % count, (place - 1) % count, 0})
        found[host] = [ends[other] for other in near if other != place]
    return found


def paths(facts: Mapping[str, FabricFact]) -> dict[str, list[Path]]:
    """What each node pings (:class:`ping.Path`): every half to the peers in its subnet. Nodes that share
    no subnet do not ping each other."""
    found: dict[str, list[Path]] = {host: [] for host in facts}
    for ends in _subnets(facts).values():
        chosen = _chosen(ends)
        for host, mine in ends:
            found[host] += [
                Path(mine.index, mine.netdev, mine.address, peer, other.address, mine.mtu)
                for peer, other in chosen[host]
            ]
    for own in found.values():
        own.sort(key=lambda path: path.rail)
    return found


# --- the verdict -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """What a node found after the change."""

    gids: Sequence[Gid] = ()
    probes: Sequence[Probe] = ()
    holders: Sequence[arp.Holder] = ()


def verify(
    facts: Mapping[str, FabricFact],
    measured: Mapping[str, Measured],
    export_gid_index: bool = False,
    macs: Collection[str] = (),
) -> Plan:
    """Facts in state ``applied`` with the resolved GIDs; or every half that does not work, and facts in state
    ``applying``, which no later layer accepts. ``export_gid_index`` adds NCCL_IB_GID_INDEX, where one fits all halves
    of a node. ``macs``: of all ports of the cluster."""
    findings: list[Finding] = []
    _judge_holders(facts, measured, macs, findings)
    verified: dict[str, FabricFact] = {}
    gone = _judge_probes(facts, measured, findings)
    for host, fact in facts.items():
        node = measured.get(host, Measured())
        rails, environment = fact.rails, dict(fact.environment)
        if fact.transport == "rdma":
            rails = tuple(
                rail if (host, rail.index) in gone else _with_gid(fact, rail, node.gids, findings) for rail in rails
            )
            if export_gid_index:
                environment = fabric_environment.with_gid_index(environment, rails, about(host, findings))
        ordered = dict(sorted(environment.items()))
        verified[host] = replace(fact, state="applied", rails=rails, environment=ordered).with_hash()
    topology = next((fact.topology for fact in facts.values()), "")
    if findings:
        return Plan(topology, {host: replace(fact, state="applying") for host, fact in facts.items()}, findings, ())
    return Plan(topology, verified, findings, verdict(verified, measured))


def _judge_holders(
    facts: Mapping[str, FabricFact],
    measured: Mapping[str, Measured],
    macs: Collection[str],
    findings: list[Finding],
) -> None:
    """One finding for each address that somebody else has as well, whoever has heard it."""
    owners = {rail.address: (host, rail) for host, fact in facts.items() for rail in fact.rails}
    heard: dict[tuple[str, str], list[str]] = {}
    for host, node in measured.items():
        for holder in node.holders:
            if holder.mac not in macs and holder.address in owners:
                heard.setdefault((holder.address, holder.mac), []).append(host)
    for (address, mac), hosts in heard.items():
        owner, rail = owners[address]
        found = (
            f"{mac}, which is no port of this cluster, has the address {address} as well (heard by {', '.join(hosts)})"
        )
        findings.append(Finding(owner, found, arp.REMEDY, f"{rail.rdma_device} ({rail.netdev})"))


def _judge_probes(
    facts: Mapping[str, FabricFact], measured: Mapping[str, Measured], findings: list[Finding]
) -> set[tuple[str, int]]:
    """One finding per cause, not per ping: a bad cable fails towards every peer and back. Returns the halves (node and
    index of the rail) that have lost their address, and with it their GID."""
    gone: set[tuple[str, int]] = set()
    results = {(host, probe.rail, probe.peer): probe for host, node in measured.items() for probe in node.probes}
    silent: dict[str, set[str]] = {}
    for ends in _subnets(facts).values():
        failed: dict[Pair, Probe] = {}
        tested: set[Pair] = set()
        rails = dict(ends)
        for host, others in _chosen(ends).items():
            for peer, _rail in others:
                probe = results.get((host, rails[host].index, peer))
                if probe is None:
                    silent.setdefault(host, set()).add(peer)
                else:
                    tested.add((host, peer))
                    if not probe.ok:
                        failed[host, peer] = probe
        bare = _judge_addresses(rails, failed, findings)
        gone |= {(host, rails[host].index) for host in bare}
        if bare:
            tested = {pair for pair in tested if bare.isdisjoint(pair)}
            failed = {pair: probe for pair, probe in failed.items() if bare.isdisjoint(pair)}
        _judge_subnet(facts, rails, tested, failed, findings)
    for host, missing in silent.items():
        findings.append(
            Finding(
                host,
                f"{', '.join(sorted(missing))} {'was' if len(missing) == 1 else 'were'} not pinged",
                "Run the fabric layer again",
            )
        )
    return gone


def _judge_addresses(rails: Mapping[str, Rail], failed: Mapping[Pair, Probe], findings: list[Finding]) -> set[str]:
    """Nodes that have lost their address here. What their peers say of it (no answer) is no finding of its own."""
    bare = {host: probe for (host, _peer), probe in failed.items() if probe.cause == "no_address"}
    for host, probe in bare.items():
        reason, remedy = _usual([probe])
        findings.append(Finding(host, reason, remedy, f"{rails[host].rdma_device} ({rails[host].netdev})"))
    return set(bare)


def _judge_subnet(
    facts: Mapping[str, FabricFact],
    rails: Mapping[str, Rail],
    tested: set[Pair],
    failed: Mapping[Pair, Probe],
    findings: list[Finding],
) -> None:
    hosts = {host for pair in tested for host in pair}
    many = len(hosts) > 2
    lonely = {host for host in hosts if all(pair in failed for pair in tested if host in pair)} if many else set()
    if lonely == hosts and lonely:
        reason, remedy = _usual(failed.values())
        rail = next(iter(rails.values()))
        name = f"rail {rail.index}"
        findings.append(Finding("all nodes", f"no node reaches another one over {name}: {reason}", remedy, name))
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


def _usual(probes: Iterable[Probe]) -> tuple[str, str]:
    """Reason and remedy of most of them."""
    said = [(probe.reason or "no answer", probe.remedy or "Check the cable") for probe in probes]
    reasons = [reason for reason, _remedy in said]
    return next(pair for pair in said if pair[0] == max(reasons, key=reasons.count))


def _with_gid(fact: FabricFact, rail: Rail, gids: Sequence[Gid], findings: list[Finding]) -> Rail:
    try:
        gid = show_gids.of_rail(gids, rail, fact.address_range)
    except SparkError as exc:
        device = f"{rail.rdma_device} ({rail.netdev})"
        findings.append(Finding(fact.host, f"no GID for {rail.address}: {exc.found}", _gid_remedy(rail), device))
        return rail
    return replace(rail, gid_index=gid.index, gid=gid.gid)


def _gid_remedy(rail: Rail) -> str:
    return (
        f"Give {rail.netdev} no other IPv4 address. If it has none, the RDMA driver missed the change: run "
        f"ip link set {rail.netdev} down; ip link set {rail.netdev} up; then run the fabric layer again"
    )


def verdict(facts: Mapping[str, FabricFact], measured: Mapping[str, Measured]) -> list[str]:
    """What was verified, how fast it answered, and where the GIDs are: one index for all, and every half that has
    another."""
    halves = [(fact, rail) for fact in facts.values() for rail in fact.rails]
    if not halves:
        return []
    pings = sum(map(len, paths(facts).values()))
    times = sorted(probe.rtt_ms for node in measured.values() for probe in node.probes if probe.rtt_ms)
    spent = f" in {times[0]:g} to {times[-1]:g} ms" if times else ""
    lines = [
        f"{len(halves)} halves on {len(facts)} nodes work: {pings} pings of {halves[0][1].mtu} bytes were answered"
        f"{spent}, none of them fragmented"
    ]
    indices = [rail.gid_index for _fact, rail in halves if rail.gid_index is not None]
    if indices:
        usual = max(sorted(set(indices)), key=indices.count)
        others = [
            f"{rail.gid_index} on {fact.host} {rail.rdma_device}" for fact, rail in halves if rail.gid_index != usual
        ]
        lines.append(f"RoCE v2 GIDs hold the planned addresses, at index {', '.join([str(usual), *others])}")
    return lines
