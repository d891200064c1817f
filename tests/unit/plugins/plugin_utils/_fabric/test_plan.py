# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import ipaddress
import json
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.network import Network
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.arp import Holder
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import dump, load
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.ibdev2netdev import Rdma
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.neighbors import Neighbors, Port
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.ping import Path, Probe
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.show_gids import Gid
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import plan as fabric_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import types as fabric_types
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import verify as fabric_verify
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.plan import plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.types import Settings
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.verify import Measured, verify
from fabric_inputs import linked, of_plan, ring, spark, spark_ports, sparks, wired
from hypothesis import given, settings
from hypothesis import strategies as st
from rules import hold
from sysfs_tree import gid_of, link_local_gid

MAC = "4c:bb:47:2e:10:4f"


def texts(made: Any) -> str:
    return "\n".join(str(finding) for finding in made.findings)


# --- what is planned -------------------------------------------------------------------------------------------------


def test_four_sparks_on_a_switch() -> None:
    made = plan(sparks(4), Settings(topology="switch"))
    assert not made.findings and not made.refused
    assert list(made.facts) == ["spark1", "spark2", "spark3", "spark4"]
    third = made.facts["spark3"]
    assert (third.state, third.topology, third.transport, third.rank, third.nodes) == (
        "planned",
        "switch",
        "rdma",
        2,
        4,
    )
    assert third.management_address == "10.0.0.3"
    assert (third.cluster_address, third.cluster_interface) == ("192.168.100.12", "enp1s0f0np0")
    first, second = third.rails
    assert (first.index, first.cage, first.pcie_path, first.netdev, first.rdma_device) == (
        0,
        0,
        "0000",
        "enp1s0f0np0",
        "rocep1s0f0",
    )
    assert (first.address, first.prefix, first.mtu, first.link_gbps) == ("192.168.100.12", 24, 9000, 200.0)
    assert (first.segment, first.neighbor, first.gid_index, first.gid) == ("rail0", "", None, "")
    assert (second.pcie_path, second.netdev, second.address) == ("0002", "enP2p1s0f0np0", "192.168.101.12")
    assert third.environment == {
        "GLOO_SOCKET_IFNAME": "enp1s0f0np0",
        "NCCL_DEBUG": "WARN",
        "NCCL_IB_HCA": "=rocep1s0f0,roceP2p1s0f0",
        "NCCL_NET": "IB",
        "NCCL_NET_PLUGIN": "none",
        "NCCL_SOCKET_IFNAME": "=enP7s7",
        "OMPI_MCA_btl_tcp_if_include": "192.168.100.0/24",
        "OMPI_MCA_oob_tcp_if_include": "192.168.100.0/24",
        "TP_SOCKET_IFNAME": "enp1s0f0np0",
        "UCX_NET_DEVICES": "rocep1s0f0:1,roceP2p1s0f0:1",
        "VLLM_HOST_IP": "192.168.100.12",
    }


def test_the_socket_transport_has_its_own_environment() -> None:
    change = {(0, "0000"): {"rdma_state": "DOWN"}}
    made = plan(sparks(2, change=change), Settings(transport="socket"))
    environment = made.facts["spark1"].environment
    assert made.facts["spark1"].transport == "socket"
    assert environment["NCCL_IB_DISABLE"] == "1"
    assert environment["NCCL_SOCKET_IFNAME"] == "=enp1s0f0np0"
    assert environment["UCX_NET_DEVICES"] == "enp1s0f0np0"
    assert "NCCL_IB_HCA" not in environment


def test_one_node_needs_no_cable() -> None:
    made = plan({"spark1": spark(0, ())}, Settings())
    fact = made.facts["spark1"]
    assert (made.topology, fact.topology, fact.rails) == ("single", "single", ())
    assert (fact.cluster_address, fact.cluster_interface) == ("10.0.0.1", "enP7s7")
    assert fact.environment["VLLM_HOST_IP"] == "10.0.0.1"
    assert "NCCL_IB_HCA" not in fact.environment
    assert made.summary == ["spark1: single node, no fabric to configure; 10.0.0.1 is its address"]


