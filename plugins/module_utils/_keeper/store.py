# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What the keeper leaves for the next one and for people: one document with its state and why it restarted the engine.

The keeper writes it while it runs; a run that has stopped the keeper adds who did. What was verified last, and golden
answers, lie beside it, since a run writes them while the keeper runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Optional, TypeVar

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, json_text, strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import word
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.golden import Difference, Record
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import Names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.by_name import Models
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import drop_state, write_state

SCHEMA_VERSION = 1
STATE = "state.json"
VERIFIED = "verified.json"
GOLDEN = "golden.json"
EARLIER = ("history.json", "stopped.json")  # of earlier releases, which had more files
MAX_ENTRIES = 50
STOPS = "stop.yml"  # by which somebody wants no engine; others bring it back
MAX_GOLDEN = MAX_TRIED = 8  # models that take turns, some 8 kB each
GATEWAY = "gateway"  # an event of the gateway, not the engine

Say = Callable[[str], object]
Kept = TypeVar("Kept")


def stamp(wall: float) -> str:
    """A time as it is kept, in ISO format."""
    return datetime.fromtimestamp(wall, timezone.utc).isoformat(timespec="seconds")


def seconds(kept: str) -> float | None:
    """The time that was kept; None where it is none."""
    try:
        return datetime.fromisoformat(kept).timestamp()
    except ValueError:
        return None


@dataclass(frozen=True)
class Entry:
    """Why the engine was restarted. ``back_after_s``: seconds until it served again."""

    time: str
    event: str
    reason: str
    host: str = ""
    failures: int = 0  # in a row, with this one
    back_after_s: Optional[float] = None


@dataclass(frozen=True)
class Stop:
    """By which playbook, and by whom."""

    time: str
    by: str
    user: str = ""


@dataclass(frozen=True)
class Verified:
    """What verify found last. ``low`` and ``high``: tokens/s that the plan expects, 0 where it has no figure."""

    time: str
    model: str
    measured: str  # in words
    tokens_per_s: float = 0.0
    low: float = 0.0
    high: float = 0.0


@dataclass(frozen=True)
class Before:
    """What has served by the plan before: ``config`` is that of the engine then, ``instead`` the one whose place it
    takes."""

    plan: str
    config: str
    instead: str = ""


@dataclass(frozen=True)
class Golden:
    """What served when it was last good, of each model the last one; the newest is the last."""

    records: tuple[Record, ...] = ()
    schema: int = SCHEMA_VERSION


@dataclass(frozen=True)
class Progress:
    """How far the load of one node is, in bytes."""

    host: str
    stage: str
    read: int
    written: int
    weights: int


@dataclass(frozen=True)
class State:
    """The document. ``end``: how the keeper ended; empty: it runs, or was cut off. ``start_since``: since when this
    start goes on, empty where nothing starts. ``settings``: with which the ranks run. ``stopped``: by whom, until the
    next keeper begins."""

    boot: str = ""
    pid: int = 0
    phase: str = ""
    detail: str = ""
    stable: bool = False  # it has served for long enough to begin the count of failures anew
    stable_s: float = 0.0
    since: str = ""
    start_since: str = ""
    start_limit_s: float = 0.0
    start_parts: Mapping[str, float] = field(default_factory=dict)  # seconds
    start_load: str = ""  # how fast the weights were read, in words
    settings: Mapping[str, str] = field(default_factory=dict)
    progress: tuple[Progress, ...] = ()
    end: str = ""
    failures: int = 0
    start_limit: int = 0
    stopped: Optional[Stop] = None
    models: Models = field(default_factory=Models)
    tried: tuple[str, ...] = ()  # configurations that have passed their trial, the newest last
    untried: str = ""  # the last one whose trial has begun
    named: str = ""  # the one that serves, where clients have loaded it by its name
    against: tuple[Difference, ...] = ()  # what the last trial has found
    back: Optional[Before] = None  # what served before has to come back, on all nodes
    history: tuple[Entry, ...] = ()  # oldest first
    schema: int = SCHEMA_VERSION


