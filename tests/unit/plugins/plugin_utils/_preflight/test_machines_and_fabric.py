# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Every check of the table, injected once and found with host and device; and a healthy cluster, where none finds."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import dump
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.interfaces import Effective
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import plan as fabric_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.types import Settings
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import base
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import checks as pf
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import fabric as fabric_checks
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import machines as machine_checks
from fabric_inputs import half, ring, wired
from preflight_inputs import ALL, context, fact, gid, inventory, nodes, rail
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
            cluster.nodes[host]["rdma"]["cages"] = heard.cages
        cluster.rest["neighbors"] = {host: heard.neighbors for host, heard in found.items()}

    return inject


def port(**changes):
    """The first half of spark2 with other attributes."""

    def inject(cluster):
        cluster.nodes["spark2"]["rdma"]["devices"][0] = half(
            0, "0000", **{"firmware": "28.45.4028", **changes}
        ).as_dict()

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
DISK = {"/opt/x": {"exists": False, "free": 2**30, "total": 2**40, "read_only": False}}

# Check: (fault, beginning of the sentence, layers of the run).
FAULTS = {
    "severity": (rest(settings=pf.Settings(severity={"clok": "warn"})), "preflight_severity: there is no check", ALL),
    "names": (lambda c: c.hosts.update({"spark_5": {"spark_rank": 4}}), "spark_5: the inventory name is no valid", ALL),
    "rank_gaps": (both(no_facts, host("spark_rank", 7)), "inventory: no machine has spark_rank 1", ALL),
    "ranks": (both(no_facts, host("spark_rank", 0)), "spark1, spark2: spark_rank 0 is given 2 times", ALL),
    "addresses": (host("ansible_host", "198.51.100.11"), "spark1, spark2: ansible_host is 198.51.100.11", ALL),
    "unknown_variables": (host("fabric_mtuu", 1), "spark2: there is no variable fabric_mtuu", ALL),
    "types": (host("fabric_mtu", "x"), "spark2: fabric_mtu is the text 'x'", ALL),
    "fabric_plan": (every("fabric_topology", "direct"), "all nodes: fabric_topology is 'direct': a cable between", ALL),
    "engine_plan": (every("engine_recipe", "qwen"), "engine_recipe: there is no recipe 'qwen'", ALL),
    "port_filter": (
        host("spark_port_filter_from", ["10.0.0.0/24", "office"]),
        "spark2: spark_port_filter_from: 'office' is no address and no network",
        ALL,
    ),
    "hub_token": (
        every("artifacts_hub_token_file", "/none/token"),
        "all 4 sparks: artifacts_hub_token_file /none/token: there is no such file on this controller",
        ALL,
    ),
    "model_sources": (
        every("artifacts_sources", {"org/name": "controller:/none/name"}),
        "all 4 sparks: artifacts_sources, org/name: controller:/none/name: there is no such directory",
        ALL,
    ),
    "keeper": (host("engine_hang_seconds", 6), "spark2: engine_hang_seconds is 6, allowed is 30 to 86400", ALL),
    "gateway": (
        both(every("gateway_listen", ["enP7s7"]), every("gateway_paths", ["/metrics"])),
        "spark1: gateway_paths has '/metrics'",
        ALL,
    ),
    "limit": (rest(play_hosts=["spark1"]), "spark2, spark3, spark4: left out by --limit", ALL),
    "reached": (reached, "spark2: the machine could not be read: Connection timed out", ALL),
    "root": (node("uid", 1000), "spark2: tasks run with user id 1000", ALL),
    "systemd": (node("systemd", False), "spark2: systemd is not the init system", ALL),
    "python": (node("python", {"version": "3.8.1", "executable": "/p"}), "spark2 /p: Python is 3.8.1", ALL),
    "gb10": (node("machine", {"is_gb10": False}), "spark2: this is no GB10 machine", ALL),
    "memory": (node("memory", {"total": 108 * base.GIB}), "spark2: the machine has 108.0 GiB of memory", ALL),
    "memory_differs": (
        node("memory", {"total": 60 * base.GIB}),
        "all 4 sparks: the machines have different memory: spark1 119.0 GiB, spark2 60.0 GiB",
        ALL,
    ),
    "disk": (node("paths", DISK), "spark2 /opt/x: 1.0 GiB free, at least 20 GiB needed", ALL),
    "model_disk": (
        both(every("engine_recipe", "qwen3-235b-a22b-gptq-int4"), node("paths", {MODEL: {"free": 3 * 10**10}})),
        "spark2 /opt/sparkmatrix/models/huggingface: Qwen/Qwen3-235B-A22B-GPTQ-Int4: 125.0 GB to download, 30.0 GB",
        frozenset({"artifacts"}),
    ),
    "clock": (node("clock_offset", 60.0), "spark2: the clock is 60 s ahead", ALL),
    "commands": (node("commands", {}), "spark2: not installed: ", ALL),
    "clones": (node("machine_id", "1"), "spark1, spark2: /etc/machine-id is 1 on 2 machines", ALL),
    "versions": (port(firmware="28.40.1000"), "all 4 sparks: different versions of the ConnectX firmware: 28.40", ALL),
    "cma": (
        node("memory", {"total": 119 * base.GIB, "cma_total": 0, "cma_free": 2**30}),
        "spark2: the kernel 6.14.0-1013-nvidia keeps 1.0 GiB as CMA",
        ALL,
    ),
    "ports": (node("listening", [PORT], "spark1"), "spark1: port 8000 (engine_port) is taken by nginx", ALL),
    "limits": (
        node("limits", {"memlock": 8388608, "nofile": 524288, "can_raise": False}),
        "spark2: os_stabilization_memlock is unlimited, but this machine cannot raise",
        ALL,
    ),
    "engine_python": (
        node("interpreters", {VENV: None, "python3": "3.12.3"}),
        f"spark2 {VENV}: the environment's own Python does not run",
        ALL,
    ),
    "gpu": (node("gpu", DEAD), "spark2 NVIDIA GB10: cuInit fails, whatever nvidia-smi says: CUDA_ERROR_UNKNOWN", ALL),
    "aer": (node("kernel_log", [AER]), "spark2 0000:00:00.0: a fatal PCIe error in this boot: pcieport", ALL),
    "session": (
        node("session", {"interface": "wlP9s9", "uuid": "u", "users": ["ann"], "secret": False}),
        "spark2 wlP9s9: the connection that Ansible comes over belongs to ann, so",
        ALL,
    ),
    "low_power": (node("kernel_log", [LOST]), "spark2 0002:01:00.0: a PCIe device did not come back", ALL),
    "subnets": (
        interface("enP7s7", addresses=[{"address": "10.100.0.9", "prefix": 24, "scope": "global"}]),
        "spark2: the fabric subnet 10.100.0.0/24 overlaps address 10.100.0.9 on enP7s7",
        ALL,
    ),
    "docker_subnet": (
        interface("docker0", addresses=[{"address": "10.100.1.1", "prefix": 16}]),
        "spark2 docker0: Docker's network 10.100.0.0/16 overlaps the fabric network 10.100.0.0/24",
        ALL,
    ),
    "management": (
        lambda c: c.nodes["spark2"]["network"].update(connection_interface="enp1s0f0np0"),
        "spark2 enp1s0f0np0: Ansible reaches the machine over a fabric interface",
        ALL,
    ),
    "vanished": (
        in_awx(new_fact(count=5)),
        "spark2: this fabric was made for 5 machines, and this job sees 4",
        {"fabric"},
    ),
    "readdressed": (new_fact(host="spark9"), "spark2: this machine was set up as 'spark9'", ALL),
    "management_address": (
        interface("enP7s7", addresses=[]),
        "spark2: no address of it fits as management address: 172.17.0.1 on docker0 (bridge), 10.100.0.2",
        ALL,
    ),
    "management_kept": (
        kept_on_wifi,
        "spark2 wlP9s9: its management address stays 192.0.2.7, while 198.51.100.12 on enP7s7 would be chosen today",
        ALL,
    ),
    "management_reach": (
        rest(reach={f"spark{n}": [dict(name="spark2", address="198.51.100.12", **LOST_WAY)] for n in (1, 3)}),
        "spark2: its management address 198.51.100.12 is not reached from spark1, spark3 (timed out)",
        ALL,
    ),
    "fabric_fact": (lambda c: c.facts.update(spark2={}), "spark2 /etc/ansible/facts.d/sparkmatrix.fact: there", LATER),
    "nic_removed": (node("rdma", {"devices": [], "reason": "nic_removed"}), "spark2 ConnectX-7: all ConnectX", ALL),
    "pcie": (port(width=2), "spark2 rocep1s0f0 (enp1s0f0np0): its PCIe link runs at 32 GT/s x2", ALL),
    "link_speed": (port(speed_gbps=100.0), "spark2 rocep1s0f0 (enp1s0f0np0): the link runs at 100 Gb/s", ALL),
    "half_address": (
        interface("enP2p1s0f0np0", addresses=[]),
        "spark2 roceP2p1s0f0 (enP2p1s0f0np0): the half on PCIe path 0002 of cage 0 has lost its address 10.100.1.2",
        LATER,
    ),
    "gpu_slow": (
        node("clocks", {"busy": 96, "celsius": 48, "mhz": 513, "slowed": []}),
        "spark2 NVIDIA GB10: the GPU is 96 % busy at 513 MHz at 48 degrees Celsius: a GB10 at work runs above 2000",
        ALL,
    ),
    "leftover_unit": (
        node("leftover_units", [{"unit": "x.service", "file": "/x", "line": "ip", "netdevs": ["enp1s0f0np0"]}]),
        "spark2 x.service: it changes enp1s0f0np0 at every boot: 'ip' in /x",
        ALL,
    ),
    "half_uplink": (
        lambda c: c.nodes["spark2"]["network"].update(routes=[{"dst": "default", "dev": "enp1s0f0np0"}]),
        "spark2 enp1s0f0np0: the machine has no default route but the one of this half",
        {"fabric"},
    ),
    "half_off": (
        port(admin_up=False),
        "spark2 rocep1s0f0 (enp1s0f0np0): a half of the applied fabric: the inter",
        LATER,
    ),
    "routing_rules": (
        lambda c: c.nodes["spark2"]["network"].update(
            rules=[{"priority": 5270, "table": "52", "action": "lookup"}],
            routes=[
                {"dst": "default", "dev": "tailscale0", "table": "52"},
                {"dst": "10.100.0.0/24", "type": "throw", "table": "52"},
            ],
        ),
        "spark2 ip rule 5270: the routing rule 5270 comes before the routes of the fabric, and sends them to tail",
        {"fabric"},
    ),
    "mtu_drift": (
        interface("enp1s0f0np0", mtu=1500),
        "spark2 rocep1s0f0 (enp1s0f0np0): the MTU is 1500, and 9000 were verified: larger packets of the others are",
        LATER,
    ),
    "foreign_address": (
        both(
            new_fact(environment={"NCCL_IB_ADDR_RANGE": "10.100.0.0/16"}),
            interface("enp1s0f0np0", addresses=[OWN, {**OWN, "address": "192.168.77.5"}]),
            node("gids", [gid(0, "10.100.0.2"), gid(0, "192.168.77.5", index=5), gid(1, "10.100.1.2")]),
        ),
        "spark2 rocep1s0f0 (enp1s0f0np0): the interface has the address 192.168.77.5/24 beside 10.100.0.2/24",
        ALL,
    ),
    "gid_missing": (
        node("gids", [gid(0, "10.100.0.2")]),
        "spark2 roceP2p1s0f0 (enP2p1s0f0np0): the interface has 10.100.1.2, and the RDMA device has no RoCE v2 GID",
        ALL,
    ),
    "gid_drift": (
        node("gids", [gid(0, "10.100.0.2", index=5), gid(1, "10.100.1.2")]),
        "spark2 rocep1s0f0 (enp1s0f0np0): the GID of 10.100.0.2 moved from index 3 to 5",
        LATER,
    ),
    "bond": (bonded, "spark2 bond0: the bond bond0 holds enp1s0f0np0", ALL),
    "duplicate_mac": (
        interface("enp1s0f0np0", mac="48:21:0B:96:01:C0"),
        "spark1, spark2 enp1s0f0np0: the MAC address 48:21:0b:96:01:c0 is on spark1 enp1s0f0np0 and spark2",
        ALL,
    ),
    "netplan_mode": (
        node("netplan_modes", {"/etc/netplan/40-cx7.yaml": "0644"}),
        "spark2 /etc/netplan/40-cx7.yaml: its mode is 0644",
        ALL,
    ),
    "lldpad": (node("units", {"lldpad.service": {"active": "active"}}), "spark2 lldpad.service: lldpad runs", ALL),
    "nccl_conf": (
        node("nccl", {"system": "2.28.9", "settings": {"/etc/nccl.conf": {"NCCL_IB_GID_INDEX": "3"}}}),
        "spark2 /etc/nccl.conf: it sets NCCL_IB_GID_INDEX=3",
        ALL,
    ),
    "cables": (
        both(every("fabric_topology", "ring"), listened("spark1.0 spark2.0 spark3.0 spark4.0 @sw1")),
        "all nodes: fabric_topology is 'ring', and the cables are sw1 with 4 nodes, which is 'switch'",
        ALL,
    ),
    "nccl_ring": (
        both(every("fabric_topology", "ring"), old_nccl("2.29.0")),
        "spark2: NCCL is 2.29.0, the topology ring needs 2.30.7 or later",
        ALL,
    ),
    "web_ui": (
        both(every("web_ui_enabled", True), every("web_ui_runtime", "venv")),
        "spark1: web_ui_enabled is true, and there is no gateway, which is the page's way to the models",
        {"web_ui"},
    ),
    "compiler": (
        without_nvcc,
        "spark2: there is no nvcc (neither in PATH nor as /usr/local/cuda/bin/nvcc)",
        {"engine"},
    ),
    "nccl_several": (
        both(every("fabric_topology", "switch"), old_nccl("2.28.9")),
        "spark2: NCCL of the engine's environment is 2.28.9, several nodes need 2.29.3 or later",
        ALL,
    ),
}


