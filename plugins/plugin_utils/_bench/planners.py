# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The planners of the serving benchmark: ``serving_sweep`` before it, ``serving_verdicts`` after it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._bench.generator import Point, Repetition
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._bench.serving import Served
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import plan_document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import NodePlan, ServicePlan
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.node import read as read_node
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import (
    Machine,
    Run,
    Service,
    Serving,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base.planner import Options, Planner
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._bench import sweep
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.limits import limits
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._verdict import gather, serving
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._verdict.planners import known_facts, part
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._verdict.serving import Measured

SEEDS = 1_000_000  # so many runs have prompts of their own
NOTHING = "No service that generates text is planned"


def plan_sweep(options: Options) -> dict[str, Any]:
    settings = sweep.read_settings(options["settings"])
    seed = int(time.time()) % SEEDS * sweep.SEEDS
    runs: dict[str, list[dict[str, Any]]] = {host: [] for host in options["plans"]}
    lines = []
    for host, plan in options["plans"].items():
        for service in _generating(plan):
            runs[host] += sweep.runs(service, settings, seed, options["user"])
            lines.append(sweep.announced(service, sweep.points(service, settings, seed)))
    if not lines:
        raise SparkError(NOTHING, "engine_recipe, engine_services", "An embedding service has no tokens to count")
    return {"runs": runs, "lines": lines, "download": settings.download}


def judge(options: Options) -> dict[str, Any]:
    plans: Mapping[str, NodePlan] = options["plans"]
    nodes = {host: told.node for host, told in options["info"].items() if told}
    facts = known_facts(options["info"])
    services = {service.name: service for service in gather.services(plans)}
    measured: list[Measured] = []
    machines: dict[str, Machine] = {}
    for host, results in options["measured"].items():
        names = {head.instance: head.name for head in plans[host].heads}
        for run, result in zip(options["runs"].get(host, ()), results):
            own = _service(plans[host], run["service"])
            point = document.load(Point, run["point"])
            measured.append(_measured(services[names[own.instance]], own, point, result))
            machines.update(_machine(host, plans[host], result))
    known = gather.merged(gather.machines(nodes, facts, plans), machines.values())
    now = Run("", "benchmark", "", 0, "", machines=tuple(known))
    earlier = [run for kept in options["earlier"].values() for run in kept.runs or ()]
    found = serving.judge(measured, earlier, now, limits(options["limits"]))
    points = [one.serving for one in measured if one.serving]
    # Later runs are compared with what is kept.
    disturbed = {one.service.name for one in measured if one.others}
    kept = [one for one in points if one.service not in disturbed]
    return {
        "lines": table(points),
        "part": part(verdicts=found, serving=kept, machines=list(machines.values())),
    }


def table(points: Sequence[Serving]) -> list[str]:
    """For people; repetitions vary between the two rates in brackets."""
    if not points:
        return ["No speed was measured."]
    titles = ("model", "at a time", "prompt", "tokens/s", "(low to high)", "first token", "a token", "failed")
    rows = [
        (
            point.model,
            str(point.concurrency),
            str(point.prompt_tokens),
            f"{point.output_rate:.1f}",
            f"({point.output_rate_low:.1f} to {point.output_rate_high:.1f})",
            f"{point.ttft_ms.get('median', 0):.0f} ms",
            f"{point.tpot_ms.get('median', 0):.1f} ms",
            str(point.failed),
        )
        for point in points
    ]
    widths = [max(len(row[column]) for row in (titles, *rows)) for column in range(len(titles))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in (titles, *rows)]


def _generating(plan: NodePlan) -> list[ServicePlan]:
    return [_service(plan, head.instance) for head in plan.heads if head.task == "generate"]


def _service(plan: NodePlan, instance: str) -> ServicePlan:
    return next(service_plan for service_plan in plan.here if service_plan.instance == instance)


def _measured(service: Service, plan: ServicePlan, point: Point, found: Served) -> Measured:
    runs = found.repetitions
    return Measured(
        service,
        _serving(service.name, plan, point, runs) if runs else None,
        f"{service.model}, {point.concurrency} at a time, prompts of {point.prompt_tokens} tokens",
        found.missing,
        found.broken,
        found.lines,
        found.others or 0,
        found.silent,
    )


def _serving(name: str, plan: ServicePlan, point: Point, runs: Sequence[Repetition]) -> Serving:
    """The generator's own numbers; of several repetitions the median. One without an answer has no times."""
    whole = [repetition for repetition in runs if repetition.requests > repetition.failed]
    rates = [repetition.output_rate for repetition in runs]
    accepted = [repetition.acceptance for repetition in runs if repetition.acceptance is not None]
    expected = plan.expectation
    each = 1 + median(accepted) * expected.drafted if accepted else 0.0
    low, high = expected.healthy(point.concurrency, plan.engine.name, each if expected.drafted else 0.0)
    rate, measured = expected.at(point.concurrency, plan.engine.name)
    return Serving(
        service=name,
        model=plan.engine.served_model_name,
        concurrency=point.concurrency,
        prompt_tokens=point.prompt_tokens,
        output_tokens=point.output_tokens,
        text=point.text,
        repetitions=len(runs),
        requests=sum(repetition.requests for repetition in runs),
        failed=sum(repetition.failed for repetition in runs),
        seed=point.seed,
        output_rate=round(median(rates), 3),
        output_rate_low=round(min(rates), 3),
        output_rate_high=round(max(rates), 3),
        ttft_ms=_medians([repetition.ttft_ms for repetition in whole]),
        tpot_ms=_medians([repetition.tpot_ms for repetition in whole]),
        goodput=round(median(repetition.goodput for repetition in runs), 4),
        acceptance=round(median(accepted), 4) if accepted else 0,
        expected_low=round(low, 1),
        expected_high=round(high, 1),
        published=round(rate, 1) if measured else 0,
    )


def _medians(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: round(median(one[name] for one in found), 3) for name in (found[0] if found else ())}


def _machine(host: str, plan: NodePlan, result: Served) -> dict[str, Machine]:
    """How its GPU ran under the heaviest load, which is measured last."""
    gpu = result.gpu
    seen = {
        "clock under load": f"{gpu.mhz} MHz" if gpu.mhz else "",
        "temperature under load": f"{gpu.celsius} C" if gpu.celsius else "",
        "clock held down by": ", ".join(gpu.slowed),
    }
    facts = {name: value for name, value in seen.items() if value}
    rank = next((service_plan.rank for service_plan in plan.here), 0)
    return {host: Machine(host, rank, facts)} if facts else {}


SETTINGS: dict[str, Any] = {
    "concurrency": {"type": "list", "elements": "int", "default": []},
    "prompt_tokens": {"type": "list", "elements": "int", "default": [], "no_log": False},
    "output_tokens": {"type": "int", "default": 0, "no_log": False},
    "program": {"type": "str", "default": ""},
}
PLANNERS = {
    "serving_sweep": Planner(
        plan_sweep,
        {
            "settings": {"type": "dict", "options": SETTINGS, "default": {}, "apply_defaults": True},
            "user": {"type": "str", "default": "sparkmatrix"},
        },
        gathered={"plans": plan_document.read},
    ),
    "serving_verdicts": Planner(
        judge,
        {
            "runs": {"type": "dict", "required": True},
            "limits": {"type": "dict", "default": {}},
        },
        gathered={"plans": plan_document.read, "info": read_node, "measured": ["serving_bench"], "earlier": "verdicts"},
        alive=True,
    ),
}
