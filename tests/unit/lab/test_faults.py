# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import itertools
import subprocess
from typing import Any

import kernel_log
import node_file_faults
import pytest
from sim import spark
from sim.faults import JUMBO, KINDS, ON_NODE, Fault, Lab, cables, clear, inject, is_cable, wanted

P0 = ("enp1s0f0np0", "enP2p1s0f0np0")
P1 = ("enp1s0f1np1", "enP2p1s0f1np1")


def plugged(lab: Lab, node: str) -> dict[str, str | None]:
    return {port.nic.netdev: port.segment for (name, _), port in lab.ports.items() if name == node and port.segment}


def switch(*faults: Fault) -> Lab:
    return wanted("switch", 4, faults)


def both(netdevs: tuple[str, str], segment: str) -> dict[str, str]:
    """A cage is one Ethernet segment: both halves are plugged into the same."""
    return dict.fromkeys(netdevs, segment)


def test_switch_has_cage_0_of_every_node() -> None:
    lab = switch()
    for node in spark.node_names(4):
        assert plugged(lab, node) == both(P0, "switch0")
    assert [len(ports) for ports in lab.segments().values()] == [8]
    assert not any(map(is_cable, lab.segments()))
    assert plugged(wanted("switch_two", 2, []), "spark2") == both(P0, "switch0") | both(P1, "switch0")


def test_pairs() -> None:
    direct = wanted("direct", 2, [])
    assert plugged(direct, "spark1") == plugged(direct, "spark2") == both(P0, "cable0")
    crossed = wanted("direct_crossed", 2, [])
    assert plugged(crossed, "spark1") == both(P0, "cable0")
    assert plugged(crossed, "spark2") == both(P1, "cable0")
    two = wanted("direct_two", 2, [])
    assert plugged(two, "spark1") == plugged(two, "spark2") == both(P0, "cable0") | both(P1, "cable1")


def test_ring_mixed_and_single() -> None:
    ring = wanted("ring", 3, [])
    assert cables("ring", 3) == {
        "cable0": [("spark1", 1), ("spark2", 0)],
        "cable1": [("spark2", 1), ("spark3", 0)],
        "cable2": [("spark3", 1), ("spark1", 0)],
    }
    assert all(len(ports) == 4 for ports in ring.segments().values())
    assert all(map(is_cable, ring.segments()))
    assert cables("mixed", 4) == {
        "switch0": [("spark1", 0), ("spark2", 0), ("spark3", 0)],
        "cable0": [("spark1", 1), ("spark4", 0)],
    }
    assert wanted("single", 1, []).segments() == {}


def test_two_100g_cables() -> None:
    lab = wanted("crossed_100g", 2, [])
    assert plugged(lab, "spark2") == both(P0, "switch0") | both(P1, "switch0")
    assert lab.nodes["spark2"]["speed"] == dict.fromkeys((*P0, *P1), 100000)
    assert switch().nodes["spark2"]["speed"] == {}


@pytest.mark.parametrize(
    ("topology", "nodes"),
    [("direct", 3), ("direct_two", 4), ("ring", 2), ("mixed", 2), ("single", 2), ("star", 4)],
)
def test_impossible_topologies_are_refused(topology: str, nodes: int) -> None:
    with pytest.raises(ValueError, match=topology):
        wanted(topology, nodes, [])


def test_no_cable_and_removed_nic() -> None:
    pulled = switch(Fault("spark2", "no_cable"))
    assert plugged(pulled, "spark2") == {}
    assert all(port.present for port in pulled.ports.values())
    assert plugged(pulled, "spark1")
    removed = switch(Fault("spark2", "nic_removed"))
    assert [key[0] for key, port in removed.ports.items() if not port.present] == ["spark2"] * 4


def test_wrong_cage_moves_both_halves() -> None:
    lab = switch(Fault("spark2", "wrong_cage"))
    assert plugged(lab, "spark2") == both(P1, "switch0")


@pytest.mark.parametrize("half", [0, 1, None])
def test_half_down(half: int | None) -> None:
    lab = switch(Fault("spark2", "half_down", half=half))
    assert set(plugged(lab, "spark2")) == {P0[0 if half in (1, None) else 1]}


def test_half_down_in_the_wrong_cage_in_either_order() -> None:
    pair = [Fault("spark2", "half_down"), Fault("spark2", "wrong_cage")]
    assert plugged(switch(*pair), "spark2") == plugged(switch(*reversed(pair)), "spark2") == {P1[0]: "switch0"}


def test_swapped_cables() -> None:
    ring = wanted("ring", 3, [Fault("spark2", "cable_swapped", cage=0, to="spark3", to_cage=0)])
    assert plugged(ring, "spark2") == both(P0, "cable1") | both(P1, "cable1")  # now a loop of spark2
    assert plugged(ring, "spark3") == both(P0, "cable0") | both(P1, "cable2")
    moved = switch(Fault("spark2", "cable_swapped"))
    assert plugged(moved, "spark2") == {}
    assert plugged(moved, "spark3") == both(P0, "switch0") | both(P1, "switch0")
    assert plugged(switch(Fault("spark4", "cable_swapped")), "spark1") == both(P0, "switch0") | both(P1, "switch0")


