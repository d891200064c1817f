# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Who writes to whom, when, and what the rates mean. Pure; runs once per play on the controller."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.bandwidth import PACKAGE, TOOL, Part
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact, Rail

SETTINGS = ("auto", "never", "always")
RECORD_SCHEMA = 1
DEGRADED_REMEDY = (
    "Reboot both nodes with the cable attached; if that does not help, switch both off, take them off power for a "
    "minute and start them with the cable attached"
)


@dataclass(frozen=True)
class Thresholds:
    """Gb/s of one half; the defaults and their sources are those of the role ``fabric``."""

    good_gbps: float = 90.0
    least_gbps: float = 25.0


@dataclass(frozen=True)
class Schedule:
    """``reason`` says why nothing is measured; it is empty when ``tests`` are to be made. ``gap``: nobody knows whether
    the fabric is as fast as it should be, and somebody could have measured it."""

    tests: Mapping[str, Sequence[Part]]
    reason: str = ""
    gap: bool = False


def schedule(
    test: str,
    facts: Mapping[str, FabricFact],
    *,
    paths: Mapping[str, Sequence[Mapping[str, Any]]],
    ready: Mapping[str, Mapping[str, Any]],
    changed: bool,
    forks: int,
    first_port: int,
) -> Schedule:
    """What every node has to do, or why nothing is measured.

    ``paths`` are those of the pings, ``ready`` is what :func:`_fabric.bandwidth.look` found on each node.
    """
    reason = _not_wanted(test, facts, ready, changed)
    if reason:
        return Schedule({}, reason)
    reason = _not_possible(facts, ready, forks)
    if reason:
        return Schedule({}, reason, gap=True)
    tests = _pair(facts, paths, ready, first_port)
    return Schedule(tests, "" if any(tests.values()) else "no two nodes share a subnet")


def _not_wanted(
    test: str, facts: Mapping[str, FabricFact], ready: Mapping[str, Mapping[str, Any]], changed: bool
) -> str:
    if test == "never":
        return "fabric_bandwidth_test is never"
    if not any(fact.rails for fact in facts.values()):
        return "there is no fabric"
    if any(fact.transport != "rdma" for fact in facts.values()):
        return "the transport is socket"
    if test == "auto" and not changed and all(_is_recorded(fact, ready[host]) for host, fact in facts.items()):
        return "nothing has changed since the last measurement (fabric_bandwidth_test: always repeats it)"
    return ""


def _not_possible(facts: Mapping[str, FabricFact], ready: Mapping[str, Mapping[str, Any]], forks: int) -> str:
    for found, text in (
        ([h for h in facts if not ready[h].get("tool")], f"{TOOL} is missing (install the package {PACKAGE})"),
        (
            [h for h in facts if not ready[h].get("verbs")],
            "there is no /dev/infiniband, so no RDMA traffic is possible",
        ),
        ([h for h in facts if ready[h].get("busy")], "the engine is running and would be disturbed"),
    ):
        if found:
            return f"{text} on {'all nodes' if len(found) == len(facts) else ', '.join(found)}"
    if forks < len(facts):
        return (
            f"both ends must work at the same time, and Ansible runs {forks} nodes at once (set --forks {len(facts)})"
        )
    return ""


def _is_recorded(fact: FabricFact, ready: Mapping[str, Any]) -> bool:
    record = ready.get("record")
    return isinstance(record, Mapping) and record.get("plan_hash") == fact.plan_hash


def _pair(
    facts: Mapping[str, FabricFact],
    paths: Mapping[str, Sequence[Mapping[str, Any]]],
    ready: Mapping[str, Mapping[str, Any]],
    first_port: int,
) -> dict[str, list[Part]]:
    """Every path once, in slots in which no node has two tests: a node measures one half at a time."""
    owners = {rail.address: (host, rail) for host, fact in facts.items() for rail in fact.rails}
    pairs: dict[tuple[str, str], tuple[tuple[str, Rail], tuple[str, Rail]]] = {}
    for entries in paths.values():
        for path in entries:
            ends = [owners[str(path[key])] for key in ("source", "address") if str(path.get(key)) in owners]
            if len(ends) == 2:
                one, other = sorted(ends, key=lambda end: facts[end[0]].rank)
                pairs[one[1].address, other[1].address] = (one, other)
    tests: dict[str, list[Part]] = {host: [] for host in facts}
    busy: list[set[str]] = []
    for (server, server_rail), (client, client_rail) in sorted(
        pairs.values(), key=lambda pair: (pair[0][1].index, facts[pair[0][0]].rank, facts[pair[1][0]].rank)
    ):
        slot = next((n for n, hosts in enumerate(busy) if not hosts & {server, client}), len(busy))
        if slot == len(busy):
            busy.append(set())
        busy[slot] |= {server, client}
        # A port per slot: a client that is early must not meet the server of the slot before.
        soft = _is_software(ready[server], server_rail) or _is_software(ready[client], client_rail)
        tests[server].append(
            _test(slot, "server", server_rail, client, client_rail, first_port=first_port, software=soft)
        )
        tests[client].append(
            _test(slot, "client", client_rail, server, server_rail, first_port=first_port, software=soft)
        )
    return {host: sorted(own, key=lambda test: test.slot) for host, own in tests.items()}


