# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What the keeper decides: whether the engine has to be started anew, when, and when to give up. Pure.

A busy engine is not a dead one. A failed probe alone decides nothing: a full queue and a long prompt look the same.
What decides is a rank that does not run, or whose process is gone, a node that is not on the fabric any more, or
counters of the engine that stand still for longer than any prompt takes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import engine_signs
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.engine_json import Settings
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.report import EMPTY, Report, UnitReport
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.store import State

# What moves in every step of an engine. Counters of requests are left out: an aborted one, as each probe is that gets
# no answer, may count without any work of a rank.
PROGRESS = frozenset(name for signs in engine_signs.ENGINES for name in (signs.tokens, *signs.moving))
# TensorRT-LLM's /metrics is a list of the iterations since it was last asked, empty while it stands still; needs
# enable_iter_perf_stats, which the plan sets. Its Prometheus page would not do: it is renewed when a request is
# finished, not while one long prompt is read. By pattern, since the list may be cut off.
_ITERATION = re.compile(r'"iter"\s*:\s*(\d+)')
_SAMPLE = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(\{[^}]*\})? (\S+)")
# How long a rank's process may be gone before the engine ends by itself, which tells more about why; vLLM takes 5 s.
GONE_S = 8.0
LOADING_GONE_S = 60.0  # the same while it loads, when it may have more to clear away
REFUSED_S = 20.0  # how long an engine whose process runs may have no open port
RUNNING = ("active", "reloading", "refreshing")
# After the memory watchdog nothing is started at once: the machine has to come to rest first.
WATCHDOG_BACKOFF_S = 60.0


def fingerprint(text: str) -> tuple[str, ...]:
    """What moves in an engine's ``/metrics`` while it works: samples in Prometheus text format, or the last iteration.

    Empty: nothing to go by, or no iteration since it was last asked.
    """
    if text.startswith("["):
        return tuple(f"iter={number}" for number in _ITERATION.findall(text)[-1:])
    found = []
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match and match.group(1) in PROGRESS:
            found.append(f"{match.group(1)}{match.group(2) or ''}={match.group(3)}")
    return tuple(sorted(found))


@dataclass(frozen=True)
class Member:
    """One node as the keeper sees it now. ``seen``: its last report is fresh. ``pings``: None where nobody asked."""

    host: str
    seen: bool = False
    report: Report = EMPTY
    pings: bool | None = None
    problem: str = ""

    @property
    def units(self) -> Mapping[str, UnitReport]:
        return self.report.units

    @property
    def running(self) -> bool:
        return bool(self.seen and self.units) and all(unit.active in RUNNING for unit in self.units.values())

    @property
    def stopped(self) -> bool:
        return all(unit.active in ("inactive", "failed") for unit in self.units.values())

    @property
    def invocations(self) -> tuple[tuple[str, str], ...]:
        return tuple((name, unit.invocation) for name, unit in self.units.items())


@dataclass(frozen=True)
class Gone:
    """The process of a rank that was there, and is not. ``since``: when it was missed first."""

    host: str
    what: str
    since: float


@dataclass(frozen=True)
class View:
    """One look. ``probe_ok``: when a token came last. ``failing_since``: since when none comes, None while it does."""

    members: Sequence[Member]
    failing_since: float | None = None
    failing_kind: str = ""  # of the last probe that failed: refused, stranger, timeout, status, ...
    progress_at: float = 0.0  # when the engine's counters moved last, or a token came
    counters: bool = True  # the engine shows counters
    gone: Sequence[Gone] = ()


@dataclass(frozen=True)
class Verdict:
    """``kind``: dead, changed (started by somebody else), lost, hang, closed, configuration, switch (to another model),
    or trial (what served before comes back)."""

    kind: str
    reason: str
    host: str = ""

    @property
    def planned(self) -> bool:
        return self.kind in ("configuration", "switch", "trial")


def judge(
    settings: Settings, now: float, view: View, started: Mapping[str, Sequence[tuple[str, str]]]
) -> Verdict | None:
    """Why all ranks have to be started anew, or None. ``started``: the invocations that belong together, by host."""
    return (
        _dead(view)
        or outdated(view.members)
        or _foreign(view, started)
        or gone(now, view.gone, GONE_S, "dead")
        or _lost(settings, now, view)
        or _closed(now, view)
        or _hangs(settings, now, view)
    )


def _dead(view: View) -> Verdict | None:
    for member in view.members:
        if not member.seen:
            continue
        for name, unit in member.units.items():
            if unit.active not in (*RUNNING, "activating"):
                return Verdict("dead", dead_sentence(member, name), member.host)
    return None


def dead_sentence(member: Member, name: str) -> str:
    unit = member.units[name]
    end = f"Result={unit.result}"
    if unit.status:
        end += f", status {unit.status}"
    return f"{name} does not run on {member.host} ({unit.active}, {end})"


def outdated(members: Sequence[Member]) -> Verdict | None:
    """A rank that runs with another configuration than its node now has."""
    for member in members:
        for name, unit in member.units.items():
            if member.seen and unit.wanted and unit.hash and unit.wanted != unit.hash and unit.active in RUNNING:
                return Verdict(
                    "configuration", f"{name} on {member.host} runs with an earlier configuration", member.host
                )
    return None


