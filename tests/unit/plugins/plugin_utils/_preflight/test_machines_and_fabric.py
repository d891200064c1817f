# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Faults of machines and fabric, and what preflight finds in each: fixtures/rules.txt. A healthy cluster has none."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import dump
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.neighbors import Neighbors
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.reach import Unreached
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import plan as fabric_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.types import Settings
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import base
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import checks as pf
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import fabric as fabric_checks
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import machines as machine_checks
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.table import RULES
from fabric_inputs import half, rdma, ring, wired
from preflight_inputs import ALL, as_node, context, fact, gid, inventory, nodes
from rules import hold, of_findings

# What only a run without the fabric layer refuses, and the layers of such a run.
LATER = ALL - {"fabric"}


@dataclass
class Cluster:
    """Four healthy Sparks; a fault changes them."""

    hosts: dict[str, dict[str, Any]] = field(default_factory=inventory)
    nodes: dict[str, Any] = field(default_factory=nodes)
    facts: dict[str, Any] = field(default_factory=lambda: {f"spark{n + 1}": fact(f"spark{n + 1}", n) for n in range(4)})
    rest: dict[str, Any] = field(default_factory=dict)

    def context(self, layers):
        return context(layers, self.hosts, nodes=self.nodes, earlier=self.facts, **self.rest)


def node(key, value, host="spark2"):
    def inject(cluster):
        cluster.nodes[host][key] = value

    return inject


def without_nvcc(cluster):
    there = cluster.nodes["spark2"]
    there["commands"] = {**there["commands"], "nvcc": None, "/usr/local/cuda/bin/nvcc": None}


def host(name, value, who="spark2"):
    def inject(cluster):
        cluster.hosts[who][name] = value

    return inject


def every(name, value):
    def inject(cluster):
        for values in cluster.hosts.values():
            values[name] = value

    return inject


def rest(**values):
    return lambda cluster: cluster.rest.update(values)


def listened(*lines):
    """What the machines have heard over their cables."""

    def inject(cluster):
        found = wired(*lines)
        for host, heard in found.items():
            cluster.nodes[host]["rdma"] = rdma(heard.cages)
        cluster.rest["neighbors"] = {host: heard.neighbors for host, heard in found.items()}

    return inject


def port(**changes):
    """The first half of spark2 with other attributes."""

    def inject(cluster):
        cluster.nodes["spark2"]["rdma"]["devices"][0] = half(
            0, "0000", **{"firmware": "28.45.4028", **changes}
        ).as_dict()
        interface("enp1s0f0np0", up=changes.get("admin_up"))(cluster)

    return inject


def interface(name, who="spark2", **changes):
    def inject(cluster):
        for item in cluster.nodes[who]["network"]["interfaces"]:
            if item["name"] == name:
                item.update(changes)

    return inject


def both(*faults):
    def inject(cluster):
        for fault in faults:
            fault(cluster)

    return inject


def bonded(cluster):
    network = cluster.nodes["spark2"]["network"]
    network["interfaces"].append({"name": "bond0", "kind": "bond", "master": None, "addresses": []})
    interface("enp1s0f0np0", master="bond0")(cluster)


def kept_on_wifi(cluster):
    network = cluster.nodes["spark2"]["network"]
    network["interfaces"].append({"name": "wlP9s9", "addresses": [{"address": "192.0.2.7", "prefix": 24}]})
    network["kept"] = {"address": "192.0.2.7"}


def new_fact(who="spark2", **changes):
    def inject(cluster):
        cluster.facts[who] = fact(**{"host": who, "rank": 1, **changes})

    return inject


def in_awx(then):
    def inject(cluster):
        every("awx_job_id", 7)(cluster)
        then(cluster)

    return inject


def no_facts(cluster):
    cluster.facts.clear()


def reached(cluster):
    del cluster.nodes["spark2"]
    cluster.rest["failures"] = {"spark2": "Connection timed out"}


def old_nccl(version):
    return node("environments", {"/opt/sparkmatrix/engine": {"exists": True, "nccl": version}})


VENV = "/opt/sparkmatrix/engine/bin/python"
PORT = {"port": 8000, "address": "::", "process": "nginx", "unit": "nginx.service"}
AER = {"kind": "aer_fatal", "device": "0000:00:00.0", "line": "pcieport 0000:00:00.0: AER: ... (Fatal)", "count": 3}
LOST = {"kind": "low_power", "device": "0002:01:00.0", "line": "mlx5_core 0002:01:00.0: Unable to ...", "count": 1}
LOST |= {"missing": True}
LOST_WAY = {"reason": "timed out"}
DEAD = {"checked": True, "ok": False, "code": 999, "message": "CUDA_ERROR_UNKNOWN"}
OWN = {"address": "10.100.0.2", "prefix": 24, "scope": "global", "family": "inet"}
MODEL = "/opt/sparkmatrix/models/huggingface/hub/models--Qwen--Qwen3-235B-A22B-GPTQ-Int4"
KEPT = "/var/lib/sparkmatrix/prefixes/sparkmatrix-engine"
DISK = {"/opt/x": {"exists": False, "free": 2**30, "total": 2**40, "read_only": False}}


def crossed(cluster, speeds):
    for number, speed in enumerate(speeds):
        cluster.nodes[f"spark{number + 1}"]["rdma"]["devices"] = [
            half(cage, domain, speed_gbps=speed).as_dict() for cage in (0, 1) for domain in ("0000", "0002")
        ]


def network(**changes):
    return lambda cluster: cluster.nodes["spark2"]["network"].update(changes)


def second_interface(**item):
    usual = {"name": "enP9s9", "kind": None, "master": None, "addresses": []}
    return lambda cluster: cluster.nodes["spark2"]["network"]["interfaces"].append({**usual, **item})


def addressed(address, prefix=24, **more):
    return {"address": address, "prefix": prefix, "scope": "global", **more}


NOBODY = {"earlier": {}}  # no earlier run
SECOND = every("fabric_subnets", ["no network", "10.100.1.0/24"])


def routed(*devices):
    return network(routes=[{"dst": "default", "dev": device, "table": "main"} for device in devices])


def two(fault):
    """Of two machines."""

    def inject(cluster):
        for name in ("spark3", "spark4"):
            del cluster.hosts[name], cluster.nodes[name]
        fault(cluster)

    return inject


