# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The dead-man rollback: a change that may cut off its own connection is taken back by the node unless it is confirmed.

Before the first change::

    timer (systemd-run, lost controller) -> pending marker with the snapshot -> boot unit (power cut, reboot)

and after the test the marker goes first: from then on neither timer nor boot unit does anything. The timer counts on
the node, so a controller that is gone cannot keep it from firing; the boot unit runs before the network starts. Each
change has an id, so that a timer which could not be stopped finds nothing of its own to restore.

The marker (0600) *is* the snapshot. Restoring is putting everything back, in any number of attempts, and removing the
marker last. A marker that a run finds is taken over: its snapshot is the last tested state and stays, the change goes
on under a new id with a new timer.

What is changed, tested and put back is the business of :mod:`_fabric.rollback` and :mod:`_access.rollback`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine, alone
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.paths import NODE_PROGRAM, STATE, UNITS
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import files as managed

SCHEMA = 1
# Until a change that nobody confirms is taken back. Modules and roles' variables have it, too (a test compares them).
SECONDS = 150.0
_RETRY_S = 5  # between two attempts of a restore that failed


@dataclass
class Pending:
    """A change that waits for its confirmation, and what was there before it."""

    id: str = ""
    seconds: float = 0  # until the node takes it back
    armed: float = 0  # seconds since 1970
    files: dict[str, managed.State] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)  # directories that were not there

    def text(self) -> str:
        document = {**vars(self), "schema": SCHEMA, "files": {path: s.as_dict() for path, s in self.files.items()}}
        return json.dumps(document, indent=1, sort_keys=True) + "\n"

    def remember(self, machine: Machine, paths: Iterable[str]) -> None:
        """What is at these paths. One that an interrupted change knew was touched by it, and is not read again."""
        for path in paths:
            if path not in self.files:
                self.files[path] = managed.read_state(path, root=machine.root)
                self.made += [
                    d for d in managed.parents(path) if not os.path.isdir(machine.real(d)) and d not in self.made
                ]

    def remove_made(self, machine: Machine) -> None:
        for directory in sorted(self.made, key=len, reverse=True):
            try:
                os.rmdir(machine.real(directory))
            except OSError:  # something else lives in it by now
                continue


AnyPending = TypeVar("AnyPending", bound=Pending)
PutBack = Callable[[Machine, AnyPending, bool], list[str]]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--boot", action="store_true", help="nothing of what is put back runs yet: files only")
    parser.add_argument("--transaction", default="", metavar="ID", help="only if this one is pending")


