# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Judges planned options by what the engines on the nodes say of themselves, where no table is right for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import NodePlan, ServicePlan
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.version import Answer
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import hazards, option_tables
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.registry import KINDS


def judge(plans: Mapping[str, NodePlan], told: Mapping[str, Mapping[str, Answer]]) -> list[Finding]:
    """``told``: per host, image or environment what its engine says of itself. Equal findings are told once."""
    made: dict[Finding, list[str]] = {}
    for host, document in plans.items():
        asked = {unknown.name for unknown in document.unknown}
        for service in document.all:
            place = service.image if service.contained else service.venv.path
            answer = told.get(host, {}).get(place)
            if service.engine.runs_here and place in asked and answer is not None:
                for finding in _judge(service, place, answer):
                    made.setdefault(finding, []).append(host)
    return [replace(finding, found=f"{finding.found} (asked on {', '.join(hosts)})") for finding, hosts in made.items()]


def _judge(service: ServicePlan, place: str, answer: Answer) -> Iterator[Finding]:
    engine, version = KINDS[service.engine.name], answer.version
    words, known = service.engine.command.options, frozenset(answer.options)
    if not version:
        yield Finding(
            place,
            f"it has no {engine.label}: no Python package {' or '.join(engine.distributions)} is installed there",
            "Name one that has it",
        )
        return
    label = f"{engine.label} {version}"
    told = service.contained and bool(engine.image_version(place))  # by the plan
    yield from hazards.of_answer(
        engine.name, engine.label, "" if told or not service.contained else version, answer.cuda, place
    )
    table = option_tables.load(engine.name, version)
    if table is not None:
        for found, remedy in option_tables.check(words, table, engine.removed, label, engine.underscores):
            yield Finding(place, found, remedy)
        for found, remedy in option_tables.check_environment(
            sorted(service.engine.env), engine.prefix, table, engine.removed_environment, label
        ):
            yield Finding(place, found, remedy)
    elif known:
        for found, remedy in option_tables.check_names(words, known, engine.removed, label, engine.underscores):
            yield Finding(place, found, remedy)
    else:
        yield Finding(
            place,
            f"{label} has no option table here and did not list its options, so they are not checked",
            "A mistyped option shows only when the engine starts",
            severity="warning",
        )
