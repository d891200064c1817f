# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The lab's stand-in takes every rank that the plan makes for it."""

from __future__ import annotations

import importlib.util
import pathlib
import shutil
import sys

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import option_tables
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import plan as engine_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import recipe as engine_recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.user_settings import UserSettings

LAB = pathlib.Path(__file__).resolve().parents[2] / "lab"
TABLES = ("vllm-0.33.0", "sglang-0.5.23", "tensorrt-llm-1.4.0")


@pytest.fixture
def standin(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("standin", LAB / "standin/standin.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "standin", module)
    spec.loader.exec_module(module)
    for table in TABLES:
        shutil.copy(option_tables.DIRECTORY / f"{table}.json", tmp_path)
    monkeypatch.setattr(module, "TABLES", tmp_path)
    (tmp_path / "config.json").write_text("{}")
    return module


def ranks(tmp_path, nodes, engine, **settings):
    recipe, problems = engine_recipe.find(str(LAB / "recipes/standin.yml"), [])
    assert not problems
    asked = UserSettings(engine=engine, model=str(tmp_path), **settings)
    made = engine_plan.plan(recipe, engine_plan.assumed_facts([f"n{i}" for i in range(nodes)]), asked, {})
    assert made.plans, made.findings
    return [plan.here[0].engine.command.words for plan in made.plans.values()]


@pytest.mark.parametrize(
    ("engine", "nodes", "settings"),
    [
        ("vllm", 1, {}),
        ("vllm", 4, {}),
        ("vllm", 2, {"pipeline_parallel_size": 2}),
        ("vllm", 3, {"data_parallel_size": 3}),
        ("sglang", 1, {}),
        ("sglang", 4, {}),
        ("sglang", 2, {"pipeline_parallel_size": 2}),
        ("tensorrt-llm", 1, {}),
    ],
)
def test_it_takes_every_planned_rank(standin, tmp_path, engine, nodes, settings):
    jobs = []
    for argv in ranks(tmp_path, nodes, engine, **settings):
        assert argv[0] in {engine, "trtllm-serve"}
        jobs.append(standin.Job(engine, argv[1 if engine == "tensorrt-llm" else 2 :]))
    assert [job.rank for job in jobs] == list(range(nodes))
    assert {job.ranks for job in jobs} == {nodes}
    assert {job.meeting for job in jobs} == {jobs[0].meeting}
    assert jobs[0].host == "127.0.0.1"
