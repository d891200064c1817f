# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What doctor saw on one node. Written by :mod:`_verdict.observe`; judged on the controller, where :func:`load` is the
only reader, and by the head's timer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError

SCHEMA = 1
REMEDY = "Its node program is of another release: run site.yml"
UNLIMITED, NOT_KNOWN = -1, -2  # of memlock
# Why nobody has to miss a measurement of the GPU.
NOT_ASKED, NO_GPU, BUSY = EXPECTED = ("it was not asked for", "there is no NVIDIA GPU", "an engine runs")


@dataclass(frozen=True)
class Lines:
    """Lines of the kernel's journal of one kind about one device. Times in seconds since 1970."""

    kind: str  # of journal.KINDS
    device: str
    count: int
    most_per_hour: int
    most_per_day: int
    last_at: float
    last: str


@dataclass(frozen=True)
class Boot:
    """An earlier boot. ``clean``: it ended with a shutdown; ``no_memory``: lines with NV_ERR_NO_MEMORY in its last
    hour; ``last``: how its journal ends."""

    ended_at: float
    clean: bool
    no_memory: int = 0
    last: tuple[str, ...] = ()


@dataclass(frozen=True)
class Difference:
    """``found`` is empty where there is nothing."""

    name: str
    planned: str
    found: str


@dataclass(frozen=True)
class Rank:
    """A process of a rank. ``opened``: RDMA devices that it holds open; ``may_open``: that it sees in /dev/infiniband.
    Of memlock: bytes, :data:`UNLIMITED` or :data:`NOT_KNOWN`."""

    service: str
    unit: str
    title: str
    memlock: int = NOT_KNOWN
    memlock_planned: int = NOT_KNOWN
    may_open: tuple[str, ...] = ()
    opened: tuple[str, ...] = ()
    environment: tuple[Difference, ...] = ()
    environment_known: bool = True
    over_rdma: bool = False  # it talks to ranks of other nodes, from a GPU, and the fabric has RDMA


@dataclass(frozen=True)
class Service:
    """A service that this node takes part in. The last fields are known on its head only."""

    instance: str
    unit: str
    model: str
    recipe: str = ""
    engine: str = ""
    version: str = ""
    runs: bool = False
    other_settings: bool = False  # the unit runs with another configuration than the plan's
    image: str = ""
    image_planned: str = ""  # id when it was planned
    image_named: str = ""  # id that its name leads to now
    image_running: str = ""  # id of the container that runs
    head: bool = False
    options: Mapping[str, str] = field(default_factory=dict)  # active, as the engine says itself
    ignored: tuple[Difference, ...] = ()  # options that are not as planned
    answered: bool = False
    seconds: float = 0
    answer: str = ""  # what was measured, or why there is none
    tokens_per_s: float = 0
    moved: Mapping[str, float] = field(default_factory=dict)  # bytes by RDMA device, meanwhile


@dataclass(frozen=True)
class Weights:
    """A model of the plan. ``state``: whole, broken, foreign (brought by others), missing or unseen."""

    name: str
    revision: str
    state: str
    found: str = ""


@dataclass(frozen=True)
class Gpu:
    """A matrix-vector product that reads memory for a second. ``reason``: why it was not measured."""

    gbs: float = 0
    reason: str = ""


@dataclass(frozen=True)
class Observation:
    host: str  # of the fabric fact; empty without one
    journal_read: bool = False
    lines: tuple[Lines, ...] = ()
    boots: tuple[Boot, ...] = ()
    uptime_s: float = 0
    days: float = 0  # that were looked at
    services: tuple[Service, ...] = ()
    ranks: tuple[Rank, ...] = ()
    weights: tuple[Weights, ...] = ()
    gpu: Gpu = Gpu()
    halves: tuple[str, ...] = ()  # RDMA devices of the fabric fact
    filters: tuple[str, ...] = ()  # what is wrong with the port filter
    problems: tuple[str, ...] = ()  # what could not be looked at, and why
    used_bytes: float = 0  # memory
    total_bytes: float = 0
    facts: Mapping[str, str] = field(default_factory=dict)  # kernel, driver, firmware … that have to be the same
    schema: int = SCHEMA

    def as_dict(self) -> dict[str, Any]:
        return dict(document.plain(self))


def load(values: Any, where: str) -> Observation:
    if isinstance(values, Mapping) and values.get("schema") != SCHEMA:
        raise SparkError(
            f"an observation of schema {str(values.get('schema'))[:20]!r}, expected {SCHEMA}", where, REMEDY
        )
    try:
        return document.load(Observation, values)  # type: ignore[no-any-return]
    except (TypeError, ValueError) as exc:
        raise SparkError(f"what was observed cannot be read: {exc}", where, REMEDY) from exc
