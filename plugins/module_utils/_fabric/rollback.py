# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The dead-man rollback of the fabric: a change that nobody confirms is taken back by the node itself.

How: :mod:`_managed.rollback`. The snapshot has every file that the change may touch, our blocks in ``/etc/hosts``
and in avahi's configuration, and per interface MTU, state, addresses and sysctls.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Flag, Words
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import POLL_S, Machine, alone
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import renderer
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.interfaces import (
    LOCK,
    MEMORY,
    WHAT,
    Effective,
    effective,
    read_sysctl,
    sysctl_path,
    write_sysctl,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import avahi, etc_hosts, rollback
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import put_state

HELP = "take back a change of the fabric that nobody confirmed"
OWNER = "fabric"  # of the block in /etc/hosts
SETTLE_S = 10.0


@dataclass
class Pending(rollback.Pending):
    plan_hash: str = ""
    hosts: list[str] = field(default_factory=list)  # lines of our block
    avahi: list[str] = field(default_factory=list)  # interfaces that our block keeps it off
    interfaces: dict[str, dict[str, Any]] = field(default_factory=dict)
    networkd: bool = False  # it was running


GUARD = rollback.Guard(
    Pending,
    what=WHAT,
    role="fabric",
    marker=f"{paths.STATE}/pending/fabric.json",
    lock=LOCK,
    unit="sparkmatrix-fabric-restore",
    command="fabric-restore",
    before="network-pre.target systemd-networkd.service NetworkManager.service",
    limit="fabric_rollback_seconds; raise it",
    by_hand="the interfaces (ip addr)",
    reserve_s=10,
)


# --- arm -------------------------------------------------------------------------------------------------------------


def arm(
    machine: Machine, plan_hash: str, seconds: float, paths: Iterable[str], interfaces: Mapping[str, Mapping[str, Any]]
) -> Pending:
    """From here on the node restores itself, unless :func:`confirm` comes.

    ``paths``: every file that may change. ``interfaces``: as :func:`interface_state` returns them, with the addresses
    that the change may add as ``placed``.
    """
    change = GUARD.claim(machine)
    if change is None:
        hosts = etc_hosts.block_of(machine.read(etc_hosts.PATH) or "", OWNER)
        denied = avahi.denied(machine.read(avahi.PATH) or "", OWNER)
        change = Pending(hosts=hosts, avahi=denied, networkd=renderer.networkd_runs(machine))
    change.plan_hash = plan_hash
    change.remember(machine, (*paths, *GUARD.paths))
    for netdev, state in interfaces.items():
        known = change.interfaces.setdefault(netdev, dict(state))
        known["placed"] = [*known["placed"], *(item for item in state["placed"] if item not in known["placed"])]
    GUARD.arm(machine, change, seconds)
    return change


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


# --- confirm ---------------------------------------------------------------------------------------------------------


def confirm(machine: Machine, transaction: str) -> None:
    """The change stays. Raises :class:`SparkError` when it is no longer there to be confirmed."""
    with alone(machine, WHAT, LOCK):
        GUARD.disarm(machine, GUARD.expect(machine, transaction))


@dataclass(frozen=True)
class Request:
    """``transaction``: the pending change, as the call ``fabric_change`` returned it."""

    transaction: str
    keep: bool


@dataclass
class Settled:
    """``changes``: what is not as it was before the change, one line each."""

    changed: Flag
    changes: list[Words] = field(default_factory=list)


def settle(request: Request, check: bool) -> Settled:
    """Makes the pending change stay, or takes it back; where it is no longer pending, the first fails."""
    machine = Machine()
    if check:
        found = GUARD.pending(machine)
        return Settled(found is not None and found.id == request.transaction)
    if request.keep:
        confirm(machine, request.transaction)
        return Settled(True)
    left = restore(machine, request.transaction)
    return Settled(left is not None, left or [])


# --- restore ---------------------------------------------------------------------------------------------------------


def restore(machine: Machine, transaction: str = "", *, boot: bool = False) -> list[str] | None:
    return GUARD.restore(machine, put_back, transaction, boot=boot)


def put_back(machine: Machine, found: Pending, boot: bool = False) -> list[str]:
    """For who holds the lock. With ``boot`` the files, what udev has already made of them, and no more."""
    # The record of what we did goes last, the guard itself after it.
    last = [MEMORY, *(path for path in found.files if path.startswith(paths.MANAGED)), GUARD.boot_link, GUARD.boot_unit]
    for path in sorted(found.files, key=lambda item: last.index(item) if item in last else -1):
        put_state(path, found.files[path], root=machine.root)
    text = machine.read(etc_hosts.PATH) or ""
    hosts = etc_hosts.with_block(text, found.hosts, OWNER)
    if hosts != text:
        etc_hosts.write(machine, hosts)
    conf = machine.read(avahi.PATH)
    if conf:
        avahi.write(machine, avahi.denying(conf, found.avahi, OWNER), running=not boot)
    renderer.generate(machine, "the previous configuration")
    left = _before_the_network(machine, found) if boot else _reapply(machine, found)
    found.remove_made(machine)
    GUARD.disarm(machine, found)
    return left


def _before_the_network(machine: Machine, found: Pending) -> list[str]:
    now = effective(machine)
    for netdev, before in found.interfaces.items():
        if netdev in now:
            _write_sysctls(machine, netdev, before["sysctls"])
            # udev has applied the MTU of the interrupted change, which the files had when the machine started.
            if before["mtu"] and before["mtu"] != now[netdev].mtu:
                machine.works("ip", "link", "set", netdev, "mtu", str(before["mtu"]))
    return []


def _reapply(machine: Machine, found: Pending) -> list[str]:
    running = renderer.networkd_runs(machine)
    if running:
        machine.command("networkctl", "reload", step="reloading systemd-networkd")
    if renderer.networkmanager_runs(machine):
        machine.works("nmcli", "connection", "reload")
    now = effective(machine)
    for netdev, before in found.interfaces.items():
        if netdev not in now:
            continue
        added = [address for address in before["placed"] if address not in before["addresses"]]
        renderer.release(machine, netdev, {**before, "addresses": added})
    left = _settle(machine, found)
    for netdev, before in found.interfaces.items():
        # NetworkManager turns IPv6 on again when it activates a connection.
        if netdev in now:
            _write_sysctls(machine, netdev, before["sysctls"])
    if running and not found.networkd:
        renderer.stop_networkd(machine)
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


configure = rollback.configure


def run(arguments: argparse.Namespace, machine: Machine | None = None) -> int:
    return GUARD.run(put_back, arguments, machine or Machine())
