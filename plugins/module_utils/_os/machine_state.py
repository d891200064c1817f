# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the topics of ``os_stabilization`` need to know of a machine, read once. Nothing here changes anything."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import meminfo
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Runner
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
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
_PROPERTIES = "Id,LoadState,ActiveState,UnitFileState,ControlGroup,Slice,Accept"
_SWAP_UNITS = ("systemctl", "list-unit-files", "--type=swap", "--no-legend")
_SESSION = "Id,Name,Type,Class,Remote,Service,State"
GRAPHICAL = frozenset({"x11", "wayland", "mir", "xrdp"})


@dataclass(frozen=True)
class Unit:
    """A unit as systemd shows it. ``cgroup`` is empty while it does not run."""

    name: str
    load: str = "not-found"
    active: str = "inactive"
    file_state: str = ""
    cgroup: str = ""
    slice: str = ""
    accept: bool = False

    @property
    def exists(self) -> bool:
        return self.load not in ("not-found", "masked")

    @property
    def running(self) -> bool:
        return self.active in ("active", "reloading", "refreshing", "activating")


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
class Machine:
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
    default_target: str = ""
    reboot_required: bool = False

    def unit(self, name: str) -> Unit:
        return self.units.get(name, Unit(name))


def parse_units(names: Sequence[str], text: str) -> dict[str, Unit]:
    """``systemctl show`` of several units: a block of ``Name=value`` lines for each, in their order."""
    found = {}
    for name, block in zip(names, re.split(r"\n\s*\n", text.strip())):
        values = dict(line.partition("=")[::2] for line in block.splitlines())
        found[name] = Unit(
            name,
            values.get("LoadState") or "not-found",
            values.get("ActiveState") or "inactive",
            values.get("UnitFileState", ""),
            values.get("ControlGroup", ""),
            values.get("Slice", ""),
            values.get("Accept") == "yes",
        )
    return found


def parse_sessions(text: str) -> list[Session]:
    """``loginctl show-session``: blocks as of ``systemctl show``."""
    found = []
    for block in re.split(r"\n\s*\n", text.strip()):
        values = dict(line.partition("=")[::2] for line in block.splitlines())
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


class Reader:
    """Reads below ``root`` and through ``runner``; tests replace both."""

    def __init__(self, runner: Runner, root: str = "/") -> None:
        self.runner = runner
        self.root = Path(root)

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def text(self, name: str) -> str:
        try:
            return self.path(name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def lines(self, *argv: str) -> str:
        done = self.runner(argv)
        return done.out if done.rc == 0 else ""

    def read(
        self,
        *,
        sysctl: Sequence[str] = (),
        more_units: Sequence[str] = (),
        packages: bool = False,
        known_swaps: Sequence[str] = (),
        docker: str = "/etc/docker/daemon.json",
    ) -> Machine:
        memory = meminfo.read(str(self.root))
        units = self.units([*UNITS, *(name for name in more_units if name not in UNITS)])
        mounts = [line.split() for line in self.text("/proc/mounts").splitlines()]
        cgroup = [words[3].split(",") for words in mounts if words[1:3] == ["/sys/fs/cgroup", "cgroup2"]]
        return Machine(
            memory_total=memory.get("MemTotal", 0),
            memory_available=memory.get("MemAvailable", 0),
            swaps=read_swaps(str(self.root)),
            swap_units=self.swap_units(),
            swap_files=frozenset(name for name in known_swaps if self.path(name).exists()),
            units=units,
            sessions=self.sessions(),
            packages=self.packages() if packages else {},
            sysctl={key: " ".join(self.text(f"/proc/sys/{key.replace('.', '/')}").split()) for key in sysctl},
            containers=self.containers(units["docker.service"]),
            docker_config=self.file(docker),
            memory_controller="memory" in self.text("/sys/fs/cgroup/cgroup.controllers").split(),
            recursive_protection=any("memory_recursiveprot" in options for options in cgroup),
            apt=self.path("/etc/apt").is_dir(),
            nvidia_driver=self.path("/proc/driver/nvidia/version").exists(),
            clock_synchronized=self.clock(),
            default_target=self.lines("systemctl", "get-default").strip(),
            reboot_required=self.path("/run/reboot-required").exists(),
        )

    def units(self, names: Sequence[str]) -> dict[str, Unit]:
        done = self.runner(["systemctl", "show", f"--property={_PROPERTIES}", "--", *names])
        if done.rc != 0:
            raise SparkError(
                f"systemctl show failed ({done.complaint})", "systemd", "This role needs systemd as the init system"
            )
        return parse_units(names, done.out)

    def swap_units(self) -> list[str]:
        """What would activate swap at a boot: units of generators (fstab, GPT, zram) and of administrators."""
        words = [line.split() for line in self.lines(*_SWAP_UNITS).splitlines()]
        return sorted({line[0] for line in words if line and line[0].endswith(".swap")})

    def sessions(self) -> list[Session]:
        listed = self.lines("loginctl", "list-sessions", "--no-legend")
        ids = re.findall(r"^\s*(c?[0-9]+)\s", listed, re.MULTILINE)
        return parse_sessions(self.lines("loginctl", "show-session", f"--property={_SESSION}", *ids)) if ids else []

    def packages(self) -> dict[str, str]:
        form = "${db:Status-Abbrev}\t${Package}\t${Version}\n"
        return parse_packages(self.lines("dpkg-query", "-W", "-f", form))

    def containers(self, docker: Unit) -> list[str]:
        # Asking a stopped daemon would start it through its socket.
        return self.lines("docker", "ps", "--format", "{{.Names}}").split() if docker.running else []

    def file(self, name: str) -> bytes | None:
        try:
            return self.path(name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise SparkError(f"cannot read: {exc.strerror}", name, "Run with become: true") from exc

    def clock(self) -> bool | None:
        answer = self.lines("timedatectl", "show", "--property=NTPSynchronized", "--value").strip()
        return {"yes": True, "no": False}.get(answer)
