# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which of the steps a run takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from suite.ledger import Ledger
from suite.steps import OVERDRAWN, Step


def shard(steps: Sequence[Step], number: int, count: int) -> list[Step]:
    """Part ``number`` of ``count`` parts that take about as long. By the budgets, which every machine agrees on."""
    parts: list[list[Step]] = [[] for _ in range(count)]
    for step in sorted(steps, key=lambda one: (-one.budget_s, one.name)):
        min(parts, key=lambda part: sum(one.budget_s for one in part)).append(step)
    return [step for step in steps if step in parts[number - 1]]


def stalest(steps: Sequence[Step], ledger: Ledger) -> list[Step]:
    """Those that never passed, then the one that passed the longest time ago."""

    def last_time(step: Step) -> str:
        green = ledger.last_green(step.name)
        return green.when if green else ""

    return sorted(steps, key=last_time)


def fits(ledger: Ledger, minutes: float) -> Callable[[Step, float], bool]:
    """Whether a step that begins after so many seconds will be over in time, by what it took last."""

    def in_time(step: Step, seconds: float) -> bool:
        last = ledger.last_green(step.name)
        return seconds + (last.seconds if last else step.budget_s) <= 60 * minutes

    return in_time


def overdrawn(step: Step, seconds: float, stolen: float = 0.0) -> bool:
    """``stolen``: which share of the processor time that it wanted the host of a virtual machine gave to others."""
    return seconds * (1 - stolen) > OVERDRAWN * step.budget_s
