# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Ranks of one MPI job, each in a container of its own: how ``mpirun`` on the head gets its daemons onto the others.

A worker's container waits at its address of the cluster for one order (``mpi wait``) and then becomes Open MPI's
daemon, so its unit lives as long as its rank does. ``mpirun`` calls ``mpi order`` where it would call ssh
(``plm_rsh_agent``). Whoever orders signs with a secret of the cluster; the only program that runs is the
image's own ``orted``, and no shell reads the order.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import hmac
import json
import os
import secrets
import shlex
import socket
import sys
import time
from collections.abc import Callable, Sequence

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text, paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import secret as managed_secret

HELP = "start the ranks of an MPI job in their containers"
DAEMON = "orted"  # of Open MPI 4
MOST = 16384  # bytes of an order; one for four nodes has about 700
PATIENCE_S = 10.0  # for all that whoever connects says
APPEAR_S = 300.0  # that a worker's container may need until it waits
RETRY_S = 0.5
ALIVE_S = (10, 5, 3)  # a peer that is silent for so long is asked, how often, and how many times
_REMEDY = "See there: journalctl -u 'sparkmatrix-engine*'"


def shared(path: str = paths.MPI_TOKEN) -> bytes:
    try:
        with open(path, encoding="ascii") as file:
            found = managed_secret.parse(file.read())
    except (OSError, ValueError) as exc:
        raise SparkError(f"the secret of the MPI job cannot be read ({exc})", path, "Run the engine layer") from exc
    if not found:
        raise SparkError("there is no usable secret of the MPI job", path, "Remove the file and run the engine layer")
    return found.encode()


def daemon_words(command: Sequence[str]) -> list[str]:
    """The daemon's command line in what is meant for a remote shell.

    What stands before it sets paths, which the container of the same image has already; a shell without ``bash`` in its
    name gets parentheses around all.
    """
    text = " ".join(command)
    reader = shlex.shlex(text, posix=True, punctuation_chars="();&|")
    reader.whitespace_split = True
    try:
        words = list(reader)
    except ValueError as exc:
        raise SparkError(f"mpirun's command for the other node cannot be read ({exc})", text) from exc
    places = [number for number, word in enumerate(words) if word.rpartition("/")[2] == DAEMON]
    if not places:
        raise SparkError(f"mpirun's command for the other node has no {DAEMON}", text, "Use an image with Open MPI 4")
    own = words[places[0] + 1 :]
    return [DAEMON, *own[: own.index(")")]] if ")" in own else [DAEMON, *own]


def sign(secret: bytes, place: str, nonce: str, words: Sequence[str]) -> str:
    """``place``: address and port of the rank, so that no order is good for another one."""
    return hmac.new(secret, json.dumps([place, nonce, *words]).encode(), hashlib.sha256).hexdigest()


