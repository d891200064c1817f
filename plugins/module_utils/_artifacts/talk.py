# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What nodes say to each other while a model is copied: HTTP/1.1 with two questions, both with the copy's token.

``GET /have/<count>``: which segments the other one has, once these are more than ``count`` or a second has passed, and
what it knows of all nodes. ``GET /segments/<number>``: the bytes of one. Nothing that comes from another node is
trusted: it is bounded, read strictly, and the bytes of a segment count only with their hash.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.strict import words

COPYING, WHOLE, FAILED = "copying", "whole", "failed"
MOST_HEAD = 2048  # bytes of a request, or of the head of an answer
MOST_SAID = 300  # characters of words
HEAD_S = 10.0
FRESH_S = 5.0
_LENGTH = re.compile(r"Content-Length: ([0-9]{1,15})")
_STATUS = re.compile(r"HTTP/1\.1 ([0-9]{3}) [ -~]{1,60}")


@dataclass(frozen=True)
class NodeState:
    """How far a node is. ``beat`` grows: of two states of a node the higher one is the newer. Bytes."""

    beat: int = 0
    received: int = 0
    lacking: int = 0
    phase: str = field(default=COPYING, metadata=document.one_of(COPYING, WHOLE, FAILED))
    said: str = ""


@dataclass(frozen=True)
class Have:
    """``have``: a set of segments as the digits of a hexadecimal number. ``nodes``: by host. ``over``: the sender
    knows that all have ended."""

    fingerprint: str
    have: str
    nodes: Mapping[str, NodeState]
    over: bool = False

    def text(self) -> bytes:
        return json.dumps(document.plain(self)).encode()


def most_of_have(segments: int, hosts: int) -> int:
    """Bytes that such an answer may have."""
    return 1024 + segments // 4 + hosts * (512 + 8 * MOST_SAID)


def parse_have(text: bytes, fingerprint: str, everything: int) -> tuple[int, Have]:
    """Raises :class:`SparkError` with what does not fit."""
    with json_text.Reading("its answer is not understood"):
        read: Have = document.load(Have, json_text.read(text))
    if read.fingerprint != fingerprint:
        raise SparkError("it copies another model or revision")
    if not re.fullmatch("[0-9a-f]+", read.have, re.ASCII):
        raise SparkError("its segments are no number")
    have = int(read.have, 16)
    if have & ~everything:
        raise SparkError("it names segments that do not exist")
    nodes = {host: replace(state, said=words(state.said)[:MOST_SAID]) for host, state in read.nodes.items()}
    if any(min(state.beat, state.received, state.lacking) < 0 for state in nodes.values()):
        raise SparkError("its numbers are below zero")
    return have, replace(read, nodes=nodes)


def read_head(connection: socket.socket, rest: bytes = b"", within_s: float = HEAD_S) -> tuple[list[str], bytes]:
    """The lines of a head, and what has already come behind it. :class:`EOFError`: the other side has ended."""
    deadline = time.monotonic() + within_s
    while b"\r\n\r\n" not in rest:
        if len(rest) > MOST_HEAD:
            raise ValueError("its head is too long")
        if time.monotonic() > deadline:
            raise TimeoutError("its head takes too long")
        more = connection.recv(MOST_HEAD)
        if not more:
            raise EOFError("it ended the connection")
        rest += more
    head, _end, rest = rest.partition(b"\r\n\r\n")
    return head.decode("ascii").split("\r\n"), rest


def parse_answer(lines: list[str]) -> tuple[int, int]:
    """Status and length."""
    status = _STATUS.fullmatch(lines[0])
    lengths = [found for found in map(_LENGTH.fullmatch, lines[1:]) if found]
    if not status or len(lengths) != 1:
        raise ValueError("its answer is not understood")
    return int(status.group(1)), int(lengths[0].group(1))


class Board:
    """What is known of all nodes. A node's word about itself counts more than what others say of it."""

    def __init__(self, host: str, hosts: Collection[str]) -> None:
        self.host = host
        self.moved_at = time.monotonic()
        self.over_at = 0.0  # since when this node knows that all have ended
        self._lock = threading.Lock()
        self._states = {name: NodeState() for name in {host, *hosts}}
        self._direct: dict[str, float] = {}

    def tell(self, phase: str, received: int, lacking: int, said: str = "") -> None:
        """Of this node."""
        with self._lock:
            beat = max(self._states[self.host].beat + 1, int(time.time() * 10))
            self._set(self.host, NodeState(beat, received, lacking, phase, said[:MOST_SAID]))

    def hear(self, sender: str, nodes: Mapping[str, NodeState]) -> None:
        now = time.monotonic()
        with self._lock:
            for host, state in nodes.items():
                if host == self.host or host not in self._states:
                    continue
                if host == sender:
                    self._direct[host] = now
                    self._set(host, state)
                elif now - self._direct.get(host, -FRESH_S) >= FRESH_S and state.beat > self._states[host].beat:
                    self._set(host, state)

    def _set(self, host: str, state: NodeState) -> None:
        before = self._states[host]
        if (before.received, before.phase) != (state.received, state.phase):
            self.moved_at = time.monotonic()
        self._states[host] = state

    def nodes(self) -> dict[str, NodeState]:
        with self._lock:
            return dict(self._states)


class Bucket:
    """At most ``rate`` bytes per second; 0 is no limit."""

    def __init__(self, rate: int = 0) -> None:
        self.rate = rate
        self._free_at = 0.0
        self._lock = threading.Lock()

    def piece(self, most: int) -> int:
        """Bytes to take at once: several connections share a limit, and none is to be silent for long."""
        return min(most, max(self.rate // 16, 65536)) if self.rate else most

    def take(self, size: int) -> None:
        if not self.rate:
            return
        with self._lock:
            start = max(self._free_at, time.monotonic())
            self._free_at = start + size / self.rate
        delay = start - time.monotonic()
        if delay > 0:
            time.sleep(delay)
