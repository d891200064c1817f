# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of ``sparkmatrix.cluster.firewall_rules``: asks no node whose layer has exactly these rules."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access.apply import marks
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import settled


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        args = self._task.args
        layer, rules = str(args.get("layer")), args.get("rules", [])
        if isinstance(rules, list) and marks({layer: [str(rule) for rule in rules]})[layer] == settled.firewall_layer(
            task_vars, layer
        ):
            return {**result, "changed": False, "changes": [], "previous": rules}
        call = {"module_args": dict(args)}
        return {**result, **settled.execute(self._execute_module, task_vars, settled.FIREWALL, settled.RULES, **call)}