def test_a_loop_is_a_cable_of_its_own() -> None:
    lab = switch(Fault("spark2", "loop_cable"))
    assert plugged(lab, "spark2") == both(P0, "cable-loop2") | both(P1, "cable-loop2")
    assert is_cable("cable-loop2")


def test_what_the_simulator_is_told() -> None:
    assert switch(Fault("spark2", "speed_100g", half=1)).nodes["spark2"]["speed"] == {P0[1]: 100000, P1[1]: 100000}
    one = [Fault("spark2", "gid_missing", netdev=netdev) for netdev in P0]
    assert switch(*one).nodes["spark2"]["gid_missing"] == sorted(P0)
    assert switch(Fault("spark2", "cma_leak")).nodes["spark2"]["cma_leak"] is True
    assert switch().nodes["spark2"]["cma_leak"] is False


def test_duplicate_mac() -> None:
    lab = switch(Fault("spark2", "duplicate_mac"), Fault("spark3", "duplicate_mac", netdev=P0[1], to="spark1"))
    assert lab.ports["spark2", P0[0]].mac == lab.ports["spark3", P0[0]].mac
    assert lab.ports["spark3", P0[1]].mac == lab.ports["spark1", P0[1]].mac
    assert len({port.mac for port in lab.ports.values()}) == 14
    assert len({port.mac for port in switch().ports.values()}) == 16


def test_faults_on_the_node_have_a_script_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_log, "_journal", lambda _lines: b"a journal")  # the program for it is the lab's
    assert set(node_file_faults.SCRIPTS) == set(ON_NODE)
    lab = switch(Fault("spark2", "docker_subnet", address="10.0.0.1/8"), Fault("spark3", "lldpad"))
    assert lab.on_node == {
        "spark1": {},
        "spark2": {"docker_subnet": "10.0.0.1/8"},
        "spark3": {"lldpad": ""},
        "spark4": {},
    }
    for make, restore in node_file_faults.SCRIPTS.values():
        for script in (make if isinstance(make, str) else make(), restore):
            subprocess.run(["sh", "-n"], input=script, text=True, check=True)


def test_mtu_mismatch_per_half() -> None:
    lab = switch(Fault("spark2", "mtu_mismatch", half=1))
    mtu = {port.nic.netdev: port.mtu for (node, _), port in lab.ports.items() if node == "spark2"}
    assert (mtu[P0[0]], mtu[P0[1]]) == (JUMBO, 1500)


def test_address_faults_hit_the_cabled_cage() -> None:
    moved = Fault("spark2", "wrong_cage")
    assert {netdev for netdev, _ in switch(Fault("spark2", "extra_ipv6")).addresses["spark2"]} == set(P0)
    assert {netdev for netdev, _ in switch(Fault("spark2", "extra_ipv6"), moved).addresses["spark2"]} == set(P1)
    assert switch(Fault("spark2", "extra_ipv6")).nodes["spark2"]["ipv6_first"] == [P0[0], P0[1]]
    assert switch(Fault("spark2", "stale_ipv4")).addresses["spark2"] == [(P0[0], "10.99.0.2/24")]
    stale = Fault("spark2", "stale_ipv4", netdev=P0[1], address="192.168.7.7/24")
    assert switch(stale).addresses["spark2"] == [(P0[1], "192.168.7.7/24")]
    assert wanted("single", 1, [Fault("spark1", "stale_ipv4")]).addresses["spark1"]


def test_degraded_pcie_and_management() -> None:
    lab = switch(Fault("spark2", "degraded_pcie", half=1, width=1, speed="8.0 GT/s PCIe"))
    assert lab.nodes["spark2"]["pcie"] == {netdev: {"width": 1, "speed": "8.0 GT/s PCIe"} for netdev in (P0[1], P1[1])}
    assert switch(Fault("spark3", "management_lost")).management == {
        "spark1": True,
        "spark2": True,
        "spark3": False,
        "spark4": True,
    }


@pytest.mark.parametrize("pair", list(itertools.permutations(KINDS, 2)), ids="+".join)
def test_the_order_of_injection_does_not_matter_and_clearing_restores(pair: tuple[str, str]) -> None:
    first, second = (Fault("spark2", kind) for kind in pair)
    assert view(switch(first, second)) == view(switch(second, first))
    active = inject(inject([], first), second)
    assert clear(active, "spark2", second.kind) == [first]
    assert clear(active, "spark1", None) == active
    assert view(switch(*clear(active, None, None))) == view(switch())


def view(lab: Lab) -> Any:
    ports = {key: vars(port) for key, port in lab.ports.items()}
    return (ports, lab.management, lab.addresses, lab.nodes, lab.on_node)


def test_injecting_again_replaces() -> None:
    once = inject([], Fault("spark2", "degraded_pcie", width=2))
    assert [fault.width for fault in inject(once, Fault("spark2", "degraded_pcie", width=1))] == [1]
    assert len(inject([Fault("spark2", "half_down", half=0)], Fault("spark2", "half_down", half=1))) == 2
