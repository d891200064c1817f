# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of ``sparkmatrix.cluster.kept_plan``: asks no node that keeps this plan already."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import settled


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        args = self._task.args
        plan, found = args.get("plan") or {}, settled.table(task_vars, "plan")
        images = args.get("images") or plan.get("image_ids")
        if (
            args.get("state", "present") == "present"
            and plan.get("identity")
            and (plan["identity"], images) == (found.get("identity"), found.get("image_ids"))
        ):
            return {**result, "changed": False}
        return {**result, **self._execute_module(module_args=dict(args), task_vars=task_vars)}
