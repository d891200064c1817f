# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from unittest import mock

from ansible.parsing.dataloader import DataLoader
from ansible.playbook.task import Task
from ansible.template import Templar
from ansible_collections.sparkmatrix.cluster.plugins.action import engine_files
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import plan as engine_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import recipe as engine_recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.job import Wishes


def act(**args):
    task = Task()
    task.args = args
    plugin = engine_files.ActionModule(
        task, mock.MagicMock(), mock.MagicMock(), DataLoader(), Templar(None), mock.MagicMock()
    )
    return plugin.run(task_vars={})


def plan():
    recipe, _problems = engine_recipe.find("qwen3-8b", ())
    wishes = Wishes(requirements=["vllm==0.33.0"], only_print=True)
    return engine_plan.plan(recipe, engine_plan.assumed_facts(["spark1"]), wishes, {}).plans["spark1"].as_dict()


def test_what_the_role_places():
    result = act(plan=plan(), keeper={"hang_s": 600, "backoff_s": 2.5}, key_mark="f", tool_mark="t")
    assert not result["changed"]
    files = {item["path"]: item["content"] for item in result["files"]}
    assert '"hang_s": 600\n' in files["/etc/sparkmatrix/engine.json"]
    assert json.loads(files["/etc/sparkmatrix/engine.json"])["keeper"]["backoff_s"] == 2.5
    (keeper,) = result["keepers"]
    assert f"HASH={keeper['config_hash']}\n" in files[f"/etc/systemd/system/{keeper['unit']}"]
    assert keeper["unit"] in result["units"]


def test_not_a_plan():
    assert "made by another release: it has schema none" in act(plan={"role": "head", "names": {"instance": ""}})["msg"]


def test_settings_that_are_not_allowed_are_refused_together():
    result = act(plan=plan(), stop_timeout_s=0, keeper={"hang_s": 0, "start_limit": 0, "lost_s": 20})
    assert result["failed"]
    lines = result["msg"].splitlines()
    assert lines[0] == "These settings are not allowed:"
    assert [line.split(" is ")[0] for line in lines[1:]] == [
        "engine_hang_seconds",
        "engine_start_limit",
        "engine_stop_timeout_s",
    ]
    assert "files" not in result