def judge(cluster, layers):
    return pf.run(pf.CHECKS, cluster.context(layers))


def test_every_check_is_injected_once():
    assert set(FAULTS) == {check.name for check in pf.CHECKS}
    assert len(pf.CHECKS) == len(FAULTS)


@pytest.mark.parametrize(
    "layers",
    [ALL, LATER, {"fabric"}, {"engine"}, {"os_stabilization"}, set()],
    ids=["all", "after fabric", "fabric", "engine", "os_stabilization", "none"],
)
def test_a_healthy_cluster_has_no_finding_at_all(layers):
    assert [str(finding) for _check, finding in judge(Cluster(), layers)] == []


@pytest.mark.parametrize("name", FAULTS)
def test_one_fault_is_one_finding_of_its_check(name):
    inject, sentence, layers = FAULTS[name]
    cluster = Cluster()
    inject(cluster)
    made = judge(cluster, layers)
    own = [finding for check, finding in made if check.name == name]
    assert [str(finding)[: len(sentence)] for finding in own] == [sentence], [str(finding) for _c, finding in made]
    check = next(check for check in pf.CHECKS if check.name == name)
    assert own[0].severity == base.SEVERITIES[check.level]
    assert own[0].why == check.why
    assert own[0].remedy
    assert {finding.severity for finding in check.judge(cluster.context(layers))} <= set(base.SEVERITIES.values())
    # One cause may have another effect too (an old NCCL on one machine is a skew); it never turns up somewhere else.
    assert {other.name for other, _finding in made} <= {name, "versions"}


