# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Which values the keeper's settings may have."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

DAY_S = 86400


@dataclass(frozen=True)
class Range:
    """``option``: of the planner ``engine_files``. ``low`` and ``high`` are allowed; ``why``: what is wrong outside."""

    variable: str
    option: str
    low: int
    high: int
    why: str

    @property
    def allowed(self) -> str:
        return f"{self.low} to {self.high}"


RANGES: tuple[Range, ...] = (
    Range(
        "engine_hang_seconds",
        "hang_s",
        30,
        DAY_S,
        "an engine that works on one long step would be restarted as a dead one",
    ),
    Range("engine_ready_timeout_s", "ready_s", 60, DAY_S, "every start would end before the model is loaded, or never"),
    Range(
        "engine_stable_s",
        "stable_s",
        5,
        DAY_S,
        "an engine that always dies early would be started for ever, or old failures would count for ever",
    ),
)


def probes(hang_s: float) -> dict[str, float]:
    """How often the keeper asks for a token, and how long it waits for one: several times until an engine has hung."""
    return {"probe_interval_s": min(30, max(5, hang_s // 20)), "probe_timeout_s": min(60, max(10, hang_s // 10))}


def outside(value: Any, allowed: Range) -> str:
    """A sentence where ``value`` is a number that is not allowed, else an empty text: types have their own check."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return ""
    if isinstance(value, bool) or (math.isfinite(number) and allowed.low <= number <= allowed.high):
        return ""
    return f"{allowed.variable} is {value}, allowed is {allowed.allowed}: {allowed.why}"


def problems(options: Mapping[str, Any]) -> Iterator[str]:
    """One sentence per option that is not allowed; what is left out is as the keeper has it."""
    for allowed in RANGES:
        found = outside(options.get(allowed.option), allowed)
        if found:
            yield f"{found}."
