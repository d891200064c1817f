# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of ``sparkmatrix.cluster.access_plan``. Contacts no host."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError, refusal
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._access import plan as access_plan

REFUSED = "ssh between the nodes cannot be set up like this; nothing was changed:"


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _spec, args = self.validate_argument_spec(
            argument_spec={
                "nodes": {"type": "dict", "required": True},
                "user": {"type": "str", "default": "sparkmatrix-peer"},
            }
        )
        result["changed"] = False
        try:
            nodes, findings = access_plan.node_inputs(args["nodes"])
            if findings:
                return {**result, "failed": True, "msg": refusal(REFUSED, findings)}
            made = access_plan.plan(nodes, args["user"])
        except (SparkError, KeyError, TypeError, ValueError) as exc:
            # A result that is not what our modules return: named, not shown as a traceback.
            where = "" if isinstance(exc, SparkError) else "access_plan was given something unexpected: "
            return {**result, "failed": True, "msg": f"{where}{exc}"}
        result.update(
            files=made.files,
            hosts_lines=made.hosts_lines,
            rules=made.rules,
            ignore=made.ignore,
        )
        return result
