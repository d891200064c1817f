# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Serves the verified segments of this node to the others, on its fabric addresses, while a model is copied.

Known addresses with the token get numbered segments and nothing else: no name and no path comes from outside, and
nothing is ever written.
"""

from __future__ import annotations

import collections
import contextlib
import hmac
import os
import re
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Collection, Sequence
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.journal import Store, count, regular
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.talk import (
    Board,
    Bucket,
    Have,
    read_head,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError

PIECE = 4 * 1024 * 1024  # between two looks at the limit of the rate
MOST_CONNECTIONS = 40  # of one address: those of its copy, and what is left of those that broke
SILENT_S = 30.0
NEWS_S = 0.3
_REQUEST = re.compile(r"GET /(have|segments)/([0-9]{1,9}) HTTP/1\.1", re.ASCII)


class _Listener(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], server: Server) -> None:
        self.owner = server
        super().__init__(address, _Handler)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return self.owner.lets_in(client_address[0])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that ends in the middle is nothing to write about."""


class _Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.server.owner.converse(self.request, self.client_address[0])  # type: ignore[attr-defined]


class Server:
    """``addresses``: its own, on which it listens. ``peers``: those that may ask."""

    def __init__(
        self,
        store: Store,
        board: Board,
        token: str,
        *,
        addresses: Sequence[str],
        port: int,
        peers: Collection[str],
        limit: Bucket | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.store = store
        self.board = board
        self.peers = frozenset(peers)
        self.limit = limit or Bucket()
        self.context = context
        self.news = threading.Condition()  # segments have come
        self.served_to: collections.Counter[str] = collections.Counter()  # bytes by address
        self.told: dict[str, float] = {}  # when an address was last told what is here
        self._token = f"Authorization: Bearer {token}".encode()
        self._open: dict[socket.socket, str] = {}
        self._lock = threading.Lock()
        self._listeners: list[_Listener] = []
        self.problems: list[str] = []
        for address in addresses:
            try:
                self._listeners.append(_Listener((address, port), self))
            except OSError as exc:
                self.problems.append(f"cannot serve on {address} port {port} ({exc.strerror})")
        if not self._listeners:  # one half is enough
            raise SparkError(
                "; ".join(self.problems) or "there is no address to serve on",
                "this node",
                "Run the fabric layer again, or see who uses the port: ss -ltnp",
            )

    @property
    def port(self) -> int:
        return int(self._listeners[0].server_address[1])

    @property
    def sent(self) -> int:
        return sum(self.served_to.values())

    def begin(self) -> None:
        for one in self._listeners:
            threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        for one in self._listeners:
            one.server_close()

    def end(self) -> None:
        for one in self._listeners:
            one.shutdown()
        self.close()
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def arrived(self) -> None:
        """There is more to have."""
        with self.news:
            self.news.notify_all()

    def lets_in(self, address: str) -> bool:
        with self._lock:
            return address in self.peers and list(self._open.values()).count(address) < MOST_CONNECTIONS

    def converse(self, connection: socket.socket, address: str) -> None:
        plain = connection
        with self._lock:
            self._open[plain] = address
        try:
            # What a client does wrong ends its connection, and that is all.
            with contextlib.suppress(OSError, EOFError, ValueError):
                connection.settimeout(SILENT_S)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self.context:
                    connection = self.context.wrap_socket(connection, server_side=True)
                rest = b""
                while True:
                    lines, rest = read_head(connection, rest, SILENT_S)
                    if not self._answer(connection, address, lines):
                        break
        finally:
            with self._lock:
                del self._open[plain]
            with contextlib.suppress(OSError):
                connection.close()

    def _answer(self, connection: socket.socket, address: str, lines: list[str]) -> bool:
        """Whether the connection goes on."""
        request = _REQUEST.fullmatch(lines[0])
        tokens = [line for line in lines[1:] if line.startswith("Authorization:")]
        if len(tokens) != 1 or not hmac.compare_digest(tokens[0].encode(), self._token):
            return _head(connection, "403 Forbidden", 0) and False
        if not request:
            return _head(connection, "400 Bad Request", 0) and False
        number = int(request.group(2))
        if request.group(1) == "have":
            return self._have(connection, address, number)
        place = self.store.place(number)
        return self._segment(connection, address, number, *place) if place else _head(connection, "404 Not Found", 0)

    def _have(self, connection: socket.socket, address: str, known: int) -> bool:
        deadline = time.monotonic() + NEWS_S
        with self.news:
            while count(self.store.have) <= known and time.monotonic() < deadline:
                self.news.wait(deadline - time.monotonic())
        asked, over = time.monotonic(), bool(self.board.over_at)
        # Segments as soon as they come, and now and then what is known of all nodes.
        nodes = self.board.nodes() if asked - self.told.get(address, 0.0) >= NEWS_S / 2 else {}
        text = Have(self.store.fingerprint, f"{self.store.have:x}", nodes, over).text()
        _head(connection, "200 OK", len(text))
        connection.sendall(text)
        if nodes:
            self.told[address] = asked
        return True

    def _segment(self, connection: socket.socket, address: str, number: int, path: str, offset: int) -> bool:
        try:
            handle = regular(path, os.O_RDONLY)
        except OSError:
            return _head(connection, "404 Not Found", 0)
        size = self.store.segments[number].size
        with open(handle, "rb", buffering=0) as stream:
            _head(connection, "200 OK", size)
            done = 0
            while done < size:
                piece = min(self.limit.piece(PIECE), size - done)
                self.limit.take(piece)
                if connection.sendfile(stream, offset + done, piece) != piece:
                    return False  # the file has become shorter
                done += piece
                with self._lock:
                    self.served_to[address] += piece
            self.store.sent(number, handle)
        return True


def _head(connection: socket.socket, status: str, length: int) -> bool:
    connection.sendall(f"HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n".encode())
    return True
