# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The dead-man rollback: a change of the fabric that nobody confirms is taken back by the node itself.

Before the first change::

    timer (systemd-run, lost controller) -> pending marker with the snapshot -> boot unit (power cut, reboot)

and after the proof the marker goes first: from then on neither timer nor boot unit does anything. Each transaction has
an id, so that a timer which could not be stopped finds nothing of its own to restore.

The marker, ``/var/lib/sparkmatrix/pending/fabric.json`` (0600), *is* the snapshot: every file that the change may
touch, our block of ``/etc/hosts``, and per interface MTU, state, addresses and sysctls. Restoring is putting these
back, in any number of attempts, and removing the marker last.

A marker that a run finds is taken over: its snapshot is the last proven state and stays, the change goes on under a new
id with a new timer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils import _deadman, _fabric_backend, _fabric_forward
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric_machine import (
    HOSTS,
    MEMORY,
    POLL_S,
    Effective,
    Machine,
    alone,
    block_of,
    effective,
    read_sysctl,
    sysctl_path,
    with_block,
    write_hosts,
    write_sysctl,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed_files import (
    STATE_DIR,
    File,
    State,
    apply_set,
    drop_state,
    parents,
    put_state,
    read_state,
    write_state,
)

PENDING = "/var/lib/sparkmatrix/pending/fabric.json"
SET = "fabric_guard"
TOOL = _deadman.TOOL
UNIT = "sparkmatrix-fabric-restore"
BOOT_UNIT, BOOT_LINK = _deadman.boot_paths(UNIT)
SETTLE_S = 10.0
RESTORE_S = 10.0  # a restore takes up to this, and shall be over in time


@dataclass
class Pending:
    """A change that waits for its confirmation, and what was there before it."""

    id: str
    plan_hash: str
    seconds: float  # until the node restores itself
    armed: float  # seconds since 1970
    files: dict[str, State] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)  # directories that were not there
    hosts: list[str] = field(default_factory=list)  # lines of our block
    interfaces: dict[str, dict[str, Any]] = field(default_factory=dict)
    networkd: bool = False  # it was running

    def text(self) -> str:
        document = {**vars(self), "schema": 1, "files": {path: s.as_dict() for path, s in self.files.items()}}
        return json.dumps(document, indent=1, sort_keys=True) + "\n"

    @classmethod
    def parse(cls, text: str) -> Pending:
        try:
            document = json.loads(text)
            if document.pop("schema") != 1:
                raise ValueError("not schema 1")
            files = {str(path): State.from_dict(values) for path, values in document.pop("files").items()}
            return cls(**document, files=files)
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise SparkError(
                f"the snapshot of an interrupted change is damaged ({exc}), so it cannot be taken back",
                PENDING,
                "Look at the interfaces (ip addr), delete the file, and run the fabric layer again",
            ) from exc


def pending(machine: Machine) -> Pending | None:
    text = machine.read(PENDING)
    return None if text is None else Pending.parse(text)


# --- arm -------------------------------------------------------------------------------------------------------------


