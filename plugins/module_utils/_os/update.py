# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Kernel, driver and firmware of one node: what is there, what apt would do, and a new kernel on probation.

apt itself says what an update would do (``apt-get --simulate``); nothing is worked out here that it knows better. A new
kernel is booted once (``grub-reboot``) while the previous one stays the default, so that a crash or a power cycle
returns to it. It becomes the default when the tests have passed on it.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, json_text, kinds
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed, run
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.packages import LOCK, update_lists

DROP_IN = "/etc/default/grub.d/zz-sparkmatrix-update.cfg"
DROP_IN_TEXT = "# Managed by sparkmatrix.cluster (os_update): a new kernel is on probation\nGRUB_DEFAULT=saved\n"
GRUB_CFG = "/boot/grub/grub.cfg"
GRUB_TOOLS = ("grub-reboot", "grub-set-default", "grub-editenv", "update-grub")
# Where GRUB itself can write its environment at boot (GRUB manual, "Environment block"): it has to forget the one-shot
# entry, or a kernel that crashes would be booted again and again.
GRUB_WRITES = frozenset({"ext2", "ext3", "ext4", "xfs", "vfat"})
MARGIN_MIB = 64
APT_S = 3600.0  # a driver is built by DKMS
LOOK_S = 300.0
IMAGE = re.compile(r"linux-image-(?:unsigned-)?(\d\S*)$")
_URI = re.compile(r"\b[a-z+-]+://[^\s']+")
_INST = re.compile(r"(Inst|Remv) (\S+)(?: \[([^\]]*)\])?(?: \((\S+))?")


def patient(argv: Sequence[str]) -> Completed:
    """A runner for what may take long or wait for another apt, and must not ask. What only looks gets five minutes."""
    limit = APT_S if argv[0] == "apt-get" and "--simulate" not in argv else LOOK_S
    return run(("env", "DEBIAN_FRONTEND=noninteractive", *argv), limit)


PHASES = ("look", "install", "try_kernel", "keep_kernel", "firmware")


@dataclass(frozen=True)
class Request:
    """``packages``: names of installed ones, with shell wildcards; ``versions`` by name, what is not named becomes what
    apt prefers. ``refresh``: read the package sources first. ``try_kernel`` boots ``kernel`` once and ``previous`` ever
    after; ``keep_kernel`` ends its probation. In check mode only ``look`` does something."""

    phase: str = field(metadata=document.one_of(*PHASES))
    packages: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    refresh: bool = False
    kernel: str = ""
    previous: str = ""


@dataclass(frozen=True)
class Change:
    """Of a package, as apt would do it; versions are empty where there is none."""

    name: kinds.Word
    old: kinds.WordOrEmpty
    new: kinds.WordOrEmpty


@dataclass
class Look:
    kernel: kinds.Word = ""
    kernels: list[kinds.Word] = field(default_factory=list)  # installed images
    packages: Mapping[kinds.Word, kinds.WordOrEmpty] = field(default_factory=dict)
    held: list[kinds.Word] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    problems: list[kinds.Words] = field(default_factory=list)  # of apt
    grub: list[kinds.Words] = field(default_factory=list)  # why it cannot return to the previous kernel
    boot_free_mib: kinds.Count = 0
    kernel_mib: kinds.Count = 0  # what one kernel takes in /boot
    firmware: list[kinds.Words] = field(default_factory=list)
    notes: list[kinds.Words] = field(default_factory=list)  # what is wrong, and does not concern these packages
    reboot_required: kinds.Flag = False
    probation: kinds.Flag = False  # an earlier update chose a kernel for one boot and did not come to its end


@dataclass
class Outcome:
    changed: kinds.Flag = False
    look: Optional[Look] = None  # of the phase of that name


def act(request: Request, check: bool) -> Outcome:
    machine, phase = Machine(runner=patient), request.phase
    if phase == "look":
        refresh = request.refresh and not check
        return Outcome(look=look(machine, request.packages, request.versions, refresh=refresh))
    if check:
        return Outcome(changed=True)
    if phase == "install":
        found = look(machine, request.packages, request.versions)
        if found.problems:
            raise SparkError("; ".join(found.problems))
        if found.changes:
            install(machine, found.packages, request.versions, found.held)
        return Outcome(changed=bool(found.changes))
    if phase == "keep_kernel":
        return Outcome(changed=keep_kernel(machine, request.kernel))
    if phase == "try_kernel":
        try_kernel(machine, request.kernel, request.previous)
    else:
        update_firmware(machine)
    return Outcome(changed=True)


