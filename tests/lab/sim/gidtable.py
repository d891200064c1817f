# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The GID table of one RoCE port, as the kernel keeps it for mlx5.

Source: Linux 6.12 drivers/infiniband/core/{cache,roce_gid_mgmt}.c. Rules that matter:
- Entries 0 and 1 are reserved for the link-local GID made of the MAC (EUI-64), RoCE v1 and v2. They exist whether or
  not the netdev has an IPv6 address, and an address that equals them takes no further entry.
- Every other address takes the first free entry after those, v1 before v2, in the order in which addresses appear.
- An address that goes leaves zero GIDs behind; nothing moves up.
- When the driver (re)reads a netdev, IPv4 addresses come before IPv6 addresses.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field

SIZE = 256
RESERVED = 2
VERSIONS = ("IB/RoCE v1", "RoCE v2")
ZERO = ":".join(["0000"] * 8)


@dataclass(frozen=True)
class Entry:
    gid: str  # eight groups of four hex digits
    kind: str  # one of VERSIONS
    netdev: str  # that of the port, or a VLAN above it


def gid_of(address: str) -> str:
    """``192.168.0.1`` becomes the IPv4-mapped GID, an IPv6 address is its own GID."""
    raw = ipaddress.ip_address(address).packed
    return groups(raw if len(raw) == 16 else b"\0" * 10 + b"\xff\xff" + raw)


def groups(raw: bytes) -> str:
    """Sixteen bytes as the kernel prints them. (Not ``exploded``: Python 3.13 writes mapped addresses with dots.)"""
    return raw.hex(":", 2)


def link_local(mac: str) -> str:
    """fe80:: with the EUI-64 of the MAC: universal bit flipped, fffe in the middle."""
    octets = bytes.fromhex(mac.replace(":", ""))
    eui64 = bytes([octets[0] ^ 2]) + octets[1:3] + b"\xff\xfe" + octets[3:]
    return groups(b"\xfe\x80" + b"\0" * 6 + eui64)


@dataclass
class GidTable:
    mac: str
    netdev: str
    size: int = SIZE
    entries: dict[int, Entry] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for index, kind in enumerate(VERSIONS):
            self.entries[index] = Entry(link_local(self.mac), kind, self.netdev)

    def add(self, address: str, netdev: str) -> None:
        """An address appeared. One that is there already changes nothing; a full table drops it, as the kernel does."""
        gid = gid_of(address)
        for kind in VERSIONS:
            entry = Entry(gid, kind, netdev)
            free = (i for i in range(RESERVED, self.size) if i not in self.entries)
            if entry not in self.entries.values() and (index := next(free, None)) is not None:
                self.entries[index] = entry

    def remove(self, address: str, netdev: str) -> None:
        gid = gid_of(address)
        for index, entry in list(self.entries.items()):
            if index >= RESERVED and (entry.gid, entry.netdev) == (gid, netdev):
                del self.entries[index]

    def rescan(self, present: Iterable[tuple[str, str]]) -> None:
        """Bring the table in line with ``(address, netdev)`` pairs: what went first, then what is new."""
        wanted = list(dict.fromkeys(present))
        keep = {(gid_of(address), netdev) for address, netdev in wanted}
        for index, entry in list(self.entries.items()):
            if index >= RESERVED and (entry.gid, entry.netdev) not in keep:
                del self.entries[index]
        for address, netdev in wanted:
            self.add(address, netdev)

    def rebuild(self, present: Iterable[tuple[str, str]], ipv6_first: bool = False) -> None:
        """Start again, as after loading the driver or a change of the MAC."""
        self.entries.clear()
        self.__post_init__()
        self.rescan(registration_order(present, ipv6_first))


def registration_order(present: Iterable[tuple[str, str]], ipv6_first: bool = False) -> list[tuple[str, str]]:
    """The order in which a driver that starts sees addresses: IPv4, then IPv6 (or, for the fault, the reverse)."""
    return sorted(present, key=lambda pair: (":" in pair[0]) != ipv6_first)
