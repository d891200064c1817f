# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Bring the fabric interfaces of one node into the planned state, and give them back.

What counts is the *effective* state: addresses and MTU that the kernel uses, not what a file says. Only our interfaces
are touched. ``netplan apply`` and ``netplan try`` are never called: both restart NetworkManager, and with it the
management network.

Order of a change, so that a run which dies anywhere is completed by the next one::

    fact: applying -> memory of what was there -> files -> networkd: our interfaces -> wait -> sysctls -> names

The memory, ``/var/lib/sparkmatrix/fabric.json``, holds per interface what the files of :mod:`_managed_files` cannot:
MTU, administrative state and sysctls from before the first change, and every address that we ever placed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils import _netplan, _show_gids
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._command import Completed, Runner, run
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric_fact import (
    FACT_PATH,
    FabricFact,
    Rail,
    dump,
    load,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed_files import (
    STATE_DIR,
    File,
    Result,
    apply_set,
    remove_set,
)

SET = "fabric"
FACT_SET = "fabric_fact"
MEMORY = "/var/lib/sparkmatrix/fabric.json"
SYSCTL_FILE = "/etc/sysctl.d/90-sparkmatrix-fabric.conf"
HOSTS = "/etc/hosts"
BEGIN = "# BEGIN sparkmatrix.cluster fabric"
END = "# END sparkmatrix.cluster fabric"
LOCK = "/run/lock/sparkmatrix-fabric.lock"
LOCK_WAIT_S = 90.0  # longer than a change takes, fabric_apply_timeout_s included
POLL_S = 0.1
GID_WAIT_S = 3.0

# The kernel uses the larger of "all" and the interface (ip-sysctl). Both halves are on one Ethernet segment; without
# these, one half answers ARP for the other and traffic of both ends up on one.
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

    def line(self, netdev: str) -> str:
        if not self.exists:
            return f"{netdev}: absent"
        state = "up" if self.up else "down"
        return f"{netdev}: {state}, MTU {self.mtu}, {', '.join(self.addresses) or 'no IPv4 address'}"


@dataclass
class Memory:
    """What was there before, see the module's docstring."""

    interfaces: dict[str, dict[str, Any]] = field(default_factory=dict)
    networkd_started: bool = False

    def text(self) -> str:
        document = {"schema": 1, "interfaces": self.interfaces, "networkd_started": self.networkd_started}
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
                }
                for name, entry in document["interfaces"].items()
            }
            return cls(interfaces, bool(document["networkd_started"]))
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise SparkError(
                f"the record of the interfaces' state before the first change is damaged ({exc})",
                MEMORY,
                "Delete it; the next undo then leaves MTU and sysctls as they are",
            ) from exc


@dataclass(frozen=True)
class Wanted:
    """``fact`` None: nothing is wanted, give everything back. ``hosts``: lines for /etc/hosts."""

    fact: FabricFact | None
    hosts: Sequence[str] = ()
    connection_interface: str = ""
    timeout_s: float = 30.0

    @property
    def rails(self) -> tuple[Rail, ...]:
        return self.fact.rails if self.fact else ()


@dataclass
class Outcome:
    """What was done, or in check mode would be."""

    changed: bool = False
    diff: list[dict[str, Any]] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)  # one line each, for people
    fact_applied: bool = False  # the fact on disk is this plan's, in state applied
    fact: dict[str, Any] | None = None  # the fact on disk


@dataclass
class Machine:
    """The node; tests give another root, another runner and another clock."""

    root: str = "/"
    runner: Runner = run
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    sysfs_root: Path = field(default_factory=lambda: Path("/sys"))

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
    )


def effective(machine: Machine) -> dict[str, Effective]:
    return parse_effective(machine.command("ip", "-j", "addr", "show", step="reading the interfaces").out)


def target(rail: Rail) -> Effective:
    return Effective(True, True, True, rail.mtu, (f"{rail.address}/{rail.prefix}",))


