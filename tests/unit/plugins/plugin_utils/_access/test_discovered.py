# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from dataclasses import replace

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access.discover import Candidate, parse_avahi
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.hardware import Hardware
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.network import Network
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.node import Node
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._access.discovered import machines

# Two Sparks as the head itself hears them: over the house network, over both halves of the cable, over Wi-Fi.
TWO = """\
=;enP7s7;IPv4;spark-1a2b;_ssh._tcp;local;spark-1a2b.local;192.168.1.20;22;
=;enp1s0f0np0;IPv4;spark-1a2b;_ssh._tcp;local;spark-1a2b.local;192.168.100.10;22;
=;enp1s0f0np0;IPv4;spark-3c4d;_ssh._tcp;local;spark-3c4d.local;192.168.100.11;22;
=;enP2p1s0f0np0;IPv4;spark-3c4d;_ssh._tcp;local;spark-3c4d.local;192.168.101.11;22;
=;enP7s7;IPv4;spark-3c4d;_ssh._tcp;local;spark-3c4d.local;192.168.1.21;22;
=;enP7s7;IPv6;spark-3c4d;_ssh._tcp;local;spark-3c4d.local;fe80::2;22;
"""
PLACES = {
    "spark-1a2b": {"enP7s7": "192.168.1.20", "enp1s0f0np0": "192.168.100.10"},
    "spark-3c4d": {"enp1s0f0np0": "192.168.100.11", "enP2p1s0f0np0": "192.168.101.11", "enP7s7": "192.168.1.21"},
}


def heard() -> list[Candidate]:
    return [replace(item, fingerprint=f"SHA256:{item.name}", kind="ED25519") for item in parse_avahi(TWO)]


def node(name: str, gb10: bool = True) -> Node:
    interfaces = [{"name": dev, "addresses": [{"address": address}]} for dev, address in PLACES[name].items()]
    network = {"interfaces": interfaces, "default_gateway": {"address": "192.168.1.1", "interface": "enP7s7"}}
    return Node(machine_id=f"id-{name}", network=document.load_known(Network, network), machine=Hardware(is_gb10=gb10))


def test_two_machines_with_five_addresses_are_two() -> None:
    candidates = heard()
    assert len(candidates) == 5
    read = {item.address: node(item.name) for item in candidates}
    first, second = machines(candidates, read)
    assert (first["address"], first["others"]) == ("192.168.1.20", ["192.168.100.10"])
    assert (second["address"], second["others"]) == ("192.168.1.21", ["192.168.100.11", "192.168.101.11"])
    assert [first[key] for key in ("name", "interface", "fingerprint", "kind", "is_gb10", "taken", "why")] == [
        "spark-1a2b", "enP7s7", "SHA256:spark-1a2b", "ED25519", True, True, "",
    ]  # fmt: skip


def test_another_machine_is_taken_where_that_was_asked_for() -> None:
    read = {"192.168.1.20": node("spark-1a2b", gb10=False)}
    for require, taken in ((True, [False, False]), (False, [True, False])):
        made = machines(heard(), read, require_gb10=require)
        assert [(one["is_gb10"], one["taken"]) for one in made] == [(False, one) for one in taken]
        assert [one["why"] for one in made] == ["not a GB10", "no login with a key, so not looked at"]


def test_this_computer_is_one_machine_without_an_answer_of_its_sshd() -> None:
    candidates = [Candidate(f"192.168.1.{last}", own=True) for last in (7, 20)]
    (one,) = machines(candidates, {"192.168.1.20": node("spark-1a2b")})
    assert (one["address"], one["own"], one["taken"], one["others"]) == ("192.168.1.20", True, True, ["192.168.1.7"])


def test_two_machines_that_let_nobody_in_are_two() -> None:
    made = machines(heard(), {})
    assert [(one["name"], len(one["others"]), one["is_gb10"]) for one in made] == [
        ("spark-1a2b", 1, False),
        ("spark-3c4d", 2, False),
    ]
    assert {one["why"] for one in made} == {"no login with a key, so not looked at"}


def test_an_address_that_let_nobody_in_is_of_the_machine_with_its_key() -> None:
    candidates = heard()
    made = machines(candidates, {"192.168.1.21": node("spark-3c4d", gb10=False)})
    assert [(one["address"], one["why"]) for one in made][1] == ("192.168.1.21", "not a GB10")
    assert made[1]["others"] == ["192.168.100.11", "192.168.101.11"]


def test_copies_of_one_disk_are_two_machines() -> None:
    candidates = [replace(item, fingerprint="SHA256:same") for item in heard()]
    read = {item.address: node(item.name) for item in candidates}
    assert [len(machine["others"]) for machine in machines(candidates, read)] == [1, 2]


def test_a_stranger_with_the_machine_id_of_a_spark_hides_nobody() -> None:
    candidates = [*heard()[:1], Candidate("192.168.1.66", fingerprint="SHA256:stranger")]
    read = {"192.168.1.20": node("spark-1a2b"), "192.168.1.66": node("spark-1a2b")}
    assert [machine["address"] for machine in machines(candidates, read)] == ["192.168.1.20", "192.168.1.66"]


def test_what_shows_no_host_key_is_listed_by_its_address() -> None:
    candidates = [Candidate("192.168.1.8"), Candidate("192.168.1.9")]
    assert [(machine["address"], machine["why"]) for machine in machines(candidates, {})] == [
        ("192.168.1.8", "it shows no host key"),
        ("192.168.1.9", "it shows no host key"),
    ]
