# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Who has an address: ARP probes (RFC 5227), which every owner answers and which nobody remembers.

A ping tells only that somebody answers. A second cluster on the same switch with the same addresses does, too.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import sysfs
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Interface, Ipv4, Mac
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.neighbor_sockets import Wire

ETHERTYPE = 0x0806
PROBES, GAP_S, WAIT_S = 3, 0.1, 0.5
_FRAME = struct.Struct("!HHBBH6s4s6s4s")
_ETHERNET, _IPV4, _REQUEST = 1, 0x0800, 1

REMEDY = (
    "If another cluster is on the same switch: give one of the two other fabric_subnets, another fabric_host_offset, "
    "or a VLAN of its own. Else look for that machine in the switch's table of MAC addresses"
)

Asked = Mapping[str, Collection[str]]  # netdev to addresses


@dataclass(frozen=True, order=True)
class Holder:
    """Who says on ``netdev`` that an address is theirs."""

    netdev: Interface
    address: Ipv4
    mac: Mac


Holders = Callable[[Machine, Asked], list[Holder]]


def holders(machine: Machine, asked: Asked) -> list[Holder]:
    """Everybody who says that an address is theirs. All interfaces are asked at the same time, those without a link
    not at all."""
    up = [netdev for netdev in asked if sysfs.read_text(machine.sysfs / "class/net" / netdev / "carrier") == "1"]
    if not up:
        return []
    wire = Wire(up, machine.sysfs, ethertype=ETHERTYPE)
    try:
        return ask({netdev: asked[netdev] for netdev in up}, wire)
    finally:
        wire.close()


def ask(asked: Asked, wire: Any, clock: Callable[[], float] = time.monotonic) -> list[Holder]:
    start, sent = clock(), 0
    found: set[Holder] = set()
    while clock() - start < WAIT_S:
        if sent < PROBES and clock() - start >= sent * GAP_S:
            for netdev, addresses in asked.items():
                for address in addresses:
                    wire.send(netdev, probe(sysfs.read_text(wire.net / netdev / "address") or "", address))
            sent += 1
        until = sent * GAP_S if sent < PROBES else WAIT_S
        for netdev, _mac, payload in wire.receive(start + until - clock()):
            address, mac = sender(payload)
            if address in asked.get(netdev, ()):
                found.add(Holder(netdev, address, mac))
    return sorted(found)


def probe(mac: str, address: str) -> bytes:
    """The question who has ``address``, from nobody in particular."""
    own = bytes.fromhex(mac.replace(":", "")).ljust(6, b"\0")[:6]
    target = socket.inet_aton(address)
    return _FRAME.pack(_ETHERNET, _IPV4, 6, 4, _REQUEST, own, bytes(4), bytes(6), target)


def sender(payload: bytes) -> tuple[str, str]:
    """IPv4 and MAC address that a packet says are one's own; nothing of one that is not understood. Short packets
    arrive padded."""
    if len(payload) < _FRAME.size:
        return "", ""
    hardware, protocol, length, width, _kind, mac, address, _mac, _target = _FRAME.unpack_from(payload)
    if (hardware, protocol, length, width) != (_ETHERNET, _IPV4, 6, 4):
        return "", ""
    return socket.inet_ntoa(address), mac.hex(":")
