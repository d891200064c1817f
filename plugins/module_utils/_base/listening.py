# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Who listens on this node: sockets, the processes that hold them, and whether those are ours."""

from __future__ import annotations

import ipaddress
import os
import pwd
import re
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple, Optional

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.address import canonical
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Address, Count, Words
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine

_LISTEN, _ESTABLISHED = "0A", "01"  # in include/net/tcp_states.h
_EVERYWHERE = {4: ("0.0.0.0", "::"), 6: ("::",)}  # noqa: S104 -- to compare
OURS = ("sparkmatrix-", "system-sparkmatrix_")  # how names of our units begin, and of slices with our containers
_ours: set[str] = set()  # inodes that were traced already: that means a walk over all of /proc/<pid>/fd


class Socket(NamedTuple):
    port: int
    address: str
    uid: int
    inode: str


@dataclass(frozen=True)
class Listener:
    port: Annotated[int, strict.whole(0, 65535)]
    address: Address
    pid: Optional[Count] = None
    process: Optional[Words] = None
    unit: Optional[Words] = None


def listening(machine: Machine, ports: Sequence[int]) -> list[Listener] | None:
    """Once per port and address, by port.

    Only the ports in ``ports`` are traced to a process and its unit: that means a walk over all of /proc/<pid>/fd.
    """
    found_sockets = sockets(machine)
    if found_sockets is None:
        return None
    unique = {(found_socket.port, found_socket.address): found_socket.inode for found_socket in found_sockets}
    wanted = {inode for (port, _address), inode in unique.items() if port in set(ports)}
    owners = _owners(machine, wanted) if wanted else {}
    found = []
    for (port, address), inode in sorted(unique.items()):
        pid = owners.get(inode)
        process = machine.text(f"/proc/{pid}/comm") if pid else None
        found.append(Listener(port, address, pid, process, unit_of(machine, pid) if pid else None))
    return found


def sockets(machine: Machine) -> list[Socket] | None:
    """All that listen on this node; None where /proc/net does not tell."""
    texts = [(machine.text(f"/proc/net/{name}"), size) for name, size in (("tcp", 8), ("tcp6", 32))]
    if all(text is None for text, _size in texts):
        return None
    return [one for text, size in texts for one in parse_tcp(text or "", size)]


def parse_tcp(text: str, size: int) -> list[Socket]:
    """The listening sockets in /proc/net/tcp or tcp6 (proc(5)).

    ``size`` is the number of hex digits of an address, 8 or 32; each group of 8 is a word in host byte order.
    """
    found = []
    pattern = re.compile(
        rf"^\s*\d+: ([0-9A-Fa-f]{{{size}}}):([0-9A-Fa-f]{{4}}) \S+ {_LISTEN} (?:\S+ +){{3}}(\d+) +\S+ +(\d+)", re.M
    )
    for match in pattern.finditer(text):
        raw = bytes.fromhex(match.group(1))
        words = [raw[start : start + 4] for start in range(0, len(raw), 4)]
        packed = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
        address = canonical(ipaddress.ip_address(packed))
        found.append(Socket(int(match.group(2), 16), address, int(match.group(3)), match.group(4)))
    return found


def caller(machine: Machine, port: int, ours: int) -> int | None:
    """The account that has connected from ``port`` to ``ours``, both on IPv4's loopback."""
    loopback = f"{int.from_bytes(bytes((127, 0, 0, 1)), sys.byteorder):08X}"
    line = rf"^\s*\d+: {loopback}:{port:04X} {loopback}:{ours:04X} {_ESTABLISHED} (?:\S+ +){{3}}(\d+)"
    found = re.search(line, machine.text("/proc/net/tcp") or "", re.M)
    return int(found.group(1)) if found else None


def _owners(machine: Machine, inodes: set[str]) -> dict[str, int]:
    """The process that holds each socket, the one with the lowest id where several do."""
    links = {f"socket:[{inode}]": inode for inode in inodes}
    found: dict[str, int] = {}
    for pid in sorted(int(name) for name in machine.names("/proc") if name.isdigit()):
        for handle in machine.names(f"/proc/{pid}/fd"):
            try:
                inode = links.get(os.readlink(machine.real(f"/proc/{pid}/fd/{handle}")))
            except OSError:
                continue
            if inode is not None:
                found.setdefault(inode, pid)
        if len(found) == len(links):
            break
    return found


def unit_of(machine: Machine, pid: int) -> str | None:
    """The systemd unit of a process, from /proc/<pid>/cgroup (cgroups(7)): the deepest ``*.service`` or ``*.scope``.

    A container's scope has Docker's number only; those of this collection are in a slice with a name.
    """
    for line in reversed((machine.text(f"/proc/{pid}/cgroup") or "").splitlines()):
        parts = line.split("/")[::-1]
        unit = next((part for part in parts if part.endswith((".service", ".scope", ".socket"))), None)
        ours = [part for part in parts if part.startswith(OURS) and part.endswith(".slice")]
        if unit:
            return ours[0] if ours and unit.endswith(".scope") else unit
    return None


# -- is it ours


def holders(machine: Machine, host: str, port: int) -> list[Socket]:
    """The sockets of this node that a connection to ``host`` reaches; none where that is another node."""
    try:
        address = ipaddress.ip_address(canonical(host))
    except ValueError:
        return []
    if not _local(address):
        return []
    own = (str(address), *_EVERYWHERE[address.version])
    return [one for one in sockets(machine) or () if one.port == port and one.address in own]


def stranger(machine: Machine, host: str, port: int) -> str:
    """Who has taken the place of our service at ``host``: a process, or nothing.

    A service of ours is root's, or runs in a system unit of ours. What the caller himself runs is his business.
    """
    for holder in holders(machine, host, port):
        if holder.uid not in (0, os.geteuid()) and holder.inode not in _ours:
            pid = _owners(machine, {holder.inode}).get(holder.inode)
            if pid is None or not _is_ours(machine, pid):
                return described(machine, holder, pid)
            _ours.add(holder.inode)
    return ""


def taken(machine: Machine, host: str, port: int) -> str:
    """The process that listens where a service of ours is about to, or nothing."""
    for holder in holders(machine, host, port):
        return described(machine, holder, _owners(machine, {holder.inode}).get(holder.inode))
    return ""


def described(machine: Machine, one: Socket, pid: int | None) -> str:
    try:
        account = pwd.getpwuid(one.uid).pw_name
    except KeyError:
        account = str(one.uid)
    if pid is None:
        return f"a process of the account {account}"
    unit = unit_of(machine, pid)
    name = machine.text(f"/proc/{pid}/comm") or "a process"
    return f"{name} (process {pid}, account {account}{f', {unit}' if unit else ''})"


def _is_ours(machine: Machine, pid: int) -> bool:
    """A user's own systemd may have units of any name, below his slice."""
    cgroup = machine.text(f"/proc/{pid}/cgroup") or ""
    return "/user.slice/" not in cgroup and (unit_of(machine, pid) or "").startswith(OURS)


def _local(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True
