# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Loads a service at one point of a sweep, several times, on its head. Nothing but the answers is measured, and nothing
is left on the machine."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Optional

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Count, Words
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._bench import generator, surroundings
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._bench.generator import (
    Generator,
    Load,
    Outcome,
    Point,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._bench.surroundings import GpuSeen
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import probe
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import status

PROBE_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Request:
    """``description``: file that the role engine has written about the service; ``model``: of its plan."""

    description: str
    generator: Generator
    point: Point
    service: str = ""
    model: str = ""


@dataclass(frozen=True)
class Served(Outcome):
    """``silent``: why nothing was measured, where the service does not answer. ``others``: requests of others that the
    engine worked on when the measurement began, None where it does not tell."""

    silent: Words = ""
    others: Optional[Count] = None
    gpu: GpuSeen = field(default_factory=GpuSeen)


def measure(request: Request, check: bool) -> Served:
    if check:
        return Served(broken="nothing was asked in check mode")
    try:
        target, others = _asked(request)
    except SparkError as exc:
        # Verdicts judge that: what else a run has measured is shown, too.
        return Served(silent=str(exc))
    load = Load(target, request.generator, request.point)
    with surroundings.Gpu() as gpu:
        measured = generator.measure(load)
    return replace(Served(**vars(measured)), others=others, gpu=gpu.seen())


def _asked(request: Request) -> tuple[probe.Target, int | None]:
    status.check(request.service, model=request.model)
    target = probe.target_of(probe.read_config(request.description))
    others = surroundings.others(lambda: probe.metrics(target))
    # Also who listens there is looked at: a stranger gets no key.
    probe.ask(target, probe.Question(timeout_s=PROBE_TIMEOUT_S))
    return target, others