def test_a_foreign_address_needs_no_gid():
    """One fault, and not two."""
    cluster = Cluster()
    interface("enp1s0f0np0", addresses=[OWN, {**OWN, "address": "192.168.77.5"}])(cluster)
    made = {check.name for check, _finding in judge(cluster, ALL)}
    assert made - {"versions"} == {"foreign_address"}


@pytest.mark.parametrize("name", FAULTS)
def test_every_severity(name):
    inject, _sentence, layers = FAULTS[name]
    check = next(check for check in pf.CHECKS if check.name == name)
    for level in base.LEVELS:
        cluster = Cluster()
        inject(cluster)
        wanted = {**getattr(cluster.rest.get("settings"), "severity", {}), name: level}
        cluster.rest["settings"] = pf.Settings(severity=wanted)
        made = {finding.severity for check, finding in judge(cluster, layers) if check.name == name}
        expected = check.level if check.fixed else level
        assert made == ({base.SEVERITIES[expected]} if expected != base.SKIP else set())


# -- what the table does not say


def test_who_listens_over_the_cables():
    def asked(forks=25, layers=ALL, **changes):
        cluster = Cluster()
        for name, value in changes.items():
            every(name, value)(cluster)
        return pf.listeners(cluster.context(layers), forks)["nodes"]

    assert asked() == asked(fabric_topology="switch") == []  # applied already
    assert asked(fabric_topology="ring") == ["spark1", "spark2", "spark3", "spark4"]
    assert asked(fabric_topology="ring", layers=LATER) == []
    assert asked(fabric_topology="ring", fabric_neighbor_probe="never") == []
    assert asked(fabric_topology="ring", fabric_state="absent") == []
    assert asked(fabric_topology="ring", forks=3) == []
    fresh = Cluster(facts={})
    assert len(pf.listeners(fresh.context({"fabric"}), 25)["nodes"]) == 4
    skipped = replace(fresh.context({"fabric"}), settings=pf.Settings(severity={"cables": "skip"}))
    assert pf.listeners(skipped, 25)["nodes"] == []


def test_cables_that_cannot_be_judged_are_said():
    cluster = Cluster()
    listened("spark1.0 spark2.0 spark3.0 spark4.0 @sw1")(cluster)
    every("fabric_topology", "ring")(cluster)
    cluster.nodes["spark2"]["rdma"]["cages"][0]["halves"][0]["admin_up"] = False
    ((severity, text),) = texts(cluster, {"fabric"}, "cables")
    assert severity == "info" and "not checked: which cable leads where, since ports are switched off (enp1s0f" in text
    cluster.rest["neighbors"] = {}
    ((severity, text),) = texts(cluster, {"fabric"}, "cables")
    assert severity == "info" and "not all machines can listen at the same time" in text


def test_cables_as_they_should_be():
    cluster = Cluster(facts={})
    listened("spark1.0 spark2.0 spark3.0 spark4.0 @sw1")(cluster)
    every("fabric_topology", "switch")(cluster)
    assert texts(cluster, {"fabric"}, "cables") == []


@pytest.mark.parametrize(
    ("profile", "headless", "says"),
    [
        ({"users": [], "secret": True}, True, "has its password from a user's session"),
        ({"users": [], "secret": False}, True, ""),
        ({"users": ["ann"], "secret": True}, False, ""),
        ({"users": ["ann"], "secret": True}, "false", ""),  # as -e and an inventory in INI give it
        (None, True, ""),
    ],
)
def test_a_connection_of_a_desktop_user(profile, headless, says):
    cluster = Cluster()
    both(node("session", profile), every("os_stabilization_headless", headless))(cluster)
    told = texts(cluster, {"os_stabilization"}, "session")
    assert [says in text for _severity, text in told] == ([True] if says else [])


def test_a_device_that_is_back_is_a_note():
    cluster = Cluster()
    node("kernel_log", [{**LOST, "missing": False}])(cluster)
    ((severity, text),) = texts(cluster, ALL, "low_power")
    assert severity == "info" and "at first, and is there now in this boot: mlx5_core" in text


@pytest.mark.parametrize(
    ("clocks", "severity", "says"),
    [
        ({"busy": 0, "celsius": 41, "mhz": 208, "slowed": []}, "", ""),  # idle
        ({"busy": 96, "celsius": None, "mhz": 2405, "slowed": []}, "", ""),
        ({"busy": None, "celsius": None, "mhz": None, "slowed": []}, "", ""),
        (
            {"busy": 99, "celsius": 91, "mhz": 1600, "slowed": ["hardware thermal slowdown"]},
            "warning",
            "holds its clock down now: hardware thermal slowdown at 91 degrees Celsius",
        ),
        (None, "info", "not checked: whether the GPU is slowed down"),
    ],
)
def test_a_gpu_is_slow_only_while_it_works(clocks, severity, says):
    cluster = Cluster()
    node("clocks", clocks)(cluster)
    told = texts(cluster, {"verify"}, "gpu_slow")
    assert [(level, says in text) for level, text in told] == ([(severity, True)] if says else [])
    node("clocks", None)(cluster)
    node("gpu", {"checked": False, "ok": None, "code": None, "message": "no libcuda.so.1"})(cluster)
    assert texts(cluster, {"verify"}, "gpu_slow") == []


def test_of_two_clocks_the_one_that_agrees_with_the_controller_is_right():
    cluster = Cluster(inventory(2), nodes(2))
    cluster.nodes["spark1"]["clock_offset"] = -90.0
    ctx = context({"fabric"}, cluster.hosts, nodes=cluster.nodes)
    made = [str(finding) for check, finding in pf.run(pf.CHECKS, ctx) if check.name == "clock"]
    assert [text[:40] for text in made] == ["spark1: the clock is 90 s behind the oth"]


def test_two_machines_with_one_management_address():
    cluster = Cluster()
    cluster.hosts["spark2"]["fabric_management_address"] = "198.51.100.13"
    ((_severity, text),) = texts(cluster, {"access"}, "management_address")
    assert text.startswith("spark2, spark3: 198.51.100.13 is the management address of 2 machines")


def test_who_has_to_reach_whom():
    cluster = Cluster(inventory(2), nodes(2), {})
    assert pf.peers(cluster.context({"access"})) == [
        {"name": "spark1", "address": "198.51.100.11"},
        {"name": "spark2", "address": "198.51.100.12"},
    ]
    assert pf.peers(cluster.context({"os_stabilization"})) == []
    cluster.rest["settings"] = pf.Settings(severity={"management_reach": "skip"})
    assert pf.peers(cluster.context({"access"})) == []


def test_a_session_over_the_fabric_cuts_nothing_off_without_its_layer():
    cluster = Cluster()
    cluster.nodes["spark2"]["network"]["connection_interface"] = "enp1s0f0np0"
    ((severity, text),) = texts(cluster, {"access"}, "management")
    assert severity == "info" and "Write 198.51.100.12 into ansible_host" in text and "mDNS" in text


