# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Frames, and conversations of several nodes over simulated cables with a simulated clock."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import lldp
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.neighbors import (
    ETHERTYPE,
    GRACE_S,
    MAX_PAYLOAD,
    Beacon,
    Conversation,
    End,
    Port,
    decode,
    encode,
    module_serial,
    token_of,
)
from hypothesis import given
from hypothesis import strategies as st

PORTS = {"enp1s0f0np0": 0, "enp1s0f1np1": 1, "enP2p1s0f0np0": 0, "enP2p1s0f1np1": 1}
BEACON = Beacon(b"12345678", 3, "spark4", "enp1s0f0np0", 0, 77, 0b1011, 0b1, frozenset({5, 9}))


# -- frames

names = st.from_regex(r"[a-z0-9]{1,15}", fullmatch=True)
numbers = st.integers(0, 2**32 - 1)


@given(
    st.builds(
        Beacon,
        st.binary(min_size=8, max_size=8),
        st.integers(0, 65535),
        names,
        names,
        st.none() | st.integers(0, 254),
        numbers,
        st.integers(0, 2**64 - 1),
        st.integers(0, 2**64 - 1),
        st.frozensets(numbers, max_size=100),
    )
)
def test_a_frame_says_what_was_put_in(beacon: Beacon) -> None:
    payload = encode(beacon, 8)
    assert len(payload) <= MAX_PAYLOAD
    assert decode(payload) == decode(payload + bytes(40)) == beacon


def test_a_frame_names_nothing_that_is_no_name() -> None:
    beacon = Beacon(b"12345678", 0, "spark1", "eth0", 0, 1, 1, 1)
    assert decode(encode(beacon, 1)) == beacon
    for odd in ("eth0\nx", "a" * 16, "\x1b[2J", ""):
        with pytest.raises(ValueError, match=r"name of a network interface|control characters"):
            decode(encode(dataclasses.replace(beacon, netdev=odd), 1))


def test_many_nonces_take_turns() -> None:
    beacon = dataclasses.replace(BEACON, heard=frozenset(range(1000)))
    shown = [decode(encode(beacon, 64, first)) for first in range(0, 1024, 256)]
    assert all(len(encode(beacon, 64, first)) <= MAX_PAYLOAD for first in (0, 999))
    assert frozenset().union(*(part.heard for part in shown)) == beacon.heard


