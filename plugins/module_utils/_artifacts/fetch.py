# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Fetches the segments that this node lacks from the nodes that have them, several at once and over both halves.

The first of its sources is the one before it in the chain and gives everything, while it can. One that is silent is
stepped over; one that is slow is found by asking the next one for a segment now and then; one that sends wrong bytes
is not asked for these again, and after a few of them for nothing. Bytes are hashed while they are written, and memory
is a piece per connection.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import folders
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.journal import (
    Store,
    count,
    first,
    regular,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.talk import (
    FAILED,
    Board,
    Bucket,
    most_of_have,
    parse_answer,
    parse_have,
    read_head,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError

Kind = TypeVar("Kind")

PIECE = 1024 * 1024
CONNECTIONS = 8  # to fetch with; memory is this many pieces
_NO_HURRY = 999_999_999  # more segments than there are: the answer comes after a while
MOST_WRONG = 3  # segments with wrong bytes, until a source is dropped


@dataclass(frozen=True)
class Patience:
    """Seconds. Tests have less of it."""

    connect: float = 3.0
    silent: float = 5.0  # without a byte
    first_sign: float = 3.0  # in which all nodes begin
    nothing: float = 3.0  # without a byte from any source, until others are asked
    probe: float = 5.0  # between two segments of another source, to compare
    slow: float = 10.0  # until a slow source is tried again; each time twice as long
    floor: float = 256 * 1024.0  # bytes per second of a connection, below which nobody waits who need not
    retry: float = 0.2


@dataclass(frozen=True)
class Link:
    """Addresses of both ends, in one subnet."""

    here: str
    there: str


class RefusedError(Exception):
    """The other node answered, and with no."""


class LocalError(Exception):
    """The disk of this node."""


class Connection:
    def __init__(self, link: Link, port: int, token: str, patience: Patience, context: ssl.SSLContext | None) -> None:
        self.link = link
        self._token = token
        self._rest = b""
        self.socket = socket.create_connection((link.there, port), patience.connect, source_address=(link.here, 0))
        try:
            self.socket.settimeout(patience.silent)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context:
                self.socket = context.wrap_socket(self.socket)
        except OSError:
            self.close()
            raise

    def ask(self, path: str, most: int) -> int:
        """The length of what follows."""
        request = f"GET {path} HTTP/1.1\r\nHost: {self.link.there}\r\nAuthorization: Bearer {self._token}\r\n\r\n"
        self.socket.sendall(request.encode())
        lines, self._rest = read_head(self.socket, self._rest)
        status, length = parse_answer(lines)
        if status != 200:
            raise RefusedError({403: "it does not know the token of this copy"}.get(status, f"it answers {status}"))
        if length > most:
            raise ValueError(f"it sends {length} bytes where {most} are right")
        return length

    def fill(self, view: memoryview) -> None:
        done = min(len(view), len(self._rest))
        view[:done] = self._rest[:done]
        self._rest = self._rest[done:]
        while done < len(view):
            got = self.socket.recv_into(view[done:])
            if not got:
                raise EOFError("it ended the connection")
            done += got

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.close()


@dataclass(eq=False)
class Source:
    """Another node. Its ``have`` is what it says; times are of the monotonic clock."""

    host: str
    links: Sequence[Link]
    have: int = 0
    up: bool = False
    seen: bool = False  # ever
    over: bool = False  # it knows that all have ended
    problem: str = ""
    refused: int = 0  # segments that were wrong, or that it had not
    wrong: list[str] = field(default_factory=list)
    dropped: bool = False
    slow_until: float = 0.0
    slow_times: int = 0
    received: int = 0  # bytes


@dataclass(eq=False)
class Fetch:
    """One segment on its way."""

    number: int
    source: Source
    probe: bool
    started: float
    received: int = 0
    cut: bool = False
    connection: Connection | None = None

    def cut_off(self) -> None:
        self.cut = True
        if self.connection:
            with contextlib.suppress(OSError):
                self.connection.socket.shutdown(socket.SHUT_RDWR)

    def speed(self, now: float) -> float:
        return self.received / max(now - self.started, 1e-6)


class Receiver:
    """``sources``: in the order in which they are asked. ``arrived`` is called after each segment."""

    def __init__(
        self,
        store: Store,
        board: Board,
        sources: Sequence[Source],
        *,
        token: str,
        port: int,
        connections: int = CONNECTIONS,
        limit: Bucket | None = None,
        patience: Patience | None = None,
        context: ssl.SSLContext | None = None,
        arrived: Callable[[], None] = lambda: None,
    ) -> None:
        self.store = store
        self.board = board
        self.sources = list(sources)
        self.patience = patience or Patience()
        self.connections = connections
        self.failure = ""  # of this node, which ends its copy
        self.received = 0  # bytes, also those of segments that did not become whole
        self.rate = 0.0  # bytes per second, lately, without probes
        self._best = 0.0
        self._token, self._port, self._context = token, port, context
        self._limit = limit or Bucket()
        self._arrived = arrived
        self._changed = threading.Condition()  # there is something to fetch
        self._over = threading.Event()
        self._fetches: set[Fetch] = set()
        self._on_the_way = 0
        self._started = self._fed_at = self._probed_at = time.monotonic()
        self._probe_s = self.patience.probe
        self._probed = 0  # bytes of probes that have ended
        self._threads: list[threading.Thread] = []

    def begin(self) -> None:
        work = [threading.Thread(target=self._follow, args=(one,), daemon=True) for one in self.sources]
        if not self.store.is_whole:
            work += [
                threading.Thread(target=self._work, args=(one,), daemon=True) for one in range(self.connections + 1)
            ]
            work.append(threading.Thread(target=self._watch, daemon=True))
        self._threads = work
        for one in work:
            one.start()

    def end(self) -> None:
        with self._changed:
            self._over.set()
            for one in self._fetches:
                one.cut_off()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(self.patience.connect + self.patience.silent)

    # -- what the others have

    def _follow(self, source: Source) -> None:
        connection: Connection | None = None
        turn, retry = 0, self.patience.retry
        while not self._over.is_set():
            try:
                connection = connection or self._connect(source.links[turn % len(source.links)])
                most = most_of_have(len(self.store.segments), len(self.board.nodes()))
                known = count(source.have) if self._is_first(source) else _NO_HURRY
                text = bytearray(connection.ask(f"/have/{known}", most))
                connection.fill(memoryview(text))
                have, said = parse_have(bytes(text), self.store.fingerprint, (1 << len(self.store.segments)) - 1)
            except (OSError, EOFError, RefusedError, ValueError, SparkError) as exc:
                with self._changed:
                    source.up, source.problem = False, _words(exc)
                if connection:
                    connection.close()
                connection, turn = None, turn + 1
                self._over.wait(retry)
                retry = min(2 * retry, 0.5)
                continue
            self.board.hear(source.host, said.nodes)
            retry = self.patience.retry
            with self._changed:
                more = count(have & ~source.have & self.store.missing)
                source.have, source.up, source.seen, source.problem = have, True, True, ""
                source.over = said.over
                self._changed.notify(more)
            self._over.wait(0.01)  # several segments in one answer
        if connection:
            connection.close()

    def _is_first(self, source: Source) -> bool:
        """Whether segments are fetched from it as soon as it has them."""
        with self._changed:
            return not self.store.is_whole and self._ranked(time.monotonic())[:1] == [source]

    def _connect(self, link: Link) -> Connection:
        return Connection(link, self._port, self._token, self.patience, self._context)

    # -- who is asked for what

    def _next(self, scout: bool) -> Fetch | None:
        """Waits a while for something to fetch."""
        if scout:  # it would take the word that there is more from one who needs it
            self._over.wait(0.2)
        with self._changed:
            found = self._choose(time.monotonic(), scout)
            if found is None and not scout and not self._over.is_set():
                self._changed.wait(0.2)
                found = self._choose(time.monotonic(), scout)
            if found is not None:
                self._fetches.add(found)
                self._on_the_way |= 1 << found.number
            return found

    def _choose(self, now: float, scout: bool) -> Fetch | None:
        """The scout asks the second source for a segment now and then, to compare."""
        ranked = [] if self._over.is_set() or self.failure else self._ranked(now)
        if not ranked:
            return None
        offer = self._offer(ranked[0])
        other = next((one for one in ranked[1:] if self._offer(one)), None)
        if scout:
            if other is None or now - self._probed_at < self._probe_s:
                return None
            self._probed_at = now
            return Fetch(first(self._offer(other)), other, True, now)
        if offer:
            return Fetch(first(offer), ranked[0], False, now)
        starving = now - self._fed_at > self.patience.nothing or ranked[0].slow_times > 1
        return Fetch(first(self._offer(other)), other, False, now) if other and starving else None

    def _ranked(self, now: float) -> list[Source]:
        """Those that can be asked; at the start the first one, although it has not answered yet."""
        early = now - self._started < self.patience.first_sign
        usable = [one for one in self.sources if not one.dropped and (one.up or (early and not one.seen))]
        states = self.board.nodes()
        failed = {host for host, state in states.items() if state.phase == FAILED}
        return sorted(usable, key=lambda one: one.slow_until > now or one.host in failed)

    def _offer(self, source: Source) -> int:
        return source.have & self.store.missing & ~self._on_the_way & ~source.refused

    def _slow(self, source: Source, now: float) -> None:
        if source.slow_until <= now:
            source.slow_until = now + self.patience.slow * 2 ** min(source.slow_times, 5)
            source.slow_times += 1

    def _judge(self, probe: Fetch, now: float) -> None:
        """A source beside which another one is twice as fast comes last for a while."""
        self._probed_at = now
        if probe.speed(now) <= 2 * self.rate:
            self._probe_s = min(2 * self._probe_s, 12 * self.patience.probe)
            return
        self._probe_s = self.patience.probe
        for one in self._ranked(now):
            if one is probe.source:
                break
            self._slow(one, now)

    def _watch(self) -> None:
        """Take the rate, and cut off what has no hope to end soon where somebody else has the segment."""
        before, at = 0, time.monotonic()
        while not self._over.is_set() and not self.store.is_whole:
            self._over.wait(0.25)
            now = time.monotonic()
            with self._changed:
                regular = self.received - sum(one.received for one in self._fetches if one.probe) - self._probed
                self.rate += 0.1 * ((regular - before) / (now - at) - self.rate)
                before, at = regular, now
                self._best = max(self._best, self.rate)
                if self.rate < self._best / 2:
                    self._probe_s = self.patience.probe
                floor = self._best / (8 * self.connections)
                if not self._limit.rate:
                    floor = max(floor, self.patience.floor)
                for fetch in self._fetches:
                    if now - fetch.started > self.patience.slow and fetch.speed(now) < floor:
                        self._give_up(fetch, now)

    def _give_up(self, fetch: Fetch, now: float) -> None:
        bit = 1 << fetch.number
        if any(one is not fetch.source and one.have & ~one.refused & bit for one in self._ranked(now)):
            self._slow(fetch.source, now)
            fetch.cut_off()

    # -- fetching

    def _work(self, index: int) -> None:
        piece = memoryview(bytearray(PIECE))
        connection: Connection | None = None
        owner: Source | None = None
        while not self._over.is_set() and not self.store.is_whole and not self.failure:
            fetch = self._next(index == self.connections)
            if fetch is None:
                continue
            try:
                if connection and owner is not fetch.source:
                    connection.close()
                    connection = None
                connection = connection or self._connect_to(fetch.source, index)
                owner, fetch.connection = fetch.source, connection
                self._fetch(fetch, connection, piece)
            except (OSError, EOFError, RefusedError, ValueError, LocalError) as exc:
                self._failed(fetch, exc)
                if connection:
                    connection.close()
                    connection = None
            finally:
                with self._changed:
                    self._fetches.discard(fetch)
                    self._on_the_way &= ~(1 << fetch.number)
                    self._probed += fetch.received if fetch.probe else 0
                    self._changed.notify(len(self._threads) if self.store.is_whole else 1)
        if connection:
            connection.close()

    def _connect_to(self, source: Source, index: int) -> Connection:
        """Connections take the halves in turns; where one half is dead, the other one has all."""
        problem = OSError("it has no address")
        for turn in range(len(source.links)):
            try:
                return self._connect(source.links[(index + turn) % len(source.links)])
            except OSError as exc:
                problem = exc
        raise problem

    def _fetch(self, fetch: Fetch, connection: Connection, piece: memoryview) -> None:
        segment = self.store.segments[fetch.number]
        if connection.ask(f"/segments/{fetch.number}", segment.size) != segment.size:
            raise ValueError("it sends fewer bytes than the segment has")
        hashed = hashlib.sha256()
        path = self.store.path(segment.file)
        handle = _on_disk(path, regular, path, os.O_RDWR)
        try:
            while fetch.received < segment.size:
                part = piece[: min(self._limit.piece(len(piece)), segment.size - fetch.received)]
                self._limit.take(len(part))
                connection.fill(part)
                if fetch.cut:
                    raise EOFError("it was too slow")
                hashed.update(part)
                _on_disk(path, _write, handle, part, segment.offset + fetch.received)
                fetch.received += len(part)
                with self._changed:
                    self.received += len(part)
                    self._fed_at = time.monotonic()
            if hashed.hexdigest() != segment.sha256:
                self._lied(fetch)
                return
            _on_disk(path, os.fdatasync, handle)
            _on_disk(path, self.store.verified, fetch.number)
        finally:
            os.close(handle)
        now = time.monotonic()
        with self._changed:
            fetch.source.received += segment.size
            if fetch.probe:
                self._judge(fetch, now)
        self._arrived()

    def _lied(self, fetch: Fetch) -> None:
        segment, source = self.store.segments[fetch.number], fetch.source
        with self._changed:
            source.refused |= 1 << fetch.number
            source.wrong.append(f"{segment.file.path} at byte {segment.offset}")
            source.dropped = len(source.wrong) >= MOST_WRONG

    def _failed(self, fetch: Fetch, exc: Exception) -> None:
        with self._changed:
            if isinstance(exc, LocalError):
                self.failure = self.failure or str(exc)
            elif isinstance(exc, RefusedError):
                fetch.source.refused |= 1 << fetch.number
            elif not fetch.cut:
                fetch.source.problem = _words(exc)
                self._slow(fetch.source, time.monotonic())

    # -- for people

    def problems(self) -> list[str]:
        """What is wrong with each source that is not as it should be."""
        found = []
        with self._changed:
            for one in self.sources:
                if one.wrong:
                    more = ", not asked any more" if one.dropped else ""
                    found.append(f"{one.host} sent wrong bytes of {', '.join(one.wrong[:MOST_WRONG])}{more}")
                if not one.up:
                    found.append(f"{one.host} cannot be reached ({one.problem or 'no answer yet'})")
        return found


def _on_disk(path: str, action: Callable[..., Kind], *arguments: Any) -> Kind:
    """What fails here is no fault of a source."""
    try:
        return action(*arguments)
    except OSError as exc:
        raise LocalError(f"{folders.shown(path)}: {exc.strerror}") from exc


def _write(handle: int, part: memoryview, offset: int) -> None:
    done = 0
    while done < len(part):
        done += os.pwrite(handle, part[done:], offset + done)


def _words(exc: Exception) -> str:
    return str(getattr(exc, "strerror", None) or getattr(exc, "found", None) or exc) or type(exc).__name__
