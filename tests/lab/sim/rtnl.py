# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Just enough rtnetlink: links and addresses of a network namespace, as a dump and as events."""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

GROUPS = 0x1 | 0x10 | 0x100  # RTMGRP_LINK, RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR
RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK = 16, 17, 18
RTM_NEWADDR, RTM_DELADDR, RTM_GETADDR = 20, 21, 22
NLMSG_ERROR, NLMSG_DONE = 2, 3
NLM_F_REQUEST, NLM_F_DUMP = 0x1, 0x300
IFLA_ADDRESS, IFLA_IFNAME, IFLA_MTU, IFLA_LINK, IFLA_LINKINFO, IFLA_CARRIER = 1, 3, 4, 5, 18, 33
IFLA_INFO_KIND = 1
IFA_ADDRESS, IFA_LOCAL = 1, 2
IFF_UP = 0x1
BUFFER = 1 << 20


@dataclass(frozen=True)
class Link:
    index: int
    name: str
    mac: str
    mtu: int
    up: bool
    carrier: bool
    below: int  # ifindex of the device that this one stands on, 0 for none
    kind: str  # "vlan", "veth", …


@dataclass(frozen=True)
class Address:
    index: int
    address: str


@dataclass(frozen=True)
class Event:
    gone: bool
    what: Link | Address


def attributes(data: bytes) -> dict[int, bytes]:
    found = {}
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        if length < 4:
            break
        found[kind & 0x3FFF] = data[4:length]
        data = data[(length + 3) & ~3 :]
    return found


def parse(data: bytes) -> Iterator[Event | None]:
    """The events of one datagram; None for the end of a dump. What we do not know is passed over."""
    while len(data) >= 16:
        length, kind, _flags, _sequence, _pid = struct.unpack_from("=IHHII", data)
        if length < 16:
            return
        body, data = data[16:length], data[(length + 3) & ~3 :]
        if kind == NLMSG_DONE:
            yield None
        elif kind == NLMSG_ERROR:
            code = struct.unpack_from("=i", body)[0]
            if code:
                raise OSError(-code, "rtnetlink refused the request")
        elif kind in (RTM_NEWLINK, RTM_DELLINK) and len(body) >= 16 and body[0] == socket.AF_UNSPEC:
            yield Event(kind == RTM_DELLINK, link(body))
        elif kind in (RTM_NEWADDR, RTM_DELADDR) and len(body) >= 8:
            found = address(body)
            if found:
                yield Event(kind == RTM_DELADDR, found)


def link(body: bytes) -> Link:
    index, flags = struct.unpack_from("=4xiI", body)
    attrs = attributes(body[16:])
    info = attributes(attrs.get(IFLA_LINKINFO, b""))
    return Link(
        index=index,
        name=attrs.get(IFLA_IFNAME, b"").rstrip(b"\0").decode(),
        mac=attrs.get(IFLA_ADDRESS, b"").hex(":"),
        mtu=int.from_bytes(attrs.get(IFLA_MTU, b""), "little"),
        up=bool(flags & IFF_UP),
        carrier=attrs.get(IFLA_CARRIER, b"\0")[:1] == b"\1",
        below=int.from_bytes(attrs.get(IFLA_LINK, b""), "little"),
        kind=info.get(IFLA_INFO_KIND, b"").rstrip(b"\0").decode(),
    )


def address(body: bytes) -> Address | None:
    family, index = struct.unpack_from("=B3xI", body)
    attrs = attributes(body[8:])
    raw = attrs.get(IFA_LOCAL) or attrs.get(IFA_ADDRESS)
    if not raw or family not in (socket.AF_INET, socket.AF_INET6):
        return None
    return Address(index, str(ipaddress.ip_address(raw)))


def listen() -> socket.socket:
    events = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    events.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
    events.bind((0, GROUPS))
    return events


def dump() -> tuple[list[Link], list[Address]]:
    """All links and addresses now."""
    links: list[Link] = []
    addresses: list[Address] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as query:
        query.bind((0, 0))
        for request in (RTM_GETLINK, RTM_GETADDR):
            size = 32 if request == RTM_GETLINK else 24
            header = struct.pack("=IHHII", size, request, NLM_F_REQUEST | NLM_F_DUMP, 1, 0)
            query.send(header.ljust(size, b"\0"))
            done = False
            while not done:
                for event in parse(query.recv(BUFFER)):
                    if event is None:
                        done = True
                    elif isinstance(event.what, Link):
                        links.append(event.what)
                    else:
                        addresses.append(event.what)
    return links, addresses
