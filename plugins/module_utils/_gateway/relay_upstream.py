# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The relay's side of an engine: one try to have it answer a request. What comes is kept back until it is an answer."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Protocol, cast

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import word
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import relay_http as http
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.relay_config import Served
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.relay_hold import Gate
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.relay_http import Body, Head
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.settings import socket_name

CONNECT_S = 5.0
# In which an engine that has answered 500 closes its port, where it is about to end: vLLM 0.32 took 2 s on a busy host.
DEATH_S = 8.0
SMALL = 262144  # bytes; an answer of known length, and what comes before the first token, is kept up to here
TAIL = 65536  # bytes of an event that has not ended
LIST_BYTES = 1048576
# Events before the first token: nothing that a client could not get a second time.
PRELUDE = (b":", b"event: ping", b"event: response.created", b"event: response.in_progress", b"event: message_start")
BROKEN = (b"event: error", b'data: {"error"', b'data: {"type": "error"', b'data: {"type":"error"')
_EVENT = re.compile(rb"\r?\n\r?\n")
# How sending it ended.
DONE, AWAY, DIED, BROKE, KEY = "done", "away", "died", "broke", "key"


async def fetch(one: Served, path: str) -> tuple[Head, bytes]:
    """A small answer. Raises :class:`OSError` or :class:`ValueError`."""
    reader, writer = await asyncio.open_connection(one.host, one.port, limit=http.MAX_HEAD)
    try:
        writer.write(http.written(b"GET %b HTTP/1.1" % path.encode(), own_fields(one)))
        try:
            head = http.answer_head((await reader.readuntil(http.END))[: -len(http.END)])
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as exc:
            raise ValueError("no head of an answer") from exc
        body, text = Body(head, b"GET"), b""
        while not body.done:
            data = await reader.read(65536)
            text += body.feed(data)
            if len(text) > LIST_BYTES:
                raise ValueError("more than a list of models")
            if not data:
                if body.open_end:
                    break
                raise ValueError("the answer is not whole")
        return head, text
    finally:
        writer.close()


async def opens(one: Served) -> bool:
    """Whether somebody listens at its port."""
    try:
        _reader, writer = await asyncio.wait_for(asyncio.open_connection(one.host, one.port), CONNECT_S)
    except (OSError, asyncio.TimeoutError):
        return False
    writer.close()
    return True


def own_fields(one: Served) -> http.Fields:
    fields = ((b"Host", socket_name(one.host, one.port).encode()), (b"Connection", b"close"))
    return (*fields, (b"Authorization", f"Bearer {one.key}".encode())) if one.key else fields


class Asker(Protocol):
    """The request, and the way back to who has sent it."""

    head: Head | None
    body: bytes
    paused: bool
    transport: asyncio.Transport

    @property
    def doubt(self) -> int: ...

    @property
    def holds(self) -> bool: ...

    @property
    def probes(self) -> bool: ...

    def begins(self, head: Head, payload: bytes, *framing: tuple[bytes, bytes]) -> None: ...

    def ends(self) -> None: ...


