# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Where a model that clients ask for is named to the keeper, by the relay, and what all are told of models.

One line per connection, ``{"model": NAME}``, and no answer: every second for as long as requests for a model are there,
also for the one that is loaded. What ``GET /v1/models`` answers is a file, written when it changes.
"""

from __future__ import annotations

import contextlib
import grp
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Word
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine, publish
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import at_hand, word
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.word import Shown
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import by_name
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.by_name import Asked, Models

GROUP = "sparkmatrix-relay"  # who may ask, beside root
MAX_BYTES = 512  # of a question
PATIENCE_S = 1.0  # for one
LOOK_S = 5.0  # between two looks for the group, while nobody asks
_CREDENTIALS = struct.Struct("3i")  # process, user and group: unix(7), SO_PEERCRED


@dataclass(frozen=True)
class Question:
    model: Word


def question(line: bytes) -> Question:
    """Raises :class:`SparkError`."""
    with json_text.Reading("this is no question for a model"):
        if not line.endswith(b"\n") or len(line) > MAX_BYTES:
            raise ValueError(f"one line of at most {MAX_BYTES} bytes is read")
        made: Question = document.load(Question, json_text.mapping(line))
    return made


@dataclass
class ModelSocket:
    """``model``: of which the files are in place. ``models`` and ``serves_since`` are the keeper's, which says both
    with every step; the rest is asked by the thread of the socket, too."""

    model: str
    instance: str = ""
    machine: Machine = field(default_factory=Machine)
    models: Models = field(default_factory=Models)
    serves_since: float | None = None
    plans: Mapping[str, str] = field(default_factory=dict)
    asked: Mapping[str, Asked] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    news: threading.Event = field(default_factory=threading.Event)  # somebody asks for another model
    written: str = ""
    looked: int = 0

    def look(self) -> Mapping[str, str]:
        """The plan of each model that can be had: a run may have changed them, which changes their directory."""
        looked = self.machine.changed(at_hand.DIRECTORY) if not self.instance else 0
        if looked != self.looked or not self.plans:
            found = {model: one.plan for model, one in at_hand.listed(self.machine).items()} if looked else {}
            self.plans, self.looked = found if self.model in found else {self.model: ""}, looked
        return self.plans

    def ask_for(self, model: str) -> None:
        now = self.machine.now()
        with self.lock:
            if model not in self.plans:
                return
            before = self.asked.get(model)
            alive = before is not None and now - before.last <= by_name.ASKED_S
            self.asked = {**self.asked, model: Asked(before.first if before and alive else now, now)}
            if not alive and model != self.models.loaded:
                self.news.set()

    def wait(self, seconds: float) -> None:
        """Until somebody asks for another model, at most."""
        self.news.wait(seconds)
        self.news.clear()

    def shown(self, model: str) -> Shown:
        return by_name.shown(
            model,
            self.models,
            self.plans,
            self.asked,
            serves_since=self.serves_since,
            now=self.machine.now(),
        )

    # -- told to everybody

    def tell(self) -> None:
        """The answer to ``GET /v1/models``; ``state`` and ``seconds`` are beside what such a list has. It stays when
        the keeper ends: without one nobody switches, so who waits for another model waits for the next keeper."""
        listed = []
        for model in self.plans:
            said = document.plain(self.shown(model))
            listed.append({"id": model, "object": "model", "created": 0, "owned_by": "sparkmatrix", **said})
        text = json.dumps({"object": "list", "data": listed}) + "\n"
        if text == self.written or not self.model:
            return
        with contextlib.suppress(OSError):
            publish(word.told("json", self.instance, self.machine.root), text)
            self.written = text

    # -- the socket

    @property
    def place(self) -> str:
        return word.told("sock", self.instance, self.machine.root)

    def begin(self) -> None:
        self.look()  # nobody is told of a model that is at hand that it is unknown
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.place)
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(self.place)
        os.chmod(self.place, 0o600)  # until it listens nobody connects
        listening.listen(64)
        listening.settimeout(LOOK_S)
        self._let_in()
        threading.Thread(target=self._serve, args=(listening,), name="models", daemon=True).start()

    def _let_in(self) -> None:
        """The relay's group, which may be made after the socket, and anew."""
        with contextlib.suppress(KeyError, OSError):
            group, before = grp.getgrnam(GROUP).gr_gid, os.getegid()
            if os.stat(self.place).st_gid == group:
                return
            os.setegid(group)  # a keeper may give files to no other group than its own
            try:
                os.chown(self.place, -1, group)
            finally:
                os.setegid(before)
            os.chmod(self.place, 0o660)

    def _serve(self, listening: socket.socket) -> None:
        while True:
            self._let_in()
            with contextlib.suppress(OSError):
                connection, _address = listening.accept()
                with connection:
                    self.answer(connection)

    def answer(self, connection: socket.socket) -> None:
        connection.settimeout(PATIENCE_S)
        if not allowed(connection):
            return
        line, deadline = b"", time.monotonic() + PATIENCE_S
        while not line.endswith(b"\n") and len(line) <= MAX_BYTES and time.monotonic() < deadline:
            part = connection.recv(MAX_BYTES + 1)
            if not part:
                return
            line += part
        with contextlib.suppress(SparkError):
            self.ask_for(question(line).model)


def allowed(connection: socket.socket) -> bool:
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _process, user, group = _CREDENTIALS.unpack(told)
    try:
        return user == 0 or bool(group == grp.getgrnam(GROUP).gr_gid)
    except KeyError:
        return False
