# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""**A snapshot**: one node as it is now, the one type of what is seen of it.

Quick (:mod:`_snapshot.quick`) it has what moves every second, for ``sparkmatrix top``; full (:mod:`_snapshot.full`)
what doctor and ``sparkmatrix drift`` judge. What was not looked at is empty. What a machine *is* stands in
:mod:`_preflight.node`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Optional

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.gpu import Clocks, Rate
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.hardware import Memory
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.journal import Boot, Lines
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Number, Words
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.metrics import Work
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.counters import Moved

UNLIMITED, NOT_KNOWN = -1, -2  # of memlock
# Why nobody has to miss a measurement of the GPU.
NOT_ASKED, NO_GPU, BUSY = EXPECTED = ("it was not asked for", "there is no NVIDIA GPU", "an engine runs")


@dataclass(frozen=True)
class Difference:
    """``found`` is empty where there is nothing."""

    name: Words
    planned: Words
    found: Words


@dataclass(frozen=True)
class Rank:
    """A process of a rank. ``opened``: RDMA devices that it holds open; ``may_open``: that it sees in /dev/infiniband.
    Of memlock: bytes, :data:`UNLIMITED` or :data:`NOT_KNOWN`."""

    service: Words
    unit: Words
    title: Words
    memlock: int = NOT_KNOWN
    memlock_planned: int = NOT_KNOWN
    may_open: tuple[Words, ...] = ()
    opened: tuple[Words, ...] = ()
    environment: tuple[Difference, ...] = ()
    environment_known: bool = True
    over_rdma: bool = False  # it talks to ranks of other nodes, from a GPU, and the fabric has RDMA


@dataclass(frozen=True)
class Service:
    """A service that this node takes part in. The last fields are known on its head only."""

    instance: Words
    unit: Words
    model: Words
    recipe: Words = ""
    engine: Words = ""
    version: Words = ""
    runs: bool = False
    other_settings: bool = False  # the unit runs with another configuration than the plan's
    image: Words = ""
    image_planned: Words = ""  # id when it was planned
    image_named: Words = ""  # id that its name leads to now
    image_running: Words = ""  # id of the container that runs
    head: bool = False
    options: Mapping[Words, Words] = field(default_factory=dict)  # active, as the engine says itself
    ignored: tuple[Difference, ...] = ()  # options that are not as planned
    answered: bool = False
    seconds: float = 0
    answer: Words = ""  # what was measured, or why there is none
    tokens_per_s: float = 0
    moved: Mapping[Words, float] = field(default_factory=dict)  # bytes by RDMA device, meanwhile
    work: Work = field(default_factory=Work)  # of a quick snapshot


@dataclass(frozen=True)
class Weights:
    """A model of the plan. ``state``: whole, broken, foreign (brought by others), missing or unseen."""

    name: Words
    revision: Words
    state: Words
    found: Words = ""


@dataclass(frozen=True)
class Snapshot:
    host: Words  # of the fabric fact; empty without one
    memory: Memory = field(default_factory=Memory)
    services: tuple[Service, ...] = ()
    # quick
    at: Number = 0  # seconds, of a clock of this node
    load: Number = 0
    clocks: Optional[Clocks] = None
    moved: Mapping[Words, Moved] = field(default_factory=dict)  # by interface
    # full
    journal_read: bool = False
    lines: tuple[Lines, ...] = ()
    boots: tuple[Boot, ...] = ()
    uptime_s: float = 0
    days: float = 0  # that were looked at
    ranks: tuple[Rank, ...] = ()
    weights: tuple[Weights, ...] = ()
    gpu: Rate = field(default_factory=Rate)
    halves: tuple[Words, ...] = ()  # RDMA devices of the fabric fact
    filters: tuple[Words, ...] = ()  # what is wrong with the port filter
    problems: tuple[Words, ...] = ()  # what could not be looked at, and why
    versions: Mapping[Words, Words] = field(default_factory=dict)  # that have to be the same on all nodes
