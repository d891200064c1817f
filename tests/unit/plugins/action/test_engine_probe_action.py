# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from unittest import mock

from ansible.parsing.dataloader import DataLoader
from ansible.playbook.task import Task
from ansible.template import Templar
from ansible_collections.sparkmatrix.cluster.plugins.action import engine_probe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import progress


def act(answers, **args):
    """The result, what the module was asked, and what was shown."""
    task = Task()
    task.args = args
    plugin = engine_probe.ActionModule(
        task, mock.MagicMock(), mock.MagicMock(), DataLoader(), Templar(None), mock.MagicMock()
    )
    asked = []

    def execute(module_name, module_args, task_vars):
        assert module_name == "sparkmatrix.cluster.engine_probe"
        asked.append(dict(module_args))
        return answers[len(asked) - 1]

    plugin._execute_module = execute
    with mock.patch.object(plugin, "_display") as screen:
        result = plugin.run(task_vars={"inventory_hostname": "spark1"})
    calls = screen.display.call_args_list
    assert all(call.kwargs == {"stderr": True} for call in calls)
    return result, asked, [call.args[0] for call in calls]


def test_an_engine_that_serves_costs_one_call():
    result, asked, shown = act([{"changed": False, "ready": True, "answer": {}}], model="m", keeper=True)
    assert result["ready"]
    assert asked == [{"model": "m", "keeper": True, "part": engine_probe.LINE_S}]
    assert shown == []


def test_a_long_start_is_shown():
    parts = [{"ready": False, "waiting": {"words": f"loading for {n} s", "waited_s": n}} for n in (60, 120)]
    result, asked, shown = act([*parts, {"failed": True, "msg": "why"}], model="m", keeper=True)
    assert (result["failed"], result["msg"]) == (True, "why")
    assert "waiting" not in result
    assert [options.get("before", {}).get("waited_s") for options in asked] == [None, 60, 120]
    assert shown == [
        "[spark1] loading for 60 s (at any time, on the head: sudo sparkmatrix status)",
        "[spark1] loading for 120 s",
    ]


def test_a_screen_that_moves_is_told_more_often(monkeypatch):
    channel = progress.Channel()
    channel.open()
    monkeypatch.setattr(progress, "screen", channel)
    part = {"ready": False, "waiting": {"words": "loading for 9 s\nweights", "waited_s": 9}}
    _result, asked, shown = act([part, {"ready": True}], model="m", keeper=True)
    assert asked[0]["part"] == engine_probe.PART_S
    assert shown == [] and channel.news() == "spark1 loading for 9 s weights"