def texts(cluster, layers, name):
    return [(finding.severity, str(finding)) for check, finding in judge(cluster, layers) if check.name == name]


@pytest.mark.parametrize("name", ["half_address", "mtu_drift", "gid_drift"])
def test_what_the_fabric_layer_puts_right_is_a_note(name):
    inject, sentence, _layers = FAULTS[name]
    cluster = Cluster()
    inject(cluster)
    ((severity, text),) = texts(cluster, ALL, name)
    assert severity == "info"
    assert text.startswith(sentence)
    assert "This run" in text


def test_what_could_not_be_checked_is_named():
    cluster = Cluster()
    cluster.nodes["spark2"].update(
        gpu={"checked": False, "ok": None, "code": None, "message": "libcuda.so.1: cannot open"}, kernel_log=None
    )
    ((severity, text),) = texts(cluster, ALL, "gpu")
    assert (severity, text[:67]) == ("info", "spark2: not checked: whether CUDA can use the GPU (libcuda.so.1: ca")
    ((severity, text),) = texts(cluster, ALL, "aer")
    assert severity == "info"
    assert "not checked: fatal PCIe errors" in text


@pytest.mark.parametrize(
    ("versions", "made", "message"),
    [
        ({"python3": "3.10.4"}, False, "spark2 python3: engine_python is Python 3.10.4, 3.11 or later is needed"),
        ({"python3": None}, False, "spark2 python3: the interpreter that engine_python names does not run"),
        ({VENV: "3.10.4"}, True, f"spark2 {VENV}: the environment has Python 3.10.4"),
        ({"python3": "3.10.4", VENV: "3.12.1"}, True, ""),
        ({"python3": "3.11.2"}, False, ""),
        ({}, False, ""),
    ],
)
def test_interpreters(versions, made, message):
    cluster = Cluster()
    cluster.nodes["spark2"]["interpreters"] = versions
    cluster.nodes["spark2"]["environments"]["/opt/sparkmatrix/engine"]["exists"] = made
    found = [text for _severity, text in texts(cluster, {"ray"}, "engine_python")]
    assert [text[: len(message)] for text in found] == ([message] if message else [])


@pytest.mark.parametrize(
    ("version", "made", "values", "refused"),
    [
        ("3.12.3", False, {}, False),
        ("3.13.1", False, {}, True),
        ("3.11.2", False, {}, True),
        ("3.13.1", True, {}, False),
        ("3.13.1", False, {"engine_venv_lock": "my.txt"}, False),
        ("3.13.1", False, {"engine_runtime": "container"}, False),
        ("3.13.1", False, {"engine_venv_requirements": ["vllm==0.32.0"]}, False),
    ],
)
def test_the_lock_of_the_collection_is_for_one_python(version, made, values, refused):
    """pip would say nothing but that hashes do not match."""
    given = {"engine_recipe": "minimax-m2.7-awq", "engine_venv_requirements": ["vllm==0.33.0"], **values}
    cluster = Cluster(hosts=inventory(**given))
    cluster.nodes["spark2"]["interpreters"] = {"python3": version, VENV: version}
    cluster.nodes["spark2"]["environments"]["/opt/sparkmatrix/engine"]["exists"] = made
    found = [text for _severity, text in texts(cluster, {"ray"}, "engine_python")]
    assert [text.split(":")[0] for text in found] == (["spark2 python3"] if refused else [])
    says = (
        f"spark2 python3: engine_python is Python {version}, and the lock vllm-0.33.0.txt has wheels for Python 3.12"
        " only: pip would refuse them by their hashes after minutes."
    )
    remedy = (
        "Set engine_python: python3.12 (sudo apt-get install python3.12-venv), or name a lock of your own:"
        " engine_venv_lock."
    )
    assert all(text.startswith(says) and text.endswith(remedy) for text in found), found


def test_an_environment_of_somebody_else():
    cluster = Cluster()
    cluster.nodes["spark2"]["interpreters"] = {VENV: None}
    cluster.nodes["spark2"]["environments"]["/opt/sparkmatrix/engine"]["distrusted"] = "/opt belongs to the account bob"
    ((_severity, text),) = texts(cluster, {"ray"}, "engine_python")
    assert text.startswith("spark2 /opt/sparkmatrix/engine: /opt belongs to the account bob: who can change")


@pytest.mark.parametrize(
    ("reason", "values", "message"),
    [
        ("driver_not_loaded", {}, "the ConnectX functions are there, but no RDMA device"),
        ("class_missing", {}, "there is no RDMA device"),
        ("unreadable", {}, "the RDMA devices cannot be read"),
        ("driver_not_loaded", {"fabric_transport": "socket"}, ""),
        ("nic_removed", {"fabric_transport": "socket"}, "all ConnectX functions are gone"),
        ("nic_removed", {"fabric_topology": "single"}, ""),
        (None, {}, ""),
    ],
)
def test_absent_devices(reason, values, message):
    cluster = Cluster(hosts=inventory(4, **values))
    cluster.nodes["spark3"]["rdma"] = {"devices": [], "reason": reason}
    found = [text for _severity, text in texts(cluster, {"fabric"}, "nic_removed")]
    assert [message in text for text in found] == ([True] if message else [])


def test_a_machine_alone_needs_no_connectx():
    cluster = Cluster(inventory(1), nodes(1), {})
    cluster.nodes["spark1"]["rdma"] = {"devices": [], "reason": "nic_removed"}
    assert texts(cluster, {"fabric"}, "nic_removed") == []


def crossed(cluster, speeds):
    for number, speed in enumerate(speeds):
        cluster.nodes[f"spark{number + 1}"]["rdma"]["devices"] = [
            half(cage, domain, speed_gbps=speed).as_dict() for cage in (0, 1) for domain in ("0000", "0002")
        ]


def test_two_100g_cables_everywhere_are_a_cabling():
    cluster = Cluster()
    crossed(cluster, [100.0] * 4)
    assert {severity for severity, _text in texts(cluster, {"fabric"}, "link_speed")} == {"info"}
    crossed(cluster, [100.0, 200.0, 100.0, 100.0])
    assert {severity for severity, _text in texts(cluster, {"fabric"}, "link_speed")} == {"warning"}


@pytest.mark.parametrize(
    ("interface", "message"),
    [
        ({"name": "bond0", "kind": "bond"}, "the bond bond0 is left over, without a member"),
        ({"name": "br0", "kind": "bridge"}, ""),
    ],
)
def test_leftovers_of_bonds(interface, message):
    cluster = Cluster()
    cluster.nodes["spark2"]["network"]["interfaces"].append({**interface, "master": None, "addresses": []})
    found = [text for _severity, text in texts(cluster, {"fabric"}, "bond")]
    assert [message in text for text in found] == ([True] if message else [])


def test_a_bond_with_the_management_port_in_it_stays():
    cluster = Cluster()
    network = cluster.nodes["spark2"]["network"]
    network["interfaces"].append({"name": "br0", "kind": "bridge", "master": None, "addresses": []})
    for one in network["interfaces"]:
        one["master"] = "br0" if one["name"] in ("enP7s7", "enp1s0f0np0") else one.get("master")
    ((_severity, text),) = texts(cluster, {"fabric"}, "bond")
    assert "Take enp1s0f0np0 out of it" in text and "leave it to enP7s7" in text and "delete" not in text


def test_a_bond_of_the_management_is_not_ours():
    cluster = Cluster()
    network = cluster.nodes["spark2"]["network"]
    network["interfaces"].append({"name": "bond0", "kind": "bond", "master": None, "addresses": []})
    network["interfaces"].append({"name": "enP9s9", "kind": None, "master": "bond0", "addresses": []})
    assert texts(cluster, {"fabric"}, "bond") == []