class Upstream(asyncio.Protocol):
    """One try to have an engine answer a request."""

    def __init__(self, exchange: Asker, gate: Gate) -> None:
        self.exchange, self.gate = exchange, gate
        self.blamed = False  # the engine may have ended because of this request
        self.result: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.buffer = b""
        self.head: Head | None = None
        self.body: Body | None = None
        self.events = False  # a stream of events
        self.whole = False  # passed on when it is whole
        self.doubtful = False  # what an engine answers that is about to end
        self.kept = b""  # what has come and is not passed on
        self.begun = False
        self.framed = False  # passed on in chunks
        self.transport: asyncio.Transport | None = None

    async def ended(self, one: Served) -> str:
        loop = asyncio.get_running_loop()
        self.gate.working[self] = self.exchange.doubt
        try:
            try:
                await asyncio.wait_for(loop.create_connection(lambda: self, one.host, one.port), CONNECT_S)
            except (OSError, asyncio.TimeoutError):
                return AWAY
            self._send(one)
            how = await self.result
            if self.doubtful and how == DONE and not self.begun:
                how = await self._doubted()
            return how
        finally:
            self.result.cancel()  # whatever is still to come is nobody's
            self.gate.working.pop(self, None)
            if self.transport is not None:
                self.transport.abort()

    def _send(self, one: Served) -> None:
        head = cast(Head, self.exchange.head)
        asked = tuple(
            (name, value) for name, value in head.passed if name.lower() not in (b"authorization", b"x-api-key")
        )
        body = self.exchange.body
        length = ((b"Content-Length", b"%d" % len(body)),) if body or head.method != b"GET" else ()
        first = b"%b %b HTTP/1.1" % (head.method, head.target)
        if self.transport is not None:
            self.transport.write(http.written(first, (*own_fields(one), *asked, *length)))
            if body:
                self.transport.write(body)

    async def _doubted(self) -> str:
        """An error of an engine that goes on is its answer; one that closes its port has ended."""
        if self.exchange.probes:
            return self._passed()
        until = time.monotonic() + DEATH_S
        while time.monotonic() < until:
            if not await self.gate.listens():
                return DIED
        return self._passed()

    def _passed(self) -> str:
        """What was kept back, for whoever asked."""
        self._begin(self.kept, len(self.kept))
        self.exchange.ends()
        return DONE

    def pause(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    # -- the side of the engine

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.result.done():
            return
        if self.body is not None and self.body.open_end and exc is None and not self.events:
            self._finish()
        elif self.begun or (self.whole and self.kept and not self.doubtful):
            self._end(BROKE)
        else:
            self._end(DIED)

    def _end(self, how: str) -> None:
        if not self.result.done():
            self.blamed = not self.begun and self.gate.blames(self)
            self.result.set_result(how)

    def data_received(self, data: bytes) -> None:
        if self.result.done():
            return
        try:
            if self.body is None:
                data = self._heads(data)
            if self.body is not None and not self.result.done():
                self._payload(self.body.feed(data))
                if self.body.done:
                    self._finish()
        except ValueError as exc:
            self.gate.say(f"{self.gate.name} answered what is no HTTP: {exc}")
            self._end(BROKE if self.begun else DIED)

    def _heads(self, data: bytes) -> bytes:
        """Up to the head of the answer; what is behind it."""
        self.buffer += data
        while True:
            end = self.buffer.find(http.END)
            if end < 0:
                if len(self.buffer) > http.MAX_HEAD:
                    raise ValueError("a head that does not end")
                return b""
            head, self.buffer = http.answer_head(self.buffer[:end]), self.buffer[end + len(http.END) :]
            if head.status >= 200:
                break
        rest, self.buffer = self.buffer, b""
        if head.status == 503 and self.exchange.holds and self.gate.read().phase not in (word.SERVING, ""):
            self._end(AWAY)
        elif head.status == 401:
            self._end(KEY)
        else:
            self.head, self.body = head, Body(head, cast(Head, self.exchange.head).method)
            self.events = head.get(b"content-type").lower().startswith(b"text/event-stream")
            self.doubtful = head.status == 500 and self.exchange.holds
            self.whole = not self.events and not self.body.open_end and (head.length or 0) <= SMALL
            self.whole = (self.whole and not self.body.chunked) or self.doubtful
        return rest

    def _payload(self, payload: bytes) -> None:
        if not payload:
            return
        if self.whole:
            self.kept += payload
            if len(self.kept) > SMALL:
                self.whole = self.doubtful = False
                payload, self.kept = self.kept, b""
            else:
                return
        if self.events:
            payload = self._events(payload)
            if not payload:
                return
        if self.begun:
            self.exchange.transport.write(http.chunk(payload) if self.framed else payload)
        else:
            self._begin(payload, None)

    def _events(self, payload: bytes) -> bytes:
        """Whole events only, so that an error can follow; from the first on that is more than a prelude."""
        if self.kept:
            payload, self.kept = self.kept + payload, b""
        if not payload.endswith((b"\n\n", b"\r\n\r\n")):
            end = max(
                (payload.rfind(mark) + len(mark) for mark in (b"\n\n", b"\r\n\r\n") if mark in payload), default=0
            )
            payload, self.kept = payload[:end], payload[end:]
            if len(self.kept) > TAIL:
                payload, self.kept = payload + self.kept, b""
        if payload and not self.begun:
            first = next((event for event in _EVENT.split(payload) if event and not event.startswith(PRELUDE)), b"")
            self.whole = self.doubtful = self.exchange.holds and first.startswith(BROKEN)
            if self.doubtful or (not first and len(payload) <= SMALL):
                self.kept = payload + self.kept
                return b""
        return payload

    def _begin(self, payload: bytes, length: int | None) -> None:
        head, body = cast(Head, self.head), cast(Body, self.body)
        self.begun = True
        self.gate.working.pop(self, None)
        self.gate.works()
        self.framed = length is None and not body.none and (body.chunked or body.open_end)
        if length is None:
            length = head.length
        if self.framed:
            framed = http.chunk(payload) if payload else b""
            self.exchange.begins(head, framed, (b"Transfer-Encoding", b"chunked"))
        elif length is not None:
            self.exchange.begins(head, payload, (b"Content-Length", b"%d" % length))
        else:
            self.exchange.begins(head, payload)
        if self.exchange.paused:
            self.pause()

    def _finish(self) -> None:
        """All of it is there."""
        if self.doubtful:
            self._end(DONE)  # passed on by :meth:`_doubted`, or not
            return
        if self.whole and self.kept:
            self._passed()
        else:
            if not self.begun:
                self._begin(b"", None)
            if self.kept:
                self.exchange.transport.write(http.chunk(self.kept) if self.framed else self.kept)
            if self.framed:
                self.exchange.transport.write(b"0\r\n\r\n")
            self.exchange.ends()
        self._end(DONE)
