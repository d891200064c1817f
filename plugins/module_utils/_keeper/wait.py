# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Wait for an engine that the keeper starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import systemd
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Runner
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import run as run_command
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import Names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.probe import (
    POLL_S,
    Answer,
    ProbeError,
    Question,
    Target,
    ask,
    refused,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.start_times import PARTS
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.status import SERVING, elapsed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.store import GATEWAY, Store

_REMEDY = "sudo sparkmatrix status, on the head"
# The keeper's own limit comes first, so that its reason is what is read.
MARGIN_S = 60.0
MISSING = "waiting"
# A node that is missing, or a port that is taken, burns no start, however long; who waits is told after this time.
MISSING_S = 600.0
FINAL = (400, 401, 404)  # HTTP statuses that no waiting changes


@dataclass(frozen=True)
class Part:
    """A wait that goes on in another call, so that whoever waits hears of it. ``words``: what the keeper does."""

    words: str = ""
    waited_s: float = 0.0
    missing_s: float = 0.0  # since when nodes are missing
    failures: int | None = None  # when the wait began


def wait_ready(
    target: Callable[[], Target],
    question: Question,
    timeout_s: float,
    *,
    instance: str = "",
    part_s: float = 0.0,
    before: Part = Part(),
    store: Store | None = None,
    runner: Runner = run_command,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Answer | Part:
    """Ask until tokens come. Ends early when the keeper counts another failure, gives up, or does not run.

    ``timeout_s``: at least; where the keeper gives a start longer, it is as long. After ``part_s`` seconds, unless that
    is 0, it returns how far it has come; ``before`` is what the call before has returned.
    """
    store = store or Store(instance=instance)
    unit = Names(instance).keeper
    entered = clock()
    began, complete_at = entered - before.waited_s, entered - before.missing_s
    first = _failures(store.read()) if before.failures is None else before.failures
    while True:
        state = store.read()
        limit_s = max(timeout_s, _number(state.get("start_limit_s"))) + MARGIN_S
        left = max(began + limit_s - clock(), 0.001)
        if state.get("phase") != MISSING:
            complete_at = clock()
        last = ProbeError("waiting", f"the keeper says {state.get('phase')}: {state.get('detail')}", unit)
        # An engine that answers before the keeper is content may be the one that is about to be replaced.
        if state.get("phase") == SERVING and state.get("pid") == systemd.unit(runner, unit).main_pid:
            try:
                limit = min(question.timeout_s, left)
                return ask(target(), Question(question.prompt, question.max_tokens, limit), clock)
            except ProbeError as exc:
                last = exc
        if _failures(state) > first:
            raise SparkError("the engine did not come up", unit, _why(store, state))
        if runner(["systemctl", "is-active", "--quiet", unit]).rc != 0:
            raise SparkError("the keeper of the engine does not run", unit, _why(store, state))
        if last.status in FINAL:
            raise SparkError(last.found, last.where, refused(last.status, Names(instance).unit)) from last
        if clock() - complete_at >= MISSING_S:
            found = f"the keeper has waited for {MISSING_S:g} s, and goes on: {state.get('detail')}"
            raise SparkError(found, unit, _REMEDY) from last
        if clock() >= began + limit_s:
            raise SparkError(f"no token within {limit_s:g} s; last: {last.found}", last.where, _REMEDY) from last
        if part_s and clock() - entered >= part_s:
            return Part(_words(state, limit_s), clock() - began, clock() - complete_at, first)
        sleep(POLL_S)


def start_parts(store: Store) -> dict[str, float]:
    """Seconds of the last start by part, in their order; empty where the keeper has not seen it begin."""
    found = store.read().get("start_parts")
    known = found if isinstance(found, dict) else {}
    return {name: _number(known[name]) for name in PARTS if name in known}


def _words(state: Mapping[str, Any], limit_s: float) -> str:
    """The figures come last: a narrow screen shows the end."""
    seconds = elapsed(state.get("since"), time.time())
    told = "" if seconds is None else f" for {seconds} s"
    return f"{state.get('phase')}{told} (at most {limit_s:g} s): {state.get('detail')}"


def _failures(state: Mapping[str, Any]) -> int:
    found = state.get("failures")
    return found if isinstance(found, int) else 0


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _why(store: Store, state: Mapping[str, Any]) -> str:
    """The reason of the last failure; the keeper has read it from the journal."""
    entries = [entry for entry in store.history() if entry.get("event") != GATEWAY]
    reason = str(entries[-1].get("reason", "")) if entries else str(state.get("detail") or "")
    return reason if state.get("end") == "gave_up" else f"{reason}\nHow it is now: {_REMEDY}"
