# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The topics of ``os_stabilization``: what each of them wants on a machine, decided from options and a reading of it.

Every topic is one function from (:class:`Options`, :class:`Reading`, what the machine had before) to a :class:`Part`.
:data:`TOPICS` is the table; :func:`plan` puts the parts together. Nothing here reads or changes anything.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import engine_signs, paths, unit_sandbox
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.config_hash import config_hash
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.systemd import Unit
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import json_merge
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import File
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.settings import Record
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._os.machine_state import TIME_UNITS, Reading
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._os.options import Options

GIB = 2**30
MIB = 2**20
DOCKER_CONFIG = "/etc/docker/daemon.json"
# Linux starts with 60. On unified memory the page cache of a loading checkpoint pushes processes out to swap, and an
# engine whose pages come back from disk misses its time limits. Reports from the field use 1 and 10.
SWAPPINESS = "10"
SYSCTL_FILE = "/etc/sysctl.d/zz-sparkmatrix.conf"
WATCHDOG_UNIT = "sparkmatrix-memory-watchdog.service"
CLOCK_UNIT = "sparkmatrix-gpu-clock.service"
OUR_UNITS = (WATCHDOG_UNIT, CLOCK_UNIT)
WATCHDOG_MIB = 32
# Peaks while a model loads are shorter.
WATCHDOG_SECONDS = 5
# What is stopped: the first of these that runs, then the next one if that gave no memory back. On a node without the
# engine itself the ranks live in Ray's processes. Several services on a node are stopped together.
WATCHED = ("sparkmatrix-engine.service", "sparkmatrix-engine-*.service", "sparkmatrix-ray.service")
# nvidia-modprobe matters: an upgraded one does not load an older module.
KERNEL_AND_DRIVER = (
    "linux-image-*",
    "linux-headers-*",
    "linux-modules-*",
    "linux-nvidia*",
    "nvidia-*",
    "libnvidia-*",
    "xserver-xorg-video-nvidia*",
)
# The package's own 10 % is 12 GiB on a Spark, memory that an engine uses on purpose.
EARLYOOM_PERCENT = 3
# What systemd takes at most by itself; a lower value removes older entries for good.
JOURNAL_MIB = 4096
# Per file of a container, which Docker by itself never ends.
DOCKER_LOG_MIB = 100
DOCKER_LOG_FILES = 3
DROP_IN = "90-sparkmatrix.conf"
EARLYOOM_FILE = "/etc/default/earlyoom"
JOURNALD_FILE = f"/etc/systemd/journald.conf.d/{DROP_IN}"
RELOAD = "daemon-reload"
# Units that read a file only when they start.
RESTARTS: Mapping[str, str] = {
    DOCKER_CONFIG: "docker.service",
    EARLYOOM_FILE: "earlyoom.service",
    JOURNALD_FILE: "systemd-journald.service",
    f"{paths.UNITS}/{CLOCK_UNIT}": CLOCK_UNIT,
}
HEADING = "# Managed by sparkmatrix.cluster (os_stabilization). Undo: reset.yml --tags os_stabilization\n"
# What is protected from reclaim is lost to everybody else, the engine included.
PROTECTED_SHARE = 0.05
SWAPOFF_MARGIN = 2 * GIB
SLEEP_TARGETS = (
    "sleep.target",
    "suspend.target",
    "hibernate.target",
    "hybrid-sleep.target",
    "suspend-then-hibernate.target",
)
# unattended-upgrades takes them as regular expressions from the beginning of the name.
UPGRADE_EXCEPTIONS = (
    "linux-(image|headers|modules|tools|nvidia|generic|oem|main-modules)",
    "nvidia-",
    "libnvidia-",
    "libcuda",
    "cuda-",
    "xserver-xorg-video-nvidia",
    "mlnx-",
    "rdma-core",
    "libibverbs",
    "docker",
    "containerd",
)
# Names as in /proc/<pid>/comm, which are cut at 15 characters.
ENGINE_COMMS = (
    f"^({'|'.join([*(comm for signs in engine_signs.ENGINES for comm in signs.comms), *engine_signs.RAY, 'mpirun'])})"
)
# sparkmatrix-nod: the watchdog and the keeper.
SYSTEM_COMMS = (
    "^(systemd|systemd-journal|systemd-logind|sshd|sshd-session|dbus-daemon|NetworkManager|dockerd|containerd"
    "|sparkmatrix-nod)"
)


