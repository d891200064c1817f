# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import hardware as machines
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import machine as base_machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import network as net
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.hardware import Hardware
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.network import Kept, Network
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight import node_info as ni
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.node import (
    Account,
    Limits,
    Memory,
    Node,
    Session,
    UnitState,
)

ADDRESSES = [
    {"ifname": "lo", "operstate": "UNKNOWN", "mtu": 65536, "addr_info": [{"family": "inet", "local": "127.0.0.1"}]},
    {
        "ifname": "enP7s7",
        "address": "02:00:00:00:00:01",
        "mtu": 1500,
        "operstate": "UP",
        "addr_info": [
            {"family": "inet", "local": "198.51.100.11", "prefixlen": 24, "scope": "global"},
            {"family": "inet6", "local": "fe80::1", "prefixlen": 64, "scope": "link"},
        ],
    },
    {},
    {"ifname": "enp1s0f0np0", "mtu": 9000, "operstate": "DOWN"},
]
ROUTES = [
    {"dst": "default", "gateway": "198.51.100.1", "dev": "enP7s7", "flags": []},
    {"dst": "198.51.100.0/24", "dev": "enP7s7", "flags": []},
    {"type": "local", "dst": "198.51.100.11", "dev": "enP7s7", "table": "local"},
    {"type": "multicast", "dst": "ff00::/8", "dev": "enP7s7", "table": "local"},
    {"type": "blackhole", "dst": "203.0.113.0/24", "table": 77, "metric": 5},
]


class Machine(base_machine.Machine):
    def __init__(self, root, outputs=None, environment=None, pid=100):
        self.outputs = {
            ("ip", "-j", "-d", "addr"): json.dumps(ADDRESSES),
            ("ip", "-j", "route"): json.dumps(ROUTES),
            **(outputs or {}),
        }
        super().__init__(root=str(root), runner=self.answer, environment=environment or {}, pid=pid, now=lambda: 1000.0)

    def answer(self, argv):
        for start, text in self.outputs.items():
            if tuple(argv[: len(start)]) == start:
                return Completed(0, text) if text is not None else Completed(1, "", "no")
        return Completed(127, "", "not found")

    def write(self, path, content):
        file = Path(self.root) / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.fixture
def node(tmp_path):
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("fact", "kept"),
    [
        (
            '{"management_address": "10.0.0.2", "host": "desk-b", "rank": 1, "nodes": 2}',
            Kept("10.0.0.2", "", "desk-b", 1, 2),
        ),
        (
            '{"management_address": "10.0.0.2", "rank": "1", "nodes": true}',
            Kept("10.0.0.2"),
        ),
        ("torn", None),
    ],
)
def test_what_a_machine_was_set_up_as(node, fact, kept):
    node.write("etc/ansible/facts.d/sparkmatrix.fact", fact)
    assert ni.gather(ni.Request(), node).network.kept == kept


def test_an_empty_machine_gives_nones(tmp_path):
    empty = Machine(tmp_path, {("ip", "-j", "-d", "addr"): None, ("ip", "-j", "route"): None})
    request = ni.Request(
        ["/opt/x"], ["no-such-program"], ["a.service"], [8000], connection_host="spark1.local", controller_time=990.0
    )
    found = ni.gather(request, empty)
    assert (found.machine, found.memory, found.network, found.limits) == (Hardware(), Memory(), Network(), Limits())
    assert (found.listening, found.commands, found.units) == (None, {"no-such-program": None}, {"a.service": None})
    assert (found.paths["/opt/x"].exists, found.paths["/opt/x"].at) == (False, "/")
    assert found.clock_offset == 10.0
    assert (found.dgx, found.nvidia_driver, found.systemd) == (None, None, False)
    assert document.load(Node, json.loads(json.dumps(ni.shown(found)))) == found


