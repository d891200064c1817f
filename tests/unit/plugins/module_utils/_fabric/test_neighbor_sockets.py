# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The sockets and interfaces under the conversation, with sockets that are none; and the module on top."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import calls
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import NOT_FOUND, Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import ibdev2netdev, neighbor_sockets
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.neighbor_sockets import (
    BROADCAST,
    Switched,
    Wire,
    ends,
    lldpd,
    probe,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.neighbors import (
    ETHERTYPE,
    Conversation,
    End,
    Neighbors,
    Port,
)
from sysfs_tree import SysfsTree

A, B = "enp1s0f0np0", "enP2p1s0f0np0"
OUTGOING = 4


class FakeSocket:
    """A packet socket in name only; it has a pipe, so that it can be polled."""

    made: list[FakeSocket]
    errors: dict[str, OSError]

    def __init__(self, *_family: int) -> None:
        self.reader, self.writer = os.pipe()
        self.bound: tuple[str, int] = ("", 0)
        self.waiting: list[tuple[bytes, tuple[Any, ...]]] = []
        self.sent: list[tuple[bytes, tuple[Any, ...]]] = []
        self.options: list[bytes] = []
        self.closed = False
        FakeSocket.made.append(self)

    def setblocking(self, flag: bool) -> None:
        assert not flag

    def bind(self, address: tuple[str, int]) -> None:
        if "bind" in FakeSocket.errors:
            raise FakeSocket.errors["bind"]
        self.bound = address

    def fileno(self) -> int:
        return self.reader

    def setsockopt(self, _level: int, _option: int, value: bytes) -> None:
        self.options.append(value)

    def sendto(self, payload: bytes, address: tuple[Any, ...]) -> None:
        if "send" in FakeSocket.errors:
            raise FakeSocket.errors["send"]
        self.sent.append((payload, address))

    def arrive(self, payload: bytes, direction: int = 1) -> None:
        mac = bytes.fromhex("48210b9602c0")
        self.waiting.append((payload, (self.bound[0], self.bound[1], direction, 1, mac)))
        os.write(self.writer, b"x")

    def recvfrom(self, _size: int) -> tuple[bytes, tuple[Any, ...]]:
        if "receive" in FakeSocket.errors:
            raise FakeSocket.errors["receive"]
        os.read(self.reader, 1)
        return self.waiting.pop(0)

    def close(self) -> None:
        if not self.closed:
            os.close(self.reader)
            os.close(self.writer)
        self.closed = True


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeSocket]]:
    FakeSocket.made, FakeSocket.errors = [], {}
    monkeypatch.setattr(neighbor_sockets.socket, "socket", FakeSocket)
    monkeypatch.setattr(neighbor_sockets.socket, "if_nametoindex", lambda _netdev: 3)
    yield FakeSocket
    for made in FakeSocket.made:
        made.close()


def silent(_argv: Sequence[str]) -> Completed:
    return Completed(NOT_FOUND, "", "not found")


def test_every_ethernet_port_of_an_rdma_device(sysfs: SysfsTree) -> None:
    sysfs.spark(cabled={0})
    found = ends(ibdev2netdev.read(sysfs.root))
    assert {(end.netdev, end.cage) for end in found} == {
        ("enp1s0f0np0", 0), ("enp1s0f1np1", 1), ("enP2p1s0f0np0", 0), ("enP2p1s0f1np1", 1),
    }  # fmt: skip


def test_frames_go_out_and_come_in(sockets: type[FakeSocket], sysfs: SysfsTree) -> None:
    wire = Wire([A, B], sysfs.root)
    assert [made.bound for made in sockets.made] == [(A, ETHERTYPE), (B, ETHERTYPE)]
    wire.send(A, b"hello")
    wire.send("eth9", b"hello")
    assert sockets.made[0].sent == [(b"hello", (A, ETHERTYPE, 0, 0, BROADCAST))]
    assert wire.receive(0) == []
    sockets.made[1].arrive(b"answer")
    sockets.made[0].arrive(b"our own", OUTGOING)
    assert wire.receive(1) == [(B, "48:21:0b:96:02:c0", b"answer")]
    wire.close()
    assert all(made.closed for made in sockets.made)


