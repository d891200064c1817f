# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""**The verdicts of a run**: what was measured and what it means. JSON schema: docs/verdicts.schema.json.

One document per run of verify, doctor or benchmark. The head keeps the last ones; report, status and JUnit read them.

What was not measured has no entry; that somebody wanted to know it is a verdict ``unknown``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.document import one_of
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError, alike, named
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Word, Words

SCHEMA = 1
PASS, WARN, FAIL, UNKNOWN = OUTCOMES = ("pass", "warn", "fail", "unknown")
TITLES = {FAIL: "failed", WARN: "warning", UNKNOWN: "not measured", PASS: "passed"}  # the worst first
NOTHING = "nothing was checked"
BETWEEN = "\x1f"
SCOPES = ("node", "half", "link", "pair", "cluster", "service")
PLAYBOOKS = ("site", "verify", "doctor", "benchmark", "first_contact")
REMEDY = "It was written by another release of the collection, or damaged: run the playbook again"


# --- verdicts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Limit:
    """The number that a measured one is held to."""

    value: float
    unit: Words
    kind: Word = field(metadata=one_of("least", "most"))
    source: Words  # where the number comes from, with a date or version
    owner: Words  # whose number it is: NVIDIA, vLLM, a recipe's author, this collection
    variable: Words = ""  # the role variable that sets it


@dataclass(frozen=True)
class Verdict:
    """``cause`` is the id of a rule (plugin_utils/_rules), empty for pass and unknown."""

    check: Words  # what was judged, for example rdma_rate
    outcome: Word = field(metadata=one_of(*OUTCOMES))
    scope: Word = field(metadata=one_of(*SCOPES))
    found: Words  # one sentence: what was measured, or why nothing was
    hosts: tuple[Words, ...] = ()
    device: Words = ""  # of the first host: RDMA device, interface, unit or service
    value: float = 0  # what is compared with the limit, in its unit
    limit: tuple[Limit, ...] = ()  # one or none
    cause: Words = ""
    evidence: tuple[Words, ...] = ()  # lines of tools and files, as they were
    remedy: Words = ""
    otherwise: Words = ""  # what to do if the remedy does not help


# --- what was measured -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Machine:
    """What decides the numbers, of one node; empty texts were not seen."""

    host: Words
    rank: int
    facts: Mapping[Words, Words] = field(
        default_factory=dict
    )  # kernel, driver, firmware, cuda, nccl, clocks, temperature …
    planned_gib: float = 0  # memory that the engine plan gives to the engine
    used_gib: float = 0  # memory that the engine's processes hold
    total_gib: float = 0
    memory: Mapping[Words, float] = field(default_factory=dict)  # GiB by part of the plan: weights, kv_cache, …


@dataclass(frozen=True)
class Link:
    """One half of a cable, or of the way to a switch."""

    host: Words
    device: Words  # RDMA
    interface: Words
    rail: int
    cage: int
    peer: Words = ""  # the node at the other end, empty for a switch
    rate_gbps: float = 0  # negotiated
    mtu: int = 0


@dataclass(frozen=True)
class Rdma:
    """One measurement between two nodes. ``halves``: RDMA devices of ``host`` that were in use at the same time."""

    host: Words
    peer: Words
    halves: tuple[Words, ...]
    test: Word = field(metadata=one_of("write", "write_both_directions", "latency", "ping"))
    value: float = 0  # Gb/s; microseconds for latency and ping
    software: bool = False  # soft RoCE


@dataclass(frozen=True)
class Size:
    """One line of an NCCL test."""

    bytes: int
    microseconds: float
    algorithm_gbs: float  # GB/s
    bus_gbs: float  # GB/s
    wrong: int = 0  # elements with a wrong value


@dataclass(frozen=True)
class Nccl:
    test: Words  # all_reduce, all_gather, …
    hosts: tuple[Words, ...]
    ranks: int
    version: Words = ""
    transport: Words = ""  # what NCCL named: NET/IB, NET/Socket, NET/Plugin name, P2P …
    halves: int = 0  # RDMA devices that NCCL used
    average_gbs: float = 0  # bus, GB/s, as the tool counts it
    largest_gbs: float = 0  # bus, GB/s, of the largest size
    sizes: tuple[Size, ...] = ()