def test_managed_sets(node):
    node.write("var/lib/sparkmatrix/managed/gateway.json", "{}")
    node.write("var/lib/sparkmatrix/managed/.lock", "")
    assert ni.managed(node) == ("gateway",)


def test_accounts_of_ours(node):
    ours = "sparkmatrix:x:989:989:Ray:/var/lib/sparkmatrix/home:/usr/sbin/nologin"
    node.write("etc/passwd", f"root:x:0:0:root:/root:/bin/bash\n{ours}\nsparkmatrix-cut:x:1")
    account = Account("/var/lib/sparkmatrix/home", "/usr/sbin/nologin", False)
    assert ni.accounts(node) == {"sparkmatrix": account}
    node.write("var/lib/sparkmatrix/home/.profile", "")
    assert ni.accounts(node)["sparkmatrix"].has_home


def test_managed_sets_that_only_root_may_see(node, monkeypatch):
    def refuse(**_options):
        raise SparkError("no permission", "/var/lib/sparkmatrix/managed")

    monkeypatch.setattr(ni.managed_files, "names", refuse)
    assert ni.managed(node) == ()


def test_this_machine_can_be_read():
    found = ni.gather(ni.Request(["/"], ["sh"], [], [1]))
    assert found.commands["sh"] and found.paths["/"].total > 0 and found.clock_offset is None
    assert document.load(Node, json.loads(json.dumps(ni.shown(found)))) == found


@pytest.mark.parametrize(
    ("files", "smi", "expected"),
    [
        (
            {"proc/driver/nvidia/gpus/000f:01:00.0/information": "Model: \t\t NVIDIA GB10\nIRQ: 1\n"},
            None,
            "GPU NVIDIA GB10",
        ),
        ({}, "NVIDIA GB10\n", "GPU NVIDIA GB10"),
        ({"proc/driver/nvidia/gpus/0/information": "IRQ: 1"}, "No devices were found\n", None),
        ({"sys/class/dmi/id/product_name": "NVIDIA_DGX_Spark\n"}, None, "DMI NVIDIA_DGX_Spark"),
        ({"sys/class/dmi/id/product_name": "GX10\n"}, "", "DMI GX10"),
        ({"sys/class/dmi/id/product_name": "HP ZGX Nano G1n AI Station"}, None, "DMI HP ZGX Nano G1n AI Station"),
        ({"sys/class/dmi/id/product_family": "ThinkStation PGX"}, None, "DMI ThinkStation PGX"),
        ({"sys/class/dmi/id/product_name": "GX1000"}, None, None),
        # the GPU counts more than the board, and the host name counts for nothing
        ({"sys/class/dmi/id/product_name": "GX10"}, "NVIDIA H100\n", None),
        ({"proc/sys/kernel/hostname": "dgx-spark-gb10"}, None, None),
    ],
)
def test_gb10(tmp_path, files, smi, expected):
    node = Machine(tmp_path, {("nvidia-smi",): smi})
    for path, content in files.items():
        node.write(path, content)
    found = machines.hardware(node)
    assert (found.evidence, found.is_gb10) == (expected, expected is not None)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build\nGCC version: 13\n",
            "580.95.05",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (nixbld@)  \n",
            "580.159.04",
        ),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54", "535.54"),
        ("", None),
        (None, None),
    ],
)
def test_driver_version(text, version):
    assert ni.driver_version(text) == version


def test_release():
    assert ni.release("NAME=\"Ubuntu\"\nVERSION_ID=24.04\n# x\n\nDGX_OTA_VERSION='7.4'\n") == {
        "name": "Ubuntu",
        "version_id": "24.04",
        "dgx_ota_version": "7.4",
    }


def test_disk_of_existing_path(node):
    (Path(node.root) / "opt/a").mkdir(parents=True)
    found = ni.disk(node, "/opt/a/b/c")
    assert (found.exists, found.at, found.read_only) == (False, "/opt/a", False)
    assert 0 < found.free <= found.total


