# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""ssh between nodes and firewall rules: all nodes in, files and rules per node out."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import calls
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._firewall import ufw
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._access import plan as ap
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import plan as fabric_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.types import Settings
from fabric_inputs import wired
from hypothesis import given
from hypothesis import strategies as st
from planning import plan
from ssh_keys import ssh_key

SWITCH = ("spark1.0 spark2.0 spark3.0 @",)
RING = ("spark1.1 spark2.0", "spark2.1 spark3.0", "spark3.1 spark4.0", "spark4.1 spark1.0")
USER = "sparkmatrix-peer"


def facts(*lines: str) -> dict[str, FabricFact]:
    made = fabric_plan.plan(wired(*lines), Settings(allow_large_ring=True))
    assert not made.refused, made.findings
    return dict(made.facts)


def node(rank: int, **changes: Any) -> ap.Node:
    values = ap.Node(rank, f"10.0.0.{rank + 1}", f"ssh-ed25519 KEY{rank}", (f"ssh-ed25519 HOST{rank}",))
    return replace(values, **changes)


def cluster(*lines: str) -> dict[str, ap.Node]:
    found = facts(*lines)
    return {host: node(fact.rank, fact=fact) for host, fact in found.items()}


def content(plan: ap.Plan, host: str, path: str) -> str:
    (text,) = [item["content"] for item in plan.files[host] if item["path"] == path]
    return str(text)


def authorized(plan: ap.Plan, host: str) -> str:
    return content(plan, host, f"/var/lib/{USER}/.ssh/authorized_keys")


def test_every_peer_gets_in_with_its_own_key_for_the_peer_commands_only() -> None:
    made = ap.plan(cluster(*SWITCH), USER)
    command = 'restrict,command="/usr/local/lib/sparkmatrix/sparkmatrix-node peer'
    assert authorized(made, "spark2").splitlines()[1:] == [
        f'{command} spark1 --head",from="10.0.0.1,192.168.100.10,192.168.101.10" ssh-ed25519 KEY0 spark1',
        f'{command} spark3",from="10.0.0.3,192.168.100.12,192.168.101.12" ssh-ed25519 KEY2 spark3',
    ]


def test_what_all_nodes_share_is_made_once() -> None:
    """Else the plan of many nodes grows with their square, in Ansible's memory and between its processes."""
    made = ap.plan(cluster(*SWITCH), USER)
    for path in (ap.KNOWN_HOSTS, ap.CLIENT, ap.CONFIG):
        assert content(made, "spark1", path) is content(made, "spark2", path)
    shared = set(map(id, made.rules["spark1"]["engine"])) & set(map(id, made.rules["spark2"]["engine"]))
    assert len(shared) == 2  # both let the third node in, at two addresses


def test_host_keys_are_known_by_name_and_address_on_both_networks() -> None:
    made = ap.plan(cluster(*SWITCH), USER)
    known = content(made, "spark1", ap.KNOWN_HOSTS)
    assert known == content(made, "spark3", ap.KNOWN_HOSTS)
    assert known.splitlines()[2] == (
        "spark2,spark2.local,spark2-fabric,spark2-fabric0,spark2-fabric1,10.0.0.2,192.168.100.11,192.168.101.11 "
        "ssh-ed25519 HOST1"
    )
    client = content(made, "spark1", ap.CLIENT)
    assert "Host spark2 spark2.local spark2-fabric" in client and ap.KNOWN_HOSTS in client
    config = content(made, "spark1", ap.CONFIG)
    assert "Host spark2 spark2.local\n    HostName 10.0.0.2\n" in config
    assert "StrictHostKeyChecking yes" in config and "Port" not in config


def test_another_port() -> None:
    made = ap.plan({"spark1": node(0), "spark2": node(1, port=2222)}, USER)
    assert "[spark2]:2222,[spark2.local]:2222," in content(made, "spark1", ap.KNOWN_HOSTS)
    assert "    Port 2222\n" in content(made, "spark1", ap.CONFIG)


def test_names_of_the_peers_for_the_management_network() -> None:
    made = ap.plan(cluster(*SWITCH), USER)
    assert made.hosts_lines["spark2"] == ["10.0.0.1 spark1", "10.0.0.3 spark3"]


