# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of ``sparkmatrix.cluster.fabric_bandwidth``: takes the look from preflight."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import settled


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        args = self._task.args
        node, found = settled.node(task_vars), settled.table(task_vars, "bandwidth")
        known = found and "rdma" in node and node.get("gids") is not None and "engine_units" not in args
        if known and args.get("phase", "look") == "look" and settled.unchanged(task_vars, settled.FABRIC):
            ready = {**found, "ports": node["rdma"]["devices"], "gids": node["gids"]}
            return {**result, "changed": False, "ready": ready}
        return {**result, **self._execute_module(module_args=dict(args), task_vars=task_vars)}
