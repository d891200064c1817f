# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What RDMA has moved over each half, from the port counters in sysfs.

The counters of a network interface do not see RDMA, and these see nothing else: an engine that answers while none of
them moves serves over TCP.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Count, RdmaDevice
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import counters
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import Rail, load, on_disk

# Bytes by RDMA device, None where they are not counted.
Moved = Mapping[str, Optional[int]]


@dataclass(frozen=True)
class Request:
    """Nothing: the fact says which halves count."""


@dataclass
class Traffic:
    """Bytes in both directions by RDMA device, None where it does not count. Empty without RDMA in the fact."""

    moved: Mapping[RdmaDevice, Optional[Count]] = field(default_factory=dict)


def traffic(_request: Request, _check: bool) -> Traffic:
    """What RDMA has moved so far."""
    machine = Machine()
    return Traffic(read(machine, planned(machine)))


@dataclass(frozen=True)
class Verdict:
    words: str
    warning: str = ""
    moved: Moved = field(default_factory=dict)


def planned(machine: Machine) -> tuple[Rail, ...]:
    """The halves that this node's fact wants RDMA on; none without such a fact."""
    with contextlib.suppress(SparkError):
        fact = load(on_disk(machine), "this node")
        return fact.rails if fact.transport == "rdma" and fact.state == "applied" else ()
    return ()


def read(machine: Machine, rails: Sequence[Rail]) -> dict[str, int | None]:
    return {rail.rdma_device: counters.moved(machine, rail.rdma_device, rail.rdma_port) for rail in rails}


def added(before: Moved, after: Moved) -> dict[str, int | None]:
    """What was moved between the two. Of one that went back, since it was reset meanwhile, nobody knows."""
    moved: dict[str, int | None] = {}
    for device, first in before.items():
        last = after.get(device)
        moved[device] = None if first is None or last is None or last < first else last - first
    return moved


def judge(rails: Sequence[Rail], before: Moved, after: Moved, unit: str) -> Verdict:
    """Of what was moved while the engine answered. A short answer may take one half of several."""
    moved = added({rail.rdma_device: before.get(rail.rdma_device) for rail in rails}, after)
    counted = {device: size for device, size in moved.items() if size is not None}
    if not counted:
        return Verdict("what RDMA moved was not measured: its devices count no bytes", moved=moved)
    if any(counted.values()) or len(counted) < len(moved):
        shown = ", ".join(
            f"{device} {'not counted' if size is None else f'{size / 1e6:.1f} MB'}" for device, size in moved.items()
        )
        return Verdict(f"RDMA moved meanwhile: {shown}", moved=moved)
    return Verdict(
        "no byte moved over RDMA",
        f"the engine serves over TCP: it answered, and no byte moved over RDMA ({', '.join(moved)}). Look for NCCL_NET,"
        f" NCCL_IB_DISABLE and NCCL_IB_HCA in engine_environment and in the recipe; set NCCL_DEBUG=INFO there, and see"
        f" which network NCCL names: journalctl -u {unit} | grep NET/",
        moved,
    )