def reached(now: Effective, rail: Rail) -> bool:
    """Carrier is not asked for: a cable that is pulled is the probe's finding, no reason to configure again."""
    wanted = target(rail)
    return (now.up, now.mtu, now.addresses) == (wanted.up, wanted.mtu, wanted.addresses)


def _sysctl_path(netdev: str, key: str) -> str:
    return f"/proc/sys/net/ipv4/conf/{netdev}/{key}"


def _read_sysctl(machine: Machine, netdev: str, key: str) -> int | None:
    text = (machine.read(_sysctl_path(netdev, key)) or "").strip()
    return int(text) if text.isdigit() else None


def sysctls_needed(machine: Machine, netdevs: Iterable[str], memory: Memory) -> dict[tuple[str, str], int]:
    """The sysctls that have to be set because nobody else does: by what was there before us, not by what we set."""
    needed = {}
    for netdev in netdevs:
        before = memory.interfaces.get(netdev, {}).get("sysctls", {})
        for key, value in ARP.items():
            own = before.get(key, _read_sysctl(machine, netdev, key))
            if own is not None and max(own, _read_sysctl(machine, "all", key) or 0) < value:
                needed[netdev, key] = value
    return needed


def _sysctl_text(needed: Mapping[tuple[str, str], int]) -> str:
    # systemd-udevd applies lines for an interface when it appears (99-systemd.rules), so a late NIC gets them as well.
    lines = [
        "# Written by the role fabric of sparkmatrix.cluster. Both halves of a cage share one Ethernet segment: each",
        "# answers ARP for its own address only.",
        *(f"net.ipv4.conf.{netdev}.{key} = {value}" for (netdev, key), value in sorted(needed.items())),
    ]
    return "\n".join(lines) + "\n"


# --- /etc/hosts ------------------------------------------------------------------------------------------------------


def with_block(text: str, lines: Sequence[str]) -> str:
    """``text`` with our marked block holding ``lines``, at its old place or at the end; without it when there are none.

    Raises :class:`SparkError` when the block begins and does not end, since what belongs to it cannot be told.
    """
    have = text.splitlines(keepends=True)
    bare = [line.strip() for line in have]
    block = [line + "\n" for line in (BEGIN, *lines, END)] if lines else []
    if BEGIN in bare:
        start = bare.index(BEGIN)
        if END not in bare[start:]:
            raise SparkError(
                f"the block {BEGIN!r} has no end", HOSTS, f"Add the line {END!r} after its last entry, or remove it"
            )
        return "".join(have[:start] + block + have[bare.index(END, start) + 1 :])
    if not block:
        return text
    return text + ("" if not text or text.endswith("\n") else "\n") + "".join(block)


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


# --- the work --------------------------------------------------------------------------------------------------------


def reconcile(machine: Machine, wanted: Wanted, *, check_mode: bool = False) -> Outcome:
    """Make ``wanted`` true. Raises :class:`SparkError` that names the step; then what was there before is back."""
    if check_mode:
        return _Apply(machine, wanted, check_mode).run()
    with _alone(machine):
        return _Apply(machine, wanted, check_mode).run()


