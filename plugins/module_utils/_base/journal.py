# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What the kernel's journal tells of a machine: PCIe devices that were lost in this boot; and of one that looks healthy
now memory that the GPU's driver did not get, links that went down, processes that were killed, errors of the GPU, and
boots that ended without a shutdown.

Fields that journald sets itself say whose a line is: whoever may log can call himself "kernel" (logger -t kernel).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import printable
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Count, Flag, Word, Words
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine

NO_MEMORY, LINK_DOWN, OUT_OF_MEMORY, GPU_ERROR = "no_memory", "link_down", "out_of_memory", "gpu_error"
# mlx5e_update_carrier, oom_kill.c, and the list of Xids of which NVIDIA says that the application is not their cause.
KINDS = (
    (NO_MEMORY, re.compile(r"NV_ERR_NO_MEMORY")),
    (LINK_DOWN, re.compile(r"mlx5_core \S+ (\S+): Link down")),
    (OUT_OF_MEMORY, re.compile(r"[Oo]ut of memory: Killed process \d+ \(([^)]*)\)")),
    (GPU_ERROR, re.compile(r"NVRM: Xid \((PCI:[0-9a-fA-F:.]+)\): (?:48|62|64|74|79|95|119|120|136|140|143),")),
)
# One of these is in what journalctl is asked for; all lower case would mean that case does not matter.
WANTED = r"NV_ERR_NO_MEMORY|Link down|ut of memory: Killed|NVRM: Xid"
# How a journal ends that systemd itself has closed (journald, systemd-shutdown, targets of the end).
SHUTDOWN = re.compile(
    r"systemd-journald\[\d+\]: Journal stopped|systemd-shutdown\[1\]: |systemd\[1\]: Shutting down"
    r"|Received SIGTERM from PID 1 \(systemd-shutdow|Reached target (?:\S*(?:reboot|poweroff|halt|kexec|shutdown|final)"
    r"|System (?:Reboot|Power Off|Halt|Shutdown))",
    re.IGNORECASE,
)
OF_KERNEL, OF_ROOT = "_TRANSPORT=kernel", "_UID=0"
MAX_LINES = 5000
LAST_LINES, SHOWN_LINES = 60, 3
MAX_BOOTS = 8
HOUR, DAY = 3600.0, 86400.0
WIDTH = 300
_STAMPED = re.compile(r"(\d+\.\d+) (.*)")
_BOOT = re.compile(r"^\s*-(\d+)\s+([0-9a-f]{32})\s", re.MULTILINE)  # this boot has the number 0
# The kernel's own words: drivers/pci/pcie/aer.c ("Uncorrected" until Linux 6.12, "Uncorrectable" since) and
# drivers/pci/pci.c. "Detected insufficient power on the PCIe slot (27W)" is left out: healthy Sparks say it too.
_ERRORS = (
    ("aer_fatal", re.compile(r"severity=Uncorrect(?:ed|able) \(Fatal\)|AER: device recovery failed")),
    ("aer_fatal", re.compile(r"AER: (?:Multiple )?Uncorrect(?:ed|able) \(Fatal\) error")),
    ("low_power", re.compile(r"[Uu]nable to change power state from \w+ to D0, device inaccessible")),
)
_DEVICE = re.compile(r"\b(?:[\w-]+ )?([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): ")
MAX_ERRORS = 2000  # the last ones of this boot with priority err or worse; an AER storm repeats the same few

Stamped = tuple[float, str]


@dataclass(frozen=True)
class KernelLine:
    """``kind``: ``aer_fatal`` or ``low_power``; ``device``: a PCI address, empty where the line names none; ``line``:
    the first of ``count``; ``missing``: the device is gone from the bus now."""

    kind: Word
    device: Words
    line: Words
    count: Count = 1
    missing: Flag = False


@dataclass(frozen=True)
class Lines:
    """Lines of the kernel's journal of one kind about one device. Times in seconds since 1970."""

    kind: Words  # of journal.KINDS
    device: Words
    count: int
    most_per_hour: int
    most_per_day: int
    last_at: float
    last: Words


@dataclass(frozen=True)
class Boot:
    """An earlier boot. ``clean``: it ended with a shutdown; ``no_memory``: lines with NV_ERR_NO_MEMORY in its last
    hour; ``last``: how its journal ends."""

    ended_at: float
    clean: bool
    no_memory: int = 0
    last: tuple[Words, ...] = ()


