# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""``sparkmatrix-node watch-memory``: stop the engine before the machine runs out of memory.

On unified memory exhaustion freezes the machine without an OOM kill: what the driver allocates belongs to no process
that the kernel could choose. So the engine is stopped while stopping still works: when ``MemAvailable`` stays below a
threshold, or when every task waits for memory (PSI ``full``) while it is already low. Only the units that are named are
stopped, the first one that runs, and killed when they do not give memory back. The reason is kept in a file.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import re
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import meminfo, paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import write_state

MIB = 2**20
HELP = "stop the engine before the machine runs out of memory"
REASON = f"{paths.STATE}/watchdog/reason.json"
POLL_S = 1.0
# Above this share of time in which no task at all ran because all waited for memory, a machine is no longer usable:
# systemd-oomd acts at 60 % of one slice, and ssh logins time out well before.
STALLED_PERCENT = 40.0
# Pressure alone is no reason: a cold start of many processes causes it too. Below this many thresholds it is.
LOW_FACTOR = 4
# How long a unit that was told to stop may take to give memory back before it is killed.
GRACE_S = 15.0

_FULL = re.compile(r"^full avg10=([0-9]+(?:\.[0-9]+)?)", re.MULTILINE)
_UNIT = re.compile(r"[A-Za-z0-9:_.\\@*-]+\.service")  # with the wildcard of systemctl


@dataclass(frozen=True)
class Sample:
    """Memory now: bytes available, and PSI ``full avg10`` in percent (0 where the kernel has no PSI)."""

    available: int
    stalled: float = 0.0


@dataclass
class Judge:
    """Says when it is time. ``threshold`` in bytes; ``seconds`` a condition has to last without a break."""

    threshold: int
    seconds: float
    since: dict[str, float] = field(default_factory=dict)

    def look(self, now: float, sample: Sample) -> str:
        """The reason to act, or nothing. ``now`` is a monotonic clock in seconds."""
        low = sample.available < self.threshold
        stalled = sample.stalled >= STALLED_PERCENT and sample.available < LOW_FACTOR * self.threshold
        for name, holds in (("low", low), ("stalled", stalled)):
            if holds:
                self.since.setdefault(name, now)
            else:
                self.since.pop(name, None)
        if low and now - self.since["low"] >= self.seconds:
            return (
                f"available memory was below {self.threshold // MIB} MiB for {self.seconds:g} s"
                f" ({sample.available // MIB} MiB now)"
            )
        if stalled and now - self.since["stalled"] >= self.seconds:
            return (
                f"all tasks waited for memory {sample.stalled:.0f} % of the last 10 s, for {self.seconds:g} s, with"
                f" {sample.available // MIB} MiB available"
            )
        return ""


def read(root: str = "/") -> Sample:
    """Raises :class:`SparkError` when the kernel does not tell what is available: a watchdog that sees nothing lies."""
    available = meminfo.read(root).get("MemAvailable")
    if available is None:
        raise SparkError("MemAvailable is not there", str(Path(root) / "proc/meminfo"), "Mount /proc")
    stalled = 0.0
    with contextlib.suppress(OSError):  # CONFIG_PSI is optional
        match = _FULL.search((Path(root) / "proc/pressure/memory").read_text(encoding="ascii", errors="replace"))
        stalled = float(match.group(1)) if match else 0.0
    return Sample(available, stalled)


class Watchdog:
    def __init__(self, units: Sequence[str], judge: Judge, machine: Machine, reason_path: str = REASON) -> None:
        bad = [unit for unit in units if not _UNIT.fullmatch(unit)]
        if bad or not units:
            raise SparkError(f"{bad or 'nothing'} to stop", "watch-memory", "Name services, for example x.service")
        self.units = tuple(units)
        self.judge = judge
        self.machine = machine
        self.reason_path = reason_path

    def watch(self, rounds: int | None = None) -> None:
        """Look once a second, for ever (or ``rounds`` times, for tests)."""
        done = 0
        while rounds is None or done < rounds:
            done += 1
            reason = self.judge.look(self.machine.clock(), read(self.machine.root))
            if reason:
                self.act(reason)
                self.judge.since.clear()
            self.machine.sleep(POLL_S)

    def act(self, reason: str) -> list[str]:
        """Stop the named units one after the other until memory is back. Returns what was done."""
        done: list[str] = []
        for unit in self.units:
            if not self._active(unit):
                continue
            # Acting comes before writing: with no memory left, writing may wait for the disk for a long time.
            self._systemctl(done, "--no-block", "stop", unit)
            if not self._relieved():
                self._systemctl(done, "kill", "--signal=SIGKILL", unit)
                self._relieved()
            if read(self.machine.root).available >= self.judge.threshold:
                break
        if not done:
            done.append("nothing to stop: none of the units runs")
        tell(f"{reason}: {'; '.join(done)}")
        self._keep(reason, done)
        return done

    def _active(self, unit: str) -> bool:
        return self.machine.runner(["systemctl", "is-active", "--quiet", unit]).rc == 0

    def _systemctl(self, done: list[str], *words: str) -> None:
        completed = self.machine.runner(["systemctl", *words])
        outcome = "" if completed.rc == 0 else f" failed ({completed.complaint})"
        done.append(f"systemctl {' '.join(words)}{outcome}")

    def _relieved(self) -> bool:
        deadline = self.machine.clock() + GRACE_S
        while read(self.machine.root).available < self.judge.threshold:
            if self.machine.clock() > deadline:
                return False
            self.machine.sleep(POLL_S)
        return True

    def _keep(self, reason: str, done: Sequence[str]) -> None:
        document = {
            "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "reason": reason,
            "done": list(done),
            "meminfo": {
                name: value // MIB for name, value in sorted(meminfo.read(self.machine.root).items()) if value > MIB
            },
        }
        try:
            write_state(self.reason_path, (json.dumps(document, indent=1) + "\n").encode(), root=self.machine.root)
        except SparkError as exc:  # the engine is stopped, and the journal has the reason
            tell(str(exc))


def tell(text: str) -> None:
    """To the journal, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def stay_in_memory() -> None:
    """Keep this process out of the reclaim that it has to survive; only where no limit can make it fail later."""
    if resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] != resource.RLIM_INFINITY:
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mlockall(3)  # MCL_CURRENT | MCL_FUTURE


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--unit", action="append", required=True, metavar="UNIT", help="stop it; the first that runs")
    parser.add_argument("--available-mib", type=int, required=True, metavar="N", help="act below this")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long it has to last (default: 5)")
    parser.add_argument("--reason-file", default=REASON, metavar="PATH", help=f"where to keep why (default: {REASON})")


def run(arguments: argparse.Namespace) -> int:
    try:
        judge = Judge(arguments.available_mib * MIB, arguments.seconds)
        watchdog = Watchdog(arguments.unit, judge, Machine(), arguments.reason_file)
        stay_in_memory()
        watchdog.watch()
    except SparkError as exc:
        sys.stderr.write(f"{exc}\n")
    return 1