def arm(
    machine: Machine, plan_hash: str, seconds: float, paths: Iterable[str], interfaces: Mapping[str, Mapping[str, Any]]
) -> Pending:
    """From here on the node restores itself, unless :func:`disarm` comes. Returns the transaction.

    ``paths``: every file that may change. ``interfaces``: as :func:`interface_state` returns them, with ``routes``
    (ours so far) and, for what the change may add, ``placed`` (addresses) and ``placed_routes``.
    """
    tool = machine.real(TOOL)
    if not os.access(tool, os.X_OK):
        raise SparkError(
            "the tool that takes a change back is not installed; nothing was changed",
            TOOL,
            "Run the role fabric, or the module node_tool before this one",
        )
    found = pending(machine)
    armed = found or Pending("", "", 0, 0, hosts=block_of(machine.read(HOSTS) or ""), networkd=_networkd(machine))
    old = armed.id
    armed = replace(armed, id=os.urandom(4).hex(), plan_hash=plan_hash, seconds=seconds, armed=machine.now())
    for path in paths:
        # A path that the interrupted change did not know was not touched by it.
        if path not in armed.files:
            armed.files[path] = read_state(path, root=machine.root)
            armed.made += [d for d in parents(path) if not os.path.isdir(machine.real(d)) and d not in armed.made]
    for netdev, state in interfaces.items():
        known = armed.interfaces.setdefault(netdev, dict(state))
        for key in ("placed", "placed_routes"):
            known[key] = [*known[key], *(item for item in state[key] if item not in known[key])]
    _deadman.start(
        machine,
        _unit(armed.id),
        seconds - RESTORE_S,
        f"Take back the change of the fabric that nobody confirmed within {seconds:g} s",
        ("fabric-restore", "--transaction", armed.id),
    )
    write_state(PENDING, armed.text().encode(), root=machine.root)
    if old:
        _deadman.stop(machine, _unit(old))
    apply_set(SET, boot_files(), root=machine.root)
    return armed


def boot_files() -> list[File]:
    before = "network-pre.target systemd-networkd.service NetworkManager.service"
    return _deadman.boot_files(
        UNIT, role="fabric", what="a change of the fabric", marker=PENDING, command="fabric-restore", before=before
    )


def guard_paths() -> list[str]:
    return [f"{STATE_DIR}/{SET}.json", BOOT_UNIT, BOOT_LINK]


def interface_state(machine: Machine, netdev: str, now: Effective, keys: Iterable[str]) -> dict[str, Any]:
    values = {key: read_sysctl(machine, netdev, key) for key in keys}
    return {
        "mtu": now.mtu,
        "up": now.up,
        "addresses": [address for address in now.addresses if address not in now.dynamic],
        "sysctls": {key: value for key, value in values.items() if value is not None},
        "nm_managed": nm_manages(machine, netdev),
    }


def nm_manages(machine: Machine, netdev: str) -> bool:
    done = machine.runner(("nmcli", "-g", "GENERAL.STATE", "device", "show", netdev))
    # "10 (unmanaged)", "100 (connected)"; no nmcli or no running NetworkManager: not managed.
    return done.rc == 0 and not done.out.strip().startswith("10 ")


def _networkd(machine: Machine) -> bool:
    return _fabric_backend.networkd_runs(machine)


def _unit(transaction: str) -> str:
    return f"{UNIT}-{transaction}"


# --- disarm ----------------------------------------------------------------------------------------------------------


def confirm(machine: Machine, transaction: str) -> bool:
    """The change stays. Raises :class:`SparkError` when it is no longer there to be confirmed."""
    with alone(machine):
        found = pending(machine)
        if found is None or found.id != transaction:
            raise SparkError(
                "the node has already taken this change back"
                if found is None
                else "another run has taken over the change of this node",
                PENDING,
                "The proof took longer than fabric_rollback_seconds; raise it, and run again"
                if found is None
                else "Let one run at a time change the fabric, and run again",
            )
        disarm(machine, found)
    return True


def disarm(machine: Machine, found: Pending) -> None:
    drop_state(PENDING, root=machine.root)
    _deadman.stop(machine, _unit(found.id))


# --- restore ---------------------------------------------------------------------------------------------------------


def restore(machine: Machine, transaction: str = "", *, boot: bool = False) -> list[str] | None:
    """Put back what was there before the pending change; None when there is none (any more, or of that id).

    With ``boot`` nothing of the network runs yet: the files, what udev has already made of them, and no more. Returns
    what is not as it was, one line each; the rest is. Raises :class:`SparkError` when an attempt failed: then the
    marker is still there, and another attempt may follow.
    """
    with alone(machine):
        found = pending(machine)
        if found is None or (transaction and found.id != transaction):
            return None
        return put_back(machine, found, boot=boot)


