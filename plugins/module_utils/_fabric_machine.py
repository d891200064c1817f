# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The node as the change of its fabric sees it: its files, programs, interfaces and sysctls, and the lock.

Used by :mod:`_fabric_apply`, which changes it, and by :mod:`_fabric_guard`, which takes a change back without Ansible.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._command import Completed, Runner, run
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._findings import SparkError

MEMORY = "/var/lib/sparkmatrix/fabric.json"
HOSTS = "/etc/hosts"
BEGIN = "# BEGIN sparkmatrix.cluster fabric"
END = "# END sparkmatrix.cluster fabric"
LOCK = "/run/lock/sparkmatrix-fabric.lock"
LOCK_WAIT_S = 90.0  # longer than a change takes, fabric_apply_timeout_s included
POLL_S = 0.1

# What a fabric interface needs where nobody else sets it, by sysctl. For the ARP ones and rp_filter the kernel uses the
# larger of "all" and the interface (ip-sysctl); the other two count per interface.
#   arp_*         both halves are on one Ethernet segment; else one half answers ARP for the other
#   disable_ipv6  every IPv6 address adds GIDs and shifts the index of the IPv4 one
#   forwarding    packets of other nodes are passed on
#   rp_filter     strict (1) drops what comes back another way; loose (2) does not
ARP = {"arp_ignore": 1, "arp_announce": 2}
_PER_INTERFACE = ("disable_ipv6", "forwarding")


@dataclass
class Machine:
    """The node; tests give another root, another runner and another clock."""

    root: str = "/"
    runner: Runner = run
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    sysfs_root: Path = field(default_factory=lambda: Path("/sys"))
    now: Callable[[], float] = time.time  # seconds since 1970, comparable across a reboot

    def real(self, path: str) -> str:
        return self.root.rstrip("/") + path

    def read(self, path: str) -> str | None:
        try:
            with open(self.real(path), encoding="utf-8", errors="surrogateescape") as stream:
                return stream.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as exc:
            raise SparkError(f"cannot be read ({exc.strerror})", path, "Run as root (become: true)") from exc

    def names(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(self.real(path)))
        except OSError:
            return []

    def command(self, *argv: str, step: str, remedy: str = "") -> Completed:
        """Run a program that must succeed."""
        done = self.runner(argv)
        if done.rc != 0:
            raise SparkError(f"{step} failed: {' '.join(argv)}: {done.complaint}", "", remedy)
        return done

    def works(self, *argv: str) -> bool:
        return self.runner(argv).rc == 0


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

    def line(self, netdev: str) -> str:
        if not self.exists:
            return f"{netdev}: absent"
        state = "up" if self.up else "down"
        return f"{netdev}: {state}, MTU {self.mtu}, {', '.join(self.addresses) or 'no IPv4 address'}"


@dataclass
class Memory:
    """What was there before, see :mod:`_fabric_apply`."""

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
        try:
            document = json.loads(text)
            if document["schema"] != 1:
                raise ValueError(f"schema {document['schema']!r}")
            interfaces = {
                str(name): {
                    "mtu": int(entry["mtu"]),
                    "up": bool(entry["up"]),
                    "sysctls": {str(key): int(value) for key, value in entry["sysctls"].items()},
                    "nm_managed": bool(entry["nm_managed"]),
                    "addresses": [str(address) for address in entry["addresses"]],
                    "routes": [[str(part) for part in route] for route in entry.get("routes", ())],
                }
                for name, entry in document["interfaces"].items()
            }
            return cls(interfaces, bool(document["networkd_started"]), str(document.get("backend", "networkd")))
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise SparkError(
                f"the record of the interfaces' state before the first change is damaged ({exc})",
                MEMORY,
                "Delete it; the next undo then leaves MTU and sysctls as they are",
            ) from exc


# --- reading ---------------------------------------------------------------------------------------------------------


def parse_effective(text: str) -> dict[str, Effective]:
    """The output of ``ip -j addr show`` (iproute2 5 and newer) by interface."""
    try:
        entries = json.loads(text) if text.strip() else []
        return {str(entry["ifname"]): _effective(entry) for entry in entries if entry.get("ifname")}
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise SparkError(f"the output of 'ip -j addr show' cannot be read ({exc})", "", "Update iproute2") from exc


def _effective(entry: Mapping[str, Any]) -> Effective:
    addresses, dynamic = [], []
    for info in entry.get("addr_info") or ():
        # 169.254/16 comes from link-local addressing, which our file turns off.
        if info.get("family") == "inet" and not str(info["local"]).startswith("169.254."):
            addresses.append(f"{info['local']}/{info['prefixlen']}")
            if info.get("dynamic"):
                dynamic.append(addresses[-1])
    flags = entry.get("flags") or ()
    return Effective(
        exists=True,
        up="UP" in flags,
        carrier="LOWER_UP" in flags,
        mtu=int(entry.get("mtu") or 0),
        addresses=tuple(sorted(addresses)),
        dynamic=tuple(dynamic),
        master=str(entry.get("master") or ""),
    )