@dataclass
class Part:
    """What one topic wants.

    ``values`` by kind as in ``_managed.settings``; ``merged`` are keys for Docker's configuration; ``protect`` bytes by
    unit; ``services`` units of our own that should run, with the hash of their configuration; ``reboot`` reasons for
    one.
    """

    files: list[File] = field(default_factory=list)
    values: dict[str, dict[str, str]] = field(default_factory=dict)
    merged: dict[str, Any] = field(default_factory=dict)
    protect: dict[str, int] = field(default_factory=dict)
    services: dict[str, str] = field(default_factory=dict)
    reboot: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def want(self, kind: str, name: str, value: str) -> None:
        self.values.setdefault(kind, {})[name] = value

    def text(self, path: str, content: str) -> None:
        self.files.append(File(path, content=(HEADING + content).encode()))

    def service(self, name: str, content: str) -> None:
        made = config_hash(content)
        self.services[name] = made
        mark = f"[Service]\nEnvironment=SPARKMATRIX_CONFIG_HASH={made}\n"
        self.text(f"{paths.UNITS}/{name}", content.replace("[Service]\n", mark))

    def link(self, path: str, target: str) -> None:
        self.files.append(File(path, link_to=target))

    def warn(self, found: str, remedy: str, device: str = "") -> None:
        self.findings.append(Finding("", found, remedy, device, "warning"))

    def refuse(self, found: str, remedy: str, device: str = "") -> None:
        self.findings.append(Finding("", found, remedy, device))


@dataclass(frozen=True)
class Topic:
    """``switch`` tells from the options whether the topic is wanted; ``decide`` what it then wants."""

    name: str
    switch: Callable[[Options], bool]
    decide: Callable[[Options, Reading, Record], Part]


# -- headless


def headless(options: Options, machine: Reading, before: Record) -> Part:
    part = Part()
    # The path that systemctl set-default writes: links are compared as text.
    part.link(f"{paths.UNITS}/default.target", "/usr/lib/systemd/system/multi-user.target")
    manager = machine.unit("display-manager.service")
    people = [session for session in machine.sessions if session.graphical]
    stop = options.headless == "now" or (options.headless == "idle" and not people)
    if not manager.exists:
        return part
    if stop or not manager.alive:
        # Said also of one that does not run, or it would be taken for one that has to come back.
        if stop or manager.name in before.of("units"):
            part.want("units", manager.name, "inactive")
        return part
    part.reboot.append("the desktop still runs and keeps 1.2 to 3 GiB")
    if options.headless == "idle":
        part.warn(
            f"the desktop was not ended: {', '.join(map(str, people))}",
            "Log out there and run again, or set os_stabilization_headless: now, or reboot",
            manager.name,
        )
    return part


# -- swap and sysctl


def swap(options: Options, machine: Reading, before: Record) -> Part:
    part = Part()
    if options.swap_policy == "swappiness":
        if "vm.swappiness" not in options.sysctl:
            part.want("sysctl", "vm.swappiness", SWAPPINESS)
        return part
    known = {name for name in before.of("swaps") if name in machine.swap_files}
    active = {swap.name: swap for swap in machine.swaps}
    for name in sorted({*active, *known}):
        part.want("swaps", name, "off")
    used = sum(item.used for item in active.values())
    if active and used + SWAPOFF_MARGIN > machine.memory_available:
        part.refuse(
            f"{used / GIB:.1f} GiB in swap have to come back to memory, where"
            f" {machine.memory_available / GIB:.1f} GiB are available: this would freeze the machine",
            "Stop the engine first, or set os_stabilization_swap_policy: swappiness",
            "swap",
        )
    for unit in machine.swap_units:
        part.link(f"{paths.UNITS}/{unit}", "/dev/null")
    return part


