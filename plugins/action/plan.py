# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of ``sparkmatrix.cluster.plan``: runs a planner. Contacts no host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._access import planners as access
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._artifacts import planners as artifacts
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._awx import planners as awx
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base.planner import Planner, failure, run
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._bench import planners as bench
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import planners as engine
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import planners as fabric
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._firewall import planners as firewall
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._gateway import planners as gateway
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._metrics import planners as metrics
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._nccl import planners as nccl
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._os import planners as os_
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._peers import planners as peers
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._qos import planners as qos
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._report import planners as report
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._status import cluster as status
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._verdict import planners as verdict
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._web_ui import planners as web_ui

PLANNERS: Mapping[str, Planner] = {
    **access.PLANNERS,
    **artifacts.PLANNERS,
    **fabric.PLANNERS,
    **firewall.PLANNERS,
    **qos.PLANNERS,
    **os_.PLANNERS,
    **engine.PLANNERS,
    **nccl.PLANNERS,
    **bench.PLANNERS,
    **status.PLANNERS,
    **awx.PLANNERS,
    **peers.PLANNERS,
    **report.PLANNERS,
    **verdict.PLANNERS,
    **metrics.PLANNERS,
    **gateway.PLANNERS,
    **web_ui.PLANNERS,
}
SPEC: dict[str, dict[str, Any]] = {
    "planner": {"type": "str", "required": True},
    "options": {"type": "dict", "default": {}},
}


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _spec, args = self.validate_argument_spec(argument_spec=SPEC)
        name = args["planner"]
        if name not in PLANNERS:
            return {**result, **failure(f"there is no planner {name}; there are {', '.join(PLANNERS)}")}
        return {**result, **run(name, PLANNERS[name], args["options"], task_vars or {})}
