# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from unittest import mock

from ansible.parsing.dataloader import DataLoader
from ansible.playbook.task import Task
from ansible.template import Templar
from ansible_collections.sparkmatrix.cluster.plugins.action import engine_image_judge
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan import NodePlan
from engine_plans import with_service

IMAGE = "x/y:v0.33.0"
PLAN = with_service(runtime="container", image=IMAGE)
PLANS = {"spark1": PLAN.as_dict(), "spark2": PLAN.as_dict(), "spark3": NodePlan("spark3").as_dict()}


def act(**args):
    task = Task()
    task.args = args
    plugin = engine_image_judge.ActionModule(
        task, mock.MagicMock(), mock.MagicMock(), DataLoader(), Templar(None), mock.MagicMock()
    )
    return plugin.run(task_vars={})


def seen(first, second):
    return {
        "spark1": {"ids": {IMAGE: first}},
        "spark2": {"ids": {IMAGE: second}},
        "spark3": {"skipped": True},
    }


def test_the_same_everywhere():
    result = act(plans=PLANS, images=seen("sha256:1", "sha256:1"))
    assert not result["changed"] and not result.get("failed") and result["findings"] == []


def test_all_that_differ_are_named():
    result = act(plans=PLANS, images=seen("sha256:1", "sha256:2"))
    assert result["failed"]
    assert "nothing was started" in result["msg"] and "spark1 sha256:1, spark2 sha256:2" in result["msg"]


def test_an_image_that_is_gone_is_a_warning():
    kept = {**PLANS, "spark1": {**PLANS["spark1"], "image_ids": {IMAGE: "sha256:0"}}}
    result = act(plans=kept, images=seen("sha256:1", "sha256:1"))
    assert not result.get("failed") and len(result["findings"]) == 1
    assert "sha256:0, which is gone" in result["warnings"][0]


def test_not_a_plan():
    assert "engine plan of spark1: there is no engine plan" in act(plans={"spark1": {}}, images={})["msg"]
