# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The process that stands for a lab while it is up.

It holds the lock "one lab at a time" and a private mount namespace with the nodes' overlays and, where the host has
none at /sys/fs/cgroup, cgroup2: all of it vanishes with the process. It also lets the two ends of a cable lose carrier
together.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import traceback

import network
from labstate import HERE, Lab, LabError
from sim import faults, rtnl

CLONE_NEWNS = 0x00020000
CLONE_NEWNET = 0x40000000
MS_REC, MS_SLAVE = 0x4000, 1 << 19
START_TIMEOUT_S = 20

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


# --- from outside ----------------------------------------------------------------------------------------------------


def start(lab: Lab, lock: int | None) -> int:
    """Start the keeper; it inherits the lock. Returns its pid when the namespace is ready."""
    lab.run.mkdir(parents=True, exist_ok=True)
    ready, tell = os.pipe()
    with (lab.run / "keeper.log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "lab.py"), "_keeper", "--id", lab.id, str(tell)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=[tell, *([lock] if lock is not None else [])],
            cwd="/",
        )
    os.close(tell)
    answered = select.select([ready], [], [], START_TIMEOUT_S)[0] and os.read(ready, 2) == b"ok"
    os.close(ready)
    if not answered:
        process.kill()
        text = (lab.run / "keeper.log").read_text()[-2000:]
        raise LabError(f"The lab's keeper process did not start: {text}")
    (lab.run / "keeper.pid").write_text(f"{process.pid}\n")
    return process.pid


def pid(lab: Lab) -> int | None:
    """The pid of the running keeper. A number that another program has meanwhile got does not count."""
    try:
        number = int((lab.run / "keeper.pid").read_text())
        words = pathlib.Path(f"/proc/{number}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return number if b"_keeper" in words and lab.id.encode() in words else None


def stop(lab: Lab) -> None:
    number = pid(lab)
    if number is None:
        return
    process = os.pidfd_open(number)
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
        select.select([process], [], [])  # readable when its files are closed and the lock is free
    finally:
        os.close(process)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(number, 0)


def inside(lab: Lab) -> list[str]:
    """The prefix that runs a command in the keeper's mount namespace."""
    number = pid(lab)
    if number is None:
        raise LabError(f"The lab {lab.id} is not up (its keeper process is gone). Boot it again: lab.py up")
    return ["nsenter", f"--mount=/proc/{number}/ns/mnt", "--"]


# --- the process -----------------------------------------------------------------------------------------------------


def main(lab: Lab, tell: int) -> int:
    _checked(_libc.unshare(CLONE_NEWNS), "unshare")
    # Slave: namespaces and mounts that the host makes later are seen here, nothing of ours is seen there.
    _checked(_libc.mount(None, b"/", None, ctypes.c_ulong(MS_REC | MS_SLAVE), None), "mount --make-rslave /")
    if not pathlib.Path("/sys/fs/cgroup/cgroup.controllers").exists():
        subprocess.run(["umount", "-R", "/sys/fs/cgroup"], check=False)
        subprocess.run(["mount", "-t", "cgroup2", "cgroup2", "/sys/fs/cgroup"], check=True)
    os.write(tell, b"ok")
    os.close(tell)
    watch(lab)
    return 0


def watch(lab: Lab) -> None:
    """Re-plug the cables whenever a node switches a port on or off."""
    try:
        record = lab.record()
    except LabError:  # only here to clean up
        record = None
    sockets: list[socket.socket] = []
    if record:
        sockets = [_listen(lab.netns(node)) for node in record.names]
    while True:
        ready = select.select(sockets, [], [])[0]
        for events in ready:
            with contextlib.suppress(OSError):  # events were lost: we look at everything anyway
                events.recv(rtnl.BUFFER)
        try:
            wanted = lab.wanted()
            if any(map(faults.is_cable, wanted.segments())):
                network.wire(lab, wanted)
        except (LabError, KeyError):
            traceback.print_exc()


def _listen(netns: str) -> socket.socket:
    """A socket that hears the link events of another network namespace: it stays where it was opened."""
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    other = os.open(network.netns_file(netns), os.O_RDONLY)
    try:
        _checked(_libc.setns(other, CLONE_NEWNET), f"enter {netns}")
        try:
            return rtnl.listen()
        finally:
            _checked(_libc.setns(own, CLONE_NEWNET), "return to the own namespace")
    finally:
        os.close(own)
        os.close(other)
