# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Sparks as the fabric planner sees them, built through the dataclasses of the discovery."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.network import Network
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.ibdev2netdev import (
    Cage,
    PciFunction,
    RdmaPort,
    cages,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.neighbors import Heard, Neighbors
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.types import NodeInput, Plan
from rules import Found, of_findings

GUID = "4cbb:4703:0000:0001"


def half(cage: int, domain: str, cabled: bool = True, **changes: Any) -> RdmaPort:
    """One half with the names of a Spark; ``changes`` are attributes of :class:`RdmaPort`, or ``speed``/``width``."""
    prefix = "" if domain == "0000" else f"P{int(domain, 16)}"
    speed, width = changes.pop("speed", 32.0), changes.pop("width", 4)
    values: dict[str, Any] = {
        "rdma_device": f"roce{prefix}p1s0f{cage}",
        "port": 1,
        "driver": "mlx5_core",
        "link_layer": "Ethernet",
        "rdma_state": "ACTIVE" if cabled else "DOWN",
        "netdev": f"en{prefix}p1s0f{cage}np{cage}",
        "carrier": cabled,
        "admin_up": True,
        "speed_gbps": 200.0 if cabled else None,
        "mtu": 1500,
        "phys_port_name": f"p{cage}",
        "sys_image_guid": GUID,
        "pci": PciFunction(f"{domain}:01:00.{cage}", link_speed_gts=speed, link_width=width),
        **changes,
    }
    return RdmaPort(**values)


Change = Mapping[tuple[int, str], Mapping[str, Any]]


def spark_ports(cabled: Sequence[int] = (0,), change: Change | None = None) -> list[RdmaPort]:
    """``change`` maps (cage, domain) to attributes, None leaves the half out."""
    changes = change or {}
    return [
        half(cage, domain, **{"cabled": cage in cabled, **changes.get((cage, domain), {})})
        for domain in ("0002", "0000")
        for cage in (1, 0)
        if changes.get((cage, domain), {}) is not None
    ]


def spark_cages(cabled: Sequence[int] = (0,), change: Change | None = None) -> list[Cage]:
    return cages(spark_ports(cabled, change))


def rdma(own: Sequence[Cage]) -> dict[str, Any]:
    """What ``ibdev2netdev`` returns of a machine with these cages."""
    ports = [half for cage in own for half in cage.halves]
    return document.plain(
        {
            "devices": [rdma_port.as_dict() for rdma_port in ports],
            "cages": [one.as_dict() for one in own],
            "message": None,
        }
    )  # type: ignore[no-any-return]


def heard(netdev: str = "enp1s0f0np0", cage: int | None = 0, source: str = "lldp", **more: Any) -> Heard:
    return Heard(netdev, cage, source, **more)


def spark(rank: int, cabled: Sequence[int] = (0,), **changes: Any) -> NodeInput:
    """A node; ``change`` goes to :func:`spark_cages`, everything else to :class:`NodeInput`."""
    found = spark_cages(cabled, changes.pop("change", None))
    address = f"10.0.0.{rank % 250 + 1}"
    values: dict[str, Any] = {
        "rank": rank,
        "management_address": address,
        "management_interface": "enP7s7",
        "cages": found,
        "interfaces": [
            {"name": "lo", "addresses": [{"address": "127.0.0.1", "prefix": 8}]},
            {"name": "enP7s7", "addresses": [{"address": address, "prefix": 24}, {"address": "fe80::1", "prefix": 64}]},
            {"name": "docker0", "addresses": [{"address": "172.17.0.1", "prefix": 16}]},
        ],
        "routes": [
            {"dst": "default", "gateway": "10.0.0.254", "dev": "enP7s7"},
            {"dst": "10.0.0.0/24", "gateway": None, "dev": "enP7s7"},
        ],
        **changes,
    }
    return NodeInput(**{**values, **linked(values["interfaces"], values["routes"])})


def linked(interfaces: Any, routes: Any) -> dict[str, Any]:
    """As the loader reads what a node says; None where it says nothing."""
    made = document.load_known(Network, {"interfaces": interfaces, "routes": routes})
    return {"interfaces": made.interfaces, "routes": made.routes}


def wired(*lines: str, source: str = "probe", speed: float = 200.0, **changes: Any) -> dict[str, NodeInput]:
    """Nodes spark1, spark2, … whose neighbour evidence says this cabling.

    A line is one segment, the ends in it hear each other: "spark1.0 spark2.1", or "spark1.0 spark2.0 spark3.0 @name"
    with a switch that announces itself by LLDP; "@" alone is a switch that does not. A further word "!name" is a node
    that is none of ours. ``changes`` go to every node.
    """
    entries: dict[str, list[Heard]] = {}
    for line in lines:
        words = line.split()
        ends = [
            (name, int(cage)) for name, _dot, cage in (word.rpartition(".") for word in words if word[0] not in "@!")
        ]
        for name, cage in ends:
            own = entries.setdefault(name, [])
            netdev = half(cage, "0000").netdev or ""
            for peer, far in ends:
                if (peer, far) != (name, cage):
                    own.append(Heard(netdev, cage, source, peer, peer_cage=far, both_ways=True))
            for word in words:
                if word[0] == "@" and word[1:]:
                    own.append(Heard(netdev, cage, "lldp", system=word[1:], port="swp1"))
                elif word[0] == "!":
                    own.append(Heard(netdev, cage, source, word[1:], peer_cage=0))
    nodes = {}
    for name in sorted(entries, key=lambda name: int(name[5:])):
        cages = sorted(
            {entry.cage or 0 for entry in entries[name]}
            | {int(w[-1]) for w in " ".join(lines).split() if w[:-2] == name}
        )
        change = {(cage, domain): {"speed_gbps": speed} for cage in cages for domain in ("0000", "0002")}
        values = {"change": change, "neighbors": Neighbors(tuple(entries[name])), **changes}
        nodes[name] = spark(int(name[5:]) - 1, cages, **values)
    return nodes


def ring(count: int, **changes: Any) -> dict[str, NodeInput]:
    """Cage 1 of each node to cage 0 of the next."""
    lines = [f"spark{number + 1}.1 spark{(number + 1) % count + 1}.0" for number in range(count)]
    return wired(*lines, **changes)


def sparks(count: int, **changes: Any) -> dict[str, NodeInput]:
    return {f"spark{number + 1}": spark(number, **changes) for number in range(count)}


def of_plan(made: Plan, name: str = "") -> list[Found]:
    """What is found, and a digest of the facts; with a name also what is printed."""
    facts = json.dumps({host: fact.as_dict() for host, fact in made.facts.items()}, sort_keys=True)
    digest = hashlib.sha256(facts.encode()).hexdigest()[:10] if made.facts else "no facts"
    printed = "\n  ".join(line.rstrip() for line in (*made.cable_map, *made.summary))
    return [*of_findings(made.findings), (f"{made.topology} {digest}", name, printed)]
