# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access.node import Look
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._access import plan as access_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._access.membership import (
    Member,
    check_request,
    compare,
    inherited,
    member,
    parse_known_hosts,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._access.plan import Node
from planning import plan
from ssh_keys import ssh_key


def known(**hosts):
    return {host: frozenset({key}) for host, key in hosts.items()}


def cluster(*hosts, knows=None):
    """Nodes that know each other with the keys k-<host>."""
    names = knows or known(**{host: f"k-{host}" for host in hosts})
    return {host: Member(rank, frozenset({f"k-{host}"}), known=names) for rank, host in enumerate(hosts)}


def texts(change):
    return [str(finding) for finding in change.findings]


def is_another(host, change):
    return any(f": {host} is another machine" in line for line in change.summary)


@pytest.mark.parametrize("name", ["spark1", "spark1.example.org", "10.1.2.3"])
@pytest.mark.parametrize("port", [22, 2222])
def test_known_hosts_of_the_role_are_read_back_under_the_inventory_name(name, port):
    nodes = {
        host: Node(rank, f"192.0.2.{rank + 1}", "ssh-ed25519 AAAA", (f"ssh-ed25519 K{rank}", f"ssh-rsa R{rank}"), port)
        for rank, host in enumerate((name, "spark2"))
    }
    text = next(f["content"] for f in access_plan.plan(nodes, "peer").files[name] if f["path"].endswith("/known_hosts"))
    found = parse_known_hosts(text)
    assert found[name] == {"ssh-ed25519 K0", "ssh-rsa R0"}
    assert set(found) == {name, "spark2"}


def test_damaged_known_hosts_are_no_names():
    assert parse_known_hosts("# title\n\nspark1\nspark2 ssh-ed25519\n") == {}


def test_one_joins_and_nobody_else_is_touched():
    nodes = cluster("a", "b") | {"c": member(2, Look(host_keys=["k-c"]))}
    change = compare("add", nodes)
    assert change.findings == ()
    assert change.summary == ("rank 0: a stays", "rank 1: b stays", "rank 2: c joins")


def test_a_machine_that_has_a_key_its_peers_know_is_the_same_machine():
    look = Look(host_keys=["ssh-ed25519 NEW", "ssh-rsa R"], known_hosts="a ssh-ed25519 A\nb ssh-rsa R\n")
    nodes = {"a": member(0, replace(look, host_keys=["ssh-ed25519 A"])), "b": member(1, look)}
    assert not is_another("b", compare("replace", nodes))
    nodes["b"] = member(1, replace(look, host_keys=["ssh-ed25519 NEW"]))
    assert is_another("b", compare("replace", nodes))


@pytest.mark.parametrize(("change", "refused"), [("add", True), ("remove", True), ("replace", False)])
def test_other_host_keys_are_accepted_by_node_replace_only(change, refused):
    nodes = cluster("a", "b")
    nodes["b"] = Member(1, frozenset({"new"}), known={})
    found = compare(change, nodes)
    assert any("playbooks/node_replace.yml" in text for text in texts(found)) is refused
    assert "rank 1: b is another machine than before" in found.summary


def test_a_replacement_that_was_interrupted_goes_on():
    """One peer has the new key already, the other one not yet."""
    nodes = cluster("a", "b", "c")
    nodes["b"] = Member(1, frozenset({"new"}), known(a="k-a", b="new", c="k-c"))
    nodes["c"] = Member(2, frozenset({"k-c"}), known(a="k-a", b="new", c="k-c"))
    assert not is_another("b", compare("add", nodes))


def test_who_is_in_the_inventory_no_more_is_named():
    nodes = {host: one for host, one in cluster("a", "b", "c").items() if host != "c"}
    assert compare("remove", nodes).findings == ()
    assert "c is not in the inventory any more: forgotten" in compare("remove", nodes).summary
    assert [f.severity for f in compare("add", nodes).findings] == ["warning"]
    assert "c leaves" in compare("add", nodes, ["c"]).summary
    assert compare("add", nodes, ["c"]).findings == ()


@pytest.mark.parametrize(
    ("members", "leaving", "says"),
    [
        ({"a": 0, "b": 1}, {"c": 2}, []),
        ({"a": 0, "b": 1}, {}, []),
        ({"a": 0, "b": 1}, {"b": 1}, ["b: it is in the groups 'sparks' and 'sparks_leaving'"]),
        ({"b": 1}, {"a": 0}, ["a: it is the head"]),
        ({"a": 0, "d": 2}, {"c": 2}, ["c, d: the rank 2 of the machine that leaves"]),
        ({"a": 0, "d": None}, {"c": None}, []),
    ],
)
def test_request(members, leaving, says):
    found = [str(finding) for finding in check_request(members, leaving)]
    assert len(found) == len(says)
    assert all(text.startswith(said) for text, said in zip(found, says))


def test_a_leaving_machine_keeps_what_the_group_gave_it():
    example = {
        "ansible_user": "dgx",
        "ansible_host": "192.0.2.1",
        "spark_rank": 0,
        "spark_service_user": "me",
        "ray_port": 7,
        "my_own": 1,
        "fabric_cages": [0],
        "access_user": "peer",
        "__access_look": {},
    }
    assert inherited(example, ["ray_", "spark_", "access_", "fabric_"]) == [
        "ansible_user",
        "spark_service_user",
        "ray_port",
        "access_user",
    ]
    given = {"members": {"a": 0}, "given": list(example)}
    made = plan("leaving", leaving={"b": 1}, own={"b": ["ray_port", "spark_service_user"]}, **given)
    assert made["departing"] == [{"name": "b", "variables": ["ansible_user", "access_user"]}]
    assert "it is the head" in plan("leaving", members={"b": 1}, leaving={"a": 0}, given=[], own={"a": []})["msg"]


def test_the_nodes_are_compared_as_they_were_read():
    look = {"host_keys": [ssh_key("A")], "known_hosts": f"a,a.local {ssh_key('A')}\nc,c.local {ssh_key('C')}\n"}
    nodes = {"a": {"rank": 0, "look": look}, "b": {"rank": 1, "look": {"host_keys": [ssh_key("B")]}}}
    made = plan("membership", {"nodes": nodes}, change="add", members=["a", "b"])
    assert made["summary"][:2] == ["rank 0: a stays", "rank 1: b joins"] and "c: the nodes" in made["warnings"][0]
    look["known_hosts"] += f"b,b.local {ssh_key('OLD')}\n"
    assert "its host keys are not" in plan("membership", {"nodes": nodes}, change="add", members=["a", "b"])["msg"]
    assert "msg" not in plan("membership", {"nodes": nodes}, change="replace", members=["a", "b", "c"])
