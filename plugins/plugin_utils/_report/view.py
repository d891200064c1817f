# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What the page shows, from the documents of the last runs: which of them count, problems by cause, tables, drawings.

Pure. The template prints it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import (
    FAIL,
    PASS,
    UNKNOWN,
    WARN,
    Limit,
    Machine,
    Run,
    Serving,
    Verdict,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._report import drawings
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._report.drawings import CableMap, number
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.table import RULES
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._screen.commands import Commands

MAX_EVIDENCE = 40  # lines of one problem
OF_RDMA = frozenset({"gid", "infiniband"})  # checks of the measurement that do not begin with its name
NOTHING = "-"  # in a table
OWN = {"clock", "temperature"}  # each machine has its own
SHORT = {"cuda", "dgx", "gid", "gpu", "kv", "mtu", "nccl", "os", "pcie", "rdma"}
SAME = {"site": "verify"}  # playbooks that end with what another one measures


@dataclass(frozen=True)
class Said:
    """A verdict, and of which run."""

    verdict: Verdict
    run: Run

    @property
    def measured(self) -> str:
        return compared(self.verdict)


@dataclass(frozen=True)
class Problem:
    """One cause, wherever it was found. ``limits`` without repetitions."""

    outcome: str
    title: str
    why: str
    places: tuple[tuple[str, Said], ...]
    limits: tuple[Limit, ...]
    evidence: tuple[str, ...]
    more_evidence: int
    remedy: str
    otherwise: str
    source: str
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Table:
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: int = 0  # columns at the end that are numbers


@dataclass(frozen=True)
class Speed:
    """All points of one model."""

    title: str
    table: Table
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Past:
    run: Run
    counted: str
    numbers: tuple[str, ...]


@dataclass(frozen=True)
class View:
    cluster: str
    outcome: str
    headline: str
    about: str  # the cluster in a line
    newest: Run
    runs: tuple[Run, ...]  # that count
    said: tuple[Said, ...]
    by: Mapping[str, tuple[Said, ...]]  # outcome
    problems: tuple[Problem, ...]
    cables: tuple[CableMap, Table, Run] | None
    pairs: tuple[tuple[tuple[str, Table], ...], Table, bool, Run] | None  # bool: RDMA in software
    nccl: tuple[Table, Run] | None
    memory: tuple[Table, Run] | None
    speed: tuple[tuple[Speed, ...], Run] | None
    smoke: tuple[Table, Run] | None
    numbers: tuple[str, ...]  # that any run has measured
    history: tuple[Past, ...]
    machines: tuple[Table, tuple[str, ...], Run] | None
    services: tuple[tuple[Any, ...], Run] | None
    left_out: tuple[str, ...]


def view(runs: Sequence[Run], left_out: Sequence[str] = (), commands: Commands | None = None) -> View:
    """``runs`` of one cluster, at least one, in any order; ``left_out``: documents that could not be read, and why;
    ``commands``: as who reads the page can type them."""
    past = sorted(runs, key=lambda run: run.at, reverse=True)
    counting = standing(past)
    said = [_typed(one, commands or Commands()) for one in judged(counting)]
    by = {
        outcome: tuple(one for one in said if one.verdict.outcome == outcome) for outcome in (FAIL, WARN, UNKNOWN, PASS)
    }
    problems = (*_problems(by[FAIL]), *_problems(by[WARN]))
    names = tuple(name for name in NUMBERS if any(name in _key_numbers(run) for run in past))
    outcome = next((one for one in (FAIL, WARN, UNKNOWN, PASS) if by[one]), UNKNOWN)
    return View(
        cluster=past[0].cluster,
        outcome=outcome,
        headline=_headline(outcome, problems, by),
        about=_about_cluster(counting),
        newest=past[0],
        runs=tuple(counting),
        said=tuple(said),
        by=by,
        problems=problems,
        cables=_of(counting, lambda run: run.links, lambda run: _cables(run, [one.verdict for one in said])),
        pairs=_of(counting, lambda run: run.rdma, _pairs),
        nccl=_of(counting, lambda run: run.nccl, lambda run: (_nccl(run),)),
        memory=_of(counting, lambda run: list(filter(_knows_memory, run.machines)), lambda run: (_memory(run),)),
        speed=_of(counting, lambda run: run.serving, lambda run: (_speeds(run),)),
        smoke=_of(counting, lambda run: run.smoke, lambda run: (_smoke(run),)),
        numbers=names,
        history=tuple(_past(run, names) for run in past),
        machines=_of(counting, lambda run: [machine for machine in run.machines if machine.facts], _machines),
        services=_of(counting, lambda run: run.services, lambda run: (run.services,)),
        left_out=tuple(left_out),
    )


def _of(runs: Iterable[Run], has: Callable[[Run], Any], make: Callable[[Run], tuple[Any, ...]]) -> Any:
    """A part of the page from the newest run that has it, with that run; None where no run has."""
    found = next((run for run in runs if has(run)), None)
    return None if found is None else (*make(found), found)


# --- which runs count ------------------------------------------------------------------------------------------------


def standing(runs: Sequence[Run]) -> list[Run]:
    """Those that no newer one of the same playbook has made anew. Newest first, as they are given.

    A benchmark of the fabric alone leaves the speed of the engine standing that one before it has measured.
    """
    kept: list[Run] = []
    for run in runs:
        newer = [one for one in kept if _kind(one) == _kind(run)]
        if not newer or _left(run, newer):
            kept.append(run)
    return kept


def _kind(run: Run) -> str:
    return SAME.get(run.playbook, run.playbook)


def _measured(run: Run) -> set[tuple[str, str]]:
    """The latency alone, which is measured beside an engine, is no word about a rate, and one service none about
    another."""
    return {
        *(("rdma", rdma.test) for rdma in run.rdma),
        *(("nccl", one.test) for one in run.nccl),
        *(("serving", point.service) for point in run.serving),
    }


def _left(run: Run, newer: Sequence[Run]) -> set[str]:
    """Parts of which it has measured what no newer run of its kind has."""
    return {part for part, _what in _measured(run).difference(*map(_measured, newer))}


def judged(runs: Sequence[Run]) -> list[Said]:
    """The newest word on each thing; that it was not measured in a newer run takes no word back. A run that counts for
    a part only, beside a newer one of its kind, has no word on the rest."""
    found: dict[Any, list[Said]] = {}
    for place, run in enumerate(runs):
        newer = [one for one in runs[:place] if _kind(one) == _kind(run)]
        parts = _left(run, newer)
        said = [Said(one, run) for one in run.verdicts if not newer or _part(one) in parts]
        for key in dict.fromkeys(_about(one.verdict) for one in said):
            here = [one for one in said if _about(one.verdict) == key]
            if key not in found or _open(found[key]):
                found[key] = here if key not in found or not _open(here) else found[key]
    return [one for group in found.values() for one in group]


def _part(verdict: Verdict) -> str:
    return "rdma" if verdict.check in OF_RDMA else verdict.check.partition("_")[0]


def _typed(said: Said, commands: Commands) -> Said:
    one = said.verdict
    verdict = replace(one, remedy=commands.whole(one.remedy), otherwise=commands.whole(one.otherwise))
    return replace(said, verdict=verdict)


def _about(verdict: Verdict) -> tuple[Any, ...]:
    return verdict.check, verdict.scope, verdict.hosts, verdict.device


def _open(said: Sequence[Said]) -> bool:
    return all(one.verdict.outcome == UNKNOWN for one in said)


# --- the verdict -----------------------------------------------------------------------------------------------------


def _headline(outcome: str, problems: Sequence[Problem], by: Mapping[str, Sequence[Said]]) -> str:
    if outcome in (FAIL, WARN):
        bad, warned = (sum(problem.outcome == kind for problem in problems) for kind in (FAIL, WARN))
        parts = [some(bad, "problem"), some(warned, "warning")]
        return " and ".join(part for part in parts if part)
    if outcome == PASS:
        return f"{some(len(by[PASS]), 'check')} passed, no problem"
    return f"No problem found, {len(by[UNKNOWN])} not measured" if by[UNKNOWN] else "Nothing was checked"


def some(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}" if count else ""


def _about_cluster(runs: Sequence[Run]) -> str:
    machines = next((len(run.machines) for run in runs if run.machines), 0)
    topology = next((run.topology for run in runs if run.topology), "")
    models = next((", ".join(service.model for service in run.services) for run in runs if run.services), "")
    return "; ".join(filter(None, (some(machines, "machine"), topology, models and f"serves {models}")))


def counted(said: Sequence[Said]) -> str:
    return document.counted([one.verdict for one in said])


def places(said: Sequence[Said]) -> list[tuple[str, Said]]:
    """(where, what): what is said alike of several machines once."""
    runs = {of(one.run): one.run for one in said}
    return [
        (where, Said(verdict, run))
        for name, run in runs.items()
        for where, verdict in document.together(one.verdict for one in said if of(one.run) == name)
    ]


def _problems(said: Sequence[Said]) -> tuple[Problem, ...]:
    groups: dict[tuple[str, str], list[Said]] = {}
    for one in said:
        groups.setdefault((one.verdict.cause, one.verdict.remedy), []).append(one)
    return tuple(_problem(group) for group in groups.values())


def _problem(said: Sequence[Said]) -> Problem:
    first = said[0].verdict
    known = RULES.get(first.cause)
    evidence = list(dict.fromkeys(line for one in said for line in one.verdict.evidence))
    return Problem(
        outcome=first.outcome,
        title=known.title if known else heading(first.cause or first.check),
        why=known.why if known else "",
        places=tuple(places(said)),
        limits=tuple(dict.fromkeys(limit for one in said for limit in one.verdict.limit)),
        evidence=tuple(evidence[:MAX_EVIDENCE]),
        more_evidence=max(0, len(evidence) - MAX_EVIDENCE),
        remedy=first.remedy,
        otherwise=first.otherwise,
        source=known.source if known else "",
        runs=tuple({of(one.run): one.run for one in said}.values()),
    )


def heading(name: str) -> str:
    """Of a name of ours."""
    spoken = " ".join(part.upper() if part in SHORT else part for part in name.split("_"))
    return spoken[:1].upper() + spoken[1:]


def compared(verdict: Verdict) -> str:
    if not verdict.limit:
        return ""
    limit = verdict.limit[0]
    asked = "at least" if limit.kind == "least" else "at most"
    return f"{number(verdict.value)} {limit.unit}, {asked} {number(limit.value)}"


def moment(at: str) -> str:
    found = re.fullmatch(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(:\d\d)?Z", at)
    return f"{found[1]} {found[2]} UTC" if found else at


def of(run: Run) -> str:
    return f"{run.playbook}, {moment(run.at)}"


# --- cables and pairs ------------------------------------------------------------------------------------------------


def _cables(run: Run, verdicts: Sequence[Verdict]) -> tuple[CableMap, Table]:
    rows = [
        (
            link.host,
            link.device,
            link.interface,
            str(link.cage),
            str(link.rail),
            link.peer or "switch",
            number(link.rate_gbps) if link.rate_gbps else "not read",
            str(link.mtu) if link.mtu else "not read",
        )
        for link in run.links
    ]
    head = ("Machine", "RDMA device", "Interface", "Cage", "Rail", "To", "Gb/s", "MTU")
    ranks = {machine.host: machine.rank for machine in run.machines}
    return drawings.cable_map(ranks, run.links, verdicts), Table(head, tuple(rows), 2)


# Title, unit, and whether less is better.
TESTS: Mapping[str, tuple[str, str, bool]] = {
    "write": ("RDMA write", "Gb/s", False),
    "write_both_directions": ("RDMA write, both directions", "Gb/s", False),
    "latency": ("RDMA latency", "µs", True),
    "ping": ("Ping", "µs", True),
}


def _pairs(run: Run) -> tuple[tuple[tuple[str, Table], ...], Table, bool]:
    """For each test what was measured from every machine to every other, and all measurements."""
    order = {machine.host: machine.rank for machine in run.machines}
    seen = {host for rdma in run.rdma for host in (rdma.host, rdma.peer)}
    hosts = tuple(sorted(seen, key=lambda host: (order.get(host, len(order)), host)))
    found: dict[tuple[str, int], dict[tuple[str, str], list[float]]] = {}
    for rdma in run.rdma:
        halves = min(len(rdma.halves), 2) if rdma.test in ("write", "write_both_directions") else 1
        found.setdefault((rdma.test, halves), {}).setdefault((rdma.host, rdma.peer), []).append(rdma.value)
    order_of = list(TESTS)
    tables = tuple(
        _matrix(test, halves, found[test, halves], hosts)
        for test, halves in sorted(found, key=lambda key: (order_of.index(key[0]), -key[1]))
    )
    rows = tuple(
        (
            rdma.host,
            rdma.peer,
            ", ".join(rdma.halves) or "all",
            TESTS[rdma.test][0],
            f"{number(rdma.value)} {TESTS[rdma.test][1]}",
        )
        for rdma in run.rdma
    )
    everything = Table(("From", "To", "Devices", "Test", "Measured"), rows, 1)
    return tables, everything, any(rdma.software for rdma in run.rdma)


def _matrix(
    test: str, halves: int, values: Mapping[tuple[str, str], Sequence[float]], hosts: tuple[str, ...]
) -> tuple[str, Table]:
    title, unit, less = TESTS[test]
    if unit == "Gb/s":
        title += ", both halves together" if halves > 1 else ", one half alone (the slower one)"
    worst = {pair: number((max if less else min)(found)) for pair, found in values.items()}
    rows = tuple((host, *(worst.get((host, peer), NOTHING) for peer in hosts)) for host in hosts)
    return f"{title}, {unit}", Table(("From, to", *hosts), rows, len(hosts))


# --- NCCL ------------------------------------------------------------------------------------------------------------


def _nccl(run: Run) -> Table:
    rows = [
        (
            one.test,
            some(one.ranks, "rank") + (f" on {', '.join(one.hosts)}" if one.hosts else ""),
            one.transport or "not read",
            one.version or "not read",
            str(one.halves) if one.halves else "not read",
            number(one.average_gbs),
            number(one.largest_gbs),
            str(sum(size.wrong for size in one.sizes)),
        )
        for one in run.nccl
    ]
    head = ("Test", "Ranks", "Transport", "NCCL", "Halves", "GB/s on average", "GB/s, largest size", "Wrong values")
    return Table(head, tuple(rows), 4)


# --- memory ----------------------------------------------------------------------------------------------------------


def _memory(run: Run) -> Table:
    machines = sorted(filter(_knows_memory, run.machines), key=lambda machine: machine.rank)
    parts = list(dict.fromkeys(name for machine in machines for name in machine.memory))
    rows = tuple(
        (
            machine.host,
            *(number(machine.memory[name]) if name in machine.memory else NOTHING for name in parts),
            number(machine.planned_gib) if machine.planned_gib else NOTHING,
            number(machine.used_gib) if machine.used_gib else "not measured",
            number(machine.total_gib),
        )
        for machine in machines
    )
    head = ("Machine", *(heading(name) for name in parts), "Planned", "Measured", "Machine has")
    return Table(head, rows, len(head) - 1)


def _knows_memory(machine: Machine) -> bool:
    return bool(machine.total_gib and (machine.memory or machine.planned_gib or machine.used_gib))


# --- the engine ------------------------------------------------------------------------------------------------------

PERCENTILES = {"median": 1, "p90": 10, "p99": 100}  # of how many answers in a repetition it says something


def _speeds(run: Run) -> tuple[Speed, ...]:
    services: dict[tuple[str, str], list[Serving]] = {}
    for point in run.serving:
        services.setdefault((point.service, point.model), []).append(point)
    return tuple(
        Speed(model, _speed_table(points), tuple(_speed_notes(points))) for (_name, model), points in services.items()
    )


def _times(point: Serving, told: Mapping[str, float]) -> dict[str, float]:
    """The slowest of two answers is no 99th percentile."""
    answers = (point.requests - point.failed) / max(point.repetitions, 1)
    return {part: value for part, value in told.items() if answers >= PERCENTILES.get(part, 1)}


def _speed_table(points: Sequence[Serving]) -> Table:
    head = (
        *("At once", "Prompt tokens", "Output tokens", "Requests", "Failed", "Repetitions"),
        *("Tokens/s", "lowest to highest"),
        *(f"{name} {part}, ms" for name in ("TTFT", "TPOT") for part in PERCENTILES),
        *("Goodput, requests/s", "Drafts accepted", "Seed"),
    )
    rows = [
        (
            str(point.concurrency),
            f"{point.prompt_tokens}{' (text)' if point.text else ''}",
            *(str(count) for count in (point.output_tokens, point.requests, point.failed, point.repetitions)),
            number(point.output_rate),
            f"{number(point.output_rate_low)} to {number(point.output_rate_high)}"
            if point.repetitions > 1
            else NOTHING,
            *(
                number(kind[part]) if part in kind else NOTHING
                for kind in (_times(point, point.ttft_ms), _times(point, point.tpot_ms))
                for part in PERCENTILES
            ),
            number(point.goodput) if point.goodput else NOTHING,
            f"{round(100 * point.acceptance)} %" if point.acceptance else NOTHING,
            str(point.seed),
        )
        for point in points
    ]
    return Table(head, tuple(rows), len(head))


def _speed_notes(points: Sequence[Serving]) -> Iterable[str]:
    first = points[0]
    if first.concurrency == 1:
        alone = f"{number(first.output_rate)} tokens/s for one request alone"
        if first.expected_high:
            alone += f"; the plan expects {number(first.expected_low)} to {number(first.expected_high)}"
        if first.published:
            alone += f"; the recipe's source has published {number(first.published)}"
        yield alone
    if failed := sum(point.failed for point in points):
        yield f"{some(failed, 'request')} failed"
    if any(len(_times(point, point.ttft_ms)) < len(point.ttft_ms) for point in points):
        yield "p90 and p99 are shown where a repetition has 10 and 100 answers"


def _smoke(run: Run) -> Table:
    rows = [
        (one.service, one.kind, "✓ answered" if one.ok else "✕ not answered", one.found, f"{number(one.seconds)}")
        for one in run.smoke
    ]
    return Table(("Service", "Kind of request", "Outcome", "Found", "Seconds"), tuple(rows), 1)


# --- history and versions --------------------------------------------------------------------------------------------


def _key_numbers(run: Run) -> dict[str, float]:
    """By which runs are compared, with their units."""
    both = [rdma.value for rdma in run.rdma if rdma.test == "write" and len(rdma.halves) > 1]
    alone = [point for point in run.serving if point.concurrency == 1]
    reduced = [one for one in run.nccl if one.test == "all_reduce"]
    return {
        **({"Slowest pair, Gb/s": min(both)} if both else {}),
        **({"NCCL all_reduce, GB/s": reduced[0].largest_gbs} if reduced else {}),
        **({"One request, tokens/s": alone[0].output_rate} if alone else {}),
        **({"All requests, tokens/s": max(point.output_rate for point in run.serving)} if run.serving else {}),
    }


NUMBERS = ("Slowest pair, Gb/s", "NCCL all_reduce, GB/s", "One request, tokens/s", "All requests, tokens/s")


def _past(run: Run, names: Sequence[str]) -> Past:
    found = _key_numbers(run)
    numbers = tuple(number(found[name]) if name in found else NOTHING for name in names)
    return Past(run, run.counted, numbers)


def _machines(run: Run) -> tuple[Table, tuple[str, ...]]:
    """A row for each fact, and the facts that differ between machines."""
    machines = sorted(run.machines, key=lambda machine: machine.rank)
    names = list(dict.fromkeys(name for machine in machines for name in machine.facts))
    by_name = {name: [machine.facts.get(name) or "not seen" for machine in machines] for name in names}
    rows = [(heading(name), *values) for name, values in by_name.items()]
    differ = tuple(heading(name) for name, values in by_name.items() if len(set(values)) > 1 and name not in OWN)
    return Table(("What", *(f"{machine.host} (rank {machine.rank})" for machine in machines)), tuple(rows)), differ
