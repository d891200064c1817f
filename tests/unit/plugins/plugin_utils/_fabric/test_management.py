# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The management address of interfaces as real Sparks have them, however the operator logged in."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access.node import Look
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.network import Network
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.ibdev2netdev import Rdma
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._access import plan as access_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import management
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import plan as fabric_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import types as fabric_types
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.types import Settings
from fabric_inputs import spark_ports
from hypothesis import given, settings
from hypothesis import strategies as st

# `ip -br addr` of a Spark (ideo-plus/DGX-Spark-x2-GLM5.3-Flash-NVFP4-vLLM-Recipe, serving/tests/fixtures/spark/head).
HEAD = """
lo               UNKNOWN        127.0.0.1/8 ::1/128
enP7s7           UP             10.0.1.60/24 2001:db8::1/64 2001:db8::2/64 2001:db8::3/64 fe80::1/64
enp1s0f0np0      UP             192.168.100.10/24 fe80::2/64
enp1s0f1np1      DOWN
enP2p1s0f0np0    UP             192.168.101.10/24 fe80::3/64
enP2p1s0f1np1    DOWN
wlP9s9           DOWN
tailscale0       UNKNOWN        100.64.0.1/32 fd00:db8::1/128 fe80::4/64
docker0          DOWN           172.17.0.1/16 fe80::5/64
br-000000000000  UP             172.18.0.1/16 fe80::6/64
veth0000000      UP             fe80::7/64
"""
# oshlabs/dgx-spark-cluster SYSTEM.md, node 1.
PLAIN = """
enP7s7           UP             172.31.0.100/23
enp1s0f0np0      UP             172.31.5.1/29
enP2p1s0f0np0    UP             172.31.5.9/29
"""
KINDS = {"tailscale0": "tun", "wg0": "wireguard", "docker0": "bridge", "br0": "bridge", "virbr0": "bridge"}


def network(text: str, *defaults: tuple[str, int], **changes: Any) -> dict[str, Any]:
    """What ``node_info`` says of such a machine. ``defaults``: carriers of default routes and their metrics."""
    interfaces = []
    for line in filter(None, text.splitlines()):
        name, state, *addresses = line.split()
        kind = KINDS.get(name, "bridge" if name.startswith("br-") else "veth" if name.startswith("veth") else None)
        found = [ipaddress.ip_interface(address) for address in addresses]
        interfaces.append(
            {
                "name": name,
                "state": state,
                "kind": kind,
                "master": "br-000000000000" if kind == "veth" else None,
                "addresses": [
                    {
                        "address": str(item.ip),
                        "prefix": item.network.prefixlen,
                        "scope": "host" if item.is_loopback else "link" if item.is_link_local else "global",
                    }
                    for item in found
                ],
            }
        )
    routes = [
        {"dst": "default", "gateway": "10.0.1.1", "dev": dev, "table": "main", "metric": m} for dev, m in defaults
    ]
    return {"interfaces": interfaces, "routes": routes, "kept": None, **changes}


def choose(host: str, found: Mapping[str, Any], setting: str = "") -> management.Management:
    return management.choose(host, document.load_known(Network, found), setting)


def session(address: str, interface: str) -> dict[str, Any]:
    return {"connection_address": address, "connection_interface": interface, "connection_source": "ssh"}


LAN = network(HEAD, ("enP7s7", 100))
BOTH = HEAD.replace("wlP9s9           DOWN", "wlP9s9           UP 192.168.1.7/24")
BRIDGED = PLAIN.replace("172.31.0.100/23", "") + "br0 UP 172.31.0.100/23\n"
# Every way into that machine: its addresses, and none, where Ansible runs on it.
SESSIONS = [
    session(str(entry["address"]), str(item["name"])) for item in LAN["interfaces"] for entry in item["addresses"]
] + [session("", "")]


