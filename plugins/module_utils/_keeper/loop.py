# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""``sparkmatrix-node keep``: start all ranks in their order, and all together again when one is lost.

The loop around :mod:`_keeper.decide`, which decides. It runs on the head. Stopping it leaves the ranks alone; a keeper
that finds them running adopts them.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import listening, paths, strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import (
    causes,
    engine_json,
    kept_plan,
    metrics,
    probe,
    ray_cluster,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import rank as engine_rank
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.at_hand import Wanted
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.engine_json import Description, Settings
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import Names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.report import Report, UnitReport
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import (
    by_name,
    decide,
    gateway_probe,
    missing_ranks,
    model_socket,
    progress,
    start_times,
    word,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import peers as keeper_peers
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.by_name import Models
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.decide import Member, Policy, Verdict, View
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.model_socket import ModelSocket
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.prober import Prober
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.pulse import Pulse, hold
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.store import (
    GATEWAY,
    Entry,
    State,
    Store,
    seconds,
    stamp,
)

HELP = "keep the engine of this cluster running"
GAVE_UP = 3  # exit code; the unit does not start it again then
TICK_S = 2.0
LOAD_TICK_S = 0.5  # somebody waits
METRICS_S = 5.0
SUSPECT_S = 3.0  # a probe that takes longer is a reason to look at the fabric
RAY_S = 60.0
TOLD_S = 10.0  # between two words about how far a load is
LOGGED_S = 60.0  # the same in the journal


class StopError(Exception):
    """SIGTERM."""


class Reach(Protocol):
    """A node: :class:`_keeper.peers.Here` or :class:`_keeper.peers.There`."""

    host: str

    def latest(self) -> tuple[bool, Report, str]: ...

    def act(self, action: str) -> str: ...

    def switch(self, action: str, told: str) -> str: ...


@dataclass
class Parts:
    """What the keeper works with; all of it is replaced by tests. The first of ``nodes`` is the head."""

    nodes: Sequence[Reach]
    addresses: Mapping[str, str]  # host -> address on the fabric
    prober: Prober
    metrics: Callable[[], str]
    ping: Callable[[str], bool | None]
    ray: Callable[[], str]  # what is wrong with the Ray cluster, or nothing
    taken: Callable[[], str]  # who listens where the engine is about to
    explain: Callable[[str, str], str]  # unit, invocation -> what its journal says
    store: Store
    boot: str
    shutting_down: Callable[[], bool]
    busy: Callable[[], bool] = lambda: False  # requests run that a gateway has sent
    start_ray: Callable[[], str] | None = None  # starts the head's part of Ray; None without Ray
    socket: ModelSocket | None = None  # where clients ask for models by name
    again: Callable[[], None] = lambda: None  # begin anew, as the keeper of the model that is in place now
    sleep: Callable[[float], None] = time.sleep
    step: Callable[[], None] = lambda: None  # told that the loop goes on
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    say: Callable[[str], object] = engine_rank.say
    settings: Callable[[], Mapping[str, str]] = dict  # that the ranks have to run with now, for people
    # What the engine says of its load, given the head's units as they run.
    told: Callable[[Mapping[str, UnitReport]], start_times.Told] = lambda _units: start_times.Told()
    # Of seconds, the loader that was used and bytes read, how fast the weights were read, in words.
    loaded: Callable[[float, str | None, int], str] = lambda _seconds, _used, _read: ""
    budget: int = 0
    weights: int = 0  # bytes that a rank reads, as the plan knows
    unit: str = "sparkmatrix-keeper"  # this keeper's own


class Keeper:
    def __init__(self, settings: Settings, parts: Parts) -> None:
        self.settings = settings
        self.parts = parts
        self.policy = Policy(settings)
        self.loading: list[progress.Rank] = []
        self.parts_of_start: dict[str, float] = {}  # seconds; empty where it found the ranks running
        self.loaded = ""
        self.part_since = 0.0
        self.watched = missing_ranks.Watched(0.0)
        self.started: dict[str, tuple[tuple[str, str], ...]] = {}  # invocations that belong together, by host
        self.told_at = self.logged_at = 0.0  # how far a load is
        self.progress_at = 0.0
        self.progress: tuple[str, ...] = ()
        self.metrics_at = 0.0
        self.start_wall = 0.0
        self.broke_at: float | None = None
        self.settings_before: Mapping[str, str] = {}  # with which the ranks run
        self.socket = parts.socket or ModelSocket("")

    @property
    def state(self) -> State:
        return self.parts.store.state

    # -- the whole --------------------------------------------------------------------------------------------------

    def run(self) -> int:
        try:
            return self._run()
        except StopError:
            self._save(end="shutdown" if self.parts.shutting_down() else "stopped")
            self.parts.say("Stopped. The ranks are left as they are")
            return 0
        finally:
            self.socket.end()

    def _run(self) -> int:
        parts = self.parts
        before = parts.store.begin(parts.boot)
        self.settings_before = before.settings
        plans = self.socket.look()
        self.know(by_name.adopted(before.models, self.socket.model, plans, stopped=before.end == "stopped"))
        self.policy, remark = decide.resume(self.settings, before, parts.boot)
        self.start_wall = parts.wall()
        if self.policy.gave_up:
            return self.give_up(self.policy.gave_up)
        if remark:
            self.note("wedge", remark)
            if self.models.trial:  # it may be why
                self.go_back(remark)
            if self.policy.exhausted:
                return self.give_up(remark)
            self.pause(self.policy.backoff(), remark)
        # Cut off before the files of the other model were in place.
        anew = self.models.going not in ("", self.socket.model)
        gentle = True
        while True:
            self.wait_for_members()
            trouble: Verdict | None = None
            members = self.members()
            stale = decide.outdated(members)
            if not stale:
                self.settings_before = parts.settings()
            elif not anew:
                self.note(stale.kind, self.named(stale), stale.host)
            if anew or stale or not all(member.running for member in members):
                trouble = self.bring_up(gentle)
            trouble = trouble or self.load() or self.serve()
            if trouble.kind == "memory" and not self.models.trial:
                return self.give_up(trouble.reason)
            watchdog = self.broken(trouble)
            if self.policy.exhausted:
                return self.give_up(trouble.reason)
            gentle, anew = trouble.planned, True
            if not trouble.planned:
                self.pause(self.policy.backoff(watchdog), trouble.reason)

    def broken(self, trouble: Verdict) -> bool:
        """Count it, keep the reason, and end what is left of the engine; whether it was the memory watchdog."""
        parts = self.parts
        self.broke_at = parts.clock()
        stopped_for = self.watchdog(trouble.host)
        reason = f"the memory watchdog stopped it: {stopped_for}" if stopped_for else self.named(trouble)
        # Before the history: whoever reads there that it broke must not read beside it that it serves.
        self.enter("stopping", reason, start_since="")
        # A start that fails while a node goes away says nothing about the engine.
        absent = trouble.kind == "start" and decide.missing(self.members(ping=True))
        if not trouble.planned and not absent:
            if self.models.trial:
                reason = f"{self.models.going} does not start, so {self.models.loaded} comes back: {reason}"
                self.go_back(reason)
            else:
                self.policy.failed()
        self.note("watchdog" if stopped_for else trouble.kind, reason, trouble.host)
        parts.prober.reset(paused=True)
        if not trouble.planned:
            self.stop_all(gentle=False, only_seen=True)
        return bool(stopped_for)

    def named(self, trouble: Verdict) -> str:
        """The reason; of another configuration also what is another."""
        changed = decide.changed_settings(self.settings_before, self.parts.settings()) if trouble.planned else ""
        return f"{changed}: {trouble.reason}" if changed else trouble.reason

    def watchdog(self, host: str) -> str:
        for member in self.members():
            found = member.report.watchdog
            if member.host == host and found.reason and (seconds(found.time) or 0.0) >= self.start_wall - 1:
                return found.reason
        return ""

    def give_up(self, reason: str) -> int:
        last = reason.rstrip(".")
        # First: cut off in between, a keeper that had given up would begin anew at the next boot.
        self._save(phase="gave_up", detail=last, end="gave_up")
        self.note("gave_up", last)
        self.parts.say(
            f"Gave up after {self.policy.failures} failures: {last}. Remove the cause, then begin anew:"
            f" systemctl restart {self.parts.unit}"
        )
        return GAVE_UP

    # -- reading ----------------------------------------------------------------------------------------------------

    def members(self, ping: bool = False) -> list[Member]:
        found = []
        for node in self.parts.nodes:
            seen, report, problem = node.latest()
            found.append(Member(node.host, seen, report, problem=problem))
        if not ping or len(found) < 2:
            return found
        with ThreadPoolExecutor(max_workers=16) as pool:
            answers = list(pool.map(self.parts.ping, [self.parts.addresses[member.host] for member in found[1:]]))
        return [found[0], *(replace(member, pings=answer) for member, answer in zip(found[1:], answers))]

    def view(self) -> View:
        parts, now = self.parts, self.parts.clock()
        prober = parts.prober
        silent = prober.silent_since
        members = self.members()
        if (silent is not None and now - silent > SUSPECT_S) or not all(member.seen for member in members):
            members = self.members(ping=True)
            if silent is None:
                prober.wake.set()
        missed = self.watched.see(members, now)
        # An engine that answers nothing makes whoever asks wait; a rank that is gone decides without its counters.
        if not missed and now - self.metrics_at >= METRICS_S:
            self.metrics_at = now
            found = decide.fingerprint(parts.metrics())
            if found and found != self.progress:
                self.progress, self.progress_at = found, now
        self.progress_at = max(self.progress_at, prober.ok_at or 0.0)
        return View(members, silent, prober.kind, self.progress_at, bool(self.progress), missed)

    # -- phases -----------------------------------------------------------------------------------------------------

    def wait_for_members(self) -> None:
        """For as long as it takes: a node that is off, or a cable that is out, burns no start."""
        began = self.parts.clock()
        while True:
            absent = decide.missing(self.members(ping=True))
            if not absent:
                return
            self.enter("waiting", "; ".join(absent))
            # At first they have only just been asked.
            self.parts.sleep(LOAD_TICK_S if self.parts.clock() - began < TOLD_S else TICK_S)

    def bring_up(self, gentle: bool) -> Verdict | None:
        """Stop what is there, wait for memory, start all ranks. What went wrong, or None."""
        parts = self.parts
        self.parts_of_start, self.part_since = {}, parts.clock()
        if gentle:
            self.drain()
        self.enter("starting", "stopping what is there", start_since=stamp(parts.wall()))
        ran = not all(member.stopped for member in self.members())
        problem = self.stop_all(gentle)
        if problem:
            return Verdict("start", problem)
        if ran:
            self.part_ends("stop")
        problem = self.put_in_place()
        if problem:
            return Verdict("start", problem)
        short = self.wait_for_memory()
        if short:
            return Verdict("memory", short)
        self.wait_for_port()
        self.part_ends("memory")
        self.settings_before = parts.settings()
        self.enter("starting", "starting the ranks")
        self.start_wall = parts.wall()
        problem = self.start_all()
        if problem:
            return Verdict("start", problem, parts.nodes[0].host)
        self.part_ends("ranks")
        return None

    def drain(self) -> None:
        """What runs may end, for a while; the gateway sends nothing new meanwhile."""
        self.parts.prober.reset(paused=True)
        until = self.parts.clock() + word.DRAIN_S
        while self.parts.busy() and self.parts.clock() < until:
            self.enter(word.DRAINING, f"answers that are being written may end, for at most {word.DRAIN_S:.0f} s")
            self.parts.sleep(LOAD_TICK_S)

    def part_ends(self, name: str) -> None:
        now = self.parts.clock()
        self.parts_of_start[name], self.part_since = now - self.part_since, now

    def stop_all(self, gentle: bool, only_seen: bool = False) -> str:
        """The head first: it ends its requests and tells its workers. A worker that waits for the head, or ignores
        SIGTERM, is killed after a short grace."""
        found = [member for member in self.members() if member.seen or not only_seen]
        running = {member.host for member in found if not member.stopped}
        nodes = [node for node in self.parts.nodes if node.host in running]
        if gentle and nodes and nodes[0] is self.parts.nodes[0]:
            problem = nodes[0].act("stop")
            if problem:
                return problem
            nodes = nodes[1:]
        return self._on_all(nodes, "kill")

    def start_all(self) -> str:
        parts = self.parts
        head, others = parts.nodes[0], parts.nodes[1:]
        if parts.start_ray is None:
            return self._on_all(parts.nodes, "start")
        problem = parts.start_ray() or self._on_all(others, "start")
        if problem:
            return problem
        self.enter("starting", "waiting for all nodes in Ray")
        problem = parts.ray()
        if problem:
            return problem
        self.enter("starting", "starting the engine")
        return head.act("start")

    def _on_all(self, nodes: Sequence[Reach], action: str) -> str:
        return self._each(nodes, lambda node: node.act(action))

    def _each(self, nodes: Sequence[Reach], act: Callable[[Reach], str]) -> str:
        if not nodes:
            return ""
        with ThreadPoolExecutor(max_workers=16) as pool:
            problems = list(pool.map(act, nodes))
        return "; ".join(problem for problem in problems if problem)

    def wait_for_memory(self) -> str:
        deadline = self.parts.clock() + self.settings.memory_wait_s
        while True:
            short = decide.short_of_memory(self.members(), self.parts.budget)
            if not short:
                return ""
            self.enter("memory", "; ".join(short))
            if self.parts.clock() >= deadline:
                return (
                    f"not started, because it would not fit: {'; '.join(short)}, after waiting"
                    f" {self.settings.memory_wait_s:.0f} s. See what holds the memory there: ps aux --sort=-rss"
                )
            self.parts.sleep(TICK_S)

    def wait_for_port(self) -> None:
        """For as long as it takes, like a node that is off: the engine could not listen, after minutes of loading."""
        while True:
            who = self.parts.taken()
            if not who:
                break
            told = f"its port is taken by {who}. Stop it, or choose another port for the engine"
            self.enter("waiting", told, start_since="")
            self.parts.sleep(TICK_S)
        if not self.state.start_since:
            self._save(start_since=self.started_at)

    def load(self) -> Verdict | None:
        """Until the first token. What went wrong, or None."""
        parts = self.parts
        began = self.logged_at = parts.clock()
        parts.prober.reset(paused=False, hasty=True)
        parts.prober.wake.set()
        self.enter("loading", "the ranks run", start_since=self.started_at)
        # Reports of the other nodes are up to two seconds old: what they say of before the start does not count.
        parts.sleep(TICK_S + 1.0)
        self.loading = [progress.Rank(node.host, parts.weights) for node in parts.nodes]
        self.told_at = began - TOLD_S
        self.watched = missing_ranks.Watched(began + self.settings.ready_s)
        while True:
            members = self.members()
            self.tell_progress(members, began)
            dead = self.dead_rank(members)
            if dead or parts.prober.ok_at is not None:
                break
            trouble = self.failed_start(members, began)
            if trouble:
                return trouble
            parts.sleep(LOAD_TICK_S)
        if dead:
            return dead
        self.divide_start()
        self.started = {member.host: member.invocations for member in self.members()}
        self.watched = missing_ranks.Watched(parts.clock() + missing_ranks.LEARN_S)
        parts.prober.reset(paused=False)
        parts.prober.ok_at = self.progress_at = parts.clock()
        self.progress = ()
        return None

    def tell_progress(self, members: Sequence[Member], began: float) -> None:
        now = self.parts.clock()
        ranks = {rank.host: rank for rank in self.loading}
        progress.see(ranks, now, {member.host: member.units for member in members if member.seen})
        if now - self.told_at >= TOLD_S:
            self.told_at = now
            progress.hear(self.loading, self.parts.told(members[0].units).stage)
            reads = progress.stage(self.loading).startswith("while")
            self.enter("loading", progress.words(self.loading, now) if reads else self.how_far())
        if now - self.logged_at >= LOGGED_S:
            self.logged_at = now
            self.parts.say(f"loading for {now - began:.0f} s: {self.state.detail}")

    def dead_rank(self, members: Sequence[Member]) -> Verdict | None:
        for member in members:
            for name, unit in member.units.items() if member.seen else ():
                if unit.active in ("failed", "inactive", "deactivating"):
                    return Verdict("start", self.dead(member, name), member.host)
        return None

    def failed_start(self, members: Sequence[Member], began: float) -> Verdict | None:
        """Why no token will come, although all units run."""
        now = self.parts.clock()
        missed = decide.gone(now, self.watched.see(members, now), decide.LOADING_GONE_S, "start")
        if missed:
            return missed
        if self.parts.prober.kind == "name":
            wrong = "it is ready, and the plan has another name of its model"
            remedy = "Write served_model_name into its recipe, or @served@ into its command"
            return Verdict("start", f"{wrong}: {self.parts.prober.problem} {remedy}")
        if now - began > self.settings.ready_s:
            when = progress.stage(self.loading)
            over = f"the time limit of {self.settings.ready_s:.0f} s (engine_ready_timeout_s) ended the start"
            return Verdict("start", f"no token: {over}{f' {when}' if when else ''}: {self.how_far()}")
        away = [member.host for member in self.members(ping=True) if member.pings is False]
        if away and not any(member.seen for member in members if member.host in away):
            return Verdict("lost", f"{', '.join(away)} went away while the engine was loading", away[0])
        return None

    def divide_start(self) -> None:
        """A start has ended with its first token: where its time went."""
        if not self.parts_of_start:
            return
        since = self.part_since
        self.part_ends(start_times.LOAD)
        told = self.parts.told(self.members()[0].units)
        self.parts_of_start = start_times.divided(self.parts_of_start, told, since)
        read = min((rank.own for rank in self.loading if rank.seen), default=0)
        self.loaded = self.parts.loaded(self.parts_of_start.get("weights", 0.0), told.loader, read)
        self.parts.say(f"first token after {start_times.words(self.parts_of_start, self.loaded)}")

    def how_far(self) -> str:
        words = progress.words(self.loading, self.parts.clock())
        return f"{words or 'the ranks run'}; last probe: {self.parts.prober.problem or 'none yet'}"

    def dead(self, member: Member, name: str) -> str:
        sentence = decide.dead_sentence(member, name)
        if member.host == self.parts.nodes[0].host:
            return f"{sentence}. {self.parts.explain(name, member.units[name].invocation)}"
        why = member.units[name].why
        return f"{sentence}. {why}" if why else f"{sentence}. See journalctl -u {name} there"

    def serve(self) -> Verdict:
        """Until something is wrong."""
        parts = self.parts
        began = parts.clock()
        self.know(by_name.arrived(self.models, parts.wall()), serves=True)
        took = f", {began - self.broke_at:.0f} s after the failure" if self.broke_at is not None else ""
        self.enter("serving", f"it serves{took}", start_since="", stable=False)
        if self.broke_at is not None:
            parts.store.recovered(began - self.broke_at, parts.say)
            self.broke_at = None
        while True:
            verdict = decide.judge(self.settings, parts.clock(), self.view(), self.started)
            if verdict is not None:
                return verdict
            served = parts.clock() - began
            self.policy.served(served)
            if served >= self.settings.stable_s and not self.state.stable:
                self._save(stable=True)
            silent = parts.prober.silent_since
            slow = silent is not None and parts.clock() - silent > self.settings.probe_timeout_s
            detail = f"it serves{took}"
            if parts.prober.gateway_problem:
                detail = f"it serves, but not through the gateway: {parts.prober.gateway_problem}"
            if parts.prober.blind:
                detail = f"it runs, and cannot be asked for a token: {parts.prober.blind}"
            if slow:
                detail = "busy: no answer to the probe"
                if not self.progress:
                    detail += "; this engine shows no counters, so only a dead rank or a lost node restarts it"
                elif parts.prober.kind == "status":
                    detail = f"the probe is refused: {parts.prober.problem}"
            self.enter("serving", detail)
            wanted = self.wanted()
            if wanted:
                return Verdict("switch", f"{wanted} is asked for")
            parts.sleep(TICK_S)

    # -- models by name -----------------------------------------------------------------------------------------------

    @property
    def models(self) -> Models:
        return self.state.models

    def know(self, models: Models, serves: bool = False) -> None:
        """Keep it, and tell it: with ``serves`` the model that is loaded answers."""
        if models != self.models:
            self.parts.store.write(self.parts.say, models=models)
        self.socket.models, self.socket.serves_since = models, self.parts.wall() if serves else None
        self.socket.tell()

    def go_back(self, why: str) -> None:
        plan = self.socket.plans.get(self.models.going, "")
        self.know(by_name.failed(self.models, plan, why, self.parts.wall()))

    def wanted(self) -> str:
        """The model to switch to now: one that somebody waits for, and that all nodes can serve. None is stopped for
        one that they cannot."""
        parts, socket, now = self.parts, self.socket, self.parts.wall()
        model = by_name.chosen(self.models, socket.look(), socket.asked, socket.serves_since or now, now)
        problem = self.on_all_with("check", model) if model else ""
        if problem:
            parts.store.write(parts.say, models=by_name.marked(self.models, model, socket.plans[model], problem, now))
            self.note("broken", f"{model} cannot be served: {problem}")
            socket.models = self.models
        socket.tell()
        if not model or problem:
            return ""
        self.know(by_name.begun(self.models, model, now))
        return model

    def on_all_with(self, action: str, model: str) -> str:
        """The head last: where it has the files of a model in place, all others have had them before."""
        told = Wanted(model, self.socket.plans[model]).text
        nodes = self.parts.nodes
        return self._each(nodes[1:], lambda node: node.switch(action, told)) or nodes[0].switch(action, told)

    def put_in_place(self) -> str:
        """The files of the model that is to be served, on all nodes; what went wrong."""
        model = self.models.going or self.models.loaded
        if not self.socket.plans.get(model):
            return ""  # there is one
        problem = self.on_all_with("place", model)
        if not problem and model != self.socket.model:
            self.parts.again()
        return problem

    def pause(self, wait_s: float, why: str) -> None:
        if wait_s > 0:
            self.enter("backoff", f"waiting {wait_s:.0f} s: {why}")
            self.parts.sleep(wait_s)

    # -- keeping ----------------------------------------------------------------------------------------------------

    @property
    def started_at(self) -> str:
        """Since when this start goes on; now, where nobody has begun one."""
        return self.state.start_since or stamp(self.parts.wall())

    def enter(self, phase: str, detail: str, **changes: Any) -> None:
        """``changes``: further fields of :class:`State`, which are written where phase or detail is another one."""
        self.parts.step()
        detail = strict.harmless(detail)
        if phase != "serving":
            self.socket.serves_since = None
        self.socket.tell()
        if (phase, detail) == (self.state.phase, self.state.detail):
            return
        if phase != self.state.phase or phase == "starting":
            self.parts.say(f"{phase}: {detail}")
        self._save(phase=phase, detail=detail, **changes)

    def _save(self, **changes: Any) -> None:
        phase = changes.get("phase", self.state.phase)
        if phase != self.state.phase:
            changes["since"] = stamp(self.parts.wall())
        if phase != "serving":
            changes["stable"] = False
        self.parts.store.write(
            self.parts.say,
            stable_s=self.settings.stable_s,
            start_limit_s=self.settings.start_s,
            start_limit=self.settings.start_limit,
            start_parts=self.parts_of_start if phase == "serving" else {},
            start_load=self.loaded if phase == "serving" and self.parts_of_start else "",
            progress=progress.told(self.loading) if phase == "loading" else (),
            settings=self.settings_before,
            failures=self.policy.failures,
            **changes,
        )

    def note(self, event: str, reason: str, host: str = "") -> None:
        self.parts.say(f"{event}: {reason}")
        entry = Entry(stamp(self.parts.wall()), event, reason, host, self.policy.failures)
        self.parts.store.add(entry, self.parts.say)


# -- sparkmatrix-node keep --------------------------------------------------------------------------------------------


def make(config: Description, pulse: Pulse, machine: Machine) -> Keeper:
    """The real one, from the head's ``engine.json``."""
    settings, members = config.keeper, config.ordered
    node = engine_rank.Node(engine_rank.of(config), machine)
    others = [keeper_peers.There(member.host) for member in members[1:] if member.ranks]
    for other in others:
        other.begin()
    question = probe.Question(max_tokens=1, timeout_s=settings.probe_timeout_s)
    store = Store(instance=config.instance)
    gateway = gateway_probe.Gateway(
        config.model,
        task=config.task,
        machine=machine,
        note=lambda reason: _gateway_killed(store, reason),
    )

    def ask() -> str:
        if prober.hasty and config.health:
            probe.ready(probe.target_of(config), config.health)
        return gateway.probe(lambda: probe.target_of(config), question)

    prober = Prober(lambda: pulse.noted(ask), settings.probe_interval_s)
    prober.begin()
    nodes: list[Reach] = [keeper_peers.Here(members[0].host, node), *others]
    opened = ModelSocket(config.model, config.instance, machine)
    opened.begin()

    def again() -> None:
        for other in others:
            other.leave()
        model_socket.again(machine)

    return Keeper(
        settings,
        Parts(
            nodes=nodes,
            addresses={member.host: member.address for member in members},
            prober=prober,
            metrics=lambda: _metrics(config),
            ping=keeper_peers.pings,
            ray=lambda: _ray(config),
            taken=lambda: listening.taken(machine, config.host, config.port),
            busy=lambda: _busy(gateway, config),
            start_ray=(lambda: _start_ray(node)) if config.backend == "ray" else None,
            explain=lambda unit, invocation: causes.explain(unit, machine.runner, invocation),
            store=store,
            socket=opened,
            again=again,
            unit=Names(config.instance).keeper.partition(".")[0],
            boot=engine_rank.boot_id(machine),
            sleep=lambda seconds: _sleep(seconds, pulse),
            step=pulse.step,
            shutting_down=lambda: machine.runner(["systemctl", "is-system-running"]).out.strip() == "stopping",
            settings=lambda: _settings(config.instance),
            told=lambda units: _told(node, units),
            loaded=lambda seconds, used, read: start_times.loaded(seconds, used, read, config, machine),
            budget=config.budget_bytes or _took(config),
            weights=config.weights_bytes,
        ),
    )


def _took(config: Description) -> int:
    """What it took of this node when it served before, where no budget is planned."""
    image = config.settings.get("image", "")
    same = [one.took for one in kept_plan.taken_here() if (one.recipe, one.image) == (config.recipe, image)]
    return same[0] if same else 0


def _settings(instance: str) -> Mapping[str, str]:
    try:
        return engine_json.read(Names(instance).description).settings
    except SparkError:
        return {}


def _told(node: engine_rank.Node, units: Mapping[str, UnitReport]) -> start_times.Told:
    unit = node.ranks.engine
    return start_times.read(unit, units[unit].invocation, node.machine.runner) if unit in units else start_times.Told()


def _sleep(seconds: float, pulse: Pulse) -> None:
    pulse.step()
    time.sleep(seconds)
    pulse.step()


def _gateway_killed(store: Store, reason: str) -> None:
    engine_rank.say(f"gateway: {reason}")
    store.add(Entry(stamp(time.time()), GATEWAY, reason), engine_rank.say)


def _busy(gateway: gateway_probe.Gateway, config: Description) -> bool:
    with contextlib.suppress(SparkError):
        return gateway.leads and metrics.work(_metrics(config)).busy
    return False


def _metrics(config: Description) -> str:
    """Most engines show them to everybody."""
    try:
        return probe.metrics(probe.target_of(config))
    except SparkError:
        return probe.metrics(probe.Target(config.host, config.port, config.model))


def _start_ray(node: engine_rank.Node) -> str:
    """All units of the head but the engine."""
    try:
        for unit in node.ranks.units:
            if unit != node.ranks.engine:
                node.start(only=unit)
    except SparkError as exc:
        return str(exc)
    return ""


def _ray(config: Description) -> str:
    ray = config.ray
    if not ray.python:
        return ""
    nodes = {member.host: member.address for member in config.members}
    query = ray_cluster.Query(ray.python, ray.address, nodes, ray.environment, ray.user, RAY_S, ray.container)
    try:
        verdict = ray_cluster.read(query)
    except SparkError as exc:
        return str(exc)
    return "" if verdict.complete else f"Ray is not complete: {verdict.sentence(nodes)}"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="only see whether the other nodes let this one in")
    parser.add_argument("--config", default=paths.ENGINE, help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    def stop(_signal: int, _frame: object) -> None:
        raise StopError

    try:
        config = engine_json.read(arguments.config)
        if arguments.check:
            keeper_peers.check([member.host for member in config.ordered[1:] if member.ranks])
            return 0
        pulse = Pulse(hold(config.instance))
        keeper = make(config, pulse, Machine())
    except SparkError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    pulse.begin()
    signal.signal(signal.SIGTERM, stop)
    return keeper.run()
