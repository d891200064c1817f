# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The planner on every cabling, as the nodes hear it, as the user declares it, and as neither tells."""

from __future__ import annotations

import ipaddress
import json
import re
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
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.neighbors import Heard, Neighbors
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.ping import Probe
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.show_gids import Gid
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import addresses
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import verify as fabric_verify
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.plan import judge_cables, plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.topology import edge_number
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.types import Plan, Settings
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.verify import Measured, verify
from fabric_inputs import heard, linked, of_plan, ring, spark, sparks, wired
from hypothesis import given, settings
from hypothesis import strategies as st
from rules import hold
from sysfs_tree import gid_of

SCHEMA = json.loads((Path(__file__).parents[5] / "docs/fabric-fact.schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

SWITCH3 = "spark1.0 spark2.0 spark3.0 @sw1"


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
        for host, own_paths in fabric_verify.paths(made.facts).items():
            assert own_paths
            for path in own_paths:
                mine = next(rail for rail in made.facts[host].rails if rail.index == path.rail)
                assert ipaddress.IPv4Address(path.address) in network(mine)


# --- every cabling ---------------------------------------------------------------------------------------------------

TABLE = """
one node                                    quiet 1
pair, same cage                             1.0 2.0
pair, crossed cages                         1.0 2.1
pair, two cables                            1.0 2.0; 1.1 2.1
pair, two crossed cables                    1.0 2.1; 1.1 2.0
pair, two 100G cables                       1.0 2.1; 1.1 2.0; speed=100
pair on a switch                            1.0 2.1 @sw1
pair on a silent switch                     1.0 2.1; topology=switch
pair, both cages on a switch                1.0 2.0 1.1 2.1 @
ring of three                               RING3
ring of four                                RING4; large
switch                                      1.0 2.0 3.0 @sw1
switch, silent                              1.0 2.1 3.0 @
switch, two cages                           1.0 2.0 3.0 1.1 2.1 3.1 @
switch, 100G, two cages                     1.0 2.0 3.0 1.1 2.1 3.1 @; speed=100
switch, both cages named                    1.0 2.0 3.0 1.1 2.1 3.1 @; use=01
switch, some have two                       1.0 2.0 3.0 3.1 @
switch and an idle cable                    1.0 2.0 3.0 @sw1; 1.1 2.1
two switches                                1.0 2.0 3.0 @sw1; 1.1 2.1 3.1 @sw2
two switches, crossed cages                 1.0 2.1 3.0 @b; 1.1 2.0 3.1 @a; speed=100
two switches that keep quiet                1.0 2.0 3.0 @; 1.1 2.1 3.1 @
nine nodes on a switch                      1.0 2.0 3.0 4.0 5.0 6.0 7.0 8.0 9.0 @sw1
one of two cages is named                   1.0 2.0; 1.1 2.1; use=1
nothing heard: pair                         quiet 2
nothing heard: three                        quiet 3
nothing heard, both cages on both           quiet 2 both
nothing heard, both cages named             quiet 2 both; use=01
declared pair                               quiet 2 both; = 1.0 2.1; = 1.1 2.0
declared ring                               quiet 3 both; = 1.1 2.0; = 2.1 3.0; = 3.1 1.0
declared switch                             quiet 3; = 1.0 switch; = 2.0 switch; = switch 3.0
declared silent switch of two               1.0 2.0; = 1.0 switch:core; = 2.0 switch:core
declared as heard                           1.0 2.0 3.0 @sw1; = 1.0 switch; = 2.0 switch; = 3.0 switch
declared ring, as heard                     RING3; = 1.1 2.0; = 2.1 3.0; = 3.1 1.0
socket on a ring                            RING3; transport=socket
own subnets for each cable                  RING3; subnets=10.1.0,10.1.1,10.1.2,10.1.3,10.1.4,10.1.5
subnets that lie apart go on by themselves  RING3; subnets=10.1.0.0/24,10.2.0.0/24
QoS that is forced                          RING3; qos=roce; qos_force
a cable to none of these                    1.0 2.0; 1.1 !spark9
one more on the same switch                 1.0 2.0 !spark9 @; topology=switch
cages at different switches                 1.0 2.0 3.0 1.1 @; 1.1 @b; 1.0 @a
many that are none of these                 1.0 !a !b !c !d !e !f !g !h; 1.1 2.0
large ring                                  RING4
large ring, other ranks                     1.1 3.0; 3.1 2.0; 2.1 4.0; 4.1 1.0; large
switch and a cable                          1.0 2.0 3.0 @sw1; 3.1 4.0
ring of two                                 1.0 2.0; topology=ring
switch of one                               quiet 1; topology=switch
single of three                             quiet 3; topology=single
direct of three                             quiet 3; topology=direct
star                                        quiet 2; topology=star
switch is a ring                            RING3; topology=switch
ring is a switch                            1.0 2.0 3.0 @sw1; topology=ring
direct is a switch                          1.0 2.0 @sw1; topology=direct
open ring                                   1.0 2.0; 2.1 3.0; topology=ring
open ring, auto                             1.0 2.0; 2.1 3.0
islands                                     1.0 2.0; 3.0 4.0
two switches, none whole                    1.0 2.0 @a; 2.1 3.0 @b
loop                                        1.0 1.1; 2.0 3.0
foreign                                     1.0 !spark9; 2.0 3.0
alone on a switch                           1.0 @sw1; 2.0 3.0
wrong cable                                 1.1 3.0; 2.0 1.0; = 3.0 2.0; = 1.0 switch
cable to a switch                           1.0 2.0 3.0 @sw1; = 1.0 2.0; = 3.0 switch
not declared                                RING3; = 1.1 2.0; = 2.1 3.0
other switch                                1.0 2.0 3.0 @sw1; = 1.0 switch:core; = 2.0 switch:core; = 3.0 switch:core
declared, silent switch                     1.0 2.0 3.0 @; = 1.1 2.0; = 2.1 3.0; = 3.1 1.0
declared, foreign                           1.0 !spark9; 1.1 2.0; = 1.0 2.1
cable words                                 quiet 2; = 1.0
cable node                                  quiet 2; = 1.0 7.0
cable cage                                  quiet 2; = spark1 2.0
cable cage number                           quiet 2; = 1.4 2.0
cable twice                                 quiet 2; = 1.0 2.0; = 1.0 2.1
switch to switch                            quiet 2; = switch switch
both cages, nothing heard                   quiet 3 both
nothing heard, a ring is wanted             quiet 3 both; topology=ring
subnets leave the private range             RING3; subnets=192.168.252.0/24,192.168.253.0/24
subnets end                                 RING3; subnets=255.255.252.0/24,255.255.253.0/24
subnets meet                                RING3; subnets=192.168.100.0/24,192.168.102.0/24
three subnets                               RING3; subnets=10.1.0.0/24,10.1.1.0/24,10.1.2.0/24
sizes differ in a ring                      RING3; subnets=10.1.0.0/24,10.2.0.0/25
qos on a cable                              1.0 2.0; qos=roce
QoS on a ring                               RING3; qos=roce
qos without RDMA                            1.0 2.0 3.0 @sw1; qos=roce; transport=socket
qos                                         1.0 2.0 3.0 @sw1; qos=some
"""


def cabling(text: str) -> tuple[Any, dict[str, Any]]:
    """What a row says: "1.0 2.1 @sw1" is heard (see ``wired``), "= 1.0 2.1" is declared, of "quiet 2" nothing is heard
    of two nodes, and the rest are settings."""
    lines: list[str] = []
    wanted: dict[str, Any] = {}
    made: dict[str, Any] = {}
    nodes: Any = None
    for part in (re.sub(r"(?<!\S)(\d\.\d)", r"spark\1", one) for one in text.split("; ")):
        name, _sign, value = part.partition("=")
        if part.startswith("= "):
            wanted.setdefault("cables", []).append(part[2:])
        elif part.startswith(("quiet", "RING")):
            nodes = part
        elif part.startswith(("spark", "@")):
            lines.append(part)
        elif name == "use":
            made["use_cages"] = tuple(map(int, value))
        elif name == "speed":
            made["speed"] = float(value)
        else:
            wanted[{"large": "allow_large_ring"}.get(name, name)] = (
                [one if "/" in one else f"{one}.0/24" for one in value.split(",")]
                if name == "subnets"
                else value or True
            )
    if nodes is None:
        return wired(*lines, **made), wanted
    if nodes.startswith("RING"):
        return ring(int(nodes[4:])), wanted
    _quiet, count, *both = nodes.split()
    return sparks(int(count), cabled=(0, 1) if both else (0,), **made), wanted


CABLINGS = [(name.strip(), *cabling(text.strip())) for name, text in (
    line.split("  ", 1) for line in TABLE.strip().splitlines())]  # fmt: skip


def measured(made: Plan) -> dict[str, Measured]:
    return {
        host: Measured(
            gids=[Gid(r.rdma_device, 1, 3, gid_of(r.address), 2, r.netdev) for r in fact.rails],
            probes=[
                Probe(path.rail, path.peer, path.source, path.address, True)
                for path in fabric_verify.paths(made.facts)[host]
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
    assert len(fabric_verify.paths(made.facts)["spark1"]) == 4


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
        (at("0=200 1=25", LAN), "switch", "switch", "1", "spark1 cage 0: its link to spark2 cage 0 runs at 200 Gb/s"),
        (at("0=100 1=200", LAN), "auto", "switch", "1", ""),
        (at("0=100 1=200", LAN), "direct", "direct", "0", "spark1 cage 1: its link to switch lan runs at 200 Gb/s"),
        (at("0=200 1=200", LAN), "auto", "switch", "1", ""),
        # By the slowest end.
        (at("0=200 spark2.0=10 1=25", LAN), "auto", "switch", "1", ""),
        (at("0=200 spark2.0=100 1=200", ("spark1.0 spark2.0", "spark1.1 spark2.1")), "auto", "direct", "1", ""),
        # Of two switches the faster one; both where that is more.
        (at("0=200 spark3.0=40 1=100", TWO_SWITCHES), "auto", "switch", "1", ""),
        (at("0=100 1=100", TWO_SWITCHES), "auto", "switch", "01", ""),
        # What joins some of them is no choice for all.
        (at("0=10 1=200", PARTLY), "auto", "switch", "0", "spark1 cage 1: its link to spark2 cage 1 runs at 200 Gb/s"),
        # A speed that is not known wins over none that is, and one that it had before the link went is not known.
        (at("0=none 1=200", LAN), "auto", "switch", "1", ""),
        (at("0=-1 1=100", LAN), "auto", "switch", "1", "spark1 cage 0: its link to spark2 cage 0 does not tell its"),
        (at("0=200 1=down", LAN), "auto", "direct", "0", ""),
        (at("0=none 1=none", LAN), "direct", "direct", "0", ""),
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


def announced(**entry: Any) -> Any:
    """Two nodes with a cable from cage 0 to cage 0; on cage 0 of spark1 LLDP says that, too."""
    nodes = wired("spark1.0 spark2.0")
    for number, host in enumerate(nodes, 1):
        change = {(0, "0000"): {"mac": f"4c:bb:47:00:0{number}:00"}, (1, "0000"): {"mac": f"4c:bb:47:00:0{number}:01"}}
        addresses = [{"address": f"10.0.0.{number}"}, {"address": "172.17.0.1"}]
        management = {"name": "enP7s7", "mac": f"48:21:0b:95:0{number}:01", "addresses": addresses}
        nodes = of_node(nodes, host, cages=spark(number - 1, (0,), change=change).cages, **linked([management], None))
    return hears(nodes, "spark1", heard(**{"system": "spark", **entry}))


@pytest.mark.parametrize(
    ("entry", "topology"),
    [
        ({"ids": ("4c:bb:47:00:01:01",)}, "direct"),  # our own other cage
        ({"ids": ("4C:BB:47:00:02:00",)}, "direct"),  # the port at the other end
        ({"ids": ("48:21:0b:95:02:01",)}, "direct"),  # their management port
        ({"system": "48:21:0b:95:02:01"}, "direct"),  # without a name the chassis is the name
        ({"ids": ("02:00:00:00:00:01", "10.0.0.2")}, "direct"),
        ({"ids": ("b8:69:f4:00:12:30", "172.17.0.1")}, "switch"),  # which all have says nothing
        ({"ids": ("b8:69:f4:00:12:30",), "system": "spark2"}, "switch"),
    ],
)
def test_what_a_machine_says_of_itself_is_no_switch(entry: dict[str, Any], topology: str) -> None:
    made = plan(announced(**entry), Settings())
    assert (made.topology, texts(made)) == (topology, "")
    assert made.facts["spark1"].cables[0].far_cage == (0 if topology == "direct" else None)


# --- what is refused and what is said --------------------------------------------------------------------------------


def test_a_controller_without_netaddr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "netaddr", None)
    assert "the Python of Ansible has no netaddr. Install it" in texts(plan(sparks(2), Settings()))
    assert not plan(sparks(1), Settings()).refused


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


SLOW, UNKNOWN, OFF = (
    {(0, domain): change for domain in ("0000", "0002")}
    for change in (
        {"speed_gbps": 100.0},
        {"speed_gbps": None},
        {"admin_up": False, "carrier": False, "speed_gbps": None},
    )
)
PAIR, TWO = wired("spark1.0 spark2.0"), wired("spark1.0 spark2.0", "spark1.1 spark2.1")


def of_node(nodes: Any, host: str, **changes: Any) -> Any:
    return {**nodes, host: replace(nodes[host], **changes)}


def hears(nodes: Any, host: str, *entries: Heard) -> Any:
    """This node hears that beside what it hears by itself."""
    return of_node(nodes, host, neighbors=Neighbors((*nodes[host].neighbors.heard, *entries)))


# What no row of the table can say.
MORE: list[tuple[str, Any, dict[str, Any]]] = [
    ("secret on one", sparks(1, environment={"MY_PASSWORD": "x"}), {}),
    ("dead end", {**PAIR, "spark3": spark(2)}, {}),
    ("other end not to be used", of_node(wired("spark1.0 spark2.1"), "spark2", cages=spark(1, (0, 1)).cages,
     use_cages=(0,)), {}),
    ("an end that is not to be used", of_node(
        wired("spark1.0 spark2.0", "spark2.1 spark3.0", "spark3.1 spark1.1"), "spark1", use_cages=(1,)), {}),
    ("one hears the other, and not the other way round", {**PAIR, "spark1": spark(
        0, neighbors=Neighbors((heard(source="probe", node="spark2", peer_cage=0, both_ways=False),)))}, {}),
    ("nobody else hears many of them", hears(
        wired(" ".join(f"spark{n}.0" for n in range(1, 10)) + " @sw1"), "spark1", *(
            heard(source="probe", node=f"spark{n}", peer_cage=0, both_ways=False) for n in range(2, 10))), {}),
    ("both cages are named on one node only", of_node(TWO, "spark2", use_cages=(0, 1)), {}),
    ("one of two cables is slow at one end", of_node(TWO, "spark2", cages=spark(1, (0, 1), change=SLOW).cages), {}),
    ("one of two cables has no known speed", of_node(wired(
        "spark1.0 spark2.0", "spark1.1 spark2.1", speed=100.0), "spark2",
        cages=spark(1, (0, 1), change=UNKNOWN).cages), {}),
    ("it hears itself in its other half", hears(PAIR, "spark1", heard(source="probe", node="spark1", peer_cage=0)), {}),
    ("it hears a cage that does not exist", hears(PAIR, "spark1", heard(source="probe", node="spark2",
     peer_cage=7), heard(cage=5, source="probe", node="spark2", peer_cage=0), heard("eth9", None, system="x"), heard()),
     {}),
    ("two names of one switch", hears(wired(SWITCH3), "spark2", heard(system="core")), {}),
    ("its other end is off", of_node(PAIR, "spark2", cages=spark(1, (), change=OFF).cages), {}),
    ("declared, no link", {**PAIR, "spark3": spark(2, (0,))}, {"cables": ["spark3.1 spark1.0"]}),
    ("declared, and one end has no link", {**sparks(2), "spark2": spark(1, ())}, {"cables": ["spark1.0 spark2.0"]}),
    ("declared, and one end is off", sparks(2, cabled=(), change=OFF), {"cables": ["spark1.0 spark2.0"]}),
    ("declared switch, two of three hear each other", {**PAIR, "spark3": spark(2)},
     {"cables": [f"spark{n}.0 switch" for n in (1, 2, 3)]}),
    ("declared, and the machine has no card", {**PAIR, "spark3": spark(2, cages=())},
     {"cables": ["spark3.0 spark1.1", "spark1.0 spark2.0"]}),
    ("nobody was heard over a declared cable", {
        **ring(3), "spark3": replace(ring(3)["spark3"], neighbors=Neighbors()), "spark1": replace(
            ring(3)["spark1"], neighbors=Neighbors(tuple(
                e for e in ring(3)["spark1"].neighbors.heard if e.node != "spark3")))},
     {"cables": ["spark1.1 spark2.0", "spark2.1 spark3.0", "spark3.1 spark1.0"]}),
    ("nothing heard, both cages on one of three", {**sparks(2), "spark3": spark(2, (0, 1))}, {"topology": "switch"}),
    ("nothing heard, one cage named of two", {**sparks(1), "spark2": spark(1, (0, 1), use_cages=(1,))}, {}),
    ("nothing heard, no link", sparks(2, cabled=()), {}),
]  # fmt: skip


# What is printed of them is read as a whole.
WHOLE = ("one node", "pair, two cables", "ring of three", "switch, two cages", "declared switch")


def test_what_is_found_in_every_cabling() -> None:
    made = [(name, plan(nodes, Settings(**wanted))) for name, nodes, wanted in (*CABLINGS, *MORE)]
    for _name, one in made:
        assert one.refused != bool(one.facts) and all(finding.remedy for finding in one.findings)
        check(one)
        verified = verify(one.facts, measured(one))
        assert not verified.findings
        for host, fact in verified.facts.items():
            VALIDATOR.validate(json.loads(dump(fact)))
            assert fact.plan_hash == one.facts[host].plan_hash
    hold("cablings", ((name, of_plan(one, name if name in WHOLE else "")) for name, one in made))


# --- environment -----------------------------------------------------------------------------------------------------


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
    nodes["spark1"] = replace(nodes["spark1"], **linked(interfaces, None))
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


# --- addresses of the user's own -------------------------------------------------------------------------------------


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