def member(found: dict[str, Any], name: str, /, **changes: Any) -> dict[str, Any]:
    for item in found["interfaces"]:
        if item["name"] == name:
            item.update(changes)
    return found


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (LAN, ("10.0.1.60", "enP7s7")),
        (network(PLAIN, ("enP7s7", 100)), ("172.31.0.100", "enP7s7")),
        (network(PLAIN), ("172.31.0.100", "enP7s7")),  # no way to the internet at all
        # Two LANs: the one of the default route, of two the one that the kernel takes.
        (network(BOTH, ("enP7s7", 100), ("wlP9s9", 600)), ("10.0.1.60", "enP7s7")),
        (network(BOTH, ("wlP9s9", 600)), ("192.168.1.7", "wlP9s9")),
        (network(BOTH), ("10.0.1.60", "enP7s7")),
        # Wi-Fi alone; the cable of the 10GbE port is out, and its address is still there.
        (network(BOTH.replace("enP7s7           UP", "enP7s7 DOWN"), ("enP7s7", 100)), ("192.168.1.7", "wlP9s9")),
        # A VPN that takes all traffic.
        (network(HEAD + "wg0 UNKNOWN 10.66.0.2/32", ("wg0", 0), ("enP7s7", 100)), ("10.0.1.60", "enP7s7")),
        # A machine that hosts virtual machines has its address on a bridge over the port.
        (member(network(BRIDGED, ("br0", 0)), "enP7s7", master="br0"), ("172.31.0.100", "br0")),
        (network(HEAD.replace("10.0.1.60/24", "169.254.3.4/16 10.0.1.60/24"), ("enP7s7", 1)), ("10.0.1.60", "enP7s7")),
        # A simulated Spark is a container, whose Ethernet is one end of a pair.
        (member(member(network(PLAIN), "enP7s7", kind="veth"), "enp1s0f0np0", kind="veth"), ("172.31.0.100", "enP7s7")),
    ],
)  # fmt: skip
def test_the_choice(found: Mapping[str, Any], expected: tuple[str, str]) -> None:
    chosen = choose("spark1", found)
    assert ((chosen.address, chosen.interface), chosen.notice, chosen.refusal) == (expected, None, None)


