# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What the keeper tells everybody on its node: one word, whether its engine serves. It is written when it changes, in
/run, so that nothing of a boot before is believed; the relay of the gateway reads it.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from typing import Optional

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import publish
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import Names

SERVING = "serving"
DRAINING = "draining"  # a restart that was planned: what runs may end, nothing new is sent
DRAIN_S = 120.0  # at most; a keeper that has ended meanwhile is not waited for
STOPPED = "stopped"  # by somebody who wants no engine now
GONE = ("gave_up", STOPPED)  # nobody starts it again by himself
MAX_BYTES = 64
# Of models that take each other's place. Beside SERVING, which is the one that is loaded.
LOADING, QUEUED, ABSENT, BROKEN, UNKNOWN = "loading", "queued", "absent", "broken", "unknown"


@dataclass(frozen=True)
class Word:
    """``at_ns``: since when it is so, nanoseconds since 1970."""

    phase: str = ""
    at_ns: int = 0

    @property
    def draining(self) -> bool:
        return self.phase == DRAINING and abs(time.time_ns() - self.at_ns) < (DRAIN_S + 10.0) * 1e9


@dataclass(frozen=True)
class Shown:
    """What clients are told of a model. ``seconds``: until it answers; none where nobody has measured it."""

    state: str
    seconds: Optional[float] = 0.0


NONE = Word()


def path(instance: str = "", root: str = "/") -> str:
    return f"{root.rstrip('/')}{paths.RUN}/serving{Names(instance).suffix}"


def told(kind: str, instance: str = "", root: str = "/") -> str:
    """Of models that take each other's place. ``json``: what all are told; ``sock``: where they are asked for."""
    return f"{root.rstrip('/')}{paths.RUN}/models{Names(instance).suffix}.{kind}"


def tell(phase: str, instance: str = "", root: str = "/") -> None:
    """:class:`OSError` where it cannot be written."""
    place = path(instance, root)
    if read(place).phase != phase:
        os.makedirs(os.path.dirname(place), mode=0o755, exist_ok=True)
        publish(place, f"{phase}\n")


def forget(instance: str = "", root: str = "/") -> None:
    """All that the keeper has told."""
    for place in (path(instance, root), told("json", instance, root), told("sock", instance, root)):
        with contextlib.suppress(OSError):
            os.unlink(place)


def read(place: str) -> Word:
    """:data:`NONE` where there is none."""
    try:
        with open(place, "rb") as stream:
            phase = stream.read(MAX_BYTES).decode("ascii").strip()
            return Word(phase, os.fstat(stream.fileno()).st_mtime_ns)
    except (OSError, ValueError):
        return NONE
