#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Published speeds of real Sparks (speed_rows.yml) against the model of speed, which is fitted to one half of them.

speed_model.py [--rows]   errors of both halves, or of every row of the seen one
speed_model.py --fit      the constants that fit the seen half best, and what each of them is worth
"""

from __future__ import annotations

import hashlib
import math
import pathlib
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "collections"))

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Parallel
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import expected_speed as speed
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.model import Architecture, Draft

TABLE = pathlib.Path(__file__).with_name("speed_rows.yml")
FITTED = ("memory", "flops", "layer_s", "eager_s", "all_reduce_s")


@dataclass(frozen=True)
class Row:
    """One point of a configuration: tokens/s of all users, or of a prompt (``users`` 0)."""

    configuration: str
    source: str
    served: speed.Served
    users: int
    context: int
    published: float

    @property
    def kept_apart(self) -> bool:
        """All points of one configuration lie in the same half: by its name alone, before anything was compared."""
        return hashlib.sha256(self.configuration.encode()).digest()[0] % 2 == 1

    def computed(self, costs: speed.Costs = speed.GB10) -> float:
        if not self.users:
            return self.context / speed.prefill_s(self.served, self.context, costs)
        return speed.tokens_per_second(self.served, self.users, self.context, costs)

    def error(self, costs: speed.Costs = speed.GB10) -> float:
        """0.2: the model says 20 % more than was measured."""
        return self.computed(costs) / self.published - 1


def _served(model: Mapping[str, Any], row: Mapping[str, Any], accepted: float) -> speed.Served:
    drafted = row.get("draft")
    draft = None
    if drafted:
        own = "" if drafted["method"] == "mtp" else "another"
        draft = Draft(drafted["method"], drafted["tokens"], own, drafted["weights_gb"], acceptance=accepted)
    return speed.Served(
        Architecture(**model["architecture"]),
        Parallel(row["nodes"], 1, ""),
        model["weights_gb"] * 1e9,
        model["active_gb"] * 1e9,
        model["active_b"] * 1e9,
        dtype="fp8",
        draft=draft,
        eager=row.get("eager", False),
    )


def rows(prompts: bool = False) -> Iterator[Row]:
    table = yaml.safe_load(TABLE.read_text())
    for row in table["rows"]:
        draft, source = row.get("draft"), table["sources"][row["source"]]
        drafted = f"{draft['method']} {draft['tokens']}" if draft else "plain"
        name = f"{row['source']} {row['model']} x{row['nodes']} {drafted}"
        said = f"{source['of']}, {source['date']}"
        points: list[list[Any]] = row["points"]
        if prompts:
            points = [[0, rate, {"context": tokens}] for tokens, rate in row.get("prefill", ())]
        for users, rate, *more in points:
            point = more[0] if more else {}
            served = _served(table["models"][row["model"]], row, point.get("accepted", 0.0))
            yield Row(name, said, served, users, point.get("context", speed.ALREADY), rate)


def halves(prompts: bool = False) -> tuple[list[Row], list[Row]]:
    """(seen, kept apart)."""
    found = list(rows(prompts))
    return [row for row in found if not row.kept_apart], [row for row in found if row.kept_apart]


def errors(found: Sequence[Row], costs: speed.Costs = speed.GB10) -> list[float]:
    return sorted(abs(row.error(costs)) for row in found)


def within(found: Sequence[Row], limit: float) -> float:
    return sum(error <= limit for error in errors(found)) / len(found)


def _loss(found: Sequence[Row], costs: speed.Costs) -> float:
    """Each configuration counts once, whatever the number of its points."""
    of: dict[str, list[float]] = {}
    for row in found:
        of.setdefault(row.configuration, []).append(abs(math.log(row.computed(costs) / row.published)))
    return statistics.mean(map(statistics.mean, of.values()))


def fit(found: Sequence[Row]) -> speed.Costs:
    """By turns, each constant a little up and down, until none of them helps."""
    costs, step = speed.GB10, 1.3
    best = _loss(found, costs)
    while step > 1.005:
        before = best
        for name in FITTED:
            for factor in (step, 1 / step):
                tried = replace(costs, **{name: getattr(costs, name) * factor})
                loss = _loss(found, tried)
                if loss < best:
                    costs, best = tried, loss
        if before == best:
            step = 1 + (step - 1) / 2
    return costs


def main(argv: Sequence[str]) -> None:
    seen, apart = halves()
    if "--fit" in argv:
        costs = fit(seen)
        print(costs, f"loss {_loss(seen, costs):.3f}")
        return
    if "--rows" in argv:
        for row in seen:
            print(f"{row.error():+5.0%}  {row.computed():6.1f} {row.published:6.1f}  {row.users:2} {row.configuration}")
    for name, found in (("seen", seen), ("kept apart", apart)):
        several = len({row.configuration for row in found})
        middle = statistics.median(errors(found))
        print(
            f"{name}: {len(found)} points of {several} configurations, median error {middle:.0%},"
            f" within 15 % {within(found, 0.15):.0%}, within 30 % {within(found, 0.3):.0%}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