def needed_sysctl(wanted: Mapping[str, str], now: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    """Of ``wanted`` (``5`` or ``>=5``) what the machine, as it was before us, does not have on its own."""
    found = {}
    for key, rule in wanted.items():
        original = before.get(key, now.get(key, ""))
        value = rule.replace(">=", "")
        numeric = original.lstrip("-").isdigit()
        enough = numeric and int(original) >= int(value) if rule.startswith(">=") else original == value
        if original and not enough:
            found[key] = value
    return found


def sysctl(options: Options, machine: Reading, before: Record) -> Part:
    part = Part()
    for key, value in needed_sysctl(options.sysctl, machine.sysctl, before.of("sysctl")).items():
        part.want("sysctl", key, value)
    for key in options.sysctl:
        if not machine.sysctl.get(key):
            part.warn("this kernel has no such setting", "Take it out of os_stabilization_sysctl", f"sysctl {key}")
    return part


# -- limits


def limits(options: Options, machine: Reading, before: Record) -> Part:
    part = Part()
    soft, hard = options.nofile_pair
    memlock = options.memlock_bytes
    values = {
        "DefaultLimitMEMLOCK": "infinity" if memlock is None else str(memlock),
        "DefaultLimitNOFILE": f"{soft}:{hard}",
    }
    part.values["limits"] = values
    manager = "[Manager]\n" + "".join(f"{name}={value}\n" for name, value in values.items())
    # Services; what users' own managers start (docker --user, podman); logins. pam_limits does not apply "*" to root.
    part.text(f"/etc/systemd/system.conf.d/{DROP_IN}", manager)
    part.text(f"/etc/systemd/user.conf.d/{DROP_IN}", manager)
    lines = "".join(
        f"{who} - memlock {options.memlock}\n{who} soft nofile {soft}\n{who} hard nofile {hard}\n"
        for who in ("*", "root")
    )
    part.text(f"/etc/security/limits.d/{DROP_IN}", lines)
    if machine.unit("docker.service").exists:
        locked = -1 if memlock is None else memlock
        part.merged["default-ulimits.memlock"] = {"Name": "memlock", "Hard": locked, "Soft": locked}
        part.merged["default-ulimits.nofile"] = {"Name": "nofile", "Hard": int(hard), "Soft": int(soft)}
    return part


# -- memory


def ancestors(cgroup: str, slice_name: str) -> list[str]:
    """Slices above a unit, the topmost first: from where it runs, or from ``Slice=`` while it does not.

    ``/system.slice/system-ssh.slice/x`` and ``system-ssh.slice`` both give ``[system.slice, system-ssh.slice]``.
    """
    found = [name for name in cgroup.strip("/").split("/")[:-1] if name.endswith(".slice")]
    if found or cgroup.strip("/"):
        return found
    if not slice_name.endswith(".slice") or slice_name == "-.slice":
        return []
    words = slice_name[: -len(".slice")].split("-")
    return ["-".join(words[:count]) + ".slice" for count in range(1, len(words) + 1)]


def protection(leaves: Mapping[str, int], units: Mapping[str, Unit]) -> dict[str, int]:
    """Bytes for the leaves and for every slice above them: protection that no ancestor has does nothing."""
    total = dict(leaves)
    for name, size in leaves.items():
        unit = units.get(name, Unit(name))
        for parent in ancestors(unit.cgroup, unit.slice):
            if parent not in leaves:
                total[parent] = total.get(parent, 0) + size
    return total


def memory_min(options: Options, machine: Reading, before: Record) -> Part:
    part = Part()
    leaves: dict[str, int] = {}
    for name, mib in options.memory_min_mib.items():
        alias = "sshd.service" if name == "ssh.service" and not machine.unit(name).exists else name
        if not machine.unit(alias).exists:
            part.warn(
                "there is no such unit, so nothing protects it",
                "Take it out of os_stabilization_memory_min_mib",
                f"MemoryMin {name}",
            )
        elif mib:
            leaves[alias] = mib * MIB
    socket = machine.unit("ssh.socket")
    if socket.alive and socket.accept and "ssh.service" in leaves:
        # One instance per connection; what the slice has, its children share.
        leaves["system-ssh.slice"] = leaves["ssh.service"]
    if options.watchdog_available_mib:
        leaves[WATCHDOG_UNIT] = WATCHDOG_MIB * MIB
    units = {**machine.units, WATCHDOG_UNIT: Unit(WATCHDOG_UNIT, slice="system.slice")}
    units["system-ssh.slice"] = Unit("system-ssh.slice", slice="system.slice")
    total = protection(leaves, units)
    spent = sum(leaves.values())
    most = int(machine.memory_total * PROTECTED_SHARE)
    if machine.memory_total and spent > most:
        part.refuse(
            f"{spent // MIB} MiB would be protected, more than {PROTECTED_SHARE:.0%} of this machine's"
            f" {machine.memory_total / GIB:.0f} GiB, and so be lost to the engine",
            f"Lower os_stabilization_memory_min_mib to {most // MIB} MiB in all",
            "MemoryMin",
        )
    for name, size in sorted(total.items()):
        if name == WATCHDOG_UNIT:
            continue  # its own unit file says it
        section = "Slice" if name.endswith(".slice") else "Service"
        part.text(f"{paths.UNITS}/{name}.d/{DROP_IN}", f"[{section}]\nMemoryMin={size}\n")
    if "system-ssh.slice" in leaves:
        part.text(f"{paths.UNITS}/ssh@.service.d/{DROP_IN}", f"[Service]\nMemoryMin={leaves['ssh.service']}\n")
    part.protect = total
    if not machine.memory_controller:
        part.warn(
            "systemd has no memory controller here (cgroup.controllers), so MemoryMin has no effect",
            "Boot with cgroup v2 and without cgroup_disable=memory; a container gets what its host delegates",
            "MemoryMin",
        )
    elif not machine.recursive_protection:
        part.warn(
            "cgroup2 is mounted without memory_recursiveprot, so logins below user.slice are not protected with it",
            "systemd 248 and later mount it so; reboot after an update",
            "MemoryMin user.slice",
        )
    return part


def earlyoom(options: Options, machine: Reading, before: Record) -> Part:
    part = Part()
    if not machine.unit("earlyoom.service").exists or "earlyoom" in before.of("packages"):
        part.want("packages", "earlyoom", "installed")
    prefer, avoid = "", SYSTEM_COMMS
    if options.earlyoom == "prefer_engine":
        prefer = f" --prefer '{ENGINE_COMMS}'"
    else:
        avoid = f"({SYSTEM_COMMS}|{ENGINE_COMMS})"
    # -s 100,100: without it earlyoom waits until swap is used up as well, with 100 alone it does so before SIGKILL.
    arguments = f"-r 3600 -m {EARLYOOM_PERCENT} -s 100,100 --avoid '{avoid}'{prefer}"
    part.text(EARLYOOM_FILE, f'EARLYOOM_ARGS="{arguments}"\n')
    part.want("enabled", "earlyoom.service", "enabled")
    part.want("units", "earlyoom.service", "active")
    return part


def watchdog(options: Options, machine: Reading, before: Record) -> Part:
    part = Part()
    units = " ".join(f"--unit {unit}" for unit in WATCHED)
    arguments = f"--available-mib {options.watchdog_available_mib} --seconds {WATCHDOG_SECONDS}"
    sandboxed = "\n".join(unit_sandbox.WATCHDOG)
    text = f"""\
[Unit]
Description=Stop the engine before this machine runs out of memory
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={paths.NODE_PROGRAM} watch-memory {arguments} {units}
Restart=always
RestartSec=5
# It has to run when nothing else does.
OOMScoreAdjust=-1000
Nice=-10
LimitMEMLOCK=infinity
MemoryMin={WATCHDOG_MIB}M
{sandboxed}

[Install]
WantedBy=multi-user.target
"""
    part.service(WATCHDOG_UNIT, text)
    return part


# -- packages


def matching(patterns: Sequence[str], packages: Mapping[str, str]) -> list[str]:
    return sorted(name for name in packages if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns))


