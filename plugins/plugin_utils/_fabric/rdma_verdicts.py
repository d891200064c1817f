# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What RDMA between the machines has measured, and what a rate that is too low comes from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import counters
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.bandwidth import (
    BOTH_WAYS,
    LATENCY,
    WRITE,
    Measured,
    Outcome,
    Part,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact, Rail
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.ibdev2netdev import RdmaPort
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.ping import Probe
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import (
    FAIL,
    PASS,
    WARN,
    Limit,
    Rdma,
    Verdict,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.bandwidth import (
    Ready,
    Schedule,
    gid_of,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.table import RULES, passed, unknown, verdict

# RDMA packets are 256 to 4096 bytes, and have at most this many bytes of headers in a packet of the interface.
RDMA_MTUS, HEADERS = (4096, 2048, 1024, 512, 256), 96
FEW = 10  # lost packets that are no loss to speak of, whatever else was moved
RATE, LINK, DELAY, LOSS, PAUSE, GID, MTU = (
    "rdma_rate",
    "rdma_together",
    "rdma_latency",
    "rdma_loss",
    "rdma_pause",
    "gid",
    "rdma_mtu",
)
# Nothing at the slow half itself tells why.
UNEXPLAINED = frozenset({"nic_degraded", "rdma_slow"})
# What a node says of a test without a result, where it is not a cause itself.
ALSO_CALLED = {"no_device": "one_half_only"}

Answers = Mapping[str, Sequence[Measured]]  # by host: its answer of each round
Limits = Mapping[str, Limit]


@dataclass(frozen=True)
class Sample:
    """One test between two nodes. ``ends``: for each half the part of ``host``, which wrote, and that of ``peer``."""

    round: int
    host: str
    peer: str
    test: str
    ends: tuple[tuple[Part, Part], ...]
    found: tuple[Outcome | None, ...]  # what ``host`` says, by half; None where nothing came back
    there: tuple[Outcome | None, ...]  # what ``peer`` says

    @property
    def values(self) -> list[float]:
        return [answer.value for answer in self.found if answer and answer.value]

    @property
    def complete(self) -> bool:
        return len(self.values) == len(self.ends)

    @property
    def software(self) -> bool:
        return any(mine.software for mine, _other in self.ends)

    @property
    def pair(self) -> tuple[str, str]:
        return (min(self.host, self.peer), max(self.host, self.peer))

    @property
    def halves(self) -> tuple[str, ...]:
        return tuple(mine.device for mine, _other in self.ends)


@dataclass(frozen=True)
class Seen:
    """All that is known when a figure is judged."""

    facts: Mapping[str, FabricFact]
    ready: Ready
    answers: Answers
    limits: Limits
    pings: Mapping[str, Sequence[Probe]] = field(default_factory=dict)

    def rail(self, host: str, device: str) -> Rail:
        return next(rail for rail in self.facts[host].rails if rail.rdma_device == device)

    def port(self, host: str, device: str) -> RdmaPort:
        ports = self.ready[host].ports if host in self.ready else ()
        return next((port for port in ports if port.rdma_device == device), RdmaPort(device, 1))

    def answer(self, host: str, number: int) -> Measured:
        told = self.answers.get(host, ())
        return told[number] if number < len(told) else Measured()


@dataclass(frozen=True)
class Judged:
    verdicts: tuple[Verdict, ...]
    rdma: tuple[Rdma, ...]
    samples: tuple[Sample, ...]


def judge(schedule: Schedule, seen: Seen) -> Judged:
    """Soft RoCE has only to run: its figures are those of the processor."""
    samples = list(_samples(schedule, seen))
    verdicts = [*_not_measured(schedule), *_gids(seen)]
    without_gid = {(one.hosts[0], one.device) for one in verdicts if one.check == GID}
    halves = list(_halves(samples, seen, without_gid))
    verdicts += _attributed(halves, samples)
    troubled = {half.hosts for half in halves if half.outcome != PASS}
    verdicts += _together(samples, seen, troubled)
    verdicts += _latency(samples, seen, beside_an_engine=schedule.gap)
    verdicts += _mtu(samples, seen)
    verdicts += _counted(
        schedule, seen, {(one.cause, line.partition(":")[0]) for one in verdicts for line in one.evidence}
    )
    return Judged(tuple(verdicts), (*_measured(samples), *_pinged(seen)), tuple(samples))


# --- what was measured -----------------------------------------------------------------------------------------------


def _samples(schedule: Schedule, seen: Seen) -> Iterator[Sample]:
    """Every test of every pair, but for those on a half that had failed before: those were not tried."""
    for number, own in enumerate(schedule.rounds):
        said = {
            (host, answer.slot, answer.rail): answer for host in own for answer in seen.answer(host, number).outcomes
        }
        for host, parts in own.items():
            peer = parts[0].peer
            if host > peer:
                continue  # the other end brings both
            broken: set[int] = set()
            back = {(part.slot, part.source): part for part in own[peer]}
            for slot, group in groupby(parts, key=lambda part: part.slot):
                mine = list(group)
                ends = [(part, back[slot, part.address]) for part in mine]
                if mine[0].role == "server":
                    ends = [(other, part) for part, other in ends]
                writer, other_host = (host, peer) if mine[0].role == "client" else (peer, host)
                if any(part.rail in broken for part in mine):
                    continue
                found = tuple(said.get((writer, slot, client.rail)) for client, _server in ends)
                there = tuple(said.get((other_host, slot, server.rail)) for _client, server in ends)
                sample = Sample(number, writer, other_host, mine[0].test, tuple(ends), found, there)
                broken |= {part.rail for part, answer in zip(mine, found) if not (answer and answer.value)}
                yield sample


def _measured(samples: Iterable[Sample]) -> Iterator[Rdma]:
    for sample in samples:
        if sample.complete:
            value = max(sample.values) if sample.test == LATENCY else round(sum(sample.values), 3)
            yield Rdma(sample.host, sample.peer, sample.halves, sample.test, value, sample.software)


def _pinged(seen: Seen) -> Iterator[Rdma]:
    for host, probes in seen.pings.items():
        devices = {rail.index: rail.rdma_device for rail in seen.facts[host].rails}
        for probe in probes:
            if probe.rtt_ms is not None and probe.rail in devices:
                yield Rdma(host, probe.peer, (devices[probe.rail],), "ping", round(probe.rtt_ms * 1000, 1))


# --- what was not ----------------------------------------------------------------------------------------------------


def _not_measured(schedule: Schedule) -> Iterator[Verdict]:
    if not schedule.gap:
        return
    if schedule.no_infiniband:
        found = "there is no /dev/infiniband, so no program reaches an RDMA device"
        yield verdict("infiniband", "node", found, "no_infiniband", schedule.no_infiniband)
    yield unknown(RATE, "cluster", f"the rate of each half was not measured: {schedule.reason}")


def _gids(seen: Seen) -> Iterator[Verdict]:
    for host, fact in seen.facts.items():
        ready = seen.ready.get(host)
        if fact.transport != "rdma" or ready is None or ready.gids is None:
            continue
        for rail in fact.rails:
            gid, fixed = gid_of(fact, rail, ready), fact.environment.get("NCCL_IB_GID_INDEX")
            shown = [
                f"{one.device} {one.port} {one.index} {one.gid} v{one.version} {one.netdev}"
                for one in ready.gids
                if one.device == rail.rdma_device
            ]
            common: dict[str, Any] = {"hosts": (host,), "device": rail.rdma_device, "evidence": shown}
            own = [one for one in ready.gids if (one.device, one.ipv4) == (rail.rdma_device, rail.address)]
            if gid is None and any(one.version == 2 for one in own):
                found = f"NCCL would take the GID of another address than {rail.address}, which has one"
                yield verdict(GID, "half", found, "foreign_address", outcome=FAIL, **common)
            elif gid is None:
                found = f"its GID table has no RoCE v2 entry that NCCL would take for {rail.address}"
                yield verdict(GID, "half", found, "gid_missing", **common)
            elif fixed is not None and str(gid.index) != fixed:
                found = f"the GID of {rail.address} is at index {gid.index}, and NCCL_IB_GID_INDEX={fixed} is exported"
                yield verdict(GID, "half", found, "gid_mismatch", outcome=FAIL, **common)


# --- one half alone --------------------------------------------------------------------------------------------------


def _halves(samples: Sequence[Sample], seen: Seen, without_gid: set[tuple[str, str]]) -> Iterator[Verdict]:
    """Of each half between two nodes the slower direction; or why there is no result."""
    groups: dict[tuple[str, str, frozenset[str]], list[Sample]] = {}
    for sample in samples:
        if len(sample.ends) == 1:
            names = frozenset(f"{host} {part.device}" for host, part in _both(sample, 0))
            groups.setdefault((*sample.pair, names), []).append(sample)
    for own in groups.values():
        failed = next((sample for sample in own if not sample.complete), None)
        if failed:
            if without_gid.isdisjoint((host, part.device) for host, part in _both(failed, 0)):
                yield _no_result(failed, seen)
            continue
        writes = [sample for sample in own if sample.test == WRITE]
        if writes:
            yield _rate(min(writes, key=lambda sample: sample.values[0]), seen)


def _both(sample: Sample, half: int) -> tuple[tuple[str, Part], tuple[str, Part]]:
    mine, other = sample.ends[half]
    return (sample.host, mine), (sample.peer, other)


def _no_result(sample: Sample, seen: Seen) -> Verdict:
    (mine, other), said, back = sample.ends[0], sample.found[0], sample.there[0]
    reason = _reason(said)
    reasons = [end.reason for end in (said, back) if end and end.reason]
    there = f"; {sample.peer} says: {back.reason}" if back and back.reason not in (None, "", reason) else ""
    cause = next((end.cause for end in (said, back) if end and end.cause), "")
    unanswered = _unanswered(sample, seen)
    if unanswered:
        cause = unanswered.cause if unanswered.cause == "wrong_mtu" else "one_half_only"
        there += f"; a ping of full size: {unanswered.reason or 'no answer'}"
    elif cause == "gid_mismatch" and _same_cages(sample, seen):
        cause = "wrong_cage"
    return verdict(
        RATE,
        "half",
        f"RDMA to {sample.peer} {other.device} ({mine.address}) does not work: {reason}{there}",
        cause if cause in RULES else ALSO_CALLED.get(cause, "rdma_fails"),
        (sample.host, sample.peer),
        device=mine.device,
        evidence=list(dict.fromkeys(reasons)),
        remedy=(said.remedy or "") if said and cause in ("", "firewall") else "",
        outcome=FAIL,
    )


def _reason(said: Outcome | None) -> str:
    nothing = "the test ran and carried nothing" if said and said.value == 0 else "no result came back"
    return (said and said.reason) or nothing


def _unanswered(sample: Sample, seen: Seen) -> Probe | None:
    for host, part in _both(sample, 0):
        for probe in seen.pings.get(host, ()):
            if not probe.ok and probe.address == part.address:
                return probe
    return None


def _same_cages(sample: Sample, seen: Seen) -> bool:
    """In a ring cage 1 of each node leads to cage 0 of the next; any other way ends in a timeout."""
    first, second = (seen.rail(host, part.device).cage for host, part in _both(sample, 0))
    return seen.facts[sample.host].topology == "ring" and first == second


def _rate(sample: Sample, seen: Seen) -> Verdict:
    value, (mine, other) = sample.values[0], sample.ends[0]
    good, least = seen.limits["half_good_gbps"], seen.limits["half_least_gbps"]
    text = f"RDMA writes to {sample.peer} {other.device} reach {value:g} Gb/s"
    common: dict[str, Any] = {"hosts": (sample.host, sample.peer), "device": mine.device, "value": value}
    if sample.software:
        return passed(RATE, "half", f"{text} (soft RoCE: not judged)", **common)
    if value >= good.value:
        return passed(RATE, "half", text, limit=good, **common)
    cause, evidence = _explain(sample, 0, value, seen)
    slow = value < least.value
    return verdict(
        RATE,
        "half",
        text,
        cause,
        outcome=FAIL if slow else WARN,
        limit=least if slow else good,
        evidence=evidence,
        **common,
    )


def _explain(sample: Sample, half: int, value: float, seen: Seen) -> tuple[str, list[str]]:
    """Why a half is slow, the certain before the likely, with the lines that say so."""
    ends = _both(sample, half)
    for cause, look in _LOOKS:
        evidence = [line for host, part in ends for line in look(sample, host, part.device, seen)]
        if evidence:
            return cause, evidence
    if value < seen.limits["half_least_gbps"].value:
        return "nic_degraded", [line for host, part in ends for line in _link(host, part.device, seen)]
    small = _small_packets(sample, half, seen)
    if small:
        return "wrong_mtu", [f"Mtu: {small}[B]"]
    return "rdma_slow", [line for host, part in ends for line in _link(host, part.device, seen)]


def _busy(sample: Sample, host: str, device: str, seen: Seen) -> Iterator[str]:
    gbps = seen.answer(host, sample.round).idle.get(device, 0.0) * 8 / 1e9
    if gbps > seen.limits["idle_gbps"].value:
        yield f"{host} {device}: {gbps:.1f} Gb/s moved over it before the measurement"


def _pcie(_one: Sample, host: str, device: str, seen: Seen) -> Iterator[str]:
    """By what a half needs, not by what the slot or the card could: cards have 16 lanes, and a Spark wires 4."""
    pci, limit = seen.port(host, device).pci, seen.limits["pcie_gbps"]
    gbps = pci.bandwidth_gbps if pci else None
    if pci and gbps and gbps < limit.value:
        link = f"{pci.link_speed_gts:g} GT/s x{pci.link_width}"
        yield f"{host} {device}: PCIe {link} carries {gbps:g} Gb/s, expected {limit.value:g}"


def _slow_link(_one: Sample, host: str, device: str, seen: Seen) -> Iterator[str]:
    port, wanted = seen.port(host, device), seen.limits["rate_gbps"].value
    rate = port.speed_gbps or port.rate_gbps or seen.rail(host, device).link_gbps
    if rate and 0 < rate < wanted:
        yield f"{host} {device}: the link runs at {rate:g} Gb/s, expected {wanted:g}"


def _lossy(sample: Sample, host: str, device: str, seen: Seen) -> Iterator[str]:
    counted = seen.answer(host, sample.round).counted.get(device, {})
    if _lost_per_million(counted) > seen.limits["loss_per_million"].value:
        yield f"{host} {device}: {_shown(counted, (*counters.REPEATED, *counters.DROPPED))}"


def _pausing(sample: Sample, host: str, device: str, seen: Seen) -> Iterator[str]:
    answer = seen.answer(host, sample.round)
    counted = answer.counted.get(device, {})
    share = counters.paused_us(counted) / 1e6 / answer.seconds if answer.seconds else 0.0
    if share > seen.limits["pause_share"].value:
        yield f"{host} {device}: silent for {share:.0%} of the time because its other end asked for pauses"
    storms = _shown(counted, counters.STORMS)
    if storms:
        yield f"{host} {device}: it asked its other end to pause for so long that it counts a storm ({storms})"


_LOOKS = (
    ("contention", _busy),
    ("pcie_downtrained", _pcie),
    ("link_100g", _slow_link),
    ("loss_storm", _lossy),
    ("pause_storm", _pausing),
)


def _lost_per_million(counted: Mapping[str, int]) -> float:
    lost = counters.total(counted, (*counters.REPEATED, *counters.DROPPED))
    packets = counted.get("bytes", 0) / RDMA_MTUS[0]
    if lost < FEW:
        return 0.0
    # Where nothing is counted that arrived, what was lost is all that is known.
    return min(lost / packets, 1.0) * 1e6 if packets else 1e6


def _shown(counted: Mapping[str, int], names: Sequence[str]) -> str:
    return ", ".join(f"{name} +{counted[name]}" for name in names if counted.get(name))


def _link(host: str, device: str, seen: Seen) -> Iterator[str]:
    """How healthy it looks, which a degraded card does."""
    port = seen.port(host, device)
    said = [f"{port.rate_gbps:g} Gb/s"] if port.rate_gbps else []
    if port.pci and port.pci.link_speed_gts:
        said.append(f"PCIe {port.pci.link_speed_gts:g} GT/s x{port.pci.link_width}")
    said += [f"firmware {port.firmware}"] if port.firmware else []
    if said:
        yield f"{host} {device}: {', '.join(said)}"


def _attributed(halves: Sequence[Verdict], samples: Sequence[Sample]) -> list[Verdict]:
    """Where one end is slow with everybody, and everybody else is fast, it is that end: one verdict instead of many.
    What passed is one verdict per pair."""
    far = {
        (sample.host, sample.peer, sample.halves[0]): sample.ends[0][1].device
        for sample in samples
        if sample.test == WRITE
    }
    ends: dict[tuple[str, str], list[Verdict]] = {}
    for half in halves:
        ends.setdefault((half.hosts[0], half.device), []).append(half)
        if other := far.get((half.hosts[0], half.hosts[1], half.device)):
            ends.setdefault((half.hosts[1], other), []).append(half)
    always = {end: own for end, own in ends.items() if len(own) > 1 and all(one.cause in UNEXPLAINED for one in own)}
    found: list[Verdict] = []
    told: list[Verdict] = []
    for (host, device), own in always.items():
        if not any(end[0] != host and one in own for end, theirs in always.items() for one in theirs):
            told += own
            found.append(_this_end(host, device, own))
    found += [half for half in halves if half.outcome != PASS and half not in told]
    good: dict[tuple[str, ...], list[Verdict]] = {}
    for half in halves:
        if half.outcome == PASS:
            good.setdefault(tuple(sorted(half.hosts)), []).append(half)
    return [*found, *(_of_pair(hosts, own) for hosts, own in good.items())]


def _this_end(host: str, device: str, slow: Sequence[Verdict]) -> Verdict:
    others = sorted({name for one in slow for name in one.hosts if name != host})
    worst = min(slow, key=lambda one: one.value)
    reached = dict.fromkeys(f"{value:g}" for value in (worst.value, max(one.value for one in slow)))
    rates = f"RDMA writes with {', '.join(others)} reach {' to '.join(reached)} Gb/s"
    evidence = tuple(dict.fromkeys(line for one in slow for line in one.evidence))
    words = f"{rates}, and with no other node more: it is this end"
    return replace(worst, found=words, hosts=(host,), device=device, evidence=evidence)


def _of_pair(hosts: tuple[str, ...], own: Sequence[Verdict]) -> Verdict:
    rates = " and ".join(f"{one.value:g}" for one in sorted(own, key=lambda one: one.value))
    slowest = min(own, key=lambda one: one.value)
    soft = "" if slowest.limit else " (soft RoCE: not judged)"
    limit = slowest.limit[0] if slowest.limit else None
    words = f"RDMA writes reach {rates} Gb/s over each half{soft}"
    return passed(RATE, "pair", words, hosts, value=slowest.value, limit=limit)


# --- all halves at the same time, latency, packets, counters ---------------------------------------------------------


def _together(samples: Sequence[Sample], seen: Seen, troubled: set[tuple[str, ...]]) -> Iterator[Verdict]:
    """The slower direction. Nothing of pairs of which a half is slow alone: that is said already."""
    limit = seen.limits["link_gbps"]
    known = {tuple(sorted(hosts)) for hosts in troubled}
    groups: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        if len(sample.ends) > 1 and sample.test == WRITE and sample.pair not in known and not sample.software:
            groups.setdefault(sample.pair, []).append(sample)
    for pair, own in groups.items():
        failed = next((sample for sample in own if not sample.complete), None)
        if failed:
            bad = [bool(answer and answer.value) for answer in failed.found].index(False)
            if failed.values:
                text = f"{failed.ends[bad][0].device} carries nothing to {failed.peer} while the other halves do"
                cause = "one_half_only"
            else:
                text, cause = f"no half carries anything to {failed.peer} when all are used", "rdma_fails"
            text = f"{text}: {_reason(failed.found[bad])}"
            yield verdict(LINK, "pair", text, cause, (failed.host, failed.peer))
            continue
        worst = min(own, key=lambda sample: sum(sample.values))
        value = round(sum(worst.values), 2)
        rates = " + ".join(f"{rate:g}" for rate in worst.values)
        text = f"RDMA writes over all halves at the same time reach {rates} = {value:g} Gb/s"
        common: dict[str, Any] = {"hosts": pair, "value": value, "limit": limit}
        if value >= limit.value:
            yield passed(LINK, "pair", text, **common)
            continue
        cause, evidence = _why_not_together(worst, seen)
        outcome = FAIL if cause in ("one_half_only", "wrong_cage", "nic_degraded") else WARN
        yield verdict(LINK, "pair", text, cause, outcome=outcome, evidence=evidence, **common)


def _why_not_together(sample: Sample, seen: Seen) -> tuple[str, list[str]]:
    least = sample.values.index(min(sample.values))
    cause, evidence = _explain(sample, least, sample.values[least], seen)
    if cause not in ("nic_degraded", "rdma_slow", "wrong_mtu"):
        return cause, evidence
    if max(sample.values) < seen.limits["half_least_gbps"].value:
        return "nic_degraded", evidence
    share = sample.values[least] / sum(sample.values) * len(sample.values) / 2
    if share < seen.limits["half_share"].value:
        return "one_half_only", evidence
    for number in (0, 1):
        ends = [_both(sample, half)[number] for half in range(len(sample.ends))]
        rails = [seen.rail(host, part.device) for host, part in ends]
        if len({rail.pcie_path for rail in rails}) == 1:
            paths = [f"{ends[0][0]} {rail.rdma_device}: PCIe path {rail.pcie_path}" for rail in rails]
            return "wrong_cage", paths
    return cause, evidence


def _latency(samples: Sequence[Sample], seen: Seen, beside_an_engine: bool) -> Iterator[Verdict]:
    """Messages of an engine that serves stand in the same queue: a healthy half is slow then, and is not blamed."""
    limit = seen.limits["latency_us"]
    groups: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        if sample.test == LATENCY and sample.complete:
            groups.setdefault(sample.pair, []).append(sample)
    for own in groups.values():
        worst = max(own, key=lambda sample: sample.values[0])
        value, mine = worst.values[0], worst.ends[0][0]
        text = f"an RDMA write to {worst.peer} takes {value:g} µs"
        common: dict[str, Any] = {"hosts": (worst.host, worst.peer), "device": mine.device, "value": value}
        if worst.software or value <= limit.value:
            soft = " (soft RoCE: not judged)" if worst.software else ""
            held = None if worst.software else limit
            yield passed(DELAY, "pair", text + soft, limit=held, **common)
            continue
        if beside_an_engine:
            yield unknown(DELAY, "pair", f"{text} while the engine runs", limit=limit, **common)
            continue
        cause, evidence = _explain(worst, 0, seen.limits["half_good_gbps"].value, seen)
        yield verdict(DELAY, "pair", text, cause, outcome=WARN, limit=limit, evidence=evidence, **common)


def _mtu(samples: Sequence[Sample], seen: Seen) -> Iterator[Verdict]:
    told: set[tuple[tuple[str, str], str]] = set()
    for sample in samples:
        for half, (mine, other) in enumerate(sample.ends):
            if (sample.pair, mine.source) in told or (sample.pair, other.source) in told:
                continue
            found = _small_packets(sample, half, seen)
            if not found:
                continue
            told.add((sample.pair, mine.source))
            wanted = _rdma_mtu(seen.rail(sample.host, mine.device))
            ports = [(host, part, seen.port(host, part.device).mtu) for host, part in _both(sample, half)]
            yield verdict(
                MTU,
                "half",
                f"RDMA to {sample.peer} {other.device} sends packets of {found} bytes, and the planned MTU takes"
                f" {wanted}",
                "wrong_mtu",
                (sample.host, sample.peer),
                device=mine.device,
                outcome=WARN,
                evidence=[f"{host} {part.netdev}: mtu {size}" for host, part, size in ports if size],
            )


def _small_packets(sample: Sample, half: int, seen: Seen) -> int:
    """Bytes of the RDMA packets where the planned MTU takes more, else 0."""
    found = sample.found[half]
    size = found.rdma_mtu if found else None
    return size if size and size < _rdma_mtu(seen.rail(sample.host, sample.ends[half][0].device)) else 0


def _rdma_mtu(rail: Rail) -> int:
    return next((size for size in RDMA_MTUS if size <= rail.mtu - HEADERS), RDMA_MTUS[-1])


def _counted(schedule: Schedule, seen: Seen, known: set[tuple[str, str]]) -> Iterator[Verdict]:
    """What was lost though the rates are good. Pauses are no fault by themselves, but for those that the card counts
    as a storm. ``known``: cause, host and device of what a slow half has told already."""
    for host in seen.facts:
        for number in range(len(schedule.rounds)):
            for device, counted in seen.answer(host, number).counted.items():
                lost = _lost_per_million(counted)
                limit = seen.limits["loss_per_million"]
                if lost > limit.value and ("loss_storm", f"{host} {device}") not in known:
                    shown = _shown(counted, (*counters.REPEATED, *counters.DROPPED))
                    share = (
                        f"{lost:.0f} of a million packets"
                        if counted.get("bytes")
                        else "packets, out of an unknown number,"
                    )
                    text = f"{share} were lost or sent again while it was measured"
                    about: dict[str, Any] = {"value": round(lost, 1), "limit": limit, "evidence": [shown]}
                    yield verdict(LOSS, "half", text, "loss_storm", (host,), device=device, **about)
                storms = _shown(counted, counters.STORMS)
                if storms and ("pause_storm", f"{host} {device}") not in known:
                    text = "it asked its other end to pause for so long that it counts a storm"
                    yield verdict(PAUSE, "half", text, "pause_storm", (host,), device=device, evidence=[storms])


# --- for people ------------------------------------------------------------------------------------------------------


def lines(judged: Judged) -> list[str]:
    """One per pair and half, and one for all halves of a pair."""
    found: dict[str, list[str]] = {}
    for sample in judged.samples:
        key = _title(sample)
        value = f"{sum(sample.values):.5g}" if sample.complete else ""
        what = {
            LATENCY: f"{value} µs",
            BOTH_WAYS: f"{value} Gb/s in both directions",
            WRITE: f"{value} Gb/s from {sample.host}",
        }[sample.test]
        found.setdefault(key, []).append(what if sample.complete else "no result")
    soft = {_title(sample) for sample in judged.samples if sample.software}
    return [
        f"{key}: {', '.join(dict.fromkeys(values))}{' (soft RoCE: not judged)' if key in soft else ''}"
        for key, values in found.items()
    ]


def _title(sample: Sample) -> str:
    if len(sample.ends) > 1:
        return f"{' - '.join(sample.pair)}, all halves"
    ends = sorted(f"{host} {part.device}" for host, part in _both(sample, 0))
    return " - ".join(ends)


def finding(one: Verdict) -> Finding:
    """For a role that refuses what failed."""
    limit = (
        f", expected {one.limit[0].value:g} or {'more' if one.limit[0].kind == 'least' else 'less'}"
        if one.limit
        else ""
    )
    cause = f": {RULES[one.cause].title}" if one.cause else ""
    host = one.hosts[0] if one.hosts else "all nodes"
    remedy = f"{one.remedy}. If that does not help: {one.otherwise}"
    return Finding(
        host, f"{one.found}{limit}{cause}", remedy, one.device, "error" if one.outcome == FAIL else "warning"
    )


def kept(judged: Judged, facts: Mapping[str, FabricFact]) -> dict[str, list[dict[str, Any]]]:
    """The slower direction of every half, for the record of each of its ends."""
    found: dict[str, dict[tuple[str, str], dict[str, Any]]] = {host: {} for host in facts}
    for sample in judged.samples:
        if sample.test != WRITE or len(sample.ends) != 1 or not sample.complete:
            continue
        for (host, part), peer in zip(_both(sample, 0), (sample.peer, sample.host)):
            old = found[host].get((part.device, peer))
            gbps = min(sample.values[0], old["gbps"]) if old else sample.values[0]
            entry = {"device": part.device, "peer": peer, "rail": part.rail, "gbps": gbps, "software": part.software}
            found[host][part.device, peer] = entry
    return {host: list(own.values()) for host, own in found.items()}
