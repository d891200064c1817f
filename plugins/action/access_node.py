# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of ``sparkmatrix.cluster.access_node``: takes from preflight what this run has not changed."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access.node import USER
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import settled


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        args = self._task.args
        found = settled.table(task_vars, "peer")
        if (
            found.get("public_key")
            and args.get("state", "present") == "present"
            and args.get("user", USER) == USER
            and not any(boolean(args.get(name, False), strict=False) for name in ("rotate", "known_hosts"))
            and settled.unchanged(task_vars, settled.ACCESS, settled.FABRIC)
        ):
            info = (task_vars or {})[settled.NODE_INFO]
            network = settled.node(task_vars)["network"]
            return {**result, **found, "network": network, "fact": info.get("fact"), "changed": False}
        return {**result, **self._execute_module(module_args=dict(args), task_vars=task_vars)}
