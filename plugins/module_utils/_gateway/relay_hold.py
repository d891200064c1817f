# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Requests that wait while their engine is away: in number, time and memory bounded, and sent when it answers.

An engine is away when it refuses or ends a connection before a byte of an answer, says 503 while its keeper does not
say that it serves, or when its keeper lets it drain. It is back when the keeper says so later than that, or when it has
answered one of those that wait: now and then one of them is sent to see. The engine itself is not asked otherwise.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import word
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.word import Word

LOOK_S = 0.25  # between two looks at the keeper's word, while somebody waits
TRY_S = 1.0  # between two that are sent to see
GO, LATE, NEVER = "go", "late", "never"  # why a wait ends: sent, after too long, or the engine does not come back


@dataclass
class Held:
    """All that wait, of all engines. ``seconds``: 0: nobody does."""

    seconds: float = 0.0
    requests: int = 0
    size: int = 0  # bytes of their bodies
    now: int = 0
    now_bytes: int = 0
    total: int = 0
    gave_up: int = 0  # clients that left while they waited
    late: int = 0
    refused: int = 0  # for there were too many, or too large ones

    def enter(self, size: int) -> bool:
        """Whether there was a place, which is had until an answer begins."""
        if self.now >= self.requests or self.now_bytes + size > self.size:
            self.refused += 1
            return False
        self.now += 1
        self.now_bytes += size
        self.total += 1
        return True

    def leave(self, size: int) -> None:
        self.now -= 1
        self.now_bytes -= size


@dataclass
class Gate:
    """In front of one engine. ``read``: the keeper's word."""

    name: str
    read: Callable[[], Word]
    say: Callable[[str], object] = lambda _line: None
    shut: bool = False
    since_ns: int = 0  # when it failed last
    try_at: float = 0.0
    shut_at: float = 0.0
    waiting: dict[asyncio.Future[str], None] = field(default_factory=dict)  # in their order
    watcher: asyncio.Task[None] | None = None

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
            self.release(GO)

    def release(self, why: str) -> None:
        for waiter in self.waiting:
            if not waiter.done():
                waiter.set_result(why)

    @property
    def draining(self) -> bool:
        return self.read().draining

    @property
    def gone(self) -> bool:
        return self.read().phase in word.GONE

    @property
    def closed(self) -> bool:
        """Nothing is sent now; a keeper that lets the engine drain makes it so."""
        if not self.shut and self.draining:
            self.failed()
        return self.shut

    async def wait(self, seconds: float) -> str:
        """For at most ``seconds``; :data:`GO`, :data:`LATE` or :data:`NEVER`."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[str] = loop.create_future()
        timer = loop.call_later(seconds, lambda: None if waiter.done() else waiter.set_result(LATE))
        self.waiting[waiter] = None
        if self.watcher is None or self.watcher.done():
            self.watcher = loop.create_task(self._watch())
        try:
            return await waiter
        finally:
            timer.cancel()
            self.waiting.pop(waiter, None)

    async def _watch(self) -> None:
        while self.waiting:
            self._look(self.read(), time.monotonic())
            await asyncio.sleep(LOOK_S)

    def _look(self, told: Word, now: float) -> None:
        if told.phase in word.GONE:
            self.release(NEVER)
        elif told.phase == word.SERVING and told.at_ns > self.since_ns:
            self.works()
        elif not told.draining and now >= self.try_at:
            self.try_at = now + TRY_S
            oldest = next((waiter for waiter in self.waiting if not waiter.done()), None)
            if oldest is not None:
                oldest.set_result(GO)
