# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Healthy machines as preflight sees them: what ``node_info`` returns, inventories, fabric facts."""

from __future__ import annotations

import copy
import json
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fact as fabric_fact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.show_gids import Gid
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.node import PARTS, Node
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import base
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import machines as machine
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight.layers import LAYERS
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight.variables import SHARED, Variable
from fabric_inputs import half
from sysfs_tree import gid_of

ALL = frozenset(LAYERS)
VARIABLES = {
    variable.name: variable
    for variable in (
        *SHARED,
        Variable("fabric_mtu", "fabric", "int", default=9000, description="Bytes."),
        Variable("fabric_subnets", "fabric", "list", "str", default=["10.100.0.0/24", "10.100.1.0/24"]),
        Variable("fabric_host_offset", "fabric", "int", default=1),
        Variable("engine_tensor_parallel_size", "engine", "int", default=0),
        Variable("engine_pipeline_parallel_size", "engine", "int", default=0),
        Variable("engine_hang_seconds", "engine", "int", default=600),
        Variable("engine_recipe", "engine"),
        Variable("engine_prefix_cache_gb", "engine", "int", default=0),
        Variable("engine_port", "engine", "int", default=8000),
        Variable("fabric_topology", "fabric", default="auto"),
        Variable("fabric_transport", "fabric", default="auto"),
        Variable("engine_python", "engine", default="python3"),
        Variable("engine_venv_path", "engine", "path", default="/opt/sparkmatrix/engine"),
        Variable("ray_port", "ray", "int", default=6379),
        Variable("os_stabilization_headless", "os_stabilization", default="boot"),
        Variable("os_stabilization_limits", "os_stabilization", "bool", default=True),
        Variable("os_stabilization_memlock", "os_stabilization", default="unlimited"),
        Variable("os_stabilization_nofile", "os_stabilization", default="65536:524288"),
    )
}
DOMAINS = ("0000", "0002")
HALVES = (("rocep1s0f0", "enp1s0f0np0"), ("roceP2p1s0f0", "enP2p1s0f0np0"))


def gid(half_number: int, address: str, index: int = 3, version: int = 2) -> dict[str, Any]:
    device, netdev = HALVES[half_number]
    return Gid(device, 1, index, gid_of(address), version, netdev).as_dict()


NODE = {
    "hostname": "spark1",
    "machine": {"vendor": "NVIDIA", "product": "NVIDIA_DGX_Spark", "gpu": "NVIDIA GB10", "is_gb10": True},
    "machine_id": "1",
    "kernel": "6.14.0-1013-nvidia",
    "arch": "aarch64",
    "nvidia_driver": "580.95.05",
    "verdicts": 1,
    "python": {"version": "3.12.3", "executable": "/usr/bin/python3"},
    "memory": {"total": 119 * base.GIB, "cma_total": None, "cma_free": None},
    "paths": {"/opt/sparkmatrix/engine": {"exists": False, "total": 10**12, "free": 9 * 10**11, "read_only": False}},
    "network": {
        "interfaces": [
            {
                "name": "lo",
                "kind": None,
                "master": None,
                "mac": "00:00:00:00:00:00",
                "addresses": [{"address": "127.0.0.1", "prefix": 8, "scope": "host"}],
            },
            {
                "name": "enP7s7",
                "mac": "48:21:0b:95:01:01",
                "addresses": [
                    {"address": "198.51.100.11", "prefix": 24, "scope": "global"},
                    {"address": "fe80::1", "prefix": 64, "scope": "link"},
                ],
            },
            {"name": "docker0", "kind": "bridge", "addresses": [{"address": "172.17.0.1", "prefix": 16}]},
            {
                "name": "enp1s0f0np0",
                "mac": "48:21:0b:96:01:c0",
                "addresses": [{"address": "10.100.0.1", "prefix": 24, "scope": "global", "family": "inet"}],
            },
            {
                "name": "enP2p1s0f0np0",
                "mac": "48:21:0b:96:01:c4",
                "addresses": [{"address": "10.100.1.1", "prefix": 24, "scope": "global", "family": "inet"}],
            },
        ],
        "routes": [
            {"dst": "default", "dev": "enP7s7"},
            {"dst": "10.100.0.0/24", "dev": "enp1s0f0np0"},
            {"dst": "198.51.100.0/24", "dev": "enP7s7"},
            {"dst": "fe80::/64", "dev": "enP7s7"},
        ],
        "connection_interface": "enP7s7",
    },
    "listening": [{"port": 22, "address": "0.0.0.0", "process": None, "unit": None}],
    "commands": {name: f"/usr/bin/{name}" for layer in (*machine.COMMANDS.values(), machine.NVCC) for name in layer},
    "systemd": True,
    "limits": {"memlock": 8388608, "nofile": 524288, "can_raise": True},
    "uid": 0,
    "units": {"lldpad.service": {"load": "not-found", "active": "inactive"}},
    "netplan_modes": {"/etc/netplan/01-network-manager-all.yaml": "0600", "/lib/netplan/00-default.yaml": "0644"},
    "netplan_bonds": {},
    "environments": {"/opt/sparkmatrix/engine": {"exists": True, "nccl": "2.30.7"}},
    "interpreters": {"python3": "3.12.3", "/opt/sparkmatrix/engine/bin/python": "3.12.3"},
    "rdma": {
        "devices": [
            half(cage, domain, cage == 0, firmware="28.45.4028").as_dict() for domain in DOMAINS for cage in (0, 1)
        ],
        "reason": None,
    },
    "gids": [gid(0, "10.100.0.1"), gid(1, "10.100.1.1")],
    "kernel_log": [],
    "gpu": {"checked": True, "ok": True, "code": 0, "message": ""},
    "clocks": {"busy": 96, "celsius": 71, "mhz": 2405, "slowed": []},
    "nccl": {"system": "2.28.9", "settings": {}},
    "clock_offset": 0.4,
}


