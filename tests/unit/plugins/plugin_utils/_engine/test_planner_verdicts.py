# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

"""What others saw on their Sparks, and what the plan says of it: tests/bench/planner_verdicts.py."""

import pytest
from planner_verdicts import CASES, DIES, REFUSES, RUNS


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}-{case.nodes}-{case.share:g}-{case.context}")
def test_the_plan_knows_what_will_happen(case):
    assert case.right != bool(case.missed), f"{case.outcome}, and the plan: {case.said()}; {case.plan().findings}"


def test_there_are_enough_cases_of_each_kind_and_each_has_a_source():
    assert len(CASES) >= 30
    assert sum(case.later for case in CASES) * 3 >= len(CASES)
    assert {case.outcome for case in CASES} == {RUNS, REFUSES, DIES}
    assert all(case.source and case.date for case in CASES)
    assert sum(bool(case.missed) for case in CASES) <= 1