def test_disk_that_cannot_be_asked(node, monkeypatch):
    def refuse(path):
        raise OSError

    monkeypatch.setattr(os, "statvfs", refuse)
    assert ni.disk(node, "/").free is None


# -- network


def test_network_over_ssh(tmp_path):
    node = Machine(tmp_path, environment={"SSH_CONNECTION": "203.0.113.9 5000 198.51.100.11 22"})
    found = net.network(node)
    assert found.connection_address == "198.51.100.11"
    assert found.connection_interface == "enP7s7"
    assert found.connection_source == "ssh"
    assert found.default_gateway == net.Gateway("198.51.100.1", "enP7s7")
    assert [item.name for item in found.interfaces] == ["lo", "enP7s7", "enp1s0f0np0"]
    assert found.interfaces[1].addresses[0] == net.InterfaceAddress("198.51.100.11", 24, "inet")
    assert [(r.dst, r.table, r.type) for r in found.routes] == [
        ("default", "main", "unicast"),
        ("198.51.100.0/24", "main", "unicast"),
        ("203.0.113.0/24", "77", "blackhole"),
    ]


def test_ssh_connection_is_found_above_sudo(tmp_path):
    node = Machine(tmp_path, environment={"SUDO_USER": "dgx"}, pid=100)
    node.write("proc/100/stat", "100 (python3) S 90 1")
    node.write("proc/90/stat", "90 (sudo (odd) name) S 80 1")
    node.write("proc/90/environ", b"A=1\0")
    node.write("proc/80/environ", b"SSH_CONNECTION=::ffff:203.0.113.9 5000 ::ffff:198.51.100.11 22\0B=\0")
    assert net.connection_address(node, "", None) == ("198.51.100.11", "ssh")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("198.51.100.11", ("198.51.100.11", "host")),
        ("fe80::1%enP7s7", ("fe80::1", "host")),
        ("198.51.100.99", (None, None)),  # behind NAT: not an address of this machine
        ("127.0.0.1", (None, None)),
        ("spark1.local", (None, None)),
        ("", (None, None)),
    ],
)
def test_connection_host(tmp_path, host, expected):
    node = Machine(tmp_path, pid=100)
    node.write("proc/100/stat", "garbage")
    interfaces = net.parse_addresses(json.dumps(ADDRESSES))
    assert net.connection_address(node, host, interfaces) == expected


def test_a_process_loop_ends(tmp_path):
    node = Machine(tmp_path, pid=5)
    node.write("proc/5/stat", "5 (a) S 6 1")
    node.write("proc/6/stat", "6 (b) S 5 1")
    assert net.connection_address(node, "", None) == (None, None)


def test_default_route_is_the_last_resort(node):
    found = net.network(node, "spark1.local")
    assert found.connection_interface == "enP7s7"
    assert found.connection_address == "198.51.100.11"
    assert found.connection_source == "default_route"


@pytest.mark.parametrize("text", ["", "[]", "[{}]", "\n"])
def test_ip_prints_nothing(text):
    assert net.parse_addresses(text) == []
    assert net.parse_routes(text) == []


@pytest.mark.parametrize("text", [None, "{", "{}", "3"])
def test_ip_prints_garbage(text):
    assert net.parse_addresses(text) is None
    assert net.parse_routes(text) is None


TAILSCALE = [
    {"priority": 0, "src": "all", "table": "local"},
    {"priority": 5210, "src": "all", "fwmark": "0x80000", "fwmask": "0xff0000", "table": "main"},
    {"priority": 5250, "src": "all", "fwmark": "0x80000", "fwmask": "0xff0000", "action": "unreachable"},
    {"priority": 5270, "src": "all", "table": "52"},
    {"priority": 32766, "src": "all", "table": "main"},
    {"priority": 32767, "src": "all", "table": "default"},
]
# wg-quick: only what main has no route for but a default goes into the tunnel.
WIREGUARD = [
    {"not": None, "priority": 32765, "src": "all", "fwmark": "0xca6c", "table": "51820"},
    {"priority": 32764, "src": "all", "table": "main", "suppress_prefixlen": 0},
    *TAILSCALE[:1],
    *TAILSCALE[-2:],
]


