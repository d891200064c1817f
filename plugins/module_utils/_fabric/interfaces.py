# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What a change of the fabric reads and writes of a node: interfaces, sysctls, and the record of what was there before.

Used by :mod:`_fabric.apply`, which changes it, and by :mod:`_fabric.rollback`, which takes a change back without
Ansible.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text, paths, strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.network import NetworkInterface, parse_addresses

MEMORY = f"{paths.STATE}/fabric.json"
LOCK = f"{paths.RUN}/fabric.lock"
SET = "fabric"  # of managed files
WHAT = "the fabric"  # what is locked, for messages

# What a fabric interface needs where nobody else sets it, by sysctl. For the ARP ones the kernel uses the larger of
# "all" and the interface (ip-sysctl); disable_ipv6 counts per interface.
#   arp_*         both halves are on one Ethernet segment; else one half answers ARP for the other
#   disable_ipv6  every IPv6 address adds GIDs and shifts the index of the IPv4 one
ARP = {"arp_ignore": 1, "arp_announce": 2}


@dataclass(frozen=True)
class Effective:
    """What the kernel says about one interface. ``addresses`` are IPv4, ``192.168.100.10/24``, without 169.254/16."""

    exists: bool = False
    up: bool = False
    carrier: bool = False
    mtu: int = 0
    addresses: tuple[str, ...] = ()
    dynamic: tuple[str, ...] = ()  # those of ``addresses`` that DHCP gave
    master: str = ""  # the bond or bridge that it is a member of

    @classmethod
    def of(cls, found: NetworkInterface, link_local: bool = False) -> Effective:
        """169.254/16, which our file turns off, counts with ``link_local`` only."""
        own = [item for item in found.addresses if item.family == "inet"]
        own = [item for item in own if link_local or not item.address.startswith("169.254.")]
        return cls(
            exists=True,
            up=found.up is not False,
            carrier=found.carrier is not False,
            mtu=found.mtu or 0,
            addresses=tuple(sorted(f"{item.address}/{item.prefix}" for item in own)),
            dynamic=tuple(f"{item.address}/{item.prefix}" for item in own if item.dynamic),
            master=found.master or "",
        )

    def line(self, netdev: str) -> str:
        if not self.exists:
            return f"{netdev}: absent"
        state = "up" if self.up else "down"
        return f"{netdev}: {state}, MTU {self.mtu}, {', '.join(self.addresses) or 'no IPv4 address'}"


@dataclass
class Memory:
    """What was there before, see :mod:`_fabric.apply`."""

    interfaces: dict[str, dict[str, Any]] = field(default_factory=dict)
    networkd_started: bool = False
    backend: str = "networkd"

    def text(self) -> str:
        document = {
            "schema": 1,
            "interfaces": self.interfaces,
            "networkd_started": self.networkd_started,
            "backend": self.backend,
        }
        return json.dumps(document, indent=1, sort_keys=True) + "\n"

    @classmethod
    def parse(cls, text: str | None) -> Memory:
        if text is None:
            return cls()
        with json_text.Reading(
            "the record of the interfaces' state before the first change is damaged",
            MEMORY,
            "Delete it; the next undo then leaves MTU and sysctls as they are",
        ):
            document = json_text.mapping(text)
            if document["schema"] != 1:
                raise ValueError(f"schema {document['schema']!r}")
            interfaces = {
                str(name): {
                    "mtu": int(entry["mtu"]),
                    "up": bool(entry["up"]),
                    "sysctls": {str(key): int(value) for key, value in entry["sysctls"].items()},
                    "nm_managed": bool(entry["nm_managed"]),
                    "addresses": [str(address) for address in entry["addresses"]],
                }
                for name, entry in document["interfaces"].items()
            }
            return cls(interfaces, bool(document["networkd_started"]), str(document.get("backend", "networkd")))


# --- reading ---------------------------------------------------------------------------------------------------------


def effective(machine: Machine) -> dict[str, Effective]:
    """Every interface of the machine. Raises :class:`SparkError` where iproute2 does not tell."""
    found = parse_addresses(machine.command("ip", "-j", "addr", "show", step="reading the interfaces").out)
    if found is None:
        raise SparkError("the output of 'ip -j addr show' cannot be read", "", "Update iproute2")
    return {interface.name: Effective.of(interface) for interface in found}


# --- sysctls ---------------------------------------------------------------------------------------------------------


def sysctl_name(netdev: str, key: str) -> str:
    return f"net.{'ipv6' if key == 'disable_ipv6' else 'ipv4'}.conf.{netdev}.{key}"


def sysctl_path(netdev: str, key: str) -> str:
    family = "ipv6" if key == "disable_ipv6" else "ipv4"
    return f"/proc/sys/net/{family}/conf/{netdev}/{key}"


def read_sysctl(machine: Machine, netdev: str, key: str) -> int | None:
    return strict.digits((machine.read(sysctl_path(netdev, key)) or "").strip())


def write_sysctl(machine: Machine, netdev: str, key: str, value: int) -> None:
    path = sysctl_path(netdev, key)
    try:
        with open(machine.real(path), "r+", encoding="ascii") as stream:
            stream.write(f"{value}\n")
    except OSError as exc:
        raise SparkError(f"cannot be set to {value} ({exc.strerror})", path) from exc


def sysctl_wanted(machine: Machine, key: str, wanted: int, own: int) -> bool:
    """``own``, the value of the interface itself, is not enough to make ``wanted`` effective."""
    everywhere = 0 if key == "disable_ipv6" else read_sysctl(machine, "all", key) or 0
    return max(own, everywhere) < wanted
