# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What verify has asked: does every service answer, as fast as planned, over RDMA on both halves of all its nodes, and
nobody else? Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import smoke
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import (
    Head,
    NodePlan,
    ServicePlan,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.ray_cluster import Counted
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.smoke import Smoked
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import traffic
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.golden_check import Compared
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.verify import Checked
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.wait import Answered
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import (
    FAIL,
    PASS,
    UNKNOWN,
    WARN,
    Limit,
    Smoke,
    Verdict,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.table import passed, unknown, verdict

ENOUGH = 16_000_000  # bytes on a node, from which on a half without any share is no accident of a short answer
PAIR = 2  # halves of one cable
NOT_ASKED = Answered()


@dataclass(frozen=True)
class Asked:
    """By host, what its tasks have returned; a host that was not asked is missing. ``answers``, ``smoke`` and
    ``golden``: in the order of the heads in its plan, ``gateway`` in that of the services. ``neighbors``: by RDMA
    device the node at the other end of its cable, empty behind a switch."""

    answers: Mapping[str, Sequence[Answered]] = field(default_factory=dict)
    smoke: Mapping[str, Sequence[Smoked]] = field(default_factory=dict)
    golden: Mapping[str, Sequence[Compared]] = field(default_factory=dict)
    before: Mapping[str, Mapping[str, int | None]] = field(default_factory=dict)
    after: Mapping[str, Mapping[str, int | None]] = field(default_factory=dict)
    ray: Mapping[str, Counted] = field(default_factory=dict)
    filters: Mapping[str, Checked] = field(default_factory=dict)
    gateway: Mapping[str, Sequence[Answered]] = field(default_factory=dict)
    neighbors: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def judge(plans: Mapping[str, NodePlan], asked: Asked, limits: Mapping[str, Limit]) -> list[Verdict]:
    found: list[Verdict] = []
    for host, plan in plans.items():
        for head, result in zip(plan.heads, _filled(asked.answers.get(host, ()), NOT_ASKED)):
            service = next(service_plan for service_plan in plan.here if service_plan.instance == head.instance)
            found += _answer(head, service, result)
            if result.answer:
                found += _rdma(head, service, asked, limits)
        for head, tried in zip(plan.heads, asked.smoke.get(host, ())):
            found += _smoke(head, tried)
        for head, compared in zip(plan.heads, asked.golden.get(host, ())):
            found += _golden(head, compared)
    found += [one for host, result in asked.ray.items() for one in _ray(host, result)]
    found += _filters(asked.filters)
    for host, results in asked.gateway.items():
        services = plans[host].services if host in plans else ()
        found += [one for offer, result in zip(services, results) for one in _gateway(host, offer.model, result)]
    return found


def smoked(plans: Mapping[str, NodePlan], asked: Asked) -> list[Smoke]:
    """For the document: what was judged."""
    found = []
    for host, plan in plans.items():
        for head, result in zip(plan.heads, asked.smoke.get(host, ())):
            for trial in result.tried:
                if trial.outcome in (smoke.OK, smoke.FAILED):
                    found.append(Smoke(head.name, trial.kind, trial.outcome == smoke.OK, trial.seconds, trial.found))
    return found


def _filled(results: Sequence[Answered], rest: Answered) -> Iterator[Answered]:
    return itertools.chain(results, itertools.repeat(rest))


# --- the service -----------------------------------------------------------------------------------------------------


def _answer(head: Head, service: ServicePlan, result: Answered) -> Iterator[Verdict]:
    about: dict[str, Any] = {"hosts": [service.head], "device": head.unit}
    answer = result.answer
    if not answer and not result.msg:
        reason = result.reason or "it was not asked"
        yield unknown("answer", "service", f"{head.model}: {reason}", **about)
        return
    if not answer:
        cause = "key_not_checked" if result.failed_at == "access" else "not_serving"
        yield verdict("answer", "service", f"{head.model}: {result.msg}", cause, **about)
        return
    found = f"{head.model}: {answer.measured}"
    yield passed("answer", "service", found, **about)
    if head.key and result.access:
        refused = f"{head.model}: a wrong key got HTTP {result.access}"
        yield passed("key", "service", refused, **about)
    low, rate = service.expectation.low, answer.tokens_per_s
    if low and rate:
        source = "the engine plan: the model of cost, or somebody's run of the same (docs/performance.md)"
        limit = Limit(round(low, 1), "tokens/s", "least", source, "this collection")
        said = f"{head.model}: {rate:.1f} tokens/s for one request"
        slow: dict[str, Any] = {"outcome": WARN, "cause": "below_expectation"} if rate < low else {"outcome": PASS}
        yield verdict("speed", "service", said, value=rate, limit=limit, **slow, **about)


def _golden(head: Head, compared: Compared) -> Iterator[Verdict]:
    for one in compared.differences:
        found = f"{head.model}: {one.found}"
        yield verdict("golden", "service", found, one.rule, device=head.unit)
    if compared.numbers and not compared.differences:
        yield passed("golden", "service", f"{head.model} answers {compared.words}", device=head.unit)
    elif not compared.differences:
        said = compared.words or compared.msg or "it was not asked"
        yield unknown("golden", "service", f"{head.model} was not compared with itself: {said}", device=head.unit)


def _smoke(head: Head, result: Smoked) -> Iterator[Verdict]:
    for trial in result.tried:
        outcome: dict[str, Any] | None = {
            smoke.OK: {"outcome": PASS},
            smoke.FAILED: {"outcome": FAIL, "cause": "smoke_failed"},
            smoke.NOT_JUDGED: {"outcome": UNKNOWN},
        }.get(trial.outcome)
        if outcome:
            found = f"{head.model}, {trial.kind}: {trial.found}"
            yield verdict(f"smoke_{trial.kind}", "service", found, device=head.unit, **outcome)


# --- RDMA ------------------------------------------------------------------------------------------------------------


def _rdma(head: Head, service: ServicePlan, asked: Asked, limits: Mapping[str, Limit]) -> Iterator[Verdict]:
    """Of every node with ranks that talk to those of other nodes. Nothing where no node was asked: in site.yml."""
    parallel = service.parallel
    hosts = [member.host for member in service.members if member.ranks]
    if not asked.before or len(hosts) < 2 or not (parallel.tensor * parallel.pipeline > 1 or parallel.expert):
        return
    for host in hosts:
        before, after = asked.before.get(host), asked.after.get(host)
        ends = asked.neighbors.get(host, {})
        if before:
            # In a ring other cables lead to nodes without this service.
            before = {device: size for device, size in before.items() if ends.get(device, "") in ("", *hosts)}
        if before is None or after is None:
            found = "what RDMA moved during the answers was not read"
            yield unknown("rdma_used", "node", found, [host])
        elif before:
            # Stages of a pipeline send one message at a time, over one half.
            share = limits["half_share"] if parallel.tensor > 1 or parallel.expert else None
            yield from _moved(host, head, before, after, share)
        # Without RDMA in the fact the transport is socket, as the user wants it.


def _moved(
    host: str, head: Head, before: Mapping[str, int | None], after: Mapping[str, int | None], share: Limit | None
) -> Iterator[Verdict]:
    moved = traffic.added(before, after)
    counted = {device: size for device, size in moved.items() if size is not None}
    shown = ", ".join(
        f"{device} {'not counted' if size is None else f'{size / 1e6:.1f} MB'}" for device, size in moved.items()
    )
    if len(counted) < len(moved):
        found = f"what RDMA moved during the answers is not known: {shown}"
        yield unknown("rdma_used", "node", found, [host])
        return
    total = sum(counted.values())
    if not total:
        found = f"{head.model} answered, and no byte moved over RDMA ({', '.join(counted)})"
        yield verdict("rdma_used", "node", found, "tcp_fallback", [host], evidence=[shown])
        return
    yield passed("rdma_used", "node", f"moved over RDMA during the answers: {shown}", [host])
    if len(counted) < PAIR or share is None:
        return
    device, least = min(counted.items(), key=lambda item: item[1])
    about: dict[str, Any] = {"hosts": [host], "device": device, "value": round(least / total, 3), "evidence": [shown]}
    wanted = share.value * PAIR / len(counted)  # the limit is for two halves
    if total < ENOUGH:
        found = f"{total / 1e6:.1f} MB are too few to tell whether all halves are used; benchmark.yml --tags nccl tells"
        yield unknown("both_halves", "half", found, **about)
    elif least == 0:
        found = f"{head.model} answered, and this half carried nothing"
        # In a ring NCCL's trees may leave a cable out.
        outcome = FAIL if len(counted) == PAIR else WARN
        yield verdict("both_halves", "half", found, "one_half_only", outcome=outcome, limit=share, **about)
    elif least < wanted * total:
        found = f"this half carried {least / total:.0%} of what RDMA moved"
        yield verdict("both_halves", "half", found, "one_half_only", outcome=WARN, limit=share, **about)
    else:
        yield passed("both_halves", "half", f"all halves carry alike: {shown}", [host])


# --- around it -------------------------------------------------------------------------------------------------------


def _ray(host: str, result: Counted) -> Iterator[Verdict]:
    found = result.msg or result.reason
    if result.complete:
        found = f"Ray has all {len(result.alive)} nodes"
        yield passed("ray_nodes", "cluster", found, [host])
    elif found:
        yield verdict("ray_nodes", "cluster", found, "ray_incomplete", [host])


def _filters(results: Mapping[str, Checked]) -> Iterator[Verdict]:
    wrong = {host: result for host, result in results.items() if result.msg}
    for host, one in wrong.items():
        yield verdict("port_filter", "node", one.msg, "port_filter_off", [host])
    if results and not wrong:
        found = "strangers do not reach Ray and the ranks: the port filter is active"
        yield passed("port_filter", "cluster", found, list(results))


def _gateway(host: str, model: str, result: Answered) -> Iterator[Verdict]:
    if result.answer:
        found = f"{model} through the gateway: {result.answer.measured}"
        yield passed("gateway", "service", found, [host])
    elif result.msg:
        found = f"{model} through the gateway: {result.msg}"
        yield verdict("gateway", "service", found, "gateway_silent", [host])
