# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What the keeper leaves for the next one and for people: its state, and why it restarted the engine.

Beside it lies what runs have left for whoever asks how the engine is: who stopped it, and what was verified last.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import Names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import drop_state, write_state

STATE = "state.json"
HISTORY = "history.json"
STOPPED = "stopped.json"
VERIFIED = "verified.json"
KEPT = 50  # entries

Say = Callable[[str], object]

GATEWAY = "gateway"  # an entry about the gateway, not the engine


def stamp(wall: float) -> str:
    """A time as it is kept, in ISO format."""
    return datetime.fromtimestamp(wall, timezone.utc).isoformat(timespec="seconds")


def seconds(kept: Any) -> float | None:
    """The time that was kept; None where it is none."""
    try:
        return datetime.fromisoformat(str(kept)).timestamp()
    except ValueError:
        return None


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


AnyNote = TypeVar("AnyNote", Stop, Verified)


class Store:
    """``instance``: the service where there are several. ``root`` is replaced by tests.

    A full disk does not end the keeper: what it says is in the journal too.
    """

    def __init__(self, root: str = "/", instance: str = "") -> None:
        self.root = root
        self.directory = Names(instance).kept
        self.entries: list[dict[str, Any]] | None = None
        self.lock = threading.Lock()  # the probe has a thread of its own

    def read(self) -> dict[str, Any]:
        found = self._load(STATE)
        return found if isinstance(found, dict) else {}

    def look(self) -> tuple[dict[str, Any], str]:
        """The state, and what is wrong with its file: for people, who are told. Raises where it may not be read."""
        try:
            found = json_text.mapping(self._path(STATE).read_bytes())
        except FileNotFoundError:
            return {}, "it has kept nothing yet"
        except PermissionError as exc:
            where = f"{self.directory}/{STATE}"
            raise SparkError("no permission to read the keeper's state", where, "Ask as root: sudo") from exc
        except (OSError, SparkError) as exc:
            why = getattr(exc, "found", exc)
            return {}, f"{self.directory}/{STATE} is damaged ({why}); the keeper writes it anew with its next change"
        return found, ""

    @property
    def exists(self) -> bool:
        return os.path.exists(self._path(STATE))

    def history(self) -> list[dict[str, Any]]:
        """Oldest first."""
        found = self._load(HISTORY)
        return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []

    def write(self, state: Mapping[str, Any], say: Say) -> None:
        self._put(STATE, dict(state), say)

    def add(self, entry: Mapping[str, Any], say: Say) -> None:
        with self.lock:
            entries = self._entries()
            entries.append(dict(entry))
            del entries[:-KEPT]
            self._put(HISTORY, entries, say)

    def recovered(self, seconds: float) -> None:
        """The last failure of the engine is over: it served again after ``seconds``."""
        with self.lock:
            entries = self._entries()
            own = [entry for entry in entries if entry.get("event") != GATEWAY]
            if own:
                own[-1]["back_after_s"] = round(seconds, 1)
                self._put(HISTORY, entries, lambda _text: None)

    def stopped(self) -> Stop | None:
        return self._note(Stop, STOPPED)

    def verified(self) -> Verified | None:
        return self._note(Verified, VERIFIED)

    def leave(self, note: Stop | Verified) -> None:
        """Raises :class:`SparkError` where it cannot be written."""
        name = STOPPED if isinstance(note, Stop) else VERIFIED
        text = json.dumps(document.plain(note), indent=1) + "\n"
        write_state(f"{self.directory}/{name}", text.encode(), root=self.root)

    def started(self) -> None:
        """Nobody has stopped it any more."""
        if self._path(STOPPED).exists():
            drop_state(f"{self.directory}/{STOPPED}", root=self.root)

    def _note(self, kind: type[AnyNote], name: str) -> AnyNote | None:
        """None where there is none, or one of another release."""
        try:
            made: AnyNote = document.load(kind, self._load(name))
        except (TypeError, ValueError):
            return None
        return made

    def _entries(self) -> list[dict[str, Any]]:
        if self.entries is None:
            self.entries = self.history()
        return self.entries

    def _load(self, name: str) -> Any:
        try:
            return json_text.read(self._path(name).read_bytes())
        except (OSError, SparkError):
            return None

    def _path(self, name: str) -> Path:
        return Path(self.root) / self.directory.lstrip("/") / name

    def _put(self, name: str, value: Any, say: Say) -> None:
        try:
            write_state(f"{self.directory}/{name}", (json.dumps(value, indent=1) + "\n").encode(), root=self.root)
        except SparkError as exc:
            say(f"Not kept: {exc}")