@dataclass(frozen=True)
class Serving:
    """One point of a sweep, over its repetitions. Times in ms, rates in tokens/s; the generator's own names."""

    service: Words
    model: Words
    concurrency: int
    prompt_tokens: int
    output_tokens: int
    repetitions: int
    requests: int
    failed: int
    seed: int
    output_rate: float  # median of the repetitions
    output_rate_low: float
    output_rate_high: float
    ttft_ms: Mapping[Words, float] = field(default_factory=dict)  # median, p90, p99
    tpot_ms: Mapping[Words, float] = field(default_factory=dict)
    goodput: float = 0  # requests/s within the limits, where there are limits
    acceptance: float = 0  # of drafted tokens, 0 to 1, where the service drafts
    expected_low: float = 0  # tokens/s of as many requests together, by the plan; 0: the plan expects nothing
    expected_high: float = 0
    published: float = 0  # what somebody measured of the same, which the two are around
    text: bool = False  # prompts were plain English, not random tokens


@dataclass(frozen=True)
class Smoke:
    """One kind of request that a service answered, or did not."""

    service: Words
    kind: Words  # chat, stream, tool, json, embedding, rerank, vision, speech
    ok: bool
    seconds: float
    found: Words = ""


@dataclass(frozen=True)
class Service:
    """What runs, with everything that decides its speed."""

    name: Words
    model: Words
    recipe: Words = ""
    engine: Words = ""
    version: Words = ""
    image: Words = ""  # id
    hosts: tuple[Words, ...] = ()
    options: Mapping[Words, Words] = field(default_factory=dict)  # that the engine runs with


@dataclass(frozen=True)
class Run:
    cluster: Words
    playbook: Word = field(metadata=one_of(*PLAYBOOKS))
    at: Words  # begin, ISO 8601 in UTC with seconds: 2026-11-23T07:30:00Z
    seconds: float
    release: Words  # of this collection
    schema: int = SCHEMA
    topology: Words = ""
    verdicts: tuple[Verdict, ...] = ()
    machines: tuple[Machine, ...] = ()
    links: tuple[Link, ...] = ()
    services: tuple[Service, ...] = ()
    rdma: tuple[Rdma, ...] = ()
    nccl: tuple[Nccl, ...] = ()
    serving: tuple[Serving, ...] = ()
    smoke: tuple[Smoke, ...] = ()

    @property
    def outcome(self) -> str:
        """The worst that was found; a run without a verdict knows nothing."""
        found = {verdict.outcome for verdict in self.verdicts}
        return next((outcome for outcome in (FAIL, WARN, UNKNOWN, PASS) if outcome in found), UNKNOWN)

    @property
    def counted(self) -> str:
        return counted(self.verdicts)

    def as_dict(self) -> dict[str, Any]:
        return dict(document.plain(self))


def counted(verdicts: Sequence[Verdict]) -> str:
    """``1 failed, 2 not measured, 9 passed``"""
    counts = {outcome: sum(verdict.outcome == outcome for verdict in verdicts) for outcome in TITLES}
    return ", ".join(f"{count} {_title(outcome, count)}" for outcome, count in counts.items() if count) or NOTHING


def where(verdict: Verdict) -> str:
    return f"{' - '.join(verdict.hosts)} {verdict.device}".strip() or verdict.scope


def together(verdicts: Iterable[Verdict]) -> list[tuple[str, Verdict]]:
    """(where, verdict): what is said alike of several machines once, with their names; of pairs each by itself."""
    told = []
    for one in verdicts:
        host = one.hosts[0] if len(one.hosts) == 1 else ""
        rest = replace(one, hosts=() if host else one.hosts, found="", remedy="", otherwise="", evidence=())
        told.append((host, rest, BETWEEN.join((one.found, one.remedy, one.otherwise))))
    made = []
    for hosts, rest, text in alike(told):
        found, remedy, otherwise = text.split(BETWEEN)
        one = replace(rest, found=found, remedy=remedy, otherwise=otherwise)
        made.append((where(one) if hosts == [""] else f"{named(hosts)} {one.device}".strip(), one))
    return made


def _title(outcome: str, count: int) -> str:
    return "warnings" if outcome == WARN and count > 1 else TITLES[outcome]


def load(values: Any, where: str) -> Run:
    """Read a document; :class:`SparkError` says what does not fit."""
    if isinstance(values, Mapping) and values.get("schema") != SCHEMA:
        raise SparkError(f"verdicts of schema {str(values.get('schema'))[:20]!r}, expected {SCHEMA}", where, REMEDY)
    try:
        return document.load(Run, values)
    except (TypeError, ValueError) as exc:
        raise SparkError(f"the verdicts cannot be read: {exc}", where, REMEDY) from exc


def schema() -> dict[str, Any]:
    return document.schema(Run)
