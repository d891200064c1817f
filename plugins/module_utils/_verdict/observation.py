# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What doctor saw on one node: written by :mod:`_verdict.observe`, judged on the controller, and by the
head's timer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Words

UNLIMITED, NOT_KNOWN = -1, -2  # of memlock
# Why nobody has to miss a measurement of the GPU.
NOT_ASKED, NO_GPU, BUSY = EXPECTED = ("it was not asked for", "there is no NVIDIA GPU", "an engine runs")


@dataclass(frozen=True)
class Lines:
    """Lines of the kernel's journal of one kind about one device. Times in seconds since 1970."""

    kind: Words  # of journal.KINDS
    device: Words
    count: int
    most_per_hour: int
    most_per_day: int
    last_at: float
    last: Words


@dataclass(frozen=True)
class Boot:
    """An earlier boot. ``clean``: it ended with a shutdown; ``no_memory``: lines with NV_ERR_NO_MEMORY in its last
    hour; ``last``: how its journal ends."""

    ended_at: float
    clean: bool
    no_memory: int = 0
    last: tuple[Words, ...] = ()


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


@dataclass(frozen=True)
class Weights:
    """A model of the plan. ``state``: whole, broken, foreign (brought by others), missing or unseen."""

    name: Words
    revision: Words
    state: Words
    found: Words = ""


@dataclass(frozen=True)
class Gpu:
    """A matrix-vector product that reads memory for a second. ``reason``: why it was not measured."""

    gbs: float = 0
    reason: Words = ""


@dataclass(frozen=True)
class Observation:
    host: Words  # of the fabric fact; empty without one
    journal_read: bool = False
    lines: tuple[Lines, ...] = ()
    boots: tuple[Boot, ...] = ()
    uptime_s: float = 0
    days: float = 0  # that were looked at
    services: tuple[Service, ...] = ()
    ranks: tuple[Rank, ...] = ()
    weights: tuple[Weights, ...] = ()
    gpu: Gpu = Gpu()
    halves: tuple[Words, ...] = ()  # RDMA devices of the fabric fact
    filters: tuple[Words, ...] = ()  # what is wrong with the port filter
    problems: tuple[Words, ...] = ()  # what could not be looked at, and why
    used_bytes: float = 0  # memory
    total_bytes: float = 0
    facts: Mapping[Words, Words] = field(default_factory=dict)  # kernel, driver, firmware … that have to be the same
