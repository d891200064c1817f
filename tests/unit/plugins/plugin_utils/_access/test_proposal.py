# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What is written is a good inventory: it parses, and the checks of preflight that need no machine find nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.document import load_known, plain
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.network import Network
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.node import Node
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._access import proposal
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import base, variables
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import checks as pf
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight.layers import LAYERS
from fabric_inputs import rdma, wired

ROOT = Path(__file__).resolve().parents[5]
GIB = 2**30
SWITCH = {2: "spark1.0 spark2.0 @sw1", 4: "spark1.0 spark2.0 spark3.0 spark4.0 @sw1"}
RING = ("spark1.1 spark2.0", "spark2.1 spark3.0", "spark3.1 spark1.0")


@pytest.fixture(autouse=True, scope="module")
def _once() -> Iterator[None]:
    """What fits such machines takes a second, and is the same for all that have as much memory."""
    found: dict[Any, Any] = {}
    fitting = proposal.fitting

    def once(looked: Mapping[str, Node]) -> list[proposal.Fit]:
        key = tuple((name, node.memory.total) for name, node in looked.items())
        if key not in found:
            found[key] = fitting(looked)
        return list(found[key])

    with mock.patch.object(proposal, "fitting", once):
        yield


def machine(number: int, why: str = "", **changes: Any) -> dict[str, Any]:
    return {
        "address": f"10.0.0.{number}",
        "name": f"spark-{number}",
        "interface": "enP7s7",
        "fingerprint": f"SHA256:{number}",
        "kind": "ED25519",
        "others": [],
        "own": False,
        "is_gb10": not why,
        "taken": not why,
        "why": why,
        **changes,
    }


def proposed(
    *cables: str,
    count: int = 4,
    memory: float = 119.6,
    others: tuple[dict[str, Any], ...] = (),
    user: str = "nvidia",
    confirmed: tuple[str, ...] = (),
    first: dict[str, Any] | None = None,
) -> proposal.Proposal:
    nodes = {
        f"10.0.0.{number}": {
            "memory": {"total": int(memory * GIB)},
            "machine": {"is_gb10": (first or {}).get("is_gb10", True) or number > 1},
            "network": {"connection_interface": "enP7s7", "interfaces": [], "routes": []},
            "rdma": {"cages": []},
        }
        for number in range(1, count + 1)
    }
    heard = {}
    for name, found in wired(*cables).items():
        node = nodes[f"10.0.0.{name[5:]}"]
        node["rdma"] = rdma(found.cages)
        node["network"] = plain(Network(found.interfaces, found.routes, connection_interface="enP7s7"))
        heard[name] = found.neighbors
    found = [machine(number, **(first or {}) if number == 1 else {}) for number in range(1, count + 1)]
    more: Any = {"folder": "inventories/mine", "user": user, "confirmed": confirmed}
    read = {at: load_known(Node, node) for at, node in nodes.items()}
    return proposal.propose([*found, *others], read, heard, **more)


def loaded(made: proposal.Proposal) -> tuple[dict[str, Any], dict[str, Any]]:
    hosts = yaml.safe_load(made.hosts)["all"]["children"]["sparks"]["hosts"]
    return hosts, yaml.safe_load(made.variables)


def found_by_preflight(made: proposal.Proposal) -> list[str]:
    hosts, shared = loaded(made)
    context = base.Context(
        layers=frozenset(LAYERS),
        hosts={name: {**shared, **own} for name, own in hosts.items()},
        play_hosts=list(hosts),
        variables=variables.load(),
    )
    return [str(finding) for finding in pf.run(pf.INVENTORY, context)]