class Store:
    """``instance``: the service where there are several. ``root`` is replaced by tests.

    A full disk does not end the keeper: what it says is in the journal too.
    """

    def __init__(self, root: str = "/", instance: str = "") -> None:
        self.root = root
        self.instance = instance
        self.directory = Names(instance).kept
        self.state = State()  # of the keeper that has begun
        self.lock = threading.Lock()  # the probe has a thread of its own

    # -- for everybody

    def read(self) -> State:
        """Of another release, or damaged: as if nothing were kept."""
        with contextlib.suppress(SparkError):
            return self.look()[0]
        return State()

    def look(self) -> tuple[State, str]:
        """The document, and what is wrong with it: for people, who are told. Raises where it may not be read."""
        where = f"{self.directory}/{STATE}"
        try:
            values = json_text.mapping(self._path(STATE).read_bytes())
            if values.get("schema", SCHEMA_VERSION) != SCHEMA_VERSION:
                raise ValueError(f"it has schema {values['schema']!r:.40}, this release reads {SCHEMA_VERSION}")
            return document.load_known(State, values), ""
        except FileNotFoundError:
            return State(), "it has kept nothing yet"
        except PermissionError as exc:
            raise SparkError("no permission to read the keeper's state", where, "Ask as root: sudo") from exc
        except (OSError, ValueError, SparkError) as exc:
            why = getattr(exc, "found", exc)
            return State(), f"{where} is damaged ({why}); the keeper writes it anew with its next change"

    @property
    def exists(self) -> bool:
        """Not for whom may not look; ``Path.exists`` would raise."""
        return os.path.exists(self._path(STATE))

    def verified(self) -> Verified | None:
        """None where there is none, or one of another release."""
        return self._kept(Verified, VERIFIED)

    def golden(self, weights: str) -> Record | None:
        """Of these weights, else the newest of others. None where there is none, or one of another release."""
        kept = self._golden().records
        return next((one for one in reversed(kept) if one.weights == weights), kept[-1] if kept else None)

    def _golden(self) -> Golden:
        return self._kept(Golden, GOLDEN) or Golden()

    def _kept(self, cls: type[Kept], name: str) -> Kept | None:
        try:
            return document.load(cls, json_text.read(self._path(name).read_bytes()))
        except (OSError, TypeError, ValueError, SparkError):
            return None

    # -- for runs

    def keep_golden(self, record: Record) -> None:
        others = [one for one in self._golden().records if one.weights != record.weights]
        self._write(GOLDEN, Golden((*others[1 - MAX_GOLDEN :], record)))

    def verify(self, verified: Verified) -> None:
        self._write(VERIFIED, verified)

    def stop(self, stop: Stop) -> None:
        """The keeper has been stopped; the next one forgets it."""
        self._write(STATE, replace(self.read(), stopped=stop))
        if stop.by == STOPS:
            self._tell(word.STOPPED)

    def forget(self) -> bool:
        """Remove what is kept; False where there is nothing."""
        there = [name for name in (STATE, VERIFIED, GOLDEN, *EARLIER) if self._path(name).exists()]
        for name in there:
            drop_state(f"{self.directory}/{name}", root=self.root)
        word.forget(self.instance, self.root)
        return bool(there)

    # -- for the keeper

    def tried(self, config: str, say: Say, first: bool = False) -> None:
        """It has passed its trial. ``first``: as one of old, which is nothing to go back to."""
        others = [one for one in self.state.tried if one != config][1 - MAX_TRIED :]
        self.write(say, tried=(config, *others) if first else (*others, config))

    def begin(self, boot: str) -> State:
        """What the keeper before has left; its history goes on."""
        before = self.read()
        going_on = {name: getattr(before, name) for name in ("models", "history", "tried", "untried", "named", "back")}
        self.state = State(boot=boot, pid=os.getpid(), **going_on)
        return before

    def write(self, say: Say, **changes: Any) -> None:
        """``changes``: fields of :class:`State`."""
        with self.lock:
            self._change(say, changes)

    def add(self, entry: Entry, say: Say) -> None:
        with self.lock:
            entry = replace(entry, reason=strict.harmless(entry.reason))
            self._change(say, {"history": (*self.state.history, entry)[-MAX_ENTRIES:]})

    def recovered(self, seconds: float, say: Say) -> None:
        """The last failure of the engine is over: it served again after ``seconds``."""
        with self.lock:
            history = list(self.state.history)
            last = max((place for place, entry in enumerate(history) if entry.event != GATEWAY), default=None)
            if last is not None:
                history[last] = replace(history[last], back_after_s=round(seconds, 1))
                self._change(say, {"history": tuple(history)})

    def _change(self, say: Say, changes: Mapping[str, Any]) -> None:
        self.state = replace(self.state, **changes)
        try:
            self._write(STATE, self.state)
        except SparkError as exc:
            say(f"Not kept: {exc}")
        self._tell(self.state.phase)

    def _tell(self, phase: str) -> None:
        """A full disk is no reason to end."""
        with contextlib.suppress(OSError):
            word.tell(phase, self.instance, self.root)

    def _path(self, name: str) -> Path:
        return Path(self.root) / self.directory.lstrip("/") / name

    def _write(self, name: str, value: State | Verified | Golden) -> None:
        text = json.dumps(document.plain(value), indent=1) + "\n"
        write_state(f"{self.directory}/{name}", text.encode(), root=self.root)
