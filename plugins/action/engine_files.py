# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of ``sparkmatrix.cluster.engine_files``. Contacts no host."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import plan as documents
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render import files as render_files
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._keeper import limits

SPEC: dict[str, dict[str, Any]] = {
    "plan": {"type": "dict", "required": True},
    "user": {"type": "str", "default": "sparkmatrix"},
    "group": {"type": "str", "default": "sparkmatrix"},
    "drop_caches": {"type": "bool", "default": True},
    "login_environment": {"type": "bool", "default": False},
    "stop_timeout_s": {"type": "int", "default": 60},
    "memlock": {"type": "str", "default": "infinity"},
    "nofile": {"type": "str", "default": "65536"},
    "keeper": {
        "type": "dict",
        "default": {},
        "options": {
            "probe_interval_s": {"type": "float"},
            "probe_timeout_s": {"type": "float"},
            "hang_s": {"type": "float"},
            "lost_s": {"type": "float"},
            "ready_s": {"type": "float"},
            "memory_wait_s": {"type": "float"},
            "start_limit": {"type": "int"},
            "backoff_s": {"type": "float"},
            "stable_s": {"type": "float"},
        },
    },
    "key_mark": {"type": "str", "default": "", "no_log": False},
    "image_marks": {"type": "dict", "default": {}},
    "tool_mark": {"type": "str", "default": ""},
}


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _spec, args = self.validate_argument_spec(argument_spec=SPEC)
        result["changed"] = False
        wrong = list(limits.problems({**args["keeper"], "stop_timeout_s": args["stop_timeout_s"]}))
        if wrong:
            return {**result, "failed": True, "msg": "\n".join(["These settings are not allowed:", *wrong])}
        # Whole numbers as they were given: 30, not 30.0.
        keeper = {
            name: int(value) if value == int(value) else value
            for name, value in args["keeper"].items()
            if value is not None
        }
        settings = render_files.Settings(
            user=args["user"],
            group=args["group"],
            drop_caches=args["drop_caches"],
            login_environment=args["login_environment"],
            stop_timeout_s=args["stop_timeout_s"],
            memlock=args["memlock"],
            nofile=args["nofile"],
            keeper=keeper,
        )
        marks = render_files.Marks(args["key_mark"], args["image_marks"], args["tool_mark"])
        try:
            made = render_files.node(documents.load(args["plan"]), settings, marks)
        except SparkError as exc:
            return {**result, "failed": True, "msg": str(exc)}
        result.update(
            files=[{"path": path, "content": content} for path, content in made.files.items()],
            units=list(made.units),
            keepers=list(made.keepers),
        )
        return result