@pytest.mark.parametrize(
    ("rules", "met"),
    [
        (TAILSCALE, [(5270, "52", "lookup")]),
        (WIREGUARD, []),
        ([{**WIREGUARD[0], "priority": 50}, *WIREGUARD[1:]], [(50, "51820", "lookup")]),
        ([{"priority": 9, "src": "all", "action": "blackhole"}, *TAILSCALE[-2:]], [(9, "main", "blackhole")]),
        (
            [{"priority": 9, "src": "10.0.0.0", "srclen": 8, "table": "7"}, {"priority": 8, "src": "all", "goto": 10}],
            [],
        ),
        ([{"priority": 9, "src": "all", "table": "7", "suppress_prefixlen": 0}], []),
    ],
)
def test_rules_before_main(rules, met):
    found = net.parse_rules(json.dumps(rules))
    assert [(one.priority, one.table, one.action) for one in found] == met


# -- systemd, netplan


def test_units(tmp_path):
    text = (
        "LoadState=loaded\nActiveState=active\nSubState=running\nUnitFileState=enabled\n\n"
        "LoadState=not-found\nActiveState=inactive\nSubState=dead\nUnitFileState=\n"
    )
    node = Machine(tmp_path, {("systemctl", "show"): text})
    assert ni.units(node, ["a.service", "b.service"]) == {
        "a.service": UnitState("loaded", "active", "running", "enabled"),
        "b.service": UnitState("not-found", "inactive", "dead", ""),
    }
    assert ni.units(node, ["a.service"]) == {"a.service": None}
    assert ni.units(node, []) == {}


def test_netplan_files(node):
    node.write("etc/netplan/01-a.yaml", "")
    node.write("etc/netplan/01-a.yaml.bak", "")
    node.write("run/netplan/50-b.yaml", "")
    assert ni.netplan_files(node) == ["/etc/netplan/01-a.yaml", "/run/netplan/50-b.yaml"]


@pytest.mark.parametrize(
    ("memlock", "capabilities", "expected"),
    [
        ("8388608   8388608   bytes", "000001ffffffffff", Limits(8388608, 16384, True)),
        ("unlimited   unlimited   bytes", "00000000feffffff", Limits(-1, 16384, False)),
    ],
)
def test_limits(node, memlock, capabilities, expected):
    node.write(
        "proc/1/limits",
        f"Limit Soft Hard Units\nMax open files   1024   16384   files \nMax locked memory   {memlock}\n",
    )
    node.write("proc/1/status", f"Name:\tsystemd\nCapBnd:\t{capabilities}\n")
    assert ni.limits(node) == expected


UUID = "2b0c3f4e-6a1d-4f0e-9a57-0d6a4c1b2e3f"


@pytest.mark.parametrize(
    ("permissions", "flags", "users", "secret"),
    [
        ("user:ann,user:bob\n", "1\n", ("ann", "bob"), True),
        ("\n", "0\n", (), False),
        ("\n", "2 (not saved)\n", (), True),
        ("user:$(reboot)\n", "", (), False),
    ],
)
def test_the_profile_of_the_connection(tmp_path, permissions, flags, users, secret):
    answers = {
        "nmcli -g GENERAL.CON-UUID device show wlP9s9": f"{UUID}\n",
        f"nmcli -g connection.permissions connection show {UUID}": permissions,
        f"nmcli -g 802-11-wireless-security.psk-flags connection show {UUID}": flags,
    }
    found = ni.session(Machine(tmp_path, {tuple(words.split()): said for words, said in answers.items()}), "wlP9s9")
    assert found == Session("wlP9s9", UUID, users, secret)
    assert ni.session(Machine(tmp_path), "enP7s7") is None
