# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What a batch script may take from the inventory: interfaces and addresses as a run would plan them, or a question."""

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import by_inventory
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import variables as preflight_variables

KNOWN = preflight_variables.load()


def facts(count, host_variables=None, **variables):
    hosts = [f"spark{number + 1}" for number in range(count)]
    defaults = {name: KNOWN[name].default for name in by_inventory.READ}
    values = {host: {**defaults, **variables, **(host_variables or {}).get(host, {})} for host in hosts}
    return by_inventory.facts(hosts, values)


def test_the_cage_gives_interfaces_and_devices():
    found, lacking = facts(2, {"spark2": {"fabric_cages": [0]}}, fabric_cages=[1])
    assert not lacking and [fact.cluster_interface for fact in found.values()] == ["enp1s0f1np1", "enp1s0f0np0"]
    assert found["spark1"].environment["NCCL_IB_HCA"] == "=rocep1s0f1,roceP2p1s0f1"
    assert found["spark2"].environment["GLOO_SOCKET_IFNAME"] == "enp1s0f0np0"
    # The management interface has no name here.
    assert found["spark1"].environment["NCCL_SOCKET_IFNAME"] == "=enp1s0f1np1"


def test_addresses_follow_from_the_settings_and_the_rank():
    ranks = {"spark1": {"spark_rank": 1}, "spark2": {"spark_rank": 0}}
    subnets = ["10.5.0.0/24", "10.6.0.0/24"]
    found, _lacking = facts(2, ranks, fabric_cages=[0], fabric_subnets=subnets, fabric_host_offset=20)
    assert {host: fact.cluster_address for host, fact in found.items()} == {
        "spark1": "10.5.0.21",
        "spark2": "10.5.0.20",
    }
    assert found["spark1"].environment["OMPI_MCA_oob_tcp_if_include"] == "10.5.0.0/24"


def test_named_interfaces_tell_the_cage_and_the_addresses():
    own = {
        f"spark{number}": {
            "fabric_addresses": {"enp1s0f1np1": f"10.1.0.{number}/24", "enP2p1s0f1np1": f"10.1.1.{number}/24"}
        }
        for number in (1, 2)
    }
    found, lacking = facts(2, own)
    assert not lacking
    assert (found["spark2"].cluster_interface, found["spark2"].cluster_address) == ("enp1s0f1np1", "10.1.0.2")


def test_the_users_environment_has_the_last_word():
    wanted = {"NCCL_DEBUG": "INFO", "NCCL_NET_PLUGIN": None, "NCCL_SOCKET_IFNAME": "enp1s0f0np0"}
    found, _lacking = facts(2, fabric_cages=[0], fabric_environment=wanted)
    environment = found["spark1"].environment
    assert (environment["NCCL_DEBUG"], environment["NCCL_SOCKET_IFNAME"]) == ("INFO", "enp1s0f0np0")
    assert "NCCL_NET_PLUGIN" not in environment


@pytest.mark.parametrize("cages", ["auto", [0, 1]])
def test_what_only_a_machine_knows_is_asked_for(cages):
    found, lacking = facts(2, {"spark1": {"fabric_cages": [0]}}, fabric_cages=cages)
    assert not found and [finding.host for finding in lacking] == ["spark2"]
    assert "fabric_cages" in lacking[0].remedy


@pytest.mark.parametrize(
    "variables",
    [{"fabric_topology": "ring"}, {"fabric_cables": ["spark1.1 spark2.0", "spark2.1 spark3.0", "spark3.1 spark1.0"]}],
)
def test_a_ring_is_refused(variables):
    found, lacking = facts(3, fabric_cages=[0], **variables)
    assert not found and "ring" in lacking[0].found


def test_what_the_planner_refuses_is_said():
    found, lacking = facts(2, fabric_cages=[0], fabric_subnets=["10.5.0.0/24"])
    assert not found and "fabric_subnets" in lacking[0].found
