# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Requests that wait while their engine is away: in number, time and memory bounded, and sent when it answers.

An engine is away when it refuses or ends a connection before a byte of an answer, says 503 while a keeper is starting
it, or when its keeper lets it drain. It is back when the keeper says so later than that, or when it has answered one of
those that wait: now and then one of them is sent to see. The engine itself is not asked otherwise.

One that ends a connection and keeps its port open is not away: that concerns this one request.
What an engine worked on each time when it ended twice may be why. So these are sent again behind all others and one at
a time, and an end counts against one where nothing beside it is as likely.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import word
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.word import Word

LOOK_S = 0.25  # between two looks at the keeper's word, while somebody waits
TRY_S = 1.0  # between two that are sent to see
GO, LATE, NEVER = "go", "late", "never"  # why a wait ends: sent, after too long, or the engine does not come back


@dataclass
class Held:
    """All that wait, of all engines; one client has half of the places, or one. ``seconds``: 0: nobody does."""

    seconds: float = 0.0
    requests: int = 0
    size: int = 0  # bytes of their bodies
    now: int = 0
    now_bytes: int = 0
    total: int = 0
    gave_up: int = 0  # clients that left while they waited
    late: int = 0
    refused: int = 0  # for there were too many, or too large ones
    of: Counter[bytes] = field(default_factory=Counter)  # how many, by client
    bytes_of: Counter[bytes] = field(default_factory=Counter)

    def enter(self, size: int, client: bytes) -> bool:
        """Whether there was a place, which is had until an answer begins."""
        full = self.now >= self.requests or self.now_bytes + size > self.size
        half = self.of[client] >= self.requests // 2 or self.bytes_of[client] + size > self.size // 2
        if full or (half and self.of[client]):
            self.refused += 1
            return False
        self._count(1, size, client)
        self.total += 1
        return True

    def leave(self, size: int, client: bytes) -> None:
        self._count(-1, -size, client)

    def _count(self, one: int, size: int, client: bytes) -> None:
        self.now += one
        self.now_bytes += size
        self.of[client] += one
        self.bytes_of[client] += size


@dataclass
class Gate:
    """In front of one engine. ``read``: the keeper's word; ``opens``: whether somebody listens at its port.

    A request has a doubt: 0 where there is none that it is why the engine ends."""

    name: str
    read: Callable[[], Word]
    opens: Callable[[], Awaitable[bool]]
    say: Callable[[str], object] = lambda _line: None
    shut: bool = False
    since_ns: int = 0  # when it failed last
    try_at: float = 0.0
    shut_at: float = 0.0
    waiting: dict[asyncio.Future[str], int] = field(default_factory=dict)  # the doubt of each, in their order
    working: dict[object, int] = field(default_factory=dict)  # the doubt of each that is sent and has no answer yet
    left: bool = False  # another configuration has no such engine
    watcher: asyncio.Task[None] | None = None
    look: asyncio.Task[bool] | None = None

    def failed(self) -> None:
        now = time.monotonic()
        self.since_ns = time.time_ns()
        if not self.shut:
            self.shut, self.shut_at, self.try_at = True, now, now + LOOK_S
            self.say(f"{self.name} is away; requests wait for it")

    def works(self) -> None:
        if self.shut:
            self.shut = False
            self.say(f"{self.name} answers again after {time.monotonic() - self.shut_at:.1f} s")
            self.release(GO, doubtful=False)
        elif self.waiting:
            self._goes_on()

    def _goes_on(self) -> None:
        self.release(GO, doubtful=False)
        self._next()

    def _next(self) -> None:
        """The least doubtful, of these the one that has waited longest; no two in doubt at a time."""
        most = 0 if any(self.working.values()) else math.inf
        left = [waiter for waiter, doubt in self.waiting.items() if doubt <= most and not waiter.done()]
        if left:
            chosen = min(left, key=self.waiting.__getitem__)
            self.working[chosen] = self.waiting[chosen]  # until it is sent
            chosen.set_result(GO)

    def release(self, why: str, doubtful: bool = True) -> None:
        for waiter, doubt in self.waiting.items():
            if not waiter.done() and (doubtful or not doubt):
                waiter.set_result(why)

    def blames(self, one: object) -> bool:
        """Whether nothing beside ``one`` is as likely to be why the engine has ended."""
        doubt = self.working[one]
        return not any(beside or not doubt for other, beside in self.working.items() if other is not one)

    async def listens(self) -> bool:
        """Whether the engine lives, a moment after it ended a connection: one look for all that ask meanwhile."""
        if self.look is None or self.look.done():
            self.look = asyncio.get_running_loop().create_task(self._listens())
        return await asyncio.shield(self.look)

    async def _listens(self) -> bool:
        await asyncio.sleep(LOOK_S)
        return await self.opens()

    def leave(self) -> None:
        """For those that wait, and for those that are at the engine still."""
        self.left = True
        self.release(NEVER)

    @property
    def gone(self) -> bool:
        return self.left or self.read().phase in word.GONE

    @property
    def closed(self) -> bool:
        """Nothing is sent now; a keeper that lets the engine drain makes it so."""
        if not self.shut and self.read().draining:
            self.failed()
        return self.shut

    async def wait(self, seconds: float, doubt: int = 0) -> str:
        """For at most ``seconds``; :data:`GO`, :data:`LATE` or :data:`NEVER`."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[str] = loop.create_future()
        timer = loop.call_later(seconds, lambda: None if waiter.done() else waiter.set_result(LATE))
        self.waiting[waiter] = doubt
        if self.watcher is None or self.watcher.done():
            self.watcher = loop.create_task(self._watch())
        try:
            return await waiter
        finally:
            timer.cancel()
            self.waiting.pop(waiter, None)
            self.working.pop(waiter, None)

    async def _watch(self) -> None:
        while self.waiting:
            self._look(self.read(), time.monotonic())
            await asyncio.sleep(LOOK_S)

    def _look(self, told: Word, now: float) -> None:
        if told.phase in word.GONE:
            self.release(NEVER)
        elif not told.draining and not self.shut:
            self._goes_on()
        elif told.phase == word.SERVING and told.at_ns > self.since_ns:
            self.works()
        elif not told.draining and now >= self.try_at:
            self.try_at = now + TRY_S
            self._next()
