# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of ``sparkmatrix.cluster.os_update_plan``. Contacts no host."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import errors, refusal
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._os import update as os_update

REFUSED = "The update was refused, and nothing has been changed:"


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _spec, args = self.validate_argument_spec(argument_spec={"nodes": {"type": "dict", "required": True}})
        result["changed"] = False
        plan = os_update.plan(args["nodes"])
        if errors(plan.findings):
            return {**result, "failed": True, "msg": refusal(REFUSED, plan.findings)}
        return {
            **result,
            "nodes": {host: asdict(node) for host, node in plan.nodes.items()},
            "summary": list(plan.summary),
        }