def effective(machine: Machine) -> dict[str, Effective]:
    return parse_effective(machine.command("ip", "-j", "addr", "show", step="reading the interfaces").out)


# --- sysctls ---------------------------------------------------------------------------------------------------------


def sysctl_name(netdev: str, key: str) -> str:
    return f"net.{'ipv6' if key == 'disable_ipv6' else 'ipv4'}.conf.{netdev}.{key}"


def sysctl_path(netdev: str, key: str) -> str:
    family = "ipv6" if key == "disable_ipv6" else "ipv4"
    return f"/proc/sys/net/{family}/conf/{netdev}/{key}"


def read_sysctl(machine: Machine, netdev: str, key: str) -> int | None:
    text = (machine.read(sysctl_path(netdev, key)) or "").strip()
    return int(text) if text.isdigit() else None


def write_sysctl(machine: Machine, netdev: str, key: str, value: int) -> None:
    path = sysctl_path(netdev, key)
    try:
        with open(machine.real(path), "r+", encoding="ascii") as stream:
            stream.write(f"{value}\n")
    except OSError as exc:
        raise SparkError(f"cannot be set to {value} ({exc.strerror})", path) from exc


def sysctl_wanted(machine: Machine, key: str, wanted: int, own: int) -> bool:
    """``own``, the value of the interface itself, is not enough to make ``wanted`` effective."""
    if key in _PER_INTERFACE:
        return own < wanted
    effective_value = max(own, read_sysctl(machine, "all", key) or 0)
    return effective_value == 1 if key == "rp_filter" else effective_value < wanted


# --- /etc/hosts ------------------------------------------------------------------------------------------------------


def with_block(text: str, lines: Sequence[str], begin: str = BEGIN, end: str = END) -> str:
    """``text`` with our marked block holding ``lines``, at its old place or at the end; without it when there are none.

    Raises :class:`SparkError` when the block begins and does not end, since what belongs to it cannot be told.
    """
    have = text.splitlines(keepends=True)
    bare = [line.strip() for line in have]
    block = [line + "\n" for line in (begin, *lines, end)] if lines else []
    if begin in bare:
        start = bare.index(begin)
        if end not in bare[start:]:
            raise SparkError(
                f"the block {begin!r} has no end", HOSTS, f"Add the line {end!r} after its last entry, or remove it"
            )
        return "".join(have[:start] + block + have[bare.index(end, start) + 1 :])
    if not block:
        return text
    return text + ("" if not text or text.endswith("\n") else "\n") + "".join(block)


def block_of(text: str) -> list[str]:
    """The lines in our block, none when there is no block."""
    bare = [line.strip() for line in text.splitlines()]
    if BEGIN not in bare or END not in bare[bare.index(BEGIN) :]:
        return []
    return text.splitlines()[bare.index(BEGIN) + 1 : bare.index(END, bare.index(BEGIN))]


def write_hosts(machine: Machine, text: str) -> None:
    """Replace /etc/hosts with the same mode and owner; in place where it is a mount point, as in containers."""
    real = os.path.realpath(machine.real(HOSTS))
    temp = f"{os.path.dirname(real)}/.hosts.sparkmatrix-new"
    data = text.encode("utf-8", "surrogateescape")
    try:
        with open(temp, "wb") as stream:
            stream.write(data)
            stream.flush()
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(real)
                os.fchmod(stream.fileno(), status.st_mode & 0o7777)
                os.fchown(stream.fileno(), status.st_uid, status.st_gid)
            os.fsync(stream.fileno())
        try:
            os.rename(temp, real)
        except OSError as exc:
            os.unlink(temp)
            if exc.errno != errno.EBUSY:
                raise
            with open(real, "r+b") as stream:
                stream.write(data)
                stream.truncate()
    except OSError as exc:
        raise SparkError(f"cannot be written ({exc.strerror})", HOSTS, "Make it writable for root") from exc


# --- one at a time ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def alone(machine: Machine, what: str = "the fabric", lock: str = LOCK) -> Iterator[None]:
    """One change at a time: a controller that was killed leaves its module running on the node for a while."""
    os.makedirs(os.path.dirname(machine.real(lock)), exist_ok=True)
    handle = os.open(machine.real(lock), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        deadline = machine.clock() + LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if machine.clock() >= deadline:
                    raise SparkError(
                        f"another run has been changing {what} of this node for {LOCK_WAIT_S:g} s",
                        lock,
                        "Wait for it to end, and run again",
                    ) from None
                machine.sleep(POLL_S)
        yield
    finally:
        os.close(handle)