def test_the_users_environment_is_last() -> None:
    wanted = {"NCCL_DEBUG": "INFO", "NCCL_NET_PLUGIN": None, "NCCL_IB_MERGE_NICS": 0, "NCCL_IB_PCI_X": True}
    environment = plan(sparks(2, environment=wanted), Settings()).facts["spark1"].environment
    assert environment["NCCL_DEBUG"] == "INFO"
    assert "NCCL_NET_PLUGIN" not in environment
    assert (environment["NCCL_IB_MERGE_NICS"], environment["NCCL_IB_PCI_X"]) == ("0", "1")


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        (
            "NCCL_IB_HCA",
            ["rocep1s0f1", "=rocep1s0f0,rocep1s0f1:1", "=rocep1s0", "^mlx5_0", ""],
            "rocep1s0f0,roceP2p1s0",
        ),
        ("NCCL_SOCKET_IFNAME", ["enp1s0f1np1"], "enp1s0f0"),
        ("GLOO_SOCKET_IFNAME", ["wlP9s9"], "enP7s7"),
        ("TP_SOCKET_IFNAME", ["en"], "enP7s7"),
        ("UCX_NET_DEVICES", ["mlx5_0:1"], "enp1s0f0np0"),
        ("OMPI_MCA_btl_tcp_if_include", ["10.9.0.0/24"], "192.168.101.0/24"),
        ("VLLM_HOST_IP", ["192.168.100.77"], "192.168.100.10"),
        ("NCCL_IB_GID_INDEX", [3], None),
        ("NCCL_IB_DISABLE", [True], 0),
        ("NCCL_NET", ["Socket"], None),
    ],
)
def test_names_of_other_hardware_are_refused(name: str, wrong: list[Any], right: Any) -> None:
    for value in wrong:
        made = plan(sparks(2, environment={name: value}), Settings())
        assert made.refused and f"fabric_environment: {name} is " in texts(made)
    nodes = sparks(2)
    nodes["spark1"] = replace(nodes["spark1"], environment={name: right})
    made = plan(nodes, Settings())
    assert not made.refused, texts(made)
    assert made.facts["spark1"].environment.get(name) == (None if right is None else str(right))


def test_the_other_end_of_such_a_half_has_no_link_either() -> None:
    off = {(0, "0002"): {"admin_up": False, "carrier": False, "rdma_state": "DOWN", "speed_gbps": None}}
    nodes = {"a": spark(0, change=off), "b": spark(1, change={(0, "0002"): DOWN})}
    assert not plan(nodes, Settings(topology="direct")).findings
    assert plan(nodes, Settings(topology="switch")).refused


# --- what is refused -------------------------------------------------------------------------------------------------

DOWN = {"carrier": False, "rdma_state": "DOWN", "speed_gbps": None}
BOND = {"netdev": "bond0"}

REFUSALS = [
    ("transport", sparks(2), {"transport": "tcp"}),
    ("mtu", sparks(2), {"mtu": 10000}),
    ("no subnet", sparks(2), {"subnets": ["192.168.100.0/24", "x"]}),
    ("host bits", sparks(2), {"subnets": ["192.168.100.1/24", "10.1.0.0/24"]}),
    ("overlap", sparks(2), {"subnets": ["10.1.0.0/16", "10.1.1.0/24"]}),
    ("half gone", sparks(2, change={(0, "0002"): None}), {}),
    ("no netdev", sparks(2, change={(0, "0002"): {"netdev": None}}), {}),
    ("half dark", sparks(2, change={(0, "0002"): {"cabled": False}}), {}),
    ("rdma down", sparks(2, change={(0, "0002"): {"rdma_state": "DOWN"}}), {}),
    ("some have two", {"a": spark(0), "b": spark(1, (0, 1))}, {}),
    ("admin down", sparks(2, cabled=(), change={(c, d): {"admin_up": False} for c in (0, 1) for d in ("0000", "0002")}),
     {}),
    ("one of two cages", sparks(2, use_cages=(0, 1)), {}),
    ("rank", {"a": spark(0), "b": spark(0)}, {}),
    ("no head", {"a": spark(1), "b": spark(5)}, {}),
]  # fmt: skip


def with_address(interface: str, address: str, prefix: int) -> list[dict[str, Any]]:
    return [{"name": interface, "addresses": [{"address": address, "prefix": prefix}]}]


