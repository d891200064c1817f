# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The dead-man rollback of firewall and sshd: a change that no fresh login confirms is taken back by the node itself.

How: :mod:`_managed.rollback`. The snapshot has every file that the change may touch. Connections that are there go on
through a new firewall (conntrack), so they show nothing: only a process that came over another ssh connection than the
change can confirm it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass, field

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access import sshd
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine, alone
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import rollback
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import put_state

HELP = "take back a change of ssh and the firewall that nobody confirmed"
LOCK = f"{paths.RUN}/access.lock"
WHAT = "ssh and the firewall"


@dataclass
class Pending(rollback.Pending):
    connection: list[str] = field(default_factory=list)  # SSH_CONNECTION of who made the change; empty: not over ssh
    active: bool = False  # ufw filtered
    firewall: bool = False  # the change is one of the firewall too


GUARD = rollback.Guard(
    Pending,
    what=WHAT,
    role="access",
    marker=f"{paths.STATE}/pending/access.json",
    lock=LOCK,
    unit="sparkmatrix-access-restore",
    command="access-restore",
    before="network-pre.target ufw.service ssh.service ssh.socket",
    limit="its 150 s; try each machine alone (--limit)",
    by_hand="sudo ufw status and sudo sshd -T",
)


def arm(
    machine: Machine, seconds: float, paths: Iterable[str], *, active: bool, firewall: bool, connection: Iterable[str]
) -> Pending:
    """From here on the node takes the change back, unless :func:`confirm` comes."""
    change = GUARD.claim(machine) or Pending(active=active)
    change.connection = list(connection)
    change.firewall = change.firewall or firewall
    change.remember(machine, (*paths, *GUARD.paths))
    GUARD.arm(machine, change, seconds)
    return change


def confirm(machine: Machine, transaction: str, connection: Iterable[str], *, elsewhere: bool = False) -> None:
    """The change stays. ``elsewhere``: a login from another machine was tested otherwise (Ansible runs on this node).

    Raises :class:`SparkError` when the change is no longer there, or when this is no fresh login.
    """
    with alone(machine, WHAT, LOCK):
        found = GUARD.expect(machine, transaction)
        now = list(connection)
        if not elsewhere and (not now or now == found.connection):
            raise SparkError(
                "this is not a fresh login, so it does not show that one is possible; the node takes the change back",
                " ".join(now) or "no ssh connection",
                "Confirm over an ssh connection of its own: ansible_control_path: none, and no ControlPath in ssh_args",
            )
        GUARD.disarm(machine, found)


def put_back(machine: Machine, found: Pending, boot: bool = False) -> list[str]:
    """For who holds the lock. At boot neither ufw nor sshd runs yet: the files are enough."""
    if found.firewall and not boot and not found.active:
        machine.command("ufw", "--force", "disable", step="switching the firewall off again")
    for path, state in found.files.items():
        put_state(path, state, root=machine.root)
    found.remove_made(machine)
    if not boot:
        if found.firewall and found.active:
            machine.command("ufw", "reload", step="applying the previous firewall rules")
        if not sshd.complaint(machine):
            sshd.reload(machine)
    GUARD.disarm(machine, found)
    return []


def restore(machine: Machine, transaction: str = "", *, boot: bool = False) -> list[str] | None:
    return GUARD.restore(machine, put_back, transaction, boot=boot)


configure = rollback.configure


def run(arguments: argparse.Namespace, machine: Machine | None = None) -> int:
    return GUARD.run(put_back, arguments, machine or Machine())