def look(machine: Machine, patterns: Sequence[str], versions: Mapping[str, str], *, refresh: bool = False) -> Look:
    found = Look(
        kernel=machine.runner(("uname", "-r")).out.strip(),
        reboot_required=machine.read("/run/reboot-required") is not None,
        probation=machine.read(DROP_IN) is not None,
    )
    audit = machine.runner(("dpkg", "--audit"))
    if audit.rc != 0 or audit.out.strip():
        found.problems.append(f"dpkg --audit: {audit.complaint}")
    installed = _installed(machine)
    found.kernels = sorted({match[1] for match in map(IMAGE.match, installed) if match}, key=version_key)
    found.packages = {
        name: version
        for name, version in installed.items()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }
    if refresh:
        _refresh(machine, found)
    check = machine.runner(("apt-get", "check", *LOCK))
    if check.rc != 0:
        found.problems.append(f"apt-get check: {check.complaint}")
    found.held = machine.runner(("apt-mark", "showhold")).out.split()
    if not found.problems:
        done = machine.runner((*install_command(found.packages, versions), "--simulate"))
        if done.rc != 0:
            found.problems.append(f"apt-get install --simulate: {done.complaint}")
        found.changes = parse_simulation(done.out)
    found.grub = grub_complaints(machine, found.kernel)
    found.boot_free_mib, found.kernel_mib = _boot(machine, found.kernel)
    found.firmware = firmware(machine)
    return found


def _refresh(machine: Machine, found: Look) -> None:
    """A source that none of these packages comes from may be broken: keys of third parties expire."""
    done = update_lists(machine, "-o", "APT::Update::Error-Mode=any")
    if done.rc != 0:
        policy = machine.runner(("apt-cache", "policy", *sorted(found.packages))).out if found.packages else ""
        told = found.notes if is_foreign(done.err, policy) else found.problems
        told.append(f"apt-get update: {done.complaint}")


def is_foreign(complaints: str, policy: str) -> bool:
    """Whether every error of ``apt-get update`` is about a source that has no package of ``apt-cache policy``."""
    errors = [line for line in complaints.splitlines() if line.startswith("E: ") and "Some index files" not in line]
    named = [_URI.search(line) for line in errors]
    own = {match[0].rstrip("/") for match in map(_URI.search, policy.splitlines()) if match}
    return bool(errors) and all(one and not any(f"{one[0]}/".startswith(f"{base}/") for base in own) for one in named)


def _installed(machine: Machine) -> dict[str, str]:
    done = machine.runner(("dpkg-query", "-W", "-f", "${db:Status-Status} ${Package} ${Version}\n"))
    lines = (line.split() for line in done.out.splitlines())
    return {words[1]: words[2] for words in lines if len(words) == 3 and words[0] == "installed"}


def install_command(packages: Mapping[str, str], versions: Mapping[str, str]) -> tuple[str, ...]:
    """Named versions where there are any, else what apt prefers. Downgrades only for what is named."""
    names = [f"{name}={versions[name]}" if name in versions else name for name in sorted({*packages, *versions})]
    return (
        "apt-get",
        "--yes",
        "--allow-change-held-packages",
        *(["--allow-downgrades"] if versions else []),
        "--no-install-recommends",
        "-o",
        "Dpkg::Options::=--force-confdef",
        "-o",
        "Dpkg::Options::=--force-confold",
        *LOCK,
        "install",
        *names,
    )


def parse_simulation(text: str) -> list[Change]:
    """``Inst name [old] (new …)`` and ``Remv name [old]``; a removed package has no new version."""
    found = []
    for line in text.splitlines():
        match = _INST.match(line)
        if match:
            new = match[4] if match[1] == "Inst" else ""
            found.append(Change(match[2], match[3] or "", new or ""))
    return found


def version_key(text: str) -> list[tuple[int, int, str]]:
    """Sorts 6.14.0-1013-nvidia behind 6.14.0-999-nvidia."""
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in re.findall(r"\d{1,1000}|[^\d]+", text)]


def install(machine: Machine, packages: Mapping[str, str], versions: Mapping[str, str], held: Sequence[str]) -> None:
    """What was on hold is on hold again afterwards, whatever apt made of it."""
    try:
        machine.command(
            *install_command(packages, versions),
            step="installing",
            remedy="Repair it (sudo apt-get -f install, sudo dpkg --configure -a), and run again",
        )
    finally:
        if held:
            machine.command("apt-mark", "hold", *held, step="putting packages on hold again")


def menu(text: str) -> dict[str, str]:
    """Kernel -> how grub-reboot names its entry, from ``grub.cfg``. Recovery entries are left out."""
    found: dict[str, str] = {}
    submenu = ""
    for line in text.splitlines():
        match = re.match(r"(\s*)(submenu|menuentry) .*\$menuentry_id_option '([^']+)'", line)
        if not match:
            if line.startswith("}"):
                submenu = ""
            continue
        if match[2] == "submenu":
            submenu = f"{match[3]}>"
            continue
        kernel = re.match(r"gnulinux-(\d.*?)-advanced-", match[3])
        if kernel:
            found.setdefault(kernel[1], (submenu if match[1] else "") + match[3])
    return found


