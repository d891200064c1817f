# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""LLDP: who is at the other end of a cable, from frames (IEEE 802.1AB) and from the cache of lldpd."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text, strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.address import canonical

ETHERTYPE = 0x88CC
# Nearest bridge, nearest non-TPMR bridge, nearest customer bridge: a sender may use any of them.
GROUPS = (bytes.fromhex("0180c200000e"), bytes.fromhex("0180c2000003"), bytes.fromhex("0180c2000000"))
_END, _CHASSIS, _PORT, _SYSTEM_NAME, _MANAGEMENT = 0, 1, 2, 5, 8
_CHASSIS_MAC, _PORT_MAC = 4, 3  # subtypes
_ADDRESS = {_CHASSIS: 5, _PORT: 4}  # subtype of a network address: a family number, then the address
_MAC = re.compile(r"[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}")
MOST_ADDRESSES = 8


@dataclass(frozen=True)
class Announcement:
    """What a neighbour says about itself. ``macs``: the MAC addresses among its chassis and port identifiers;
    ``addresses``: the IP addresses that it is managed by."""

    system: str  # system name, or the chassis identifier of a device that has none
    port: str
    macs: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()

    @property
    def port_mac(self) -> str:
        """Of the port that it speaks on. The chassis may have that of any other."""
        return self.port.lower() if self.port.lower() in self.macs else ""


def decode(payload: bytes) -> Announcement:
    """The part of an LLDP frame after the EtherType. Raises ValueError for everything that is not one."""
    values: dict[int, bytes] = {}
    managed: list[str] = []
    rest = payload
    while True:
        if len(rest) < 2:
            raise ValueError("the frame ends without the end mark of LLDP")
        kind, length = rest[0] >> 1, (rest[0] & 1) << 8 | rest[1]
        value, rest = rest[2 : 2 + length], rest[2 + length :]
        if len(value) < length:
            raise ValueError("a field is longer than the frame")
        if kind == _END:
            break
        values.setdefault(kind, value)
        if kind == _MANAGEMENT and value:
            managed.append(_ip(value[1 : 1 + value[0]]))
    if len(values.get(_CHASSIS, b"")) < 2 or len(values.get(_PORT, b"")) < 2:
        raise ValueError("chassis or port identifier is missing")
    macs = tuple(
        values[kind][1:].hex(":")
        for kind, subtype in ((_CHASSIS, _CHASSIS_MAC), (_PORT, _PORT_MAC))
        if values[kind][0] == subtype and len(values[kind]) == 7
    )
    if values[_CHASSIS][0] == _ADDRESS[_CHASSIS]:
        managed.append(_ip(values[_CHASSIS][1:]))
    system = values.get(_SYSTEM_NAME, b"").decode("utf-8", "replace").strip("\0 ")
    return _said(system or _identifier(_CHASSIS, values[_CHASSIS]), _identifier(_PORT, values[_PORT]), macs, managed)


def _said(system: str, port: str, macs: tuple[str, ...], managed: Iterable[Any]) -> Announcement:
    """Anything in the network may announce anything."""
    addresses = tuple(dict.fromkeys(filter(None, map(canonical, managed))))
    return Announcement(strict.words(system), strict.words(port), macs, addresses[:MOST_ADDRESSES])


def _ip(value: bytes) -> str:
    """A family number, then the address; nothing for other families."""
    length = {1: 4, 2: 16}.get(value[0] if value else 0)
    return str(ipaddress.ip_address(value[1:])) if len(value[1:]) == length else ""


def _identifier(kind: int, value: bytes) -> str:
    subtype, identifier = value[0], value[1:]
    if subtype == (_CHASSIS_MAC if kind == _CHASSIS else _PORT_MAC) and len(identifier) == 6:
        return identifier.hex(":")
    if subtype == _ADDRESS[kind]:
        return ".".join(str(octet) for octet in identifier[1:]) if identifier[0] == 1 else identifier[1:].hex()
    return identifier.decode("utf-8", "replace").strip("\0 ")


def parse_lldpcli(text: str) -> list[tuple[str, Announcement]]:
    """``lldpcli -f json show neighbors``: own netdev and neighbour.

    One interface is an object, several are a list of objects; a chassis without a system name has no name above its
    attributes (lldpd issue 236).
    """
    document = json_text.read(text, "lldpcli", "Look at: sudo lldpcli -f json show neighbors") if text.strip() else {}
    found = []
    for netdev, entry in _interfaces(document):
        system, chassis = _chassis(entry.get("chassis"))
        chassis_id, port_id = _id(chassis), _id(entry.get("port"))
        if chassis_id[1] or port_id[1]:
            macs = tuple(
                value.lower() for kind, value in (chassis_id, port_id) if kind == "mac" and _MAC.fullmatch(value)
            )
            managed = chassis.get("mgmt-ip") if isinstance(chassis, dict) else None
            managed = [*(managed if isinstance(managed, list) else [managed]), chassis_id[1]]
            found.append((netdev, _said(system or chassis_id[1], port_id[1], macs, managed)))
    return found


def _interfaces(document: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    lldp = document.get("lldp") if isinstance(document, dict) else None
    listed = lldp.get("interface") if isinstance(lldp, dict) else None
    for item in listed if isinstance(listed, list) else [listed]:
        for netdev, entries in item.items() if isinstance(item, dict) else ():
            for entry in entries if isinstance(entries, list) else [entries]:
                if isinstance(entry, dict):
                    yield str(netdev), entry


def _chassis(value: Any) -> tuple[str, Any]:
    if not isinstance(value, dict):
        return "", None
    if "id" in value:
        name = value.get("name")
        return (name if isinstance(name, str) else ""), value
    return next(((str(name), body) for name, body in value.items() if isinstance(body, dict)), ("", None))


def _id(value: Any) -> tuple[str, str]:
    identifier = value.get("id") if isinstance(value, dict) else None
    if not isinstance(identifier, dict):
        return "", ""
    return str(identifier.get("type", "")), str(identifier.get("value", ""))
