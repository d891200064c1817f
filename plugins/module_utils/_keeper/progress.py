# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""How far a load is: by the engine's own words (:mod:`_keeper.start_times`), and where it has none by what each rank
has read and written (:mod:`_engine.rank_processes`). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import how_far
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.report import UnitReport
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.store import Progress

GIB = 2**30
MANY = 3  # ranks, of which the slowest is told
# In their order, and when that is, for people.
STAGES = {
    "start": "while its processes started",
    "fetch": "while the model was fetched",
    "read": "while weights were read",
    "warm": "in the warm-up, after all weights were read",
}
SAID = {"start": "starts its processes", "warm": "has its weights, compiles and warms up"}
# What is so, by the last telling line in the head's journal: of the head, and of the other nodes.
_SO = {"start": ("start", "start"), "loaded": ("warm", ""), "warm": ("warm", "warm")}
MOVED = 64 * 2**20  # bytes; less than that are logs and Python's own files
STILL_S = 30.0  # without that much, nothing is being read or written
# Of the weights, after which a rank that reads no more has them: what came from the page cache may be missing.
NEARLY = 0.9
# A rank reads about this much of Python and CUDA: beside smaller weights its figure says nothing, and before it has
# read more nothing is said of its speed and the time that is left.
NOISE = 4 * GIB


@dataclass
class Rank:
    """One node's. ``weights``: bytes that it has to read by the plan, 0: unknown. ``stage``: by what it moves, fetch,
    read or warm; ``said``: by the engine's words, start or warm, empty where these say nothing."""

    host: str
    weights: int = 0
    read: int = 0
    written: int = 0
    seen: bool = False
    stage: str = "read"
    said: str = ""
    before: int = 0  # what it had read before it began with its weights: a download is read from the network
    marks: tuple[int, int] = (0, 0)
    moved_at: float = 0.0
    began: tuple[float, int] = (0.0, 0)  # since when its speed says something, and what it had read

    def see(self, now: float, read: int, written: int) -> None:
        if not self.seen or read < self.read or written < self.written:
            # Another process reads now: what it had read and written before anybody looked is no movement.
            self.seen, self.stage, self.before = True, "read", 0
            self.marks, self.moved_at, self.began = (read, written), now, (now, read)
        self.read, self.written = read, written
        wrote, moved = written - self.marks[1] >= MOVED, read - self.marks[0] >= MOVED
        if wrote or moved:
            self.marks, self.moved_at = (read, written), now
        # What is written after all weights have been read are caches of compiled code.
        if wrote and self.stage != "warm":
            self.stage, self.before = "fetch", read
        elif moved and self.stage == "fetch":
            self.stage = "read"
        if self.stage == "read" and self.weights >= NOISE and self.own >= NEARLY * self.weights:
            self.stage = "warm"
        if self.own < NOISE:
            self.began = (now, read)

    @property
    def does(self) -> str:
        return self.said or self.stage

    @property
    def known(self) -> bool:
        return self.seen or bool(self.said)

    @property
    def own(self) -> int:
        """Of its weights."""
        return self.read - self.before

    @property
    def rate(self) -> float:
        """Bytes per second, as long as it read."""
        at, read = self.began
        return (self.read - read) / (self.moved_at - at) if self.moved_at > at else 0.0

    def words(self, now: float) -> str:
        if self.said:
            return f"{self.host} {SAID[self.said]}"
        still = now - self.moved_at
        rate = self.rate if still < STILL_S else 0.0
        if self.stage == "fetch":
            text = f"{self.host} fetches the model, {self.written / how_far.GB:.1f} GB written"
        elif self.stage == "warm":
            return f"{self.host} read {how_far.words(self.own, self.weights)}, warms up"
        elif self.weights >= NOISE:
            text = f"{self.host} read {how_far.words(self.own, self.weights, rate)}"
        else:
            return f"{self.host} read {self.own / how_far.GB:.1f} GB"
        return f"{text}, no more for {still:.0f} s" if still >= STILL_S else text


def see(ranks: Mapping[str, Rank], now: float, reports: Mapping[str, Mapping[str, UnitReport]]) -> None:
    """``reports``: the units of each host, as :meth:`_engine.rank.Node.report` has them."""
    for host, units in reports.items():
        figures = [unit for unit in units.values() if unit.counted]
        if host in ranks and figures:
            most = max(figures, key=lambda unit: unit.read)
            ranks[host].see(now, most.read, most.written)


def hear(ranks: Sequence[Rank], stage: str) -> None:
    """``stage``: of :class:`_keeper.start_times.Told`. The first rank is the head's."""
    of_head, of_others = _SO.get(stage, ("", ""))
    for rank in ranks:
        rank.said = of_head if rank is ranks[0] else of_others


def words(ranks: Sequence[Rank], now: float) -> str:
    """Of the ranks of which something is known, of many the slowest; empty where there are none."""
    seen = [rank for rank in ranks if rank.known]
    if len(seen) < MANY:
        return ", ".join(rank.words(now) for rank in seen)
    last = min(seen, key=lambda rank: ([*STAGES].index(rank.does), rank.own))
    return f"the slowest of {len(seen)}: {last.words(now)}"


def stage(ranks: Sequence[Rank]) -> str:
    """What the slowest one does, for people."""
    does = {rank.does for rank in ranks if rank.known}
    return next((when for name, when in STAGES.items() if name in does), "")


def told(ranks: Sequence[Rank]) -> tuple[Progress, ...]:
    return tuple(Progress(rank.host, rank.does, rank.own, rank.written, rank.weights) for rank in ranks if rank.known)