OVERLAPS = [
    ("Docker in the fabric's subnet", with_address("docker0", "192.168.100.1", 24), ()),
    ("the management's subnet holds a fabric's", with_address("enP7s7", "192.168.7.1", 16), ()),
    ("an address on the other cage", with_address("enp1s0f1np1", "192.168.100.77", 24), ()),
    ("a route through a gateway", None, [{"dst": "192.168.101.128/25", "dev": "tun0", "gateway": "10.8.0.1"}]),
    ("a black hole", None, [{"dst": "192.168.100.0/24", "dev": None, "type": "blackhole"}]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("interfaces", "routes"),
    [
        (with_address("enp1s0f0np0", "192.168.100.10", 24), [{"dst": "192.168.100.0/24", "dev": "enp1s0f0np0"}]),
        (with_address("enp1s0f0np0", "192.168.100.99", 24), ()),
        (with_address("enp1s0f1np1", "192.168.100.10", 24), [{"dst": "192.168.100.0/24", "dev": "enp1s0f1np1"}]),
        (with_address("enP7s7", "fe80::1", 64), [{"dst": "fe80::/64", "dev": "enP7s7"}]),
        (None, None),
    ],
)
def test_our_own_addresses_are_no_overlap(interfaces: Any, routes: Any) -> None:
    """On a rail, or on the other cage from before the cable was moved."""
    made = plan({"a": spark(0, interfaces=interfaces, routes=routes), "b": spark(1)}, Settings())
    assert not made.findings, texts(made)


def own(*addresses: dict[str, str], interfaces: Any = None, nodes: Any = None) -> Any:
    """A pair with ``fabric_addresses``."""
    pair = nodes or wired("spark1.0 spark2.0")
    changes = {"interfaces": linked(interfaces, None)["interfaces"]} if interfaces else {}
    return {h: replace(node, addresses=given, **changes) for (h, node), given in zip(pair.items(), addresses)}


def half(host: str, **changes: Any) -> Any:
    """A pair with a strange half at this node."""
    nodes = {"a": spark(0), "b": spark(1)}
    return {**nodes, host: spark(nodes[host].rank, change={(0, "0002"): changes})}


SHUT = {(cage, d): {"admin_up": False, "carrier": False} for cage in (0, 1) for d in ("0000", "0002")}
UP = Neighbors(interfaces={"enp1s0f0np0": Port(True)})
TUN = {"dst": "192.168.100.0/23", "dev": "tun0"}

# Neither a reason of its own nor none; what they say is in the fixture.
MORE: list[tuple[str, Any, dict[str, Any]]] = [
    ("three on a switch", sparks(3), {}),
    ("in another order than the ranks", {"c": spark(2), "b": spark(1), "a": spark(0)}, {}),
    ("two negative ranks", {"a": spark(-2), "b": spark(-2)}, {}),
    *((f"MTU {mtu}", sparks(2), {"mtu": mtu}) for mtu in
      (1279, 1280, 4191, 4192, 9978, 9979)),
    ("sockets", sparks(2), {"transport": "socket"}),
    ("sockets, RDMA is down", half("b", rdma_state="DOWN"), {"transport": "socket"}),
    ("RDMA says no state", half("b", rdma_state=None), {}),
    ("second half in InfiniBand mode", half("b", link_layer="InfiniBand"), {}),
    ("second half has the management address", {
        "a": spark(0), "b": spark(1, management_interface="enP2p1s0f0np0")}, {}),
    ("second half without a link at a switch", half("b", carrier=False, rdma_state="DOWN"), {"topology": "switch"}),
    ("second half is off at a switch", half("b", admin_up=False, carrier=False), {"topology": "switch"}),
    ("a half has gone from each cage", {"a": spark(0), "b": spark(1, change={(c, "0002"): None for c in (0, 1)})}, {}),
    ("a bond of both halves", {"a": spark(0), "b": spark(1, change={(0, d): BOND for d in ("0000", "0002")})}, {}),
    ("all is switched off", {"a": spark(0), "b": spark(1, (), change=SHUT)}, {}),
    ("all is switched off, the probe saw a link", {
        "a": spark(0), "b": spark(1, (), change=SHUT, neighbors=UP)}, {}),
    ("both cages are named, one is dark", {"a": spark(0), "b": spark(1, (1,), use_cages=(0, 1))}, {}),
    ("the other cage is named", {"a": spark(0), "b": spark(1, (0,), use_cages=(1,))}, {}),
    ("no cage is named", {"a": spark(0), "b": spark(1, use_cages=())}, {}),
    ("a word for cages", {"a": spark(0), "b": spark(1, use_cages="all")}, {}),
    ("no card, and why", {"a": spark(0), "b": spark(1, cages=(), absence="The driver mlx5_core is not loaded")}, {}),
    ("three faults on two nodes", {
        "a": spark(0, change={(0, "0002"): {"link_layer": "InfiniBand"}}), "b": spark(1, ()), "c": spark(2, cages=())},
     {"topology": "switch"}),
    ("host number 0", sparks(2), {"host_offset": 0}),
    ("the last host number", sparks(2), {"host_offset": 253}),
    ("the number of the broadcast", sparks(2), {"host_offset": 254}),
    ("a subnet that is too small and one that is not", sparks(4),
     {"subnets": ["10.1.0.0/28", "10.1.1.0/24"], "host_offset": 12}),
    ("one subnet", sparks(2), {"subnets": ["10.1.0.0/24"]}),
    ("own addresses, by interface and number", own({"enp1s0f0np0": "10.1.0.5/16", "1": "192.168.101.77"},
     {"0": "10.1.9.6/16"}), {}),
    ("own address twice, two", own({"0": "192.168.100.5", "enp1s0f0np0": "192.168.100.6"}, {}), {}),
    ("own address of another subnet", own({"0": "10.1.0.5"}, {}), {}),
    ("own address of the other node", own({"0": "192.168.100.11"}, {}), {}),
    ("own address for nothing", own({"eth9": "10.1.0.5", "7": "10.1.0.6"}, {}), {}),
    ("own address is none", own({"0": "192.168.100.x"}, {}), {}),
    ("own address is that of the broadcast", own({"0": "192.168.100.255"}, {}), {}),
    ("own address is a group's", own({"0": "224.0.0.5"}, {"0": "224.0.0.6"}), {}),
    ("own addresses in the subnet of the other half", own({"0": "192.168.101.5"}, {"0": "192.168.101.6"}), {}),
    ("own address in use beside", own({"0": "10.1.0.5"}, {"0": "10.1.0.6"}, interfaces=with_address(
        "docker0", "10.1.0.1", 16)), {}),
    ("routes beside", {"a": spark(0, routes=[
        TUN, {"dst": "192.168.100.0/24", "type": "unreachable"}, {"dst": "192.168.101.7", "dev": "tun1"},
        {"dst": "192.168.101.0/25", "dev": "tun1", "gateway": "10.8.0.1"}, {"dst": "0.0.0.0/0", "dev": "tun2"},
        {"dst": "default", "dev": "tun3"}, {"dst": "192.168.100.0/24", "dev": "enp1s0f0np0"}]),
        "b": spark(1)}, {}),
    ("the route of an address that is reported", {"a": spark(0, interfaces=with_address("br0", "192.168.100.3", 25),
     routes=[{"dst": "192.168.100.0/25", "dev": "br0"}, {"dst": "192.168.100.128/25", "dev": "br0"}]),
     "b": spark(1)}, {}),
    ("the address of before the cable was moved", {"a": spark(0, interfaces=[
        *with_address("enp1s0f1np1", "192.168.100.10", 24), *with_address("enP2p1s0f1np1", "192.168.101.9", 24)]),
        "b": spark(1)}, {}),
]  # fmt: skip


def test_what_is_found_of_every_machine() -> None:
    overlaps = [
        (name, {"a": spark(0, interfaces=there, routes=routes or None), "b": spark(1)}, {})
        for name, there, routes in OVERLAPS
    ]
    made = [(name, plan(nodes, Settings(**wanted))) for name, nodes, wanted in (*REFUSALS, *overlaps, *MORE)]
    for _name, one in made:
        assert one.refused != bool(one.facts) and all(finding.remedy for finding in one.findings)
    hold("machines", ((name, of_plan(one)) for name, one in made))


# --- properties ------------------------------------------------------------------------------------------------------

fabrics = st.integers(2, 10).flatmap(
    lambda count: st.tuples(
        st.permutations(range(count)), st.lists(st.sampled_from([(0,), (1,)]), min_size=count, max_size=count)
    )
)


@settings(max_examples=40)
@given(fabrics)
def test_any_ranks_and_cages(fabric: tuple[list[int], list[tuple[int, ...]]]) -> None:
    ranks, cables = fabric
    nodes = {f"n{i}": spark(rank, cage) for i, (rank, cage) in enumerate(zip(ranks, cables))}
    made = plan(nodes, Settings(topology="switch"))
    assert not made.findings
    addresses = [rail.address for fact in made.facts.values() for rail in fact.rails]
    assert len(set(addresses)) == len(addresses) == 2 * len(nodes)
    for host, fact in made.facts.items():
        cage = cables[int(host[1:])][0]
        for rail in fact.rails:
            network = ipaddress.IPv4Network(Settings.subnets[rail.index])
            assert ipaddress.IPv4Address(rail.address) in network
            assert int(ipaddress.IPv4Address(rail.address)) - int(network.network_address) == 10 + fact.rank
            assert rail.netdev.endswith(f"f{cage}np{cage}") and rail.rdma_device.endswith(f"f{cage}")
        assert fact.environment["NCCL_IB_HCA"] == "=" + ",".join(rail.rdma_device for rail in fact.rails)
        assert load(json.loads(dump(fact)), host) == fact


@settings(max_examples=40)
@given(fabrics, st.integers(0, 9))
def test_removing_a_node_renumbers_no_other(fabric: tuple[list[int], list[tuple[int, ...]]], gone: int) -> None:
    """Also one from the middle: ranks are sticky and may have gaps. Only the head cannot go."""
    ranks, cables = fabric
    nodes = {f"n{i}": spark(rank, cage) for i, (rank, cage) in enumerate(zip(ranks, cables))}
    before = plan(nodes, Settings(topology="switch")).facts
    removed = 1 + gone % (len(nodes) - 1)
    rest = {host: node for host, node in nodes.items() if node.rank != removed}
    after = plan(rest, Settings(topology="switch" if len(rest) > 1 else "auto")).facts
    assert len(after) == len(nodes) - 1
    for host, fact in after.items():
        assert [rail.address for rail in fact.rails] == [rail.address for rail in before[host].rails][: len(fact.rails)]
        assert load(json.loads(dump(fact)), host) == fact


# --- input of the role -----------------------------------------------------------------------------------------------


def raw(**changes: Any) -> dict[str, Any]:
    network = {
        "connection_address": "10.0.0.7",
        "connection_interface": "enP7s7",
        "interfaces": [{"name": "enP7s7", "addresses": [{"address": "10.0.0.7"}, {"address": "fe80::7"}]}],
        "routes": [],
        **changes.pop("network", {}),
    }
    return {
        "rank": 1,
        "network": document.load_known(Network, network),
        "rdma": Rdma(tuple(spark_ports())),
        "cages": "auto",
        **changes,
    }


def test_the_management_address_is_chosen_or_a_finding() -> None:
    findings: list[Any] = []
    node = fabric_types.node_input("a", raw(), findings)
    assert (node.management_address, node.management_interface, findings) == ("10.0.0.7", "enP7s7", [])
    assert (node.rank, len(node.cages), node.use_cages) == (1, 2, "auto")
    fabric_types.node_input("a", {"rank": 0}, findings)
    assert "Set fabric_management_address for this host" in str(findings[0])


def test_named_cages_become_numbers() -> None:
    assert fabric_types.node_input("a", raw(cages=["1"]), []).use_cages == (1,)
    for wrong in (0, None, True, ["left"], [None]):
        assert fabric_types.node_input("a", raw(cages=wrong), []).use_cages == str(wrong)


# --- peers, names ----------------------------------------------------------------------------------------------------


def peers(count: int) -> dict[str, set[str]]:
    facts = plan(sparks(count), Settings()).facts
    return {host: {path.peer for path in own} for host, own in fabric_verify.paths(facts).items()}


def test_up_to_eight_nodes_everybody_pings_everybody_beyond_that_neighbours_and_head() -> None:
    found = peers(8)
    assert all(chosen == set(found) - {host} for host, chosen in found.items())
    found = peers(12)
    assert found["spark5"] == {"spark1", "spark4", "spark6"}
    assert found["spark1"] == {"spark2", "spark12"}
    assert all(host in found[peer] or peer == "spark1" for host, chosen in found.items() for peer in chosen)


# --- verify ----------------------------------------------------------------------------------------------------------


def table(device: str, netdev: str, address: str, index: int = 2) -> list[Gid]:
    """A GID table: two defaults, then v1 and v2 of the address."""
    defaults = [(0, link_local_gid(MAC), 1), (1, link_local_gid(MAC), 2)]
    rows = [*defaults, (index, gid_of(address), 1), (index + 1, gid_of(address), 2)]
    return [Gid(device, 1, place, gid, version, netdev) for place, gid, version in rows]


def measured(facts: Any) -> dict[str, Measured]:
    return {
        host: Measured(
            gids=[row for rail in fact.rails for row in table(rail.rdma_device, rail.netdev, rail.address)],
            probes=[Probe(p.rail, p.peer, p.source, p.address, True) for p in fabric_verify.paths(facts)[host]],
        )
        for host, fact in facts.items()
    }


def test_a_stranger_with_an_address_of_the_fabric_is_named() -> None:
    facts = plan(sparks(3), Settings()).facts
    found, stranger, ours = measured(facts), "02:00:00:00:00:99", "02:00:00:00:00:01"
    rail = facts["spark2"].rails[1]
    heard = [Holder("enP2p1s0f0np0", rail.address, mac) for mac in (stranger, ours)]
    elsewhere = Holder("enp1s0f0np0", "192.168.100.77", stranger)
    found["spark1"] = replace(found["spark1"], holders=[*heard, elsewhere])
    found["spark3"] = replace(found["spark3"], holders=heard[:1])
    verified = verify(facts, found, macs=[ours])
    (finding,) = verified.findings
    assert (finding.host, finding.device) == ("spark2", "roceP2p1s0f0 (enP2p1s0f0np0)")
    assert f"{stranger}, which is no port of this cluster, has the address {rail.address}" in finding.found
    assert "heard by spark1, spark3" in finding.found and "fabric_subnets" in finding.remedy
    assert {fact.state for fact in verified.facts.values()} == {"applying"}
    assert not verify(facts, found, macs=[ours, stranger]).findings


def test_seal_resolves_gids_and_keeps_the_plan() -> None:
    facts = plan(sparks(4), Settings()).facts
    found = measured(facts)
    # One node has an address more on one half, so that its index differs.
    shifted = [row for rail in facts["spark2"].rails for row in table(rail.rdma_device, rail.netdev, rail.address, 4)]
    found["spark2"] = replace(found["spark2"], gids=shifted)
    verified = verify(facts, found)
    assert not verified.findings
    assert [fact.state for fact in verified.facts.values()] == ["applied"] * 4
    assert [rail.gid_index for rail in verified.facts["spark2"].rails] == [5, 5]
    rail = verified.facts["spark1"].rails[1]
    assert (rail.gid_index, rail.gid) == (3, gid_of("192.168.101.10"))
    assert [fact.plan_hash for fact in verified.facts.values()] == [fact.plan_hash for fact in facts.values()]
    assert verified.summary == [
        "8 halves on 4 nodes work: 24 pings of 9000 bytes were answered, none of them fragmented",
        "RoCE v2 GIDs hold the planned addresses, at index 3, 5 on spark2 rocep1s0f0, 5 on spark2 roceP2p1s0f0",
    ]


def test_seal_needs_no_gids_for_sockets_and_nothing_for_one_node() -> None:
    facts = plan(sparks(2), Settings(transport="socket")).facts
    found = {host: replace(node, gids=()) for host, node in measured(facts).items()}
    assert not verify(facts, found).findings
    assert len(verify(facts, found).summary) == 1
    single = plan({"a": spark(0)}, Settings()).facts
    assert verify(single, {}).facts["a"].state == "applied"
    assert verify(single, {}).summary == []


def failing(facts: Any, pairs: set[tuple[str, str]], rail: int = 0) -> Any:
    """Everything works but these (from, to) on one rail."""
    return {
        host: replace(
            node,
            probes=[
                replace(p, ok=p.rail != rail or (host, p.peer) not in pairs, reason="why", remedy=f"Do {host}")
                for p in node.probes
            ],
        )
        for host, node in measured(facts).items()
    }


NAMES = ["spark1", "spark2", "spark3", "spark4"]


@settings(max_examples=50)
@given(st.sets(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES))), st.integers(0, 1))
def test_no_failed_ping_is_forgotten(pairs: set[tuple[str, str]], rail: int) -> None:
    """Each failed ping is explained by a finding about one of its ends, or about all."""
    facts = plan(sparks(4), Settings()).facts
    real = {pair for pair in pairs if pair[0] != pair[1]}
    findings = verify(facts, failing(facts, pairs, rail)).findings
    assert bool(findings) == bool(real)
    for host, peer in real:
        assert any(f.host in (host, peer, "all nodes") for f in findings)


