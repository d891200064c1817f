# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The judgement of a serving benchmark: against the plan, against what others published, and against earlier runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import (
    FAIL,
    PASS,
    UNKNOWN,
    WARN,
    Limit,
    Run,
    Service,
    Serving,
    Verdict,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.limits import LEAST, US
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.table import verdict

COMPARED = 5  # earlier runs
PASSING = ("clock", "temperature", "temperature under load")  # facts of a moment
PLAN = "the plan: the model of cost, or somebody's run of the same, docs/performance.md"


@dataclass(frozen=True)
class Measured:
    """One point, or why there is none. ``others``: requests of others that the engine worked on meanwhile."""

    service: Service
    serving: Serving | None
    label: str
    missing: str = ""  # why there is no generator
    broken: str = ""  # why it ended early
    lines: tuple[str, ...] = ()
    others: int = 0
    silent: str = ""  # why nothing was asked: the service does not answer


def judge(
    measured: Sequence[Measured], earlier: Sequence[Run], now: Run | None, limits: Mapping[str, Limit]
) -> list[Verdict]:
    """``earlier``: the newest first. ``now``: what this run knows of machines and services, for what has changed."""
    found: list[Verdict] = []
    for service in {point.service.name: point.service for point in measured}.values():
        points = [point for point in measured if point.service.name == service.name]
        found += _service(service, points, earlier, now, limits)
    return found


def _service(
    service: Service, points: Sequence[Measured], earlier: Sequence[Run], now: Run | None, limits: Mapping[str, Limit]
) -> list[Verdict]:
    found = [item for point in points for item in _answered(point)]
    good = [point.serving for point in points if point.serving and point.serving.requests > point.serving.failed]
    busy = max((point.others for point in points), default=0)
    if not good:
        return found
    if busy:
        said = f"{busy} request(s) of others ran meanwhile: the speed of {service.model} says nothing"
        return [*found, _of(service, "serving_speed", said, outcome=UNKNOWN)]
    speed = [
        *_expected(service, good),
        *_regressions(service, good, earlier, now, limits),
    ]
    if not speed and not any(map(decode, good)):
        said = f"{service.model} answers, and the time of a token was not measured: answers of one token have none"
        speed = [_of(service, "serving_speed", said, outcome=UNKNOWN)]
    elif not speed:
        said = (
            f"{service.model} generates {decode(good[0]):.1f} tokens/s at {good[0].concurrency} request(s) at a time;"
            " plan and recipe have no figure, and no earlier run is kept: the next one is compared with this"
        )
        speed = [_of(service, "serving_speed", said, outcome=UNKNOWN)]
    return [*found, *speed, *_accepted(service, good, limits)]


def decode(serving: Serving) -> float:
    """Tokens/s of all requests together while they generate: without the time until the first token. 0 where that was
    not measured."""
    each = serving.tpot_ms.get("median", 0)
    return serving.concurrency * 1000 / each if each else 0.0


def _of(service: Service, check: str, found: str, **more: Any) -> Verdict:
    return verdict(check, "service", found, hosts=service.hosts, device=service.name, **more)


def _answered(point: Measured) -> Iterator[Verdict]:
    """Whether every request was answered."""
    check, serving = "serving_requests", point.serving
    if point.silent:
        yield _of(point.service, check, f"{point.service.model}: {point.silent}", cause="not_serving")
    elif point.missing:
        said = f"{point.service.engine} brings no vllm bench ({point.missing})"
        remedy = (
            "Download vllm-bench of github.com/vllm-project/vllm-bench to the head, and name its path:"
            " benchmark_program"
        )
        yield _of(point.service, check, said, outcome=UNKNOWN, evidence=point.lines, remedy=remedy)
    elif serving is None or not serving.requests:
        said = f"{point.label}: not measured, {point.broken}"
        yield _of(point.service, check, said, outcome=UNKNOWN, evidence=point.lines)
    elif serving.failed:
        said = f"{point.label}: {serving.failed} of {serving.requests} requests got no answer"
        yield _of(
            point.service,
            check,
            said,
            cause="requests_failed",
            value=serving.failed,
            evidence=(*point.lines, *_cut(point)),
        )
    elif point.broken:
        yield _of(
            point.service, check, f"{point.label}: cut short, {point.broken}", outcome=UNKNOWN, evidence=point.lines
        )
    else:
        said = f"{point.label}: all {serving.requests} requests were answered"
        yield _of(point.service, check, said, outcome=PASS)


def _cut(point: Measured) -> tuple[str, ...]:
    return (point.broken,) if point.broken else ()


