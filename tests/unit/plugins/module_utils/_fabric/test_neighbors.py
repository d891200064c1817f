# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Frames, and conversations of several nodes over simulated cables with a simulated clock."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.neighbors import (
    GRACE_S,
    Beacon,
    Conversation,
    End,
    decode,
    encode,
)
from hypothesis import given
from hypothesis import strategies as st

PORTS = {"enp1s0f0np0": 0, "enp1s0f1np1": 1, "enP2p1s0f0np0": 0, "enP2p1s0f1np1": 1}
BEACON = Beacon("0123456789abcdef", "spark4", "enp1s0f0np0", 0, (1, 3), (0, 1, 3), (0,))


# -- frames


def test_a_frame_says_what_was_put_in() -> None:
    payload = encode(BEACON)
    assert decode(payload) == decode(payload + bytes(40)) == BEACON
    everybody = tuple(range(64))
    assert len(encode(dataclasses.replace(BEACON, heard=everybody, here=everybody, ready=everybody))) < 1280


def test_a_frame_names_nothing_that_is_no_name() -> None:
    for odd in ("eth0\nx", "a" * 16, "\x1b[2J", ""):
        with pytest.raises(ValueError, match="netdev"):
            decode(encode(dataclasses.replace(BEACON, netdev=odd)))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_a_value_error(payload: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(decode(payload), Beacon)


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
        own = [
            End(netdev, cage, brought_up=netdev in self.options.get("brought_up", ())) for netdev, cage in PORTS.items()
        ]
        return Conversation(node, self.all_nodes, own, self.options.get("secret", ""), now)

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
                talk.receive(now, port, self.mac(node, netdev), payload)

    def cables(self, node: str) -> set[tuple[int | None, str, int | None, bool]]:
        return {(h.cage, h.node, h.peer_cage, h.both_ways) for h in self.talks[node].heard()}


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
        talk.receive(0.1, "enp1s0f0np0", "aa:bb:cc:dd:ee:ff", payload)
    assert talk.heard() == before
    assert any("belongs to another cluster" in note and "3 frame(s)" in note for note in talk.notes())


def test_frames_of_other_programs_are_notes_and_not_endless() -> None:
    talk = Air(switch(2)).make("spark1", 0)
    for number in range(50):
        talk.receive(0, "enp1s0f0np0", f"aa:bb:cc:dd:ee:{number:02x}", b"hello")
    assert len([note for note in talk.notes() if "was not understood" in note]) == 20
