# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""How a run of Ansible asks an engine for an answer, and waits for one that the keeper starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Optional

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import api_paths, document, ports
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import (
    Count,
    Flag,
    Number,
    UrlOrEmpty,
    Word,
    WordOrEmpty,
    Words,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import probe
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import Names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.probe import Answer, ProbeError, Question
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import traffic
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import status
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.status import SERVING, elapsed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.store import (
    GATEWAY,
    State,
    Store,
    Verified,
    stamp,
)

_REMEDY = "sudo sparkmatrix status, on the head"
# The keeper's own limit comes first, so that its reason is what is read.
MARGIN_S = 60.0
MISSING = "waiting"
# A node that is missing, or a port that is taken, burns no start, however long; who waits is told after this time.
MISSING_S = 600.0
REFUSED = (401, 403)  # what a wrong key should get
FINAL = (400, 401, 404)  # HTTP statuses that no waiting changes


@dataclass(frozen=True)
class Part:
    """A wait that goes on in another call, so that whoever waits hears of it. ``words``: what the keeper does."""

    words: Words = ""
    waited_s: Number = 0.0
    missing_s: Number = 0.0  # since when nodes are missing
    failures: Optional[Count] = None  # when the wait began


@dataclass(frozen=True)
class Request:
    """Who is asked: ``description``, a file that the role engine has written about the service, or ``host`` to
    ``task``. With ``ready_timeout`` the engine may still be starting; the wait ends when ``unit`` dies, that of the
    service where none is named, or, with ``keeper``, when its keeper counts a failure.

    ``check_keeper``: ask the keeper first, and fail at once where it is stopped, has given up, starts, or has loaded
    another model than ``model``.
    ``check_access``: a wrong key has to be refused. ``check_rdma``: say what RDMA has moved meanwhile, and warn where
    it is nothing. ``expected``: tokens/s of the plan, least and most; the answer is kept as what was verified last.
    ``part`` and ``before``: after so many seconds :class:`Answered` has ``waiting``, and the next call goes on.
    """

    host: str = "127.0.0.1"
    port: int = ports.API
    model: str = ""
    key_file: str = ""
    task: str = field(default="generate", metadata=document.one_of(*api_paths.PROBED))
    description: str = ""
    prompt: str = probe.PROMPT
    max_tokens: int = 1
    timeout: float = 300.0  # of one answer, in seconds
    ready_timeout: float = 0.0
    unit: str = ""
    keeper: bool = False
    part: float = 0.0
    before: Part = Part()
    check_keeper: bool = False
    check_access: bool = False
    check_rdma: bool = False
    expected: tuple[float, ...] = ()

    @property
    def instance(self) -> str:
        return probe.read_config(self.description).instance if self.description else ""

    @property
    def watched(self) -> str:
        return self.unit or (Names(self.instance).unit if self.description else "")

    @property
    def question(self) -> Question:
        return Question(self.prompt, self.max_tokens, self.timeout)

    @property
    def target(self) -> probe.Target:
        """Read for each attempt: the key file may be written while the unit starts."""
        if self.description:
            return probe.target_of(probe.read_config(self.description))
        key = probe.read_key(self.key_file) if self.key_file else ""
        return probe.Target(self.host, self.port, self.model, key, self.task)


@dataclass
class Answered:
    """``ready``: it answered. ``rdma``: what RDMA moved, in words. ``start_parts``: seconds of the last start by part,
    ``start_load``: how fast it read. ``access``: the HTTP status that a wrong key got, 0 where none was tried; where
    that was not refused, ``failed_at`` is ``access``. ``waited_s`` is the controller's. ``reason``: in check mode, why
    there is no answer."""

    ready: Flag = False
    answer: Optional[Answer] = None
    endpoint: UrlOrEmpty = ""
    task: WordOrEmpty = ""
    waiting: Optional[Part] = None
    waited_s: Number = 0.0
    start_parts: Mapping[Word, Number] = field(default_factory=dict)
    start_load: Words = ""
    rdma: Words = ""
    access: Count = 0
    failed_at: WordOrEmpty = ""
    failed: Flag = False
    msg: Words = ""
    reason: Words = ""
    warnings: list[Words] = field(default_factory=list)


def answer(request: Request, check: bool) -> Answered:
    """In check mode an engine that does not answer is no failure, since an earlier task would have started it."""
    made = Answered()
    try:
        found = probe.ask(request.target, request.question) if check else _answered(request, made)
        if isinstance(found, Part):
            return Answered(waiting=found)
        target = request.target
        if request.check_access:
            made.failed_at, made.access = "access", _refused(target, request.watched)
            made.failed_at = ""
        if request.expected and not check:
            seen = Verified(stamp(time.time()), found.model, found.measured, found.tokens_per_s, *request.expected)
            Store(instance=request.instance).verify(seen)
    except SparkError as exc:
        if check:
            return Answered(reason=str(exc))
        return Answered(failed=True, msg=str(exc), failed_at=made.failed_at)
    made.ready, made.answer, made.task = True, found, target.task
    made.endpoint = f"{target.where}/v1"
    return made


def _answered(request: Request, made: Answered) -> Answer | Part:
    """A part, where the time of this one is over and the keeper goes on."""
    machine = Machine()
    rails = traffic.planned(machine) if request.check_rdma else ()
    before = traffic.read(machine, rails)
    found = _waited(request)
    if isinstance(found, Part):
        return found
    if request.keeper:
        state = Store(instance=request.instance).read()
        made.start_parts, made.start_load = state.start_parts, state.start_load
    if rails:
        unit = request.watched or "sparkmatrix-engine"
        judged = traffic.judge(rails, before, traffic.read(machine, rails), unit)
        made.rdma = judged.words
        made.warnings += [judged.warning] if judged.warning else []
    return found


def _waited(request: Request) -> Answer | Part:
    timeout = request.ready_timeout or request.timeout
    if request.keeper:
        return wait_ready(
            lambda: request.target,
            request.question,
            timeout,
            instance=request.instance,
            part_s=request.part,
            before=request.before,
        )
    if request.check_keeper:
        status.check(request.instance, model=request.model)
    return probe.wait_ready(lambda: request.target, request.question, request.watched, timeout, Machine())


def _refused(target: probe.Target, unit: str) -> int:
    """How a wrong key is refused."""
    got = probe.status_without_access(target)
    if got not in REFUSED:
        remedy = probe.OPEN.format(unit or "sparkmatrix-engine")
        raise SparkError(f"a wrong key got HTTP {got}, expected 401", target.where, remedy)
    return got


def wait_ready(
    target: Callable[[], probe.Target],
    question: Question,
    timeout_s: float,
    *,
    instance: str = "",
    part_s: float = 0.0,
    before: Part = Part(),
    store: Store | None = None,
    machine: Machine | None = None,
) -> Answer | Part:
    """Ask until tokens come. Ends early when the keeper counts another failure, gives up, or does not run.

    ``timeout_s``: at least; where the keeper gives a start longer, it is as long. After ``part_s`` seconds, unless that
    is 0, it returns how far it has come; ``before`` is what the call before has returned.
    """
    store, machine = store or Store(instance=instance), machine or Machine()
    clock = machine.clock
    unit = Names(instance).keeper
    entered = clock()
    began, complete_at = entered - before.waited_s, entered - before.missing_s
    first = store.read().failures if before.failures is None else before.failures
    while True:
        state = store.read()
        limit_s = max(timeout_s, state.start_limit_s) + MARGIN_S
        left = max(began + limit_s - clock(), 0.001)
        if state.phase != MISSING:
            complete_at = clock()
        last = ProbeError("waiting", f"the keeper says {state.phase}: {state.detail}", unit)
        # An engine that answers before the keeper is content may be the one that is about to be replaced.
        if state.phase == SERVING and state.pid == machine.unit(unit).main_pid:
            try:
                return probe.ask(target(), replace(question, timeout_s=min(question.timeout_s, left)), clock)
            except ProbeError as exc:
                last = exc
        if state.failures > first:
            raise SparkError("the engine did not come up", unit, _why(state))
        if not machine.works("systemctl", "is-active", "--quiet", unit):
            raise SparkError("the keeper of the engine does not run", unit, _why(state))
        if last.status in FINAL:
            raise SparkError(last.found, last.where, probe.refused(last.status, Names(instance).unit)) from last
        if clock() - complete_at >= MISSING_S:
            found = f"the keeper has waited for {MISSING_S:g} s, and goes on: {state.detail}"
            raise SparkError(found, unit, _REMEDY) from last
        if clock() >= began + limit_s:
            raise SparkError(f"no token within {limit_s:g} s; last: {last.found}", last.where, _REMEDY) from last
        if part_s and clock() - entered >= part_s:
            return Part(_words(state, limit_s, machine.now()), clock() - began, clock() - complete_at, first)
        machine.sleep(probe.POLL_S)


def _words(state: State, limit_s: float, now: float) -> str:
    """The figures come last: a narrow screen shows the end."""
    seconds = elapsed(state.since, now)
    told = "" if seconds is None else f" for {seconds} s"
    return f"{state.phase}{told} (at most {limit_s:g} s): {state.detail}"


def _why(state: State) -> str:
    """The reason of the last failure; the keeper has read it from the journal."""
    reasons = [entry.reason for entry in state.history if entry.event != GATEWAY]
    reason = reasons[-1] if reasons else state.detail
    return reason if state.end == "gave_up" else f"{reason}\nHow it is now: {_REMEDY}"