def inventory(count=4, **common):
    return {f"spark{n + 1}": {"spark_rank": n, "ansible_host": f"198.51.100.{n + 11}", **common} for n in range(count)}


def nodes(count=4):
    found = {}
    for n in range(count):
        node = copy.deepcopy(NODE)
        node.update(hostname=f"spark{n + 1}", machine_id=str(n + 1))
        for number, interface in enumerate(node["network"]["interfaces"][-2:]):
            interface["addresses"][0]["address"] = f"10.100.{number}.{n + 1}"
        node["gids"] = [gid(number, f"10.100.{number}.{n + 1}") for number in (0, 1)]
        for interface in node["network"]["interfaces"]:
            if interface["name"] == "enP7s7":
                interface["addresses"][0]["address"] = f"198.51.100.{n + 11}"
            if interface.get("mac"):
                interface["mac"] = interface["mac"].replace(":01:c", f":0{n + 1}:c").replace("95:01", f"95:0{n + 1}")
        found[f"spark{n + 1}"] = node
    return found


def as_node(told: dict[str, Any]) -> Node:
    """As the loader reads it; a part that is there was asked for."""
    made: Node = document.load_known(Node, {**told, "parts": [part for part in PARTS if part in told]})
    return made


def rail(number: int, address: str, gid_index: int = 3) -> fabric_fact.Rail:
    device, netdev = HALVES[number]
    return fabric_fact.Rail(
        number, 0, DOMAINS[number], netdev, device, 1, address, 24, 9000, 200.0, f"rail{number}", gid_index=gid_index
    )


def fact(
    host: str = "spark1",
    rank: int = 0,
    count: int = 4,
    state: str = "applied",
    topology: str = "switch",
    **changes: Any,
) -> dict[str, Any]:
    document = fabric_fact.FabricFact(
        host=host,
        state=state,
        topology=topology,
        transport="rdma",
        rank=rank,
        nodes=count,
        management_address=f"198.51.100.{rank + 11}",
        cluster_address=f"10.100.0.{rank + 1}",
        cluster_interface="enp1s0f0np0",
        rails=tuple(rail(number, f"10.100.{number}.{rank + 1}") for number in (0, 1)),
        environment=changes.pop("environment", {"NCCL_IB_HCA": "=rocep1s0f0,roceP2p1s0f0"}),
        **changes,
    )
    return dict(json.loads(fabric_fact.dump(document)))


def context(layers=ALL, hosts=None, **rest):
    hosts = inventory() if hosts is None else hosts
    rest.setdefault("play_hosts", list(hosts))
    rest.setdefault("variables", VARIABLES)
    if "earlier" not in rest:
        rest["earlier"] = {host: fact(host, n) for n, host in enumerate(hosts)}
    read = {host: as_node(node) for host, node in rest.pop("nodes", {}).items()}
    return base.Context(layers=frozenset(layers), hosts=hosts, nodes=read, **rest)
