# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""``sparkmatrix-node relay``: what stands between nginx and the engines on the head.

nginx has keys, limits, paths and whole requests; this leads a request to the engine of its model, lets it wait while
that one is away, and ends a stream that broke with an error of the API. A request is sent again for as long as not one
byte of an answer's body has come, and never after. Nothing of it is written anywhere.

One connection is one request, on both sides: none is ever sent on a connection that an engine is about to close.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, cast

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import api_paths, json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.systemd import notify
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import word
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import relay_body, relay_named
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import relay_hold as hold
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import relay_http as http
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.names import (
    CLIENT,
    HELD,
    PROBE,
    RELAY_CONFIG,
    RELAY_STATUS,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.relay_config import (
    Config,
    Served,
    read_config,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.relay_hold import Gate, Held
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.relay_http import Head
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.relay_named import Named
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.relay_upstream import (
    BROKE,
    DIED,
    DONE,
    KEY,
    Upstream,
    fetch,
    opens,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.status import Relayed

HELP = "lead requests of the gateway to the engines, and let them wait while one is away"
LIST_S = 10.0  # for a list of models
READ_S = 60.0  # for a request, of which nginx has all before it sends any
BEAT_S = 10.0
BACKLOG = 4096
SENT = 3  # a request that was alone so often when an engine ended in its work is not given to it again
HELD_REQUESTS = 512

UNAVAILABLE = (
    "The engine does not answer: it is starting, stopped or has failed. Try again in a minute; on the head, systemctl"
    " status sparkmatrix-engine says more."
)
ENDED = "The engine ended in the middle of this answer, which is not whole. Send the request again."
POISON = (
    f"The engine has ended, or has closed the connection, {SENT} times while it worked on this request, which is not"
    " given to it again. On the head, sparkmatrix logs says why."
)
NOT_STARTED = (
    "This model did not start, and another one is loaded. On the head, sparkmatrix status says why; in half an hour it"
    " is tried again."
)
BOUND = "This model is not loaded, and your key may have none loaded. GET /v1/models tells which one is."
FAILED = "The gateway failed at this request. On the head, journalctl -u sparkmatrix-relay says why."
WRONG_KEY = (
    "The engine refused the key of this gateway; yours is right. Run the layer gateway again, which reads the key of"
    " the engine anew."
)


@dataclass
class Counts:
    requests: int = 0
    sent_again: int = 0
    broken: int = 0


class Relay:
    """``root`` is replaced by tests."""

    def __init__(self, config: Config, say: Callable[[str], object], root: str = "/") -> None:
        self.say, self.root = say, root
        self.held = Held(requests=HELD_REQUESTS)
        self.counts = Counts()
        self.open: set[Exchange] = set()
        self.gates: list[tuple[Served, Gate]] = []
        self.known: dict[str, list[Any]] = {}  # the last list of models of each engine
        self.named = Named(root)
        self.reading: asyncio.Lock | None = None
        self.config = config
        self.take(config)

    def take(self, config: Config) -> None:
        """Another configuration: answers go on, and so does the wait for an engine that stays."""
        before, self.config, self.gates = {(one.host, one.port): gate for one, gate in self.gates}, config, []
        self.held.seconds, self.held.size = config.hold_s, config.hold_mib * 2**20
        for one in config.engines:
            gate = before.pop((one.host, one.port), None)
            read = functools.partial(word.read, word.path(one.service, self.root))
            self.gates.append((one, gate or Gate(one.name, read, functools.partial(opens, one), self.say)))
        for left in before.values():
            left.leave()

    async def turn(self) -> None:
        """One piece of one body for each turn of the event loop, however many are read."""
        if self.reading is None:  # Python 3.9 binds one to the loop that there is when it is made
            self.reading = asyncio.Lock()
        async with self.reading:
            await asyncio.sleep(0)

    def status(self) -> dict[str, Any]:
        held, counts = self.held, self.counts
        found = Relayed(self.config.mark, held.now, held.now_bytes, held.total, held.gave_up, held.late, held.refused)
        return vars(replace(found, open=len(self.open), **vars(counts)))

    async def lists(self) -> list[tuple[Served, Gate, list[Any] | Head | None]]:
        """Of all engines, see :meth:`models_of`."""
        gates = list(self.gates)
        told = await asyncio.gather(*(self.models_of(one) for one, _gate in gates))
        return [(one, gate, found) for (one, gate), found in zip(gates, told)]

    async def models_of(self, one: Served) -> list[Any] | Head | None:
        """The list of an engine's models; the head of another answer, None where there is none."""
        try:
            head, text = await asyncio.wait_for(fetch(one, api_paths.MODELS), LIST_S)
        except (OSError, ValueError, asyncio.TimeoutError):
            return None
        if head.status != 200:
            return head
        try:
            found = listed(text)
        except SparkError as exc:
            self.say(f"{one.name} answered no list of models: {exc}")
            return None
        self.known[one.name] = found
        return found


def listed(text: bytes) -> list[Any]:
    """The models of an engine's answer."""
    return [entry for entry in json_text.entries(json_text.mapping(text), "data") if isinstance(entry.get("id"), str)]


class RefusedError(Exception):
    """The relay's own answer. ``again``: whether a client may try it by itself."""

    def __init__(self, status: int, message: str, code: str, param: str | None = None, again: bool = True) -> None:
        super().__init__(message)
        self.status, self.code, self.param, self.again = status, code, param, again

    def text(self, path: str) -> str:
        """As the API of ``path`` calls it."""
        kind = "permission_error" if self.status == 403 else "invalid_request_error"
        if self.status >= 500:
            kind = "api_error" if path.startswith(api_paths.MESSAGES) else "server_error"
        return http.error(str(self), kind, self.code, self.param)


def unavailable() -> RefusedError:
    return RefusedError(503, UNAVAILABLE, "engine_unavailable")


class Exchange(asyncio.Protocol):
    """One request of nginx, and its answer."""

    def __init__(self, relay: Relay) -> None:
        self.relay = relay
        self.parts: list[bytes] = []
        self.size = 0  # of the parts
        self.length = 0  # of the body
        self.head: Head | None = None
        self.body = b""
        self.task: asyncio.Task[None] | None = None
        self.upstream: Upstream | None = None
        self.began_s = 0.0  # of its wait
        self.waited = False
        self.place = False  # it has a place among those that wait
        self.deaths = 0  # of engines while it was in their work: of those with company, the first two
        self.model = ""  # that it names, where several take each other's place
        self.told = ""  # the model that the keeper is told of for it
        self.paused = False

    # -- the side of nginx

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.relay.open.add(self)
        self.timer = asyncio.get_running_loop().call_later(READ_S, self.transport.abort)

    def connection_lost(self, _exc: Exception | None) -> None:
        self.relay.open.discard(self)
        self.timer.cancel()
        self.relay.held.gave_up += self.place
        self._leave()
        if self.told:
            self.relay.named.leave(self.told)
        if self.task is not None:
            self.task.cancel()

    def pause_writing(self) -> None:
        self.paused = True
        if self.upstream is not None:
            self.upstream.pause()

    def resume_writing(self) -> None:
        self.paused = False
        if self.upstream is not None:
            self.upstream.resume()

    def data_received(self, data: bytes) -> None:
        if self.task is not None:
            return
        self.parts.append(data)
        self.size += len(data)
        if self.head is None:
            text = b"".join(self.parts)
            end = text.find(http.END)
            if end < 0 and len(text) <= http.MAX_HEAD:
                self.parts = [text]
                return
            try:
                self.head = http.request_head(text[:end])
                self.length = self.head.length or 0
                if self.head.chunked:
                    raise ValueError("a request in chunks")
            except ValueError as exc:
                self._begin(self._refuse(RefusedError(400, f"This is no request: {exc}.", "invalid_request")))
                return
            self.parts, self.size = [text[end + len(http.END) :]], len(text) - end - len(http.END)
            if self.length > self.relay.config.max_request_mib * 2**20:
                self._begin(self._refuse(RefusedError(413, "The request is too large.", "request_too_large")))
                return
        if self.size >= self.length:
            self.body, self.parts = b"".join(self.parts)[: self.length], []
            self._begin(self._answered())

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self.timer.cancel()
        self.task = asyncio.get_running_loop().create_task(work)

    # -- which engine

    @property
    def path(self) -> str:
        if self.head is None:  # it could not be read
            return ""
        return self.head.target.partition(b"?")[0].decode("ascii")

    @property
    def client(self) -> bytes:
        return cast(Head, self.head).get(CLIENT.lower().encode())

    @property
    def probes(self) -> bool:
        """Of the cluster itself, which wants to know how it is now."""
        return self.client == PROBE.encode()

    @property
    def doubt(self) -> int:
        """See :class:`Gate`. Once is chance: whoever was in the work of an engine that ended is sent again with all."""
        return max(self.deaths - 1, 0)

    @property
    def holds(self) -> bool:
        return self.relay.held.seconds > 0 and not self.probes

    async def _answered(self) -> None:
        try:
            if self.path == RELAY_STATUS:
                self.says(200, json.dumps(self.relay.status()))
                return
            self.relay.counts.requests += 1
            if self.path == api_paths.MODELS:
                await self._models()
                return
            one, gate = await self._meant()
            if self.path in one.refusals:
                raise RefusedError(404, one.refusals[self.path], "wrong_task", "model")
            if self.path in one.salted:
                await self.relay.turn()
                self.body = http.salted(self.body, self.relay.config.salt, self.client)
            await self._carried(one, gate)
        except RefusedError as exc:
            await self._refuse(exc)
        except Exception as exc:  # one request does not end those of others
            self.relay.say(f"A request failed within the relay: {type(exc).__name__} ({exc})")
            await self._refuse(RefusedError(500, FAILED, "relay_failed"))

    async def _meant(self) -> tuple[Served, Gate]:
        gates = self.relay.gates
        one, gate = gates[0]
        alone = len(gates) == 1
        if alone and not one.named:
            return one, gate
        try:
            model = await relay_body.model(self.body, self.relay.turn)
        except ValueError as exc:
            if alone:  # the engine says so itself
                return one, gate
            raise RefusedError(
                400,
                f"The request cannot be read ({exc}). Several models are served here, and which one is meant stands in"
                " its model.",
                "invalid_json",
            ) from exc
        if not alone:
            names = ", ".join(known.model for known, _gate in gates)
            if model is None:
                said = f"Several models are served here: name one in model. There are {names}."
                raise RefusedError(400, said, "model_required", "model")
            planned = next((found for found in gates if found[0].model == model), None)
            one, gate = planned or await self._adapter(model, names)
        if one.named and model and not self.probes:
            self.model = model
        return one, gate

    async def _adapter(self, model: str, names: str) -> tuple[Served, Gate]:
        """A name that is not in the plan may be an adapter's, which the engines list themselves."""
        told = await self.relay.lists()
        having = [
            (one, gate)
            for one, gate, _found in told
            if any(entry.get("id") == model for entry in self.relay.known.get(one.name, []))
        ]
        if len(having) == 1:
            return having[0]
        if having:
            services = " and ".join(one.name for one, _gate in having)
            said = (
                f"{services} each have a model `{model}`, so nobody knows which is meant. Whoever runs this cluster can"
                " give one of them another name."
            )
            raise RefusedError(400, said, "model_ambiguous", "model")
        if not all(isinstance(found, list) for _one, _gate, found in told):
            raise unavailable()
        said = f"The model `{model}` does not exist. GET /v1/models lists those that do: {names}."
        raise RefusedError(404, said, "model_not_found", "model")

    async def _models(self) -> None:
        """Of all engines. One that is away and comes back is listed as it was last."""
        told = await self.relay.lists()
        entries: list[Any] = []
        at_hand = self.relay.named.listed() if told[0][0].named else []
        answered = bool(at_hand)
        for one, gate, found in told:
            if isinstance(found, Head) and found.status == 401 and len(told) == 1:
                raise RefusedError(502, WRONG_KEY, "gateway_misconfigured")
            if isinstance(found, list):
                entries += found
            elif self.holds and not gate.gone and not at_hand:
                alone = {"id": one.model, "object": "model", "created": 0, "owned_by": "sparkmatrix"}
                entries += self.relay.known.get(one.name) or [alone]
            else:
                continue
            answered = True
        if not answered:
            raise unavailable()
        loaded = {entry.get("id"): entry for entry in entries}
        entries = [{**entry, **loaded.pop(entry["id"], {})} for entry in at_hand] + list(loaded.values())
        self.says(200, json.dumps({"object": "list", "data": entries}))

    # -- there and back

    async def _carried(self, one: Served, gate: Gate) -> None:
        deadline = math.inf
        while True:
            if self.model:
                deadline = await self._turn(gate, deadline)
            if self.holds and deadline == math.inf and gate.closed:
                deadline = await self._waited(gate, deadline)
                continue
            self.upstream = Upstream(self, gate)
            how = await self.upstream.ended(one)
            if how == DONE:
                return
            if how == KEY:
                raise RefusedError(502, WRONG_KEY, "gateway_misconfigured")
            if how == BROKE:
                self.relay.counts.broken += 1
                raise RefusedError(502, ENDED, "engine_died")
            lives = how == DIED and await gate.listens()
            if not lives:
                gate.failed()
            if lives or (how == DIED and self.upstream.blamed):
                self.deaths = max(self.deaths, 1) + 1
            elif how == DIED and self.deaths < 2:
                self.deaths += 1
            if self.deaths > SENT:
                raise RefusedError(502, POISON, "engine_died", again=False)
            deadline = await self._waited(gate, deadline)
            self.relay.counts.sent_again += 1

    async def _waited(self, gate: Gate, deadline: float) -> float:
        """Until the engine is back; returns when that would be too late, and raises :class:`RefusedError` then."""
        if not self.holds or gate.gone:
            raise unavailable()
        deadline = self._enter(deadline)
        how = await gate.wait(max(deadline - time.monotonic(), 0.0), self.doubt)
        if how != hold.GO:
            self.relay.held.late += how == hold.LATE
            raise unavailable()
        return deadline

    def _enter(self, deadline: float) -> float:
        """A place among those that wait, until when."""
        held = self.relay.held
        if self.waited:
            return deadline
        if not held.enter(len(self.body), self.client):
            raise unavailable()
        self.waited = self.place = True
        self.began_s = time.monotonic()
        return self.began_s + held.seconds

    async def _turn(self, gate: Gate, deadline: float) -> float:
        """Until its model is the one that is loaded; raises :class:`RefusedError` where that will not be in time."""
        named, bound = self.relay.named, self.client.decode() in self.relay.config.bound
        while True:
            told = named.of(self.model)
            if told.state == word.UNKNOWN:
                await self._adapter(self.model, ", ".join(str(entry.get("id")) for entry in named.listed()))
                self.model = ""
                return deadline
            if told.state == word.BROKEN:
                raise RefusedError(503, NOT_STARTED, "model_broken", "model", again=False)
            if bound and told.state in (word.QUEUED, word.ABSENT):
                raise RefusedError(403, BOUND, "model_not_loaded", "model")
            if not self.told and not (bound and told.state != word.SERVING):
                self.told = self.model
                named.enter(self.model)
            if told.state == word.SERVING:
                return deadline
            if gate.gone:
                raise unavailable()
            left = min(deadline - time.monotonic(), self.relay.held.seconds) if self.holds else 0.0
            if left <= (0.0 if self.waited else told.seconds or 0.0):
                self.relay.held.late += self.waited
                when = f"in {told.seconds:.0f} s" if told.seconds else "later"
                raise RefusedError(503, f"This model is not loaded. Ask again {when}.", "model_not_loaded", "model")
            deadline = self._enter(deadline)
            await asyncio.sleep(relay_named.LOOK_S)

    def _leave(self) -> None:
        if self.place:
            self.place = False
            self.relay.held.leave(len(self.body), self.client)

    # -- answering

    def says(self, status: int, text: str, again: bool = True) -> None:
        """The relay's own answer."""
        content = text.encode()
        fields = [(b"Content-Type", b"application/json"), (b"Content-Length", b"%d" % len(content))]
        if status == 503:
            fields.append((b"Retry-After", b"30"))
        if not again:
            fields.append((b"X-Should-Retry", b"false"))  # which OpenAI's and Anthropic's clients heed
        self.begins(Head(tuple(fields), status=status), content, fields[1])
        self.ends()

    async def _refuse(self, exc: RefusedError) -> None:
        upstream = self.upstream
        if upstream is None or not upstream.begun:
            self.says(exc.status, exc.text(self.path), exc.again)
            return
        if upstream.events and upstream.framed:
            self.transport.write(http.chunk(http.error_event(self.path, exc.text(self.path))))
        self.transport.close()  # without the last chunk: it is not whole

    def begins(self, head: Head, payload: bytes, *framing: tuple[bytes, bytes]) -> None:
        """Both in one write: a head alone would be an answer to nginx, which then never sends the request anew."""
        own = ((HELD.encode(), b"%.1f" % (time.monotonic() - self.began_s)),) if self.waited else ()
        self._leave()
        self.body = b""  # never again
        first = b"HTTP/1.1 %d %b" % (head.status, head.reason or b"-")
        text = http.written(first, (*head.passed, *framing, *own, (b"Connection", b"close")))
        self.transport.write(text + payload)

    def ends(self) -> None:
        self.transport.close()


# -- sparkmatrix-node relay -------------------------------------------------------------------------------------------


def listener(path: str) -> socket.socket:
    """The socket that systemd hands over, and keeps while this program is started anew; else one at ``path``."""
    if os.environ.get("LISTEN_PID") == str(os.getpid()) and os.environ.get("LISTEN_FDS") == "1":
        return socket.socket(fileno=3)
    if not path:
        raise SparkError("systemd has handed over no socket", "sparkmatrix-relay.socket", "Or name one: --socket PATH")
    made = socket.socket(socket.AF_UNIX)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    mask = os.umask(0o177)
    try:
        made.bind(path)
    finally:
        os.umask(mask)
    return made


async def serve(relay: Relay, listening: socket.socket, reread: Callable[[], Config]) -> None:
    """Until SIGTERM: then what has begun goes on, and nginx sends the rest anew."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()

    def again() -> None:
        try:
            relay.take(reread())
        except SparkError as exc:
            relay.say(f"As before: {exc}")

    loop.add_signal_handler(signal.SIGTERM, over.set)
    loop.add_signal_handler(signal.SIGHUP, again)
    listening.setblocking(False)
    server = await loop.create_unix_server(lambda: Exchange(relay), sock=listening, backlog=BACKLOG)
    notify("READY=1")
    while not over.is_set():
        notify("WATCHDOG=1")
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(over.wait(), BEAT_S)
    notify("STOPPING=1")
    server.close()
    for exchange in list(relay.open):
        if exchange.upstream is None or not exchange.upstream.begun:
            exchange.transport.abort()
    while relay.open:
        await asyncio.sleep(0.1)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", default=RELAY_CONFIG, help=argparse.SUPPRESS)
    parser.add_argument("--socket", default="", help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    def say(line: str) -> None:
        sys.stderr.write(f"{line}\n")

    try:
        relay = Relay(read_config(arguments.config), say)
        asyncio.run(serve(relay, listener(arguments.socket), lambda: read_config(arguments.config)))
    except SparkError as exc:
        say(str(exc))
        return 1
    return 0