@given(st.sampled_from(SESSIONS), st.sampled_from(SESSIONS))
def test_the_session_changes_nothing(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Nor does it in the facts and in the files of ssh, names and rules."""
    first, second = ({**LAN, **way} for way in (one, other))
    assert choose("spark1", first) == choose("spark1", second) == choose("spark1", LAN)
    assert planned(first) == planned(second)


def planned(found: Mapping[str, Any]) -> tuple[Any, Any]:
    findings: list[Any] = []
    text = HEAD.replace("10.0.1.60", "10.0.1.61").replace(".10/24", ".11/24")
    networks = {
        "spark1": document.load_known(Network, found),
        "spark2": document.load_known(Network, network(text, ("enP7s7", 100))),
    }
    raw = {
        host: {"rank": rank, "network": seen, "rdma": Rdma(tuple(spark_ports())), "cages": "auto"}
        for rank, (host, seen) in enumerate(networks.items())
    }
    made = fabric_plan.plan(
        {host: fabric_types.node_input(host, node, findings) for host, node in raw.items()}, Settings()
    )
    assert not findings and not made.refused, made.findings
    assert made.facts["spark1"].management_interface == "enP7s7"
    looks = {
        host: {"look": Look(network=seen, public_key="k", host_keys=["h k"]), "rank": rank, "fact": None}
        for rank, (host, seen) in enumerate(networks.items())
    }
    nodes, refused = access_plan.node_inputs(looks)
    assert not refused
    assert {host: node.address for host, node in nodes.items()} == {
        host: fact.management_address for host, fact in made.facts.items()
    }
    files = access_plan.plan(nodes, "peer")
    assert not any("::" in str(entry["content"]) for entry in files.files["spark2"])
    assert files.rules["spark2"]["ray"][0] == "allow from 10.0.1.60" and files.hosts_lines["spark2"] == [
        "10.0.1.60 spark1"
    ]
    return made.facts, (files.files, files.hosts_lines, files.rules)


@settings(max_examples=25)
@given(st.sampled_from(["enP7s7", "wlP9s9"]))
def test_the_session_breaks_ties(carrier: str) -> None:
    """Two LANs and no default route: only then."""
    found = network(BOTH, **session("", carrier))
    assert choose("spark1", found).interface == carrier


def test_the_word_of_the_user_wins() -> None:
    kept = {**LAN, "kept": {"address": "10.0.1.60"}}
    for setting, interface in (
        ("100.64.0.1", "tailscale0"),
        ("192.168.100.10", "enp1s0f0np0"),
        ("203.0.113.7", "enP7s7"),
    ):
        chosen = choose("spark1", kept, setting)
        assert (chosen.address, chosen.interface, chosen.notice) == (setting, interface, None)
    for setting in ("fe80::1", "spark1.local"):
        assert f"fabric_management_address is '{setting}', which is no IPv4 address" in str(
            choose("a", LAN, setting).refusal
        )
    assert "on no interface" in str(choose("a", {}, "10.0.0.1").refusal)


def test_the_address_of_the_fact_is_kept_and_the_user_is_told() -> None:
    kept = {"address": "192.168.1.7", "interface": "wlP9s9"}
    chosen = choose("spark1", network(BOTH, ("enP7s7", 100), kept=kept))
    assert (chosen.address, chosen.interface) == ("192.168.1.7", "wlP9s9")
    assert str(chosen.notice).startswith(
        "spark1 wlP9s9: its management address stays 192.168.1.7, while 10.0.1.60 on enP7s7 would be chosen today."
    )
    assert "set fabric_management_address: 10.0.1.60 for this host" in str(chosen.notice)
    assert choose("spark1", {**LAN, "kept": {"address": "10.0.1.60"}}).notice is None


def test_an_address_from_which_the_kernel_does_not_send_is_refused() -> None:
    """Wi-Fi first, and then a cable into the same network."""
    found = network(HEAD.replace("wlP9s9           DOWN", "wlP9s9 UP 10.0.1.20/24"), ("enP7s7", 100), ("wlP9s9", 600))
    found["routes"] += [
        {"dst": "10.0.1.0/24", "gateway": None, "dev": dev, "metric": metric}
        for dev, metric in (("wlP9s9", 600), ("enP7s7", 100))
    ]
    for setting in ("", "10.0.1.20"):
        chosen = choose("spark1", {**found, "kept": {"address": "10.0.1.20"}}, setting)
        assert not chosen.address and str(chosen.refusal).startswith(
            "spark1 wlP9s9: its management address 10.0.1.20 is on wlP9s9, and it sends to that network over enP7s7. "
        )
        assert "Set fabric_management_address for this host to its address on enP7s7" in str(chosen.refusal)
    assert choose("spark1", {**found, "kept": {"address": "10.0.1.20"}}, "10.0.1.60").address == "10.0.1.60"
    found["routes"][-1]["metric"] = 700
    assert choose("spark1", {**found, "kept": {"address": "10.0.1.20"}}).address == "10.0.1.20"


def subnets(found: dict[str, Any], *routes: tuple[str, str, int]) -> dict[str, Any]:
    own = [{"dst": dst, "gateway": None, "dev": dev, "table": "main", "metric": metric} for dst, dev, metric in routes]
    return {**found, "routes": [*found["routes"], *own]}


ONE_LAN = network(HEAD.replace("wlP9s9           DOWN", "wlP9s9 UP 10.0.1.20/24"), ("enP7s7", 100), ("wlP9s9", 600))
TWO_LANS = network(BOTH, ("enP7s7", 100), ("wlP9s9", 600))


@pytest.mark.parametrize(
    ("found", "setting", "expected"),
    [
        (LAN, "", "10.0.1.60"),
        (network(PLAIN), "", "172.31.0.100"),
        (member(network(BRIDGED, ("br0", 0)), "enP7s7", master="br0"), "", "172.31.0.100"),
        (subnets(ONE_LAN, ("10.0.1.0/24", "enP7s7", 100), ("10.0.1.0/24", "wlP9s9", 600)), "", "10.0.1.60"),
        # The first by the rule sends over the other one, or over a VPN; a half is the fabric's to readdress.
        (subnets(ONE_LAN, ("10.0.1.0/24", "enP7s7", 700), ("10.0.1.0/24", "wlP9s9", 600)), "", "10.0.1.20"),
        (subnets(TWO_LANS, ("10.0.1.0/24", "tailscale0", 0), ("192.168.1.0/24", "wlP9s9", 600)), "", "192.168.1.7"),
        (subnets(TWO_LANS, ("10.0.1.0/25", "enp1s0f0np0", 0)), "", "10.0.1.60"),
        (subnets(LAN, ("10.0.1.0/24", "tailscale0", 0), ("10.0.1.0/24", "enP7s7", 100)), "", ""),
        (subnets(ONE_LAN, ("10.0.1.0/24", "enP7s7", 100), ("10.0.1.0/24", "wlP9s9", 600)), "10.0.1.20", ""),
        (LAN, "100.64.0.1", "100.64.0.1"),
        (LAN, "192.168.100.10", "192.168.100.10"),  # on a half: the layer fabric refuses it, each time
        (LAN, "203.0.113.7", "203.0.113.7"),  # behind NAT
        (LAN, "169.254.3.4", "169.254.3.4"),
    ],
)
def test_the_second_run_accepts_what_the_first_one_accepted(found, setting, expected) -> None:
    first = choose("spark1", found, setting)
    assert first.address == expected and bool(first.refusal) == (expected == "")
    kept = {"address": expected, "interface": first.interface} if expected else None
    second = choose("spark1", {**found, "kept": kept}, setting)
    assert second == first
    on_it = any(entry["address"] == expected for item in found["interfaces"] for entry in item["addresses"])
    if on_it:  # with the setting taken out again, or never set
        later = choose("spark1", {**found, "kept": kept})
        assert (later.address, later.interface, later.refusal) == (first.address, first.interface, None)


@pytest.mark.parametrize("text", [HEAD, BOTH.replace("wlP9s9           UP", "wlP9s9           DOWN")])
def test_an_address_that_is_gone_is_replaced_and_the_user_is_told(text: str) -> None:
    chosen = choose("spark1", network(text, ("enP7s7", 100), kept={"address": "192.168.1.7", "interface": "wlP9s9"}))
    assert chosen.address == "10.0.1.60"
    assert "was 192.168.1.7, which it no longer has; now it is 10.0.1.60" in str(chosen.notice)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({}, "no address of it fits as management address: it has no IPv4 address. Set fabric_management_address"),
        (
            network(HEAD.replace("10.0.1.60/24", "")),
            "192.168.100.10 on enp1s0f0np0 (of the fabric), 192.168.101.10 on enP2p1s0f0np0 (of the fabric), "
            "100.64.0.1 on tailscale0 (tun), 172.17.0.1 on docker0 (without a link), "
            "172.18.0.1 on br-000000000000 (bridge)",
        ),
        (member(network(PLAIN), "enP7s7", master="bond0"), "172.31.0.100 on enP7s7, 172.31.5.1"),
    ],
)
def test_nothing_that_fits_is_refused(found: Mapping[str, Any], told: str) -> None:
    chosen = choose("spark1", found)
    assert (chosen.address, chosen.interface) == ("", "")
    assert told in str(chosen.refusal)


def test_the_ports_of_the_fabric() -> None:
    """By name and by RDMA device; with a VLAN, a bridge or a bond over them."""
    found = network(PLAIN.replace("enp1s0f0np0", "rail0"), rdma_interfaces=["rail0"])
    assert management.fabric_ports(document.load_known(Network, found)) == {"rail0", "enP2p1s0f0np0"}
    vlan = {"name": "rail0.7", "kind": "vlan", "link": "rail0", "addresses": [{"address": "10.7.0.1", "prefix": 24}]}
    found["interfaces"] = [vlan, *found["interfaces"]]
    assert choose("spark1", {**found, "routes": [{"dst": "default", "dev": "rail0.7"}]}).interface == "enP7s7"
    vlan["link"] = "enP7s7"
    assert choose("spark1", {**found, "routes": [{"dst": "default", "dev": "rail0.7"}]}).interface == "rail0.7"
