# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The planner on every cabling, as the nodes hear it, as the user declares it, and as neither tells."""

from __future__ import annotations

import ipaddress
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fact as fabric_fact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import (
    Cable,
    FabricFact,
    Rail,
    dump,
    load,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.ibdev2netdev import RdmaPort
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.neighbors import Heard, Neighbors, Port
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.ping import Probe
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.show_gids import Gid
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import addresses
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import plan as fabric_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.plan import (
    Measured,
    Plan,
    Settings,
    judge_cables,
    plan,
    verify,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.topology import edge_number
from fabric_inputs import heard, of_plan, ring, spark, sparks, wired
from hypothesis import given, settings
from hypothesis import strategies as st
from rules import hold
from sysfs_tree import gid_of

SCHEMA = json.loads((Path(__file__).parents[5] / "docs/fabric-fact.schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

SWITCH3 = "spark1.0 spark2.0 spark3.0 @sw1"
BOTH3 = "spark1.0 spark2.0 spark3.0 spark1.1 spark2.1 spark3.1 @"
MIXED4 = (SWITCH3, "spark3.1 spark4.0")
CHAIN3 = ("spark1.0 spark2.0", "spark2.1 spark3.0")


def texts(made: Plan) -> str:
    return "\n".join(str(finding) for finding in made.findings)


def network(rail: Rail) -> ipaddress.IPv4Network:
    return ipaddress.IPv4Network(f"{rail.address}/{rail.prefix}", strict=False)


def check(made: Plan) -> None:
    """What holds for every plan."""
    assert bool(made.facts) != made.refused
    ends: dict[str, list[tuple[str, Rail]]] = {}
    for host, fact in made.facts.items():
        document = json.loads(dump(fact))
        VALIDATOR.validate(document)
        assert load(document, host) == fact
        assert fact.with_hash() == fact
        for rail in fact.rails:
            ends.setdefault(f"{network(rail)}", []).append((host, rail))
    addresses = [rail.address for own in ends.values() for _host, rail in own]
    assert len(set(addresses)) == len(addresses)
    networks = sorted((ipaddress.IPv4Network(text) for text in ends), key=lambda n: int(n.network_address))
    assert not any(one.overlaps(other) for one, other in zip(networks, networks[1:]))
    for own in ends.values():
        assert len({(rail.segment, rail.edge) for _host, rail in own}) == 1
        assert len(own) > 1
        for host, rail in own:
            assert not rail.edge or (len(own) == 2 and rail.neighbor == next(h for h, _rail in own if h != host))
    if len(made.facts) > 1:
        for host, own_paths in fabric_plan.paths(made.facts).items():
            assert own_paths
            for path in own_paths:
                mine = next(rail for rail in made.facts[host].rails if rail.index == path.rail)
                assert ipaddress.IPv4Address(path.address) in network(mine)


def test_the_map_has_the_speed_of_the_slowest_end() -> None:
    nodes = wired("spark1.0 spark2.0")
    slow = spark(1, change={(0, domain): {"speed_gbps": 100.0} for domain in ("0000", "0002")}).cages
    nodes["spark2"] = replace(nodes["spark2"], cages=slow)
    assert "100 Gb/s" in plan(nodes, Settings()).cable_map[0]


# --- every cabling ---------------------------------------------------------------------------------------------------

CABLINGS: list[tuple[str, Any, dict[str, Any], str]] = [
    ("one node", sparks(1), {}, "single"),
    ("pair, same cage", wired("spark1.0 spark2.0"), {}, "direct"),
    ("pair, crossed cages", wired("spark1.0 spark2.1"), {}, "direct"),
    ("pair, two cables", wired("spark1.0 spark2.0", "spark1.1 spark2.1"), {}, "direct"),
    ("pair, two crossed cables", wired("spark1.0 spark2.1", "spark1.1 spark2.0"), {}, "direct"),
    ("pair, two 100G cables", wired("spark1.0 spark2.1", "spark1.1 spark2.0", speed=100.0), {}, "direct"),
    ("pair on a switch", wired("spark1.0 spark2.1 @sw1"), {}, "switch"),
    ("pair on a silent switch", wired("spark1.0 spark2.1"), {"topology": "switch"}, "switch"),
    ("pair, both cages on a switch", wired("spark1.0 spark2.0 spark1.1 spark2.1 @"), {}, "switch"),
    ("ring of three", ring(3), {}, "ring"),
    ("ring of three, named", ring(3, source="lldp"), {"topology": "ring"}, "ring"),
    ("ring of four", ring(4), {"allow_large_ring": True}, "ring"),
    ("ring of five", ring(5), {"allow_large_ring": True}, "ring"),
    ("ring of six", ring(6), {"allow_large_ring": True}, "ring"),
    ("switch", wired(SWITCH3), {}, "switch"),
    ("switch, silent", wired("spark1.0 spark2.1 spark3.0 @"), {}, "switch"),
    ("switch, two cages", wired(BOTH3), {}, "switch"),
    ("switch, 100G, two cages", wired(BOTH3, speed=100.0), {}, "switch"),
    ("switch, some have two", wired("spark1.0 spark2.0 spark3.0 spark3.1 @"), {}, "switch"),
    ("switch and an idle cable", wired(SWITCH3, "spark1.1 spark2.1"), {}, "switch"),
    ("two switches", wired(SWITCH3, "spark1.1 spark2.1 spark3.1 @sw2"), {}, "switch"),
    ("two switches, 100G", wired(SWITCH3, "spark1.1 spark2.1 spark3.1 @sw2", speed=100.0), {}, "switch"),
    ("nothing heard: pair", sparks(2), {}, "direct"),
    ("nothing heard: three", sparks(3), {}, "switch"),
    ("nothing heard: two 100G cables", sparks(3, cabled=(0, 1), change={
        (cage, domain): {"speed_gbps": 100.0} for cage in (0, 1) for domain in ("0000", "0002")
    }), {"topology": "switch"}, "switch"),
    ("declared pair", sparks(2, cabled=(0, 1)), {"cables": ["spark1.0 spark2.1", "spark1.1 spark2.0"]}, "direct"),
    ("declared ring", sparks(3, cabled=(0, 1)),
     {"cables": ["spark1.1 spark2.0", "spark2.1 spark3.0", "spark3.1 spark1.0"]}, "ring"),
    ("declared switch", sparks(3), {"cables": ["spark1.0 switch", "spark2.0 switch", "switch spark3.0"]}, "switch"),
    ("declared silent switch of two", wired("spark1.0 spark2.0"),
     {"cables": ["spark1.0 switch:core", "spark2.0 switch:core"]}, "switch"),
    ("declared as heard", wired(SWITCH3), {"cables": [f"spark{n}.0 switch" for n in (1, 2, 3)]}, "switch"),
    ("socket on a ring", ring(3), {"transport": "socket"}, "ring"),
]  # fmt: skip


@pytest.mark.parametrize(("nodes", "settings", "topology"), [c[1:] for c in CABLINGS], ids=[c[0] for c in CABLINGS])
def test_cabling(nodes: Any, settings: dict[str, Any], topology: str) -> None:
    made = plan(nodes, Settings(**settings))
    assert not made.refused, texts(made)
    assert made.topology == topology
    check(made)
    verified = verify(made.facts, measured(made))
    assert not verified.findings
    for host, fact in verified.facts.items():
        VALIDATOR.validate(json.loads(dump(fact)))
        assert fact.plan_hash == made.facts[host].plan_hash


def measured(made: Plan) -> dict[str, Measured]:
    return {
        host: Measured(
            gids=[Gid(r.rdma_device, 1, 3, gid_of(r.address), 2, r.netdev) for r in fact.rails],
            probes=[
                Probe(path.rail, path.peer, path.source, path.address, True)
                for path in fabric_plan.paths(made.facts)[host]
            ],
        )
        for host, fact in made.facts.items()
    }


def rails(made: Plan, host: str) -> list[tuple[int, str, str]]:
    return [(rail.cage, rail.pcie_path, rail.address) for rail in made.facts[host].rails]


def test_a_ring_has_a_subnet_per_cable_and_half() -> None:
    made = plan(ring(3), Settings())
    first = made.facts["spark1"]
    assert rails(made, "spark1") == [
        (1, "0000", "192.168.100.10"),
        (1, "0002", "192.168.101.10"),
        (0, "0000", "192.168.102.10"),
        (0, "0002", "192.168.103.10"),
    ]
    assert [(rail.neighbor, rail.edge, rail.segment) for rail in first.rails[::2]] == [
        ("spark2", "spark1.1-spark2.0", ""),
        ("spark3", "spark1.0-spark3.1", ""),
    ]
    assert first.cables == (Cable(0, "probe", "spark3", 1), Cable(1, "probe", "spark2", 0))
    assert (first.cluster_address, first.cluster_interface) == ("10.0.0.1", "enP7s7")
    assert first.environment == {
        "GLOO_SOCKET_IFNAME": "enP7s7",
        "NCCL_DEBUG": "WARN",
        "NCCL_IB_HCA": "=rocep1s0f1,roceP2p1s0f1,rocep1s0f0,roceP2p1s0f0",
        "NCCL_IB_MERGE_NICS": "0",
        "NCCL_IB_SUBNET_AWARE_ROUTING": "1",
        "NCCL_NET": "IB",
        "NCCL_NET_PLUGIN": "none",
        "NCCL_SOCKET_IFNAME": "=enP7s7",
        "OMPI_MCA_btl_tcp_if_include": "10.0.0.0/24",
        "OMPI_MCA_oob_tcp_if_include": "10.0.0.0/24",
        "TP_SOCKET_IFNAME": "enP7s7",
        "UCX_NET_DEVICES": "enP7s7",
        "VLLM_HOST_IP": "10.0.0.1",
    }
    assert made.cable_map[0] == "spark1 cage 0 - spark3 cage 1  200 Gb/s  seen by the other end"
    assert len(fabric_plan.paths(made.facts)["spark1"]) == 4


def test_a_ring_of_four_has_neighbours_only() -> None:
    made = plan(ring(4), Settings(allow_large_ring=True))
    first = made.facts["spark1"]
    assert first.environment["NCCL_ALGO"] == "Ring"
    assert {rail.neighbor for rail in first.rails} == {"spark2", "spark4"}
    assert (first.cluster_address, first.environment["VLLM_HOST_IP"]) == ("10.0.0.1", "10.0.0.1")
    assert first.environment["NCCL_SOCKET_IFNAME"] == "=enP7s7"
    assert "Reports contradict each other" in texts(made)


def test_of_two_full_cables_one_is_used() -> None:
    made = plan(wired("spark1.0 spark2.1", "spark1.1 spark2.0"), Settings())
    assert {rail.cage for rail in made.facts["spark1"].rails} == {0}
    assert {rail.cage for rail in made.facts["spark2"].rails} == {1}
    assert made.cable_map[1].endswith("not used")
    assert len(made.facts["spark1"].cables) == 2


@pytest.mark.parametrize(
    "nodes",
    [
        wired("spark1.0 spark2.1", "spark1.1 spark2.0", speed=100.0),
        wired("spark1.0 spark2.1", "spark1.1 spark2.0", use_cages=(0, 1)),
    ],
)
def test_of_two_slow_cables_one_half_each_on_crossed_paths(nodes: Any) -> None:
    made = plan(nodes, Settings())
    assert not made.findings
    assert rails(made, "spark1") == [(0, "0000", "192.168.100.10"), (1, "0002", "192.168.101.10")]
    assert rails(made, "spark2") == [(1, "0000", "192.168.100.11"), (0, "0002", "192.168.101.11")]
    assert made.facts["spark1"].environment["NCCL_IB_HCA"] == "=rocep1s0f0,roceP2p1s0f1"
    assert made.facts["spark2"].environment["NCCL_IB_HCA"] == "=rocep1s0f1,roceP2p1s0f0"


def test_the_faster_of_two_cables_is_used() -> None:
    slow = {(0, domain): {"speed_gbps": 100.0} for domain in ("0000", "0002")}
    nodes = wired("spark1.0 spark2.0", "spark1.1 spark2.1")
    nodes["spark1"] = replace(spark(0, (0, 1), change=slow), neighbors=nodes["spark1"].neighbors)
    made = plan(nodes, Settings())
    assert {rail.cage for fact in made.facts.values() for rail in fact.rails} == {1}


LAN = ("spark1.0 spark2.0", "spark1.1 spark2.1 @lan")
TWO_SWITCHES = (SWITCH3, "spark1.1 spark2.1 spark3.1 @sw2")
PARTLY = ("spark1.0 spark2.0 spark3.0 @lan", "spark1.1 spark2.1")


def _told(half: RdmaPort, text: str) -> RdmaPort:
    if text == "down" and half.pcie_path == "0002":
        return replace(half, carrier=False, rdma_state="DOWN", speed_gbps=400.0, rate_gbps=None)
    speed = None if text == "none" else 100.0 if text == "down" else float(text)
    return replace(half, speed_gbps=speed, rate_gbps=None)


def at(speeds: str, lines: tuple[str, ...], **changes: Any) -> Any:
    """These cables, and what each cage says of its speed: "0=200 1=25" everywhere, "spark2.1=100" at one end. "none"
    and "-1" are no speed, "down" is 100 and one half with what it had before it lost its link."""
    nodes = wired(*lines, **changes)
    for word in speeds.split():
        place, _sign, text = word.partition("=")
        host, _dot, number = place.rpartition(".")
        for name in [host] if host else list(nodes):
            cages = [
                replace(cage, halves=tuple(_told(half, text) for half in cage.halves))
                if cage.cage == int(number)
                else cage
                for cage in nodes[name].cages
            ]
            nodes[name] = replace(nodes[name], cages=cages)
    return nodes


@pytest.mark.parametrize(
    ("nodes", "wanted", "topology", "used", "unused"),
    [
        # A switch beside a cable: the faster one, whichever it is; the one that is named, whichever is faster.
        (at("0=200 1=25", LAN), "auto", "direct", "0", ""),
        (at("0=200 1=25", LAN), "direct", "direct", "0", ""),
        (at("0=200 1=25", LAN), "switch", "switch", "1", "spark1 cage 0: its link to spark2 cage 0 runs at 200 Gb/s"),
        (at("0=100 1=200", LAN), "auto", "switch", "1", ""),
        (at("0=100 1=200", LAN), "direct", "direct", "0", "spark1 cage 1: its link to switch lan runs at 200 Gb/s"),
        (at("0=200 1=200", LAN), "auto", "switch", "1", ""),
        # By the slowest end.
        (at("0=100 1=200 spark2.1=10", LAN), "auto", "direct", "0", ""),
        (at("0=200 spark2.0=10 1=25", LAN), "auto", "switch", "1", ""),
        (at("0=200 spark2.0=100 1=200", ("spark1.0 spark2.0", "spark1.1 spark2.1")), "auto", "direct", "1", ""),
        # Of two switches the faster one; both where that is more.
        (at("0=100 1=200", TWO_SWITCHES), "auto", "switch", "1", ""),
        (at("0=200 1=100", TWO_SWITCHES), "switch", "switch", "0", ""),
        (at("0=200 spark3.0=40 1=100", TWO_SWITCHES), "auto", "switch", "1", ""),
        (at("0=25 1=100", TWO_SWITCHES), "auto", "switch", "1", ""),
        (at("0=100 1=100", TWO_SWITCHES), "auto", "switch", "01", ""),
        (at("0=25 1=100", ("spark1.0 spark2.0", "spark1.1 spark2.1")), "auto", "direct", "1", ""),
        # What joins some of them is no choice for all.
        (at("0=10 1=200", PARTLY), "auto", "switch", "0", "spark1 cage 1: its link to spark2 cage 1 runs at 200 Gb/s"),
        (at("0=10 1=none", PARTLY), "auto", "switch", "0", "spark1 cage 1: its link to spark2 cage 1 does not tell"),
        (at("0=200 1=200", PARTLY), "auto", "switch", "0", ""),
        # A speed that is not known wins over none that is, and one that it had before the link went is not known.
        (at("0=none 1=200", LAN), "auto", "switch", "1", ""),
        (at("0=200 1=none", LAN), "auto", "direct", "0", ""),
        (at("0=-1 1=100", LAN), "auto", "switch", "1", "spark1 cage 0: its link to spark2 cage 0 does not tell its"),
        (at("0=100 1=-1", LAN), "auto", "direct", "0", "spark1 cage 1: its link to switch lan does not tell its speed"),
        (at("0=200 1=down", LAN), "auto", "direct", "0", ""),
        (at("0=none 1=200", TWO_SWITCHES), "auto", "switch", "1", ""),
        (at("0=none 1=none", LAN), "direct", "direct", "0", ""),
        (at("0=200 spark3.0=none 1=200", TWO_SWITCHES), "auto", "switch", "1", ""),
    ],
)  # fmt: skip
def test_the_named_topology_then_the_fastest_link(
    nodes: Any, wanted: str, topology: str, used: str, unused: str
) -> None:
    made = plan(nodes, Settings(topology=wanted))
    assert made.topology == topology, texts(made)
    assert {str(rail.cage) for fact in made.facts.values() for rail in fact.rails} == set(used)
    assert [finding.severity for finding in made.findings] == ["warning"] * bool(unused), texts(made)
    assert unused in texts(made)
    assert judge_cables(nodes, Settings(topology=wanted)).topology == topology


def test_the_cables_tell_the_speed_of_those_in_use() -> None:
    assert judge_cables(at("0=200 1=25", LAN), Settings()).gbps == 200
    assert judge_cables(at("0=10 1=200", PARTLY), Settings()).gbps == 10


@pytest.mark.parametrize("entry", [{"peer_netdev": "enP2p1s0f1np1"}, {"peer_mac": "4C:BB:47:00:00:01"}])
def test_the_far_cage_where_both_have_a_cable(entry: dict[str, Any]) -> None:
    """Nobody else knows it, and what this end says has to do."""
    nodes = {
        "spark1": spark(0, neighbors=Neighbors((heard(node="spark2", **entry),))),
        "spark2": spark(1, (0, 1), change={(1, "0000"): {"mac": "4c:bb:47:00:00:01"}}),
    }
    assert plan(nodes, Settings()).facts["spark1"].cables == (Cable(0, "lldp", "spark2", 1),)


def announced(**entry: Any) -> Any:
    """Two nodes with a cable from cage 0 to cage 0; on cage 0 of spark1 LLDP says that, too."""
    nodes = wired("spark1.0 spark2.0")
    for number, host in enumerate(nodes, 1):
        change = {(0, "0000"): {"mac": f"4c:bb:47:00:0{number}:00"}, (1, "0000"): {"mac": f"4c:bb:47:00:0{number}:01"}}
        addresses = [{"address": f"10.0.0.{number}"}, {"address": "172.17.0.1"}]
        management = {"name": "enP7s7", "mac": f"48:21:0b:95:0{number}:01", "addresses": addresses}
        nodes = of_node(nodes, host, cages=spark(number - 1, (0,), change=change).cages, interfaces=[management])
    return hears(nodes, "spark1", heard(**{"system": "spark", **entry}))


@pytest.mark.parametrize(
    ("entry", "topology"),
    [
        ({"peer_mac": "4c:bb:47:00:01:01"}, "direct"),  # our own other cage
        ({"peer_mac": "4C:BB:47:00:02:00"}, "direct"),  # the port at the other end
        ({"peer_mac": "48:21:0b:95:01:01", "ids": ("48:21:0b:95:01:01",)}, "direct"),  # our management port
        ({"peer_mac": "48:21:0b:95:02:01"}, "direct"),  # theirs
        ({"peer_mac": "4c:bb:47:00:02:01", "ids": ("4c:bb:47:00:02:01",)}, "direct"),  # their chassis, not their port
        ({"peer_mac": "", "system": "48:21:0b:95:02:01"}, "direct"),  # without a name the chassis is the name
        ({"peer_mac": "02:00:00:00:00:01", "ids": ("10.0.0.2",)}, "direct"),
        ({"peer_mac": "b8:69:f4:00:12:30", "ids": ("172.17.0.1",)}, "switch"),  # which all have says nothing
        ({"peer_mac": "b8:69:f4:00:12:30", "system": "spark1"}, "switch"),
        ({"peer_mac": "b8:69:f4:00:12:30", "system": "spark2"}, "switch"),
    ],
)
def test_what_a_machine_says_of_itself_is_no_switch(entry: dict[str, Any], topology: str) -> None:
    made = plan(announced(**entry), Settings())
    assert (made.topology, texts(made)) == (topology, "")
    assert made.facts["spark1"].cables[0].far_cage == (0 if topology == "direct" else None)


def test_a_link_that_only_the_probe_saw() -> None:
    """The probe brings interfaces up that were switched off."""
    off = {(0, domain): {"admin_up": False, "carrier": False} for domain in ("0000", "0002")}
    nodes = wired("spark1.0 spark2.0")
    for host, node in nodes.items():
        seen = dict.fromkeys(("enp1s0f0np0", "enP2p1s0f0np0"), Port(True, True))
        nodes[host] = replace(spark(node.rank, (), change=off), neighbors=replace(node.neighbors, interfaces=seen))
    made = plan(nodes, Settings())
    assert made.topology == "direct", texts(made)


# --- what is refused and what is said --------------------------------------------------------------------------------

RING = ["spark1.1 spark2.0", "spark2.1 spark3.0", "spark3.1 spark1.0"]


REFUSALS: list[tuple[str, Any, dict[str, Any]]] = [
    ("large ring", ring(4), {}),
    ("large ring, what to do", ring(5), {}),
    ("large ring, other ranks", wired("spark1.1 spark3.0", "spark3.1 spark2.0", "spark2.1 spark4.0",
     "spark4.1 spark1.0"), {"allow_large_ring": True}),
    ("switch and a cable", wired(*MIXED4), {}),
    ("all adjacent, no shape", wired("spark1.0 spark2.0 @a", "spark2.1 spark3.0", "spark1.1 spark3.1"), {}),
    ("ring of two", wired("spark1.0 spark2.0"), {"topology": "ring"}),
    ("switch of one", sparks(1), {"topology": "switch"}),
    ("switch is a ring", ring(3), {"topology": "switch"}),
    ("ring is a switch", wired(SWITCH3), {"topology": "ring"}),
    ("direct is a switch", wired("spark1.0 spark2.0 @sw1"), {"topology": "direct"}),
    ("open ring", wired(*CHAIN3), {"topology": "ring"}),
    ("open ring, auto", wired(*CHAIN3), {}),
    ("islands", wired("spark1.0 spark2.0", "spark3.0 spark4.0"), {}),
    ("two switches, none whole", wired("spark1.0 spark2.0 @a", "spark2.1 spark3.0 @b"), {}),
    ("loop", wired("spark1.0 spark1.1", "spark2.0 spark3.0"), {}),
    ("foreign", wired("spark1.0 !spark9", "spark2.0 spark3.0"), {}),
    ("alone on a switch", wired("spark1.0 @sw1", "spark2.0 spark3.0"), {}),
    ("dead end", {**wired("spark1.0 spark2.0"), "spark3": spark(2)}, {}),
    ("other end not to be used", {**wired("spark1.0 spark2.1"), "spark2": replace(
        wired("spark1.0 spark2.1")["spark2"], cages=spark(1, (0, 1)).cages, use_cages=(0,))}, {}),
    ("wrong cable", wired("spark1.1 spark3.0", "spark2.0 spark1.0"),
     {"cables": ["spark3.0 spark2.0", "spark1.0 switch"]}),
    ("cable to a switch", wired(SWITCH3), {"cables": ["spark1.0 spark2.0", "spark3.0 switch"]}),
    ("not declared", ring(3), {"cables": RING[:2]}),
    ("other switch", wired(SWITCH3), {"cables": [f"spark{n}.0 switch:core" for n in (1, 2, 3)]}),
    ("declared, silent switch", wired("spark1.0 spark2.0 spark3.0 @"), {"cables": RING}),
    ("declared, foreign", wired("spark1.0 !spark9", "spark1.1 spark2.0"), {"cables": ["spark1.0 spark2.1"]}),
    ("declared, no link", {**wired("spark1.0 spark2.0"), "spark3": spark(2, (0,))}, {"cables": ["spark3.1 spark1.0"]}),
    ("cable words", sparks(2), {"cables": ["spark1.0"]}),
    ("cable node", sparks(2), {"cables": ["spark1.0 spark7.0"]}),
    ("cable cage", sparks(2), {"cables": ["spark1 spark2.0"]}),
    ("cable cage number", sparks(2), {"cables": ["spark1.4 spark2.0"]}),
    ("cable twice", sparks(2), {"cables": ["spark1.0 spark2.0", "spark1.0 spark2.1"]}),
    ("switch to switch", sparks(2), {"cables": ["switch switch"]}),
    ("both cages, nothing heard", sparks(3, cabled=(0, 1)), {}),
    ("subnets run out", ring(3), {"subnets": ["192.168.100.0/24", "192.168.101.0/24", "10.1.0.0/24", "10.1.1.0/24"]}),
    ("subnets leave the private range", ring(3), {"subnets": ["192.168.252.0/24", "192.168.253.0/24"]}),
    ("subnets end", ring(3), {"subnets": ["255.255.252.0/24", "255.255.253.0/24"]}),
    ("subnets meet", ring(3), {"subnets": ["192.168.100.0/24", "192.168.102.0/24"]}),
    ("three subnets", ring(3), {"subnets": ["10.1.0.0/24", "10.1.1.0/24", "10.1.2.0/24"]}),
    ("sizes differ in a ring", ring(3), {"subnets": ["10.1.0.0/24", "10.2.0.0/25"]}),
    ("qos on a cable", wired("spark1.0 spark2.0"), {"qos": "roce"}),
    ("qos without RDMA", wired(SWITCH3), {"qos": "roce", "transport": "socket"}),
    ("qos", wired(SWITCH3), {"qos": "some"}),
    ("secret", wired(SWITCH3, environment={"HF_TOKEN": "x"}), {}),
    ("secret on one", sparks(1, environment={"MY_PASSWORD": "x"}), {}),
]  # fmt: skip


def test_a_controller_without_netaddr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "netaddr", None)
    assert "the Python of Ansible has no netaddr. Install it" in texts(plan(sparks(2), Settings()))
    assert not plan(sparks(1), Settings()).refused


WARNINGS: list[tuple[str, Any, dict[str, Any]]] = [
    ("a cable to none of these", wired("spark1.0 spark2.0", "spark1.1 !spark9"), {}),
    ("one more on the same switch", wired("spark1.0 spark2.0 !spark9 @"), {"topology": "switch"}),
    ("cages at different switches", wired("spark1.0 spark2.0 spark3.0 spark1.1 @", "spark1.1 @b", "spark1.0 @a"), {}),
    ("one hears the other, and not the other way round", {**wired("spark1.0 spark2.0"), "spark1": spark(
        0, neighbors=Neighbors((heard(node="spark2", peer_cage=0, both_ways=False),)))}, {}),
    ("sockets in a ring", ring(3), {"transport": "socket"}),
    ("nobody was heard over a declared cable", {
        **ring(3), "spark3": replace(ring(3)["spark3"], neighbors=Neighbors()), "spark1": replace(
            ring(3)["spark1"], neighbors=Neighbors(tuple(
                e for e in ring(3)["spark1"].neighbors.heard if e.node != "spark3")))},
     {"cables": RING}),
]  # fmt: skip


SAME_CAGES = ("spark1.0 spark3.0", "spark1.1 spark2.0", "spark2.1 spark3.1")


@pytest.mark.parametrize(
    ("nodes", "wanted", "cages"),
    [
        (wired(*SAME_CAGES), {}, ["spark1 cage 0: spark1.0-spark3.0: ", "spark2 cage 1: spark2.1-spark3.1: "]),
        (sparks(3, cabled=(0, 1)), {"cables": SAME_CAGES},
         ["spark1 cage 0: spark1.0-spark3.0: ", "spark2 cage 1: spark2.1-spark3.1: "]),
        (wired(*SAME_CAGES), {"transport": "socket"}, []),
        (ring(3), {}, []),
        (wired("spark1.0 spark2.0"), {}, []),
    ],
)  # fmt: skip
def test_a_ring_with_cages_of_one_number(nodes: Any, wanted: dict[str, Any], cages: list[str]) -> None:
    said = [finding for finding in plan(nodes, Settings(**wanted)).findings if "same number" in finding.found]
    assert [str(finding).partition("the cable")[0] for finding in said] == cages
    assert {finding.severity for finding in said} <= {"warning"}
    assert all("from cage 1 of each machine to cage 0 of the next" in finding.remedy for finding in said)


TWO_AND_TWO = ("spark1.0 spark2.0", "spark1.1 spark2.1")
SWITCH9 = " ".join(f"spark{n}.0" for n in range(1, 10))
SOME_SLOW = {(0, domain): {"speed_gbps": 100.0} for domain in ("0000", "0002")}
UNKNOWN = {(0, domain): {"speed_gbps": None} for domain in ("0000", "0002")}
OFF = {(0, domain): {"admin_up": False, "carrier": False, "speed_gbps": None} for domain in ("0000", "0002")}


def of_node(nodes: Any, host: str, **changes: Any) -> Any:
    return {**nodes, host: replace(nodes[host], **changes)}


def hears(nodes: Any, host: str, *entries: Heard) -> Any:
    """This node hears that beside what it hears by itself."""
    return of_node(nodes, host, neighbors=Neighbors((*nodes[host].neighbors.heard, *entries)))


# Neither a topology of its own nor a reason of its own; what they say is in the fixture.
MORE: list[tuple[str, Any, dict[str, Any]]] = [
    ("one of two cages is named", wired(*TWO_AND_TWO, use_cages=(1,)), {}),
    ("both cages are named on one node only", of_node(wired(*TWO_AND_TWO), "spark2", use_cages=(0, 1)), {}),
    ("one of two cables is slow at one end", of_node(
        wired(*TWO_AND_TWO), "spark2", cages=spark(1, (0, 1), change=SOME_SLOW).cages), {}),
    ("one of two cables has no known speed", of_node(
        wired(*TWO_AND_TWO, speed=100.0), "spark2", cages=spark(1, (0, 1), change=UNKNOWN).cages), {}),
    ("two crossed cables of full speed", wired("spark1.0 spark2.1", "spark1.1 spark2.0"), {"topology": "direct"}),
    ("switch, one node with its second cage only", wired("spark1.0 spark2.1 spark3.0 @sw1"), {}),
    ("switch, cages of two speeds", of_node(
        wired(BOTH3), "spark2", cages=spark(1, (0, 1), change=SOME_SLOW).cages), {}),
    ("switch, both cages named", wired(BOTH3, use_cages=(0, 1)), {}),
    ("two switches, both cages named", wired(
        SWITCH3, "spark1.1 spark2.1 spark3.1 @sw2", use_cages=(0, 1)), {}),
    ("two switches, crossed cages", wired(
        "spark1.0 spark2.1 spark3.0 @b", "spark1.1 spark2.0 spark3.1 @a", speed=100.0), {}),
    ("two switches, one with more", wired(
        "spark1.0 spark2.0 spark3.0 spark3.1 @b", "spark1.1 spark2.1 @a"), {}),
    ("nine nodes on a switch", wired(SWITCH9 + " @sw1"), {}),
    ("two large islands", wired(
        "spark1.0 spark2.0 spark3.0 spark4.0 @a", "spark5.0 spark6.0 spark7.0 spark8.0 spark9.0 @b"), {}),
    ("a chain of eight cables", wired(*(f"spark{n}.1 spark{n + 1}.0" for n in range(1, 9))), {}),
    ("a ring of seven that is not named", ring(7), {}),
    ("a ring of eight, and a switch is wanted", ring(8), {"topology": "switch"}),
    ("silent switches of two nodes", wired(*TWO_AND_TWO), {"topology": "switch"}),
    ("silent switch of two, slow", wired(*TWO_AND_TWO, speed=100.0), {"topology": "switch"}),
    ("star", sparks(2), {"topology": "star"}),
    ("single of three", sparks(3), {"topology": "single"}),
    ("direct of three", sparks(3), {"topology": "direct"}),
    ("it hears itself in its other half", hears(
        wired("spark1.0 spark2.0"), "spark1", heard(node="spark1", peer_cage=0)), {}),
    ("it hears a cage that does not exist", hears(
        wired("spark1.0 spark2.0"), "spark1", heard(node="spark2", peer_cage=7),
        heard(cage=5, node="spark2", peer_cage=0),
        heard("eth9", None, node="spark2"), heard()), {}),
    ("nobody else hears many of them", hears(
        wired(SWITCH9 + " @sw1"), "spark1", *(heard(node=f"spark{n}", peer_cage=0, both_ways=False)
        for n in range(2, 10))), {}),
    ("announced, then seen", hears(
        wired("spark1.0 spark2.0", source="lldp"), "spark2",
        heard(node="spark1", peer_cage=0, source="probe")), {}),
    ("two names of one switch", hears(
        wired(SWITCH3), "spark2", heard(system="core")), {}),
    ("two names of one switch at one port", hears(
        wired(SWITCH3), "spark2", *(heard(system=name) for name in ("sw0", "zz"))), {}),
    ("two switches that keep quiet", wired("spark1.0 spark2.0 spark3.0 @", "spark1.1 spark2.1 spark3.1 @"), {}),
    ("islands whose names are against their ranks", {
        host: replace(node, rank=3 - node.rank)
        for host, node in wired("spark1.0 spark2.0", "spark3.0 spark4.0").items()}, {}),
    ("many that are none of these", wired("spark1.0 !a !b !c !d !e !f !g !h", "spark1.1 spark2.0"), {}),
    ("seven that are none of these", wired("spark1.0 spark2.0 spark3.0 @sw1 !a !b !c !d !e !f !g"), {}),
    ("loop beside a cable", {
        **wired("spark1.0 spark1.1", "spark2.0 spark3.0")}, {"topology": "ring"}),
    ("an end that is not to be used", of_node(
        wired("spark1.0 spark2.0", "spark2.1 spark3.0", "spark3.1 spark1.1"), "spark1", use_cages=(1,)), {}),
    ("its other end is off", {
        **wired("spark1.0 spark2.0"), "spark2": replace(
            wired("spark1.0 spark2.0")["spark2"], cages=spark(1, (), change=OFF).cages)}, {}),
    ("declared, and one end has no link", {
        **sparks(2), "spark2": spark(1, ())}, {"cables": ["spark1.0 spark2.0"]}),
    ("declared, and one end is off", sparks(2, cabled=(), change=OFF), {"cables": ["spark1.0 spark2.0"]}),
    ("declared, and heard at one switch of two", wired(SWITCH3, "spark1.1 spark2.1 spark3.1 @sw2"),
     {"cables": [f"spark{n}.{cage} switch:sw{cage + 1}" for n in (1, 2, 3) for cage in (0, 1)]}),
    ("declared, and in the wrong of two switches", wired(
        "spark1.0 spark2.0 spark3.1 @sw1", "spark1.1 spark2.1 spark3.0 @sw2"),
     {"cables": [f"spark{n}.{cage} switch:sw{cage + 1}" for n in (1, 2, 3) for cage in (0, 1)]}),
    ("declared, two switches without a name", wired(BOTH3), {"cables": ["switch spark1.0", "spark2.0 switch:",
     "spark3.0 switch", "spark1.1 switch:b", "spark2.1 switch:b", "spark3.1 switch:b"]}),
    ("declared, and a node too many", wired("spark1.0 spark2.0"), {"cables": ["spark1.0 switch", "spark9.0 switch"]}),
    ("declared, three words, no cage, no node", sparks(2),
     {"cables": ["spark1.0 spark2.0 spark2.1", "switch switch:x", ".0 spark2.0", "spark1.x spark2.1"]}),
    ("declared ring, as heard", ring(3), {"cables": RING}),
    ("declared cables, crossed", wired("spark1.0 spark2.1", "spark1.1 spark2.0"), {"cables": list(TWO_AND_TWO)}),
    ("declared for silent ends of a heard pair", wired("spark1.0 spark2.0"), {"cables": list(TWO_AND_TWO)}),
    ("declared switch, two of three hear each other", {**wired("spark1.0 spark2.0"), "spark3": spark(2)},
     {"cables": [f"spark{n}.0 switch" for n in (1, 2, 3)]}),
    ("declared switch, its four ends are two pairs", wired("spark1.0 spark2.0", "spark3.0 spark4.0"),
     {"cables": [f"spark{n}.0 switch" for n in (1, 2, 3, 4)]}),
    ("declared switch, and one end leads to a stranger", {
        **wired("spark1.0 spark2.0", "spark3.0 !x")}, {"cables": [f"spark{n}.0 switch" for n in (1, 2, 3)]}),
    ("declared switch of two, a third is on it", wired("spark1.0 spark2.0", "spark1.1 spark3.0"),
     {"cables": ["spark1.0 switch", "spark3.0 switch", "spark2.0 spark1.1"]}),
    ("declared by name, and the switch keeps quiet", wired("spark1.0 spark2.0 spark3.0 @"),
     {"cables": [f"spark{n}.0 switch:core" for n in (1, 2, 3)]}),
    ("declared as switch2, and the switch has a name", wired(SWITCH3),
     {"cables": [f"spark{n}.0 switch:switch2" for n in (1, 2, 3)]}),
    ("declared, and the machine has no card", {**wired("spark1.0 spark2.0"), "spark3": spark(2, cages=())},
     {"cables": ["spark3.0 spark1.1", "spark1.0 spark2.0"]}),
    ("nothing heard, a ring is wanted", sparks(3, cabled=(0, 1)), {"topology": "ring"}),
    ("nothing heard, both cages on both", sparks(2, cabled=(0, 1)), {}),
    ("nothing heard, both cages on one of three", {
        **sparks(2), "spark3": spark(2, (0, 1))}, {"topology": "switch"}),
    ("nothing heard, both cages named", sparks(2, cabled=(0, 1), use_cages=(0, 1)), {}),
    ("nothing heard, one cage named of two", {**sparks(1), "spark2": spark(1, (0, 1), use_cages=(1,))}, {}),
    ("nothing heard, switch of eight", sparks(8), {}),
    ("nothing heard, no link", sparks(2, cabled=()), {}),
    ("nothing heard, no link at a switch", sparks(3, cabled=()), {}),
    ("own subnets for each cable", ring(3), {"subnets": [f"10.1.{n}.0/24" for n in range(6)]}),
    ("subnets that lie apart go on by themselves", ring(3), {"subnets": ["10.1.0.0/24", "10.2.0.0/24"]}),
    ("subnets in the other order", ring(3), {"subnets": ["10.1.1.0/24", "10.1.0.0/24"]}),
    ("subnets that the last number just fits", sparks(4), {"subnets": ["10.1.0.0/28", "10.1.1.0/28"],
     "host_offset": 11}),
    ("public subnets go on", ring(3), {"subnets": ["203.0.112.0/24", "203.0.113.0/24"]}),
    ("four subnets that overlap", ring(3), {"subnets": ["10.1.0.0/24", "10.2.0.0/24", "10.3.0.0/24", "10.2.0.0/25"]}),
    ("QoS on a ring", ring(3), {"qos": "roce"}),
    ("QoS on five cables", ring(5), {"qos": "roce", "allow_large_ring": True}),
    ("QoS that is forced", ring(3), {"qos": "roce", "qos_force": True}),
]  # fmt: skip


# What is printed of them is read as a whole.
WHOLE = ("one node", "pair, two cables", "ring of three", "switch, two cages", "declared switch")


def test_what_is_found_in_every_cabling() -> None:
    cases = [*(case[:3] for case in CABLINGS), *REFUSALS, *WARNINGS, *MORE]
    made = [(name, plan(nodes, Settings(**wanted))) for name, nodes, wanted in cases]
    for _name, one in made:
        assert one.refused != bool(one.facts) and all(finding.remedy for finding in one.findings)
        check(one)
    hold("cablings", ((name, of_plan(one, name if name in WHOLE else "")) for name, one in made))


# --- environment -----------------------------------------------------------------------------------------------------


def test_roce_sets_the_traffic_class() -> None:
    fact = plan(wired(SWITCH3), Settings(qos="roce")).facts["spark1"]
    assert (fact.qos, fact.environment["NCCL_IB_TC"]) == ("roce", "106")
    assert not plan(wired("spark1.0 spark2.0"), Settings(qos="roce", qos_force=True)).refused
    assert "NCCL_IB_TC" not in plan(wired(SWITCH3), Settings()).facts["spark1"].environment


def test_another_prefix_is_told_to_nccl() -> None:
    made = plan(ring(3), Settings(subnets=["10.1.0.0/28", "10.1.0.16/28"]))
    assert made.facts["spark1"].environment["NCCL_IB_SUBNET_PREFIX_LEN"] == "28"
    assert rails(made, "spark3")[0][2] == "10.1.0.44"
    check(made)


def test_mpi_gets_the_name_where_the_management_subnet_is_not_known() -> None:
    fact = plan(ring(3, interfaces=None), Settings()).facts["spark1"]
    assert fact.environment["OMPI_MCA_btl_tcp_if_include"] == "enP7s7"


@pytest.mark.parametrize(("extra", "expected"), [("10.9.0.1", "192.168.100.0/23"), ("192.168.101.77", None)])
def test_a_second_address_on_a_half_narrows_the_range(extra: str, expected: str | None) -> None:
    interfaces = [{"name": "enp1s0f0np0", "addresses": [{"address": extra, "prefix": 24}, {"address": "fe80::1"}]}]
    nodes = wired("spark1.0 spark2.0")
    nodes["spark1"] = replace(nodes["spark1"], interfaces=interfaces)
    made = plan(nodes, Settings())
    assert made.facts["spark1"].environment.get("NCCL_IB_ADDR_RANGE") == expected
    assert "NCCL_IB_ADDR_RANGE" not in made.facts["spark2"].environment
    assert not verify(made.facts, measured(made)).findings


def test_a_second_address_between_the_halves_is_refused() -> None:
    interfaces = [{"name": "enp1s0f0np0", "addresses": [{"address": "192.168.102.5", "prefix": 24}]}]
    nodes = wired("spark1.0 spark2.0", interfaces=interfaces)
    made = plan(nodes, Settings(subnets=["192.168.100.0/24", "192.168.103.0/24"]))
    assert "has 192.168.102.5 beside the fabric, which no range can tell from" in texts(made)


def test_the_gid_index_is_exported_only_when_asked_and_only_when_one_fits() -> None:
    made = plan(ring(3), Settings())
    found = measured(made)
    assert "NCCL_IB_GID_INDEX" not in verify(made.facts, found).facts["spark1"].environment
    verified = verify(made.facts, found, export_gid_index=True)
    assert verified.facts["spark1"].environment["NCCL_IB_GID_INDEX"] == "3"
    assert list(verified.facts["spark1"].environment) == sorted(verified.facts["spark1"].environment)
    assert verified.facts["spark1"].plan_hash == made.facts["spark1"].plan_hash
    gids = [replace(gid, index=5 + place) for place, gid in enumerate(found["spark2"].gids)]
    refused = verify(made.facts, {**found, "spark2": replace(found["spark2"], gids=gids)}, export_gid_index=True)
    assert [finding.host for finding in refused.findings] == ["spark2"]
    assert "no GID index fits all halves: 5 on rocep1s0f0, 6 on roceP2p1s0f0, 7 on rocep1s0f1" in texts(refused)
    lost = verify(made.facts, {**found, "spark2": replace(found["spark2"], gids=())}, export_gid_index=True)
    assert len(lost.findings) == 4


def test_a_broken_cable_of_a_ring_is_named() -> None:
    made = plan(ring(3), Settings())
    found = measured(made)
    probes = [replace(p, ok=p.peer != "spark3", reason="no answer", remedy="Check") for p in found["spark1"].probes]
    text = texts(verify(made.facts, {**found, "spark1": replace(found["spark1"], probes=probes)}))
    assert "spark1 rocep1s0f0 (enp1s0f0np0): no way to spark3 enp1s0f1np1 (192.168.102.10 to 192.168.102.12)" in text
    assert text.count("no way to") == 2


# --- addresses of the user's own -------------------------------------------------------------------------------------


def own_addresses(*addresses: dict[str, str]) -> Any:
    nodes = wired("spark1.0 spark2.0")
    return {host: replace(node, addresses=own) for (host, node), own in zip(nodes.items(), addresses)}


def test_addresses_of_the_users_own() -> None:
    made = plan(own_addresses({"enp1s0f0np0": "10.1.0.5/16", "1": "192.168.101.77"}, {"0": "10.1.9.6/16"}), Settings())
    assert not made.findings
    assert [(r.address, r.prefix) for r in made.facts["spark1"].rails] == [("10.1.0.5", 16), ("192.168.101.77", 24)]
    assert made.facts["spark1"].cluster_address == "10.1.0.5"
    check(made)


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ({"0": "10.1.0.5"}, {}, "spark2 enp1s0f0np0: 192.168.100.11 is in 192.168.100.0/24, and the other end, spark1"),
        ({"0": "192.168.100.11"}, {}, "its address 192.168.100.11 is also that of spark1 enp1s0f0np0"),
        ({"eth9": "10.1.0.5"}, {}, "fabric_addresses names 'eth9', and this node has the rails 0 (enp1s0f0np0), 1"),
        ({"0": "x"}, {}, "fabric_addresses: 'x' is no IPv4 address"),
        ({"0": "192.168.100.0"}, {}, "192.168.100.0/24 is no address of a machine"),
        ({"0": "1.2.3.4", "enp1s0f0np0": "1.2.3.5"}, {}, "fabric_addresses gives it 1.2.3.5 and 1.2.3.4"),
        ({"0": "192.168.101.5"}, {"0": "192.168.101.6"}, "overlaps 192.168.101.0/24 of spark1"),
    ],
)
def test_addresses_that_cannot_work(first: dict[str, str], second: dict[str, str], text: str) -> None:
    made = plan(own_addresses(first, second), Settings())
    assert made.refused
    assert text in texts(made)


# --- properties ------------------------------------------------------------------------------------------------------


@st.composite
def cablings(draw: st.DrawFn, most: int = 7) -> list[str]:
    """Any number of cables and switches, each cage used once."""
    ports = [f"spark{node + 1}.{cage}" for node in range(draw(st.integers(2, most))) for cage in (0, 1)]
    free = draw(st.permutations(ports))
    lines = []
    while free:
        size = draw(st.integers(1, min(4, len(free))))
        ends, free = free[:size], free[size:]
        lines.append(" ".join(ends) + (draw(st.sampled_from(["", " @", " @sw1"])) if size > 2 else ""))
    for port in ports:
        if port.endswith(".0") and not any(port[:-2] in line for line in lines):
            lines.append(port)
    return lines


@settings(max_examples=150, deadline=None)
@given(
    cablings(),
    st.sampled_from(["auto", "ring", "switch", "direct"]),
    st.booleans(),
    st.sampled_from([100.0, 200.0]),
)
def test_any_cabling_is_planned_whole_or_refused(lines: list[str], topology: str, large: bool, speed: float) -> None:
    nodes = wired(*lines, speed=speed)
    count = len(nodes)
    nodes = {f"spark{n + 1}": nodes.get(f"spark{n + 1}") or spark(n, ()) for n in range(count)}
    made = plan(nodes, Settings(topology=topology, allow_large_ring=large))
    check(made)
    if made.topology == "ring" and made.facts:
        around = [{rail.neighbor for rail in fact.rails} for fact in made.facts.values()]
        hosts = [*made.facts, *made.facts]
        assert all({hosts[n - 1], hosts[n + 1]} == near for n, near in enumerate(around))
    assert (
        plan(dict(reversed(list(nodes.items()))), Settings(topology=topology, allow_large_ring=large)).facts
        == made.facts
    )


def test_a_third_node_renumbers_no_cable() -> None:
    pair, three = (plan(nodes, Settings()) for nodes in (wired("spark1.1 spark2.0"), ring(3)))
    for host in ("spark1", "spark2"):
        assert set(rails(pair, host)) <= set(rails(three, host))


@given(st.integers(0, 40), st.integers(0, 40))
def test_every_pair_of_ranks_has_its_own_number(one: int, other: int) -> None:
    pairs = [(i, j) for j in range(12) for i in range(j)]
    assert sorted(edge_number(*pair) for pair in pairs) == list(range(len(pairs)))
    assert edge_number(one, other) == edge_number(other, one)


# --- the published schema --------------------------------------------------------------------------------------------

TYPES = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "int | None": {"type": ["integer", "null"]},
}


