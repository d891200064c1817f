# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The planner of who reaches Ray and the ranks: which ports a node opens, and for whom."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import ports
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import plan_document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fact as fabric_fact
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base.planner import Options, Planner
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._firewall import port_filter


def filter_services(options: Options) -> dict[str, Any]:
    facts: Mapping[str, fabric_fact.FabricFact] = options["facts"]
    plans: Mapping[str, plan_document.NodePlan] = options["plans"]
    # On any node: the head of the cluster asks the APIs of all heads.
    answered = {head.port for plan in plans.values() for head in plan.heads}
    if any(plan.ray.needed for plan in plans.values()):
        answered |= {options["dashboard_port"], *([ports.RAY_METRICS] if options["ray_metrics"] else [])}
    own = {host: _ports(plan, options["ray_port"], options["dashboard_port"]) for host, plan in plans.items()}
    who = {host: reach(host, facts, options["also"], answered, own.get(host, ())) for host in facts}
    return {"rules": {host: port_filter.services(one) for host, one in who.items()}}


def reach(
    host: str,
    facts: Mapping[str, fabric_fact.FabricFact],
    also: Iterable[str],
    answered: Iterable[int],
    own: Iterable[port_filter.Place] = (),
) -> port_filter.Reach:
    others = [fact for name, fact in sorted(facts.items()) if name != host]
    return port_filter.Reach(
        interfaces=tuple(rail.netdev for rail in facts[host].rails),
        fabric=port_filter.networks(rail.address for fact in others for rail in fact.rails),
        management=port_filter.networks(fact.management_address for fact in others),
        also=port_filter.networks(also, "spark_port_filter_from"),
        answered=tuple(sorted(set(answered))),
        ports=tuple(own),
    )


def _ports(plan: plan_document.NodePlan, ray_port: int, dashboard_port: int) -> list[port_filter.Place]:
    """At which keys, tokens and prompts are sent to this node's services."""
    found = [(head.host, head.port) for head in plan.heads]
    for service_plan in plan.all:
        found += [("", port) for what, port in service_plan.engine.ports.items() if what == "rendezvous"]
        found += [("", ports.VLLM_REPLICAS)] if service_plan.parallel.data > 1 and service_plan.is_head else []
    if plan.ray.needed:
        found += [("", port) for port in range(ports.RAY_CLIENT, ports.RAY_WORKERS[0])]
        if plan.ray.role == plan_document.HEAD:
            found += [("", ray_port), ("127.0.0.1", dashboard_port)]
    return found


PLANNERS = {
    "port_filter": Planner(
        filter_services,
        {
            "also": {"type": "list", "elements": "str", "default": []},
            "ray_port": {"type": "int", "default": ports.RAY_GCS},
            "dashboard_port": {"type": "int", "default": ports.RAY_DASHBOARD},
            "ray_metrics": {"type": "bool", "default": False},  # Prometheus is an account of its own
        },
        gathered={"facts": fabric_fact.load, "plans": plan_document.read},
    ),
}