def hold(options: Options, machine: Reading, before: Record) -> Part:
    part = Part()
    for name in matching(KERNEL_AND_DRIVER, machine.packages):
        part.want("holds", name, "hold")
    if not part.values:
        part.warn("no kernel or driver is installed as a package", "Set os_stabilization_hold: false", "packages")
    return part


def known_good(options: Options, machine: Reading, before: Record) -> Part:
    part = Part()
    for pattern, versions in options.known_good.items():
        names = matching([pattern], machine.packages)
        if not names:
            part.warn("it is not installed", "Install it, or correct os_stabilization_known_good", f"package {pattern}")
        for name in names:
            have = machine.packages[name]
            if not any(fnmatch.fnmatchcase(have, version) for version in versions):
                part.warn(
                    f"version {have} is not on the known-good list ({', '.join(versions)})",
                    f"Test it and add it to os_stabilization_known_good, or: sudo apt install {name}=VERSION",
                    f"package {name}",
                )
    return part


def upgrades(options: Options, machine: Reading, before: Record) -> Part:
    part = Part()
    if not machine.apt:
        part.warn("there is no apt here", "Set os_stabilization_upgrades: keep", "packages")
        return part
    if options.upgrades == "off":
        content = 'APT::Periodic::Unattended-Upgrade "0";\n'
    else:
        names = "".join(f'    "{name}";\n' for name in UPGRADE_EXCEPTIONS)
        content = (
            f'Unattended-Upgrade::Package-Blacklist {{\n{names}}};\nUnattended-Upgrade::Automatic-Reboot "false";\n'
        )
    # After 50unattended-upgrades, whose values it changes; apt knows // as the beginning of a comment, and # too.
    part.text("/etc/apt/apt.conf.d/99sparkmatrix", content)
    return part


# -- power, logs, time


def power(options: Options, machine: Reading, before: Record) -> Part:
    part = Part()
    for target in SLEEP_TARGETS:
        part.link(f"{paths.UNITS}/{target}", "/dev/null")
    persistence = machine.unit("nvidia-persistenced.service")
    if (machine.nvidia_driver or persistence.exists) and not persistence.alive:
        part.warn(
            "it does not run, so the driver is torn down and set up again with every process that uses the GPU",
            "sudo systemctl enable --now nvidia-persistenced",
            persistence.name,
        )
    return part