@pytest.mark.parametrize(
    ("cables", "count", "topology"),
    [
        ((SWITCH[4],), 4, "switch"),
        ((SWITCH[2],), 2, "switch"),
        (("spark1.0 spark2.0",), 2, "direct"),
        (RING, 3, "ring"),
        ((), 1, "single"),
        ((), 2, "auto"),  # nobody could listen
        (("spark1.0 spark2.0", "spark3.0 spark4.0"), 4, "auto"),  # two islands
    ],
)
def test_a_proposal_passes_our_own_checks(cables, count, topology):
    made = proposed(*cables, count=count)
    hosts, shared = loaded(made)
    assert [(name, own["ansible_host"], own["spark_rank"]) for name, own in hosts.items()] == [
        (f"spark{number}", f"10.0.0.{number}", number - 1) for number in range(1, count + 1)
    ]
    assert (shared["ansible_user"], shared["fabric_topology"]) == ("nvidia", topology)
    assert found_by_preflight(made) == []
    assert made.summary[-1] == (
        "Next: review inventories/mine, then: ansible-playbook playbooks/preflight.yml -i inventories/mine"
    )


def test_a_proposal_for_machines_whose_host_keys_were_confirmed():
    made = proposed(SWITCH[2], count=2, confirmed=("SHA256:1", "SHA256:2"))
    assert made.summary[-1] == (
        "Next: ansible-playbook playbooks/bootstrap.yml -i inventories/mine -e node_fingerprint=SHA256:1,SHA256:2"
        " --ask-pass --ask-become-pass"
    )
    assert "confirmed" in made.hosts and "Nobody has vouched" not in made.hosts
    assert found_by_preflight(made) == []


def test_both_ways_of_going_on_are_told_and_the_machines_keep_their_names():
    made = proposed(SWITCH[2], count=2)
    assert "# Go on: sparkmatrix up\n# or, with Ansible's own commands and -i for this folder: playbooks/" in made.hosts
    assert loaded(made)[1]["access_set_hostname"] is False
    assert "preflight_require_gb10" not in made.variables


def kept(number: int, host: str, rank: int, nodes: int = 3) -> dict[str, Any]:
    return machine(number, kept={"host": host, "rank": rank, "nodes": nodes, "address": "", "interface": ""})


@pytest.mark.parametrize(
    ("found", "names"),
    [
        # Another computer finds them in another order; one of three is off, and its rank stays free.
        ([kept(1, "desk-b", 1), kept(2, "desk-a", 0)], {"desk-a": 0, "desk-b": 1}),
        ([machine(1), kept(2, "spark4", 0)], {"spark4": 0, "spark5": 3}),
        ([kept(1, "spark1", 0), kept(2, "spark1", 0)], {"spark1": 0, "spark2": 1}),
        ([kept(1, "spark1", 0), kept(2, "spark2", 0)], {"spark1": 0, "spark2": 1}),
        ([kept(1, "a: b", 5), kept(2, "sparks", 6), kept(3, "on", 7)], {"spark1": 0, "spark2": 1, "spark3": 2}),
    ],
)
def test_machines_that_are_set_up_keep_names_and_ranks(found: list[dict[str, Any]], names: dict[str, int]) -> None:
    assert {name: one["rank"] for name, one in proposal.named(found).items()} == names


def test_who_set_them_up_has_the_settings():
    old = {"host": "desk", "rank": 0, "nodes": 2, "address": "", "interface": ""}
    made = proposed(SWITCH[2], count=2, first={"kept": old})
    assert {name: own["spark_rank"] for name, own in loaded(made)[0].items()} == {"desk": 0, "spark3": 2}
    (line,) = [line for line in made.summary if "set up already" in line]
    assert line.endswith("inventories/mine/group_vars/sparks.yml")
    assert not any("set up already" in line for line in proposed(SWITCH[2], count=2).summary)


def test_this_computer_is_reached_without_ssh():
    made = proposed(SWITCH[2], count=2, first={"own": True})
    hosts, _shared = loaded(made)
    assert [own.get("ansible_connection") for own in hosts.values()] == ["local", None]
    assert hosts["spark1"]["ansible_host"] == "10.0.0.1" and found_by_preflight(made) == []