def not_read(message):
    def inject(cluster):
        del cluster.nodes["spark2"]
        cluster.rest["failures"] = {"spark2": message}

    return inject


def venv(versions, **state):
    def inject(cluster):
        cluster.nodes["spark2"]["interpreters"] = versions
        cluster.nodes["spark2"]["environments"]["/opt/sparkmatrix/engine"].update(state)

    return inject


def listening(port_, address="0.0.0.0", process="nginx", unit=None, who="spark1"):
    return node("listening", [{"port": port_, "address": address, "process": process, "unit": unit}], who)


def settings_of(**values):
    return rest(settings=base.Settings(**values))


def clock(**offsets):
    def inject(cluster):
        for name, offset in offsets.items():
            cluster.nodes[name]["clock_offset"] = offset

    return inject


def memory(gib):
    return node("memory", {"total": int(gib * base.GIB)})


RULE = {"priority": 9, "table": "52", "action": "lookup"}
UNREAD = {"checked": False, "ok": None, "code": None, "message": ""}
PATHS = {"exists": False, "free": 20 * 2**30, "total": 2**40, "read_only": False}
RAISED = {"memlock": 8388608, "nofile": 524288, "can_raise": False}
LEFT = {"unit": "disable-unused-nics.service", "file": "/usr/local/bin/x.sh", "line": "ip link set $i down"}


LIKE_AN_OLD_NETWORK = ["10.200.0.0/24", "10.200.1.0/24"]