def _is_software(ready: Mapping[str, Any], rail: Rail) -> bool:
    return rail.rdma_device in (ready.get("software") or ())


def _test(slot: int, role: str, mine: Rail, peer: str, other: Rail, *, first_port: int, software: bool) -> Part:
    return Part(
        slot=slot,
        role=role,
        rail=mine.index,
        device=mine.rdma_device,
        port=mine.rdma_port,
        gid_index=mine.gid_index,
        source=mine.address,
        peer=peer,
        address=other.address,
        tcp_port=first_port + slot,
        software=software,
    )


# --- verdict ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """``records`` maps hosts to the text of the file that is kept; empty when a half failed."""

    findings: Sequence[Finding]
    summary: Sequence[str]
    records: Mapping[str, str]

    @property
    def refused(self) -> bool:
        return any(finding.severity == "error" for finding in self.findings)


def judge(
    facts: Mapping[str, FabricFact],
    tests: Mapping[str, Sequence[Part]],
    outcomes: Mapping[str, Sequence[Mapping[str, Any]]],
    thresholds: Thresholds,
) -> Verdict:
    """Every measurement against the thresholds. Soft RoCE has only to run: its rate is that of the processor."""
    found = {(host, int(entry["slot"])): entry for host, entries in outcomes.items() for entry in entries}
    findings: list[Finding] = []
    summary: list[str] = []
    kept: dict[str, list[dict[str, Any]]] = {host: [] for host in facts}
    for host, own in tests.items():
        for test in own:
            if test.role != "client":
                continue
            there = next(other for other in tests[test.peer] if other.slot == test.slot)
            soft = test.software
            ends = f"{host} {test.device} to {test.peer} {there.device}"
            entry, answer = found.get((host, test.slot), {}), found.get((test.peer, test.slot), {})
            gbps = entry.get("gbps")
            if gbps is None or gbps <= 0:
                findings.append(_no_result(host, test, entry, answer))
                summary.append(f"{ends}: no result")
                continue
            summary.append(f"{ends}: {gbps:g} Gb/s{' (soft RoCE: not judged)' if soft else ''}")
            for name, device, peer in ((host, test.device, test.peer), (test.peer, there.device, host)):
                kept[name].append({"device": device, "peer": peer, "rail": test.rail, "gbps": gbps, "software": soft})
            finding = None if soft else _too_slow(host, test, there.device, gbps, thresholds)
            if finding:
                findings.append(finding)
    failed = any(finding.severity == "error" for finding in findings)
    records = {} if failed else {host: _record(facts[host], own) for host, own in kept.items()}
    return Verdict(findings, summary, records)


def _no_result(host: str, test: Part, entry: Mapping[str, Any], answer: Mapping[str, Any]) -> Finding:
    nothing = "no result came back" if entry.get("gbps") is None else "the test ran and carried nothing"
    reason, remedy = entry.get("reason") or nothing, entry.get("remedy") or "Run the fabric layer again"
    there = f"; {test.peer} says: {answer['reason']}" if answer.get("reason") else ""
    return Finding(host, f"RDMA writes to {test.peer} {test.address} do not work: {reason}{there}", remedy, test.device)


def _too_slow(host: str, test: Part, far_device: str, gbps: float, thresholds: Thresholds) -> Finding | None:
    text = f"RDMA writes to {test.peer} {far_device} reach {gbps:g} Gb/s"
    if gbps < thresholds.least_gbps:
        return Finding(
            host,
            f"{text}, under {thresholds.least_gbps:g}: one of the two ConnectX-7 has not initialised properly, which "
            "happens when a cable is plugged in while the node runs. No link state shows it",
            DEGRADED_REMEDY,
            test.device,
        )
    if gbps < thresholds.good_gbps:
        return Finding(
            host,
            f"{text}, expected {thresholds.good_gbps:g} or more",
            "Look for a PCIe link below Gen5 x4, a 100G cable or switch port, or traffic of others; measure again with "
            "fabric_bandwidth_test: always",
            test.device,
            "warning",
        )
    return None


def _record(fact: FabricFact, halves: Sequence[Mapping[str, Any]]) -> str:
    document = {"schema": RECORD_SCHEMA, "plan_hash": fact.plan_hash, "halves": list(halves)}
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def as_dicts(tests: Mapping[str, Sequence[Part]]) -> dict[str, list[dict[str, Any]]]:
    return {host: [asdict(test) for test in own] for host, own in tests.items()}
