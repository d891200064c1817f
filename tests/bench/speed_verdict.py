#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""How often a pair at half its speed fails its benchmark, and a healthy one, by the published errors of the model.

Each case is a configuration of speed_rows.yml: the machine is as fast as was published there, give or take 5 % from run
to run, and the verdict is the product's own, of all points of that configuration. With ``published`` somebody has
measured the same before, give or take as much. One drafts at what its text gave, which the benchmark measures.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import speed_model
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import (
    Expectation,
    Pace,
    Published,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import FAIL, Service, Serving
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import expected_speed
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.limits import limits
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._verdict import serving

RUN_TO_RUN = 0.05  # of one machine and text: pairs of runs of one configuration are up to 6 % apart
SERVICE = Service("a", "a-model", hosts=("spark1", "spark2"))


@dataclass(frozen=True)
class Outcome:
    cases: int
    found: float  # share of cases at half the speed that fail
    false_alarms: float  # share of healthy cases that fail


def _points(rows: Sequence[speed_model.Row], chance: random.Random, published: bool, part: float) -> Iterator[Serving]:
    expected = Expectation(
        paces=tuple(Pace(row.users, row.computed()) for row in rows),
        published=tuple(
            Published(row.published * chance.gauss(1, RUN_TO_RUN), row.users, "vllm", "somebody", False)
            for row in rows
            if published
        ),
    )
    machine = chance.gauss(1, RUN_TO_RUN) * part
    for row in rows:
        low, high = expected.healthy(row.users, "vllm")
        each = 1000 * row.users / (row.published * machine)
        yield Serving("a", "a-model", row.users, 1024, 128, 3, 6, 0, 1, 1.0, 1.0, 1.0,
                      tpot_ms={"median": each}, expected_low=low, expected_high=high)  # fmt: skip


def _fails(points: Sequence[Serving]) -> bool:
    measured = [serving.Measured(SERVICE, point, "") for point in points]
    found = serving.judge(measured, [], None, limits())
    return any(verdict.check == "serving_expected" and verdict.outcome == FAIL for verdict in found)


def simulate(rows: Sequence[speed_model.Row], times: int, published: bool = False, seed: int = 1) -> Outcome:
    """``times`` cases of each configuration, half as fast and healthy."""
    chance = random.Random(seed)
    of: dict[str, list[speed_model.Row]] = {}
    for row in rows:
        if row.context == expected_speed.ALREADY:
            of.setdefault(row.configuration, [])
            if row.users not in [one.users for one in of[row.configuration]]:
                of[row.configuration].append(row)
    found = false = cases = 0
    for _time in range(times):
        for configuration in of.values():
            cases += 1
            found += _fails(list(_points(configuration, chance, published, 0.5)))
            false += _fails(list(_points(configuration, chance, published, 1.0)))
    return Outcome(cases, found / cases, false / cases)


def main(argv: Sequence[str]) -> None:
    times = int(argv[0]) if argv else 200
    seen, apart = speed_model.halves()
    for name, rows, published in (
        ("model of cost, seen half", seen, False),
        ("model of cost, kept apart", apart, False),
        ("model of cost, all", [*seen, *apart], False),
        ("somebody's run of the same", [*seen, *apart], True),
    ):
        made = simulate(rows, times, published)
        print(f"{name}: {made.cases} cases, found {made.found:.1%}, false alarms {made.false_alarms:.1%}")


if __name__ == "__main__":
    main(sys.argv[1:])
