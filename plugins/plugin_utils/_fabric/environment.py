# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What NCCL, Gloo, UCX and Open MPI need to know on one node. Names differ where the cable is in another cage.

Source: NCCL 2.30 (environment variables, net_ib), NVIDIA's playbooks for two, three and four Sparks.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.address import ipv4
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import Rail
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.secret_names import looks_secret
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import topology as fabric_topology
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.addresses import network_of, spanning
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.types import (
    Found,
    Network,
    NodeInput,
    as_network,
)

# Priority 3 of the profile: DSCP 26, and ECN-capable.
ROCE_TRAFFIC_CLASS = "106"
RDMA = "IB"  # NCCL's name for it, also over Ethernet
# Where a name without = is the beginning of one.
PREFIXED = frozenset({"NCCL_IB_HCA", "NCCL_SOCKET_IFNAME"})
NCCL_PREFIX = 24  # bits, what NCCL_IB_SUBNET_PREFIX_LEN is by default


def single(node: NodeInput) -> dict[str, str]:
    """One machine: nothing leaves it, and start-up still asks for an interface."""
    return {"NCCL_DEBUG": "WARN", **_on_management(node), "NCCL_SOCKET_IFNAME": f"={node.management_interface}"}


def planned(
    node: NodeInput, rails: Sequence[Rail], *, topology: str, nodes: int, transport: str, qos: str
) -> dict[str, str]:
    """The environment of a node with rails.

    NCCL_IB_GID_INDEX is not among them: it is one number for all adapters, and the index differs between them. NCCL
    2.21 and newer select by content. ``fabric_export_gid_index`` adds it when it is measured (:func:`with_gid_index`).
    """
    ring = topology == "ring"
    common = {
        "NCCL_DEBUG": "WARN",
        # The plugin in NGC images falls back to TCP on GB10 without a word.
        "NCCL_NET_PLUGIN": "none",
        **(_on_management(node) if ring else _on_fabric(rails[0])),
    }
    bootstrap = f"={node.management_interface}"
    if transport == "socket":
        # Each cable of a ring has its own subnet, which the third node cannot reach. Management reaches all.
        interface = node.management_interface if ring else rails[0].netdev
        mpi = _mpi(_management_network(node) if ring else str(network_of(rails[0])))
        return {
            **common,
            **mpi,
            "NCCL_IB_DISABLE": "1",
            "NCCL_SOCKET_IFNAME": f"={interface}",
            "UCX_NET_DEVICES": interface,
        }
    devices = [rail.rdma_device if rail.rdma_port == 1 else f"{rail.rdma_device}:{rail.rdma_port}" for rail in rails]
    environment = {
        **common,
        # Without a usable device NCCL would go on over sockets, at a fraction of the speed and without a word.
        "NCCL_NET": RDMA,
        "NCCL_IB_HCA": "=" + ",".join(devices),
        "NCCL_SOCKET_IFNAME": bootstrap,
    }
    if qos == "roce":
        environment["NCCL_IB_TC"] = ROCE_TRAFFIC_CLASS
    if not ring:
        return {
            **environment,
            **_mpi(str(network_of(rails[0]))),
            "UCX_NET_DEVICES": ",".join(f"{rail.rdma_device}:{rail.rdma_port}" for rail in rails),
        }
    environment |= {
        **_mpi(_management_network(node)),
        "UCX_NET_DEVICES": node.management_interface,
        # Pairs of adapters by subnet: a half reaches only the node at the other end of its cable.
        "NCCL_IB_SUBNET_AWARE_ROUTING": "1",
        # Merging would make one device of two cages, which lead to different nodes.
        "NCCL_IB_MERGE_NICS": "0",
    }
    if rails[0].prefix != NCCL_PREFIX:
        environment["NCCL_IB_SUBNET_PREFIX_LEN"] = str(rails[0].prefix)
    if nodes > fabric_topology.RING_MOST:
        environment["NCCL_ALGO"] = "Ring"
    return environment


def _on_fabric(first: Rail) -> dict[str, str]:
    # Gloo and the tensor pipe do not read NCCL's variables, and would pick docker0.
    return {"GLOO_SOCKET_IFNAME": first.netdev, "TP_SOCKET_IFNAME": first.netdev, "VLLM_HOST_IP": first.address}


def _on_management(node: NodeInput) -> dict[str, str]:
    return {
        "GLOO_SOCKET_IFNAME": node.management_interface,
        "TP_SOCKET_IFNAME": node.management_interface,
        "VLLM_HOST_IP": node.management_address,
    }


def _mpi(network: str) -> dict[str, str]:
    # docker0 has the same address on every node, on which Open MPI hangs. A subnet, since mpirun hands the head's
    # environment to nodes where the interface has another name.
    return {"OMPI_MCA_btl_tcp_if_include": network, "OMPI_MCA_oob_tcp_if_include": network}


def _management_network(node: NodeInput) -> str:
    """The subnet of the management interface; its name when that is not known."""
    for interface in node.interfaces or ():
        for entry in interface.addresses:
            if entry.address == node.management_address:
                network = as_network(f"{entry.address}/{entry.prefix}")
                if network is not None and network.prefixlen < 32:
                    return str(network)
    return node.management_interface


