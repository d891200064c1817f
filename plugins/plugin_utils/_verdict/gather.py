# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What decides the numbers of a run, from what it knows already: machines, links and services. No node is asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import NodePlan
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import Link, Machine, Service

GIB = 2**30
BUDGET = ("weights", "overhead", "activations", "kv_needed")  # of a rank's memory
Info = Mapping[str, Mapping[str, Any]]  # node_info by host


def machines(info: Info, facts: Mapping[str, FabricFact], plans: Mapping[str, NodePlan]) -> list[Machine]:
    found = []
    for host, node in info.items():
        here = plans[host].here if host in plans else ()
        memory = {
            name: round(sum(getattr(one.memory, name) for one in here) / GIB, 1)
            for name in BUDGET
            if any(getattr(one.memory, name) for one in here)
        }
        total = int((node.get("memory") or {}).get("total") or 0)
        found.append(
            Machine(
                host,
                facts[host].rank if host in facts else 0,
                _facts(node),
                planned_gib=round(sum(one.memory.budget for one in here) / GIB, 1),
                total_gib=round(total / GIB, 1),
                memory=memory,
            )
        )
    return sorted(found, key=lambda one: (one.rank, one.host))


def _facts(node: Mapping[str, Any]) -> dict[str, str]:
    system, dgx, clocks = node.get("os") or {}, node.get("dgx") or {}, node.get("clocks") or {}
    devices = (node.get("rdma") or {}).get("devices") or ()
    seen = {
        "machine": (node.get("machine") or {}).get("product"),
        "gpu": (node.get("machine") or {}).get("gpu"),
        "os": system.get("pretty_name") or system.get("PRETTY_NAME") or " ".join(map(str, system.values())),
        "dgx": " ".join(map(str, dgx.values())),
        "kernel": node.get("kernel"),
        "driver": node.get("nvidia_driver"),
        "firmware": ", ".join(sorted({str(one["firmware"]) for one in devices if one.get("firmware")})),
        "nccl": (node.get("nccl") or {}).get("system"),
        "clock": f"{clocks['mhz']} MHz" if clocks.get("mhz") is not None else "",
        "temperature": f"{clocks['celsius']} C" if clocks.get("celsius") is not None else "",
    }
    return {name: str(value) for name, value in seen.items() if value}


def links(info: Info, facts: Mapping[str, FabricFact]) -> list[Link]:
    """As the node is now, where preflight has read its devices, else as the fabric was verified."""
    found = []
    for host, fact in facts.items():
        devices = ((info.get(host) or {}).get("rdma") or {}).get("devices") or ()
        now = {str(one["rdma_device"]): one for one in devices if one.get("rdma_device")}
        for rail in fact.rails:
            seen = now.get(rail.rdma_device, {})
            rate, mtu = seen.get("rate_gbps"), seen.get("mtu")
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
            own = next(one for one in plan.here if one.instance == head.instance)
            found.append(
                Service(
                    head.name,
                    head.model,
                    head.recipe,
                    head.engine,
                    own.engine.version,
                    plan.image_ids.get(own.image, own.image),
                    tuple(member.host for member in own.members if member.ranks),
                    _options(own.engine.command.options),
                )
            )
    return found


def _options(words: Sequence[str]) -> dict[str, str]:
    """``--name value`` and ``--name=value``; one without a value is true, several values are joined."""
    found: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, given, value = word[2:].partition("=")
            found.setdefault(name, []).extend([value] if given else [])
        elif name:
            found[name].append(word)
    return {name: " ".join(values) or "true" for name, values in found.items()}


def merged(known: Iterable[Machine], measured: Iterable[Machine]) -> list[Machine]:
    """What was measured of a machine adds to what the run knows of it, and replaces it."""
    found = {one.host: one for one in known}
    for one in measured:
        old = found.get(one.host)
        found[one.host] = (
            replace(
                old,
                facts={**old.facts, **one.facts},
                memory={**old.memory, **one.memory},
                **{name: getattr(one, name) or getattr(old, name) for name in ("planned_gib", "used_gib", "total_gib")},
            )
            if old
            else one
        )
    return list(found.values())
