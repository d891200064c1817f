# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Install Debian packages, and remove them. Another apt may be at work, and package sources of third parties may be
broken (their keys expire), which is no reason not to install from the others.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed, run
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Diff, Flag, Word
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import State, put_state, read_state

# A fresh machine updates itself for minutes. apt names who holds the lock when this is over.
LOCK_S = 600
LOCK = ("-o", f"DPkg::Lock::Timeout={LOCK_S}")
LISTS = "/var/lib/apt/lists"
FRESH_S = 3600
# deb-systemd-invoke and invoke-rc.d ask it before a package starts its service: 101 is "no".
POLICY = "/usr/sbin/policy-rc.d"
_NO_START = b"#!/bin/sh\n# Written by sparkmatrix.cluster while it installs a package\nexit 101\n"
_APT = ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get")
LIMIT_S = 3600.0


@dataclass(frozen=True)
class Wanted:
    """``recommends``: install what they recommend, too. ``start``: their services may start."""

    names: tuple[str, ...]
    state: str = field(default="present", metadata=document.one_of("present", "absent"))
    recommends: bool = False
    start: bool = True


@dataclass
class Ensured:
    """``packages``: those that were installed or removed, or in check mode would be."""

    changed: Flag
    packages: list[Word]
    diff: Diff


def ensure(wanted: Wanted, check: bool) -> Ensured:
    """Packages that are installed, or removed with their configuration."""
    machine = Machine(runner=lambda argv: run(argv, LIMIT_S))
    present = wanted.state == "present"
    there = installed(machine, wanted.names)
    names = [name for name in wanted.names if (name in there) != present]
    if names and not present and not check:
        purge(machine, names)
    elif names and not check:
        install(machine, names, recommends=wanted.recommends, start=wanted.start)
    lines = "".join(f"package {name}\n" for name in names)
    diff = [{"before": "" if present else lines, "after": lines if present else ""}]
    return Ensured(bool(names), names, diff)


def installed(machine: Machine, names: Sequence[str]) -> list[str]:
    done = machine.runner(("dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\\n", *names))
    found = {line.split()[0] for line in done.out.splitlines() if line.endswith(" installed")}
    return [name for name in names if name in found]


def update_lists(machine: Machine, *options: str) -> Completed:
    """``apt-get update``: for the lists apt does not wait, whatever it is told."""
    until = machine.clock() + LOCK_S
    while True:
        done = machine.runner(("apt-get", "update", *options))
        if done.rc == 0 or "Could not get lock" not in done.err or machine.clock() >= until:
            return done
        machine.sleep(5)


def install(machine: Machine, names: Sequence[str], *, recommends: bool = False, start: bool = True) -> None:
    """``names`` are missing. ``start``: services of the packages may start."""
    fresh = _fresh(machine)
    told = "" if fresh else _update(machine)
    options = ["--yes", "-q", "-o", "Dpkg::Options::=--force-confold", *LOCK]
    options += [] if recommends else ["--no-install-recommends"]
    with contextlib.nullcontext() if start else _not_started(machine):
        done = machine.runner((*_APT, *options, "install", *names))
        if done.rc != 0 and fresh:  # the lists may name what a mirror has replaced since (404)
            told = _update(machine)
            done = machine.runner((*_APT, *options, "install", *names))
    if done.rc != 0:
        raise SparkError(
            f"apt-get install failed ({done.complaint}{told})",
            " ".join(names),
            "Wait until no other apt or dpkg runs; check the package sources (apt-get update), then run again",
        )


def purge(machine: Machine, names: Sequence[str]) -> None:
    """With their configuration; what they needed stays."""
    done = machine.runner((*_APT, "--yes", "-q", *LOCK, "purge", *names))
    if done.rc != 0:
        raise SparkError(
            f"apt-get purge failed ({done.complaint})",
            " ".join(names),
            "Wait until no other apt or dpkg runs; look at /var/log/apt/term.log, then run again",
        )


def _update(machine: Machine) -> str:
    """What went wrong, for the case that it matters: lists of the other sources are new all the same."""
    done = update_lists(machine)
    return f"; before that apt-get update: {done.complaint}" if done.rc else ""


def _fresh(machine: Machine) -> bool:
    """Whether there are lists, not older than an hour: apt renews the directory's time with each update."""
    try:
        age = machine.now() - os.stat(machine.real(LISTS)).st_mtime
    except OSError:
        return False
    return age < FRESH_S and any(name.endswith("Packages") or "_Packages" in name for name in machine.names(LISTS))


@contextlib.contextmanager
def _not_started(machine: Machine) -> Iterator[None]:
    before = read_state(POLICY, root=machine.root)
    if before.content == _NO_START:  # a run that died left it
        before = State()
    put_state(
        POLICY, State("file", content=_NO_START, mode=0o755, uid=os.geteuid(), gid=os.getegid()), root=machine.root
    )
    try:
        yield
    finally:
        put_state(POLICY, before, root=machine.root)