def test_rules_on_a_switch() -> None:
    made = ap.plan(cluster(*SWITCH), USER)
    assert made.rules["spark1"]["fabric"] == [
        "allow in on enp1s0f0np0 from 192.168.100.11",
        "allow in on enP2p1s0f0np0 from 192.168.101.11",
        "allow in on enp1s0f0np0 from 192.168.100.12",
        "allow in on enP2p1s0f0np0 from 192.168.101.12",
    ]
    assert made.rules["spark1"]["ray"] == [
        "allow from 10.0.0.2",
        "allow from 192.168.100.11",
        "allow from 10.0.0.3",
        "allow from 192.168.100.12",
    ]


def test_rules_in_a_ring_are_for_neighbours() -> None:
    nodes = cluster(*RING)
    here, opposite = nodes["spark1"].fact, nodes["spark3"].fact
    assert here is not None and opposite is not None
    rules = ap.rules(nodes)["spark1"]
    assert len(rules["fabric"]) == 4
    assert not any(rail.address in rule for rail in opposite.rails for rule in rules["fabric"])
    assert "allow from 10.0.0.3" in rules["ray"]


def test_without_a_fabric_ray_is_let_in_over_management() -> None:
    made = ap.rules({"spark1": node(0), "spark2": node(1)})["spark1"]
    assert made == {"fabric": [], "ray": ["allow from 10.0.0.2"], "engine": ["allow from 10.0.0.2"]}


@given(st.integers(2, 12), st.randoms(use_true_random=False), st.integers(0, 11))
def test_any_cluster(count: int, order: random.Random, leaves: int) -> None:
    hosts = [f"spark{rank + 1}" for rank in range(count)]
    nodes = {host: node(rank) for rank, host in enumerate(hosts)}
    shuffled = hosts.copy()
    order.shuffle(shuffled)
    made = ap.plan(nodes, USER)
    again = ap.plan({host: nodes[host] for host in shuffled}, USER)
    for host in hosts:
        assert authorized(made, host) == authorized(again, host), "the order of the inventory changes no file"
        assert nodes[host].public_key + " " not in authorized(made, host), "no node gets in to itself"
        assert authorized(made, host).count("restrict,command=") == count - 1
        assert not any(
            "from any" in rule or "Anywhere" in rule for rules in made.rules[host].values() for rule in rules
        )
    gone = hosts[leaves % count]
    left = ap.plan({host: value for host, value in nodes.items() if host != gone}, USER)
    for host in left.files:
        texts = " ".join(str(item["content"]) for item in left.files[host])
        assert f"KEY{nodes[gone].rank} " not in texts and nodes[gone].address + "," not in texts.replace('"', ",")
        assert f"{nodes[gone].address} {gone}" not in left.hosts_lines[host]


RULE = st.builds(
    ufw.Rule,
    st.sampled_from([f"allow from 10.0.0.{n}" for n in range(6)] + ["allow 22/tcp", "deny 23"]),
    st.sampled_from(["", "ops", "sparkmatrix:ray", "sparkmatrix:fabric", "sparkmatrix:access"]),
)


@given(
    st.lists(RULE, unique_by=lambda rule: rule.text),
    st.lists(st.sampled_from([f"allow from 10.0.0.{n}" for n in range(6)])),
)
def test_rules_converge_and_leave_others_alone(have: list[ufw.Rule], wanted: list[str]) -> None:
    change = ufw.compare(have, {"ray": wanted})
    after = ufw.after(have, change)
    assert not ufw.compare(after, {"ray": wanted}), "a second run changes nothing"
    assert set(wanted) <= {rule.text for rule in after}
    assert {rule for rule in have if rule.comment != "sparkmatrix:ray"} <= set(after)
    assert all(rule.text in wanted for rule in after if rule.comment == "sparkmatrix:ray")
    assert ufw.parse_added(ufw.text_of(after)) == tuple(after), "what is printed is what is read"


def test_what_ufw_prints() -> None:
    text = (
        "Added user rules (see 'ufw status' for running firewall):\n"
        "ufw allow 22/tcp comment 'sparkmatrix:access'\nufw route allow in on a out on b\nufw limit ssh\n"
    )
    assert ufw.parse_added(text) == (
        ufw.Rule("allow 22/tcp", "sparkmatrix:access"),
        ufw.Rule("route allow in on a out on b"),
        ufw.Rule("limit ssh"),
    )
    assert ufw.parse_added("Added user rules (see 'ufw status' for running firewall):\n(None)\n") == ()
    assert [ufw.parse_closed(text) for text in ("", 'DEFAULT_INPUT_POLICY="ACCEPT"\nDEFAULT_INPUT_POLICY=DROP\n')] == [
        False,
        True,
    ]