def changed(facts: Any, host: str, **changes: Any) -> Any:
    """All measured well, but this on one node."""
    found = measured(facts)
    return {**found, host: replace(found[host], **changes)}


def pings(facts: Any, host: str, change: Any) -> Any:
    """``change`` says what is different in a probe of this node; None takes it out."""
    made = [(probe, change(probe)) for probe in measured(facts)[host].probes]
    return changed(facts, host, probes=[replace(probe, **new) for probe, new in made if new is not None])


PAIR, FOUR, TWELVE = (plan(sparks(count), Settings()).facts for count in (2, 4, 12))
RING = plan(ring(3), Settings()).facts
SEEN: list[tuple[str, Any, Any]] = [
    ("all is well", FOUR, measured(FOUR)),
    ("all is well in a ring", RING, measured(RING)),
    ("all is well on twelve", TWELVE, measured(TWELVE)),
    ("GIDs at other places", FOUR, changed(FOUR, "spark3", gids=[
        row for place, rail in enumerate(FOUR["spark3"].rails)
        for row in table(rail.rdma_device, rail.netdev, rail.address, 4 + 2 * place)])),
    ("one end hears nothing", PAIR, pings(PAIR, "spark2", lambda p: {"ok": False} if p.rail else {})),
    ("no reason is given", FOUR, failing(FOUR, {("spark1", "spark2")}, 1)),
    ("neither way", PAIR, failing(PAIR, {("spark1", "spark2"), ("spark2", "spark1")})),
    ("to one of four", FOUR, failing(FOUR, {(a, "spark3") for a in ("spark1", "spark2", "spark4")})),
    ("from and to two of four", FOUR, failing(FOUR, {
        (a, b) for a in NAMES for b in NAMES if a != b and {"spark2", "spark4"} & {a, b}}, 1)),
    ("nothing over one half", FOUR, failing(FOUR, {(a, b) for a in NAMES for b in NAMES}, 1)),
    ("the usual reason counts", FOUR, {host: replace(node, probes=[
        replace(p, ok=False, reason="rare" if (host, p.peer) == ("spark1", "spark2") else "usual", remedy="R")
        if p.rail == 0 else p for p in node.probes]) for host, node in measured(FOUR).items()}),
    ("several were not pinged", FOUR, pings(FOUR, "spark4", lambda p: None if p.peer < "spark3" else {})),
    ("one half was not pinged", PAIR, pings(PAIR, "spark1", lambda p: None if p.rail else {})),
    ("its address is gone", FOUR, pings(FOUR, "spark2", lambda p: {
        "ok": False, "cause": "no_address", "reason": "it has no address", "remedy": "Run it"} if p.rail else {})),
    ("no GIDs", PAIR, changed(PAIR, "spark2", gids=())),
    ("nothing was measured", PAIR, {}),
]  # fmt: skip


