# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The planner of an update: one set of packages for all machines."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base.planner import Options, Planner, judged
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._os import update

REFUSED = "The update was refused, and nothing has been changed:"


def plan(options: Options) -> dict[str, Any]:
    made = update.plan({host: seen.look for host, seen in options["nodes"].items()})
    return {
        **judged(REFUSED, made.findings),
        "nodes": {host: asdict(node) for host, node in made.nodes.items()},
        "anywhere": options["firmware"] or any(node.reboot or node.probation for node in made.nodes.values()),
        "summary": list(made.summary),
    }


PLANNERS = {
    "os_update": Planner(plan, {"firmware": {"type": "bool", "default": False}}, gathered={"nodes": "os_update"})
}