@contextlib.contextmanager
def _alone(machine: Machine) -> Iterator[None]:
    """One change at a time: a controller that was killed leaves its module running on the node for a while."""
    os.makedirs(os.path.dirname(machine.real(LOCK)), exist_ok=True)
    handle = os.open(machine.real(LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        deadline = machine.clock() + LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if machine.clock() >= deadline:
                    raise SparkError(
                        f"another run has been changing the fabric of this node for {LOCK_WAIT_S:g} s",
                        LOCK,
                        "Wait for it to end, and run again",
                    ) from None
                machine.sleep(POLL_S)
        yield
    finally:
        os.close(handle)


class _Apply:
    def __init__(self, machine: Machine, wanted: Wanted, check_mode: bool) -> None:
        self.machine = machine
        self.wanted = wanted
        self.check_mode = check_mode
        self.outcome = Outcome()
        self.memory = Memory.parse(machine.read(MEMORY))
        self.before = effective(machine) if wanted.rails or self.memory.interfaces else {}
        self.rails = {rail.netdev: rail for rail in wanted.rails}

    # -- compare

    def run(self) -> Outcome:
        self._read_fact()
        leaving = [netdev for netdev in self.memory.interfaces if netdev not in self.rails]
        off = [n for n, rail in self.rails.items() if not reached(self.before.get(n, Effective()), rail)]
        after = self._remember()
        needed = sysctls_needed(self.machine, self.rails, after)
        wrong_sysctls = {
            (netdev, key): value
            for (netdev, key), value in needed.items()
            if (_read_sysctl(self.machine, netdev, key) or 0) < value
        }
        files = self._files(after, needed)
        planned = self._apply_files(files, check_mode=True)
        hosts_before = self.machine.read(HOSTS) or ""
        hosts_after = with_block(hosts_before, self.wanted.hosts if self.rails else ())

        network = bool(planned.changed or leaving or off)
        if network and self.rails:
            self._check(off)
            self._validate(files)
        self._describe(leaving, off, planned, wrong_sysctls, (hosts_before, hosts_after))
        if self.check_mode or not self.outcome.changed:
            return self.outcome

        self._write_fact()
        if network or wrong_sysctls:
            self._change_network(files, after, needed, leaving)
        if hosts_after != hosts_before:
            write_hosts(self.machine, hosts_after)
        return self.outcome

    def _read_fact(self) -> None:
        text = self.machine.read(FACT_PATH)
        if text is None:
            return
        with contextlib.suppress(ValueError, SparkError):
            fact = load(json.loads(text), self.wanted.fact.host if self.wanted.fact else "")
            self.outcome.fact = fact.as_dict()
            same = self.wanted.fact is not None and fact.plan_hash == self.wanted.fact.plan_hash
            self.outcome.fact_applied = same and fact.state == "applied"
            self._fact_is_this_plan = same

    _fact_is_this_plan = False

    def _remember(self) -> Memory:
        """The memory after this run: what was there is kept from the first time that an interface became ours."""
        interfaces = {name: dict(entry) for name, entry in self.memory.interfaces.items() if name in self.rails}
        for netdev, rail in self.rails.items():
            if netdev not in interfaces:
                now = self.before.get(netdev, Effective())
                values = {key: _read_sysctl(self.machine, netdev, key) for key in ARP}
                interfaces[netdev] = {
                    "mtu": now.mtu,
                    "up": now.up,
                    "sysctls": {key: value for key, value in values.items() if value is not None},
                    "nm_managed": self._nm_manages(netdev),
                    "addresses": [],
                }
            entry = interfaces[netdev]
            ours = f"{rail.address}/{rail.prefix}"
            if ours not in entry["addresses"]:
                entry["addresses"] = sorted([*entry["addresses"], ours])
        started = self.memory.networkd_started
        if self.rails and not self.memory.interfaces:
            started = not self.machine.works("systemctl", "is-active", "--quiet", "systemd-networkd.service")
        return Memory(interfaces, started and bool(interfaces))

    def _nm_manages(self, netdev: str) -> bool:
        done = self.machine.runner(("nmcli", "-g", "GENERAL.STATE", "device", "show", netdev))
        # "10 (unmanaged)", "100 (connected)"; no nmcli or no running NetworkManager: not managed.
        return done.rc == 0 and not done.out.strip().startswith("10 ")

    def _files(self, memory: Memory, needed: Mapping[tuple[str, str], int]) -> list[File]:
        if not self.rails:
            return []
        files = [
            File(_netplan.FILE, content=_netplan.render(self._interfaces()).encode(), mode=0o600),
            File(MEMORY, content=memory.text().encode()),
        ]
        if needed:
            files.append(File(SYSCTL_FILE, content=_sysctl_text(needed).encode()))
        return files

    def _interfaces(self) -> list[_netplan.Interface]:
        return [_netplan.Interface(r.netdev, f"{r.address}/{r.prefix}", r.mtu) for r in self.wanted.rails]

    def _apply_files(self, files: Sequence[File], *, check_mode: bool) -> Result:
        # Without files the set is given back; it is left alone if it never was there.
        if not files and self.machine.read(f"{STATE_DIR}/{SET}.json") is None:
            return Result()
        return apply_set(SET, files, check_mode=check_mode, root=self.machine.root)

    def _describe(
        self,
        leaving: Sequence[str],
        off: Sequence[str],
        planned: Result,
        sysctls: Mapping[tuple[str, str], int],
        hosts: tuple[str, str],
    ) -> None:
        changes, out = [], self.outcome
        lines: tuple[list[str], list[str]] = ([], [])
        for netdev in off:
            lines[0].append(self.before.get(netdev, Effective()).line(netdev))
            lines[1].append(target(self.rails[netdev]).line(netdev))
        for netdev in leaving:
            now = self.before.get(netdev, Effective())
            ours = self.memory.interfaces[netdev]["addresses"]
            rest = tuple(address for address in now.addresses if address not in ours)
            back = replace(now, mtu=self.memory.interfaces[netdev]["mtu"], addresses=rest)
            lines[0].append(now.line(netdev))
            lines[1].append(f"{back.line(netdev)} (given back)")
        for (netdev, key), value in sysctls.items():
            lines[0].append(f"{netdev}: {key} {_read_sysctl(self.machine, netdev, key)}")
            lines[1].append(f"{netdev}: {key} {value}")
        changes += lines[1]
        if lines[0]:
            before, after = ("\n".join(part) + "\n" for part in lines)
            header = "effective state of the fabric interfaces"
            out.diff.append({"before_header": header, "after_header": header, "before": before, "after": after})
        out.diff += [entry for entry in planned.diff if MEMORY not in str(entry.get("before_header"))]
        changes += planned.changed_paths
        if hosts[0] != hosts[1]:
            out.diff.append({"before_header": HOSTS, "after_header": HOSTS, "before": hosts[0], "after": hosts[1]})
            changes.append(HOSTS)
        if self.wanted.fact is None:
            changes += remove_set(FACT_SET, check_mode=True, root=self.machine.root).changed_paths
        elif changes or not self._fact_is_this_plan:
            changes.append(FACT_PATH)
        out.changes, out.changed = changes, bool(changes)

    # -- refuse

    def _check(self, off: Sequence[str]) -> None:
        connection = self.wanted.connection_interface
        if connection and connection in self.rails:
            raise SparkError(
                "this interface carries Ansible's connection, and changing it would cut the line",
                connection,
                "Connect over the management network: set ansible_host to the management address",
            )
        for netdev in self.rails:
            if netdev not in self.before:
                raise SparkError("the interface is gone", netdev, "Check the cable and dmesg, and run again")
        self._check_foreign_addresses(off)
        self._check_files()

    def _check_foreign_addresses(self, off: Sequence[str]) -> None:
        """An address that somebody set by hand would be lost when networkd takes the interface over."""
        for netdev in off:
            now = self.before[netdev]
            ours = set(self.memory.interfaces.get(netdev, {}).get("addresses", ()))
            ours |= {f"{self.rails[netdev].address}/{self.rails[netdev].prefix}"} | set(now.dynamic)
            for address in now.addresses:
                if address not in ours and not self._from_netplan(netdev, address):
                    raise SparkError(
                        f"has the address {address}, which this collection did not place and would take away",
                        netdev,
                        f"Remove it: ip addr del {address} dev {netdev}; if it is needed, move it to another interface",
                    )

    def _from_netplan(self, netdev: str, address: str) -> bool:
        """It is in a netplan or NetworkManager file, which then is named with a better message."""
        files = {**self._netplan_files(), **self._keyfiles()}
        return any(address in text and netdev in text for text in files.values())

    def _netplan_files(self) -> dict[str, str]:
        return self._texts(_netplan.DIRECTORIES, ".yaml")

    def _keyfiles(self) -> dict[str, str]:
        return self._texts((_netplan.KEYFILES,), ".nmconnection")

    def _texts(self, directories: Iterable[str], ending: str) -> dict[str, str]:
        paths = (f"{d}/{name}" for d in directories for name in self.machine.names(d) if name.endswith(ending))
        return {path: text for path in paths for text in [self.machine.read(path)] if text is not None}

    def _check_files(self) -> None:
        found = _netplan.conflicts(self._netplan_files(), self._interfaces())
        found += _netplan.keyfile_conflicts(self._keyfiles(), self._interfaces())
        if found:
            text = "; ".join(f"{item.file}: {item.found}" for item in found)
            remedies = dict.fromkeys(item.remedy for item in found)
            raise SparkError(
                text, ", ".join(dict.fromkeys(item.netdev for item in found)), f"{'. '.join(remedies)}. Then run again"
            )

    # -- act

    def _write_fact(self) -> None:
        """Before the first change: a run that dies leaves a fact that no later layer accepts."""
        fact = self.wanted.fact
        if fact is None:
            remove_set(FACT_SET, root=self.machine.root)
            return
        self.outcome.fact_applied = False
        text = dump(replace(fact, state="applying"))
        apply_set(FACT_SET, [File(FACT_PATH, content=text.encode())], root=self.machine.root)

    def _change_network(
        self,
        files: Sequence[File],
        memory: Memory,
        needed: Mapping[tuple[str, str], int],
        leaving: Sequence[str],
    ) -> None:
        previous = self._current(files)
        try:
            self._install(files, memory, leaving)
            self._activate(memory, leaving)
            for (netdev, key), value in needed.items():
                self._write_sysctl(netdev, key, value)
            self._wait()
        except SparkError as exc:
            self._roll_back(previous, memory, exc)
        # From here on the memory need not hold what has been given back.
        apply_set(SET, files, root=self.machine.root)
        if not self.rails and self.memory.networkd_started:
            self._stop_networkd()
        self._wait_for_gids()

    def _current(self, files: Sequence[File]) -> list[File]:
        """The set as it is on disk now, to come back to."""
        paths = dict.fromkeys([*(item.path for item in files), _netplan.FILE, MEMORY, SYSCTL_FILE])
        texts = {path: self.machine.read(path) for path in paths}
        return [
            File(path, content=text.encode("utf-8", "surrogateescape"), mode=0o600 if path == _netplan.FILE else 0o644)
            for path, text in texts.items()
            if text is not None
        ]

    def _install(self, files: Sequence[File], memory: Memory, leaving: Sequence[str]) -> None:
        # What leaves stays in the memory until it is given back, and everything is remembered before the first change.
        remembered = Memory(
            {**{netdev: self.memory.interfaces[netdev] for netdev in leaving}, **memory.interfaces},
            memory.networkd_started or self.memory.networkd_started,
        )
        first = File(MEMORY, content=remembered.text().encode())
        others = [item for item in self._current(files) if item.path != MEMORY]
        apply_set(SET, [first, *others], root=self.machine.root)
        wanted = [item for item in files if item.path != MEMORY]
        apply_set(SET, [first, *wanted], root=self.machine.root)

    def _validate(self, files: Sequence[File]) -> None:
        """Let netplan read everything in a scratch directory first, and look at what it makes of it."""
        with tempfile.TemporaryDirectory(prefix="sparkmatrix-fabric-") as scratch:
            for directory in _netplan.DIRECTORIES:
                for path, text in self._texts((directory,), ".yaml").items():
                    _put(scratch + path, text)
            for item in files:
                if item.path == _netplan.FILE:
                    _put(scratch + item.path, (item.content or b"").decode())
            self.machine.command(
                "netplan",
                "generate",
                "--root-dir",
                scratch,
                step="validating the netplan configuration",
                remedy="Install netplan.io, or correct the file that it names; nothing was changed",
            )
            made = Path(scratch) / "run/systemd/network"
            for interface in self._interfaces():
                texts = [path.read_text() for path in made.glob(f"*netplan-{interface.netdev}.network")]
                if not any(interface.address in text for text in texts):
                    raise SparkError(
                        f"netplan accepts {_netplan.FILE} but configures no {interface.address} from it",
                        interface.netdev,
                        "Look for another file that defines this interface: netplan get",
                    )
            self._check_pending(made)

    def _check_pending(self, made: Path) -> None:
        """``networkctl reload`` makes every file effective, also an edit of the management network that waits there."""
        connection = self.wanted.connection_interface
        if not connection:
            return
        pending = {path.name: path.read_text() for path in made.glob(f"*netplan-{connection}.network")}
        for name, text in pending.items():
            if self.machine.read(f"/run/systemd/network/{name}") != text:
                raise SparkError(
                    "its netplan configuration was edited and not applied yet; it would become effective now, and it "
                    "carries Ansible's connection",
                    connection,
                    "Apply or take back that edit (sudo netplan try, at the machine), and run again",
                )

    def _activate(self, memory: Memory, leaving: Sequence[str]) -> None:
        machine = self.machine
        machine.command("netplan", "generate", step="generating the network configuration")
        if os.path.exists(machine.real("/run/udev/control")):
            machine.works("udevadm", "control", "--reload")
        if machine.works("systemctl", "is-active", "--quiet", "NetworkManager.service"):
            for netdev in self.rails:
                # netplan's udev rule says the same, but is not read again before the device appears anew.
                machine.command("nmcli", "device", "set", netdev, "managed", "no", step="telling NetworkManager")
        running = machine.works("systemctl", "is-active", "--quiet", "systemd-networkd.service")
        if not running and self.rails:
            machine.command(
                "systemctl",
                "start",
                "systemd-networkd.service",
                step="starting systemd-networkd",
                remedy="See journalctl -u systemd-networkd",
            )
        if running or self.rails:
            machine.command("networkctl", "reload", step="reloading systemd-networkd")
        if self.rails:
            machine.command("networkctl", "reconfigure", *self.rails, step="configuring the interfaces")
        for netdev in leaving:
            self._release(netdev, self.memory.interfaces[netdev])

    def _release(self, netdev: str, before: Mapping[str, Any]) -> None:
        """Give one interface back. It may have left the machine: then there is nothing to give back."""
        machine = self.machine
        now = effective(machine).get(netdev)
        if now is None:
            return
        for key, value in before["sysctls"].items():
            self._write_sysctl(netdev, key, value)
        if any(name.endswith(f"netplan-{netdev}.network") for name in machine.names("/run/systemd/network")):
            # Another netplan file configures it as well: that one counts now.
            machine.command("networkctl", "reconfigure", netdev, step="configuring the interface as before")
        else:
            self._take_addresses(netdev, before["addresses"])
            if before["mtu"] and before["mtu"] != now.mtu:
                machine.command("ip", "link", "set", netdev, "mtu", str(before["mtu"]), step="restoring the MTU")
            if not before["up"]:
                machine.command("ip", "link", "set", netdev, "down", step="restoring the state")
        if before["nm_managed"]:
            machine.works("nmcli", "device", "set", netdev, "managed", "yes")

    def _take_addresses(self, netdev: str, addresses: Sequence[str]) -> None:
        """networkd takes its addresses back in the background, or leaves them, depending on its version."""
        for _attempt in range(int(3 / POLL_S)):
            left = [a for a in effective(self.machine).get(netdev, Effective()).addresses if a in addresses]
            if not left:
                return
            for address in left:
                self.machine.works("ip", "addr", "del", address, "dev", netdev)
            self.machine.sleep(POLL_S)
        raise SparkError(f"cannot remove {', '.join(left)}", netdev, "Remove it by hand: ip addr del")

    def _stop_networkd(self) -> None:
        """It was not running before us; it stops unless somebody else has given it work by now."""
        if not any(name.endswith(".network") for name in self.machine.names("/run/systemd/network")):
            self.machine.works("systemctl", "stop", "systemd-networkd.socket", "systemd-networkd.service")

    def _write_sysctl(self, netdev: str, key: str, value: int) -> None:
        path = _sysctl_path(netdev, key)
        try:
            with open(self.machine.real(path), "r+", encoding="ascii") as stream:
                stream.write(f"{value}\n")
        except OSError as exc:
            raise SparkError(f"cannot be set to {value} ({exc.strerror})", path) from exc

    def _wait(self) -> None:
        """Until the kernel has it; networkd configures in the background."""
        deadline = self.machine.clock() + self.wanted.timeout_s
        while True:
            now = effective(self.machine)
            off = [netdev for netdev, rail in self.rails.items() if not reached(now.get(netdev, Effective()), rail)]
            if not off:
                return
            if self.machine.clock() >= deadline:
                break
            self.machine.sleep(POLL_S)
        problems = []
        for netdev in off:
            state = now.get(netdev, Effective())
            why = "" if state.carrier or not state.exists else " (no link: check the cable)"
            problems.append(f"{state.line(netdev)}{why}, wanted: {target(self.rails[netdev]).line(netdev)}")
        raise SparkError(
            f"waiting {self.wanted.timeout_s:g} s for the interfaces failed: {'; '.join(problems)}",
            ", ".join(off),
            f"Look at: networkctl status {off[0]}; journalctl -u systemd-networkd",
        )

    def _wait_for_gids(self) -> None:
        """The RDMA driver follows addresses in the background; whoever measures next should not be too early."""
        fact = self.wanted.fact
        if fact is None or fact.transport != "rdma":
            return
        deadline = self.machine.clock() + GID_WAIT_S
        devices = [rail.rdma_device for rail in self.wanted.rails]
        while self.machine.clock() < deadline:
            found = {gid.ipv4 for gid in _show_gids.read(self.machine.sysfs_root, devices)}
            if all(rail.address in found for rail in self.wanted.rails):
                return
            self.machine.sleep(POLL_S)

    def _roll_back(self, previous: Sequence[File], memory: Memory, cause: SparkError) -> None:
        """Back to what was there when this run began, then report the failure."""
        try:
            fresh = [netdev for netdev in self.rails if netdev not in self.memory.interfaces]
            keep = [item for item in previous if item.path != MEMORY]
            remembered = Memory({**self.memory.interfaces, **memory.interfaces}, memory.networkd_started)
            held = File(MEMORY, content=remembered.text().encode())
            apply_set(SET, [held, *keep], root=self.machine.root)
            self.machine.command("netplan", "generate", step="generating the previous configuration")
            self.machine.command("networkctl", "reload", step="reloading systemd-networkd")
            for netdev in fresh:
                self._release(netdev, memory.interfaces[netdev])
            known = [netdev for netdev in self.memory.interfaces if netdev in self.before]
            if known:
                self.machine.command("networkctl", "reconfigure", *known, step="configuring the interfaces as before")
            apply_set(SET, previous, root=self.machine.root)
            if not previous and memory.networkd_started:
                self._stop_networkd()
        except SparkError as exc:
            raise SparkError(
                f"{cause.found}. Going back failed as well: {exc.found}", cause.where, cause.remedy
            ) from cause
        raise SparkError(f"{cause.found}. The previous configuration is in force again", cause.where, cause.remedy)


def _put(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8", errors="surrogateescape", opener=_private) as stream:
        stream.write(text)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
