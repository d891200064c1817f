# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What the keeper's last question for a token has found: for metrics. In /run, since it is of this boot only."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, json_text, paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import Names


@dataclass(frozen=True)
class Probed:
    """``at``: when it was asked, seconds since 1970; ``seconds``: until there was an answer, or none any more."""

    at: float
    answered: bool
    seconds: float


def path(instance: str = "", root: str = "/") -> str:
    return f"{root.rstrip('/')}{paths.RUN}/probed{Names(instance).suffix}.json"


def noted(
    ask: Callable[[], str],
    where: str,
    wall: Callable[[], float] = time.time,
    clock: Callable[[], float] = time.monotonic,
) -> str:
    """What ``ask`` returns or raises, and a note of it. Nobody waits for the note, and none is no fault."""
    at, began, answered = wall(), clock(), False
    try:
        problem = ask()
        answered = True
        return problem
    finally:
        with contextlib.suppress(OSError):
            new = f"{where}.new"
            with open(new, "w", encoding="utf-8") as file:
                json.dump(document.plain(Probed(at, answered, round(clock() - began, 3))), file)
            os.replace(new, where)


def last(instance: str = "", root: str = "/") -> Probed | None:
    """None where no keeper has asked since the boot."""
    try:
        with open(path(instance, root), "rb") as file:
            made: Probed = document.load(Probed, json_text.read(file.read()))
    except (OSError, ValueError, TypeError, SparkError):
        return None
    return made
