# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Ranks of one MPI job, each in a container of its own: how ``mpirun`` on the head gets its daemons onto the others.

A worker's container waits at its address of the cluster for one order (``mpi wait``) and then becomes Open MPI's
daemon, so its unit lives as long as its rank does. ``mpirun`` calls ``mpi order`` where it would call ssh
(``plm_rsh_agent``). Who orders proves with a secret of the cluster that it may; the only program that runs is the
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
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils import _cluster_secret
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._findings import SparkError

HELP = "start the ranks of an MPI job in their containers"
SHARED = "/etc/sparkmatrix/mpi.token"
DAEMON = "orted"  # of Open MPI 4
MOST = 65536  # bytes of an order; one for four nodes has about 700
PATIENCE_S = 10.0  # for whoever connects
APPEAR_S = 300.0  # that a worker's container may need until it waits
RETRY_S = 0.5
_REMEDY = "See the journal of sparkmatrix-engine there"


def shared(path: str = SHARED) -> bytes:
    try:
        with open(path, encoding="ascii") as file:
            found = _cluster_secret.parse(file.read())
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


def sign(secret: bytes, nonce: str, words: Sequence[str]) -> str:
    return hmac.new(secret, json.dumps([nonce, *words]).encode(), hashlib.sha256).hexdigest()


def order(
    host: str,
    port: int,
    words: Sequence[str],
    secret: bytes,
    *,
    appear_s: float = APPEAR_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Have the daemon started on ``host``, and stay until it has ended, as ssh would."""
    deadline = clock() + appear_s
    while True:
        try:
            connection = socket.create_connection((host, port), timeout=PATIENCE_S)
            break
        except OSError as exc:
            if clock() > deadline:
                raise SparkError(
                    f"no rank waits there after {appear_s:.0f} s ({exc.strerror or exc})", f"{host}:{port}", _REMEDY
                ) from exc
        sleep(RETRY_S)
    with connection, connection.makefile("rw", encoding="ascii") as stream:
        try:
            nonce = stream.readline(MOST).strip()
            stream.write(json.dumps({"words": list(words), "proof": sign(secret, nonce, words)}) + "\n")
            stream.flush()
            answer = stream.readline(MOST).strip()
        except (OSError, ValueError) as exc:
            raise SparkError(f"the rank has not taken its order ({exc})", f"{host}:{port}", _REMEDY) from exc
        if answer != "ok":
            raise SparkError(f"the rank has not taken its order ({answer or 'no answer'})", f"{host}:{port}", _REMEDY)
        connection.settimeout(None)
        with contextlib.suppress(OSError):
            connection.recv(1)


def wait(server: socket.socket, secret: bytes, say: Callable[[str], object]) -> tuple[list[str], socket.socket]:
    """The daemon's command line, from the first who proves to know the secret, and the connection that it came by."""
    while True:
        connection, address = server.accept()
        connection.settimeout(PATIENCE_S)
        nonce = secrets.token_hex(32)
        try:
            with connection.makefile("rw", encoding="ascii") as stream:
                stream.write(nonce + "\n")
                stream.flush()
                words = _accepted(stream.readline(MOST), secret, nonce)
                if not words:
                    say(f"{address[0]}: refused, it does not know the secret or orders something else than {DAEMON}")
                stream.write("ok\n" if words else "refused\n")
                stream.flush()
        except (OSError, ValueError) as exc:
            words = []
            say(f"{address[0]}: no order ({exc})")
        if words:
            connection.settimeout(None)
            return words, connection
        connection.close()


def _accepted(line: str, secret: bytes, nonce: str) -> list[str]:
    document: Any = json.loads(line)
    if not isinstance(document, dict):
        return []
    words, proof = document.get("words"), document.get("proof")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words) or not isinstance(proof, str):
        return []
    known = hmac.compare_digest(sign(secret, nonce, words).encode(), proof.encode())
    return words if known and words[:1] == [DAEMON] else []


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    waits = actions.add_parser("wait", help="wait for the order of the head, and become its daemon")
    waits.add_argument("--listen", required=True, metavar="ADDRESS:PORT", help="this node's address of the cluster")
    orders = actions.add_parser("order", help="called by mpirun in place of ssh")
    orders.add_argument("--port", required=True, type=int, help="where the ranks wait")
    orders.add_argument("host", help="address of the other node")
    orders.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND", help="for the other node")


def run(arguments: argparse.Namespace) -> int:
    try:
        if arguments.action == "order":
            order(arguments.host, arguments.port, daemon_words(arguments.words), shared())
            # mpirun asks for the reason only while it has not told its daemons to end.
            return 1
        _become(arguments.listen)
    except SparkError as exc:
        sys.stderr.write(f"{exc}\n")
    return 1


def _become(listen: str) -> None:
    host, _colon, port = listen.rpartition(":")
    secret = shared()
    try:
        with socket.create_server((host, int(port))) as server:
            _say(f"waiting for the head at {listen}")
            words, connection = wait(server, secret, _say)
        # Its end tells the other side that the daemon has ended.
        connection.set_inheritable(True)
        os.execvp(words[0], words)  # noqa: S606 -- the daemon takes this process
    except (OSError, ValueError) as exc:
        raise SparkError(f"the rank cannot wait for the head, or become its daemon ({exc})", listen, _REMEDY) from exc


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