@pytest.mark.parametrize(
    "over",
    [
        [{"name": "lan", "kind": "vlan", "link": "enp1s0f0np0"}],
        [{"name": "lan", "kind": "vlan", "link": "br0"}, {"name": "br0", "kind": "bridge"}],
    ],
)
def test_the_connection_over_something_that_stands_on_a_half(over):
    cluster = Cluster()
    network = cluster.nodes["spark2"]["network"]
    network["connection_interface"] = "lan"
    network["interfaces"] += [{"master": None, "link": None, "addresses": [], **one} for one in over]
    if len(over) > 1:
        next(one for one in network["interfaces"] if one["name"] == "enP2p1s0f0np0")["master"] = "br0"
    ((severity, text),) = texts(cluster, {"fabric"}, "management")
    assert severity == "error" and text.startswith("spark2 lan: Ansible reaches the machine over a fabric interface")


LEFT = {"unit": "disable-unused-nics.service", "file": "/usr/local/bin/x.sh", "line": "ip link set $i down"}


def test_a_unit_of_another_guide_is_named_where_a_half_is_off():
    cluster = Cluster()
    cluster.nodes["spark2"]["leftover_units"] = [{**LEFT, "netdevs": ["enp1s0f0np0"], "peermem": False}]
    ((severity, text),) = texts(cluster, ALL, "leftover_unit")
    assert severity == "warning" and text.startswith(
        "spark2 disable-unused-nics.service: it changes enp1s0f0np0 at every"
    )
    assert "sudo systemctl disable --now disable-unused-nics.service" in text
    port(admin_up=False)(cluster)
    ((_severity, text),) = texts(cluster, {"engine"}, "half_off")
    assert "disable-unused-nics.service changes it at every boot: 'ip link set $i down' in /usr/local/bin/x.sh" in text
    assert "sudo systemctl disable --now disable-unused-nics.service; then: ip link set enp1s0f0np0 up" in text
    assert texts(cluster, {"engine"}, "leftover_unit") == []  # said once
    cluster.nodes["spark2"]["leftover_units"][0]["netdevs"] = ["enP2p1s0f0np0"]
    ((_severity, text),) = texts(cluster, {"engine"}, "half_off")
    assert "disable-unused" not in text and len(texts(cluster, {"engine"}, "leftover_unit")) == 1


def test_a_file_that_changes_a_half_at_every_boot():
    cluster = Cluster()
    found = {**LEFT, "unit": "", "file": "/etc/rc.local", "netdevs": ["enp1s0f0np0"], "peermem": False}
    cluster.nodes["spark2"]["leftover_units"] = [found]
    ((_severity, text),) = texts(cluster, ALL, "leftover_unit")
    assert text.startswith("spark2 /etc/rc.local: it changes enp1s0f0np0 at every boot")
    assert "take that line out of /etc/rc.local" in text and "systemctl" not in text
    port(admin_up=False)(cluster)
    ((_severity, text),) = texts(cluster, {"engine"}, "half_off")
    assert "Take that line out of /etc/rc.local; then: ip link set enp1s0f0np0 up" in text


@pytest.mark.parametrize("facts", [True, False])
def test_a_default_route_or_a_lease_on_a_half(facts):
    cluster = Cluster()
    if not facts:
        cluster.facts.clear()
    network = cluster.nodes["spark2"]["network"]
    lease = {"address": "192.168.7.9", "prefix": 24, "family": "inet", "scope": "global", "dynamic": True}
    network["routes"].append({"dst": "default", "dev": "enp1s0f0np0", "table": "main"})
    network["interfaces"][3]["addresses"].append(lease)
    way, leased = texts(cluster, {"fabric"}, "half_uplink")
    assert way[0] == "info" and way[1].startswith("spark2 enp1s0f0np0: it has a default route, beside that of enP7s7")
    assert leased[0] == "info" and "a DHCP server has given it 192.168.7.9/24" in leased[1]
    assert "would have no way out" not in way[1] + leased[1]
    network["routes"] = [one for one in network["routes"] if one["dev"] != "enP7s7"]
    (severity, text), _lease = texts(cluster, {"fabric"}, "half_uplink")
    assert severity == "error" and "no default route but the one of this half" in text and "fabric_cages" in text
    # The machine's own network, in the other cage.
    network["routes"][-1]["dev"] = "enp1s0f1np1"
    assert [severity for severity, _text in texts(cluster, {"fabric"}, "half_uplink")] == ["info"]


def test_the_cage_that_the_fabric_does_not_use_may_be_the_way_out():
    cluster = Cluster(hosts=inventory(4, fabric_cages=[1]))
    cluster.facts.clear()
    cluster.nodes["spark2"]["network"]["routes"] = [{"dst": "default", "dev": "enp1s0f0np0"}]
    assert texts(cluster, {"fabric"}, "half_uplink") == []


def test_a_link_local_address_beside_ours():
    cluster = Cluster()
    interface("enp1s0f0np0", addresses=[
        {"address": "10.100.0.2", "prefix": 24, "family": "inet", "scope": "global"},
        {"address": "169.254.3.4", "prefix": 16, "family": "inet", "scope": "link"},
    ])(cluster)  # fmt: skip
    ((severity, text),) = texts(cluster, {"engine"}, "foreign_address")
    assert severity == "warning" and "the address 169.254.3.4/16 beside 10.100.0.2/24" in text
    assert "ip addr del 169.254.3.4/16 dev enp1s0f0np0" in text and "link-local" in text
    cluster.facts.clear()
    assert texts(cluster, {"engine"}, "foreign_address") == []


def test_a_bond_in_a_netplan_file():
    cluster = Cluster()
    cluster.nodes["spark2"]["netplan_bonds"] = {
        "/etc/netplan/a.yaml": ["enP7s7"],
        "/etc/netplan/b.yaml": ["enp1s0f0np0"],
    }
    ((_severity, text),) = texts(cluster, {"fabric"}, "bond")
    assert text.startswith("spark2 /etc/netplan/b.yaml: it bonds enp1s0f0np0") and "mv " not in text


def test_docker_over_management():
    cluster = Cluster()
    interface("docker0", addresses=[{"address": "198.51.100.1", "prefix": 24}])(cluster)
    found = texts(cluster, {"engine"}, "docker_subnet")
    assert found[0][1].startswith(
        "spark2 docker0: Docker's network 198.51.100.0/24 overlaps the management network 198.51.100.0/24"
    )


def test_settings_of_nccl_that_say_the_same():
    cluster = Cluster()
    ours = {"NCCL_IB_HCA": "=rocep1s0f0,roceP2p1s0f0"}
    cluster.nodes["spark2"]["nccl"] = {
        "settings": {"/etc/nccl.conf": ours, "/home/x/.nccl.conf": {"NCCL_ALGO": "Ring"}}
    }
    ((_severity, text),) = texts(cluster, {"engine"}, "nccl_conf")
    assert text.startswith("spark2 /home/x/.nccl.conf: it sets NCCL_ALGO=Ring")


