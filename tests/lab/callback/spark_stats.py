# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Test-only callback: counts what a run did, and can kill it in the middle.

``SPARK_STATS_FILE``      where to write ``{"hosts": {host: {ok, changed, failures, unreachable}}, "tasks": n,
                          "changes": n, "changed_tasks": [...], "module_executions": {host: n}}`` at the end of the run.
``SPARK_KILL_AT_CHANGE``  the whole run is killed with SIGKILL once so many tasks (1-based) have changed something; the
                          first item on the first node counts, so that others may be in the middle of it. What it was,
                          and what ran then, goes to the file of the stats: ``{"changed": task, "running": task}``.
``SPARK_KILL_DELAY_S``    seconds after that.
"""

from __future__ import annotations

import collections
import json
import os
import pathlib
import signal
import threading
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.plugins.callback import CallbackBase
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import workers

DOCUMENTATION = r"""
name: spark_stats
type: notification
short_description: count what a run did, and kill it on request
description:
  - Used by the tests of this collection.
"""


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "spark_stats"

    def __init__(self) -> None:
        super().__init__()
        self.tasks = 0
        self.changed_tasks: list[str] = []
        self.stats_file = os.environ.get("SPARK_STATS_FILE", "")
        self.kill_at = int(os.environ.get("SPARK_KILL_AT_CHANGE", "0"))
        self.kill_delay = float(os.environ.get("SPARK_KILL_DELAY_S", "0"))
        self.running = ""
        self.changed: set[str] = set()  # uuids of tasks
        if self.stats_file:
            self.calls = pathlib.Path(self.stats_file + ".calls")
            self.calls.write_text("")
            count_module_executions(self.calls)

    def v2_playbook_on_start(self, playbook: Any) -> None:
        workers.prepare()  # as the screen does that users have, which the tests have not

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        self.tasks += 1
        self.running = task.get_name()

    def v2_runner_item_on_ok(self, result: Any) -> None:
        self._count(result)

    def v2_runner_on_ok(self, result: Any) -> None:
        if host := self._count(result):
            task = getattr(result, "task", None) or result._task
            self.changed_tasks.append(f"{host}: {task.get_name()}")

    def _count(self, result: Any) -> str:
        """The host, if the result is a change."""
        outcome = getattr(result, "result", None) or result._result
        if not outcome.get("changed"):
            return ""
        task = getattr(result, "task", None) or result._task
        if task._uuid not in self.changed:
            self.changed.add(task._uuid)
            if len(self.changed) == self.kill_at:
                threading.Timer(self.kill_delay, self._kill, [task.get_name()]).start()
        host = getattr(result, "host", None) or result._host
        return str(host.get_name())

    def _kill(self, changed: str) -> None:
        document = {"changed": changed, "running": self.running}
        pathlib.Path(self.stats_file).write_text(json.dumps(document) + "\n")
        os.killpg(os.getpgid(0), signal.SIGKILL)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        if not self.stats_file:
            return
        hosts = {host: stats.summarize(host) for host in sorted(stats.processed)}
        calls = collections.Counter(line.split()[0] for line in self.calls.read_text().splitlines())
        document = {
            "hosts": hosts,
            "tasks": self.tasks,
            "changes": len(self.changed),
            "changed_tasks": self.changed_tasks,
            "module_executions": dict(sorted(calls.items())),
            "modules": dict(collections.Counter(line.split()[1] for line in self.calls.read_text().splitlines())),
        }
        pathlib.Path(self.stats_file).write_text(json.dumps(document, indent=1) + "\n")


def count_module_executions(calls: pathlib.Path) -> None:
    """Note every module that an action sends to a host; actions run in forks, hence the file."""
    original = ActionBase._execute_module

    def counted(self: ActionBase, *args: Any, **kwargs: Any) -> Any:
        name = kwargs.get("module_name") or (args[0] if args else None) or self._task.action
        host = (kwargs.get("task_vars") or (args[2] if len(args) > 2 else {}) or {}).get("inventory_hostname", "?")
        with calls.open("a") as stream:
            stream.write(f"{host} {name}\n")
        return original(self, *args, **kwargs)

    ActionBase._execute_module = counted
