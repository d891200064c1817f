# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The node as code sees it, what is told to everybody on it, and a lock for one change at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import sysfs, systemd
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed, Runner, run
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.systemd import Unit

LOCK_WAIT_S = 90.0  # longer than a change takes, a fifth of fabric_rollback_seconds included
POLL_S = 0.1
REMOVE_S = 600.0  # of a disk with a million files


@dataclass
class Machine:
    """The node: its files, programs, units and clocks, and the process that looks. Tests replace what they need."""

    root: str = "/"
    runner: Runner = run
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    sysfs_root: Path | None = None  # None: where sysfs is below root
    now: Callable[[], float] = time.time  # seconds since 1970, comparable across a reboot
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    pid: int = field(default_factory=os.getpid)

    # -- files: absolute paths of the node

    def real(self, path: str) -> str:
        return self.root.rstrip("/") + path

    @property
    def sysfs(self) -> Path:
        if self.sysfs_root is not None:
            return self.sysfs_root
        return sysfs.root() if self.root == "/" else Path(self.root, "sys")

    def content(self, path: str) -> bytes | None:
        """None where there is no such file; raises :class:`SparkError` where it cannot be read."""
        try:
            with open(self.real(path), "rb") as stream:
                return stream.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as exc:
            raise SparkError(f"cannot be read ({exc.strerror})", path, "Run as root (become: true)") from exc

    def read(self, path: str) -> str | None:
        """:meth:`content` as text that can be written back unchanged."""
        content = self.content(path)
        return None if content is None else content.decode("utf-8", "surrogateescape")

    def text(self, path: str) -> str | None:
        """For a report: without blanks around it; None as well where it cannot be read."""
        try:
            with open(self.real(path), "rb") as stream:
                return stream.read().decode("utf-8", "replace").replace("\0", "").strip()
        except OSError:
            return None

    def names(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(self.real(path)))
        except OSError:
            return []

    def changed(self, path: str) -> int:
        """When it was, in nanoseconds; 0 where it is not there."""
        try:
            return os.stat(self.real(path)).st_mtime_ns
        except OSError:
            return 0

    def exists(self, path: str) -> bool:
        return os.path.exists(self.real(path))

    # -- programs

    def command(self, *argv: str, step: str, remedy: str = "") -> Completed:
        """Run a program that must succeed."""
        done = self.runner(argv)
        if done.rc != 0:
            raise SparkError(f"{step} failed: {' '.join(argv)}: {done.complaint}", "", remedy)
        return done

    def works(self, *argv: str) -> bool:
        return self.runner(argv).rc == 0

    def output(self, *argv: str) -> str | None:
        """What a program prints; None where it fails."""
        done = self.runner(argv)
        return done.out if done.rc == 0 else None

    # -- units

    def units(self, names: Sequence[str]) -> dict[str, Unit]:
        return systemd.units(self.runner, names)

    def unit(self, name: str) -> Unit:
        return systemd.unit(self.runner, name)


def is_account(name: str) -> bool:
    """In check mode one may be about to be made."""
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def publish(path: str, content: str) -> None:
    """Readable for everybody, in one step: who reads does so at any time. Its user may own the folder, so no name is
    known before. Raises :class:`OSError`."""
    place = Path(path)
    handle, new = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(content)
            os.fchmod(file.fileno(), 0o644)
        os.replace(new, place)
    except OSError:
        os.unlink(new)
        raise


def remove(path: str) -> None:
    """A file, a link or a directory, whatever a program without rights has made in it: Python's own way comes to its
    end with some hundred directories in each other."""
    done = run(["rm", "-rf", "--", path], REMOVE_S)
    if done.rc:
        raise SparkError(f"it cannot be removed ({done.complaint})", path, "Remove it by hand, and try again")


def open_lock(path: str) -> int:
    """A file that only root opens, in a directory where only root makes one: nobody else can hold it."""
    try:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as exc:
        raise SparkError(f"the lock cannot be opened ({exc.strerror})", path, "Run as root (become: true)") from exc


@contextlib.contextmanager
def alone(machine: Machine, what: str, lock: str) -> Iterator[None]:
    """One change of ``what`` at a time: a controller that was killed leaves its module running for a while."""
    handle = open_lock(machine.real(lock))
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
