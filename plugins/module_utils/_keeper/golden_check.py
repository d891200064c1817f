# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Whether a service is as good as when it was last good: its golden answer, asked, compared and kept."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import cache as caches
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.config_hash import config_hash
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Flag, Words
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import (
    engine_json,
    golden,
    metrics,
    probe,
    smoke,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.engine_json import Description
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.golden import Difference, Record
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.store import Store, stamp

AGAIN_S = 300.0


@dataclass(frozen=True)
class Request:
    """``description``: file about the service. ``keep``: what is as good as before, or the first of its kind, is what
    later ones are compared with. ``kinds``: also a tool and JSON."""

    description: str
    keep: bool = False
    kinds: bool = True


@dataclass
class Compared:
    """``numbers``: log probabilities were compared; ``words`` say with what, or why not."""

    numbers: Flag = False
    words: Words = ""
    differences: tuple[Difference, ...] = ()
    failed: Flag = False
    msg: Words = ""


NOT_ASKED = Compared(words="only models that generate have log probabilities")


def compare(request: Request, check: bool) -> Compared:
    if check:
        return Compared(words="not asked in check mode")
    config = engine_json.read(request.description)
    if request.keep:
        return last_good(config)
    store = Store(instance=config.instance)
    return _compared(config, store, request.kinds, store.read().against)[0]


def last_good(config: Description) -> Compared:
    """What is as good as before is what later ones are compared with."""
    store = Store(instance=config.instance)
    found, record = _compared(config, store)
    if record and not found.differences:
        store.keep_golden(record)
    return found


def _compared(
    config: Description,
    store: Store,
    kinds: bool = True,
    against: Sequence[Difference] = (),
) -> tuple[Compared, Record | None]:
    """With what is to be kept of it. What a moment may explain has to be found twice."""
    if config.task != "generate":
        return NOT_ASKED, None
    for _turn in range(2):
        record = ask(config, kinds)
        before = store.golden(record.weights)
        found = judge(before, record, against)
        rules = {one.rule for one in found.differences if one not in against}
        if not rules or rules - golden.OF_A_MOMENT:
            break
    if record.busy and before and before.setup == record.setup:  # the speed that was measured stays known
        record = replace(record, tokens_per_s=before.tokens_per_s, busy=before.busy)
    if before and before.weights == record.weights:  # and so does how a call went
        missing = {kind for kind, outcome in record.tried.items() if outcome == smoke.NOT_JUDGED}
        known = {kind: outcome for kind, outcome in before.tried.items() if kind in missing}
        record = replace(record, tried={**record.tried, **known})
    return found, record


class Beside:
    """``ask`` in a thread of its own, for a loop that must not wait: None until it has an answer. What it raises is
    asked again later."""

    def __init__(self, ask: Callable[[], Compared], clock: Callable[[], float] = time.monotonic) -> None:
        self.ask, self.clock = ask, clock
        self.thread: threading.Thread | None = None
        self.found: Compared | None = None
        self.not_before = 0.0

    def __call__(self) -> Compared | None:
        asking = self.thread is not None and self.thread.is_alive()
        if self.found is None and not asking and self.clock() >= self.not_before:
            self.not_before = self.clock() + AGAIN_S
            self.thread = threading.Thread(target=self._run, name="golden", daemon=True)
            self.thread.start()
        found, self.found = self.found, None
        return found

    def _run(self) -> None:
        with contextlib.suppress(SparkError):
            self.found = self.ask()


def judge(before: Record | None, now: Record, against: Sequence[Difference] = ()) -> Compared:
    """``before``: when it was last good, of the same weights or of others. ``against``: what its trial has found
    already."""
    found = {one.rule: one for one in (*against, *(golden.compare(before, now) if before else ()))}
    same = before is not None and before.weights == now.weights
    numbers = before is not None and same and golden.comparable(before) and golden.comparable(now)
    if before is None or not same:
        words = "nothing is kept yet of this model, revision and settings; the keeper keeps what passes a trial"
    elif numbers:
        words = f"as {before.by}, {before.time}"
    else:
        words = "its log probabilities, where it gives any, differ too much by themselves"
    said = "\n".join(one.found for one in found.values())
    return Compared(numbers, "" if found else words, tuple(found.values()), failed=bool(found), msg=said)


def ask(config: Description, kinds: bool = True) -> Record:
    target = probe.target_of(config)
    running = metrics.work(probe.metrics(target)).running
    made = Record(weights(config), config.pace, _by(config), stamp(time.time()), busy=bool(running))
    return golden.ask(target, made, int(config.settings.get("context") or 0), kinds)


def weights(config: Description) -> str:
    """The same where numbers have to be the same. A branch of a repository is what it is here now; a directory has no
    revision, so what was replaced in place counts as the same."""
    name = config.settings.get("model", "")
    cache = caches.Cache(config.model_directory)
    held = "" if name.startswith("/") else caches.revision(cache, name, config.revision or "main")
    return config_hash(config.numbers, held or config.revision)


def _by(config: Description) -> str:
    engine = config.settings.get("engine", config.engine)
    return f"{engine} on {config.nodes} node{'s' if config.nodes > 1 else ''}"