def test_other_hardware_that_was_asked_for():
    made = proposed(SWITCH[2], count=2, first={"is_gb10": False, "taken": True, "why": "not a GB10"})
    hosts, shared = loaded(made)
    assert set(hosts) == {"spark1", "spark2"} and shared["preflight_require_gb10"] is False
    assert made.summary[0].startswith("1 machine(s) say that they are a GB10, 1 more answer ssh:")
    assert "# spark-1 not a GB10" in made.hosts


def test_cables_and_what_is_wrong_with_them_are_comments():
    assert "\n# Cables: switch, as the machines saw each other\n" in proposed(SWITCH[4]).variables
    assert "#   spark1 cage 0 - switch sw1 200 Gb/s" in proposed(SWITCH[4]).variables
    islands = proposed("spark1.0 spark2.0", "spark3.0 spark4.0").variables
    assert "the cables form 2 fabrics that nothing joins" in islands
    assert "could not listen (that needs sudo)" in proposed(count=2).variables


def test_recipes_by_memory_and_number():
    four, one = proposed(SWITCH[4]), proposed(count=1)
    for made, name in ((one, "1spark"), (proposed(count=2), "2spark"), (four, "4spark")):
        shipped = yaml.safe_load((ROOT / f"inventories/{name}/group_vars/sparks.yml").read_text())
        assert loaded(made)[1]["engine_recipe"] == shipped["engine_recipe"]
    assert "#   gpt-oss-120b: " in one.variables and "GB, about " in one.variables
    assert "#   qwen3-8b: " in one.variables and "llama-3.1-405b" not in one.variables
    small = proposed(count=1, memory=60)
    assert "gpt-oss-120b" not in small.variables and loaded(small)[1]["engine_recipe"]
    tiny = proposed(count=1, memory=8)
    assert "engine_recipe" not in loaded(tiny)[1]
    assert "Recipe: none of those that are shipped fits" in tiny.summary


def test_a_machine_without_a_key_is_a_comment_that_can_be_taken_in():
    made = proposed(SWITCH[2], count=2, others=(machine(7, "no login with a key, so not looked at"),))
    assert set(loaded(made)[0]) == {"spark1", "spark2"}
    assert "ansible-playbook playbooks/bootstrap.yml -i inventories/mine --ask-pass --ask-become-pass" in made.hosts
    taken = "\n".join(line[2:] if line.startswith("#     ") else line for line in made.hosts.splitlines())
    hosts = yaml.safe_load(taken)["all"]["children"]["sparks"]["hosts"]
    assert hosts["spark3"] == {"ansible_host": "10.0.0.7", "spark_rank": 2}


def test_strangers_and_what_they_say_stay_comments():
    odd = machine(8, "not a GB10", name="evil\nall: {hosts: {x: {}}}\x1b[2J")
    made = proposed(SWITCH[2], count=2, others=(odd,))
    assert set(yaml.safe_load(made.hosts)) == {"all"} and set(loaded(made)[0]) == {"spark1", "spark2"}
    assert "# 10.0.0.8 evil all: {hosts" in made.hosts


def test_nothing_found():
    """And nothing is written, which would be in the way of the next search."""
    for others in ((), (machine(9, "not a GB10"),)):
        made = proposed(count=0, others=others)
        assert made.hosts == "" and "nothing was written" in made.summary[0]
        assert made.summary[-1].startswith("Next: name the network")
    only = proposed(count=0, others=(machine(7, "no login with a key, so not looked at"),), user="")
    assert loaded(only)[0] == {} and "bootstrap.yml" in only.summary[-1]
    assert "ansible_user" not in loaded(only)[1]


def test_an_inventory_that_is_there_is_compared():
    made = proposed(SWITCH[4])
    four = [machine(number) for number in range(1, 5)]
    assert proposal.difference(made.hosts, four) == []
    assert proposal.difference(made.hosts, [*four[1:], machine(9)]) == [
        "10.0.0.9 spark-9 was found, and is not in it",
        "spark1 (10.0.0.1) is in it, and was not found",
    ]
    assert proposal.difference("- nothing", four) == ["its group sparks cannot be read"]
