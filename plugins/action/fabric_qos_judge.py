# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of ``sparkmatrix.cluster.fabric_qos_judge``. Contacts no host."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import (
    SparkError,
    errors,
    refusal,
    warnings,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import load
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._qos import verdict

REFUSED = "The QoS of the fabric cannot be changed like this; no QoS setting was changed:"
UNEVEN = "The QoS of the fabric is not what was asked for:"


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _spec, args = self.validate_argument_spec(
            argument_spec={
                "phase": {"type": "str", "choices": ["before", "after"], "required": True},
                "profile": {"type": "str", "choices": ["none", "roce"], "required": True},
                "nodes": {"type": "dict", "required": True},
                "facts": {"type": "dict", "required": True},
                "confirm": {"type": "bool", "default": False},
            }
        )
        wishes = verdict.Wishes(args["profile"], args["confirm"])
        judge, title = (verdict.before, REFUSED) if args["phase"] == "before" else (verdict.after, UNEVEN)
        try:
            facts = {host: load(document, host) for host, document in args["facts"].items()}
            findings = judge(args["nodes"], facts, wishes)
            due = verdict.changes(args["nodes"])
        except (SparkError, KeyError, TypeError, ValueError) as exc:
            where = "" if isinstance(exc, SparkError) else "fabric_qos_judge was given something unexpected: "
            return {**result, "changed": False, "failed": True, "msg": f"{where}{exc}"}
        result.update(
            changed=False,
            changes=due,
            findings=[finding.as_dict() for finding in findings],
            warnings=[str(finding) for finding in warnings(findings)],
        )
        if errors(findings):
            result.update(failed=True, msg=refusal(title, findings))
        return result
