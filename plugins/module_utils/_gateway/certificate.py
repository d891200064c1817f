# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Get the certificate of :mod:`_gateway.acme` on this node, and have it renewed.

The first certificate is got by the very unit that renews it: what has worked once works in two months.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import acme as gateway_acme
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.acme import PLACE, SERVICE, TIMER, Acme
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import files as managed_files
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import File

SET = "gateway_acme"
UNITS = "/etc/systemd/system"
POLL_S = 0.2
# Beside the directory of an authority: as it was before a run. One that an interruption leaves is a stray.
KEPT = ".before"
# A timer that is made up for after a boot has a file of its own, about when it last elapsed.
FORGET_TIMES = ("systemctl", "clean", "--what=state", TIMER)


def resolve(name: str) -> list[str]:
    """The addresses of a name as this node sees it; none where there is no such name."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return sorted({str(one[4][0]).partition("%")[0] for one in found})


@dataclass(frozen=True)
class _Before:
    """What was there before a certificate was asked for. A directory that was there is kept beside itself."""

    files: Sequence[File]
    directory: bool
    timer: Mapping[str, str]


class Certificate:
    """``address``: where the challenge is answered, all of them when empty."""

    def __init__(self, machine: Machine, acme: Acme, names: Sequence[str], address: str) -> None:
        self.machine = machine
        self.acme = acme
        self.names = tuple(names)
        units = gateway_acme.units(acme, names, address)
        self.files = [
            *(File(f"{UNITS}/{name}", text.encode()) for name, text in units.items()),
            # With it the directories are made, and counted as ours.
            File(f"{acme.place}/authority", f"{acme.directory}\n".encode()),
        ]
        self.warnings: list[str] = []
        self.before: _Before | None = None
        self.told = managed_files.apply_set(SET, self.files, check_mode=True, root=machine.root)
        self.usable = self._usable()
        timer = self._show(TIMER)
        runs = timer.get("ActiveState") == "active" and timer.get("UnitFileState") == "enabled"
        # Whatever the authority says.
        self.changes = self.told.changed or not self.usable or not runs

    @property
    def due(self) -> bool:
        """Whether anything has to be done now; what is only old is left to the timer."""
        return self.changes or self._show(SERVICE).get("ActiveState") == "failed"

    def obtain(self) -> bool:
        """Whether there is a new certificate. Raises when there is none that can be used; then all is as before.

        Until :func:`forget` it can be taken back, by :meth:`take_back`.
        """
        old = self._text()
        self.before = self._keep()
        try:
            managed_files.apply_set(SET, self.files, root=self.machine.root)
            os.chmod(self.machine.real(PLACE), 0o700)
            self.machine.command("systemctl", "daemon-reload", step="reading the units")
            try:
                self._ask()
            except SparkError as exc:
                if not self.usable:
                    raise
                self.warnings.append(f"The certificate could not be renewed; the old one still counts. {exc}")
            self.machine.command("systemctl", "enable", "--now", TIMER, step="renewing the certificate in time")
        except SparkError:
            self.take_back()
            raise
        return self._text() != old

    def take_back(self) -> bool:
        """Bring back what was there before :meth:`obtain`: units, account, certificate. Whether it had run."""
        if not self.before:
            return False
        before, self.before = self.before, None
        place = self.machine.real(self.acme.place)
        if before.timer.get("UnitFileState") != "enabled":
            self.machine.runner(["systemctl", "disable", TIMER])
        if before.timer.get("ActiveState") != "active":
            self.machine.runner(["systemctl", "stop", TIMER])
        if not before.files:
            self.machine.runner(FORGET_TIMES)
        shutil.rmtree(place, ignore_errors=True)
        if before.directory:
            try:
                os.rename(f"{place}{KEPT}", place)
            except OSError as exc:
                raise SparkError(
                    f"account and certificate cannot be put back ({exc.strerror})",
                    self.acme.place,
                    f"They are in {self.acme.place}{KEPT}: move them there",
                ) from exc
        managed_files.apply_set(SET, before.files, root=self.machine.root)
        self.machine.runner(["systemctl", "daemon-reload"])
        self.machine.runner(["systemctl", "reset-failed", SERVICE])
        return True

    def _keep(self) -> _Before:
        paths = managed_files.originals(SET, root=self.machine.root)
        standing = [one for path in paths for one in self._standing(path)]
        place = self.machine.real(self.acme.place)
        there = os.path.isdir(place)
        shutil.rmtree(f"{place}{KEPT}", ignore_errors=True)
        if there:
            try:
                shutil.copytree(place, f"{place}{KEPT}", symlinks=True)
            except OSError as exc:
                shutil.rmtree(f"{place}{KEPT}", ignore_errors=True)
                raise SparkError(
                    f"no copy can be kept of what is there ({exc})", self.acme.place, "Look whether the disk is full"
                ) from exc
        return _Before(standing, there, self._show(TIMER))

    def _ask(self) -> None:
        """Run the unit and wait for it."""
        self.machine.runner(["systemctl", "reset-failed", SERVICE])
        self.machine.command("systemctl", "start", "--no-block", SERVICE, step="asking for the certificate")
        deadline = self.machine.clock() + gateway_acme.TIMEOUT_S + 30
        while (now := self._show(SERVICE)).get("Job") or now.get("ActiveState") not in ("inactive", "failed"):
            if self.machine.clock() > deadline:
                raise SparkError(f"it has not ended after {gateway_acme.TIMEOUT_S} s", SERVICE)
            self.machine.sleep(POLL_S)
        if now.get("ActiveState") == "failed" or not self._usable():
            own = f"_SYSTEMD_INVOCATION_ID={now.get('InvocationID')}"
            text = self.machine.runner(["journalctl", own, "--no-pager", "-o", "cat", "-q"]).out
            raise SparkError(
                f"no certificate from {self.acme.directory}: {gateway_acme.complaint(text)}",
                "gateway_tls",
                gateway_acme.remedy(text, self.acme),
            )

    def _standing(self, path: str) -> list[File]:
        state = managed_files.read_state(path, root=self.machine.root)
        owner, group = str(state.uid), str(state.gid)
        return [File(path, state.content, owner=owner, group=group, mode=state.mode)] if state.kind == "file" else []

    def _usable(self) -> bool:
        """Whether there is one of this authority that has all names and has not run out."""
        if self._text() is None:
            return False
        look = ("openssl", "x509", "-in", self.machine.real(self.acme.certificate_paths[0]), "-noout")
        told = self.machine.runner([*look, "-ext", "subjectAltName"]).out
        return set(self.names) <= set(re.findall(r"DNS:([^\s,]+)", told)) and self.machine.works(
            *look, "-checkend", "0"
        )

    def _text(self) -> str | None:
        return self.machine.read(self.acme.certificate_paths[0])

    def _show(self, unit: str) -> dict[str, str]:
        what = "ActiveState,UnitFileState,InvocationID,Job"
        shown = self.machine.command("systemctl", "show", "-p", what, unit, step="reading the unit").out
        return dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)


def strays(machine: Machine, kept: str = "") -> list[str]:
    """Accounts and certificates that no door needs any more: all but those in the directory ``kept``."""
    return [f"{PLACE}/{name}" for name in machine.names(PLACE) if f"{PLACE}/{name}" != kept]


def forget(machine: Machine, kept: str = "") -> None:
    """Remove them. The authority is not told: it forgets a certificate when that runs out."""
    for path in strays(machine, kept):
        shutil.rmtree(machine.real(path))


def remove(machine: Machine, *, check_mode: bool = False) -> bool:
    """Stop renewing, and remove units, account and certificates. Whether there was anything."""
    # A removal that was cut off has left the manifest, whatever else is gone.
    known = SET in managed_files.names(root=machine.root)
    there = known or bool(strays(machine))
    if check_mode or not there:
        return there
    if known:
        # Fails where its file is gone.
        machine.runner(["systemctl", "disable", "--now", TIMER])
        machine.runner(["systemctl", "stop", SERVICE])
        machine.runner(FORGET_TIMES)
    forget(machine)
    managed_files.remove_set(SET, root=machine.root)
    if known:
        machine.command("systemctl", "daemon-reload", step="forgetting the units")
        machine.runner(["systemctl", "reset-failed", SERVICE])
    return True
