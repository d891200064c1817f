# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""``sparkmatrix-node fabric-status``: what the fabric of this node is, what has drifted from what was verified, whether
the port filter is active, and whether a change waits for confirmation."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access import port_filter
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import drift, rollback, show_gids
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FACT_PATH, load
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.interfaces import (
    Effective,
    effective,
)

HELP = "show the fabric interfaces, what has drifted (exit code 1), and a change that waits for confirmation"


def lines(machine: Machine) -> tuple[list[str], bool]:
    """What to print, and whether it is wrong: something has drifted, or nobody can tell."""
    found: list[str] = []
    wrong = False
    text = machine.read(FACT_PATH)
    now = effective(machine)
    if text is None:
        found.append("fabric: not configured")
    else:
        fact = None
        with contextlib.suppress(SparkError):
            fact = load(json_text.read(text), "this node")
        if fact is None:
            wrong = True
            found.append(
                f"fabric: {FACT_PATH} is not readable. Run the fabric layer: ansible-playbook site.yml --tags fabric"
            )
        else:
            found.append(f"fabric: {fact.topology}, {fact.state}, plan {fact.plan_hash}")
            gids = show_gids.read(machine.sysfs) if fact.transport == "rdma" else None
            # NCCL looks for the address, so an index that moved is no fault.
            drifted = [item for item in drift.drift(fact, now, gids) if item.kind != drift.INDEX]
            wrong = bool(drifted)
            for rail in fact.rails:
                own = [item for item in drifted if item.rail == rail]
                mark = "   <- drifted" if own else ""
                found.append(f"{now.get(rail.netdev, Effective()).line(rail.netdev)}{mark}")
                found += [f"  {item}" for item in own]
    for name in port_filter.NAMES:
        try:
            # A table that the node keeps; only root may ask the kernel.
            if machine.exists(port_filter.path(name)):
                port_filter.require(machine, name)
        except SparkError as exc:
            wrong = True
            found.append(str(exc))
    pending = rollback.GUARD.pending(machine)
    if pending is None:
        found.append("pending: nothing")
    else:
        rest = pending.armed + pending.seconds - machine.now()
        when = f"in {rest:.0f} s" if rest > 0 else "now"
        found.append(f"pending: change {pending.id} to plan {pending.plan_hash}; the node takes it back {when}")
    return found, wrong


def configure(parser: argparse.ArgumentParser) -> None:
    """It has no options."""


def run(_arguments: argparse.Namespace) -> int:
    if os.geteuid() != 0:  # who may not ask the kernel for the port filter would be told that it is gone
        sys.stderr.write("this needs root: sudo sparkmatrix fabric-status\n")
        return 1
    try:
        found, wrong = lines(Machine())
    except (SparkError, OSError) as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    sys.stdout.write("".join(f"{line}\n" for line in found))
    return int(wrong)