@pytest.mark.parametrize(
    ("declared", "topology", "version", "severity", "message"),
    [
        ("ring", "switch", "2.30.7", "", ""),
        ("ring", "switch", "2.30.6", "error", "the topology ring needs 2.30.7"),
        ("auto", "ring", "2.28.9", "error", "the topology ring needs"),
        ("auto", "switch", "2.28.9", "", ""),
        ("switch", "ring", "2.28.9", "", ""),
        ("ring", "switch", None, "info", "not checked: the topology ring needs NCCL 2.30.7 or later"),
    ],
)
def test_nccl_of_rings(declared, topology, version, severity, message):
    cluster = Cluster(hosts=inventory(4, fabric_topology=declared))
    new_fact(topology=topology)(cluster)
    old_nccl(version)(cluster)
    cluster.nodes["spark2"]["nccl"] = {"system": None, "settings": {}}
    found = [item for item in texts(cluster, {"engine"}, "nccl_ring") if item[1].startswith("spark2")]
    assert [(level, message in text) for level, text in found] == ([(severity, True)] if message else [])


def test_nccl_of_what_may_become_a_ring():
    cluster = Cluster(facts={})
    crossed(cluster, [200.0] * 4)
    old_nccl("2.28.9")(cluster)
    assert [(s, "if this is a ring, it needs 2.30.7" in t) for s, t in texts(cluster, {"fabric"}, "nccl_ring")] == [
        ("info", True)
    ]
    cluster.hosts = inventory(4, fabric_transport="socket")
    assert texts(cluster, {"fabric"}, "nccl_ring") == []


LIKE_AN_OLD_NETWORK = ["10.200.0.0/24", "10.200.1.0/24"]


@pytest.mark.parametrize(
    ("slip", "hosts", "says"),
    [
        (every("fabric_subnets", LIKE_AN_OLD_NETWORK), 4, "has 10.100.0.2/24, 10.100.1.2/24, and the inventory gives"),
        (every("fabric_subnets", ["10.100.1.0/24", "10.100.0.0/24"]), 4, "(fabric_subnets 10.100.1.0/24, 10.100.0.0/"),
        (every("fabric_subnets", ["10.100.0.0/25", "10.100.1.0/24"]), 4, "spark2 enp1s0f0np0: its fabric has 10.100."),
        (every("fabric_host_offset", 10), 4, "fabric_host_offset 10)"),
        (host("fabric_addresses", {"1": "10.100.1.77"}), 1, "spark2 enP2p1s0f0np0: its fabric has 10.100.1.2/24, and"),
        (host("fabric_addresses", {"enp1s0f0np0": "10.100.0.2/24"}), 0, ""),
        # More pairs than before, behind the same first one.
        (every("fabric_subnets", ["10.100.0.0/24", "10.100.1.0/24", "10.3.0.0/24", "10.3.1.0/24"]), 0, ""),
        (new_fact(state="applying", rank=3), 0, ""),
        (host("spark_rank", 5), 1, "spark2: it was set up with spark_rank 1, and the inventory says 5"),
        # Refused in words of their own.
        (every("fabric_subnets", ["10.100.0.0/24"]), 0, ""),
    ],
)
@pytest.mark.parametrize("layers", [{"fabric"}, {"access"}, ALL])
def test_a_slip_in_the_inventory_readdresses_nobody(slip, hosts, says, layers):
    cluster = Cluster()
    slip(cluster)
    made = texts(cluster, layers, "readdressed")
    assert [severity for severity, _text in made] == ["error"] * hosts
    assert not made or any(says in text for _severity, text in made)


@pytest.mark.parametrize("change", [new_fact(count=5), in_awx(new_fact(count=3)), in_awx(no_facts)])
def test_only_a_job_of_awx_that_sees_fewer_machines_is_refused_for_it(change):
    cluster = Cluster()
    change(cluster)
    assert texts(cluster, {"fabric"}, "vanished") == []


def test_rails_of_a_ring_as_they_are_planned_keep_their_addresses():
    """What the planner gives, the check knows as unchanged: pairs of subnets follow from both ends of a cable."""
    hosts = inventory(4, fabric_host_offset=10)
    settings = Settings(topology="ring", subnets=["10.100.0.0/24", "10.100.1.0/24"], allow_large_ring=True)
    planned = fabric_plan.plan(ring(4), settings).facts
    facts = {host: json.loads(dump(replace(one, state="applied"))) for host, one in planned.items()}
    assert len({rail.address for one in planned.values() for rail in one.rails}) == 16
    cluster = Cluster(hosts=hosts, facts=facts)
    assert texts(cluster, {"fabric"}, "readdressed") == []
    cluster.hosts["spark3"]["spark_rank"], cluster.hosts["spark4"]["spark_rank"] = 3, 2
    told = [text.split(":")[0].split(" ")[0] for _severity, text in texts(cluster, {"fabric"}, "readdressed")]
    assert {"spark3", "spark4"} <= set(told)
    del cluster.hosts["spark4"], cluster.nodes["spark4"]
    cluster.hosts["spark3"]["spark_rank"] = 2
    assert texts(cluster, {"fabric"}, "readdressed") == []


def test_a_half_that_is_gone():
    cluster = Cluster()
    network = cluster.nodes["spark2"]["network"]
    network["interfaces"] = [item for item in network["interfaces"] if item["name"] != "enP2p1s0f0np0"]
    ((severity, text),) = texts(cluster, {"engine"}, "half_off")
    assert (
        severity == "error" and "spark2 roceP2p1s0f0 (enP2p1s0f0np0): a half of the applied fabric: the inter" in text
    )
    assert texts(cluster, ALL, "half_off") == []  # the layer fabric sees for itself


@pytest.mark.parametrize(
    ("rule", "routes", "found"),
    [
        ("lookup", [], 0),
        ("lookup", [{"dst": "default", "type": "throw", "table": "52"}], 0),
        ("lookup", [{"dst": "default", "dev": "tun0", "table": "main"}], 0),
        ("lookup", [{"dst": "default", "dev": "tun0", "table": "52"}], 1),
        ("unreachable", [], 1),
    ],
)
def test_rules_that_take_packets_of_the_fabric(rule, routes, found):
    cluster = Cluster()
    cluster.nodes["spark2"]["network"].update(
        rules=[{"priority": 9, "table": "52", "action": rule}],
        routes=[*routes, *({"dst": f"10.100.{n}.0/24", "type": "throw", "table": "52"} for n in range(2 - 2 * found))],
    )
    assert len(texts(cluster, {"fabric"}, "routing_rules")) == found
    cluster.hosts = {name: {**values, "fabric_topology": "single"} for name, values in cluster.hosts.items()}
    assert texts(cluster, {"fabric"}, "routing_rules") == []


def test_openssl_is_needed_for_an_authority_of_its_own():
    wanted = {"gateway_listen": ["enP7s7"], "gateway_tls": "own_ca"}
    head = {"spark1": {**inventory(2)["spark1"], **wanted}, "spark2": {**inventory(2)["spark2"], **wanted}}
    asked = context({"gateway"}, head)
    assert "openssl" in pf.request(asked)["commands"]
    here = dict(nodes(2))
    for node in here.values():
        node["commands"] = dict.fromkeys(pf.request(asked)["commands"], "/usr/bin/x") | {"openssl": None}
    cluster = Cluster(hosts=head, nodes=here)
    ((_severity, text),) = texts(cluster, {"gateway"}, "commands")
    assert text.startswith("spark1: not installed: openssl") and "apt-get install openssl" in text
    head["spark1"]["gateway_tls"] = "files"
    assert "openssl" not in pf.request(context({"gateway"}, head))["commands"]


def test_an_exported_index_that_drifted():
    cluster = Cluster()
    new_fact(environment={"NCCL_IB_GID_INDEX": "3"})(cluster)
    cluster.nodes["spark2"]["gids"] = [gid(0, "10.100.0.2", index=5), gid(1, "10.100.1.2", index=7, version=1)]
    ((_severity, text),) = texts(cluster, LATER, "gid_drift")
    assert "to 5, and NCCL_IB_GID_INDEX=3 is exported" in text


