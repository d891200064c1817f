# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""For tests/bench/scale.py: no module goes to a machine. What a healthy node of an unchanged cluster on a switch would
answer is made here, so that the time and the memory of the controller are what is measured.

``SIMULATED_SIZES``  file to which the size of what each module was given and has answered is appended.
"""

from __future__ import annotations

import copy
import json
import os
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.plugins.callback import CallbackBase

TESTS = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(TESTS / "unit"))

import preflight_inputs
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access.apply import marks
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._firewall import port_filter
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import files
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils import _node_program
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import workers
from fabric_inputs import GUID, spark_cages
from ssh_keys import ssh_key
from sysfs_tree import gid_of

DOCUMENTATION = r"""
name: simulated_nodes
type: notification
short_description: answer for nodes that do not exist
description:
  - Used by the measurements of this collection.
"""
NETDEVS = [netdev for _device, netdev in preflight_inputs.HALVES]
ANSWER = {
    **{"model": "m", "text": " a", "completion_tokens": 1, "tokens_per_s": 5.0, "measured": "1 token in 0.20 s"},
    **{"seconds": 0.2, "first_token_s": 0.1},
}
NOBODY = {"shell": "/usr/sbin/nologin"}
ACCOUNTS = {
    "sparkmatrix": {**NOBODY, "home": "/var/lib/sparkmatrix/home", "has_home": True},
    "sparkmatrix-gateway": {**NOBODY, "home": "/nonexistent", "has_home": False},
}
FILTERS = [port_filter.file_set(name) for name in port_filter.NAMES]
SETTLED: Mapping[str, Any] = {
    # Files that are not those that are wanted: the action has to compare, and its module says that it finds the same.
    "files": dict.fromkeys(("engine", "fabric", "gateway", "peers", "ray", *FILTERS), "0" * 64),
    "units": {},
    "filters": dict.fromkeys(port_filter.NAMES, True),
    "accounts": {"sparkmatrix": 995, "sparkmatrix-gateway": 994},
    "peermem": True,
    "qos": True,
    "secrets": {
        "ray_token": {"mark": "a1340f55d6c3", "owner": "sparkmatrix:sparkmatrix"},
        "engine_key": {"mark": "a1340f55d6c3", "owner": "root:root"},
    },
    "bandwidth": {"tool": None, "verbs": True, "busy": [], "software": [], "measured": ""},
}
NOTHING: Mapping[str, Any] = {"changed": False}
# What modules say that find nothing to do.
SAID: Mapping[str, Mapping[str, Any]] = {
    "firewall": {"changes": [], "previous": []},
    "os_settings": {"actions": [], "reboot": []},
    "mlnx_qos": {"differs": False, "interfaces": {}, "link_bounced": False, "problems": [], "engines": []},
    "managed_files": {"changed_paths": []},
    "managed_service": {"due": False, "action": "none"},
    "port_filter": {"changes": []},
    "peermem": {},
    "secret": {"secret": "0123456789abcdef0123", "fingerprint": "a1340f55d6c3", "replaced": False},
    "gateway": {"action": "none", "endpoints": ["https://10.64.0.10:8443/v1"], "firewall": [], "sets": []},
    "engine_probe": {"ready": True, "answer": ANSWER, "waited_s": 0.2, "access": 401, "rdma": ""},
    "stat": {"stat": {"exists": True}},
}


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "simulated_nodes"

    def v2_playbook_on_start(self, playbook: Any) -> None:
        workers.prepare()
        SETTLED["files"]["node_tool"] = node_tool()
        ActionBase._execute_module = execute
        ActionBase._low_level_execute_command = lambda *_args, **_more: {"rc": 0, "stdout": "", "stderr": ""}

    def v2_playbook_on_play_start(self, play: Any) -> None:
        workers.share()


def execute(self: ActionBase, *args: Any, **call: Any) -> dict[str, Any]:
    name = str(call.get("module_name") or (args[0] if args else None) or self._task.action).rpartition(".")[2]
    variables = call.get("task_vars") or args[2]
    host, options = variables["inventory_hostname"], call.get("module_args") or self._task.args
    if name == "node":
        name, options = options["call"], options.get("request") or {}
    answer = {**NOTHING, **made(name, host, int(variables["spark_rank"]), len(variables["groups"]["sparks"]), options)}
    sizes = os.environ.get("SIMULATED_SIZES")
    if sizes:
        given, said = (len(json.dumps(value, default=str)) for value in (dict(options), answer))
        with open(sizes, "a") as stream:
            stream.write(f"{name} {host} {given} {said}\n")
    return answer


def made(name: str, host: str, rank: int, count: int, options: Mapping[str, Any]) -> Mapping[str, Any]:
    if name == "node_info":
        return {"node": {**node(host, rank), **left(host, rank, options)}, "fact": fact(host, rank, count)}
    if name == "reach":
        listen = options.get("listen")
        return {"unreached": [], "heard": heard(host, listen["nodes"]) if listen else None}
    if name == "neighbors":
        return heard(host, options["nodes"])
    if name == "pings":
        return pinged(options)
    if name == "show_gids":
        return {"gids": node(host, rank)["gids"]}
    if name == "fabric_change":
        compared = {"changes": [], "fact_applied": True, "fact": options["fact"], "transaction": ""}
        found = pinged(options["pings"]) if options.get("pings") else None
        return {**compared, "backend": "networkd", "pings": found}
    if name == "rdma_look":
        known = node(host, rank)
        return {**SETTLED["bandwidth"], "ports": known["rdma"]["devices"], "gids": known["gids"]}
    if name == "access":
        return {"changes": [], "transaction": "", "settled": marks(options["rules"])}
    if name == "engine_inputs":
        complete = {"owner": "root", "unmet": "complete", "kernels": ""}
        one = {"where": "cache", "signature": "0a1b2c3d4e5f6071", "problem": "", "remedy": ""}
        return {
            "environments": {one["path"]: complete for one in options.get("environments", ())},
            "models": [{**one, **whole(model)} for model in options["models"]],
        }
    if name == "ray_cluster":
        return {"complete": True, "alive": list(options["nodes"].values())}
    if name == "verify":
        plan = options["plan"]
        counted = {"complete": True, "alive": list(plan["ray"]["members"].values())} if options["ray"] else None
        through = plan["services"] if options["gateway_port"] else []
        answer = {"ready": True, "answer": ANSWER, "access": 401, **dict.fromkeys(("rdma", "reason", "msg"), "")}
        return {"results": [answer] * len(plan["heads"]), "ray": counted, "gateway": [answer] * len(through)}
    if name == "peer":
        return {**peer(host, rank), "network": node(host, rank)["network"], "fact": None}
    return SAID.get(name, {})


def pinged(options: Mapping[str, Any]) -> dict[str, Any]:
    fields = ("rail", "peer", "source", "address")
    good = {"ok": True, "rtt_ms": 0.05, "cause": None, "reason": None, "remedy": None}
    return {"probes": [{**{key: path[key] for key in fields}, **good} for path in options["paths"]]}


def left(host: str, rank: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """Of earlier runs."""
    return {
        "commands": {name: f"/usr/bin/{name}" for name in options["commands"]},
        "settled": {**SETTLED, "peer": peer(host, rank)} if "settled" in options["parts"] else {},
        "engine_units": [] if rank % 2 else [f"sparkmatrix-engine-s{rank + 1}.service"],
        "managed": [name for name in SETTLED["files"] if rank == 0 or "gateway" not in name],
        "accounts": ACCOUNTS,
    }


def node_tool() -> str:
    """As the action node_tool has it: what a node keeps is the tool of this checkout."""
    return files.fingerprint([files.File.from_params(file) for file in _node_program.files()])


def whole(model: Mapping[str, Any]) -> dict[str, Any]:
    """As a node answers that has it."""
    known = {"name": model["name"], "ref": model["revision"]}
    sizes = {"size": 16_400_000_000, "there": 16_400_000_000}
    held = {"state": "whole", "revision": "a" * 40, "digest": "d" * 64, "found": "", **sizes}
    return {**known, "held": {**known, **held}}


def peer(host: str, rank: int) -> dict[str, Any]:
    connection = ["10.64.255.1", "50000", address(64, rank), "22"]
    keys = {"public_key": ssh_key(f"own {host}"), "host_keys": [ssh_key(host)]}
    return {**keys, "connection": connection, "ssh_ports": [22], "account": True, "jail": False}


def address(second: int, rank: int) -> str:
    return f"10.{second}.{(rank + 10) // 256}.{(rank + 10) % 256}"


def fact(host: str, rank: int, count: int) -> dict[str, Any]:
    """Of an earlier run."""
    found = preflight_inputs.fact(host, rank, count)
    found.update(management_address=address(64, rank), cluster_address=address(100, rank))
    for second, rail in zip((100, 101), found["rails"]):
        rail.update(address=address(second, rank), prefix=16)
    return dict(found)


def node(host: str, rank: int) -> dict[str, Any]:
    """As tests/unit/preflight_inputs.py has it, with room for more than nine."""
    found = json.loads(json.dumps(copy.deepcopy(preflight_inputs.NODE)).replace(":01:c", f":{rank:02x}:c"))
    found.update(hostname=host, machine_id=f"{rank + 1:032x}", time=1000.0)
    interfaces = {interface["name"]: interface for interface in found["network"]["interfaces"]}
    interfaces["enP7s7"].update(mac=f"48:21:0b:95:{rank:02x}:01")
    interfaces["enP7s7"]["addresses"] = [{"address": address(64, rank), "prefix": 16, "scope": "global"}]
    found["network"]["routes"] = [{"dst": "10.64.0.0/16", "dev": "enP7s7"}]
    found["gids"] = []
    for number, (second, netdev) in enumerate(zip((100, 101), NETDEVS)):
        mine = address(second, rank)
        interfaces[netdev].update(mac=f"48:21:0b:96:{rank:02x}:c{4 * number}")
        interfaces[netdev]["addresses"] = [{"address": mine, "prefix": 16, "scope": "global", "family": "inet"}]
        found["network"]["routes"].append({"dst": f"10.{second}.0.0/16", "dev": netdev})
        found["gids"].append({**preflight_inputs.gid(number, "10.0.0.1"), "gid": gid_of(mine), "ipv4": mine})
    guid = f"4821:0b03:0096:{rank:02x}c0"
    for device in found["rdma"]["devices"]:
        device.update(node_guid=guid, sys_image_guid=guid, mac=interfaces.get(device["netdev"], {}).get("mac"))
    text = json.dumps([cage.as_dict() for cage in spark_cages()]).replace(GUID, guid)
    found["rdma"]["cages"] = json.loads(text)
    return dict(found)


def heard(host: str, nodes: list[str]) -> dict[str, Any]:
    found = [
        {"netdev": netdev, "cage": 0, "source": "probe", "node": peer, "peer_cage": 0}
        | {"both_ways": True, "system": "", "port": ""}
        for netdev in NETDEVS
        for peer in nodes
        if peer != host
    ]
    state = {"carrier": True, "brought_up": False}
    return {"heard": found, "interfaces": dict.fromkeys(NETDEVS, state), "notes": [], "complete": True, "seconds": 0.5}