def _expected(service: Service, good: Sequence[Serving]) -> Iterator[Verdict]:
    """By the middle one of all points, each against what the plan expects of as many requests at a time."""
    known = [point for point in good if point.expected_low and decode(point)]
    shares = sorted((decode(point) / point.expected_low, number) for number, point in enumerate(known))
    if not shares:
        return
    share, number = shares[(len(shares) - 1) // 2]
    point = known[number]
    rate = decode(point)
    limit = Limit(point.expected_low, "tokens/s", LEAST, PLAN, US)
    told = f"somebody measured {point.published:g} of the same" if point.published else "the plan expects"
    said = (
        f"{service.model} generates {rate:.1f} tokens/s at {point.concurrency} request(s) at a time;"
        f" {told}{',' if point.published else ''} {point.expected_low:g} to {point.expected_high:g}"
    )
    slow = share < 1
    yield _of(
        service,
        "serving_expected",
        said,
        outcome=FAIL if slow else PASS,
        cause="below_expectation" if slow else "",
        value=round(rate, 1),
        limit=limit,
    )


def _regressions(
    service: Service, good: Sequence[Serving], earlier: Sequence[Run], now: Run | None, limits: Mapping[str, Limit]
) -> list[Verdict]:
    """Slower than the slowest repetition of the last runs, and by more than the limit. One verdict when none is."""
    compared, slow = 0, []
    for point in good:
        before = [(run, old) for run in earlier for old in run.serving if _same(point, old) and _as_many(run, service)]
        if not before:
            continue
        before = before[:COMPARED]
        compared += 1
        usual = median(old.output_rate for _run, old in before)
        share = limits["regression_percent"]
        least = usual * (1 - share.value / 100)
        if point.output_rate_high >= min(old.output_rate_low for _run, old in before) or point.output_rate >= least:
            continue
        times = f"{len(before)} earlier run(s), the last {before[0][0].at}"
        said = (
            f"{service.model}, {point.concurrency} at a time, prompts of {point.prompt_tokens} tokens:"
            f" {point.output_rate:.1f} tokens/s ({_spread(point)}), before {usual:.1f} ({_spread(before[0][1])})"
        )
        slow.append(
            _of(
                service,
                "serving_regression",
                said,
                cause="regression",
                value=round(point.output_rate, 2),
                limit=Limit(round(least, 2), "tokens/s", LEAST, times, "this cluster", share.variable),
                evidence=changes(before[0][0], now, service) if now else (),
            )
        )
    if slow or not compared:
        return slow
    said = f"{service.model}: as fast as before, at {compared} point(s)"
    return [_of(service, "serving_regression", said, outcome=PASS)]


def _spread(point: Serving) -> str:
    return f"{point.output_rate_low:.1f} to {point.output_rate_high:.1f}"


def _same(point: Serving, old: Serving) -> bool:
    names = ("service", "model", "concurrency", "prompt_tokens", "output_tokens", "text")
    return all(getattr(point, name) == getattr(old, name) for name in names) and not old.failed and old.output_rate > 0


def _as_many(run: Run, service: Service) -> bool:
    """Then and now on as many machines."""
    return any(one.name == service.name and len(one.hosts) == len(service.hosts) for one in run.services)


def changes(then: Run, now: Run, service: Service) -> tuple[str, ...]:
    """What has changed of all that decides the speed."""
    found = []
    old = next((one for one in then.services if one.name == service.name), None)
    if old:
        pairs = [
            (name, getattr(old, name), getattr(service, name)) for name in ("recipe", "engine", "version", "image")
        ]
        pairs += [
            (f"option {name}", old.options.get(name, "not set"), service.options.get(name, "not set"))
            for name in sorted({*old.options, *service.options})
        ]
        found += [
            f"{name}: {before or 'unknown'} -> {after or 'unknown'}" for name, before, after in pairs if before != after
        ]
    machines = {one.host: one for one in then.machines}
    for machine in now.machines:
        before = machines[machine.host].facts if machine.host in machines else {}
        found += [
            f"{machine.host} {name}: {before[name]} -> {value}"
            for name, value in machine.facts.items()
            if name not in PASSING and name in before and before[name] != value
        ]
    return tuple(found) or ("nothing that is recorded has changed since",)


def _accepted(service: Service, good: Sequence[Serving], limits: Mapping[str, Limit]) -> Iterator[Verdict]:
    """Of plain English: drafts of random tokens tell nothing."""
    drafted = [point for point in good if point.text]
    if not drafted:
        return
    told = [point.acceptance for point in drafted if point.acceptance]
    if not told:
        said = f"{service.model} drafts tokens, and does not tell how many are accepted"
        yield _of(service, "serving_drafts", said, outcome=UNKNOWN)
        return
    share, limit = median(told), limits["draft_acceptance"]
    rejected = share < limit.value
    yield _of(
        service,
        "serving_drafts",
        f"{service.model} accepts {share:.0%} of the drafted tokens",
        outcome=WARN if rejected else PASS,
        cause="speculation_rejected" if rejected else "",
        value=round(share, 3),
        limit=limit,
    )
