# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What the figures of NCCL mean: which way the bytes went, over which halves, how fast, and whether they arrived."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._nccl.log import Log
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._nccl.results import Results, Row
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._nccl.run import Answer
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import (
    FAIL,
    PASS,
    WARN,
    Limit,
    Nccl,
    Size,
    Verdict,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.table import passed, unknown, verdict

GIB = 2**30
# NVIDIA's figures are those of 4 GiB and more. Every rank has the same number of elements, so a size that their number
# does not divide is a little smaller.
JUDGED = 4 * GIB
ROUNDED = 2**20
TELLING = GIB // 4  # less than this says nothing
THREE = 3  # machines in the largest ring that NVIDIA has measured
PAIR = 2
# A completion for which there is no request (NCCL's source has "retreive"), and one that nobody acknowledged.
_LOST = re.compile(r"(?i)net_ib/p2p\.cc|could not ret\w+ a request|IBV_WC_RETRY_EXC_ERR|status=12\b")
WAYS = {"SHM": "shared memory", "P2P": "P2P, from GPU to GPU"}
RATE, TRANSPORT, HALVES, VALUES = "nccl_rate", "nccl_transport", "nccl_halves", "nccl_values"


@dataclass(frozen=True)
class Found:
    """One run, of our own or of somebody's. ``moved``: bytes by host and RDMA device, -1 where not counted."""

    results: tuple[Results, ...] = ()
    hosts: tuple[str, ...] = ()  # in the order of the ranks
    logs: Mapping[str, Log] = field(default_factory=dict)  # by host
    moved: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    trouble: Mapping[str, str] = field(default_factory=dict)  # by host

    @property
    def log(self) -> Log:
        """The most telling one: where one rank goes another way than the others, the pair does."""
        known = [log for log in self.logs.values() if log.transport]
        between = [
            log for log in known if log.between_nodes
        ]  # ranks of one machine may only say how they reach each other
        return min(between or known, key=lambda log: log.over_rdma, default=next(iter(self.logs.values()), Log()))


@dataclass(frozen=True)
class Judged:
    verdicts: tuple[Verdict, ...] = ()
    figures: tuple[Nccl, ...] = ()

    def __add__(self, other: Judged) -> Judged:
        return Judged((*self.verdicts, *other.verdicts), (*self.figures, *other.figures))


def from_ranks(answers: Mapping[str, Answer], facts: Mapping[str, FabricFact]) -> Found:
    hosts = tuple(sorted(answers, key=lambda host: facts[host].rank))
    results = next((answers[host].results for host in hosts if answers[host].results), ())
    return Found(
        tuple(replace(result, hosts=hosts, nccl=result.nccl or answers[hosts[0]].log.version) for result in results),
        hosts,
        {host: answers[host].log for host in hosts},
        {host: answers[host].moved for host in hosts if answers[host].moved},
        {host: answers[host].trouble for host in hosts if answers[host].trouble},
    )


def from_text(results: Sequence[Results], log: Log) -> Found:
    """Output of nccl-tests that the user has; hosts are named there as they name themselves."""
    hosts = tuple(dict.fromkeys(host for result in results for host in result.hosts))
    told = {hosts[0] if hosts else "": log} if log != Log() else {}
    return Found(tuple(results), hosts, told)


def not_measured(reason: str, hosts: Sequence[str]) -> Judged:
    return Judged((unknown(RATE, "cluster", f"NCCL was not measured: {reason}", hosts),))


def judge(found: Found, facts: Mapping[str, FabricFact], limits: Mapping[str, Limit]) -> Judged:
    """All verdicts about one run. What explains a low rate is one verdict, and the rate then none of its own."""
    planned = any(fact.transport == "rdma" for fact in facts.values())
    measured = [result for result in found.results if result.rows]
    if not measured:
        return _failed(found, facts, planned)
    halves = _halves(found, facts, limits)
    verdicts: list[Verdict] = []
    if any(result.backend != "nccl" for result in measured):
        shown = f"the engine's torch sees no GPU; over {measured[0].backend} {_rates(measured)}"
        return Judged(not_measured(shown, found.hosts).verdicts, _figures(found, measured))
    outside = any(name.startswith("NET/") for name in found.log.via)
    inside = bool(found.log.via) and not outside
    alone = [
        result for result in measured if result.ranks == 1 or inside or (len(set(result.hosts)) == 1 and not outside)
    ]
    if alone:
        return Judged((_single_rank(found, alone),), _figures(found, measured))
    if not outside and not all(result.ranks for result in measured):
        said = f"it does not say on which machines it ran ({_rates(measured)})"
        return Judged(not_measured(said, found.hosts).verdicts, _figures(found, measured))
    wrong = sum(result.wrong for result in measured)
    verdicts.append(
        verdict(VALUES, "cluster", f"{wrong} elements had a wrong value", "nccl_wrong_values", found.hosts)
        if wrong
        else passed(VALUES, "cluster", "all values were right", found.hosts)
    )
    way = _way(found, planned, measured)
    verdicts += [one for one in (way, halves if planned else None) if one]
    explained = any(one.outcome == FAIL for one in verdicts[1:])
    for result in measured:
        made = _rate(found, result, limits if planned else None, halves, facts)
        if not explained or made.outcome == PASS:
            verdicts.append(made)
    if not explained:
        verdicts += _ended_early(found, facts, planned)
    return Judged(tuple(verdicts), _figures(found, measured))


# --- the parts -------------------------------------------------------------------------------------------------------


def _failed(found: Found, facts: Mapping[str, FabricFact], planned: bool) -> Judged:
    """No figure. NCCL has often said why."""
    cause, said = _said(found, facts, planned)
    if not cause:
        return not_measured(said, found.hosts)
    return Judged((_trouble(found, cause, f"the test of NCCL ended without a result: {said}"),))


def _ended_early(found: Found, facts: Mapping[str, FabricFact], planned: bool) -> list[Verdict]:
    """Figures of the first sizes or tests are no word about those that did not come."""
    if not any(found.trouble.values()) and not any(result.trouble for result in found.results):
        return []
    cause, said = _said(found, facts, planned)
    text = f"the test of NCCL did not end well, so not all of it was measured: {said}"
    if cause:
        return [_trouble(found, cause, text)]
    return [unknown(RATE, "cluster", text[:500], found.hosts, evidence=_evidence(found))]


def _trouble(found: Found, cause: str, text: str) -> Verdict:
    where = next((host for host, log in found.logs.items() if log.trouble or log.no_interface), "")
    hosts = [where] if where and cause in ("nccl_no_interface", "memlock") else found.hosts
    return verdict(TRANSPORT, "cluster", text[:500], cause, hosts, outcome=FAIL, evidence=_evidence(found))


def _said(found: Found, facts: Mapping[str, FabricFact], planned: bool) -> tuple[str, str]:
    """The cause of a failure, empty where the words about it tell none; and these words."""
    logs = found.logs.values()
    trouble = [*(line for log in logs for line in log.trouble), *found.trouble.values()]
    trouble += [result.trouble for result in found.results if result.trouble]
    said = "; ".join(filter(None, dict.fromkeys(trouble))) or "it printed no result"
    opposite = _is_ring(facts) and len(found.hosts or facts) > THREE  # nodes that share no cable
    everything = " ".join(trouble)
    no_queue_pair = "ibv_modify_qp failed" in everything
    lost = no_queue_pair or bool(_LOST.search(" ".join([everything, *(line for log in logs for line in log.evidence)])))
    causes = {
        "nccl_no_interface": any(log.no_interface for log in logs),
        "tree_on_ring": "ncclTransportTreeConnect" in everything
        # NCCL connects what it uses first: a tree that is not connected is no fault of its own.
        or (opposite and no_queue_pair and any(log.rings and not log.trees for log in logs)),
        "memlock": bool(re.search(r"ibv_(reg_mr|create_(cq|qp)).*Cannot allocate memory", everything)),
        "wrong_cage": lost and _same_cages(facts),
        "gid_mismatch": no_queue_pair,
        "no_infiniband": planned and any(log.no_device and not log.via for log in logs),
    }
    return next((name for name, true in causes.items() if true), ""), said


def _is_ring(facts: Mapping[str, FabricFact]) -> bool:
    return any(fact.topology == "ring" for fact in facts.values())


def _same_cages(facts: Mapping[str, FabricFact]) -> bool:
    """Whether a cable of a ring leads to a cage of the same number."""
    ends: dict[str, dict[str, int]] = {}
    for host, fact in facts.items():
        for rail in fact.rails if fact.topology == "ring" else ():
            ends.setdefault(rail.edge, {})[host] = rail.cage
    return any(len(cages) == PAIR and len(set(cages.values())) == 1 for cages in ends.values())


def _limit(result: Results, facts: Mapping[str, FabricFact], limits: Mapping[str, Limit]) -> Limit:
    """Two neighbours in a ring are a pair."""
    if not _is_ring(facts) or len(set(result.hosts)) == PAIR:
        return limits["nccl_pair_gbs"]
    return limits["nccl_large_ring_gbs" if max(result.ranks, len(facts)) > THREE else "nccl_ring_gbs"]


def _single_rank(found: Found, alone: Sequence[Results]) -> Verdict:
    result = alone[0]
    over = f" over {_way_named(found.log.transport)}" if found.log.transport and not found.log.between_nodes else ""
    what = "one rank" if result.ranks == 1 else f"{result.ranks or 'all'} ranks on one machine{over}"
    return verdict(
        RATE,
        "cluster",
        f"{_name(result)} ran with {what}: {_shown(result)} is the speed of the memory, and says nothing of the fabric",
        "single_rank_trap",
        found.hosts,
        evidence=_evidence(found),
    )


def _way(found: Found, planned: bool, measured: Sequence[Results]) -> Verdict | None:
    """The network that NCCL took; None where nobody planned RDMA."""
    if not planned:
        return None
    log = found.log
    if not log.transport:
        return unknown(
            TRANSPORT,
            "cluster",
            "which network NCCL took is not in the output",
            found.hosts,
            remedy="Run it again with NCCL_DEBUG=INFO",
        )
    if log.over_rdma:
        return passed(TRANSPORT, "cluster", f"NCCL used {log.transport}", found.hosts)
    outside = log.plugin or log.plugin_missing
    because = f", and the plug-in {outside} {'was loaded' if log.plugin else 'was not found'}" if outside else ""
    return verdict(
        TRANSPORT,
        "cluster",
        f"NCCL used {log.transport}, and RDMA is planned{because}: {_rates(measured)}",
        "plugin_fallback" if outside else "tcp_fallback",
        found.hosts,
        value=max(result.largest.bus_gbs for result in measured if result.largest),
        evidence=_evidence(found),
    )


def _halves(found: Found, facts: Mapping[str, FabricFact], limits: Mapping[str, Limit]) -> Verdict | None:
    """By the counters of each half, else by what NCCL said; None where there is one half, or nothing is known."""
    limit = limits["half_share"]
    counts: list[str] = []
    for host, devices in found.moved.items():
        total = sum(devices.values())
        if min(devices.values(), default=-1) < 0 or not total:
            continue
        counts.append(host)
        if len(devices) < PAIR:
            continue
        least, share = min(((device, size / total) for device, size in devices.items()), key=lambda one: one[1])
        fair = limit.value * PAIR / len(devices)  # the limit is that of two halves
        if share < fair:
            shown = ", ".join(f"{device} {size / total:.0%}" for device, size in devices.items())
            return verdict(
                HALVES,
                "half",
                f"the halves of {host} did not carry the same: {shown} of {total / 1e9:.1f} GB",
                "one_half_only",
                [host],
                device=least,
                value=round(share, 3),
                limit=replace(limit, value=round(fair, 3)),
                evidence=_evidence(found),
            )
    if counts:
        silent = [host for host in found.hosts if host not in counts]
        if silent:
            return unknown(HALVES, "half", f"what each half carried was counted on {', '.join(counts)} only", silent)
        return passed(HALVES, "half", "all halves carried their share", found.hosts)
    wanted = max((len(fact.rails) for fact in facts.values()), default=0)
    if _is_ring(facts) and len(set(found.hosts)) == PAIR:
        wanted = PAIR  # two neighbours share one cable
    used = found.log.used or found.log.devices
    if not used or not found.log.over_rdma:
        return None
    if len(used) < wanted:
        return verdict(
            HALVES,
            "half",
            f"NCCL used {', '.join(used)}, and {wanted} halves are planned",
            "one_half_only",
            found.hosts,
            value=len(used),
            evidence=_evidence(found),
        )
    return passed(HALVES, "half", f"NCCL used {', '.join(used)}", found.hosts)


def _rate(
    found: Found,
    result: Results,
    limits: Mapping[str, Limit] | None,
    halves: Verdict | None,
    facts: Mapping[str, FabricFact],
) -> Verdict:
    """Without ``limits`` sockets are planned."""
    largest = result.largest or Row(0, 0, 0, 0)
    value = round(largest.bus_gbs, 2)
    text = f"{_name(result)} between {result.ranks} ranks: {_shown(result)}"
    if limits is None:
        return passed(RATE, "cluster", f"{text}; sockets are planned", found.hosts, value=value)
    limit = _limit(result, facts, limits)
    if value >= limit.value:
        return passed(RATE, "cluster", text, found.hosts, value=value, limit=limit)
    small = largest.bytes < JUDGED - ROUNDED
    if small and (largest.bytes < TELLING or value >= limits["nccl_small_share"].value * limit.value):
        return unknown(
            RATE,
            "cluster",
            f"{text}; the limit is that of {JUDGED // GIB} GiB and more",
            found.hosts,
            value=value,
            limit=limit,
            remedy="Measure with larger sizes",
        )
    log = found.log
    cause = "nccl_slow"
    rails = [rail for fact in facts.values() for rail in fact.rails]
    slow = [rail for rail in rails if 0 < rail.link_gbps < limits["rate_gbps"].value]
    everywhere = log.over_rdma and halves is not None and halves.outcome == PASS
    if log.development:
        cause = "nccl_development_build"
        text = f"{text}, with NCCL {' '.join(word for word in (log.version, log.branch) if word)}"
    elif everywhere and value < limits["nccl_degraded_share"].value * limit.value:
        cause = "nic_degraded"
        text = f"{text}, over {log.transport} and all halves"
    elif slow:
        cause = "link_100g"
        text = f"{text}, over links of {slow[0].link_gbps:g} Gb/s"
    elif len(rails) == len(facts):
        cause = "one_half_only"
        text = f"{text}; the fabric has one half per machine"
    return verdict(
        RATE,
        "cluster",
        text,
        cause,
        found.hosts,
        outcome=WARN if value >= limits["nccl_near_share"].value * limit.value else FAIL,
        value=value,
        limit=limit,
        evidence=_evidence(found),
    )


def _figures(found: Found, measured: Sequence[Results]) -> tuple[Nccl, ...]:
    log = found.log
    moving = [sum(size > 0 for size in devices.values()) for devices in found.moved.values()]
    return tuple(
        Nccl(
            test=_name(result),
            hosts=tuple(dict.fromkeys(result.hosts)),
            ranks=result.ranks,
            version=log.version or result.nccl,
            transport=result.backend if result.backend != "nccl" else log.transport,
            halves=min(moving, default=0) or len(log.used),
            average_gbs=round(result.average_gbs, 3),
            largest_gbs=round(result.largest.bus_gbs, 3) if result.largest else 0,
            sizes=tuple(
                Size(row.bytes, row.microseconds, row.algorithm_gbs, row.bus_gbs, row.wrong) for row in result.rows
            ),
        )
        for result in measured
    )


# --- words -----------------------------------------------------------------------------------------------------------


def lines(figures: Sequence[Nccl]) -> list[str]:
    """For the screen."""
    return [
        f"{nccl.test} between {nccl.ranks} ranks: {nccl.largest_gbs:g} GB/s with {_size(nccl.sizes[-1].bytes)},"
        f" {nccl.average_gbs:g} on average{f', over {_way_named(nccl.transport)}' if nccl.transport else ''}"
        for nccl in figures
    ] or ["NCCL was not measured"]


def _evidence(found: Found) -> tuple[str, ...]:
    return tuple(dict.fromkeys(line for log in found.logs.values() for line in log.evidence))[:16]


def _name(result: Results) -> str:
    return result.test or "a collective"


def _shown(result: Results) -> str:
    largest = result.largest
    return f"{largest.bus_gbs:.2f} GB/s with {_size(largest.bytes)}" if largest else "nothing"


def _way_named(transport: str) -> str:
    return WAYS.get(transport, transport)


def _rates(measured: Sequence[Results]) -> str:
    return ", ".join(f"{_name(result)} {_shown(result)}" for result in measured)


def _size(count: int) -> str:
    for unit, size in (("GiB", GIB), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:g} {unit}" if count % size == 0 else f"{count / size:.1f} {unit}"
    return f"{count} B"
