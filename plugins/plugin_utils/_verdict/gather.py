# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What decides the numbers of a run, from what it knows already: machines, links and services. No node is asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.gpu import Clocks
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import NodePlan
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.ibdev2netdev import RdmaPort
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.node import Node
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._snapshot import options
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import Link, Machine, Service

GIB = 2**30
BUDGET = ("weights", "overhead", "activations", "kv_needed")  # of a rank's memory
Nodes = Mapping[str, Node]  # by host


def machines(nodes: Nodes, facts: Mapping[str, FabricFact], plans: Mapping[str, NodePlan]) -> list[Machine]:
    found = []
    for host, node in nodes.items():
        here = plans[host].here if host in plans else ()
        memory = {
            name: round(sum(getattr(service_plan.memory, name) for service_plan in here) / GIB, 1)
            for name in BUDGET
            if any(getattr(service_plan.memory, name) for service_plan in here)
        }
        found.append(
            Machine(
                host,
                facts[host].rank if host in facts else 0,
                _facts(node),
                planned_gib=round(sum(service_plan.memory.budget for service_plan in here) / GIB, 1),
                total_gib=round((node.memory.total or 0) / GIB, 1),
                memory=memory,
            )
        )
    return sorted(found, key=lambda machine: (machine.rank, machine.host))


def _facts(node: Node) -> dict[str, str]:
    clocks = node.clocks or Clocks()
    seen = {
        "machine": node.machine.product,
        "gpu": node.machine.gpu,
        "os": node.os.get("pretty_name") or " ".join(node.os.values()),
        "dgx": " ".join((node.dgx or {}).values()),
        "kernel": node.kernel,
        "driver": node.nvidia_driver,
        "firmware": ", ".join(sorted({rdma_port.firmware for rdma_port in _devices(node) if rdma_port.firmware})),
        "nccl": node.nccl.system if node.nccl else "",
        "clock": "" if clocks.mhz is None else f"{clocks.mhz} MHz",
        "temperature": "" if clocks.celsius is None else f"{clocks.celsius} C",
    }
    return {name: value for name, value in seen.items() if value}


def _devices(node: Node) -> Sequence[RdmaPort]:
    return node.rdma.devices if node.rdma else ()


def links(nodes: Nodes, facts: Mapping[str, FabricFact]) -> list[Link]:
    """As the node is now, where preflight has read its devices, else as the fabric was verified."""
    found = []
    for host, fact in facts.items():
        now = {rdma_port.rdma_device: rdma_port for rdma_port in _devices(nodes.get(host) or Node())}
        for rail in fact.rails:
            seen = now.get(rail.rdma_device)
            rate, mtu = (seen.rate_gbps, seen.mtu) if seen else (None, None)
            found.append(
                Link(
                    host,
                    rail.rdma_device,
                    rail.netdev,
                    rail.index,
                    rail.cage,
                    rail.neighbor,
                    float(rail.link_gbps if rate is None else rate),
                    int(rail.mtu if mtu is None else mtu),
                )
            )
    return found


def services(plans: Mapping[str, NodePlan]) -> list[Service]:
    found = []
    for plan in plans.values():
        for head in plan.heads:
            own = next(service_plan for service_plan in plan.here if service_plan.instance == head.instance)
            found.append(
                Service(
                    head.name,
                    head.model,
                    head.recipe,
                    head.engine,
                    own.engine.version,
                    plan.image_ids.get(own.image, own.image),
                    tuple(member.host for member in own.members if member.ranks),
                    options.planned(own.engine.command.options),
                )
            )
    return found


def merged(known: Iterable[Machine], measured: Iterable[Machine]) -> list[Machine]:
    """What was measured of a machine adds to what the run knows of it, and replaces it."""
    found = {machine.host: machine for machine in known}
    for machine in measured:
        old = found.get(machine.host)
        found[machine.host] = (
            replace(
                old,
                facts={**old.facts, **machine.facts},
                memory={**old.memory, **machine.memory},
                **{
                    name: getattr(machine, name) or getattr(old, name)
                    for name in ("planned_gib", "used_gib", "total_gib")
                },
            )
            if old
            else machine
        )
    return list(found.values())
