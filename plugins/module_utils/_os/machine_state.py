# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What the topics of ``os_stabilization`` need to know of a machine, read once. Nothing here changes anything."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import meminfo, systemd
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.systemd import Unit
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.settings import Swap, read_swaps

TIME_UNITS = ("chrony.service", "chronyd.service", "systemd-timesyncd.service", "ntpsec.service", "ntpd.service")
UNITS = (
    "display-manager.service",
    "docker.service",
    "earlyoom.service",
    "nvidia-persistenced.service",
    "ssh.service",
    "sshd.service",
    "ssh.socket",
    "sleep.target",
    *TIME_UNITS,
)
# By pattern and not by type: systemd then looks at these alone (0.01 s) and not at all unit files (0.35 s).
_SWAP_UNITS = ("systemctl", "list-unit-files", "*.swap", "--no-legend")
_PACKAGE = "${db:Status-Abbrev}\t${Package}\t${Version}\n"
_SESSION = "Id,Name,Type,Class,Remote,Service,State"
GRAPHICAL = frozenset({"x11", "wayland", "mir", "xrdp"})


@dataclass(frozen=True)
class Session:
    """A login as logind knows it."""

    id: str
    user: str = ""
    type: str = ""
    klass: str = ""
    remote: bool = False
    service: str = ""

    @property
    def graphical(self) -> bool:
        """A person's desktop, here or remote; not the login screen (class greeter) and not ssh."""
        return self.klass.startswith("user") and (self.type in GRAPHICAL or "xrdp" in self.service)

    def __str__(self) -> str:
        return (
            f"session {self.id} of {self.user or '?'} ({self.type or self.service}{', remote' if self.remote else ''})"
        )


@dataclass(frozen=True)
class Reading:
    """The reading. Mappings are by unit, package, or path."""

    memory_total: int = 0
    memory_available: int = 0
    swaps: Sequence[Swap] = ()
    swap_units: Sequence[str] = ()
    swap_files: frozenset[str] = frozenset()  # recorded swap areas that still exist
    units: Mapping[str, Unit] = field(default_factory=dict)
    sessions: Sequence[Session] = ()
    packages: Mapping[str, str] = field(default_factory=dict)  # installed ones, with their version
    sysctl: Mapping[str, str] = field(default_factory=dict)
    containers: Sequence[str] = ()  # running ones
    docker_config: bytes | None = None  # None: no such file
    memory_controller: bool = False
    recursive_protection: bool = False
    apt: bool = True
    nvidia_driver: bool = False
    clock_synchronized: bool | None = None  # None: not known
    reboot_required: bool = False

    def unit(self, name: str) -> Unit:
        return self.units.get(name, Unit(name))


def parse_sessions(text: str) -> list[Session]:
    """``loginctl show-session``: blocks as of ``systemctl show``."""
    found = []
    for block in systemd.parse(text):
        values = {name: texts[-1] for name, texts in block.items()}
        if values.get("Id") and values.get("State") != "closing":
            found.append(
                Session(
                    values["Id"],
                    values.get("Name", ""),
                    values.get("Type", ""),
                    values.get("Class", ""),
                    values.get("Remote") == "yes",
                    values.get("Service", ""),
                )
            )
    return found


def parse_packages(text: str) -> dict[str, str]:
    """``dpkg-query -W -f '${db:Status-Abbrev}\\t${Package}\\t${Version}\\n'``: installed ones, held ones included."""
    found = {}
    for line in text.splitlines():
        state, _tab, rest = line.partition("\t")
        name, _tab, version = rest.partition("\t")
        if state[1:2] == "i" and name:
            found[name] = version
    return found


def read(
    machine: Machine,
    *,
    sysctl: Sequence[str] = (),
    more_units: Sequence[str] = (),
    packages: bool = False,
    known_swaps: Sequence[str] = (),
) -> Reading:
    memory = meminfo.read(machine.root)
    units = machine.units([*UNITS, *(name for name in more_units if name not in UNITS)])
    mounts = [line.split() for line in _text(machine, "/proc/mounts").splitlines()]
    cgroup = [words[3].split(",") for words in mounts if words[1:3] == ["/sys/fs/cgroup", "cgroup2"]]
    synchronized = _said(machine, "timedatectl", "show", "--property=NTPSynchronized", "--value").strip()
    return Reading(
        memory_total=memory.get("MemTotal", 0),
        memory_available=memory.get("MemAvailable", 0),
        swaps=read_swaps(machine.root),
        swap_units=_swap_units(machine),
        swap_files=frozenset(name for name in known_swaps if machine.exists(name)),
        units=units,
        sessions=_sessions(machine),
        packages=parse_packages(_said(machine, "dpkg-query", "-W", "-f", _PACKAGE)) if packages else {},
        sysctl={key: " ".join(_text(machine, f"/proc/sys/{key.replace('.', '/')}").split()) for key in sysctl},
        # Asking a stopped daemon would start it through its socket.
        containers=_said(machine, "docker", "ps", "--format", "{{.Names}}").split()
        if units["docker.service"].alive
        else [],
        docker_config=machine.content("/etc/docker/daemon.json"),
        memory_controller="memory" in _text(machine, "/sys/fs/cgroup/cgroup.controllers").split(),
        recursive_protection=any("memory_recursiveprot" in options for options in cgroup),
        apt=machine.exists("/etc/apt"),
        nvidia_driver=machine.exists("/proc/driver/nvidia/version"),
        clock_synchronized={"yes": True, "no": False}.get(synchronized),
        reboot_required=machine.exists("/run/reboot-required"),
    )


def _text(machine: Machine, path: str) -> str:
    return machine.text(path) or ""


def _said(machine: Machine, *argv: str) -> str:
    return machine.output(*argv) or ""


def _swap_units(machine: Machine) -> list[str]:
    """What would activate swap at a boot: units of generators (fstab, GPT, zram) and of administrators."""
    words = [line.split() for line in _said(machine, *_SWAP_UNITS).splitlines()]
    return sorted({line[0] for line in words if line and line[0].endswith(".swap")})


def _sessions(machine: Machine) -> list[Session]:
    listed = _said(machine, "loginctl", "list-sessions", "--no-legend")
    ids = re.findall(r"^\s*(c?[0-9]+)\s", listed, re.MULTILINE)
    return parse_sessions(_said(machine, "loginctl", "show-session", f"--property={_SESSION}", *ids)) if ids else []
