# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a stranger, or a node that is not itself any more, can do: nothing."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import serve, talk
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.fetch import (
    Connection,
    Link,
    Receiver,
    RefusedError,
    Source,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.journal import Store
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.serve import Server
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.talk import Board, NodeState
from fan_out import HURRY, PIECE, TOKEN, contents, manifest_of, sha256

FILES = contents({"a.bin": 5 * PIECE + 3})
PEER, STRANGER = "127.1.0.9", "127.1.0.8"
GOOD = f"GET /segments/5 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    for data in FILES.values():
        (tmp_path / sha256(data)).write_bytes(data)
    store = Store(manifest_of(FILES), str(tmp_path / "p"), {path.name: str(path) for path in tmp_path.iterdir()})
    one = Server(store, Board("spark0", ["spark1"]), TOKEN, addresses=["127.1.0.1"], port=0, peers={PEER})
    one.begin()
    yield one
    one.end()


def ask(server: Server, request: str | bytes, source: str = PEER) -> bytes:
    with socket.create_connection(("127.1.0.1", server.port), 5, source_address=(source, 0)) as one:
        answer = b""
        with suppress(OSError):
            one.sendall(request if isinstance(request, bytes) else request.encode())
            one.shutdown(socket.SHUT_WR)
            while more := one.recv(65536):
                answer += more
    return answer


def test_a_segment(server: Server) -> None:
    assert ask(server, GOOD) == b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n" + FILES["a.bin"][-3:]
    assert ask(server, GOOD + GOOD).count(b"200 OK") == 2


def test_a_pipe_in_the_place_of_a_file_holds_nobody(server: Server, tmp_path: Path) -> None:
    place = tmp_path / sha256(FILES["a.bin"])
    place.unlink()
    os.mkfifo(place)
    assert ask(server, GOOD).startswith(b"HTTP/1.1 404")


def test_a_stranger_gets_no_word(server: Server) -> None:
    assert ask(server, GOOD, STRANGER) == b""


@pytest.mark.parametrize(
    ("old", "new", "answer"),
    [
        (TOKEN, "x" * 64, b"HTTP/1.1 403"),
        (f"Authorization: Bearer {TOKEN}\r\n", "", b"HTTP/1.1 403"),
        (f"Bearer {TOKEN}\r\n", f"Bearer {TOKEN}\r\nAuthorization: Bearer {TOKEN}\r\n", b"HTTP/1.1 403"),
        ("/segments/5", "/segments/6", b"HTTP/1.1 404"),
        ("/segments/5", "/segments/999999999", b"HTTP/1.1 404"),
        ("/segments/5", "/segments/-1", b"HTTP/1.1 400"),
        ("/segments/5", "/segments/5/../../etc/passwd", b"HTTP/1.1 400"),
        ("/segments/5", "/etc/passwd", b"HTTP/1.1 400"),
        ("/segments/5", "/segments/\u0665", b""),
        ("GET", "POST", b"HTTP/1.1 400"),
        ("HTTP/1.1", "HTTP/1.0", b"HTTP/1.1 400"),
        ("Host: x", "Host: " + "x" * 5000, b""),
        ("GET", "\0\0\0", b"HTTP/1.1 400"),
    ],
)
def test_nothing_else_is_answered(server: Server, old: str, new: str, answer: bytes) -> None:
    said = ask(server, GOOD.replace(old, new))
    assert said.startswith(answer) and (answer or not said)
    assert FILES["a.bin"][-3:] not in said
    assert b"200 OK" in ask(server, GOOD)  # it goes on


def test_connections_are_limited_and_slow_heads_end(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "MOST_CONNECTIONS", 3)
    monkeypatch.setattr(serve, "SILENT_S", 0.3)
    there = ("127.1.0.1", server.port)
    held = [socket.create_connection(there, 5, source_address=(PEER, 0)) for _turn in range(3)]
    for one in held:
        one.sendall(b"GET /")
    time.sleep(0.1)
    assert ask(server, GOOD) == b""
    deadline = time.monotonic() + 5
    while not ask(server, GOOD) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert b"200 OK" in ask(server, GOOD)
    for one in held:
        one.close()


def test_a_file_that_got_shorter_ends_the_connection(server: Server, tmp_path: Path) -> None:
    (tmp_path / sha256(FILES["a.bin"])).write_bytes(FILES["a.bin"][:-2])
    assert ask(server, GOOD).endswith(b"\r\n\r\n" + FILES["a.bin"][-3:-2])


# --- a node that answers whatever it likes ---


class Hostile:
    """Sends ``answer`` to every request."""

    def __init__(self, answer: bytes | Callable[[bytes], bytes]) -> None:
        self.answer = answer
        self.listener = socket.create_server(("127.1.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                one, _address = self.listener.accept()
                threading.Thread(target=self._converse, args=(one,), daemon=True).start()

    def _converse(self, one: socket.socket) -> None:
        with suppress(OSError), one:
            while request := one.recv(4096):
                one.sendall(self.answer(request) if callable(self.answer) else self.answer)


def head(length: int, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n".encode()


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4096\r\nContent-Length: 4096\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 50,
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: \xd9\xa3\r\n\r\n",
        head(10**14),
        head(4097),
        head(0, "404 Not Found"),
        b"X" * 100_000,
        b"",
    ],
)
def test_answers_that_are_not_understood(answer: bytes) -> None:
    hostile = Hostile(answer)
    one = Connection(Link("127.1.0.9", "127.1.0.1"), hostile.port, TOKEN, HURRY, None)
    with pytest.raises((ValueError, RefusedError, TimeoutError, EOFError)):
        one.ask("/segments/1", 4096)
    one.close()
    hostile.listener.close()


def have(**changes: object) -> bytes:
    model = manifest_of(FILES)
    store = Store(model, "/nowhere")
    said = {"fingerprint": store.fingerprint, "have": "3f", "nodes": {"spark0": {"beat": 5, "phase": "whole"}}}
    return json.dumps({**said, **changes}).encode()


@pytest.mark.parametrize(
    "text",
    [
        have(have="7f"),
        have(have="-1"),
        have(have="\u0663"),
        have(have=63),
        have(fingerprint="0" * 64),
        have(nodes={"spark0": {"beat": -1}}),
        have(nodes={"spark0": {"phase": "owner"}}),
        have(nodes={"spark0": {"said": "\x1b[2J"}}),
        have(more="keys"),
        b"[" * 100_000,
        b"{}",
        b"\xff",
    ],
)
def test_a_state_that_is_not_understood_is_a_problem_of_its_node(tmp_path: Path, text: bytes) -> None:
    hostile = Hostile(head(len(text)) + text)
    store = Store(manifest_of(FILES), str(tmp_path))
    source = Source("spark0", [Link("127.1.0.9", "127.1.0.1")])
    board = Board("spark1", ["spark0"])
    one = Receiver(store, board, [source], token=TOKEN, port=hostile.port, patience=HURRY)
    one.begin()
    deadline = time.monotonic() + 5
    while not source.problem and time.monotonic() < deadline:
        time.sleep(0.01)
    one.end()
    hostile.listener.close()
    assert source.problem and not source.have and not store.have
    assert board.nodes()["spark0"] == NodeState()


def test_nodes_that_nobody_knows_and_words_about_oneself_are_not_taken() -> None:
    board = Board("spark1", ["spark0", "spark2"])
    board.tell(talk.COPYING, 7, 100)
    lie = NodeState(2**60, 0, 0, talk.WHOLE)
    board.hear("spark0", {"spark1": lie, "stranger": lie, "spark2": lie})
    states = board.nodes()
    assert set(states) == {"spark0", "spark1", "spark2"} and states["spark1"].phase == talk.COPYING
    # spark2 says itself how it is, whatever number the lie had.
    board.hear("spark2", {"spark2": NodeState(3, 1, 99, talk.COPYING)})
    assert board.nodes()["spark2"].phase == talk.COPYING
    board.hear("spark0", {"spark2": lie})
    assert board.nodes()["spark2"].phase == talk.COPYING


def test_a_limit_of_the_rate() -> None:
    bucket = talk.Bucket(100_000)
    began = time.monotonic()
    for _turn in range(5):
        bucket.take(5_000)
    assert time.monotonic() - began > 0.19
    talk.Bucket().take(10**12)