def address_range(node: NodeInput, rails: Sequence[Rail], used: Sequence[Network], found: Found) -> dict[str, str]:
    """NCCL_IB_ADDR_RANGE where a half has an IPv4 address beside ours, which NCCL could take as well.

    One range has to hold all halves of this node and none of the other addresses. Old addresses of ours are inside the
    fabric's subnets; the apply takes them away.
    """
    own = {rail.netdev for rail in rails}
    others = []
    for interface in node.interfaces or ():
        if interface.name in own:
            for entry in interface.addresses:
                address = ipv4(entry.address)
                if address and not any(ipaddress.IPv4Address(address) in network for network in used):
                    others.append((interface.name, address))
    if not others:
        return {}
    networks = [network_of(rail) for rail in rails]
    span = spanning(networks)
    for name, address in others:
        if ipaddress.IPv4Address(address) in span:
            found(
                name,
                f"has {address} beside the fabric, which no range can tell from {', '.join(map(str, networks))}",
                "Remove this address, or choose fabric_subnets next to each other",
            )
    return {"NCCL_IB_ADDR_RANGE": str(span)}


def with_gid_index(environment: dict[str, str], rails: Sequence[Rail], found: Found) -> dict[str, str]:
    """What was planned, and NCCL_IB_GID_INDEX once it is measured.

    It is one number for all adapters of a process, so it has to be right for each of them.
    """
    indices = {rail.rdma_device: rail.gid_index for rail in rails}
    if None in indices.values():
        return environment  # a half without GID is a finding of its own
    if len(set(indices.values())) == 1:
        return {**environment, "NCCL_IB_GID_INDEX": str(rails[0].gid_index)}
    shown = ", ".join(f"{index} on {device}" for device, index in indices.items())
    found(
        "",
        f"fabric_export_gid_index is set, and no GID index fits all halves: {shown}",
        "Set fabric_export_gid_index: false, so that NCCL finds each by its address; or make the tables equal, which "
        "additional IPv6 addresses make different",
    )
    return environment


def override(
    planned_values: Mapping[str, str],
    wanted: Mapping[str, Any],
    found: Found,
    node: NodeInput,
    rails: Sequence[Rail] = (),
) -> dict[str, str]:
    """The user's word is last; a null takes a variable away. What names a device has to name one of this node's."""
    for name, value in sorted((str(name), value) for name, value in wanted.items()):
        if looks_secret(name, None if value is None else _text(value)):
            found(
                "",
                f"fabric_environment: {name} looks like a secret, and every user of the node can read the fabric fact",
                "Use a variable that names a file, or set it where only the process that needs it reads it",
            )
    given = {str(name): None if value is None else _text(value) for name, value in wanted.items()}
    for name, value in sorted(given.items()):
        complaint = value is not None and _not_of_this_node(name, value, node, rails, planned_values)
        if complaint:
            found("", f"fabric_environment: {name} is {value!r}: {complaint[0]}", complaint[1])
    merged = {**planned_values, **given}
    return {name: value for name, value in sorted(merged.items()) if value is not None}


_INTERFACES = frozenset({"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "MN_IF_NAME"})
_MPI_INTERFACES = re.compile(r"OMPI_MCA_(btl|oob)_tcp_if_include")


def _not_of_this_node(
    name: str, value: str, node: NodeInput, rails: Sequence[Rail], planned_values: Mapping[str, str]
) -> tuple[str, str] | None:
    """What is wrong with a variable that names hardware, and what to do; nothing where it is right."""
    devices = sorted({rail.rdma_device for rail in rails})
    interfaces = sorted({rail.netdev for rail in rails} | {node.management_interface} - {""})
    if name == "NCCL_IB_GID_INDEX":
        return "one number for all adapters, whose indices differ and change", "Set fabric_export_gid_index: true"
    # NCCL takes sockets without a word where it is told so, or finds no device.
    over_rdma = planned_values.get("NCCL_NET") == RDMA
    if over_rdma and (
        (name == "NCCL_IB_DISABLE" and value != "0") or (name == "NCCL_NET" and value.casefold() == "socket")
    ):
        return "NCCL would leave the RDMA devices unused", "Set fabric_transport: socket, if that is wanted"
    if name == "VLLM_HOST_IP":
        known = [node.management_address, *(rail.address for rail in rails)]
    elif name == "NCCL_IB_HCA" and rails:
        known = devices
    elif name in _INTERFACES:
        known = interfaces
    elif name == "UCX_NET_DEVICES":
        known = [*devices, *interfaces]
    elif _MPI_INTERFACES.fullmatch(name):
        networks = [_management_network(node), *(str(network_of(rail)) for rail in rails)]
        known = [*interfaces, *dict.fromkeys(networks)]
    else:
        return None
    listed = ", ".join(known) or "nothing"
    if value.startswith("^"):
        return "it says what not to take, and leaves everything else", f"Name what to take: {listed}"
    exact, words = value.startswith("=") or name not in PREFIXED, value.lstrip("=").split(",")
    for word in words:
        port = name in ("NCCL_IB_HCA", "UCX_NET_DEVICES")
        wanted = word.strip().partition(":")[0] if port else word.strip()
        if wanted not in known and (exact or not wanted or not any(item.startswith(wanted) for item in known)):
            return f"{word.strip() or 'an empty name'} is not in use here", f"Use {listed}, or leave it to the plan"
    return None


def _text(value: Any) -> str:
    """YAML's true and false are 1 and 0 to everything that reads these variables."""
    return str(int(value)) if isinstance(value, bool) else str(value)
