# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import ipaddress
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sim import rtnl


def attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", len(data) + 4, kind) + data + b"\0" * (-len(data) % 4)


def message(kind: int, body: bytes) -> bytes:
    return struct.pack("=IHHII", len(body) + 16, kind, 0, 1, 0) + body + b"\0" * (-len(body) % 4)


def link(kind: int = rtnl.RTM_NEWLINK, flags: int = 1, carrier: int = 1, family: int = 0) -> bytes:
    body = struct.pack("=BxHiII", family, 1, 7, flags, 0)
    body += attribute(rtnl.IFLA_IFNAME, b"enp1s0f0np0.5\0")
    body += attribute(rtnl.IFLA_ADDRESS, bytes.fromhex("48210b9601c0"))
    body += attribute(rtnl.IFLA_MTU, struct.pack("=I", 9000))
    body += attribute(rtnl.IFLA_LINK, struct.pack("=I", 3))
    body += attribute(rtnl.IFLA_CARRIER, bytes([carrier]))
    body += attribute(rtnl.IFLA_LINKINFO, attribute(rtnl.IFLA_INFO_KIND, b"vlan\0"))
    return message(kind, body)


def address(kind: int, text: str) -> bytes:
    parsed = ipaddress.ip_address(text)
    family = socket.AF_INET if parsed.version == 4 else socket.AF_INET6
    return message(kind, struct.pack("=BBBBI", family, 24, 0, 0, 7) + attribute(rtnl.IFA_ADDRESS, parsed.packed))


def test_link() -> None:
    expected = rtnl.Link(7, "enp1s0f0np0.5", "48:21:0b:96:01:c0", 9000, True, True, 3, "vlan")
    assert list(rtnl.parse(link())) == [rtnl.Event(False, expected)]


def test_a_link_that_is_down_or_gone() -> None:
    (down,) = rtnl.parse(link(flags=0, carrier=0))
    assert down is not None
    assert isinstance(down.what, rtnl.Link)
    assert (down.what.up, down.what.carrier) == (False, False)
    (gone,) = rtnl.parse(link(rtnl.RTM_DELLINK))
    assert gone is not None
    assert gone.gone


def test_events_of_bridge_ports_are_passed_over() -> None:
    assert list(rtnl.parse(link(family=socket.AF_BRIDGE))) == []


@pytest.mark.parametrize("text", ["192.168.100.1", "fe80::1"])
def test_addresses_and_the_end_of_a_dump(text: str) -> None:
    data = address(rtnl.RTM_NEWADDR, text) + address(rtnl.RTM_DELADDR, text) + message(rtnl.NLMSG_DONE, b"\0" * 4)
    found = rtnl.Address(7, text)
    assert list(rtnl.parse(data)) == [rtnl.Event(False, found), rtnl.Event(True, found), None]


def test_a_refusal_is_an_error() -> None:
    assert list(rtnl.parse(message(rtnl.NLMSG_ERROR, struct.pack("=i", 0)))) == []
    with pytest.raises(OSError, match="refused"):
        list(rtnl.parse(message(rtnl.NLMSG_ERROR, struct.pack("=i", -1))))


@given(st.binary(max_size=200))
def test_no_bytes_make_the_attribute_parser_fail(data: bytes) -> None:
    rtnl.attributes(data)
