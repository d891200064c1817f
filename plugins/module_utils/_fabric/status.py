# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""``sparkmatrix-node fabric-status``: what the fabric of this node is, what has drifted from what was verified, whether
the port filter is active, and whether a change waits for confirmation."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError, printable
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fabric_drift, rollback, show_gids
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import (
    FACT_PATH,
    FabricFact,
    load,
    on_disk,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.interfaces import (
    Effective,
    effective,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._firewall import port_filter

HELP = "show the fabric interfaces, what has drifted (exit code 1), and a change that waits for confirmation"


@dataclass(frozen=True)
class Fabric:
    """``fact``: None where the fabric is not set up, or where the fact cannot be read, of which ``problem`` tells.
    ``now``: by interface; ``drifts``: from what was verified; ``filters``: what is wrong with tables of nftables that
    the node keeps; ``pending``: a change that waits for confirmation, for people."""

    fact: FabricFact | None = None
    problem: str = ""
    now: Mapping[str, Effective] = field(default_factory=dict)
    drifts: Sequence[fabric_drift.Drift] = ()
    filters: Sequence[str] = ()
    pending: str = ""

    @property
    def drifted(self) -> list[fabric_drift.Drift]:
        """NCCL looks for the address, so an index that moved is no fault."""
        return [item for item in self.drifts if not item.harmless]

    @property
    def wrong(self) -> bool:
        """Something has drifted, or nobody can tell."""
        return bool(self.problem or self.drifted or self.filters)

    @property
    def word(self) -> str:
        if self.fact is None and not self.problem:
            return ""
        return "drifted" if self.wrong else "verified"

    @property
    def lines(self) -> list[str]:
        fact = self.fact
        first = self.problem or (f"{fact.topology}, {fact.state}, plan {fact.plan_hash}" if fact else "not configured")
        found = [f"fabric: {first}"]
        for rail in fact.rails if fact else ():
            own = [item for item in self.drifted if item.rail == rail]
            mark = "   <- drifted" if own else ""
            found.append(f"{self.now.get(rail.netdev, Effective()).line(rail.netdev)}{mark}")
            found += [f"  {item}" for item in own]
        return [*found, *self.filters, f"pending: {self.pending or 'nothing'}"]


def read(machine: Machine, full: bool = True) -> Fabric:
    """The fabric of this node now.

    Args:
        machine: The node.
        full: Also ask the kernel for the port filter, and whether a change waits; only root may.

    Raises:
        SparkError: The interfaces cannot be read.
    """
    known = on_disk(machine)
    fact, problem = None, ""
    if known is not None:
        try:
            fact = load(known, "this node")
        except SparkError:
            problem = f"{FACT_PATH} is not readable. Run the fabric layer: ansible-playbook site.yml --tags fabric"
    now = effective(machine)
    gids = show_gids.read(machine.sysfs) if fact and fact.transport == "rdma" else None
    drifts = fabric_drift.drift(fact, now, gids) if fact else []
    more = (list(filters(machine)), pending(machine)) if full else ([], "")
    return Fabric(fact, problem, now, drifts, *more)


def filters(machine: Machine) -> Iterator[str]:
    """What is wrong with tables of nftables that the node keeps."""
    for name in port_filter.NAMES:
        try:
            if machine.exists(port_filter.path(name)):
                port_filter.require(machine, name)
        except SparkError as exc:
            yield printable(str(exc))[:500]


def pending(machine: Machine) -> str:
    change = rollback.GUARD.pending(machine)
    if change is None:
        return ""
    rest = change.armed + change.seconds - machine.now()
    when = f"in {rest:.0f} s" if rest > 0 else "now"
    return f"change {change.id} to plan {change.plan_hash}; the node takes it back {when}"


def configure(parser: argparse.ArgumentParser) -> None:
    """It has no options."""


def run(_arguments: argparse.Namespace) -> int:
    if os.geteuid() != 0:  # who may not ask the kernel for the port filter would be told that it is gone
        sys.stderr.write("this needs root: sudo sparkmatrix fabric-status\n")
        return 1
    try:
        found = read(Machine())
    except (SparkError, OSError) as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    sys.stdout.write("".join(f"{line}\n" for line in found.lines))
    return int(found.wrong)
