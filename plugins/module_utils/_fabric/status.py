# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""``sparkmatrix-node fabric-status``: what the fabric of this node is, and whether a change waits for confirmation."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import rollback
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FACT_PATH, load
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.interfaces import (
    Effective,
    effective,
)

HELP = "show the fabric interfaces, the state of the fact, and a change that waits for confirmation"


def lines(machine: Machine) -> list[str]:
    found = []
    text = machine.read(FACT_PATH)
    now = effective(machine)
    if text is None:
        found.append("fabric: not configured")
    else:
        fact = None
        with contextlib.suppress(ValueError):
            fact = load(json.loads(text), "this node")
        if fact is None:
            found.append("fabric: the fact is not readable")
        else:
            found.append(f"fabric: {fact.topology}, {fact.state}, plan {fact.plan_hash}")
            found += [now.get(rail.netdev, Effective()).line(rail.netdev) for rail in fact.rails]
    pending = rollback.GUARD.pending(machine)
    if pending is None:
        found.append("pending: nothing")
    else:
        rest = pending.armed + pending.seconds - machine.now()
        when = f"in {rest:.0f} s" if rest > 0 else "now"
        found.append(f"pending: change {pending.id} to plan {pending.plan_hash}; the node takes it back {when}")
    return found


def configure(parser: argparse.ArgumentParser) -> None:
    """It has no options."""


def run(_arguments: argparse.Namespace) -> int:
    try:
        sys.stdout.write("".join(f"{line}\n" for line in lines(Machine())))
    except SparkError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    return 0
