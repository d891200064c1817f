# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The planner of ssh between the nodes: files of each node, names, and who is never banned."""

from __future__ import annotations

from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._access import plan as access_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base.planner import Options, Planner, judged

REFUSED = "ssh between the nodes cannot be set up like this; nothing was changed:"


def plan(options: Options) -> dict[str, Any]:
    nodes, findings = access_plan.node_inputs(options["nodes"])
    judged(REFUSED, findings)
    made = access_plan.plan(nodes, options["user"])
    return {"files": made.files, "hosts_lines": made.hosts_lines, "rules": made.rules, "ignore": made.ignore}


# nodes: rank, address (fabric_management_address), login (ansible_host), look (the result of access_node), fact.
PLANNERS = {"peers": Planner(plan, {"user": {"type": "str", "default": "sparkmatrix-peer"}}, gathered=("nodes",))}
