# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The planner of the layer observability: every file and unit of every node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import plan_document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import NodePlan
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fact as fabric_fact
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base.planner import Options, Planner, judged
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.registry import KINDS
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._metrics import files
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._metrics.files import Cluster, Service, Settings

REFUSED = "Prometheus and Grafana cannot be set up, and nothing was changed:"


def made(options: Options) -> dict[str, Any]:
    facts: Mapping[str, fabric_fact.FabricFact] = options["facts"]
    plans: Mapping[str, NodePlan] = options["plans"]
    head = options["head"]
    # The plan of the head counts last, so most: no other node says what the head's own services are.
    heads = {one.name: one for plan in (*plans.values(), plans[head]) for one in plan.heads}
    services = [
        Service(
            heads[offer.name].instance or "engine",
            heads[offer.name].engine,
            offer.host,
            offer.port,
            KINDS[heads[offer.name].engine].metrics,
        )
        for offer in plans[head].services
        if offer.name in heads
    ]
    settings = Settings(**{name: options[name] for name in vars(Settings())})
    cluster = Cluster(head, facts, services, plans[head].ray.members, options["grafana_id"])
    shown = judged(REFUSED, list(files.check(settings, cluster)))
    nodes = {
        host: {
            "files": [{"path": path, "content": content} for path, content in node.files.items()],
            "units": [{"name": name, "hash": made_hash} for name, made_hash in node.units.items()],
            "ask": list(node.ask),
            "filter": node.filter,
        }
        for host, node in files.make(settings, cluster, options["tool"]).items()
    }
    return {**shown, "nodes": nodes}


PLANNERS = {
    "observability": Planner(
        made,
        {
            "head": {"type": "str", "required": True},
            "grafana_id": {"type": "str", "default": ""},
            "tool": {"type": "str", "required": True},
            **{
                name: {"type": "str" if name == "grafana_image" else "int", "default": usual}
                for name, usual in vars(Settings()).items()
            },
        },
        gathered={"facts": fabric_fact.load, "plans": plan_document.read},
    ),
}
