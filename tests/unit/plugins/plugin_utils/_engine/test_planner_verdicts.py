# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

"""What others saw on their Sparks, and what the plan says of it: tests/bench/planner_verdicts.py."""

import functools
from pathlib import Path

import figures
import pytest
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import recipe as engine_recipe
from planner_verdicts import CASES, DIES, REFUSES, RUNS


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}-{case.nodes}-{case.share:g}-{case.context}")
def test_the_plan_knows_what_will_happen(case):
    assert case.right != bool(case.missed), f"{case.outcome}, and the plan: {case.said()}; {case.plan().findings}"


def test_there_are_enough_cases_of_each_kind_and_each_has_a_source():
    apart = [case for case in CASES if case.apart]
    assert len(CASES) >= 60 and len(apart) * 3 >= len(CASES)
    assert {case.outcome for case in CASES} == {RUNS, REFUSES, DIES}
    assert all(case.source and case.date for case in CASES)


def test_nearly_all_are_right():
    counted = [case for case in CASES if not case.beyond]
    for some in (counted, [case for case in counted if case.apart]):
        assert sum(case.right for case in some) >= 0.95 * len(some)
    # By what is said of the memory alone, without the warning that each share above 0.75 gets.
    assert sum(case.right_by_fit for case in counted) >= 0.88 * len(counted)


def test_the_guide_has_the_table_that_the_command_prints(monkeypatch):
    monkeypatch.setattr(engine_recipe, "read", functools.cache(engine_recipe.read))
    guide = (Path(__file__).resolve().parents[5] / "docs/performance.md").read_text().splitlines()
    assert [line for line in figures.table() if line not in guide] == [], "run tests/bench/figures.py"
