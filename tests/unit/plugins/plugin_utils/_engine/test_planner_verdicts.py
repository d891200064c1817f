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
    assert len(CASES) >= 30
    assert sum(case.later for case in CASES) * 3 >= len(CASES)
    assert {case.outcome for case in CASES} == {RUNS, REFUSES, DIES}
    assert all(case.source and case.date for case in CASES)
    assert sum(bool(case.missed) for case in CASES) <= 1


def test_the_guide_has_the_table_that_the_command_prints(monkeypatch):
    monkeypatch.setattr(engine_recipe, "read", functools.cache(engine_recipe.read))
    guide = (Path(__file__).resolve().parents[5] / "docs/performance.md").read_text().splitlines()
    assert [line for line in figures.table() if line not in guide] == [], "run tests/bench/figures.py"
