# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Waiting until a change of the fabric is effective: networkd and the RDMA driver follow it in the background."""

from __future__ import annotations

from collections.abc import Sequence

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import POLL_S, Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import renderer as fabric_renderer
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import show_gids
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact, Rail
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.interfaces import Effective, effective

GID_WAIT_S = 3.0


def target(rail: Rail) -> Effective:
    return Effective(True, True, True, rail.mtu, (f"{rail.address}/{rail.prefix}",))


def reached(now: Effective, rail: Rail) -> bool:
    """Carrier is not asked for: a cable that is pulled is the probe's finding, no reason to configure again."""
    wanted = target(rail)
    return (now.up, now.mtu, now.addresses) == (wanted.up, wanted.mtu, wanted.addresses)


def for_interfaces(machine: Machine, rails: Sequence[Rail], timeout_s: float, backend: str) -> None:
    """Until the kernel has it; networkd configures in the background."""
    deadline = machine.clock() + timeout_s
    while True:
        now = effective(machine)
        off = [rail for rail in rails if not reached(now.get(rail.netdev, Effective()), rail)]
        if not off:
            return
        if machine.clock() >= deadline:
            break
        machine.sleep(POLL_S)
    problems = []
    for rail in off:
        state = now.get(rail.netdev, Effective())
        why = "" if state.carrier or not state.exists else " (no link: check the cable)"
        problems.append(f"{state.line(rail.netdev)}{why}, wanted: {target(rail).line(rail.netdev)}")
    names = [rail.netdev for rail in off]
    by_nm = backend == fabric_renderer.NETWORKMANAGER
    raise SparkError(
        f"waiting {timeout_s:g} s for the interfaces failed: {'; '.join(problems)}",
        ", ".join(names),
        f"Look at: nmcli device show {names[0]}; journalctl -u NetworkManager"
        if by_nm
        else f"Look at: networkctl status {names[0]}; journalctl -u systemd-networkd",
    )


def for_gids(machine: Machine, fact: FabricFact | None) -> None:
    """The RDMA driver follows addresses in the background; whoever measures next should not be too early."""
    if fact is None or fact.transport != "rdma":
        return
    deadline = machine.clock() + GID_WAIT_S
    while not _gids_are_there(machine, fact) and machine.clock() < deadline:
        machine.sleep(POLL_S)


def _gids_are_there(machine: Machine, fact: FabricFact) -> bool:
    table = show_gids.read(machine.sysfs, [rail.rdma_device for rail in fact.rails])
    try:
        return all(show_gids.of_rail(table, rail, fact.address_range) for rail in fact.rails)
    except SparkError:
        return False
