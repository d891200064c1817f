# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""LLDP: who is at the other end of a cable, from the cache of lldpd."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text, strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.address import canonical

_MAC = re.compile(r"[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}")
MAX_ADDRESSES = 8


@dataclass(frozen=True)
class Announcement:
    """What a neighbour says about itself. ``macs``: the MAC addresses among its chassis and port identifiers;
    ``addresses``: the IP addresses that it is managed by."""

    system: str  # system name, or the chassis identifier of a device that has none
    port: str
    macs: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.macs, *self.addresses)))


def _said(system: str, port: str, macs: tuple[str, ...], managed: Iterable[Any]) -> Announcement:
    """Anything in the network may announce anything."""
    addresses = tuple(dict.fromkeys(filter(None, map(canonical, managed))))
    return Announcement(strict.words(system), strict.words(port), macs, addresses[:MAX_ADDRESSES])


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
