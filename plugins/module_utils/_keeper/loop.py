# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""``sparkmatrix-node keep``: start all ranks in their order, and all together again when one is lost.

The loop around :mod:`_keeper.decide`, which decides. It runs on the head. Stopping it leaves the ranks alone; a keeper
that finds them running adopts them.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import listening, paths, strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import (
    causes,
    engine_json,
    kept_plan,
    probe,
    ray_cluster,
    word,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import rank as engine_rank
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.engine_json import Description, Settings
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import Names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.report import UnitReport
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import (
    decide,
    drain,
    gateway_probe,
    golden_check,
    in_place,
    missing_ranks,
    progress,
    start_times,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import peers as keeper_peers
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.decide import Member, Policy, Verdict, View
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.in_place import InPlace
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.model_socket import ModelSocket
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.parts import Parts, Reach
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
        self.place = InPlace(parts, self.note, settings.hang_s if settings.trial else 0.0)

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

    def _run(self) -> int:
        parts = self.parts
        before = parts.store.begin(parts.boot)
        self.settings_before = before.settings
        anew = self.place.begin(before)
        self.policy, remark = decide.resume(self.settings, before, parts.boot)
        self.start_wall = parts.wall()
        if self.policy.gave_up:
            return self.give_up(self.policy.gave_up)
        if remark:
            self.note("wedge", remark)
            self.place.gives_way(Verdict("wedge", remark), remark)  # it may be why
            if self.policy.exhausted:
                return self.give_up(remark)
            self.pause(self.policy.backoff(), remark)
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
            if trouble.kind == "memory" and not self.place.models.trial:
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
            other = self.place.gives_way(trouble, reason)
            reason = other or reason
            if not other:
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
        answers = keeper_peers.at_once([self.parts.addresses[member.host] for member in found[1:]], self.parts.ping)
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
            parts.prober.reset(paused=True)
            told = f"answers that are being written may end, for at most {word.DRAIN_S:.0f} s"
            drain.drain(parts.busy, lambda: self.enter(word.DRAINING, told), parts.clock, parts.sleep)
        self.enter("starting", "stopping what is there", start_since=stamp(parts.wall()))
        ran = not all(member.stopped for member in self.members())
        problem = self.stop_all(gentle)
        if problem:
            return Verdict("start", problem)
        if ran:
            self.part_ends("stop")
        problem = self.place.put()
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

    def part_ends(self, name: str) -> None:
        now = self.parts.clock()
        self.parts_of_start[name], self.part_since = now - self.part_since, now

    def stop_all(self, gentle: bool, only_seen: bool = False) -> str:
        """The head first: it ends its requests and tells its workers. A worker that waits for the head, or ignores
        SIGTERM, is killed after a short grace; so is a container, which may have outlived its unit."""
        found = [member for member in self.members() if member.seen or not only_seen]
        running = {member.host for member in found if not member.stopped}
        ended = {member.host for member in found if self.parts.containers or not member.stopped}
        nodes = [node for node in self.parts.nodes if node.host in ended]
        if gentle and nodes and nodes[0] is self.parts.nodes[0] and nodes[0].host in running:
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
        return in_place.each(nodes, lambda node: node.act(action))

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
        if all(member.seen for member in members):  # looking takes processors that a load needs
            return None
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
        self.place.serves()
        took = f", {began - self.broke_at:.0f} s after the failure" if self.broke_at is not None else ""
        self.enter("serving", f"it serves{took}", start_since="", stable=False)
        if self.broke_at is not None:
            parts.store.recovered(began - self.broke_at, parts.say)
            self.broke_at = None
        while True:
            view = self.view()
            verdict = decide.judge(self.settings, parts.clock(), view, self.started) or self.place.tries(view)
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
            wanted = self.place.wanted()
            if wanted:
                return Verdict("switch", f"{wanted} is asked for")
            (parts.idle or parts.sleep)(TICK_S)

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
            self.parts.socket.serves_since = None
        self.parts.socket.tell()
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

    def again(placed: str) -> None:
        for other in others:
            other.leave()
        in_place.again(machine, config.instance, placed)

    return Keeper(
        settings,
        Parts(
            nodes=nodes,
            addresses={member.host: member.address for member in members},
            prober=prober,
            metrics=lambda: drain.page(config),
            ping=keeper_peers.pings,
            ray=lambda: _ray(config),
            taken=lambda: listening.taken(machine, config.host, config.port),
            busy=lambda: drain.busy(config),
            start_ray=(lambda: _start_ray(node)) if config.backend == "ray" else None,
            explain=lambda unit, invocation: causes.explain(unit, machine.runner, invocation),
            store=store,
            socket=opened,
            again=again,
            outlived=lambda: in_place.outlived(machine, config.instance),
            placed=os.environ.pop(in_place.PLACED, ""),
            unit=Names(config.instance).keeper.partition(".")[0],
            boot=engine_rank.boot_id(machine),
            sleep=lambda seconds: _sleep(seconds, pulse),
            idle=lambda seconds: _sleep(seconds, pulse, opened.wait),
            step=pulse.step,
            shutting_down=lambda: machine.runner(["systemctl", "is-system-running"]).out.strip() == "stopping",
            config=config.config_hash,
            before=lambda: in_place.before(machine, config.instance),
            compare=golden_check.Beside(lambda: golden_check.last_good(config)),
            settings=lambda: _settings(config.instance),
            told=lambda units: _told(node, units),
            loaded=lambda seconds, used, read: start_times.loaded(seconds, used, read, config, machine),
            budget=config.budget_bytes or _took(config),
            weights=config.weights_bytes,
            containers=node.ranks.container,
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


def _sleep(seconds: float, pulse: Pulse, wait: Callable[[float], object] = time.sleep) -> None:
    pulse.step()
    wait(seconds)
    pulse.step()


def _gateway_killed(store: Store, reason: str) -> None:
    engine_rank.say(f"gateway: {reason}")
    store.add(Entry(stamp(time.time()), GATEWAY, reason), engine_rank.say)


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
        machine = Machine()
        if in_place.outlived(machine, config.instance):
            in_place.again(machine, config.instance, os.environ.get(in_place.PLACED, ""))
        pulse = Pulse(hold(config.instance))
        keeper = make(config, pulse, machine)
    except SparkError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    pulse.begin()
    signal.signal(signal.SIGTERM, stop)
    return keeper.run()