def test_a_port_that_goes_down_is_no_failure(sockets: type[FakeSocket], sysfs: SysfsTree) -> None:
    wire = Wire([A], sysfs.root)
    sockets.errors = {"send": OSError(100, "Network is down"), "receive": OSError(100, "Network is down")}
    wire.send(A, b"hello")
    assert wire.lost == {A: "Network is down"}
    sockets.made[0].arrive(b"x")
    assert wire.receive(0) == []
    sockets.errors = {}
    wire.send(A, b"hello")
    assert wire.lost == {}


def test_a_port_that_left(sockets: type[FakeSocket], sysfs: SysfsTree) -> None:
    sockets.errors = {"bind": OSError(19, "No such device")}
    wire = Wire([A], sysfs.root)
    assert wire.lost == {A: "No such device"}
    wire.send(A, b"hello")
    assert all(made.closed for made in sockets.made)


def test_state_of_interfaces(sockets: type[FakeSocket], sysfs: SysfsTree) -> None:
    sysfs.spark(cabled={0})
    calls: list[Sequence[str]] = []

    def runner(argv: Sequence[str]) -> Completed:
        calls.append(argv)
        return Completed(0) if argv[-1] == "up" else Completed(2, "", "RTNETLINK answers: no")

    wire = Wire([A], sysfs.root, runner)
    assert wire.carrier(A) and not wire.carrier("enp1s0f1np1")
    assert wire.admin_up(A) and not wire.admin_up("eth9")
    assert wire.set_up(A, True) == ""
    assert wire.set_up(A, False) == "RTNETLINK answers: no"
    assert calls[0] == ["ip", "link", "set", "dev", A, "up"]


class FakeWire:
    """One port whose other end speaks; a clock that only moves when somebody waits."""

    def __init__(self, up: bool = True, refuse: str = "") -> None:
        self.now = 0.0
        self.up = {A: up}
        self.refuse = refuse
        self.switched: list[tuple[str, bool]] = []
        self.lost: dict[str, str] = {}
        self.peer: Conversation | None = Conversation("b", ["a", "b"], [End("p", 1, carrier=True)], "", 0.0)
        self.sent = 0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def carrier(self, netdev: str) -> bool:
        return self.up[netdev]

    def admin_up(self, netdev: str) -> bool:
        return self.up[netdev]

    def set_up(self, netdev: str, up: bool) -> str:
        self.switched.append((netdev, up))
        if self.refuse == ("up" if up else "down"):
            return "RTNETLINK answers: Operation not permitted"
        self.up[netdev] = up
        return ""

    def send(self, _netdev: str, payload: bytes) -> None:
        self.sent += 1
        if self.peer:
            self.peer.receive(self.now, "p", "aa:aa:aa:aa:aa:aa", payload)
            self.peer.finished(self.now)

    def receive(self, timeout_s: float) -> list[Any]:
        self.now += max(0.01, timeout_s)
        if self.peer and self.up[A]:
            return [(A, "bb:bb:bb:bb:bb:bb", self.peer.frame("p"))]
        return []


def talk_on(wire: FakeWire, timeout_s: float = 10, may_switch_on: bool = True, runner: Any = silent) -> Neighbors:
    own = Conversation("a", ["a", "b"], [End(A, 0)], "", wire.clock())
    return probe(own, wire, timeout_s, may_switch_on, runner=runner, clock=wire.clock, sleep=wire.sleep)


def test_a_probe_ends_when_all_is_heard() -> None:
    wire = FakeWire()
    found = talk_on(wire)
    assert found.complete and found.notes == ()
    assert 0.3 <= found.seconds <= 1
    assert [(h.node, h.peer_cage, h.both_ways) for h in found.heard] == [("b", 1, True)]
    assert found.interfaces == {A: Port(True)}
    assert wire.switched == []


def test_a_probe_ends_at_its_timeout() -> None:
    wire = FakeWire()
    wire.peer = None
    found = talk_on(wire, timeout_s=2)
    assert not found.complete and found.heard == ()
    assert 2 <= found.seconds <= 2.2
    assert 18 <= wire.sent <= 25  # ten per second, and the farewells