def order(
    host: str,
    port: int,
    words: Sequence[str],
    secret: bytes,
    source: str = "",
    *,
    appear_s: float = APPEAR_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Have the daemon started on ``host``, and stay until it has ended, as ssh would. ``source``: own address."""
    place = f"{host}:{port}"
    deadline = clock() + appear_s
    while True:
        try:
            connection = socket.create_connection((host, port), PATIENCE_S, (source, 0) if source else None)
            with connection:
                nonce = _line(connection).strip()
                order_line = json.dumps({"words": list(words), "proof": sign(secret, place, nonce, words)})
                connection.sendall(f"{order_line}\n".encode())
                answer = _line(connection).strip()
                if answer == "ok":
                    _stay(connection)
                    return
            if answer:
                raise SparkError(f"the rank has not taken its order ({answer})", place, _REMEDY)
            found = "no answer"
        except (OSError, ValueError) as exc:
            found = str(getattr(exc, "strerror", "") or exc)
        if clock() > deadline:
            raise SparkError(f"no rank has taken its order there for {appear_s:.0f} s ({found})", place, _REMEDY)
        sleep(RETRY_S)


def _stay(connection: socket.socket) -> None:
    """Until the other side has ended, or is gone: a node that lost its power says nothing."""
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in zip((socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT), ALIVE_S):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    with contextlib.suppress(OSError):
        connection.recv(1)


def _line(connection: socket.socket) -> str:
    """One line, in the time that all of it may take. Raises OSError and ValueError."""
    deadline = time.monotonic() + PATIENCE_S
    got = b""
    while not got.endswith(b"\n") and len(got) < MOST:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        connection.settimeout(left)
        more = connection.recv(MOST - len(got))
        if not more:
            break
        got += more
    return got.decode("ascii")


def wait(
    server: socket.socket, secret: bytes, say: Callable[[str], object], head: str = ""
) -> tuple[list[str], socket.socket]:
    """The daemon's command line, from the first who knows the secret, and the connection that it came by.

    Nobody but ``head`` is listened to, where it is given: whoever connects is heard for a while, one after the other.
    """
    place = "{}:{}".format(*server.getsockname()[:2])
    while True:
        connection, address = server.accept()
        if head and address[0] != head:
            say(f"{address[0]}: not the head, not listened to")
            connection.close()
            continue
        words: list[str] = []
        nonce = secrets.token_hex(32)
        try:
            connection.settimeout(PATIENCE_S)
            connection.sendall(f"{nonce}\n".encode())
            words = _accepted(_line(connection), secret, place, nonce)
            if not words:
                say(f"{address[0]}: refused, it does not know the secret or orders something else than {DAEMON}")
            connection.sendall(b"ok\n" if words else b"refused\n")
        except (OSError, ValueError, SparkError) as exc:
            words = []
            say(f"{address[0]}: no order ({exc})")
        if words:
            connection.settimeout(None)
            return words, connection
        connection.close()


def _accepted(line: str, secret: bytes, place: str, nonce: str) -> list[str]:
    document = json_text.mapping(line)
    words, proof = document.get("words"), document.get("proof")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words) or not isinstance(proof, str):
        return []
    known = hmac.compare_digest(sign(secret, place, nonce, words).encode(), proof.encode())
    return words if known and words[:1] == [DAEMON] else []


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    waits = actions.add_parser("wait", help="wait for the order of the head, and become its daemon")
    waits.add_argument("--listen", required=True, metavar="ADDRESS:PORT", help="this node's address of the cluster")
    waits.add_argument("--head", required=True, metavar="ADDRESS", help="the head's address of the cluster")
    orders = actions.add_parser("order", help="called by mpirun in place of ssh")
    orders.add_argument("--source", required=True, metavar="ADDRESS", help="this node's address of the cluster")
    orders.add_argument("--port", required=True, type=int, help="where the ranks wait")
    orders.add_argument("host", help="address of the other node")
    orders.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND", help="for the other node")


def run(arguments: argparse.Namespace) -> int:
    try:
        if arguments.action == "order":
            order(arguments.host, arguments.port, daemon_words(arguments.words), shared(), arguments.source)
            # mpirun asks for the reason only while it has not told its daemons to end.
            return 1
        _become(arguments.listen, arguments.head)
    except SparkError as exc:
        sys.stderr.write(f"{exc}\n")
    return 1


def _become(listen: str, head: str) -> None:
    host, _colon, port = listen.rpartition(":")
    secret = shared()
    try:
        with socket.create_server((host, int(port))) as server:
            _say(f"waiting for the head at {listen}")
            words, connection = wait(server, secret, _say, head)
        # Its end tells the other side that the daemon has ended.
        connection.set_inheritable(True)
        os.execvp(words[0], words)  # noqa: S606 -- the daemon takes this process
    except (OSError, ValueError, OverflowError) as exc:
        raise SparkError(f"the rank cannot wait for the head, or become its daemon ({exc})", listen, _REMEDY) from exc


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
