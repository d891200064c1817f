# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The keeper's sign of life: systemd ends a keeper without one, ``status`` names it, and a second keeper is refused.

One file is all three: the keeper holds its lock and writes into it its id, the time, and for metrics what its last
question for a token has found. It is in /run, so that nothing of a boot before is believed, and the time is the
monotonic clock's, which nobody sets.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import open_lock
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.systemd import notify
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import Names

BEAT_S = 2.0
STALE_S = 10.0  # older than this, and the keeper is frozen, or the machine nearly is
WATCHDOG_S = 30  # after which systemd kills it and starts it again; the ranks go on
# The loop itself may be silent this long: longer than any of its steps, all of which have limits (240 s for a stop).
LOOP_S = 600.0
_WIDTH = 96  # always the same length, so that whoever reads beside a write reads one line


def path(instance: str = "", root: str = "/") -> str:
    return f"{root.rstrip('/')}{paths.RUN}/keeper{Names(instance).suffix}.lock"


@dataclass(frozen=True)
class Probed:
    """``at``: when it was asked, seconds since 1970; ``seconds``: until there was an answer, or none any more."""

    at: float
    answered: bool
    seconds: float


@dataclass(frozen=True)
class Sign:
    """The last one. ``age_s``: seconds since it was given; ``stopped``: its process is stopped (SIGSTOP); ``probed``:
    None where the keeper has not asked yet."""

    pid: int
    age_s: float
    stopped: bool = False
    probed: Probed | None = None

    @property
    def frozen(self) -> bool:
        return self.stopped or self.age_s > STALE_S


def hold(instance: str = "", root: str = "/") -> int:
    """The lock, for as long as the process lives. Raises :class:`SparkError` where another keeper has it."""
    lock = path(instance, root)
    handle = open_lock(lock)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        found = _read(lock)
        whose = f"process {found[0]}" if found else "another process"
        unit = Names(instance).keeper
        raise SparkError(
            f"a keeper of this engine runs already ({whose}); two would stop each other's ranks",
            lock,
            f"Leave it to systemd: systemctl status {unit}",
        ) from None
    return handle


def last(instance: str = "", root: str = "/", clock: Callable[[], float] = time.monotonic) -> Sign | None:
    """None where no keeper has given one since the boot."""
    found = _read(path(instance, root))
    if found is None:
        return None
    pid, at, probed = found
    stat = ""
    with contextlib.suppress(OSError):
        stat = Path(root, f"proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return Sign(pid, max(clock() - at, 0.0), stat.rpartition(")")[2].split()[:1] in (["T"], ["t"]), probed)


def _read(lock: str) -> tuple[int, float, Probed | None] | None:
    try:
        pid, at, *told = Path(lock).read_text(encoding="ascii").split()
        asked, answered, seconds = told or ("", "", "")
        return int(pid), float(at), Probed(float(asked), answered == "1", float(seconds)) if told else None
    except (OSError, ValueError):
        return None


@dataclass
class Pulse:
    """Given by a thread, since the loop waits for minutes now and then; but only while the loop goes on."""

    handle: int
    tell: Callable[[str], object] = notify
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    stepped: float = 0.0
    probed: Probed | None = None

    def begin(self) -> None:
        self.step()
        self.beat()
        self.tell("READY=1")
        threading.Thread(target=self._loop, name="pulse", daemon=True).start()

    def step(self) -> None:
        """The loop goes on."""
        self.stepped = self.clock()

    def noted(self, ask: Callable[[], str]) -> str:
        """What ``ask`` returns or raises, which the next beat tells."""
        at, began, answered = self.wall(), self.clock(), False
        try:
            problem = ask()
            answered = True
            return problem
        finally:
            self.probed = Probed(at, answered, self.clock() - began)

    def beat(self) -> None:
        now, last = self.clock(), self.probed
        if now - self.stepped <= LOOP_S:
            probed = f" {last.at:.1f} {last.answered:d} {last.seconds:.3f}" if last else ""
            with contextlib.suppress(OSError):
                os.pwrite(self.handle, f"{os.getpid()} {now:.1f}{probed}".ljust(_WIDTH - 1).encode() + b"\n", 0)
            self.tell("WATCHDOG=1")

    def _loop(self) -> None:
        while True:
            time.sleep(BEAT_S)
            self.beat()