def test_what_is_found_in_what_was_measured() -> None:
    made = [(name, verify(facts, found)) for name, facts, found in SEEN]
    hold("measured", ((name, of_plan(one, name if name == "all is well" else "")) for name, one in made))


NETDEVS = ("enp1s0f0np0", "enP2p1s0f0np0", "enp1s0f1np1", "enP2p1s0f1np1")


def test_whom_a_half_pings_in_a_ring() -> None:
    assert fabric_verify.paths(RING)["spark2"] == [
        Path(rail, NETDEVS[rail], source, peer, address, 9000)
        for rail, source, peer, address in (
            (0, "192.168.100.11", "spark1", "192.168.100.10"),
            (1, "192.168.101.11", "spark1", "192.168.101.10"),
            (2, "192.168.104.11", "spark3", "192.168.104.12"),
            (3, "192.168.105.11", "spark3", "192.168.105.12"),
        )
    ]


# --- before the machines are known, and the cables alone -------------------------------------------------------------


def test_cables_are_judged_without_settings() -> None:
    made = fabric_plan.judge_cables(ring(3), Settings(topology="switch", mtu=1))
    assert [str(finding)[:46] for finding in made.findings] == ["all nodes: fabric_topology is 'switch', and th"]
    assert (made.topology, made.facts, len(made.cable_map)) == ("", {}, 3)
    good = fabric_plan.judge_cables(ring(3), Settings(mtu=1))
    assert (good.topology, list(good.findings), good.facts) == ("ring", [], {})
    assert good.cable_map[0] == "spark1 cage 0 - spark3 cage 1  200 Gb/s  seen by the other end"
    for nodes, wanted in ((sparks(1), "auto"), (sparks(2), "ring")):
        assert fabric_plan.judge_cables(nodes, Settings(topology=wanted)) == fabric_types.Plan("", {}, [], ())
