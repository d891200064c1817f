# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What the keeper works with."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import rank as engine_rank
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.report import Report, UnitReport
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import start_times
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.golden_check import Compared
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.model_socket import ModelSocket
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.prober import Prober
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.store import Before, Store


class Reach(Protocol):
    """A node: :class:`_keeper.peers.Here` or :class:`_keeper.peers.There`."""

    host: str

    def latest(self) -> tuple[bool, Report, str]: ...

    def act(self, action: str) -> str: ...

    def switch(self, action: str, told: str) -> str: ...


@dataclass
class Parts:
    """What the keeper works with; all of it is replaced by tests. The first of ``nodes`` is the head."""

    nodes: Sequence[Reach]
    addresses: Mapping[str, str]  # host -> address on the fabric
    prober: Prober
    metrics: Callable[[], str]
    ping: Callable[[str], bool | None]
    ray: Callable[[], str]  # what is wrong with the Ray cluster, or nothing
    taken: Callable[[], str]  # who listens where the engine is about to
    explain: Callable[[str, str], str]  # unit, invocation -> what its journal says
    store: Store
    boot: str
    shutting_down: Callable[[], bool]
    busy: Callable[[], bool] = lambda: False  # requests run that a gateway has sent
    start_ray: Callable[[], str] | None = None  # starts the head's part of Ray; None without Ray
    socket: ModelSocket = field(default_factory=lambda: ModelSocket(""))  # where clients ask for models by name
    # Begin anew, as the keeper of what is in place now; given what that is, which it then finds in ``placed``.
    again: Callable[[str], None] = lambda _placed: None
    placed: str = ""
    outlived: Callable[[], bool] = lambda: False  # its own unit is another one by now
    sleep: Callable[[float], None] = time.sleep
    idle: Callable[[float], None] | None = None  # the same, while it serves: ends when there is something to do
    step: Callable[[], None] = lambda: None  # told that the loop goes on
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    say: Callable[[str], object] = engine_rank.say
    settings: Callable[[], Mapping[str, str]] = dict  # that the ranks have to run with now, for people
    # What the engine says of its load, given the head's units as they run.
    told: Callable[[Mapping[str, UnitReport]], start_times.Told] = lambda _units: start_times.Told()
    # Of seconds, the loader that was used and bytes read, how fast the weights were read, in words.
    loaded: Callable[[float, str | None, int], str] = lambda _seconds, _used, _read: ""
    budget: int = 0
    weights: int = 0  # bytes that a rank reads, as the plan knows
    containers: bool = False  # that the ranks run in
    unit: str = "sparkmatrix-keeper"  # this keeper's own
    config: str = ""  # that runs; one that has not passed its trial yet is on trial
    before: Callable[[], Before | None] = lambda: None  # where this node could go back to it
    # Whether it is as good as when it was last good, asked beside the loop: None until that is known.
    compare: Callable[[], Compared | None] = Compared
