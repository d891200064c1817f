# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What a DGX Spark's network hardware looks like: names, addresses, PCI functions, cables of each topology."""

from __future__ import annotations

from dataclasses import dataclass

MANAGEMENT = "enP7s7"
PAIRS = ("direct", "direct_crossed", "direct_two")
TOPOLOGIES = ("single", *PAIRS, "ring", "switch", "switch_two", "crossed_100g", "mixed")


@dataclass(frozen=True)
class Nic:
    """One of the four functions of the ConnectX-7. Two functions (the halves, one per PCI domain) share a cage."""

    netdev: str
    rdma: str
    pci: str
    cage: int
    half: int
    mac_offset: int


NICS = (
    Nic("enp1s0f0np0", "rocep1s0f0", "0000:01:00.0", 0, 0, 0),
    Nic("enp1s0f1np1", "rocep1s0f1", "0000:01:00.1", 1, 0, 1),
    Nic("enP2p1s0f0np0", "roceP2p1s0f0", "0002:01:00.0", 0, 1, 4),
    Nic("enP2p1s0f1np1", "roceP2p1s0f1", "0002:01:00.1", 1, 1, 5),
)


def mac(node: int, offset: int) -> str:
    """48:21:0b is NVIDIA's prefix as seen on Sparks. Equal in every lab: fixtures and captures stay comparable."""
    return f"48:21:0b:96:{node:02x}:{0xC0 + offset:02x}"


def management_mac(node: int) -> str:
    return f"48:21:0b:95:{node:02x}:01"


def guid(mac_address: str) -> str:
    """The node GUID that the firmware makes of a MAC: 0300 in the middle."""
    m = mac_address.split(":")
    return f"{m[0]}{m[1]}:{m[2]}03:00{m[3]}:{m[4]}{m[5]}"


def node_number(name: str) -> int:
    """``spark3`` is 3."""
    return int(name.removeprefix("spark"))


def node_names(count: int) -> list[str]:
    return [f"spark{number}" for number in range(1, count + 1)]