def _asked(machine: Machine, *words: str, form: str = "short-unix", of: Sequence[str] = (OF_KERNEL,)) -> Completed:
    return machine.runner(["journalctl", *words, "-o", form, "--no-pager", "-q", *of])


def stamped(text: str) -> list[Stamped]:
    """Lines of ``journalctl -o short-unix``, the oldest first: with a pattern it prints the newest first."""
    found = [match.groups() for match in map(_STAMPED.fullmatch, text.splitlines()) if match]
    return sorted((float(at), printable(line)[:WIDTH]) for at, line in found)


def faults(machine: Machine, since: float) -> tuple[list[Lines], bool]:
    """Of all boots since then, and whether it could be read at all."""
    done = _asked(machine, f"--since=@{since:.0f}", f"--grep={WANTED}", "-n", str(MAX_LINES))
    # Nothing found is exit code 1, without a word.
    if done.rc not in (0, 1) or (done.rc == 1 and done.err.strip()):
        return [], False
    return count(stamped(done.out)), True


def count(lines: Sequence[Stamped]) -> list[Lines]:
    by: dict[tuple[str, str], list[Stamped]] = {}
    for at, line in lines:
        for kind, pattern in KINDS:
            match = pattern.search(line)
            if match:
                by.setdefault((kind, match.group(1) if pattern.groups else ""), []).append((at, line))
    return [
        Lines(
            kind,
            device,
            len(seen),
            _most([at for at, _line in seen], HOUR),
            _most([at for at, _line in seen], DAY),
            *seen[-1],
        )
        for (kind, device), seen in by.items()
    ]


def _most(times: Sequence[float], window: float) -> int:
    """The most that any span of time of this length has."""
    most = first = 0
    for number, at in enumerate(times):
        while at - times[first] > window:
            first += 1
        most = max(most, number - first + 1)
    return most


def boots(machine: Machine, since: float) -> list[Boot]:
    """Boots before this one that ended since then, the last one first."""
    done = machine.runner(["journalctl", "--list-boots", "--no-pager", "-q"])
    earlier = sorted((int(number), ident) for number, ident in _BOOT.findall(done.out)) if done.rc == 0 else []
    found = []
    for _number, ident in earlier[:MAX_BOOTS]:
        ended = ending(machine, ident)
        if ended is None:
            continue
        if ended.ended_at < since:
            break
        found.append(ended)
    return found


def ending(machine: Machine, ident: str) -> Boot | None:
    done = _asked(machine, "-b", ident, "-n", str(LAST_LINES), of=(OF_KERNEL, "+", OF_ROOT))
    lines = stamped(done.out) if done.rc == 0 else []
    if not lines:
        return None
    ended = lines[-1][0]
    if any(SHUTDOWN.search(line) for _at, line in lines):
        return Boot(ended, True)
    before = (f"--since=@{ended - HOUR:.0f}", "--grep=NV_ERR_NO_MEMORY", "-n", str(MAX_LINES))
    lacking = _asked(machine, "-b", ident, *before)
    return Boot(ended, False, len(stamped(lacking.out)), tuple(line for _at, line in lines[-SHOWN_LINES:]))


def errors(machine: Machine) -> tuple[KernelLine, ...] | None:
    """PCIe devices of which this boot tells a fatal error, or that they were lost; None where it cannot be read.

    ``missing``: the device is not on the bus now, or reads as nothing. A NIC that was taken away for want of a cable
    and came back has lines in the journal, too.
    """
    done = _asked(machine, "-b", "-p", "err", "-n", str(MAX_ERRORS), form="cat")
    if done.rc != 0:
        return None
    return tuple(replace(line, missing=_is_missing(machine.sysfs, line.device)) for line in parse_errors(done.out))


def _is_missing(sysfs_root: Path, device: str) -> bool:
    place = sysfs_root / "bus/pci/devices" / device
    try:
        # Read from the device itself; one that does not answer is all ones.
        return not device or (place / "config").read_bytes()[:2] == b"\xff\xff"
    except OSError:
        return not place.is_dir()


def parse_errors(text: str) -> list[KernelLine]:
    """Once by kind and device, with the first line."""
    found: dict[tuple[str, str], KernelLine] = {}
    for line in text.splitlines():
        kind = next((name for name, pattern in _ERRORS if pattern.search(line)), None)
        if kind is None:
            continue
        match = _DEVICE.search(line)
        device = match.group(1) if match else ""
        first = found.get((kind, device), KernelLine(kind, device, line.strip(), 0))
        found[kind, device] = replace(first, count=first.count + 1)
    return list(found.values())
