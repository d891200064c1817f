# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The node's network with what the choice of its management address needs (``plugin_utils/_fabric/management.py``)."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.network import Kept, Network, network
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fact, ibdev2netdev


def read(machine: Machine, connection_host: str = "") -> Network:
    """The network, the interfaces of the ConnectX-7 and the management address that the fabric fact keeps."""
    found = network(machine, connection_host)
    return replace(found, rdma_interfaces=rdma_interfaces(machine), kept=kept_management(machine))


def rdma_interfaces(machine: Machine) -> list[str]:
    """Those of the ConnectX-7. Software devices (rxe, siw) stand on interfaces that are no fabric."""
    with contextlib.suppress(SparkError):
        ports = ibdev2netdev.read(machine.sysfs)
        return sorted({port.netdev for port in ports if port.netdev and port.driver == "mlx5_core"})
    return []


def kept_management(machine: Machine) -> Kept | None:
    """Of the fabric fact as it is on disk; None without one."""
    with contextlib.suppress(KeyError, TypeError):
        found = fact.on_disk(machine)
        address = str(found["management_address"])
        rank, nodes = (found[name] if type(found.get(name)) is int else None for name in ("rank", "nodes"))
        interface, host = (str(found.get(name) or "") for name in ("management_interface", "host"))
        return Kept(address, interface, host, rank, nodes)
    return None