@dataclass(frozen=True)
class Guard(Generic[AnyPending]):
    """One kind of change. ``what`` is what it changes, for messages and units."""

    kind: type[AnyPending]
    what: str
    role: str
    marker: str
    lock: str
    unit: str
    command: str  # of the node tool
    before: str  # units that must not run yet at boot
    limit: str  # what gives the seconds, and what to do
    by_hand: str  # what to look at when the marker is damaged
    reserve_s: float = 0  # a restore takes up to this, and must be over in time

    @property
    def name(self) -> str:
        """Of the set of files."""
        return f"{self.role}_guard"

    @property
    def boot_unit(self) -> str:
        return f"{UNITS}/{self.unit}-boot.service"

    @property
    def boot_link(self) -> str:
        return f"{UNITS}/sysinit.target.wants/{self.unit}-boot.service"

    @property
    def paths(self) -> list[str]:
        """What arming writes beside the marker."""
        return [managed.manifest_path(self.name), self.boot_unit, self.boot_link]

    def pending(self, machine: Machine) -> AnyPending | None:
        text = machine.read(self.marker)
        return None if text is None else self.parse(text)

    def parse(self, text: str) -> AnyPending:
        with json_text.Reading(
            "the snapshot of an interrupted change is damaged, so it cannot be taken back",
            self.marker,
            f"Look at {self.by_hand}, delete the file, and run the layer {self.role} again",
        ):
            document = json_text.mapping(text)
            if document.pop("schema") != SCHEMA:
                raise ValueError(f"not schema {SCHEMA}")
            if not document["id"]:
                raise ValueError("no id")
            files = {str(path): managed.State.from_dict(values) for path, values in document.pop("files").items()}
            plain = self.kind()
            for name, value in document.items():
                kind = type(getattr(plain, name))
                if not isinstance(value, (int, float) if kind is int else kind):
                    raise TypeError(f"{name} is {value!r:.40}")
            return self.kind(**document, files=files)

    def claim(self, machine: Machine) -> AnyPending | None:
        """What an interrupted run left. Raises :class:`SparkError` when nothing here could take a change back."""
        if not os.access(machine.real(NODE_PROGRAM), os.X_OK):
            raise SparkError(
                "the tool that takes a change back is not installed; nothing was changed",
                NODE_PROGRAM,
                f"Run the role {self.role}, or the module node_tool before this one",
            )
        return self.pending(machine)

    def arm(self, machine: Machine, change: AnyPending, seconds: float) -> None:
        """From here on the node takes ``change`` back, unless :meth:`disarm` comes."""
        old = change.id
        change.id, change.seconds, change.armed = os.urandom(4).hex(), seconds, machine.now()
        machine.command(
            "systemd-run",
            "--quiet",
            "--collect",
            f"--unit={self.unit}-{change.id}",
            f"--description=Take back the change of {self.what} that nobody confirmed within {seconds:g} s",
            f"--on-active={seconds - self.reserve_s:g}s",
            "--timer-property=AccuracySec=100ms",
            "--property=Restart=on-failure",
            f"--property=RestartSec={_RETRY_S}",
            NODE_PROGRAM,
            self.command,
            "--transaction",
            change.id,
            step="arming the rollback",
            remedy="See systemctl status; nothing was changed",
        )
        managed.write_state(self.marker, change.text().encode(), root=machine.root)
        if old:
            self._stop(machine, old)
        managed.apply_set(self.name, self.boot_files(), root=machine.root)

    def expect(self, machine: Machine, transaction: str) -> AnyPending:
        """The change of this id. Raises :class:`SparkError` when it is no longer there to be confirmed."""
        found = self.pending(machine)
        if found is None:
            raise SparkError(
                f"the node has already taken the change of {self.what} back",
                self.marker,
                f"The test of the change took longer than {self.limit}, and run again",
            )
        if found.id != transaction:
            raise SparkError(
                f"another run has taken over the change of {self.what}",
                self.marker,
                "Let one run at a time change a node, and run again",
            )
        return found

    def restore(
        self, machine: Machine, put_back: PutBack[AnyPending], transaction: str = "", *, boot: bool = False
    ) -> list[str] | None:
        """Put back what was there before the pending change; None when there is none (any more, or of that id).

        With ``boot`` nothing of what it changes runs yet. Returns what is not as it was, one line each; the rest is.
        Raises :class:`SparkError` when an attempt failed: then the marker is still there, and another may follow.
        """
        with alone(machine, self.what, self.lock):
            found = self.pending(machine)
            if found is None or (transaction and found.id != transaction):
                return None
            return put_back(machine, found, boot)

    def run(self, put_back: PutBack[AnyPending], arguments: argparse.Namespace, machine: Machine) -> int:
        """The subcommand: called by the timer that every change arms, by the boot unit, and by hand."""
        try:
            left = self.restore(machine, put_back, arguments.transaction, boot=arguments.boot)
        except SparkError as exc:
            sys.stderr.write(f"{exc}\n")
            return 1
        said = f"The change of {self.what} was taken back: nobody confirmed it"
        sys.stdout.write(f"{f'No change of {self.what} is pending' if left is None else said}\n")
        sys.stdout.writelines(f"Not as before: {line}\n" for line in left or ())
        return 0

    def disarm(self, machine: Machine, found: AnyPending) -> None:
        managed.drop_state(self.marker, root=machine.root)
        self._stop(machine, found.id)

    def remove(self, machine: Machine) -> None:
        """The boot unit, from systemd's memory too: it would be listed until the next boot."""
        if managed.remove_set(self.name, root=machine.root).changed:
            machine.works("systemctl", "daemon-reload")

    def _stop(self, machine: Machine, transaction: str) -> None:
        # It may have ended just now. If it cannot be stopped, it finds no marker with its id.
        machine.works("systemctl", "stop", f"{self.unit}-{transaction}.timer")

    def boot_files(self) -> Sequence[managed.File]:
        """The boot unit, enabled."""
        text = f"""\
# Written by the role {self.role} of sparkmatrix.cluster. Does nothing unless a change of {self.what} was interrupted.
[Unit]
Description=Take back a change of {self.what} that was interrupted
DefaultDependencies=no
ConditionPathExists={self.marker}
RequiresMountsFor={STATE} {os.path.dirname(NODE_PROGRAM)}
After=local-fs.target systemd-sysctl.service
Before={self.before} shutdown.target
Wants=network-pre.target
Conflicts=shutdown.target

[Service]
Type=oneshot
ExecStart={NODE_PROGRAM} {self.command} --boot
TimeoutStartSec=60

[Install]
WantedBy=sysinit.target
"""
        return [
            managed.File(self.boot_unit, content=text.encode()),
            managed.File(self.boot_link, link_to=self.boot_unit),
        ]