def gpu_clock(options: Options, machine: Reading, before: Record) -> Part:
    part = Part()
    if not machine.nvidia_driver:
        part.refuse(
            "no NVIDIA driver is loaded, so the clock of the GPU cannot be capped",
            "Load the driver, or set os_stabilization_gpu_clock_max_mhz: 0",
            "GPU clock",
        )
        return part
    text = f"""\
[Unit]
Description=Cap the clock of the GPU at {options.gpu_clock_max_mhz} MHz
# The driver forgets the cap when nobody holds it open.
After=nvidia-persistenced.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=nvidia-smi --lock-gpu-clocks=0,{options.gpu_clock_max_mhz}
ExecStop=-nvidia-smi --reset-gpu-clocks
ProtectHome=yes
NoNewPrivileges=yes

[Install]
WantedBy=multi-user.target
"""
    # It has no process that could tell after a boot by which file it was started: :data:`RESTARTS` has it.
    part.services[CLOCK_UNIT] = ""
    part.text(f"{paths.UNITS}/{CLOCK_UNIT}", text)
    return part


def logs(options: Options, machine: Reading, before: Record) -> Part:
    part = Part()
    part.text(JOURNALD_FILE, f"[Journal]\nSystemMaxUse={JOURNAL_MIB}M\n")
    if machine.unit("docker.service").exists:
        # Other log drivers refuse these options, and Docker would not start.
        driver = json_merge.load(machine.docker_config, DOCKER_CONFIG).get("log-driver", "json-file")
        if driver in ("json-file", "local"):
            part.merged["log-opts.max-size"] = f"{DOCKER_LOG_MIB}m"
            part.merged["log-opts.max-file"] = str(DOCKER_LOG_FILES)
    return part


def time_sync(options: Options, machine: Reading, before: Record) -> Part:
    part = Part()
    running = [name for name in TIME_UNITS if machine.unit(name).alive]
    if not running:
        part.warn(
            "no service keeps the clock (chrony, systemd-timesyncd, ntpsec)",
            "Install chrony, or: sudo timedatectl set-ntp true. Logs and tokens of the nodes depend on it",
            "clock",
        )
    elif machine.clock_synchronized is False:
        part.warn(
            f"{running[0]} runs, but the clock is not synchronized",
            "Look at timedatectl and chronyc sources; a firewall may keep NTP (UDP 123) away",
            "clock",
        )
    return part


TOPICS: tuple[Topic, ...] = (
    Topic("headless", lambda o: o.headless != "off", headless),
    Topic("swap", lambda o: o.swap_policy != "keep", swap),
    Topic("sysctl", lambda o: bool(o.sysctl), sysctl),
    Topic("limits", lambda o: o.limits, limits),
    Topic("memory_min", lambda o: bool(o.memory_min_mib), memory_min),
    Topic("earlyoom", lambda o: o.earlyoom != "off", earlyoom),
    Topic("watchdog", lambda o: o.watchdog_available_mib > 0, watchdog),
    Topic("hold", lambda o: o.hold, hold),
    Topic("known_good", lambda o: bool(o.known_good), known_good),
    Topic("upgrades", lambda o: o.upgrades != "keep", upgrades),
    Topic("power", lambda o: o.power, power),
    Topic("gpu_clock", lambda o: o.gpu_clock_max_mhz > 0, gpu_clock),
    Topic("logs", lambda o: o.logs, logs),
    Topic("time_sync", lambda _o: True, time_sync),
)


def plan(options: Options, machine: Reading, before: Record) -> Part:
    """All parts in one. What several topics put into one file is written here: sysctls, and Docker's configuration."""
    whole = Part()
    for topic in TOPICS:
        if not topic.switch(options):
            continue
        part = topic.decide(options, machine, before)
        whole.files += part.files
        whole.merged.update(part.merged)
        whole.protect.update(part.protect)
        whole.services.update(part.services)
        whole.reboot += part.reboot
        whole.findings += part.findings
        for kind, values in part.values.items():
            whole.values.setdefault(kind, {}).update(values)
    wanted = whole.values.get("sysctl", {})
    if wanted:
        # zz-: read after /etc/sysctl.d/99-*.conf, or the value would change with every boot.
        whole.text(SYSCTL_FILE, "".join(f"{key} = {wanted[key]}\n" for key in sorted(wanted)))
    if machine.reboot_required:
        whole.reboot.append("an update asks for it (/run/reboot-required)")
    return whole