def test_a_port_that_was_off_is_off_again() -> None:
    wire = FakeWire(up=False)
    found = talk_on(wire)
    assert found.interfaces[A].brought_up and found.heard[0].node == "b"
    assert wire.switched == [(A, True), (A, False)]


def test_check_mode_switches_nothing_on() -> None:
    wire = FakeWire(up=False)
    found = talk_on(wire, 1, may_switch_on=False)
    assert wire.switched == [] and found.heard == ()
    assert "not switched on in check mode" in found.notes[0]


@pytest.mark.parametrize(("refuse", "words"), [("up", "could not be switched on"), ("down", "is still on")])
def test_a_port_that_cannot_be_switched(refuse: str, words: str) -> None:
    found = talk_on(FakeWire(up=False, refuse=refuse), 1)
    assert any(words in note for note in found.notes)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_switches_ports_off_again(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    wire = FakeWire(up=False)
    with pytest.raises(SystemExit), Switched(wire, [A]):
        signal.raise_signal(number)
    assert wire.switched == [(A, True), (A, False)]
    assert signal.getsignal(number) == before


def test_a_failure_while_switching_on_undoes_what_was_done() -> None:
    wire = FakeWire(up=False)

    def set_up(netdev: str, up: bool) -> str:
        if netdev == B:
            raise KeyboardInterrupt
        wire.switched.append((netdev, up))
        return ""

    wire.set_up = set_up  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt), Switched(wire, [A, B]):
        pass
    assert wire.switched == [(A, True), (A, False)]


def test_a_switch_that_lldpd_knows(fixtures: Path) -> None:
    text = (fixtures / "lldp/one-interface-no-name.json").read_text()
    found = talk_on(FakeWire(), runner=lambda _argv: Completed(0, text))
    assert [h.system for h in found.heard if h.source == "lldp"] == ["a4:8c:db:6a:09:00"]


def test_what_the_planner_may_know_a_machine_by() -> None:
    chassis, port = "48:21:0b:95:01:01", "48:21:0b:99:01:01"

    def said(port_id: Any) -> Completed:
        named = {"spark": {"id": {"type": "mac", "value": chassis}, "mgmt-ip": "10.0.0.2"}}
        entry = {A: {"chassis": named, "port": {"id": port_id}}}
        return Completed(0, json.dumps({"lldp": {"interface": entry}}))

    for port_id, expected in (
        ({"type": "mac", "value": port}, (chassis, port, "10.0.0.2")),
        ({"type": "ifname", "value": "eth0"}, (chassis, "10.0.0.2")),
    ):
        (heard,), _problem = lldpd(lambda _argv, port_id=port_id: said(port_id), {A: End(A, 0)})  # type: ignore[misc]
        assert heard.ids == expected


@pytest.mark.parametrize(
    ("done", "problem"),
    [
        (Completed(NOT_FOUND), ""),
        (Completed(1, "", "unable to connect to socket /run/lldpd.socket"), "lldpcli: unable to connect"),
        (Completed(0, "plain"), "no JSON"),
        (Completed(0, "{}"), ""),
    ],
)
def test_lldpd_that_does_not_help(done: Completed, problem: str) -> None:
    found, said = lldpd(lambda _argv: done, {})
    assert found == [] and problem in said and bool(said) == bool(problem)


def test_the_call(sockets: type[FakeSocket], sysfs: SysfsTree, monkeypatch: pytest.MonkeyPatch) -> None:
    sysfs.spark(cabled={0})
    monkeypatch.setattr(neighbor_sockets, "probe", lambda *a, **k: probe(*a, **k, runner=silent))
    request = {"node": "a", "nodes": ["a", "b"], "cluster": "x", "timeout_s": 0.2}
    answer = calls.read("neighbors", calls.run("neighbors", request, check=True), "a")
    assert answer.interfaces[A].carrier and not answer.heard and not answer.complete
    assert answer.notes == ("not heard, neither directly nor through others: b",)
    assert all(made.closed for made in sockets.made) and sockets.made[0].sent
    with pytest.raises(SparkError, match="c is not among the nodes"):
        calls.run("neighbors", {**request, "node": "c"}, check=True)
    sockets.errors = {"bind": PermissionError(1, "Operation not permitted")}
    with pytest.raises(SparkError, match="become: true"):
        calls.run("neighbors", request, check=True)