def put_back(machine: Machine, found: Pending, *, boot: bool = False) -> list[str]:
    """:func:`restore` for who holds the lock."""
    # The record of what we did goes last, the guard itself after it.
    last = [MEMORY, *(path for path in found.files if path.startswith(STATE_DIR)), BOOT_LINK, BOOT_UNIT]
    for path in sorted(found.files, key=lambda item: last.index(item) if item in last else -1):
        put_state(path, found.files[path], root=machine.root)
    text = machine.read(HOSTS) or ""
    hosts = with_block(text, found.hosts)
    if hosts != text:
        write_hosts(machine, hosts)
    _fabric_backend.generate(machine, "the previous configuration")
    left = _before_the_network(machine, found) if boot else _reapply(machine, found)
    for directory in sorted(found.made, key=len, reverse=True):
        _rmdir(machine.real(directory))
    disarm(machine, found)
    return left


def _rmdir(real: str) -> None:
    try:
        os.rmdir(real)
    except OSError:  # something else lives in it by now
        return


def _before_the_network(machine: Machine, found: Pending) -> list[str]:
    now = effective(machine)
    for netdev, before in found.interfaces.items():
        if netdev in now:
            _write_sysctls(machine, netdev, before["sysctls"])
            # udev has applied the MTU of the interrupted change, which was in force when the machine started.
            if before["mtu"] and before["mtu"] != now[netdev].mtu:
                machine.works("ip", "link", "set", netdev, "mtu", str(before["mtu"]))
    return []


def _reapply(machine: Machine, found: Pending) -> list[str]:
    running = _networkd(machine)
    if running:
        machine.command("networkctl", "reload", step="reloading systemd-networkd")
    if _fabric_backend.networkmanager_runs(machine):
        machine.works("nmcli", "connection", "reload")
    now = effective(machine)
    for netdev, before in found.interfaces.items():
        if netdev not in now:
            continue
        added = {
            "addresses": [address for address in before["placed"] if address not in before["addresses"]],
            "routes": [route for route in before["placed_routes"] if route not in before["routes"]],
        }
        _fabric_backend.release(machine, netdev, {**before, **added})
    left = _settle(machine, found)
    for netdev, before in found.interfaces.items():
        # NetworkManager turns IPv6 on again when it activates a connection.
        if netdev in now:
            _write_sysctls(machine, netdev, before["sysctls"])
    if running and not found.networkd:
        _fabric_backend.stop_networkd(machine)
    _fabric_forward.sync(machine, _fabric_forward.of_fact(machine))
    return left


def _settle(machine: Machine, found: Pending) -> list[str]:
    """Wait until the interfaces are as before. One without a cable gets no address, and is not waited for."""
    deadline = machine.clock() + SETTLE_S
    while True:
        now = effective(machine)
        left = []
        for netdev, before in found.interfaces.items():
            state = now.get(netdev, Effective())
            if not state.exists:
                continue
            if state.mtu != before["mtu"] or state.up != before["up"]:
                # A configuration without an MTU leaves the one that is there.
                machine.works("ip", "link", "set", netdev, "mtu", str(before["mtu"]))
                machine.works("ip", "link", "set", netdev, "up" if before["up"] else "down")
            have = {address for address in state.addresses if address not in state.dynamic}
            if (state.mtu, state.up) != (before["mtu"], before["up"]) or (
                state.carrier and have != set(before["addresses"])
            ):
                was = Effective(True, before["up"], True, before["mtu"], tuple(before["addresses"]))
                left.append(f"{state.line(netdev)}; before: {was.line(netdev)}")
        if not left or machine.clock() >= deadline:
            return left
        machine.sleep(POLL_S)


def _write_sysctls(machine: Machine, netdev: str, values: Mapping[str, int]) -> None:
    for key, value in values.items():
        if os.path.exists(machine.real(sysctl_path(netdev, key))):
            write_sysctl(machine, netdev, key, value)
