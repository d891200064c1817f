# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import arp
from hypothesis import given
from hypothesis import strategies as st

A, B = "enp1s0f0np0", "enP2p1s0f0np0"
MAC = "4c:bb:47:00:00:01"


def reply(address: str, mac: str, kind: int = 2) -> bytes:
    """As it arrives: padded to the shortest Ethernet frame."""
    own = socket.inet_aton(address)
    return bytes.fromhex("0001080006040" + f"{kind:03x}" + mac.replace(":", "")) + own + bytes(10) + bytes(18)


class Segment:
    """A wire on which some have addresses."""

    def __init__(self, net: Path, owners: list[tuple[str, str, str]]) -> None:
        self.net = net
        self.owners = owners
        self.sent: list[tuple[str, bytes]] = []
        self.waiting: list[tuple[str, str, bytes]] = []
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def send(self, netdev: str, payload: bytes) -> None:
        self.sent.append((netdev, payload))
        target = socket.inet_ntoa(payload[24:28])
        self.waiting += [(one, mac, reply(a, mac)) for one, a, mac in self.owners if (one, a) == (netdev, target)]

    def receive(self, timeout_s: float) -> list[tuple[str, str, bytes]]:
        if not self.waiting:
            self.now += max(timeout_s, 0.001)
        found, self.waiting = self.waiting, []
        return found


def test_everybody_who_has_an_address_is_heard(tmp_path: Path) -> None:
    for netdev in (A, B):
        (tmp_path / netdev).mkdir()
        (tmp_path / netdev / "address").write_text(f"{MAC}\n")
    wire = Segment(
        tmp_path,
        [
            (A, "10.0.0.1", "02:00:00:00:00:02"),
            (A, "10.0.0.1", "02:00:00:00:00:01"),
            (B, "10.1.0.2", "02:00:00:00:00:03"),
        ],
    )
    wire.waiting = [(A, "x", reply("10.9.9.9", MAC)), (A, "x", b"short")]
    found = arp.ask({A: ["10.0.0.1", "10.0.0.2"], B: ["10.1.0.1", "10.1.0.2"]}, wire, wire.clock)
    assert found == [
        arp.Holder(B, "10.1.0.2", "02:00:00:00:00:03"),
        arp.Holder(A, "10.0.0.1", "02:00:00:00:00:01"),
        arp.Holder(A, "10.0.0.1", "02:00:00:00:00:02"),
    ]
    assert len(wire.sent) == arp.PROBES * 4 and wire.now < arp.WAIT_S + 0.1
    netdev, payload = wire.sent[0]
    # Ethernet, IPv4, a request, from our MAC address and no IPv4 address: nobody puts it into a table.
    assert (netdev, payload[:8]) == (A, bytes.fromhex("0001080006040001"))
    assert payload[8:] == bytes.fromhex(MAC.replace(":", "")) + bytes(4) + bytes(6) + socket.inet_aton("10.0.0.1")


def test_who_claims_an_address_unasked_has_it_too() -> None:
    assert arp.sender(reply("10.0.0.1", MAC, kind=1)) == ("10.0.0.1", MAC)


@given(st.binary(max_size=64))
def test_any_packet_is_read(payload: bytes) -> None:
    arp.sender(payload)


@pytest.mark.parametrize("at, value", [(1, 6), (2, 0x86), (4, 8), (5, 16)])
def test_what_is_not_about_ipv4_on_ethernet(at: int, value: int) -> None:
    packet = bytearray(reply("10.0.0.1", MAC))
    packet[at] = value
    assert arp.sender(bytes(packet)) == ("", "")


def test_without_a_link_nobody_is_asked(tmp_path: Path) -> None:
    (tmp_path / "sys/class/net" / A).mkdir(parents=True)
    (tmp_path / "sys/class/net" / A / "carrier").write_text("0\n")
    assert arp.holders(Machine(str(tmp_path), sysfs_root=tmp_path / "sys"), {A: ["10.0.0.1"], B: ["10.1.0.1"]}) == []
