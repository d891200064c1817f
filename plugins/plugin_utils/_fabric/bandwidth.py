# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Who measures what with whom, and when. Pure; runs once per play on the controller."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import show_gids
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.bandwidth import (
    BOTH_WAYS,
    LATENCY,
    PACKAGE,
    TOOL,
    WRITE,
    Look,
    Part,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact, Rail
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.ping import Path
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.show_gids import Gid

SETTINGS = ("auto", "never", "always", "everything")
RECORD_SCHEMA = 1

Ready = Mapping[str, Look]
End = tuple[str, Rail]
Round = Mapping[str, Sequence[Part]]


@dataclass(frozen=True)
class Schedule:
    """In each of ``rounds`` a node measures with one other. ``reason`` says why no rate is measured; it is empty when
    all is. ``gap``: nobody knows whether the fabric is as fast as it should be, and somebody could have measured it.
    ``no_infiniband``: the nodes that programs reach no RDMA device of."""

    rounds: Sequence[Round] = ()
    reason: str = ""
    gap: bool = False
    no_infiniband: Sequence[str] = ()


def schedule(
    test: str,
    facts: Mapping[str, FabricFact],
    *,
    paths: Mapping[str, Sequence[Path]],
    ready: Ready,
    changed: bool,
    forks: int,
    first_port: int,
    everything: bool = False,
) -> Schedule:
    """What every node has to do, or why nothing is measured.

    ``paths`` are those of the pings.
    ``everything``: also back, both halves together, both directions and the latency; of that the latency alone, which
    disturbs nobody, where an engine runs.
    """
    reason = _not_wanted(test, facts, ready, changed)
    if reason:
        return Schedule((), reason)
    reason = _not_possible(facts, ready, forks)
    if reason:
        # The layer itself lets that pass: it is no fault of the interfaces.
        without = [host for host in facts if not ready[host].verbs] if everything else []
        return Schedule((), reason, gap=True, no_infiniband=without)
    busy = _on([host for host in facts if ready[host].busy], facts)
    if busy:
        busy = f"the engine is running and would be disturbed {busy}"
    if busy and not everything:
        return Schedule((), busy, gap=True)
    rounds = _rounds(facts, paths, ready, first_port, _light if busy else _everything if everything else _quick)
    alone = "" if rounds else "no two nodes share a subnet"
    return Schedule(rounds, alone or busy, gap=bool(busy) or (bool(alone) and len(facts) > 1))


def _not_wanted(test: str, facts: Mapping[str, FabricFact], ready: Ready, changed: bool) -> str:
    if test == "never":
        return "fabric_bandwidth_test is never"
    if not any(fact.rails for fact in facts.values()):
        return "there is no fabric"
    if any(fact.transport != "rdma" for fact in facts.values()):
        return "the transport is socket"
    if test == "auto" and not changed and all(ready[host].measured == fact.plan_hash for host, fact in facts.items()):
        return "nothing has changed since the last measurement (fabric_bandwidth_test: always repeats it)"
    return ""


def _not_possible(facts: Mapping[str, FabricFact], ready: Ready, forks: int) -> str:
    for found, text in (
        ([host for host in facts if not ready[host].tool], f"{TOOL} is missing (install the package {PACKAGE})"),
        (
            [host for host in facts if not ready[host].verbs],
            "there is no /dev/infiniband, so no RDMA traffic is possible",
        ),
    ):
        if found:
            return f"{text} {_on(found, facts)}"
    if forks < len(facts):
        return (
            f"both ends must work at the same time, and Ansible runs {forks} nodes at once (set --forks {len(facts)})"
        )
    return ""


def _on(found: Sequence[str], facts: Mapping[str, FabricFact]) -> str:
    return f"on {'all nodes' if len(found) == len(facts) else ', '.join(found)}" if found else ""


# --- what two nodes measure with each other --------------------------------------------------------------------------

Step = tuple[str, bool, Sequence[int]]  # test, whether the one of the lower rank writes, which of the shared halves


def _quick(halves: int) -> Iterator[Step]:
    for half in range(halves):
        yield WRITE, False, (half,)


def _light(halves: int) -> Iterator[Step]:
    for half in range(halves):
        yield LATENCY, False, (half,)


def _everything(halves: int) -> Iterator[Step]:
    for half in range(halves):
        yield from ((LATENCY, False, (half,)), (WRITE, False, (half,)), (WRITE, True, (half,)))
    every = tuple(range(halves))
    if halves > 1:
        yield from ((WRITE, False, every), (WRITE, True, every))
    yield BOTH_WAYS, False, every


def _rounds(
    facts: Mapping[str, FabricFact],
    paths: Mapping[str, Sequence[Path]],
    ready: Ready,
    first_port: int,
    steps: Any,
) -> list[dict[str, list[Part]]]:
    """Every pair once, in rounds in which no node has two: what goes wrong in one pair delays no other."""
    owners = {rail.address: (host, rail) for host, fact in facts.items() for rail in fact.rails}
    pairs: dict[tuple[str, str], dict[tuple[str, str], tuple[End, End]]] = {}
    for entries in paths.values():
        for path in entries:
            ends = [owners[address] for address in (path.source, path.address) if address in owners]
            if len(ends) == 2:
                one, other = sorted(ends, key=lambda end: facts[end[0]].rank)
                pairs.setdefault((one[0], other[0]), {})[one[1].address, other[1].address] = (one, other)
    rounds: list[dict[str, list[Part]]] = []
    for (low, high), shared in sorted(pairs.items(), key=lambda pair: tuple(facts[host].rank for host in pair[0])):
        free = next((one for one in rounds if low not in one and high not in one), None)
        if free is None:
            free = {}
            rounds.append(free)
        halves = sorted(shared.values(), key=lambda ends: ends[0][1].index)
        free[low], free[high] = _parts(facts, ready, halves, first_port, steps)
    return rounds


def _parts(
    facts: Mapping[str, FabricFact], ready: Ready, halves: Sequence[tuple[End, End]], first_port: int, steps: Any
) -> tuple[list[Part], list[Part]]:
    lower: list[Part] = []
    higher: list[Part] = []
    for slot, (test, forth, chosen) in enumerate(steps(len(halves))):
        for half in chosen:
            one, other = halves[half]
            # A port of its own: a client that is early must not meet the server of the slot before.
            common = {
                "slot": slot,
                "test": test,
                "tcp_port": first_port + len(lower),
                "software": any(rail.rdma_device in ready[host].software for host, rail in (one, other)),
            }
            roles = ("client", "server") if forth else ("server", "client")
            lower.append(_part(facts, ready, one, other, role=roles[0], **common))
            higher.append(_part(facts, ready, other, one, role=roles[1], **common))
    return lower, higher


def _part(facts: Mapping[str, FabricFact], ready: Ready, mine: End, other: End, **common: Any) -> Part:
    (host, rail), (peer, far) = mine, other
    gid = gid_of(facts[host], rail, ready[host])
    return Part(
        rail=rail.index,
        device=rail.rdma_device,
        port=rail.rdma_port,
        netdev=rail.netdev,
        gid_index=rail.gid_index if gid is None else gid.index,
        source=rail.address,
        peer=peer,
        address=far.address,
        **common,
    )


def gid_of(fact: FabricFact, rail: Rail, ready: Look) -> Gid | None:
    """The entry of the half's GID table that NCCL takes now; None where it finds none for the half's address."""
    try:
        return show_gids.of_rail(ready.gids or (), rail, fact.address_range)
    except SparkError:
        return None


# --- what is kept ----------------------------------------------------------------------------------------------------


def record(fact: FabricFact, halves: Sequence[Mapping[str, Any]]) -> str:
    """The text of the file with the last measurement."""
    document = {"schema": RECORD_SCHEMA, "plan_hash": fact.plan_hash, "halves": list(halves)}
    return json.dumps(document, indent=2, sort_keys=True) + "\n"