# --- what goes in ----------------------------------------------------------------------------------------------------


def look(rank: int, **changes: Any) -> dict[str, Any]:
    address = f"10.0.0.{rank + 1}"
    return {
        "public_key": ssh_key(f"K{rank}"),
        "host_keys": [ssh_key("H")],
        "connection": ["10.0.0.99", "50000", address, "22"],
        "network": {"interfaces": [{"name": "enP7s7", "addresses": [{"address": address, "prefix": 24}]}]},
        **changes,
    }


def raw(rank: int, **changes: Any) -> dict[str, Any]:
    return {"rank": rank, "address": "", "look": look(rank), "fact": None, **changes}


def read(found: dict[str, Any]) -> dict[str, Any]:
    return {**found, "look": calls.read("peer", found["look"], "spark1")}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "10.0.0.1"),
        ({"address": "10.5.0.1"}, "10.5.0.1"),
        ({"look": look(0, connection=[])}, "10.0.0.1"),
        ({"look": look(0, connection=["", "1", "fe80::1", "22"])}, "10.0.0.1"),
        ({"look": look(0, connection=["10.0.0.9", "1", "192.168.100.10", "22"])}, "10.0.0.1"),
    ],
)
def test_the_address_of_a_node(changes: dict[str, Any], expected: str) -> None:
    nodes, findings = ap.node_inputs({"spark1": read(raw(0, **changes))})
    assert not findings and nodes["spark1"].address == expected


@pytest.mark.parametrize(
    "lines",
    [
        ("spark1.0 spark2.0",),
        ("spark1.0 spark4.0",),
        SWITCH,
        RING,
        ("spark1.1 spark2.0", "spark2.1 spark3.0", "spark3.1 spark1.0"),
        ("spark1.1 spark3.0", "spark3.1 spark4.0", "spark4.1 spark1.0"),
        ("spark1.1 spark4.0", "spark4.1 spark6.0", "spark6.1 spark7.0", "spark7.1 spark1.0"),
    ],
)
def test_no_fabric_loses_an_address_that_its_plan_gave(lines: tuple[str, ...]) -> None:
    planned = facts(*lines)
    looks = {host: read(raw(fact.rank, fact=fact)) for host, fact in planned.items()}
    nodes, findings = ap.node_inputs(looks)
    assert not findings and {host: node.fact for host, node in nodes.items()} == planned


def run(nodes: dict[str, Any]) -> dict[str, Any]:
    return plan("peers", {"nodes": nodes})


def test_the_planner() -> None:
    planned = run(nodes={"spark1": raw(0), "spark2": raw(1)})
    assert not planned.get("failed") and planned["changed"] is False
    assert planned["ignore"]["spark1"] == ["10.0.0.1", "10.0.0.2", "10.0.0.99"]
    fact = facts(*SWITCH)["spark1"].as_dict()
    planned = run(nodes={"spark1": raw(0, fact=fact), "spark2": raw(1, look=look(1, public_key=""))})
    assert "192.168.100.10" in planned["ignore"]["spark2"]


def test_the_planner_refuses() -> None:
    result = run(nodes={"spark1": raw(0, look=look(0, network={})), "spark2": raw(1, look=look(1, network={}))})
    assert result["failed"]
    assert "1. spark1: no address" in result["msg"] and "2. spark2: no address" in result["msg"]
    for lacking in ({"look": look(1)}, {"rank": 1}):
        said = run(nodes={"spark1": raw(0), "spark2": lacking})["msg"]
        assert said.startswith("spark2: spark_rank, or what the machine says of its ssh, is not known. Run the whole")
    old = run(nodes={"spark1": raw(0), "spark2": raw(1, fact={"schema": 2})})
    assert "1. spark2 " in old["msg"] and "the fabric fact has schema 2, this release reads 3" in old["msg"]
    assert "site.yml --tags fabric" in old["msg"]


def test_the_management_address_alone() -> None:
    network = look(0)["network"]
    assert plan("management", host="spark1", network=network)["address"] == "10.0.0.1"
    assert plan("management", host="spark1", network=network, setting="10.5.0.1")["address"] == "10.5.0.1"
    assert "spark1: no address of it fits" in plan("management", host="spark1", network={})["msg"]