def test_a_second_address_hides_the_one_of_the_fact():
    cluster = Cluster()
    table = [gid(0, "10.9.9.9", index=2), gid(0, "10.100.0.2"), gid(1, "10.100.1.2")]
    cluster.nodes["spark2"]["gids"] = table
    ((_severity, text),) = texts(cluster, LATER, "gid_drift")
    assert "NCCL no longer finds the GID of 10.100.0.2" in text and "several GIDs fit" in text
    new_fact(environment={"NCCL_IB_ADDR_RANGE": "10.100.0.0/16"})(cluster)
    assert texts(cluster, LATER, "gid_drift") == []


def test_a_fact_that_is_not_applied_tells_nothing_of_its_rails():
    cluster = Cluster()
    new_fact(state="applying")(cluster)
    interface("enp1s0f0np0", addresses=[])(cluster)
    assert texts(cluster, LATER, "half_address") == []


def test_equal_macs_on_one_machine_are_its_own_business():
    cluster = Cluster()
    interface("enP2p1s0f0np0", mac="48:21:0b:96:02:c0")(cluster)
    assert texts(cluster, ALL, "duplicate_mac") == []


# --- the fabric's checks, each asked directly


def network(**changes):
    return lambda cluster: cluster.nodes["spark2"]["network"].update(changes)


def second_interface(**item):
    usual = {"name": "enP9s9", "kind": None, "master": None, "addresses": []}
    return lambda cluster: cluster.nodes["spark2"]["network"]["interfaces"].append({**usual, **item})


def addressed(address, prefix=24, **more):
    return {"address": address, "prefix": prefix, "scope": "global", **more}


NOBODY = {"earlier": {}}  # no earlier run
SECOND = every("fabric_subnets", ["no network", "10.100.1.0/24"])


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
        ({"fabric"}, inventory(fabric_state="absent"), NOBODY, False),
        ({"fabric"}, inventory(fabric_neighbor_probe="never"), NOBODY, False),
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
    told = {"cluster": "spark1 spark2 spark3 spark4 198.51.100.11 198.51.100.12 198.51.100.14", "timeout": 25.0}
    fresh = context({"fabric"}, hosts, nodes=there, earlier={})
    assert fabric_checks.listeners(fresh, 3) == {"nodes": ["spark1", "spark3", "spark4"], **told}
    assert fabric_checks.listeners(fresh, 2) == {"nodes": [], **told}
    assert fabric_checks.listeners(context({"fabric"}, hosts, nodes=there), 3) == {"nodes": [], **told}
    assert fabric_checks.listeners(context({"fabric"}, {}), 3) == {"nodes": [], "cluster": "", "timeout": 10.0}


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
        there = cluster.nodes[name]
        assert one.neighbors == cluster.rest["neighbors"][name]
        assert (one.interfaces, one.routes) == (there["network"]["interfaces"], there["network"]["routes"])
        assert one.cages == there["rdma"]["cages"]
    cluster.rest["failures"] = {"spark2": "timed out"}
    assert fabric_checks.cables(cluster.context({"fabric"})) is None


def test_the_settings_by_which_cables_are_judged():
    """What the first machine's variables say; where neither they nor a documented default do, the planner's own."""
    hosts = inventory(fabric_topology="ring", fabric_qos=None, fabric_cables=["spark1.0 switch"])
    hosts["spark2"]["fabric_topology"] = "direct"
    assert fabric_checks.fabric_settings(context({"fabric"}, hosts, variables={})) == Settings(
        topology="ring", cables=["spark1.0 switch"]
    )
    assert fabric_checks.fabric_settings(context({"fabric"}, {}, variables={})) == Settings()


def test_cables_that_fit_are_no_finding_though_ports_are_off():
    cluster = Cluster(hosts=inventory(fabric_topology="switch"))
    listened("spark1.0 spark2.0 spark3.0 spark4.0 @sw1")(cluster)
    cluster.nodes["spark2"]["rdma"]["cages"][0]["halves"][0]["admin_up"] = False
    assert list(fabric_checks.check_cables(cluster.context({"fabric"}))) == []


@pytest.mark.parametrize(
    ("there", "what"),
    [
        (second_interface(addresses=[addressed("10.100.1.77")]), "address 10.100.1.77 on enP9s9"),
        (second_interface(addresses=[addressed("10.100.1.77", None)]), "address 10.100.1.77 on enP9s9"),
        (second_interface(addresses=[addressed("10.100.2.77", 23)]), ""),
        (second_interface(addresses=[addressed("10.100.0.77", scope="link"), addressed("10.100.1.77")]),
         "address 10.100.1.77 on enP9s9"),
        (second_interface(addresses=[addressed("fd00::1", 8)]), ""),
        (second_interface(name="docker1", addresses=[addressed("10.100.1.77")]), ""),
        (interface("lo", addresses=[addressed("10.100.1.77", 32)]), ""),
        (network(interfaces=None, routes=None), ""),
        (network(routes=[{"dst": "10.100.1.128/25", "dev": "tun0"}]), "route 10.100.1.128/25 through tun0"),
        (network(routes=[{"dst": "10.100.1.9", "type": "blackhole"}]), "route 10.100.1.9 through blackhole"),
        (network(routes=[{"dst": "10.100.0.0/24", "dev": "enp1s0f0np0"}, {"dst": "10.100.1.9", "dev": "tun0"}]),
         "route 10.100.1.9 through tun0"),
        (network(routes=[{"dst": "10.100.1.0/24", "type": "throw"}]), ""),
        (network(routes=[{"dst": "10.100.1.0/24", "dev": "docker0"}]), ""),
        # Everything, and everything in two halves as OpenVPN writes it: no other subnet would help.
        (network(routes=[{"dst": "0.0.0.0/0", "dev": "tun0"}]), ""),
        (network(routes=[{"dst": "0.0.0.0/1", "dev": "tun0"}, {"dst": "128.0.0.0/1", "dev": "tun0"}]), ""),
        (network(routes=[{"dst": "0.0.0.0/1", "dev": "tun0", "table": "main"}]), ""),
        (both(network(routes=[{"dst": "0.0.0.0/0", "dev": "tun0", "table": "52"}]), SECOND), ""),
        (both(network(routes=[{"dst": "0.0.0.0/1", "dev": "tun0", "table": "52"}]), SECOND),
         "route 0.0.0.0/1 through tun0"),
        (both(network(routes=[{"dst": "0.0.0.0/2", "dev": "tun0"}]), SECOND), "route 0.0.0.0/2 through tun0"),
        (both(network(routes=[{"dst": "169.254.0.0/16", "dev": "tun0"}]), every("fabric_subnets", ["169.254.1.0/24"])),
         ""),
    ],
)  # fmt: skip
def test_what_a_fabric_subnet_overlaps(there, what):
    cluster = Cluster()
    there(cluster)
    text = f"the fabric subnet 10.100.1.0/24 overlaps {what}"
    expected = [Finding("spark2", text, "Choose other fabric_subnets")] if what else []
    assert list(fabric_checks.check_subnets(cluster.context({"fabric"}))) == expected


