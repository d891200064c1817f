# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of ``sparkmatrix.cluster.engine_image_judge``. Contacts no host."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import (
    SparkError,
    errors,
    refusal,
    warnings,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import plan as documents
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import images

SPEC: dict[str, dict[str, Any]] = {
    "plans": {"type": "dict", "required": True},
    "images": {"type": "dict", "required": True},
}
REFUSED = "The container images were refused, and nothing was started:"


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _spec, args = self.validate_argument_spec(argument_spec=SPEC)
        result["changed"] = False
        try:
            # A node that was not asked for images has no ids.
            ids = {host: seen.get("ids") or {} for host, seen in args["images"].items()}
            plans = {host: documents.load(plan, f"engine plan of {host}") for host, plan in args["plans"].items()}
        except SparkError as exc:
            return {**result, "failed": True, "msg": str(exc)}
        findings = images.judge(plans, ids)
        result["findings"] = [finding.as_dict() for finding in findings]
        result["warnings"] = [str(finding) for finding in warnings(findings)]
        if errors(findings):
            result.update(failed=True, msg=refusal(REFUSED, findings))
        return result
