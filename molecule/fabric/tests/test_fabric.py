# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest

RANKS = {"spark1": 0, "spark2": 1, "spark3": 2}
RAILS = {"enp1s0f0np0": "192.168.100", "enP2p1s0f0np0": "192.168.101"}
UNCABLED = ("enp1s0f1np1", "enP2p1s0f1np1")
FIRST_HOST = 10  # fabric_host_offset
NETPLAN = "/etc/netplan/60-sparkmatrix-fabric.yaml"


def name(host):
    return host.backend.host.name


@pytest.mark.parametrize("netdev", RAILS)
def test_each_half_has_its_address_and_mtu(host, netdev):
    interface = host.interface(netdev)
    assert interface.addresses[0] == f"{RAILS[netdev]}.{FIRST_HOST + RANKS[name(host)]}"
    assert host.file(f"/sys/class/net/{netdev}/mtu").content_string.strip() == "9000"


@pytest.mark.parametrize("netdev", UNCABLED)
def test_the_other_cage_is_left_alone(host, netdev):
    assert not [address for address in host.interface(netdev).addresses if "." in address]


def test_full_frames_pass_to_every_other_node(host):
    for peer, rank in RANKS.items():
        if peer != name(host):
            for subnet in RAILS.values():
                host.check_output(f"ping -c 1 -W 2 -M do -s 8972 {subnet}.{FIRST_HOST + rank}")


def test_the_netplan_file_is_private_and_valid(host):
    assert host.file(NETPLAN).mode == 0o600
    host.check_output("netplan generate")


def test_fabric_names_resolve_and_host_names_do_not_point_to_the_fabric(host):
    for peer, rank in RANKS.items():
        resolved = host.check_output(f"getent hosts {peer}-fabric").split()[0]
        assert resolved == f"192.168.100.{FIRST_HOST + rank}"
    assert not host.check_output(f"getent hosts {name(host)}").startswith("192.168.10")


def test_the_fact_is_readable_and_complete(host):
    file = host.file("/etc/ansible/facts.d/sparkmatrix.fact")
    assert file.mode == 0o644
    fact = json.loads(file.content_string)
    assert fact["state"] == "applied"
    assert fact["rank"] == RANKS[name(host)]
    assert {rail["netdev"] for rail in fact["rails"]} == set(RAILS)
    assert fact["environment"]["NCCL_IB_HCA"] == "=rocep1s0f0,roceP2p1s0f0"
    assert "NCCL_IB_GID_INDEX" not in fact["environment"]
