# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Sparks as the fabric planner sees them, built through the dataclasses of the discovery."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._ibdev2netdev import PciFunction, RdmaPort, cages
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric_plan import NodeInput

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


def spark_cages(cabled: Sequence[int] = (0,), change: Mapping[tuple[int, str], Mapping[str, Any]] | None = None) -> Any:
    """What ``ibdev2netdev`` returns as ``cages``; ``change`` maps (cage, domain) to attributes, None leaves it out."""
    changes = change or {}
    ports = [
        half(cage, domain, **{"cabled": cage in cabled, **changes.get((cage, domain), {})})
        for domain in ("0002", "0000")
        for cage in (1, 0)
        if changes.get((cage, domain), {}) is not None
    ]
    return [cage.as_dict() for cage in cages(ports)]


def spark(rank: int, cabled: Sequence[int] = (0,), **changes: Any) -> NodeInput:
    """A node; ``change`` goes to :func:`spark_cages`, everything else to :class:`NodeInput`."""
    found = spark_cages(cabled, changes.pop("change", None))
    address = f"10.0.0.{rank + 1}"
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
    return NodeInput(**values)


def sparks(count: int, **changes: Any) -> dict[str, NodeInput]:
    return {f"spark{number + 1}": spark(number, **changes) for number in range(count)}
