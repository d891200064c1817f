# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""An engine of raw sockets that does what a test says, and a relay before it, in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import relay as r

Writer = asyncio.StreamWriter
CHAT = "/v1/chat/completions"


def head(status: str = "200 OK", *fields: str) -> bytes:
    return "\r\n".join((f"HTTP/1.1 {status}", *fields, "", "")).encode()


STREAM = head("200 OK", "Content-Type: text/event-stream; charset=utf-8", "Transfer-Encoding: chunked")


def chunk(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return b"%x\r\n%b\r\n" % (len(data), data)


def token(number: int) -> str:
    return f'data: {{"choices": [{{"index": 0, "delta": {{"content": "w{number} "}}}}]}}\n\n'


def answer(document: Any, status: str = "200 OK") -> bytes:
    text = json.dumps(document)
    return head(status, "Content-Type: application/json", f"Content-Length: {len(text)}") + text.encode()


@dataclass
class Request:
    line: str
    fields: dict[str, str]
    body: bytes


Does = Callable[[Request, Writer], Awaitable[None]]


@dataclass
class Engine:
    """``does`` is given each request and where to write; the connection is closed behind it."""

    does: Does
    port: int = 0
    seen: list[Request] = field(default_factory=list)
    server: asyncio.AbstractServer | None = None
    writers: set[Writer] = field(default_factory=set)
    tasks: set[Any] = field(default_factory=set)

    async def start(self) -> Engine:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def kill(self) -> None:
        """As a process that ends: its port and its connections are gone at once."""
        if self.server:
            self.server.close()
        for writer in list(self.writers):
            writer.transport.abort()
        for task in list(self.tasks):
            task.cancel()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        self.writers.add(writer)
        self.tasks.add(asyncio.current_task())
        try:
            text = (await reader.readuntil(b"\r\n\r\n")).decode()
            line, *lines = text.strip().split("\r\n")
            fields = dict(one.lower().split(": ", 1) if ": " in one else (one, "") for one in lines)
            body = await reader.readexactly(int(fields.get("content-length", "0")))
            request = Request(line, fields, body)
            self.seen.append(request)
            await self.does(request, writer)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.tasks.discard(asyncio.current_task())
            self.writers.discard(writer)
            writer.close()


@dataclass
class Answer:
    status: int
    fields: dict[str, str]
    body: bytes
    whole: bool  # it ended as it said

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])


@dataclass
class House:
    relay: r.Relay
    place: str
    said: list[str]

    async def ask(self, path: str = CHAT, body: Any = None, method: str = "", **fields: str) -> Answer:
        reader, writer = await self.connect(path, body, method, **fields)
        try:
            return await read(reader)
        finally:
            writer.close()

    async def connect(
        self, path: str = CHAT, body: Any = None, method: str = "", **fields: str
    ) -> tuple[asyncio.StreamReader, Writer]:
        content = body if isinstance(body, bytes) else json.dumps(body or {"model": "tiny"}).encode()
        if path.startswith("/v1/models") or path.startswith("/."):
            content = b""
        reader, writer = await asyncio.open_unix_connection(self.place)
        lines = {"Host": "gateway", "Content-Length": str(len(content)), **fields}
        verb = method or ("POST" if content else "GET")
        writer.write(
            f"{verb} {path} HTTP/1.1\r\n".encode()
            + "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items()).encode()
            + b"\r\n"
            + content
        )
        return reader, writer


async def read(reader: asyncio.StreamReader) -> Answer:
    text = (await reader.readuntil(b"\r\n\r\n")).decode()
    line, *lines = text.strip().split("\r\n")
    fields = {name.lower(): value for name, value in (one.split(": ", 1) for one in lines)}
    status, body = int(line.split()[1]), b""
    if fields.get("transfer-encoding") == "chunked":
        while True:
            size = await reader.readline()
            if not size:
                return Answer(status, fields, body, False)
            count = int(size, 16)
            data = await reader.readexactly(count + 2)
            if count == 0:
                return Answer(status, fields, body, True)
            body += data[:-2]
    body = await reader.read(-1)
    return Answer(status, fields, body, len(body) == int(fields.get("content-length", len(body))))


async def until(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not fact():
            await asyncio.sleep(0.01)


def served(engine: Engine, name: str = "chat", model: str = "tiny", **more: Any) -> r.Served:
    return r.Served(name, model, "127.0.0.1", engine.port, key="key-of-the-engine", **more)


@contextlib.asynccontextmanager
async def house(tmp: Path, *engines: r.Served, **settings: Any) -> AsyncIterator[House]:
    said: list[str] = []
    settings.setdefault("hold_s", 5)
    relay = r.Relay(r.Config(engines, **settings), said.append, str(tmp))
    place = str(tmp / "relay.sock")
    server = await asyncio.get_running_loop().create_unix_server(lambda: r.Exchange(relay), place)
    try:
        yield House(relay, place, said)
    finally:
        server.close()
        for exchange in list(relay.open):
            exchange.transport.abort()
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def relayed(tmp: Path, does: Does, **settings: Any) -> AsyncIterator[tuple[Engine, House]]:
    engine = await Engine(does).start()
    async with house(tmp, served(engine), **settings) as at:
        yield engine, at