def changed_settings(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """What a user has changed, in his words; empty where nothing is known of before or none of these differs."""
    found = []
    for name in dict.fromkeys((*before, *now)):
        old, new = before.get(name, "none"), now.get(name, "none")
        if old != new:
            found.append(f"{name} {old} -> {new}")
    return ", ".join(found) if before else ""


def _foreign(view: View, started: Mapping[str, Sequence[tuple[str, str]]]) -> Verdict | None:
    """A rank that was started alone has lost the others; an engine of one unit is whole whoever started it."""
    if sum(len(member.units) for member in view.members) <= 1:
        return None
    for member in view.members:
        known = dict(started.get(member.host, ()))
        for name, invocation in member.invocations if member.seen else ():
            if known.get(name) and invocation and known[name] != invocation:
                return Verdict("changed", f"{name} was started again on {member.host}, without the others", member.host)
    return None


def gone(now: float, missed: Sequence[Gone], at_most_s: float, kind: str) -> Verdict | None:
    """Whether the engine has had ``at_most_s`` to end without a rank, and has not."""
    for loss in missed:
        if now - loss.since >= at_most_s:
            said = f"the process of a rank has been gone for {now - loss.since:.0f} s: {loss.what} on {loss.host}"
            return Verdict(kind, f"{said}; the engine has not ended without it", loss.host)
    return None


def _lost(settings: Settings, now: float, view: View) -> Verdict | None:
    gone = [member.host for member in view.members if member.pings is False]
    if not gone or view.failing_since is None:
        return None
    still = now - max(view.failing_since, view.progress_at)
    if still < settings.lost_s:
        return None
    return Verdict(
        "lost",
        f"{', '.join(gone)} is not on the fabric, and the engine has made no token for {still:.0f} s",
        gone[0],
    )


def _closed(now: float, view: View) -> Verdict | None:
    if (
        view.failing_since is None
        or view.failing_kind not in ("refused", "stranger")
        or now - view.failing_since < REFUSED_S
    ):
        return None
    state = "closed" if view.failing_kind == "refused" else "somebody else's"
    lasted = now - view.failing_since
    return Verdict("closed", f"the engine's process runs, and its port has been {state} for {lasted:.0f} s")


def _hangs(settings: Settings, now: float, view: View) -> Verdict | None:
    if view.failing_since is None or not view.counters:
        return None
    still = now - max(view.failing_since, view.progress_at)
    if still < settings.hang_s:
        return None
    return Verdict("hang", f"no answer to the probe, and the engine's counters have stood still for {still:.0f} s")


# -- starting ---------------------------------------------------------------------------------------------------------


def missing(members: Sequence[Member]) -> list[str]:
    """What has to be there before a start: one sentence per node that is not. A node that is off burns no attempt."""
    found = []
    for member in members:
        if not member.seen:
            why = f"does not answer ({member.problem})" if member.problem else "has not answered yet"
            found.append(f"{member.host} {why}")
        elif member.pings is False:
            found.append(f"{member.host} does not answer on the fabric")
    return found


def short_of_memory(members: Sequence[Member], budget: int) -> list[str]:
    """One sentence per node with less available memory than the plan's budget (bytes; 0: none is planned)."""
    gib = 2**30
    return [
        f"{member.host} has {member.report.available / gib:.1f} GiB available, the plan needs {budget / gib:.1f} GiB"
        for member in members
        if budget and member.report.available < budget
    ]


@dataclass
class Policy:
    """How often and how soon. State in a file, so that a machine that froze does not boot into the same wedge."""

    settings: Settings
    failures: int = 0
    gave_up: str = ""

    def failed(self) -> None:
        self.failures += 1

    def served(self, seconds: float) -> None:
        if seconds >= self.settings.stable_s:
            self.failures = 0

    @property
    def exhausted(self) -> bool:
        return self.failures >= self.settings.start_limit

    def backoff(self, watchdog: bool = False) -> float:
        """Seconds until the next start: none after the first failure, then doubling."""
        if self.failures <= 1:
            wait = 0.0
        else:
            wait = min(self.settings.backoff_s * 2.0 ** (self.failures - 2), self.settings.backoff_max_s)
        return max(wait, WATCHDOG_BACKOFF_S) if watchdog else wait


def resume(settings: Settings, before: State, boot: str) -> tuple[Policy, str]:
    """The policy to go on with, and what there is to say about how the last one ended.

    Stopped by hand, or restarted after it gave up: begins anew. A machine that went down while the engine started or
    had just begun to serve counts as a failure of the engine: it may have frozen because of it.
    """
    policy = Policy(settings)
    same_boot = before.boot == boot
    if before.end == "stopped" or (before.end == "gave_up" and same_boot) or not before.boot:
        return policy, ""
    policy.failures = before.failures
    if before.end == "gave_up":
        policy.gave_up = before.detail or "it had given up before the machine was started"
        return policy, ""
    serving = before.phase == "serving"
    if not same_boot and not before.end and not before.stable and (serving or before.phase in ("starting", "loading")):
        policy.failed()
        doing = "had not served for long" if serving else "was starting"
        return policy, f"the machine went down while the engine {doing}"
    return policy, ""
