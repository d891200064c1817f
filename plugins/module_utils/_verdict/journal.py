# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What the journal tells of a machine that looks healthy now: memory that the GPU's driver did not get, links that went
down, processes that were killed, errors of the GPU, and boots that ended without a shutdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import printable
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.observation import Boot, Lines

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
# Fields that journald sets itself: whoever may log can call himself "kernel" (logger -t kernel).
OF_KERNEL, OF_ROOT = "_TRANSPORT=kernel", "_UID=0"
MOST_LINES = 5000
LAST_LINES, SHOWN_LINES = 60, 3
MOST_BOOTS = 8
HOUR, DAY = 3600.0, 86400.0
WIDTH = 300
_STAMPED = re.compile(r"(\d+\.\d+) (.*)")
_BOOT = re.compile(r"^\s*-(\d+)\s+([0-9a-f]{32})\s", re.MULTILINE)  # this boot has the number 0
Stamped = tuple[float, str]


def stamped(text: str) -> list[Stamped]:
    """Lines of ``journalctl -o short-unix``, the oldest first: with a pattern it prints the newest first."""
    found = [match.groups() for match in map(_STAMPED.fullmatch, text.splitlines()) if match]
    return sorted((float(at), printable(line)[:WIDTH]) for at, line in found)


def kernel(machine: Machine, since: float) -> tuple[list[Lines], bool]:
    """Of all boots since then, and whether it could be read at all."""
    done = machine.runner(
        [
            *("journalctl", f"--since=@{since:.0f}", f"--grep={WANTED}", "-n", str(MOST_LINES)),
            *("-o", "short-unix", "--no-pager", "-q", OF_KERNEL),
        ]
    )
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
    for _number, ident in earlier[:MOST_BOOTS]:
        ended = ending(machine, ident)
        if ended is None:
            continue
        if ended.ended_at < since:
            break
        found.append(ended)
    return found


def ending(machine: Machine, ident: str) -> Boot | None:
    done = machine.runner(
        [
            *("journalctl", "-b", ident, "-n", str(LAST_LINES), "-o", "short-unix", "--no-pager", "-q"),
            *(OF_KERNEL, "+", OF_ROOT),
        ]
    )
    lines = stamped(done.out) if done.rc == 0 else []
    if not lines:
        return None
    ended = lines[-1][0]
    clean = any(SHUTDOWN.search(line) for _at, line in lines)
    if clean:
        return Boot(ended, True)
    lacking = machine.runner(
        [
            *("journalctl", "-b", ident, f"--since=@{ended - HOUR:.0f}", "--grep=NV_ERR_NO_MEMORY"),
            *("-n", str(MOST_LINES), "-o", "short-unix", "--no-pager", "-q", OF_KERNEL),
        ]
    )
    return Boot(ended, False, len(stamped(lacking.out)), tuple(line for _at, line in lines[-SHOWN_LINES:]))