def grub_complaints(machine: Machine, kernel: str) -> list[str]:
    """Everything that keeps GRUB from booting a kernel once and returning to ``kernel``; none: it can."""
    missing = _missing(machine)
    if missing:
        return [f"{', '.join(missing)} not found: this machine does not boot with GRUB"]
    text = machine.read(GRUB_CFG)
    if text is None:
        return [f"there is no {GRUB_CFG}"]
    found = []
    if kernel not in menu(text):
        found.append(f"{GRUB_CFG} has no entry for the running kernel {kernel}")
    mount = machine.runner(
        ("findmnt", "-n", "-o", "FSTYPE,SOURCE,OPTIONS", "-T", machine.real("/boot/grub"))
    ).out.split()
    if len(mount) != 3:
        return [*found, "findmnt does not know what /boot/grub is on"]
    kind, source, options = mount
    if kind not in GRUB_WRITES or source.startswith(("/dev/mapper/", "/dev/md", "/dev/dm-")):
        found.append(f"/boot/grub is on {kind} ({source}), where GRUB cannot write at boot and would repeat its choice")
    if "ro" in options.split(","):
        found.append("/boot is mounted read-only")
    return found


def _missing(machine: Machine) -> list[str]:
    places = ("/usr/sbin", "/usr/bin", "/sbin", "/bin")
    return [tool for tool in GRUB_TOOLS if not any(os.path.exists(machine.real(f"{p}/{tool}")) for p in places)]


def _boot(machine: Machine, kernel: str) -> tuple[int, int]:
    """Free MiB in /boot, and the size of the running kernel's files there."""
    try:
        stat = os.statvfs(machine.real("/boot"))
    except OSError:
        return 0, 0
    size = sum(os.path.getsize(path) for path in glob.glob(machine.real(f"/boot/*-{glob.escape(kernel)}")))
    return stat.f_bavail * stat.f_frsize >> 20, size >> 20


def firmware(machine: Machine) -> list[str]:
    """Firmware that fwupd has a newer version of; nothing where fwupd is not installed or has no metadata."""
    done = machine.runner(("fwupdmgr", "get-updates", "--json", "--no-unreported-check"))
    if done.rc not in (0, 2):
        return []
    try:
        devices = json_text.entries(json_text.read(done.out or "{}"), "Devices")
    except SparkError:
        return []
    return [
        f"{device.get('Name', 'a device')}: {device.get('Version', '?')} -> {releases[0].get('Version', '?')}"
        for device in devices
        if (releases := json_text.entries(device, "Releases"))
    ]


def update_firmware(machine: Machine) -> None:
    machine.command("fwupdmgr", "update", "--assume-yes", "--no-reboot-check", step="updating the firmware")


def try_kernel(machine: Machine, kernel: str, previous: str) -> None:
    """Boot ``kernel`` next, once; everything after that boots ``previous``."""
    path = machine.real(DROP_IN)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="ascii") as stream:
        stream.write(DROP_IN_TEXT)
    machine.command("update-grub", step="writing the boot menu")
    entries = menu(machine.read(GRUB_CFG) or "")
    for name in (kernel, previous):
        if name not in entries:
            raise SparkError(f"it has no entry for the kernel {name}", GRUB_CFG, "Look at sudo update-grub")
    machine.command("grub-set-default", entries[previous], step="keeping the previous kernel as default")
    machine.command("grub-reboot", entries[kernel], step="choosing the new kernel for one boot")
    chosen = _environment(machine)
    if chosen.get("next_entry") != entries[kernel] or chosen.get("saved_entry") != entries[previous]:
        raise SparkError(f"it did not take the choice: {chosen}", "/boot/grub/grubenv", "Look at grub-editenv list")


def keep_kernel(machine: Machine, kernel: str) -> bool:
    """The kernel that runs has passed its tests: back to the machine's own choice of the default."""
    if machine.read(DROP_IN) is None:
        return False
    os.unlink(machine.real(DROP_IN))
    machine.command("update-grub", step="writing the boot menu")
    own = [machine.read("/etc/default/grub") or ""]
    own += [machine.read(f"/etc/default/grub.d/{name}") or "" for name in machine.names("/etc/default/grub.d")]
    chosen = re.findall(r"^\s*GRUB_DEFAULT=[\"']?([^\"'\n]*)", "\n".join(own), re.MULTILINE)
    if chosen and chosen[-1] == "saved":
        machine.command("grub-set-default", menu(machine.read(GRUB_CFG) or "")[kernel], step="making it the default")
    else:
        machine.command("grub-editenv", "-", "unset", "saved_entry", step="forgetting the previous kernel")
    return True


def _environment(machine: Machine) -> dict[str, str]:
    pairs = (line.partition("=") for line in machine.runner(("grub-editenv", "list")).out.splitlines())
    return {name: value for name, _equals, value in pairs}