@pytest.mark.parametrize("part", [FabricFact, Rail, Cable])
def test_the_schema_says_what_the_loader_reads(part: Any) -> None:
    described = SCHEMA if part is FabricFact else SCHEMA["$defs"][part.__name__]
    assert described["additionalProperties"] is False
    names = {name: str(entry.type) for name, entry in part.__dataclass_fields__.items()}
    assert set(described["properties"]) == set(names) == set(described["required"])
    for name, kind in names.items():
        assert described["properties"][name].get("description"), name
        if kind in TYPES:
            assert described["properties"][name]["type"] == TYPES[kind]["type"], name
    for name, values in (
        ("state", fabric_fact.STATES),
        ("topology", fabric_fact.TOPOLOGIES),
        ("transport", fabric_fact.TRANSPORTS),
        ("qos", fabric_fact.QOS),
    ):
        assert SCHEMA["properties"][name]["enum"] == list(values)
    assert SCHEMA["$defs"]["Cable"]["properties"]["source"]["enum"] == list(fabric_fact.CABLE_SOURCES)
    assert SCHEMA["properties"]["schema"]["const"] == fabric_fact.SCHEMA_VERSION


@pytest.mark.parametrize(
    "change",
    [{"schema": 1}, {"state": "done"}, {"rails": None}, {"extra": 1}, {"nodes": "1"}, {"cables": [{"cage": 0}]}],
)
def test_what_the_loader_refuses_the_schema_refuses(change: dict[str, Any]) -> None:
    document = {**json.loads(dump(plan(ring(3), Settings()).facts["spark1"])), **change}
    assert not VALIDATOR.is_valid(document)
    with pytest.raises(fabric_fact.SparkError):
        load(document, "spark1")


def test_a_declaration_that_cannot_be_read_is_not_compared_with_what_is_heard() -> None:
    made = plan(wired("spark1.0 spark2.0"), Settings(cables=["spark1.0 spark2.7", "hello"]))
    assert [finding.found.split(":")[0] for finding in made.findings] == ["fabric_cables"] * 2