@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda tail: b"SMNB\x01" + tail))
def test_any_bytes_are_a_frame_or_a_value_error(payload: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(decode(payload), Beacon)


@given(st.integers(0, 60))
def test_a_frame_that_is_cut_off(length: int) -> None:
    whole = encode(BEACON, 8)
    with pytest.raises(ValueError):
        decode(whole[: min(length, len(whole) - 1)])


def test_another_version() -> None:
    payload = bytearray(encode(BEACON, 8))
    payload[4] = 2
    with pytest.raises(ValueError, match="version 2"):
        decode(bytes(payload))


def test_tokens_differ_by_nodes_and_secret() -> None:
    assert len({token_of(["a", "b"], ""), token_of(["a"], ""), token_of(["a", "b"], "x"), token_of(["ab"], "")}) == 4


# -- conversations


class Air:
    """Nodes, and the segments that their cages are plugged into; both halves of a cage hear."""

    def __init__(
        self, plugs: Mapping[tuple[str, int], str], starts: Mapping[str, float] | None = None, **options: Any
    ) -> None:
        nodes = sorted({node for node, _cage in plugs})
        self.plugs = plugs
        self.starts = {node: (starts or {}).get(node, 0.0) for node in nodes}
        self.deaf: set[str] = set()
        self.talks: dict[str, Conversation] = {}
        self.ended: dict[str, float] = {}
        self.all_nodes = nodes
        self.options = options

    def make(self, node: str, now: float) -> Conversation:
        place = self.all_nodes.index(node)
        own = [
            End(netdev, cage, 1000 * (place + 1) + number, brought_up=netdev in self.options.get("brought_up", ()))
            for number, (netdev, cage) in enumerate(PORTS.items())
        ]
        macs = self.options.get("own", ())
        return Conversation(node, self.all_nodes, own, self.options.get("secret", ""), now, own=macs)

    def mac(self, node: str, netdev: str) -> str:
        return f"48:21:0b:96:{self.all_nodes.index(node):02x}:{list(PORTS).index(netdev):02x}"

    def run(self, seconds: float) -> Air:
        step = 0
        while step * 0.1 <= seconds:
            self.tick(step * 0.1)
            step += 1
        return self

    def tick(self, now: float) -> None:
        for node, start in self.starts.items():
            if node not in self.talks and now >= start:
                self.talks[node] = self.make(node, now)
        speaking = {node: talk for node, talk in self.talks.items() if node not in self.ended}
        for node, talk in speaking.items():
            for netdev, end in talk.ends.items():
                talk.carrier(now, netdev, (node, PORTS[netdev]) in self.plugs)
                if end.carrier:
                    self.deliver(now, node, netdev, talk.frame(netdev), speaking)
        for node, talk in speaking.items():
            if talk.finished(now):
                self.ended[node] = now
                for netdev, end in talk.ends.items():  # the farewell
                    if end.carrier:
                        self.deliver(now, node, netdev, talk.frame(netdev), speaking)

    def deliver(self, now: float, node: str, netdev: str, payload: bytes, to: Mapping[str, Conversation]) -> None:
        segment = self.plugs[node, PORTS[netdev]]
        for other, talk in to.items():
            for port, cage in PORTS.items():
                if self.plugs.get((other, cage)) != segment or (other, port) == (node, netdev) or other in self.deaf:
                    continue
                talk.receive(now, port, self.mac(node, netdev), ETHERTYPE, payload)

    def cables(self, node: str) -> set[tuple[int | None, str, int | None, bool]]:
        return {(h.cage, h.node, h.peer_cage, h.both_ways) for h in self.talks[node].heard() if h.source == "probe"}


def switch(count: int) -> dict[tuple[str, int], str]:
    return {(f"spark{number}", 0): "switch" for number in range(1, count + 1)}


def ring(count: int) -> dict[tuple[str, int], str]:
    plugs = {}
    for number in range(count):
        plugs[f"spark{number + 1}", 1] = f"cable{number}"
        plugs[f"spark{(number + 1) % count + 1}", 0] = f"cable{number}"
    return plugs


def test_a_switch_ends_within_a_second() -> None:
    air = Air(switch(4)).run(3)
    assert max(air.ended.values()) <= 0.8
    assert air.cables("spark1") == {(0, f"spark{number}", 0, True) for number in (2, 3, 4)}
    assert len(air.talks["spark1"].heard()) == 2 * 2 * 3  # each half hears both halves of three nodes
    assert air.talks["spark1"].notes() == []


@pytest.mark.parametrize("count", [3, 4, 8])
def test_a_ring_knows_of_nodes_that_are_not_adjacent(count: int) -> None:
    air = Air(ring(count)).run(5)
    assert max(air.ended.values()) <= 1.5
    assert air.cables("spark2") == {(0, "spark1", 1, True), (1, "spark3", 0, True)}


def test_crossed_cages_and_two_cables() -> None:
    air = Air({("a", 0): "one", ("b", 1): "one", ("a", 1): "two", ("b", 0): "two"}).run(2)
    assert air.cables("a") == {(0, "b", 1, True), (1, "b", 0, True)}
    assert set(air.ended) == {"a", "b"}


def test_nodes_that_start_seconds_apart_wait_for_each_other() -> None:
    air = Air(switch(3), {"spark2": 1.5, "spark3": 4.0}).run(6)
    assert set(air.ended) == {"spark1", "spark2", "spark3"}
    assert 4.3 <= min(air.ended.values()) <= max(air.ended.values()) <= 5.0
    assert air.cables("spark3") == {(0, "spark1", 0, True), (0, "spark2", 0, True)}


def test_a_node_that_never_speaks_is_named_and_nobody_ends() -> None:
    air = Air(switch(3), {"spark3": 1000}).run(5)
    assert air.ended == {}
    assert air.talks["spark1"].notes() == ["not heard, neither directly nor through others: spark3"]


def test_a_loop_cable_is_heard_as_the_node_itself() -> None:
    air = Air({("a", 0): "loop", ("a", 1): "loop", ("b", 0): "x"}).run(1)
    assert air.cables("a") == {(0, "a", 1, True), (1, "a", 0, True)}
    assert air.talks["a"].notes() == ["not heard, neither directly nor through others: b"]


def test_both_cages_on_one_switch() -> None:
    plugs = {(node, cage): "switch" for node in ("a", "b") for cage in (0, 1)}
    air = Air(plugs).run(2)
    assert set(air.ended) == {"a", "b"}
    assert {(cage, node, far) for cage, node, far, _both in air.cables("a")} == {
        (0, "a", 1), (1, "a", 0), (0, "b", 0), (0, "b", 1), (1, "b", 0), (1, "b", 1),
    }  # fmt: skip


def test_a_port_with_a_link_and_nobody_delays_a_little() -> None:
    air = Air({("a", 0): "one", ("b", 0): "one", ("b", 1): "something else"}).run(4)
    assert 1.0 <= air.ended["b"] <= 1.6


def test_a_port_that_was_switched_on_is_given_time_to_train() -> None:
    plugs = {("a", 0): "one", ("b", 0): "one"}
    assert max(Air(plugs, brought_up=["enp1s0f0np0"]).run(3).ended.values()) <= 1
    slow = Air(plugs, brought_up=["enp1s0f1np1"]).run(4)
    assert slow.ended == {}
    for step in range(41, 60):
        slow.tick(step / 10)
    assert min(slow.ended.values()) >= 4.9


def test_one_way() -> None:
    air = Air(switch(2))
    air.deaf.add("spark2")
    air.run(3)
    assert air.ended == {}
    assert air.cables("spark1") == {(0, "spark2", 0, False)}
    assert "enp1s0f0np0: spark2 is heard, and does not hear this node" in air.talks["spark1"].notes()


def test_who_knows_enough_does_not_wait_for_the_others_for_ever() -> None:
    air = Air(switch(2)).run(0.2)
    air.ended["spark2"] = 0.2  # killed after it was heard and had heard
    for step in range(3, 60):
        air.tick(step / 10)
    assert GRACE_S <= air.ended["spark1"] <= GRACE_S + 1


def test_another_cluster_on_the_same_switch() -> None:
    ours, theirs = Air(switch(2)), Air(switch(2), secret="another")
    ours.tick(0)
    theirs.tick(0)
    payload = theirs.talks["spark2"].frame("enp1s0f0np0")
    talk = ours.talks["spark1"]
    before = talk.heard()
    for _time in range(3):
        talk.receive(0.1, "enp1s0f0np0", "aa:bb:cc:dd:ee:ff", ETHERTYPE, payload)
    assert talk.heard() == before
    assert any("belongs to another cluster" in note and "3 frame(s)" in note for note in talk.notes())


def test_frames_of_other_programs_are_notes_and_not_endless() -> None:
    talk = Air(switch(2)).make("spark1", 0)
    for number in range(50):
        talk.receive(0, "enp1s0f0np0", f"aa:bb:cc:dd:ee:{number:02x}", ETHERTYPE, b"hello")
    talk.receive(0, "enp1s0f0np0", "aa:bb:cc:dd:ee:00", lldp.ETHERTYPE, b"hello")
    assert len([note for note in talk.notes() if "was not understood" in note]) == 20


@given(st.binary(max_size=100), st.sampled_from([ETHERTYPE, lldp.ETHERTYPE]))
def test_no_frame_breaks_a_conversation(payload: bytes, ethertype: int) -> None:
    talk = Air(switch(2)).make("spark1", 0)
    for tail in (payload, b"SMNB\x01" + payload, b"SMNB\x01" + talk.token + payload):
        talk.receive(0, "enp1s0f0np0", "aa:bb:cc:dd:ee:ff", ethertype, tail)
    talk.finished(1)
    assert isinstance(talk.notes(), list)


def test_a_node_that_starts_again_counts_once() -> None:
    air = Air(switch(2)).run(0.1)
    talk = air.talks["spark1"]
    again = encode(dataclasses.replace(decode(air.talks["spark2"].frame("enp1s0f0np0")), nonce=4711), 1)
    talk.receive(0.2, "enp1s0f0np0", "aa:bb:cc:dd:ee:ff", ETHERTYPE, again)
    heard = [h for h in talk.heard() if h.netdev == "enp1s0f0np0" and h.peer_netdev == "enp1s0f0np0"]
    assert [h.peer_mac for h in heard] == ["aa:bb:cc:dd:ee:ff"]


def test_a_confirmation_stays_when_later_frames_have_no_room_for_it() -> None:
    air = Air(switch(2)).run(0.3)
    talk = air.talks["spark1"]
    bare = dataclasses.replace(decode(air.talks["spark2"].frame("enp1s0f0np0")), heard=frozenset())
    talk.receive(0.4, "enp1s0f0np0", air.mac("spark2", "enp1s0f0np0"), ETHERTYPE, encode(bare, 1))
    assert all(h.both_ways for h in talk.heard())


def test_many_nodes_speak_less_often() -> None:
    talk = Conversation("n0", [f"n{number}" for number in range(512)], [End("a", 0, 1)], "", 0)
    assert talk.interval_s == pytest.approx(0.8)
    assert len(talk.frame("a")) <= MAX_PAYLOAD


@pytest.mark.parametrize(
    ("me", "nodes", "message"),
    [("x", ["a"], "not among"), ("n0", [f"n{number}" for number in range(2001)], "at most 2000")],
)
def test_impossible_lists_of_nodes(me: str, nodes: Sequence[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Conversation(me, nodes, [], "", 0)


def test_lldp_of_a_switch_and_of_a_node() -> None:
    air = Air(switch(2)).run(0.3)
    talk = air.talks["spark1"]
    rack = lldp.Announcement("rack-switch", "swp7", ("b8:69:f4:00:12:30",))
    twin = lldp.Announcement("renamed", "x", (air.mac("spark2", "enp1s0f0np0"),))
    named = lldp.Announcement("Spark2.example.org", "y")
    own = lldp.Announcement("spark1", "z")
    talk.add_announcements([("enp1s0f0np0", said) for said in (rack, rack, twin, named, own)] + [("eth9", rack)])
    raw = bytes.fromhex("020704b869f4001230" + "040405737031" + "0000")
    talk.receive(0.4, "enp1s0f1np1", "b8:69:f4:00:12:31", lldp.ETHERTYPE, raw)
    talk.receive(0.4, "enp1s0f1np1", "b8:69:f4:00:12:31", lldp.ETHERTYPE, raw)
    found = [(h.netdev, h.node, h.system, h.port, h.peer_mac) for h in talk.heard() if h.source == "lldp"]
    assert found == [
        ("enp1s0f0np0", "", "rack-switch", "swp7", "b8:69:f4:00:12:30"),
        ("enp1s0f0np0", "spark2", "renamed", "x", air.mac("spark2", "enp1s0f0np0")),
        ("enp1s0f0np0", "spark2", "Spark2.example.org", "y", ""),
        ("enp1s0f1np1", "", "b8:69:f4:00:12:30", "sp1", "b8:69:f4:00:12:31"),
    ]
    assert {h.both_ways for h in talk.heard() if h.source == "lldp"} == {None}
    assert [(h.peer_netdev, h.peer_cage) for h in talk.heard() if h.system == "renamed"] == [("enp1s0f0np0", 0)]


LLDPD = [  # who speaks: its chassis is the management port, as lldpd's is, and all call themselves the same
    # our own, back from the switch or through the other cage
    (("spark", "enp1s0f1np1", ("48:21:0b:95:00:01",)), "", None),
    (("spark", "48:21:0B:96:00:01", ("48:21:0b:95:00:01", "48:21:0b:96:00:01")), "", None),
    (("spark", "enp1s0f1np1", ()), "48:21:0b:96:00:01", None),
    # another node: by its port, else by its chassis; which of its ports spoke is not told by that
    (("spark", "enp1s0f0np0", ("48:21:0b:95:01:01",)), "48:21:0b:96:01:00", ("spark2", 0)),
    (("spark", "48:21:0B:96:01:00", ("48:21:0b:95:01:01", "48:21:0b:96:01:00")), "", ("spark2", 0)),
    (("spark", "swp1", ("48:21:0b:96:01:00",)), "", ("spark2", None)),
    # a switch, whatever it is called; and whom only the list of all machines knows
    (("spark1", "swp1", ("b8:69:f4:00:12:30",)), "", ("", None)),
    (("Spark2.example.org", "swp1", ()), "b8:69:f4:00:12:31", ("", None)),
    (("spark", "enp1s0f0np0", ("48:21:0b:95:01:01",)), "", ("", None)),
    (("spark", "enp1s0f0np0", (), ("10.0.0.2",)), "", ("", None)),
    # nothing but a name
    (("SPARK2.example.org", "x"), "", ("spark2", None)),
    (("spark1", "x"), "", None),
    (("spark", "x"), "", ("", None)),
]  # fmt: skip


@pytest.mark.parametrize(("said", "sender", "expected"), LLDPD)
def test_who_speaks_lldp(said: Any, sender: str, expected: tuple[str, int | None] | None) -> None:
    air = Air(switch(2), own=["48:21:0B:95:00:01", *(f"48:21:0b:96:00:0{n}" for n in range(4))]).run(0.3)
    talk = air.talks["spark1"]
    talk.ends["enp1s0f1np1"].announcements["x"] = (lldp.Announcement(*said), sender)
    found = [(h.node, h.peer_cage) for h in talk.heard() if h.source == "lldp"]
    assert found == ([expected] if expected else [])


def test_what_the_planner_may_know_it_by() -> None:
    talk = Air(switch(2)).run(0.3).talks["spark1"]
    chassis, port = "48:21:0b:95:01:01", "48:21:0b:99:01:01"
    talk.add_announcements([("enp1s0f0np0", lldp.Announcement("spark", port, (chassis, port), ("10.0.0.2",)))])
    talk.add_announcements([("enp1s0f1np1", lldp.Announcement("spark", "eth0", (chassis,)))])
    heard = [(h.peer_mac, h.ids) for h in talk.heard() if h.source == "lldp"]
    assert heard == [(port, (chassis, "10.0.0.2")), (chassis, (chassis,))]


def test_two_nodes_with_one_short_name_are_not_told_by_it() -> None:
    talk = Conversation("a.x", ["a.x", "spark.x", "spark.y"], [End("p", 0, 1)], "", 0)
    talk.add_announcements([("p", lldp.Announcement("spark", "z"))])
    assert [(h.node, h.system) for h in talk.heard()] == [("", "spark")]


def test_interfaces_and_serials() -> None:
    air = Air(switch(2), brought_up=["enp1s0f0np0"]).run(0)
    shown = air.talks["spark1"].interfaces({"enp1s0f0np0": "APF21330038TKU"})
    assert shown["enp1s0f0np0"] == Port(True, True, "APF21330038TKU")
    assert shown["enp1s0f1np1"] == Port(False)


@pytest.mark.parametrize(
    ("text", "serial"),
    [
        ("\tIdentifier                                : 0x11 (QSFP28)\n\tVendor SN      : APF2133 \n", "APF2133"),
        ("netlink error: Operation not supported\n", ""),
        ("", ""),
    ],
)
def test_module_serials(text: str, serial: str) -> None:
    assert module_serial(text) == serial
