# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of ``sparkmatrix.cluster.fabric_bandwidth_plan``. Contacts no host."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError, refusal, warnings
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.bandwidth import parse_tests
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import load
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import bandwidth as plan

REFUSED = "The fabric is configured, and RDMA over it is not as it should be:"


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _spec, args = self.validate_argument_spec(
            argument_spec={
                "phase": {"type": "str", "choices": ["schedule", "judge"], "default": "schedule"},
                "test": {"type": "str", "choices": list(plan.WISHES), "default": "auto"},
                "facts": {"type": "dict", "required": True},
                "paths": {"type": "dict", "default": {}},
                "ready": {"type": "dict", "default": {}},
                "changed": {"type": "bool", "default": False},
                "forks": {"type": "int", "default": 5},
                "first_port": {"type": "int", "default": 18515},
                "tests": {"type": "dict", "default": {}},
                "outcomes": {"type": "dict", "default": {}},
                "good_gbps": {"type": "float", "default": plan.Thresholds.good_gbps},
                "least_gbps": {"type": "float", "default": plan.Thresholds.least_gbps},
            }
        )
        try:
            made = _schedule(args) if args["phase"] == "schedule" else _judge(args)
        except (SparkError, KeyError, TypeError, ValueError) as exc:
            where = "" if isinstance(exc, SparkError) else "fabric_bandwidth_plan was given something unexpected: "
            return {**result, "changed": False, "failed": True, "msg": f"{where}{exc}"}
        return {**result, "changed": False, **made}


def _schedule(args: dict[str, Any]) -> dict[str, Any]:
    facts = {host: load(document, host) for host, document in args["facts"].items()}
    ready = {host: args["ready"].get(host) or {} for host in facts}
    made = plan.schedule(
        args["test"],
        facts,
        paths=args["paths"],
        ready=ready,
        changed=args["changed"],
        forks=args["forks"],
        first_port=args["first_port"],
    )
    return {"tests": plan.as_dicts(made.tests), "reason": made.reason}


def _judge(args: dict[str, Any]) -> dict[str, Any]:
    facts = {host: load(document, host) for host, document in args["facts"].items()}
    verdict = plan.judge(
        facts,
        {host: parse_tests(tests) for host, tests in args["tests"].items()},
        args["outcomes"],
        plan.Thresholds(args["good_gbps"], args["least_gbps"]),
    )
    return {
        "summary": list(verdict.summary),
        "warnings": [str(finding) for finding in warnings(verdict.findings)],
        "refusal": refusal(REFUSED, verdict.findings) if verdict.refused else None,
        "records": dict(verdict.records),
    }
