# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The node as changes see it: its files, programs and clocks, and a lock for one change at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed, Runner, run
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError

LOCK_WAIT_S = 90.0  # longer than a change takes, fabric_apply_timeout_s included
POLL_S = 0.1


@dataclass
class Machine:
    """The node; tests give another root, another runner and another clock."""

    root: str = "/"
    runner: Runner = run
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    sysfs_root: Path = field(default_factory=lambda: Path("/sys"))
    now: Callable[[], float] = time.time  # seconds since 1970, comparable across a reboot

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


@contextlib.contextmanager
def alone(machine: Machine, what: str, lock: str) -> Iterator[None]:
    """One change of ``what`` at a time: a controller that was killed leaves its module running for a while."""
    os.makedirs(os.path.dirname(machine.real(lock)), exist_ok=True)
    handle = os.open(machine.real(lock), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        deadline = machine.clock() + LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if machine.clock() >= deadline:
                    raise SparkError(
                        f"another run has been changing {what} of this node for {LOCK_WAIT_S:g} s",
                        lock,
                        "Wait for it to end, and run again",
                    ) from None
                machine.sleep(POLL_S)
        yield
    finally:
        os.close(handle)