@pytest.mark.parametrize(
    ("count", "declared", "fact_", "one_cage", "kind"),
    [
        (3, "ring", "switch", False, "ring"),
        (3, "auto", "ring", False, "ring"),
        (3, "switch", "ring", False, ""),
        (3, "auto", "switch", False, ""),
        (3, "auto", None, False, "perhaps"),
        (3, "auto", None, True, ""),
        (2, "auto", None, False, ""),  # a pair with two cables
    ],
)
def test_what_may_be_a_ring(count, declared, fact_, one_cage, kind):
    facts = {f"spark{n + 1}": fact(f"spark{n + 1}", n, topology=fact_) for n in range(count) if fact_}
    cluster = Cluster(inventory(count, fabric_topology=declared), nodes(count), facts)
    crossed(cluster, [200.0] * count)
    if one_cage:
        cluster.nodes["spark1"] = nodes(1)["spark1"]
    assert fabric_checks._ring(cluster.context({"fabric"}), "spark2") == kind


@pytest.mark.parametrize(
    ("interface_", "link", "mtu", "addresses"),
    [
        ({}, True, 9000, ()),
        ({"state": "UP", "mtu": 1500, "addresses": None}, True, 1500, ()),
        ({"state": "DOWN"}, False, 9000, ()),
        ({"addresses": [{**OWN, "prefix": 16}, {**OWN, "address": "10.0.0.9", "prefix": None}]}, True, 9000,
         ("10.0.0.9/24", "10.100.0.2/16")),
        ({"addresses": [{**OWN, "address": "169.254.7.7"}, {**OWN, "address": "fd00::2", "family": "inet6"}]}, True,
         9000, ()),
    ],
)  # fmt: skip
@pytest.mark.parametrize("up", [True, False])
def test_what_is_not_told_of_a_half_counts_as_planned(interface_, link, mtu, addresses, up):
    planned = rail(0, "10.100.0.2")
    assert fabric_checks._effective(interface_, planned, up) == Effective(True, up, link, mtu, addresses)


# --- the machines' checks, each asked directly

SPACE = {"exists": False, "free": 2**30, "total": 2**40, "read_only": False}


@pytest.mark.parametrize(
    ("paths", "told"),
    [
        ({"/a": SPACE, "/b": SPACE, "/c": {**SPACE, "total": 2**41}}, ["/a", "/c"]),
        ({"/a": SPACE, "/b": {**SPACE, "read_only": True}}, ["/a", "/b"]),
        ({"/a": SPACE, "/b": {**SPACE, "free": 2**31}}, ["/a", "/b"]),
        ({"/a": {**SPACE, "exists": True}, "/b": SPACE}, ["/b"]),
        ({"/a": {**SPACE, "free": 20 * 2**30}, "/b": {**SPACE, "free": 20 * 2**30 - 1}}, ["/b"]),
    ],
)
def test_paths_of_one_file_system_are_one_finding(paths, told):
    cluster = Cluster()
    node("paths", paths)(cluster)
    found = machine_checks.check_disk(cluster.context(ALL))
    assert [(one.host, one.device) for one in found] == [("spark2", path) for path in told]


@pytest.mark.parametrize(
    "healthy",
    [
        {"environments": {}},
        {"environments": {"/opt/sparkmatrix/engine": {"exists": False, "distrusted": "/opt belongs to bob"}}},
        {"interpreters": {}},
    ],
    ids=["no environment", "of somebody else", "another interpreter"],
)
def test_each_machine_has_an_interpreter_of_its_own(healthy):
    cluster = Cluster()
    cluster.nodes["spark1"].update(healthy)
    for name in ("spark2", "spark3", "spark4"):
        cluster.nodes[name]["environments"] = {"/opt/sparkmatrix/engine": {"exists": False}}
        cluster.nodes[name]["interpreters"] = {"python3": "3.12.3", "python3.10": "3.10.4", "python3.99": None}
    both(host("engine_python", "python3.10"), host("engine_python", "python3.99", "spark3"))(cluster)
    cluster.nodes["spark4"]["interpreters"]["python3"] = None
    cluster.nodes["spark4"]["environments"] = {"/srv/engine": {"exists": False}}
    host("engine_venv_path", "/srv/engine", "spark4")(cluster)
    cluster.rest["variables"] = {}
    absent, remedy = (
        "the interpreter that engine_python names does not run",
        "Install Python 3.11 or later, or correct ",
    )
    made = [one for one in machine_checks.check_engine_python(cluster.context({"ray"})) if one.host != "spark1"]
    assert made == [
        Finding(
            "spark2",
            "engine_python is Python 3.10.4, 3.11 or later is needed",
            "Install a newer Python and name it in engine_python, for example python3.12",
            "python3.10",
        ),
        Finding("spark3", absent, f"{remedy}engine_python", "python3.99"),
        Finding("spark4", absent, f"{remedy}engine_python", "python3"),
    ]


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


@pytest.mark.parametrize(
    ("values", "ports"),
    [
        ({}, set()),
        ({"observability_enabled": False}, set()),
        ({"observability_enabled": True}, {9090, 9100}),
        ({"observability_enabled": "true"}, {9090, 9100}),  # as -e and an inventory in INI give it
        ({"observability_enabled": "false"}, set()),
        ({"observability_enabled": True, "observability_state": "present"}, {9090, 9100}),
        ({"observability_enabled": True, "observability_state": "absent"}, set()),
    ],
)
def test_ports_of_the_observer_are_wanted_where_the_role_sets_it_up(values, ports):
    found = machine_checks.wanted_ports(context({"observability"}, inventory(1, **values)))
    assert {port for _host, port in found} == ports


# --- every word


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
    return rest(settings=pf.Settings(**values))


def clock(**offsets):
    def inject(cluster):
        for name, offset in offsets.items():
            cluster.nodes[name]["clock_offset"] = offset

    return inject


def memory(gib):
    return node("memory", {"total": gib * base.GIB})


RULE = {"priority": 9, "table": "52", "action": "lookup"}
UNREAD = {"checked": False, "ok": None, "code": None, "message": ""}
PATHS = {"exists": False, "free": 20 * 2**30, "total": 2**40, "read_only": False}
RAISED = {"memlock": 8388608, "nofile": 524288, "can_raise": False}
# A fault, and the layers of the run; what is said is in the fixture.
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
    "Python is not known": (node("python", None), ALL),
    "another machine": (node("machine", {"gpu": "H200", "vendor": "ACME", "product": "X1"}), ALL),
    "another machine that may be": (both(node("machine", {}), settings_of(require_gb10=False)), ALL),
    "another architecture": (node("arch", "x86_64"), ALL),
    **{
        f"{gib} GiB of memory": (memory(gib), ALL)
        for gib in (51.9, 52, 64, 64.1, 109.9, 110, 128, 128.1)
    },
    **{
        f"{gib} GiB where 100 are enough": (both(memory(gib), settings_of(min_memory_gib=100)), ALL)
        for gib in (99.9, 100, 106, 107.2)
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
    "less space is needed": (
        both(node("paths", {"/opt/x": {**PATHS, "free": 2**30}}), settings_of(min_disk_gib=1)), ALL),
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
            {"slowed": ["heat", "power"]},
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
        rest(reach={"spark1": [{"name": "spark2", "address": "198.51.100.12", **LOST_WAY}],
                    "spark4": [{"name": "spark3", "address": "198.51.100.13", "reason": "refused"}]}),
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
             lambda c: c.nodes["spark2"]["rdma"]["cages"][0]["halves"][0].update(admin_up=False)), {"fabric"}),
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
}  # fmt: skip


def test_what_is_found_in_every_fault():
    told = {}
    for name, (inject, *_sentence, layers) in {**FAULTS, **MORE}.items():
        cluster = Cluster()
        inject(cluster)
        told[name] = [found for check, one in judge(cluster, layers) for found in of_findings([one], check.name)]
    hold("preflight", told.items())
