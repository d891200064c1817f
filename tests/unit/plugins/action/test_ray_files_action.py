# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from unittest import mock

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.playbook.task import Task
from ansible.template import Templar
from ansible_collections.sparkmatrix.cluster.plugins.action import ray_files
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import plan as engine_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import recipe as engine_recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.job import Wishes


def act(**args):
    task = Task()
    task.args = args
    plugin = ray_files.ActionModule(
        task, mock.MagicMock(), mock.MagicMock(), DataLoader(), Templar(None), mock.MagicMock()
    )
    return plugin.run(task_vars={})


def test_what_the_role_places():
    recipe, _problems = engine_recipe.find("qwen3-235b-a22b-gptq-int4", ())
    wishes = Wishes(requirements=["vllm==0.33.0", "ray[default]==2.60.0"], only_print=True, launch="ray")
    plans = engine_plan.plan(recipe, engine_plan.assumed_facts(["spark1", "spark2"]), wishes, {}).plans
    result = act(plan=plans["spark2"].as_dict(), user="llm", token_mark="f00")
    assert not result["changed"]
    files = {item["path"]: item["content"] for item in result["files"]}
    unit = files["/etc/systemd/system/sparkmatrix-ray.service"]
    assert "\nUser=llm\nGroup=sparkmatrix\n" in unit
    assert unit.endswith(f"HASH={result['config_hash']}\n")


@pytest.mark.parametrize(
    ("plan", "found"),
    [
        ({}, "there is no engine plan"),
        ({"ray": {}, "runtime": "container"}, "it has schema none"),
        ({"schema": 1, "host": "spark1", "ray": None}, "the engine plan is damaged (ray is None, not a mapping)"),
    ],
)
def test_not_a_plan(plan, found):
    assert found in act(plan=plan)["msg"]
