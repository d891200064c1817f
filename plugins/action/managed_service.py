# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of ``sparkmatrix.cluster.managed_service``: asks no node where the unit runs as it should."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import settled


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        args = self._task.args
        name, wanted = str(args.get("name")), args.get("config_hash")
        found = settled.entry(task_vars, settled.UNITS, name)
        enabled = args.get("enabled")
        if (
            found
            and wanted
            and found["config_hash"] == wanted
            and args.get("state", "started") == "started"
            and (enabled is None or boolean(enabled, strict=False) == found["enabled"])
        ):
            return {**result, "changed": False, "due": False, "action": "none"}
        call = {"module_args": dict(args)}
        return {**result, **settled.execute(self._execute_module, task_vars, settled.UNITS, name, **call)}
