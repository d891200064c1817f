# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The dead-man rollback of firewall and sshd: a change that no fresh login confirms is taken back by the node itself.

The same order as :mod:`_fabric_guard`: timer, then marker, then boot unit, then the change; the confirmation removes
the marker first. The marker, ``/var/lib/sparkmatrix/pending/access.json`` (0600), is the snapshot of every file that
the change may touch. Connections that are there go on through a new firewall (conntrack), so they prove nothing: only a
process that came over another ssh connection than the change can confirm it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils import _deadman, _sshd
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric_machine import Machine, alone
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed_files import (
    STATE_DIR,
    State,
    apply_set,
    drop_state,
    parents,
    put_state,
    read_state,
    write_state,
)

PENDING = "/var/lib/sparkmatrix/pending/access.json"
LOCK = "/run/lock/sparkmatrix-access.lock"
WHAT = "ssh and the firewall"
SET = "access_guard"
UNIT = "sparkmatrix-access-restore"


@dataclass
class Pending:
    """A change that waits for its confirmation, and what was there before it."""

    id: str
    seconds: float  # until the node takes it back
    armed: float  # seconds since 1970
    connection: list[str] = field(default_factory=list)  # SSH_CONNECTION of who made the change; empty: not over ssh
    files: dict[str, State] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)  # directories that were not there
    active: bool = False  # ufw filtered
    firewall: bool = False  # the change is one of the firewall too

    def text(self) -> str:
        document = {**vars(self), "schema": 1, "files": {path: s.as_dict() for path, s in self.files.items()}}
        return json.dumps(document, indent=1, sort_keys=True) + "\n"

    @classmethod
    def parse(cls, text: str) -> Pending:
        try:
            document: dict[str, Any] = json.loads(text)
            if document.pop("schema") != 1:
                raise ValueError("not schema 1")
            files = {str(path): State.from_dict(values) for path, values in document.pop("files").items()}
            return cls(**document, files=files)
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise SparkError(
                f"the snapshot of an interrupted change is damaged ({exc}), so it cannot be taken back",
                PENDING,
                "Look at sudo ufw status and sudo sshd -T, delete the file, and run the layer access again",
            ) from exc


def pending(machine: Machine) -> Pending | None:
    text = machine.read(PENDING)
    return None if text is None else Pending.parse(text)


def arm(
    machine: Machine, seconds: float, paths: Iterable[str], *, active: bool, firewall: bool, connection: Iterable[str]
) -> Pending:
    """From here on the node takes the change back, unless :func:`confirm` comes. What an interrupted run left is taken
    over: its snapshot is the last proven state."""
    if not os.access(machine.real(_deadman.TOOL), os.X_OK):
        raise SparkError(
            "the tool that takes a change back is not installed; nothing was changed",
            _deadman.TOOL,
            "Run the role access, or the module node_tool before this one",
        )
    found = pending(machine)
    old = found.id if found else ""
    armed = found or Pending("", 0, 0, active=active)
    armed.id, armed.seconds, armed.armed = os.urandom(4).hex(), seconds, machine.now()
    armed.connection = list(connection)
    armed.firewall = armed.firewall or firewall
    for path in (*paths, f"{STATE_DIR}/{SET}.json", *_deadman.boot_paths(UNIT)):
        if path not in armed.files:
            armed.files[path] = read_state(path, root=machine.root)
            armed.made += [d for d in parents(path) if not os.path.isdir(machine.real(d)) and d not in armed.made]
    _deadman.start(
        machine,
        f"{UNIT}-{armed.id}",
        seconds,
        f"Take back the change of {WHAT} that nobody confirmed within {seconds:g} s",
        ("access-restore", "--transaction", armed.id),
    )
    write_state(PENDING, armed.text().encode(), root=machine.root)
    if old:
        _deadman.stop(machine, f"{UNIT}-{old}")
    apply_set(
        SET,
        _deadman.boot_files(
            UNIT,
            role="access",
            what=f"a change of {WHAT}",
            marker=PENDING,
            command="access-restore",
            before="network-pre.target ufw.service ssh.service ssh.socket",
        ),
        root=machine.root,
    )
    return armed


def confirm(machine: Machine, transaction: str, connection: Iterable[str], *, elsewhere: bool = False) -> None:
    """The change stays. ``elsewhere``: a login from another machine was proved otherwise (Ansible runs on this node).

    Raises :class:`SparkError` when the change is no longer there, or when this is no fresh login.
    """
    with alone(machine, WHAT, LOCK):
        found = pending(machine)
        if found is None or found.id != transaction:
            raise SparkError(
                "the node has already taken the change of ssh and the firewall back"
                if found is None
                else "another run has taken over the change of ssh and the firewall",
                PENDING,
                "A fresh login took longer than access_rollback_seconds; raise it, and run again"
                if found is None
                else "Let one run at a time change a node, and run again",
            )
        now = list(connection)
        if not elsewhere and (not now or now == found.connection):
            raise SparkError(
                "this is not a fresh login, so it does not prove that one is possible; the node takes the change back",
                " ".join(now) or "no ssh connection",
                "Confirm over an ssh connection of its own: ansible_control_path: none, and no ControlPath in ssh_args",
            )
        disarm(machine, found)


def disarm(machine: Machine, found: Pending) -> None:
    drop_state(PENDING, root=machine.root)
    _deadman.stop(machine, f"{UNIT}-{found.id}")


def restore(machine: Machine, transaction: str = "", *, boot: bool = False) -> bool:
    """Put back what was there before the pending change; False when there is none (any more, or of that id).

    At boot neither ufw nor sshd runs yet: the files are enough. Raises :class:`SparkError` when an attempt failed: then
    the marker is still there, and another attempt may follow.
    """
    with alone(machine, WHAT, LOCK):
        found = pending(machine)
        if found is None or (transaction and found.id != transaction):
            return False
        put_back(machine, found, boot=boot)
        return True


def put_back(machine: Machine, found: Pending, *, boot: bool = False) -> None:
    """:func:`restore` for who holds the lock."""
    if found.firewall and not boot and not found.active:
        machine.command("ufw", "--force", "disable", step="switching the firewall off again")
    for path, state in found.files.items():
        put_state(path, state, root=machine.root)
    for directory in sorted(found.made, key=len, reverse=True):
        try:
            os.rmdir(machine.real(directory))
        except OSError:  # something else lives in it by now
            continue
    if not boot:
        if found.firewall and found.active:
            machine.command("ufw", "reload", step="bringing the previous firewall rules into force")
        if not _sshd.complaint(machine):
            _sshd.reload(machine)
    disarm(machine, found)
