# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Reads what a node is (:mod:`_preflight.node`), in one go. What cannot be read is None, never a traceback."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils import _settled
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, gpu, journal, listening, paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import search_path
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.hardware import hardware, memory
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import kept_plan
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import names as engine_names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fact as fabric_fact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import (
    ibdev2netdev,
    leftover_units,
    management,
    netplan,
    show_gids,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.ibdev2netdev import Rdma
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.show_gids import Gid
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import files as managed_files
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight import environments
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.node import (
    PARTS,
    Account,
    Disk,
    Limits,
    Nccl,
    Node,
    Python,
    Session,
    UnitState,
)

_CAP_SYS_RESOURCE = 24  # include/uapi/linux/capability.h


@dataclass(frozen=True)
class Request:
    """What to look for beyond what is always read."""

    paths: Sequence[str] = ()
    commands: Sequence[str] = ()
    units: Sequence[str] = ()
    ports: Sequence[int] = ()
    parts: Sequence[str] = ()  # of PARTS
    environments: Sequence[str] = ()
    interpreters: Sequence[str] = ()
    users: Sequence[str] = ()  # who serve: their NCCL settings count, and environments may be theirs
    connection_host: str = ""
    controller_time: float | None = None


def gather(request: Request, machine: Machine | None = None) -> Node:
    machine = machine or Machine()
    now = machine.now()
    uname = os.uname()
    heard = listening.listening(machine, request.ports)
    # Most of the time is spent waiting for programs, so they run side by side.
    with ThreadPoolExecutor(max_workers=8) as pool:
        net = pool.submit(management.read, machine, request.connection_host)
        kind = pool.submit(hardware, machine)
        states = pool.submit(units, machine, request.units)
        pythons = pool.submit(environments.interpreters, machine, request.interpreters, request.users)
        extra = {name: pool.submit(read_part, machine, request, name) for name in request.parts}
    return Node(
        hostname=machine.text("/proc/sys/kernel/hostname") or uname.nodename,
        machine=kind.result(),
        machine_id=machine.text("/etc/machine-id") or None,
        boot_id=machine.text("/proc/sys/kernel/random/boot_id"),
        kernel=machine.text("/proc/sys/kernel/osrelease") or uname.release,
        arch=uname.machine,
        os=release(machine.text("/etc/os-release")),
        dgx=release(machine.text("/etc/dgx-release")) or None,
        nvidia_driver=driver_version(machine.text("/proc/driver/nvidia/version")),
        python=Python(".".join(map(str, sys.version_info[:3])), sys.executable),
        memory=memory(machine),
        paths={path: disk(machine, path) for path in request.paths},
        network=net.result(),
        listening=None if heard is None else tuple(heard),
        commands={name: shutil.which(name, path=search_path()) for name in request.commands},
        units=states.result(),
        managed=managed(machine),
        accounts=accounts(machine),
        engine_units=engine_units(machine),
        taken=kept_plan.taken_here(machine.root),
        verdicts=len(machine.names(paths.VERDICTS)),
        netplan_modes={path: mode(machine, path) for path in netplan_files(machine)},
        netplan_bonds=netplan_bonds(machine),
        leftover_units=tuple(
            leftover for leftover in leftover_units.leftovers(machine, halves(machine)) if leftover.netdevs
        ),
        environments=environments.environments(machine, request.environments, request.users),
        interpreters=pythons.result(),
        systemd=machine.text("/proc/1/comm") == "systemd",
        limits=limits(machine),
        uid=os.geteuid(),
        sudo_user=machine.environment.get("SUDO_USER"),
        time=now,
        # Includes the way from the controller to here, so it is too large by up to a few seconds, never too small.
        clock_offset=None if request.controller_time is None else now - request.controller_time,
        parts=tuple(request.parts),
        **{name: part.result() for name, part in extra.items()},
    )


def shown(node: Node) -> dict[str, Any]:
    """As the module returns it: what was not asked for is not there, and devices are as other modules return them."""
    found: dict[str, Any] = document.plain(node)
    if node.rdma is not None:
        found["rdma"] = node.rdma.as_dict()
    if node.gids is not None:
        found["gids"] = [gid.as_dict() for gid in node.gids]
    return {name: value for name, value in found.items() if name not in PARTS or name in node.parts}


def read_part(machine: Machine, request: Request, name: str) -> Any:
    """One of :data:`PARTS`."""
    readers: dict[str, Callable[[], Any]] = {
        "rdma": lambda: rdma(machine),
        "gids": lambda: gids(machine),
        "kernel_log": lambda: journal.errors(machine),
        "settled": lambda: _settled.gather(machine, engine_units(machine)),
        "session": lambda: session(
            machine, management.read(machine, request.connection_host).connection_interface or ""
        ),
        "gpu": lambda: gpu.cuda(machine),
        "clocks": lambda: gpu.clocks(machine),
        "nccl": lambda: Nccl(environments.system_nccl(machine), environments.nccl_settings(machine, request.users)),
    }
    if name not in readers:
        raise SparkError(f"there is no part {name!r}", "node_info", f"The parts are: {', '.join(PARTS)}")
    return readers[name]()


def gids(machine: Machine) -> tuple[Gid, ...] | None:
    with contextlib.suppress(SparkError):
        return tuple(show_gids.read(machine.sysfs))
    return None


def rdma(machine: Machine) -> Rdma:
    """From sysfs alone."""
    try:
        ports = ibdev2netdev.read(machine.sysfs)
        return Rdma(tuple(ports)) if ports else ibdev2netdev.explain_absence(machine.sysfs)
    except SparkError as exc:
        return Rdma(reason="unreadable", message=str(exc))


def driver_version(text: str | None) -> str | None:
    """From ``NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build ...``."""
    match = re.search(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", (text or "") + " ", re.M)
    return match.group(1) if match else None


def release(text: str | None) -> dict[str, str]:
    """``KEY="value"`` lines of os-release(5) and dgx-release, keys in lower case."""
    found = {}
    for line in (text or "").splitlines():
        match = re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", line.strip())
        if match:
            found[match.group(1).lower()] = match.group(2).strip().strip("\"'")
    return found


def disk(machine: Machine, path: str) -> Disk:
    place = Path(machine.real(path))
    exists = os.path.lexists(place)
    while not place.exists() and place != place.parent:
        place = place.parent
    found = Disk(exists, "/" + str(place.relative_to(machine.root)).lstrip("."))
    try:
        status = os.statvfs(place)
    except OSError:
        return found
    # f_bavail leaves out what is reserved for root: the engine does not run as root.
    size, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    return replace(found, total=size, free=free, read_only=bool(status.f_flag & os.ST_RDONLY))


# -- network


def session(machine: Machine, interface: str) -> Session | None:
    """None where there is none."""
    uuid = (machine.output("nmcli", "-g", "GENERAL.CON-UUID", "device", "show", interface) or "").strip()
    if not re.fullmatch(r"[0-9a-f-]{36}", uuid):
        return None
    show = ("connection", "show", uuid)
    users = machine.output("nmcli", "-g", "connection.permissions", *show) or ""
    flags = re.match(r"\d+", machine.output("nmcli", "-g", "802-11-wireless-security.psk-flags", *show) or "")
    secret = bool(flags and int(flags[0]) & 3)  # agent-owned, not saved
    return Session(interface, uuid, tuple(re.findall(r"user:([A-Za-z0-9._-]+)", users)), secret)


# -- systemd, netplan


def units(machine: Machine, names: Sequence[str]) -> dict[str, UnitState | None]:
    """None for all where systemd does not answer."""
    try:
        states = machine.units(names)
    except SparkError:
        return dict.fromkeys(names)
    return {name: UnitState(unit.load, unit.active, unit.sub, unit.enabled) for name, unit in states.items()}


def limits(machine: Machine) -> Limits:
    """By /proc/1/limits (proc(5))."""
    text = machine.text("/proc/1/limits") or ""

    def hard(name: str) -> int | None:
        match = re.search(rf"^{name}\s+(?:\d+|unlimited)\s+(\d+|unlimited)\b", text, re.M)
        return None if match is None else -1 if match[1] == "unlimited" else int(match[1])

    capabilities = re.search(r"^CapBnd:\s*([0-9a-f]+)", machine.text("/proc/1/status") or "", re.M)
    can = None if capabilities is None else bool(int(capabilities.group(1), 16) >> _CAP_SYS_RESOURCE & 1)
    return Limits(hard("Max locked memory"), hard("Max open files"), can)


def managed(machine: Machine) -> tuple[str, ...]:
    """Names of the sets that ``_managed.files`` keeps on the machine; only root can see them."""
    with contextlib.suppress(SparkError):
        return tuple(managed_files.names(root=machine.root))
    return ()


def accounts(machine: Machine) -> dict[str, Account]:
    """Accounts that are ours by their names: what the roles would make them with."""
    rows = [line.split(":") for line in (machine.text("/etc/passwd") or "").splitlines()]
    return {
        row[0]: Account(row[5], row[6], machine.exists(row[5]))
        for row in rows
        if len(row) == 7 and row[0].startswith("sparkmatrix")
    }


def engine_units(machine: Machine) -> tuple[str, ...]:
    """Units of services of the engine, and of their keepers, that are installed."""
    return tuple(name for name in machine.names(paths.UNITS) if engine_names.UNIT.fullmatch(name))


def halves(machine: Machine) -> list[str]:
    """The interfaces of the ConnectX-7, and those of the fabric, which may be gone from the machine."""
    found = fabric_fact.on_disk(machine)
    rails = found.get("rails") if isinstance(found, dict) else None
    named = [rail.get("netdev") for rail in rails or [] if isinstance(rail, dict)] if isinstance(rails, list) else []
    return [*management.rdma_interfaces(machine), *(name for name in named if isinstance(name, str))]


def netplan_files(machine: Machine) -> list[str]:
    """Files that netplan merges, in its order of directories (netplan-generate(8))."""
    return [
        f"{directory}/{name}"
        for directory in ("/lib/netplan", "/etc/netplan", "/run/netplan")
        for name in machine.names(directory)
        if name.endswith(".yaml")
    ]


def mode(machine: Machine, path: str) -> str | None:
    """Permission bits, for example ``0600``."""
    try:
        return f"{os.stat(machine.real(path)).st_mode & 0o7777:04o}"
    except OSError:
        return None


def netplan_bonds(machine: Machine) -> dict[str, tuple[str, ...]]:
    """``{file: names}`` of the netplan files that declare bonds, with the interfaces that are named below ``bonds``.
    A file that cannot be read is reported by the fabric layer."""
    found = {}
    for path in netplan_files(machine):
        with contextlib.suppress(SparkError):
            bonds = netplan.read(path, machine.text(path) or "").get("bonds")
            if bonds:
                names = {word for word in netplan.words(bonds) if re.fullmatch(r"en[\w.-]+", word)}
                found[path] = tuple(sorted(names))
    return found