# Rule: (fault, layers of the run).
FAULTS = {
    "severity": (rest(settings=base.Settings(severity={"clok": "warn"})), ALL),
    "names": (lambda c: c.hosts.update({"spark_5": {"spark_rank": 4}}), ALL),
    "rank_gaps": (both(no_facts, host("spark_rank", 7)), ALL),
    "ranks": (both(no_facts, host("spark_rank", 0)), ALL),
    "addresses": (host("ansible_host", "198.51.100.11"), ALL),
    "renamed_variables": (host("gateway_state", "absent"), ALL),
    "unknown_variables": (host("fabric_mtuu", 1), ALL),
    "types": (host("fabric_mtu", "x"), ALL),
    "fabric_plan": (every("fabric_topology", "direct"), ALL),
    "engine_plan": (every("engine_recipe", "qwen"), ALL),
    "port_filter": (host("spark_port_filter_from", ["10.0.0.0/24", "office"]), ALL),
    "hub_token": (every("artifacts_hub_token_file", "/none/token"), ALL),
    "model_sources": (every("artifacts_sources", {"org/name": "controller:/none/name"}), ALL),
    "keeper": (host("engine_hang_seconds", 6), ALL),
    "gateway": (both(every("gateway_listen", ["enP7s7"]), every("gateway_paths", ["/metrics"])), ALL),
    "limit": (rest(play_hosts=["spark1"]), ALL),
    "not_answering": (reached, ALL),
    "root": (node("uid", 1000), ALL),
    "systemd": (node("systemd", False), ALL),
    "python": (node("python", {"version": "3.8.1", "executable": "/p"}), ALL),
    "gb10": (node("machine", {"is_gb10": False}), ALL),
    "memory": (node("memory", {"total": 108 * base.GIB}), ALL),
    "memory_differs": (node("memory", {"total": 60 * base.GIB}), ALL),
    "disk": (node("paths", DISK), ALL),
    "model_disk": (
        both(every("engine_recipe", "qwen3-235b-a22b-gptq-int4"), node("paths", {MODEL: {"free": 3 * 10**10}})),
        frozenset({"artifacts"}),
    ),
    "prefix_disk": (
        both(
            both(every("engine_recipe", "qwen3-8b"), every("engine_prefix_cache_gb", 2000)),
            node("paths", {KEPT: {**PATHS, "free": 10**12}}),
        ),
        frozenset({"engine"}),
    ),
    "clock": (node("clock_offset", 60.0), ALL),
    "commands": (node("commands", {}), ALL),
    "clones": (node("machine_id", "1"), ALL),
    "firmware_differs": (port(firmware="28.40.1000"), ALL),
    "cma": (node("memory", {"total": 119 * base.GIB, "cma_total": 0, "cma_free": 2**30}), ALL),
    "ports": (node("listening", [PORT], "spark1"), ALL),
    "limits": (node("limits", {"memlock": 8388608, "nofile": 524288, "can_raise": False}), ALL),
    "engine_python": (node("interpreters", {VENV: None, "python3": "3.12.3"}), ALL),
    "gpu": (node("gpu", DEAD), ALL),
    "pcie_error": (node("kernel_log", [AER]), ALL),
    "session": (node("session", {"interface": "wlP9s9", "uuid": "u", "users": ["ann"], "secret": False}), ALL),
    "low_power": (node("kernel_log", [LOST]), ALL),
    "subnets": (interface("enP7s7", addresses=[{"address": "10.100.0.9", "prefix": 24, "scope": "global"}]), ALL),
    "docker_subnet": (interface("docker0", addresses=[{"address": "10.100.1.1", "prefix": 16}]), ALL),
    "management": (lambda c: c.nodes["spark2"]["network"].update(connection_interface="enp1s0f0np0"), ALL),
    "vanished": (in_awx(new_fact(count=5)), {"fabric"}),
    "readdressed": (new_fact(host="spark9"), ALL),
    "management_address": (interface("enP7s7", addresses=[]), ALL),
    "management_kept": (kept_on_wifi, ALL),
    "management_reach": (
        rest(reach={f"spark{n}": [Unreached("spark2", "198.51.100.12", **LOST_WAY)] for n in (1, 3)}),
        ALL,
    ),
    "fabric_fact": (lambda c: c.facts.update(spark2={}), LATER),
    "nic_removed": (node("rdma", {"devices": [], "reason": "nic_removed"}), ALL),
    "pcie_downtrained": (port(width=2), ALL),
    "link_100g": (port(speed_gbps=100.0), ALL),
    "one_half_only": (interface("enP2p1s0f0np0", addresses=[]), LATER),
    "gpu_slow": (node("clocks", {"busy": 96, "celsius": 48, "mhz": 513, "slowed": []}), ALL),
    "leftover_unit": (
        node("leftover_units", [{"unit": "x.service", "file": "/x", "line": "ip", "netdevs": ["enp1s0f0np0"]}]),
        ALL,
    ),
    "half_uplink": (
        lambda c: c.nodes["spark2"]["network"].update(routes=[{"dst": "default", "dev": "enp1s0f0np0"}]),
        {"fabric"},
    ),
    "one_half_only 2": (port(admin_up=False), LATER),
    "routing_rules": (
        lambda c: c.nodes["spark2"]["network"].update(
            rules=[{"priority": 5270, "table": "52", "action": "lookup"}],
            routes=[
                {"dst": "default", "dev": "tailscale0", "table": "52"},
                {"dst": "10.100.0.0/24", "type": "throw", "table": "52"},
            ],
        ),
        {"fabric"},
    ),
    "wrong_mtu": (interface("enp1s0f0np0", mtu=1500), LATER),
    "foreign_address": (
        both(
            new_fact(environment={"NCCL_IB_ADDR_RANGE": "10.100.0.0/16"}),
            interface("enp1s0f0np0", addresses=[OWN, {**OWN, "address": "192.168.77.5"}]),
            node("gids", [gid(0, "10.100.0.2"), gid(0, "192.168.77.5", index=5), gid(1, "10.100.1.2")]),
        ),
        ALL,
    ),
    "gid_missing": (node("gids", [gid(0, "10.100.0.2")]), ALL),
    "gid_mismatch": (node("gids", [gid(0, "10.100.0.2", index=5), gid(1, "10.100.1.2")]), LATER),
    "bond": (bonded, ALL),
    "duplicate_mac": (interface("enp1s0f0np0", mac="48:21:0B:96:01:C0"), ALL),
    "netplan_mode": (node("netplan_modes", {"/etc/netplan/40-cx7.yaml": "0644"}), ALL),
    "lldpad": (node("units", {"lldpad.service": {"active": "active"}}), ALL),
    "nccl_conf": (node("nccl", {"system": "2.28.9", "settings": {"/etc/nccl.conf": {"NCCL_IB_GID_INDEX": "3"}}}), ALL),
    "cables": (both(every("fabric_topology", "ring"), listened("spark1.0 spark2.0 spark3.0 spark4.0 @sw1")), ALL),
    "nccl_ring": (both(every("fabric_topology", "ring"), old_nccl("2.29.0")), ALL),
    "web_ui": (
        both(every("web_ui_enabled", True), every("web_ui_image", "x:v1.0"), every("web_ui_runtime", "venv")),
        {"web_ui"},
    ),
    "compiler": (without_nvcc, {"engine"}),
    "nccl_several": (both(every("fabric_topology", "switch"), old_nccl("2.28.9")), ALL),
}
# Other faults, and what is none.
MORE = {
    **{
        f"not read: {' '.join(message.split())}": (not_read(message), ALL)
        for message in (
            "Task failed: Missing  sudo\n password", "Host key verification failed", "Permission denied (publickey)",
            "Could not resolve hostname", "Connection timed out", "No route to host", "Connection refused",
            "Network is unreachable", "no python interpreters found", "become failed", "needs privilege", "boom", "",
        )
    },
    "no user id": (node("uid", None), ALL),
    "Python 3.9": (node("python", {"version": "3.9.0", "executable": "/p"}), ALL),
    "Python 3.8 of nobody": (node("python", {"version": "3.8"}), ALL),
    "Python is not known": (node("python", {}), ALL),
    "another machine": (node("machine", {"gpu": "H200", "vendor": "ACME", "product": "X1"}), ALL),
    "another machine that may be": (both(node("machine", {}), settings_of(require_gb10=False)), ALL),
    "another architecture": (node("arch", "x86_64"), ALL),
    **{
        f"{gib} GiB of memory": (memory(gib), ALL)
        for gib in (51.9, 52, 64, 64.1, 109.9, 110, 128, 128.1)
    },
    "any memory": (both(memory(8), settings_of(require_gb10=False)), ALL),
    "memory that is not known": (node("memory", {}), ALL),
    "just enough space": (node("paths", {"/opt/x": PATHS}), ALL),
    "too little space on one file system": (
        node("paths", {"/opt/x": {**PATHS, "free": 2**30}, "/opt/y": {**PATHS, "free": 2**30}}), ALL),
    "too little space on two file systems": (
        node("paths", {"/opt/x": {**PATHS, "free": 2**30}, "/opt/y": {**PATHS, "free": 2**31}}), ALL),
    "read-only": (node("paths", {"/opt/x": {**PATHS, "read_only": True}}), ALL),
    "read-only, and there already": (node("paths", {"/opt/x": {**PATHS, "read_only": True, "exists": True}}), ALL),
    "state on a read-only disk": (
        node("paths", {"/var/lib/sparkmatrix": {**PATHS, "read_only": True, "exists": True}}), ALL),
    "state with little space": (node("paths", {"/var/lib/sparkmatrix": {**PATHS, "free": 1}}), ALL),
    "space that is not known": (node("paths", {"/opt/x": {**PATHS, "free": None}}), ALL),
    "a clock behind": (clock(spark2=-60.0), ALL),
    "a clock within its limit": (clock(spark1=0.0, spark2=5.0, spark3=0.0, spark4=0.0), ALL),
    "a clock at its limit": (clock(spark1=0.0, spark2=10.0, spark3=0.0, spark4=0.0), ALL),
    "two clocks": (clock(spark1=0.0, spark2=0.0, spark3=40.0, spark4=50.0), ALL),
    "one clock": (clock(spark1=None, spark2=900.0, spark3=None, spark4=None), ALL),
    "one program is missing": (
        lambda c: c.nodes["spark2"]["commands"].update(ping=None, journalctl=None), ALL),
    "an image needs no compiler": (both(without_nvcc, every("engine_runtime", "container")), {"engine"}),
    "another machine needs no compiler": (both(without_nvcc, node("machine", {"is_gb10": False})), {"engine"}),
    "names twice": (node("hostname", "spark1"), ALL),
    "no machine-id": (both(node("machine_id", ""), node("machine_id", "", "spark1")), ALL),
    "three kernels": (both(node("kernel", "6.1"), node("kernel", "7.0", "spark3")), ALL),
    "another driver": (node("nvidia_driver", "590.1"), ALL),
    "another NCCL": (old_nccl("2.31.0"), ALL),
    "no leak of CMA": (node("memory", {"total": 119 * base.GIB, "cma_total": 0, "cma_free": 0}), ALL),
    "CMA that is accounted for": (node("memory", {"total": 119 * base.GIB, "cma_total": 1, "cma_free": 1}), ALL),
    "a port of ours": (listening(8000, unit="sparkmatrix-engine.service"), ALL),
    "a port of nobody known": (listening(8000, process=None), ALL),
    "a port of a unit": (listening(8000, unit="nginx.service"), ALL),
    "a port of Ray": (listening(6379), ALL),
    "a port of Ray on a worker": (listening(21002, who="spark2"), ALL),
    "a port of Ray's head": (listening(21001), ALL),
    "a port of Ray's head on a worker": (listening(6379, who="spark2"), ALL),
    "a port of Ray's workers": (listening(21500, who="spark2"), ALL),
    "a port that is not needed": (listening(8001), ALL),
    "a port without its layer": (listening(8000), {"ray"}),
    "ports of the observer": (
        both(every("observability_enabled", True), listening(9100, who="spark2"), listening(9090)), {"observability"}),
    "ports of the observer at another address": (
        both(every("observability_enabled", True), listening(9090, "10.9.9.9")), {"observability"}),
    "limits that are not read": (node("limits", {"can_raise": False}), ALL),
    "limits that nobody sets": (both(node("limits", RAISED), host("os_stabilization_limits", False)), ALL),
    "limits that are unlimited already": (node("limits", {**RAISED, "memlock": -1}), ALL),
    "limits just as high": (both(node("limits", RAISED), every("os_stabilization_memlock", "8192")), ALL),
    "limits a bit higher": (both(node("limits", RAISED), every("os_stabilization_memlock", "8193")), ALL),
    "files a bit more": (
        both(node("limits", RAISED), every("os_stabilization_memlock", "1"),
             every("os_stabilization_nofile", "1:524289")), ALL),
    "limits that are no number": (both(node("limits", RAISED), every("os_stabilization_memlock", "much")), ALL),
    "an old Python for the engine": (venv({"python3": "3.10.4"}, exists=False), ALL),
    "no Python for the engine": (venv({"python3": None}, exists=False), ALL),
    "an old environment": (venv({VENV: "3.10.4"}), ALL),
    "an environment of another": (venv({VENV: "3.12.1"}, distrusted="/opt belongs to bob"), ALL),
    "Python 3.11 for the engine": (venv({"python3": "3.11.0"}, exists=False), ALL),
    "the GPU is not checked": (node("gpu", UNREAD), ALL),
    "the GPU is not checked, and why": (node("gpu", {**UNREAD, "message": "no libcuda"}), ALL),
    "the GPU fails without a word": (node("gpu", {"checked": True, "ok": False, "code": None, "message": ""}), ALL),
    "the GPU without a name fails": (both(node("gpu", DEAD), node("machine", {"is_gb10": True})), ALL),
    **{
        f"the GPU is {clocks}": (node("clocks", {"busy": 80, "celsius": 48, "mhz": 999, "slowed": [], **clocks}), ALL)
        for clocks in (
            {}, {"busy": 79}, {"mhz": 1000}, {"mhz": 0}, {"mhz": None}, {"busy": None}, {"celsius": None},
            {"slowed": ["software power cap"], "mhz": 1440},
            {"slowed": ["software power cap", "hardware thermal slowdown", "hardware power brake"]},
        )
    },
    "the GPU tells no clock": (node("clocks", None), ALL),
    "one line of a fatal error": (node("kernel_log", [{**AER, "count": 1}]), ALL),
    "a lost device that is back": (node("kernel_log", [{**LOST, "missing": False}]), ALL),
    "no journal": (node("kernel_log", None), ALL),
    "a session of two users": (
        node("session", {"interface": "wlP9s9", "uuid": "u", "users": ["ann", "bob"], "secret": False}), ALL),
    "a session with a secret": (
        node("session", {"interface": "wlP9s9", "uuid": "u", "users": [], "secret": True}), ALL),
    "a route into the fabric's subnet": (
        network(routes=[{"dst": "10.100.0.0/16", "dev": "tun0"}, {"dst": "10.100.1.0/25", "type": "blackhole"}]), ALL),
    "routes that do not matter": (
        network(routes=[{"dst": "default", "dev": "tun0"}, {"dst": "10.100.0.0/24", "dev": "docker0"},
                        {"dst": "10.100.0.0/24", "type": "throw"}, {"dst": "10.101.0.0/24", "dev": "tun0"}]), ALL),
    "an address in the fabric's subnet": (second_interface(addresses=[addressed("10.100.1.77")]), ALL),
    "an address of the link": (second_interface(addresses=[addressed("10.100.1.77", scope="link")]), ALL),
    "a network of Docker": (second_interface(name="br-0123456789ab", addresses=[addressed("10.100.1.77")]), ALL),
    "a network of Docker over the management": (
        second_interface(name="docker1", addresses=[addressed("198.51.100.200", 25)]), ALL),
    "a bridge of somebody": (second_interface(name="br-lan", addresses=[addressed("172.30.0.1")]), ALL),
    "a rule that ends packets": (network(rules=[{**RULE, "action": "unreachable"}]), {"fabric"}),
    "a rule to a route without a device": (
        network(rules=[RULE], routes=[{"dst": "default", "type": "prohibit", "table": "52"}]), {"fabric"}),
    "a rule that spares one half": (
        network(rules=[RULE], routes=[{"dst": "default", "dev": "tun0", "table": "52"},
                                      {"dst": "10.100.0.0/24", "type": "throw", "table": "52"}]), {"fabric"}),
    "a rule that spares both": (
        network(rules=[RULE], routes=[{"dst": "default", "dev": "tun0", "table": "52"},
                                      {"dst": "10.100.0.0/23", "type": "throw", "table": "52"}]), {"fabric"}),
    "a session over the fabric, without its layer": (
        network(connection_interface="enp1s0f0np0"), {"access"}),
    "two of one management address": (host("fabric_management_address", "198.51.100.13"), ALL),
    "management that some do not reach": (
        rest(reach={"spark1": [Unreached("spark2", "198.51.100.12", **LOST_WAY)],
                    "spark4": [Unreached("spark3", "198.51.100.13", "refused")]}),
        ALL),
    "a fact of another count": (new_fact(count=3), LATER),
    "a fact of another rank": (new_fact(rank=3), LATER),
    "a fact of another host": (new_fact(host="spark9"), LATER),
    "a fact that is not applied": (new_fact(state="applying"), LATER),
    "two vanished": (
        in_awx(both(new_fact(count=6), new_fact(who="spark3", host="spark3", rank=2, count=5))), {"fabric"}),
    "another rank": (host("spark_rank", 7), {"fabric"}),
    "other subnets": (every("fabric_subnets", LIKE_AN_OLD_NETWORK), {"fabric"}),
    "an address of its own": (host("fabric_addresses", {"1": "10.100.1.77"}), {"fabric"}),
    **{
        f"no card: {reason}, {transport}": (
            both(node("rdma", {"devices": [], "reason": reason}), every("fabric_transport", transport)), {"fabric"})
        for reason in ("class_missing", "driver_not_loaded", "unreadable", "nic_removed", "other")
        for transport in ("auto", "socket")
    },
    "PCIe of the third generation": (port(speed=8.0), ALL),
    "PCIe that is not known": (port(speed=None, width=None), ALL),
    "PCIe without a width": (port(speed=16.0, width=None), ALL),
    "a link of 199 Gb/s": (port(speed_gbps=199.0), ALL),
    "a link of no known speed": (port(speed_gbps=None), ALL),
    "a link in InfiniBand mode": (port(link_layer="InfiniBand", speed_gbps=100.0), ALL),
    "a card of another maker": (port(driver="bnxt", speed_gbps=100.0), ALL),
    "two cables of 100G everywhere": (lambda c: crossed(c, [100.0] * 4), ALL),
    "a bond without members": (second_interface(name="bond0", kind="bond"), ALL),
    "a bridge with a half": (
        both(second_interface(name="br9", kind="bridge"), interface("enp1s0f0np0", master="br9")), ALL),
    "a team with two halves": (
        both(second_interface(name="t0"), interface("enp1s0f0np0", master="t0"),
             interface("enP2p1s0f0np0", master="t0")), ALL),
    "a file with a bond": (node("netplan_bonds", {"/etc/netplan/b.yaml": ["enP2p1s0f0np0", "enp1s0f0np0"]}), ALL),
    "the MAC of the management twice": (interface("enP7s7", mac="48:21:0B:95:01:01"), ALL),
    "the MAC of Docker twice": (
        both(*(interface("docker0", who, mac="02:42:00:00:00:01") for who in ("spark2", "spark3"))), ALL),
    "no MAC": (both(interface("enp1s0f0np0", mac="00:00:00:00:00:00"),
                    interface("enp1s0f0np0", "spark3", mac="00:00:00:00:00:00")), ALL),
    "a file that the group reads": (node("netplan_modes", {"/etc/netplan/a.yaml": "0640"}), ALL),
    "a file that the owner alone reads": (node("netplan_modes", {"/etc/netplan/a.yaml": "0700", "/x": None}), ALL),
    **{
        f"lldpad is {state}": (node("units", {"lldpad.service": {"active": state}}), ALL)
        for state in ("activating", "reloading", "inactive", "failed")
    },
    "nobody has listened": (lambda c: c.facts.clear(), {"fabric"}),
    "ports are off": (
        both(every("fabric_topology", "ring"), listened("spark1.0 spark2.0 spark3.0 spark4.0 @sw1"),
             lambda c: c.nodes["spark2"]["rdma"]["devices"][0].update(admin_up=False)), {"fabric"}),
    "files of NCCL": (
        node("nccl", {"system": "2.28.9", "settings": {"/etc/nccl.conf": {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"},
             "/x": {"NCCL_IB_HCA": "=rocep1s0f0,roceP2p1s0f0"}}}), ALL),
    "NCCL of a ring is not known": (
        both(every("fabric_topology", "ring"), node("environments", {}), node("nccl", {"settings": {}})), ALL),
    "NCCL of what may be a ring": (
        both(lambda c: c.facts.clear(), lambda c: crossed(c, [200.0] * 4), old_nccl("2.28.9")), {"fabric"}),
    "NCCL of what may be a ring is not known": (
        both(lambda c: c.facts.clear(), lambda c: crossed(c, [200.0] * 4), node("environments", {}),
             node("nccl", {"settings": {}})), {"fabric"}),
    "NCCL that just does for several": (both(every("fabric_topology", "switch"), old_nccl("2.29.3")), ALL),
    "NCCL over sockets": (
        both(every("fabric_topology", "switch"), every("fabric_transport", "socket"), old_nccl("2.28.9")), ALL),
    "a half without its address, and the layer": (interface("enP2p1s0f0np0", addresses=[]), ALL),
    "another MTU, and the layer": (interface("enp1s0f0np0", mtu=1500), ALL),
    "a half has gone": (
        lambda c: c.nodes["spark2"]["network"]["interfaces"].pop(), LATER),
    "a half without a link": (interface("enp1s0f0np0", state="DOWN"), LATER),
    "no GID at all": (node("gids", []), ALL),
    "GIDs of the first version": (node("gids", [gid(0, "10.100.0.2", version=1), gid(1, "10.100.1.2")]), ALL),
    "an index that is exported": (
        both(new_fact(environment={"NCCL_IB_GID_INDEX": "3"}),
             node("gids", [gid(0, "10.100.0.2", index=5), gid(1, "10.100.1.2")])), LATER),
    # -- what is over a half, or on it
    "a machine alone without a card": (
        both(node("rdma", {"devices": [], "reason": "nic_removed"}), every("fabric_topology", "single")), {"fabric"}),
    "a bridge with the management and a half": (
        both(second_interface(name="br0", kind="bridge"), interface("enP7s7", master="br0"),
             interface("enp1s0f0np0", master="br0")), {"fabric"}),
    "a bond of the management": (
        both(second_interface(name="bond0", kind="bond"), second_interface(master="bond0")), {"fabric"}),
    "the connection over a VLAN on a half": (
        both(network(connection_interface="lan"), second_interface(name="lan", kind="vlan", link="enp1s0f0np0")),
        {"fabric"}),
    "the connection over a VLAN on a bridge with a half": (
        both(network(connection_interface="lan"), second_interface(name="lan", kind="vlan", link="br0"),
             second_interface(name="br0", kind="bridge"), interface("enP2p1s0f0np0", master="br0")), {"access"}),
    "a half is off because of a unit": (
        both(node("leftover_units", [{**LEFT, "netdevs": ["enp1s0f0np0"]}]), port(admin_up=False)), {"engine"}),
    "a half is off, and a unit changes the other": (
        both(node("leftover_units", [{**LEFT, "netdevs": ["enP2p1s0f0np0"]}]), port(admin_up=False)), {"engine"}),
    "a half is off because of a file": (
        both(node("leftover_units", [{**LEFT, "unit": "", "netdevs": ["enp1s0f0np0"]}]), port(admin_up=False)),
        {"engine"}),
    "a default route beside another": (routed("enp1s0f0np0", "enP7s7"), {"fabric"}),
    "a default route in the other cage": (routed("enp1s0f1np1"), {"fabric"}),
    "a default route in the cage that is left out": (
        both(no_facts, every("fabric_cages", [1]), routed("enp1s0f0np0")), {"fabric"}),
    "a lease on a half": (interface("enp1s0f0np0", addresses=[{**OWN, "dynamic": True}]), {"fabric"}),
    "a link-local address beside ours": (
        interface("enp1s0f0np0", addresses=[OWN, {**OWN, "address": "169.254.3.4", "scope": "link"}]), {"engine"}),
    "a link-local address without a fabric": (
        both(no_facts, interface("enp1s0f0np0", addresses=[OWN, {**OWN, "address": "169.254.3.4", "scope": "link"}])),
        {"engine"}),
    "a foreign address has no GID": (
        interface("enp1s0f0np0", addresses=[OWN, {**OWN, "address": "192.168.77.5"}]), ALL),
    "little is told of a half": (interface("enp1s0f0np0", mtu=None, state=None), LATER),
    "a second GID hides the one of the fact": (
        node("gids", [gid(0, "10.9.9.9", index=2), gid(0, "10.100.0.2"), gid(1, "10.100.1.2")]), LATER),
    "a second GID outside the range": (
        both(new_fact(environment={"NCCL_IB_ADDR_RANGE": "10.100.0.0/16"}),
             node("gids", [gid(0, "10.9.9.9", index=2), gid(0, "10.100.0.2"), gid(1, "10.100.1.2")])), LATER),
    "a fact under way tells nothing of its halves": (
        both(new_fact(state="applying"), interface("enp1s0f0np0", addresses=[])), LATER),
    "one MAC twice on one machine": (interface("enP2p1s0f0np0", mac="48:21:0b:96:02:c0"), ALL),
    "rules of a VPN, and no fabric": (
        both(every("fabric_topology", "single"), network(rules=[{**RULE, "action": "unreachable"}])), {"fabric"}),
    **{
        f"the fabric's subnets and {what}": (both(SECOND, there), {"fabric"})
        for what, there in {
            "an address without a length": second_interface(addresses=[addressed("10.100.1.77", None)]),
            "a wider network": second_interface(addresses=[addressed("10.100.2.77", 22)]),
            "IPv6": second_interface(addresses=[addressed("fd00::1", 8)]),
            "lo": interface("lo", addresses=[addressed("10.100.1.77", 32)]),
            "nothing read": network(interfaces=None, routes=None),
            "a blackhole": network(routes=[{"dst": "10.100.1.9", "type": "blackhole"}]),
            "all in two halves": network(routes=[{"dst": "0.0.0.0/1", "dev": "tun0", "table": "main"}]),
            "all in two halves of another table": network(routes=[{"dst": "0.0.0.0/1", "dev": "t", "table": "52"}]),
            "link-local": network(routes=[{"dst": "169.254.0.0/16", "dev": "tun0"}]),
        }.items()
    },
    # -- slips in the inventory
    **{
        f"slip: {name}": (slip, {"fabric"})
        for name, slip in {
            "subnets in another order": every("fabric_subnets", ["10.100.1.0/24", "10.100.0.0/24"]),
            "another length": every("fabric_subnets", ["10.100.0.0/25", "10.100.1.0/24"]),
            "another offset": every("fabric_host_offset", 10),
            "the address it has": host("fabric_addresses", {"enp1s0f0np0": "10.100.0.2/24"}),
            "more subnets behind": every(
                "fabric_subnets", ["10.100.0.0/24", "10.100.1.0/24", "10.3.0.0/24", "10.3.1.0/24"]),
            "under way": new_fact(state="applying", rank=3),
        }.items()
    },
    "more machines before, and no job": (new_fact(count=5), {"access"}),
    "fewer machines before": (in_awx(new_fact(count=3)), {"access"}),
    "a job, and no fabric": (in_awx(no_facts), {"access"}),
    # -- NCCL
    **{
        f"NCCL {version}, asked for {declared}, there is {topology}": (
            both(every("fabric_topology", declared), new_fact(topology=topology), old_nccl(version)), {"engine"})
        for declared, topology, version in (
            ("ring", "switch", "2.30.7"), ("ring", "switch", "2.30.6"), ("auto", "ring", "2.28.9"),
            ("switch", "ring", "2.29.3"),
        )
    },
    # -- machines
    "a clock of two machines": (two(clock(spark1=-90.0)), {"fabric"}),
    "the GPU is slow, and nobody can ask it": (both(node("clocks", None), node("gpu", UNREAD)), {"verify"}),
    "a session, and the desktop stays": (
        both(node("session", {"interface": "w", "uuid": "u", "users": ["ann"], "secret": True}),
             every("os_stabilization_headless", "off")), {"os_stabilization"}),
    "ports of an observer that is off": (
        both(every("observability_enabled", "false"), listening(9090)), {"observability"}),
    "ports of an observer that goes": (
        both(every("observability_enabled", False), listening(9090)),
        {"observability"}),
    **{
        f"{what} of the lock": (
            both(every("engine_recipe", "minimax-m2.7-awq"), every("engine_venv_requirements", ["vllm==0.33.0"]),
                 venv({"python3": version, VENV: version}, exists=made), *values), {"ray"})
        for what, version, made, values in (
            ("the Python", "3.12.3", False, ()), ("another Python than that", "3.13.1", False, ()),
            ("another Python, and an environment as that", "3.13.1", True, ()),
            ("a lock in place", "3.13.1", False, (every("engine_venv_lock", "my.txt"),)),
            ("an image in place", "3.13.1", False, (every("engine_runtime", "container"),)),
        )
    },
    "read-only besides": (
        node("paths", {"/opt/x": {**PATHS, "free": 2**30}, "/opt/y": {**PATHS, "free": 2**30, "read_only": True}}),
        ALL),
    "no openssl for an authority of its own": (
        both(every("gateway_listen", ["enP7s7"]), every("gateway_tls", "own_ca")), {"gateway"}),
    "cables that fit, and a port is off": (
        both(every("fabric_topology", "switch"), listened("spark1.0 spark2.0 spark3.0 spark4.0 @sw1"),
             lambda c: c.nodes["spark2"]["rdma"]["devices"][0].update(admin_up=False)), {"fabric"}),
    "not all can listen": (both(no_facts, every("fabric_topology", "ring"),
        lambda c: [one["rdma"].update(cages=[{}]) for one in c.nodes.values()]), {"fabric"}),
    "a list that is none": (every("fabric_subnets", "odd"), {"fabric"}),
}  # fmt: skip


def judge(cluster, layers):
    return pf.run(pf.JUDGES, cluster.context(layers))


def test_what_is_found_in_every_fault():
    told = {}
    for name, (inject, layers) in {**FAULTS, **MORE}.items():
        cluster = Cluster()
        inject(cluster)
        told[name] = [found for one in judge(cluster, layers) for found in of_findings([one], one.rule)]
    hold("preflight", told.items())


@pytest.mark.parametrize("name", pf.JUDGES)
def test_one_fault_is_one_finding_of_its_rule(name):
    inject, layers = FAULTS[name]
    cluster = Cluster()
    inject(cluster)
    made = judge(cluster, layers)
    (own,) = [finding for finding in made if finding.rule == name]
    assert own.severity == base.SEVERITIES[RULES[name].severity]
    assert own.why and own.remedy
    # One cause may have another effect too (an old NCCL on one machine is a skew); it never turns up somewhere else.
    # Without a fabric of an earlier run nobody has looked at the cables, which is a remark.
    assert {one.rule for one in made if one.severity != "info" or one.rule != "cables"} <= {
        name,
        "firmware_differs",
    }


@pytest.mark.parametrize(
    "layers",
    [ALL, LATER, {"fabric"}, {"engine"}, {"os_stabilization"}, set()],
    ids=["all", "after fabric", "fabric", "engine", "os_stabilization", "none"],
)
def test_a_healthy_cluster_has_no_finding_at_all(layers):
    assert [str(finding) for finding in judge(Cluster(), layers)] == []


@pytest.mark.parametrize("name", ["clock", "management_kept", "ranks", "severity"])
@pytest.mark.parametrize("level", base.LEVELS)
def test_every_severity(name, level):
    inject, layers = FAULTS[name]
    cluster = Cluster()
    inject(cluster)
    wanted = {**getattr(cluster.rest.get("settings"), "severity", {}), name: level}
    cluster.rest["settings"] = base.Settings(severity=wanted)
    made = {finding.severity for finding in judge(cluster, layers) if finding.rule == name}
    expected = RULES[name].severity if RULES[name].fixed else level
    assert made == ({base.SEVERITIES[expected]} if expected != base.SKIP else set())


def test_rails_of_a_ring_as_they_are_planned_keep_their_addresses():
    """What the planner gives, the check knows as unchanged: pairs of subnets follow from both ends of a cable."""
    hosts = inventory(4, fabric_host_offset=10)
    settings = Settings(topology="ring", subnets=["10.100.0.0/24", "10.100.1.0/24"], allow_large_ring=True)
    planned = fabric_plan.plan(ring(4), settings).facts
    facts = {host: json.loads(dump(replace(fabric_fact, state="applied"))) for host, fabric_fact in planned.items()}
    assert len({rail.address for fabric_fact in planned.values() for rail in fabric_fact.rails}) == 16
    cluster = Cluster(hosts=hosts, facts=facts)

    def readdressed(cluster):
        return [one for one in judge(cluster, {"fabric"}) if one.rule == "readdressed"]

    assert not readdressed(cluster)
    cluster.hosts["spark3"]["spark_rank"], cluster.hosts["spark4"]["spark_rank"] = 3, 2
    assert {"spark3", "spark4"} <= {one.host for one in readdressed(cluster)}
    del cluster.hosts["spark4"], cluster.nodes["spark4"]
    cluster.hosts["spark3"]["spark_rank"] = 2
    assert not readdressed(cluster)


def test_who_has_to_reach_whom():
    cluster = Cluster(inventory(2), nodes(2), {})
    assert pf.peers(cluster.context({"access"})) == [
        {"name": "spark1", "address": "198.51.100.11"},
        {"name": "spark2", "address": "198.51.100.12"},
    ]
    assert pf.peers(cluster.context({"os_stabilization"})) == []
    cluster.rest["settings"] = base.Settings(severity={"management_reach": "skip"})
    assert pf.peers(cluster.context({"access"})) == []


@pytest.mark.parametrize(
    ("layers", "hosts", "rest", "unknown"),
    [
        ({"fabric"}, inventory(), NOBODY, True),
        ({"engine"}, inventory(), NOBODY, False),
        ({"fabric"}, inventory(2), NOBODY, True),
        ({"fabric"}, inventory(1), NOBODY, False),
        ({"fabric"}, {}, NOBODY, False),
        ({"fabric"}, inventory(fabric_topology="single"), NOBODY, False),
        ({"fabric"}, inventory(), {**NOBODY, "failures": {"spark2": "timed out"}}, False),
        ({"fabric"}, inventory(fabric_neighbor_timeout_s=0), NOBODY, False),
        # After an earlier run.
        ({"fabric"}, inventory(), {}, False),
        ({"fabric"}, inventory(), {"variables": {}}, False),
        ({"fabric"}, inventory(fabric_topology="switch"), {}, False),
        ({"fabric"}, inventory(fabric_topology="ring"), {}, True),
        ({"fabric"}, inventory(2), {"earlier": {"spark1": fact()}}, True),
        (
            {"fabric"},
            inventory(2),
            {"earlier": {"spark1": fact(), "spark2": fact("spark2", 1, state="applying")}},
            True,
        ),
    ],
)
def test_when_the_machines_have_to_listen(layers, hosts, rest, unknown):
    assert fabric_checks.cables_unknown(context(layers, hosts, **rest)) is unknown


def test_what_the_listeners_are_told():
    hosts, there = inventory(fabric_neighbor_timeout_s=25), nodes()
    del hosts["spark3"]["ansible_host"], there["spark2"]["rdma"]
    told = {"cluster": "spark1 spark2 spark3 spark4 198.51.100.11 198.51.100.12 198.51.100.14", "timeout_s": 25.0}
    fresh = context({"fabric"}, hosts, nodes=there, earlier={})
    assert fabric_checks.listeners(fresh, 3) == {"nodes": ["spark1", "spark3", "spark4"], **told}
    assert fabric_checks.listeners(fresh, 2) == {"nodes": [], **told}
    # After an earlier run too, for the layer fabric.
    known = context({"fabric"}, hosts, nodes=there)
    assert fabric_checks.listeners(known, 3)["nodes"] == ["spark1", "spark3", "spark4"]
    assert fabric_checks.cables(replace(known, neighbors={"spark1": Neighbors()})) is None
    assert fabric_checks.listeners(context({"engine"}, hosts, nodes=there), 3) == {"nodes": [], **told}
    assert fabric_checks.listeners(context({"fabric"}, {}), 3) == {"nodes": [], "cluster": "", "timeout_s": 10.0}


def test_who_is_not_heard_by_all_is_listened_for_by_all_again():
    """Who listens alone hears nobody."""
    good = dict.fromkeys(("spark1", "spark2", "spark3", "spark4"), Neighbors(complete=True))
    for odd, kept in (
        ({}, True),
        ({"spark2": Neighbors(complete=True, notes=("enp1s0f0np0: switched off",))}, False),
        ({"spark2": Neighbors()}, False),
        ({"spark2": None}, False),
    ):
        seen = context({"fabric"}, nodes=nodes(), neighbors={**good, **odd})
        assert bool(pf.listened(seen, 4)) is kept
        assert pf.listeners(seen, 4)["nodes"] == list(good)


def test_the_cables_are_judged_by_what_each_machine_says(monkeypatch):
    monkeypatch.setattr(fabric_checks, "judge_cables", lambda nodes, settings: (nodes, settings))
    cluster = Cluster(hosts=inventory(fabric_topology="ring", fabric_mtu=1500))
    listened("spark1.0 spark2.0 spark3.0 spark4.0 @sw1")(cluster)
    second_interface(name="wlP9s9", addresses=[addressed("192.0.2.7")])(cluster)
    both(host("fabric_management_address", "192.0.2.7"), host("fabric_cages", ["0"]))(cluster)
    interface("enP7s7", "spark3", addresses=[])(cluster)  # said by management_address
    asked, settings = fabric_checks.cables(cluster.context({"fabric"}))
    assert settings == Settings("ring", ["10.100.0.0/24", "10.100.1.0/24"], 1, 1500)
    assert [(name, one.rank, one.management_address, one.management_interface) for name, one in asked.items()] == [
        ("spark1", 0, "198.51.100.11", "enP7s7"),
        ("spark2", 1, "192.0.2.7", "wlP9s9"),
        ("spark3", 2, "0.0.0.0", ""),
        ("spark4", 3, "198.51.100.14", "enP7s7"),
    ]
    assert [one.use_cages for one in asked.values()] == ["auto", (0,), "auto", "auto"]
    for name, one in asked.items():
        there = as_node(cluster.nodes[name])
        assert one.neighbors == cluster.rest["neighbors"][name]
        assert (one.interfaces, one.routes) == (there.network.interfaces, there.network.routes)
        assert one.cages == there.rdma.cages
    cluster.rest["failures"] = {"spark2": "timed out"}
    assert fabric_checks.cables(cluster.context({"fabric"})) is None


EVERYWHERE = ["0.0.0.0", "::"]


def test_which_ports_every_layer_wants():
    """One layer after the other, and none takes away what another one wants."""
    hosts = inventory(
        2,
        engine_launch="ray",
        gateway_listen=["enP7s7"],
        gateway_port=8443,
        observability_enabled=True,
        observability_prometheus_port=9191,
        observability_exporter_port=9101,
        web_ui_enabled=True,
        web_ui_port=3001,
    )
    for name in ("engine_port", "ray_port", "web_ui_port", "observability_exporter_port"):
        hosts["spark2"][name] = 1  # the head's count
    own = {
        "engine": {("spark1", 8000): ("engine_port", EVERYWHERE)},
        "observability": {
            ("spark1", 9191): ("observability_prometheus_port", ["127.0.0.1"]),
            ("spark1", 9101): ("observability_exporter_port", EVERYWHERE),
            ("spark2", 9101): ("observability_exporter_port", EVERYWHERE),
        },
        "web_ui": {("spark1", 3001): ("web_ui_port", ["127.0.0.1"])},
        "gateway": {("spark1", 8443): ("gateway_port", ["198.51.100.11"])},
        "ray": {
            ("spark1", 6379): ("ray_port", EVERYWHERE),
            ("spark2", machine_checks.RAY_OF_NODES[0]): ("Ray", EVERYWHERE),
            ("spark1", machine_checks.RAY_OF_HEAD[0]): ("Ray", EVERYWHERE),
        },
    }
    asked = context(own, hosts, nodes=nodes(2))
    found = machine_checks.wanted_ports(replace(asked, layers=tuple(own)))
    assert {place: found.get(place) for ports in own.values() for place in ports} == {
        place: wanted for ports in own.values() for place, wanted in ports.items()
    }
    assert ("spark2", machine_checks.RAY_OF_HEAD[0]) not in found
    assert {place for place in found if place[1] == 1} == set()
