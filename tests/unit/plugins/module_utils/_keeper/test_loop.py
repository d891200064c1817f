# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import word
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.engine_json import Description, Ray, Settings
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.golden import Difference
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.kept_plan import Taken
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Member
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.probe import (
    Answer,
    ProbeError,
    Question,
    Target,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.rank import WATCH_S
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.report import Report, Stopped, UnitReport
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.switch import Wanted, wanted
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import loop as keeper_loop
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import peers as keeper_peers
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import pulse as keeper_pulse
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import start_times, trial
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import status as keeper_status
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import wait as keeper_wait
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.golden_check import Compared
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.pulse import Pulse, Sign
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.start_times import Told
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.store import Before, Entry, Store
from fake_engine import KEY, fake_engine
from fake_machine import Printed
from module_runner import run_program

RAY, ENGINE = "sparkmatrix-ray.service", "sparkmatrix-engine.service"
SETTINGS = Settings(ready_s=100, memory_wait_s=30, hang_s=120, start_limit=3)


class EndOfTest(Exception):
    pass


class Again(BaseException):
    """The keeper has become that of what served before."""


class Node:
    """A node with its units. ``fate`` is what its units become after a start."""

    def __init__(self, cluster, host, units):
        self.cluster, self.host = cluster, host
        self.units = dict.fromkeys(units, "inactive")
        self.seen, self.available, self.watchdog, self.fate, self.refuses = True, 100, Stopped(), "active", ""
        self.hashes = {}
        self.lacks = {}  # what it says to a switch
        self.figures = {}
        self.invocation = 0

    def latest(self):
        units = {
            name: UnitReport(
                active=active,
                invocation=str(self.invocation),
                hash=self.hashes.get(name, ""),
                wanted="h",
                **self.figures,
            )
            for name, active in self.units.items()
        }
        report = Report(units, available=self.available, watchdog=self.watchdog)
        return self.seen, report, "" if self.seen else "off"

    def act(self, action):
        self.cluster.did.append(f"{action} {self.host}")
        if self.refuses:
            return self.refuses
        if action == "start":
            self.invocation += 1
        for name in self.units:
            self.units[name] = self.fate if action == "start" else "inactive"
            self.hashes[name] = "h"
        return ""

    def switch(self, action, told):
        assert wanted(told) == Wanted("p")
        self.cluster.did.append(f"{action} {self.host}")
        return self.lacks.get(action, "")


class Cluster:
    """Two nodes and a clock. ``plan``: what happens at which second; the test ends with ``until``."""

    def __init__(self, tmp_path, ray=True, budget=0):
        self.now, self.did, self.said, self.plan = 0.0, [], [], {}
        self.head = Node(self, "spark1", [RAY, ENGINE] if ray else [ENGINE])
        self.worker = Node(self, "spark2", [RAY] if ray else [ENGINE])
        self.gateway = ""
        self.unreadable = False
        self.pings, self.answers, self.counters = True, True, "vllm:generation_tokens_total 1"
        self.ray_problem = self.taken = ""
        self.store = Store(str(tmp_path))
        self.prober = keeper_loop.Prober(self.ask, 30.0, lambda: self.now)
        self.parts = keeper_loop.Parts(
            nodes=[self.head, self.worker],
            addresses={"spark1": "a", "spark2": "b"},
            prober=self.prober,
            metrics=lambda: self.counters,
            ping=lambda _address: self.pings,
            ray=lambda: self.ray_problem,
            start_ray=(lambda: self.did.append("ray spark1") or "") if ray else None,
            taken=lambda: self.taken,
            explain=lambda unit, _invocation: f"journal of {unit}",
            store=self.store,
            boot="boot",
            shutting_down=lambda: False,
            sleep=self.sleep,
            clock=lambda: self.now,
            wall=lambda: 1e9 + self.now,
            say=self.said.append,
            again=self.again,
            budget=budget,
        )
        self.until = 60.0

    def again(self, placed):
        self.parts.placed = placed
        raise Again

    def ask(self):
        if self.head.units[ENGINE] != "active":
            raise ProbeError("refused", "nothing listens there", "x")
        if self.unreadable:
            raise SparkError("the key file holds no key", "/key", "")
        if not self.answers:
            raise ProbeError("timeout", "no complete answer", "x")
        return self.gateway

    def sleep(self, seconds):
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + 1.0, end)
            for moment in sorted(self.plan):
                if moment <= self.now:
                    self.plan.pop(moment)()
            if not self.prober.paused and int(self.now) % 3 == 0:
                self.prober.once()
        if self.now > self.until:
            raise EndOfTest

    def runs_already(self, configuration="h"):
        for node in self.parts.nodes:
            node.act("start")
        self.head.hashes[ENGINE] = configuration
        self.did.clear()

    def keep(self, settings=SETTINGS, until=60.0):
        self.until = self.now + until
        while True:
            try:
                return keeper_loop.Keeper(settings, self.parts).run()
            except EndOfTest:
                return None
            except Again:
                self.parts.config = "old"

    @property
    def events(self):
        return [entry.event for entry in self.store.read().history]

    @property
    def phase(self):
        return self.store.read().phase


@pytest.fixture
def cluster(tmp_path):
    return Cluster(tmp_path)


def set_to(target, name, value):
    return lambda: setattr(target, name, value)


def test_the_loop_shows_that_it_goes_on(cluster):
    steps = []
    cluster.parts.step = lambda: steps.append(cluster.now)
    cluster.keep(until=200)
    assert max(later - earlier for earlier, later in zip(steps, steps[1:])) <= 3.0


def test_a_cold_start_goes_in_order(cluster):
    assert cluster.keep() is None
    assert cluster.did == ["ray spark1", "start spark2", "start spark1"]
    assert cluster.phase == "serving"
    assert cluster.events == []


def test_without_ray_all_ranks_start(tmp_path):
    cluster = Cluster(tmp_path, ray=False)
    cluster.keep()
    assert sorted(cluster.did) == ["start spark1", "start spark2"]


def test_running_ranks_are_adopted(cluster):
    cluster.runs_already()
    cluster.keep()
    assert cluster.did == []
    assert cluster.phase == "serving"


def test_ranks_with_an_earlier_configuration_are_replaced_gently(cluster):
    cluster.runs_already("old")
    cluster.keep()
    assert cluster.did[:2] == ["stop spark1", "kill spark2"]
    assert cluster.events == ["configuration"]
    assert cluster.store.read().failures == 0


@pytest.mark.parametrize(("ends", "waits"), [(20.0, 20.0), (9999.0, word.DRAIN_S)])
def test_a_planned_restart_lets_answers_end_first(cluster, ends, waits):
    """The gateway holds what is new, by the keeper's word; what runs for too long is ended."""
    words = []
    cluster.runs_already("old")
    cluster.parts.busy = lambda: words.append(word.read(word.path(root=cluster.store.root)).phase) or cluster.now < ends
    stopped = []
    cluster.head.act = lambda action, act=cluster.head.act: stopped.append(cluster.now) or act(action)
    cluster.keep(until=300)
    assert waits <= stopped[0] <= waits + 3
    assert set(words[1:]) == {"draining"}
    assert word.read(word.path(root=cluster.store.root)).phase == "serving"


def test_the_history_says_what_was_changed(cluster):
    cluster.parts.settings = lambda: {"context": "256" if cluster.now < 15 else "512", "model": "m"}
    cluster.plan[20.0] = lambda: cluster.head.hashes.update({ENGINE: "old"})
    cluster.keep(until=60)
    assert cluster.store.read().history[0].reason.startswith("context 256 -> 512: sparkmatrix-engine.service on spark1")
    assert cluster.store.read().settings == {"context": "512", "model": "m"}


def test_a_keeper_that_begins_knows_with_what_the_ranks_run(cluster):
    cluster.runs_already("old")
    cluster.store.write(print, settings={"context": "256"})
    cluster.parts.settings = lambda: {"context": "512", "image": "new"}
    cluster.keep()
    assert cluster.store.read().history[0].reason.startswith("context 256 -> 512, image none -> new: ")


def test_a_node_that_is_off_burns_no_start(cluster):
    cluster.worker.seen = False
    cluster.plan[300.0] = set_to(cluster.worker, "seen", True)
    cluster.pings = False
    cluster.plan[400.0] = set_to(cluster, "pings", True)
    cluster.keep(until=450)
    assert cluster.did == ["ray spark1", "start spark2", "start spark1"]
    assert cluster.store.read().failures == 0


def test_where_the_time_of_a_start_went(cluster):
    asked = []
    cluster.parts.told = lambda units: asked.append(units[ENGINE].invocation) or Told(1.0, 1.5, 0.5, "x", 0.0)
    cluster.parts.loaded = lambda seconds, used, _read: f"{used} for {seconds:g}"
    cluster.plan[20.0] = lambda: cluster.head.hashes.update({ENGINE: "old"})
    at = {}
    for second in (15.0, 60.0):
        cluster.plan[second] = lambda now=second: at.update({now: cluster.store.read().start_parts})
    cluster.keep(until=60)
    assert sorted(set(asked)) == ["1", "2"]
    assert list(at[15.0]) == [
        "memory",
        "ranks",
        "processes",
        "weights",
        "compile",
        "warm_up",
        "other",
    ]  # nothing was to be stopped
    assert list(at[60.0]) == ["stop", *at[15.0]]
    assert (at[60.0]["weights"], at[60.0]["compile"], at[60.0]["warm_up"]) == (1.0, 0.5, 1.0)
    assert [text for text in cluster.said if text.startswith("first token after ")][1].endswith(" s; x for 1")
    assert cluster.store.read().start_load == "x for 1"


def test_a_start_that_nobody_has_seen_has_no_parts(cluster):
    cluster.runs_already()
    cluster.keep()
    assert cluster.phase == "serving" and cluster.store.read().start_parts == {}


def test_a_port_that_is_taken_burns_no_start(cluster):
    who = cluster.taken = "python3 (process 7, account mallory)"
    seen = []
    cluster.plan[50.0] = lambda: seen.append((cluster.phase, cluster.store.read().detail, list(cluster.did)))
    cluster.plan[100.0] = set_to(cluster, "taken", "")
    cluster.keep(until=150)
    told = f"its port is taken by {who}. Stop it, or choose another port for the engine"
    assert seen == [("waiting", told, [])]
    assert cluster.did == ["ray spark1", "start spark2", "start spark1"]
    assert (cluster.store.read().failures, cluster.phase, cluster.events) == (0, "serving", [])


def test_containers_that_have_outlived_their_units_are_ended_before_a_start(cluster):
    """Also before the first one of a keeper, which lets answers end."""
    cluster.parts.containers = True

    def die():
        for node in cluster.parts.nodes:
            node.units.update(dict.fromkeys(node.units, "failed"))

    cluster.plan[20.0] = die
    cluster.keep()
    for once in (cluster.did[:5], cluster.did[-5:]):
        assert sorted(once[:2]) == ["kill spark1", "kill spark2"]
        assert once[2:] == ["ray spark1", "start spark2", "start spark1"]


def test_a_key_that_cannot_be_read_is_said_and_no_hang(cluster):
    cluster.plan[20.0] = set_to(cluster, "unreadable", True)
    seen = []
    cluster.plan[30.0] = lambda: seen.append(cluster.store.read().detail)
    cluster.plan[400.0] = set_to(cluster, "unreadable", False)
    cluster.keep(until=420)
    assert seen == ["it runs, and cannot be asked for a token: /key: the key file holds no key."]
    assert cluster.events == []
    assert cluster.store.read().detail == "it serves"


def test_a_dead_rank_restarts_all_of_them(cluster):
    cluster.plan[20.0] = lambda: cluster.worker.units.update({RAY: "failed"})
    cluster.keep()
    assert cluster.did[3:] == ["kill spark1", "ray spark1", "start spark2", "start spark1"]
    assert cluster.events == ["dead"]
    entry = cluster.store.read().history[0]
    assert entry.host == "spark2"
    assert entry.back_after_s < 20
    assert cluster.store.read().failures == 1


def test_what_broke_does_not_serve_any_more(cluster):
    phases = []
    cluster.store.add = lambda entry, _say: phases.append((entry.event, cluster.phase))
    cluster.plan[20.0] = lambda: cluster.worker.units.update({RAY: "failed"})
    cluster.keep()
    assert phases == [("dead", "stopping")]


def test_a_keeper_that_is_cut_off_as_it_gives_up_has_given_up(cluster):
    """Each write is of the whole document."""
    add, kept = cluster.store.add, []
    cluster.store.add = lambda entry, say: (add(entry, say), kept.append((entry.event, cluster.store.read().end)))
    cluster.head.fate = "failed"
    cluster.keep(until=500)
    assert kept[-1] == ("gave_up", "gave_up")


def test_a_dead_engine_is_explained(cluster):
    cluster.head.fate = "failed"
    assert cluster.keep(until=500) == keeper_loop.GAVE_UP
    assert cluster.events == ["start", "start", "start", "gave_up"]
    assert "journal of" in cluster.store.read().history[0].reason
    assert cluster.store.read().end == "gave_up"
    assert "systemctl restart sparkmatrix-keeper" in cluster.said[-1]
    # Begun anew by hand; after a boot it stays where it was.
    again = keeper_loop.Keeper(SETTINGS, replace(cluster.parts, boot="next"))
    assert again.run() == keeper_loop.GAVE_UP
    cluster.head.fate = "active"
    cluster.parts.boot = "next"
    assert cluster.keep(until=50) is None


def test_a_dead_rank_of_another_node_is_named(cluster):
    cluster.worker.fate = "failed"
    cluster.keep(until=15)
    assert "there" in cluster.store.read().history[0].reason


def test_a_hang(cluster):
    cluster.plan[20.0] = set_to(cluster, "answers", False)
    cluster.plan[160.0] = set_to(cluster, "answers", True)
    cluster.keep(until=200)
    assert cluster.events == ["hang"]


@pytest.mark.parametrize(("counters", "between"), [("vllm:kv_cache_usage_perc {}", ""), ('[{{"iter": {}}}]', "[]")])
def test_a_busy_engine_is_left_alone(cluster, counters, between):
    cluster.plan[20.0] = set_to(cluster, "answers", False)
    for moment in range(25, 900, 25):
        cluster.plan[float(moment)] = set_to(cluster, "counters", counters.format(moment))
        if between:
            cluster.plan[float(moment) + 6] = set_to(cluster, "counters", between)
    cluster.keep(until=880)
    assert cluster.events == []
    assert "busy" in cluster.store.read().detail


def test_a_node_that_loses_its_power(cluster):
    def off():
        cluster.worker.seen, cluster.pings, cluster.answers = False, False, False

    def on():
        cluster.worker.seen, cluster.pings, cluster.answers = True, True, True
        cluster.worker.units[RAY] = "inactive"

    cluster.plan = {20.0: off, 200.0: on}
    cluster.keep(until=300)
    assert cluster.events == ["lost"]
    assert cluster.store.read().failures == 1
    assert cluster.phase == "serving"


def test_a_node_that_goes_away_while_it_loads_does_not_count(cluster):
    cluster.answers = False

    def off():
        cluster.worker.seen, cluster.pings = False, False

    cluster.plan = {10.0: off}
    cluster.keep(until=60)
    assert cluster.events == ["lost"]
    assert cluster.phase == "waiting"


def test_memory_gate(tmp_path):
    cluster = Cluster(tmp_path, budget=200)
    cluster.plan[10.0] = lambda: (setattr(cluster.head, "available", 300), setattr(cluster.worker, "available", 300))
    cluster.keep()
    assert cluster.phase == "serving"


def test_memory_that_does_not_come_back(tmp_path):
    cluster = Cluster(tmp_path, budget=200 * 2**30)
    assert cluster.keep() == keeper_loop.GAVE_UP
    assert cluster.did == []
    assert "would not fit" in cluster.store.read().detail


def test_the_memory_watchdog_counts_and_waits_longer(cluster):
    def stopped():
        cluster.head.units[ENGINE] = "inactive"
        cluster.head.watchdog = Stopped("2096-01-01T00:00:00+00:00", "low")

    cluster.plan[20.0] = stopped
    cluster.keep(until=50)
    assert cluster.events == ["watchdog"]
    assert cluster.phase == "backoff"


@pytest.mark.parametrize("time", ["1996-01-01T00:00:00+00:00", "nonsense"])
def test_a_reason_of_another_time_is_not_this_one(cluster, time):
    cluster.head.watchdog = Stopped(time, "low")
    cluster.plan[20.0] = lambda: cluster.head.units.update({ENGINE: "failed"})
    cluster.keep(until=50)
    assert cluster.events == ["dead"]


@pytest.mark.parametrize(("answers", "event", "says"), [(True, "dead", ""), (False, "start", "for 60 s: ")])
def test_a_rank_that_dies_under_an_engine_that_goes_on(cluster, answers, event, says):
    """Also while it loads, when it may have more to clear away."""
    cluster.answers = answers
    cluster.worker.figures = {"looked": True, "ranks": {"10-5": "ray::RayWorkerProc"}}
    cluster.plan[20.0] = lambda: cluster.worker.figures.update(ranks={})
    cluster.keep(until=90)
    # Once: the next start has other processes, and those of before are not missed.
    assert cluster.events == [event]
    assert f"{says}ray::RayWorkerProc (sparkmatrix-ray.service) on spark2" in cluster.store.read().history[0].reason


@pytest.mark.parametrize("moment", range(20, 30))
def test_a_dead_rank_is_noticed_in_20_seconds_although_the_engine_answers_nothing(cluster, moment):
    """The engine is stopped, so whoever asks it for its counters waits until time is up."""
    stopped = []

    def counters():
        if stopped:
            cluster.sleep(keeper_loop.probe.METRICS_TIMEOUT_S)
        return "" if stopped else f"vllm:generation_tokens_total {cluster.now}"

    def stop():
        stopped.append(True)
        cluster.answers = False

    cluster.parts.metrics = counters
    cluster.worker.figures = {"looked": True, "ranks": {"10-5": "ray::RayWorkerProc"}}
    cluster.plan[moment] = stop
    cluster.plan[moment + 0.5] = lambda: cluster.worker.figures.update(ranks={})
    cluster.keep(until=90)
    assert cluster.events[0] == "dead"
    noticed = datetime.fromisoformat(cluster.store.read().history[0].time).timestamp() - 1e9
    reported = WATCH_S  # a node tells what it sees every other second
    assert noticed - moment + reported <= 20


def test_ray_that_is_not_complete_is_a_failed_start(cluster):
    cluster.ray_problem = "missing: spark2"
    cluster.keep(until=20)
    assert cluster.events[0] == "start"


def test_what_cannot_be_stopped_is_a_failed_start(cluster):
    cluster.runs_already("old")
    cluster.head.refuses = "hangs in the kernel"
    cluster.keep(until=20)
    assert cluster.store.read().history[1].reason == "hangs in the kernel"


def test_another_name_of_the_model_ends_a_start_at_once(cluster):
    def ask():
        raise ProbeError("name", "its models are big", "x")

    cluster.prober.ask = ask
    assert cluster.keep(until=300) == 3
    assert "its models are big. Write served_model_name into its recipe" in cluster.store.read().history[0].reason
    assert cluster.now < SETTINGS.ready_s


def test_no_token_in_time(cluster):
    cluster.answers = False
    cluster.keep(until=130)
    assert "the time limit of 100 s (engine_ready_timeout_s) ended the start: the ranks run" in (
        cluster.store.read().history[0].reason
    )


def test_how_far_a_load_is(cluster):
    gib = 2**30
    cluster.answers, cluster.parts.weights = False, 58 * gib
    for second in range(1, 100):
        reading = {"counted": True, "read": second * gib, "written": 0}
        cluster.plan[float(second)] = lambda figures=reading: cluster.worker.figures.update(figures)
    details = {}
    for second in (30, 40, 90):
        cluster.plan[second + 0.5] = lambda second=second: details.update({second: cluster.store.read()})
    cluster.keep(until=130)
    texts = [state.detail.split(";")[0] for state in details.values()]
    assert re.fullmatch(r"spark2 read 2\d.\d of 62.3 GB, 1.\d GB/s, \d\d s left", texts[0])
    assert texts[1].startswith("spark2 read 3")
    assert texts[2].endswith(" of 62.3 GB, warms up")
    assert details[40].progress[0].weights == 58 * gib
    assert details[40].since == details[30].since
    assert [text[:10] for text in cluster.said if "s: spark2 " in text] == ["loading fo"]
    reason = cluster.store.read().history[0].reason
    assert reason.startswith(
        "no token: the time limit of 100 s (engine_ready_timeout_s) ended the start in the warm-up, after all weights"
        " were read: spark2 read 62"
    )
    assert reason.endswith("last probe: x: no complete answer.")


def test_how_far_a_load_is_by_the_engines_own_words(cluster):
    """A real start: its weights came from the page cache, so its processes read little but Python."""
    lines = (Path(__file__).parents[3] / "fixtures/journal_of_a_start.txt").read_bytes().decode().split("\n")[:-1]
    cluster.parts.told = lambda _units: start_times.parse(
        line for line in lines if float(line[1:13]) - 39.8 <= cluster.now
    )
    cluster.answers, cluster.parts.weights = False, 16_400_000_000
    for second in range(1, 240):
        figures = {"counted": True, "read": second * 7_000_000, "written": 0}
        cluster.plan[float(second)] = lambda figures=figures: cluster.head.figures.update(figures)
    cluster.keep(replace(SETTINGS, ready_s=200), until=190)
    assert [text.partition(": ")[2].partition(";")[0] for text in cluster.said if text.startswith("loading for")] == [
        "spark1 starts its processes, spark2 starts its processes",
        "spark1 has its weights, compiles and warms up, spark2 has its weights, compiles and warms up",
        "spark1 has its weights, compiles and warms up, spark2 has its weights, compiles and warms up",
    ]


def test_a_freeze_while_it_started_counts(cluster):
    Store(cluster.store.root).write(print, boot="before", phase="loading", failures=1)
    cluster.keep(until=60)
    assert cluster.events == ["wedge"]
    Store(cluster.store.root).write(print, boot="before", phase="loading", failures=2)
    assert cluster.keep() == keeper_loop.GAVE_UP


def test_sigterm_leaves_the_ranks_alone(cluster):
    def stop():
        raise keeper_loop.StopError

    cluster.plan[20.0] = stop
    assert cluster.keep() == 0
    assert cluster.store.read().end == "stopped"
    assert cluster.head.units[ENGINE] == "active"
    cluster.parts.shutting_down = lambda: True
    cluster.plan[cluster.now + 5] = stop
    cluster.keep()
    assert cluster.store.read().end == "shutdown"


# -- the gateway


def test_a_gateway_that_fails_restarts_nothing(cluster):
    cluster.counters = ""
    cluster.plan[20.0] = set_to(cluster, "gateway", "sparkmatrix-gateway.service: it is failed")
    cluster.keep(until=900)
    assert cluster.did == ["ray spark1", "start spark2", "start spark1"] and cluster.events == []
    assert cluster.store.read().detail == (
        "it serves, but not through the gateway: sparkmatrix-gateway.service: it is failed"
    )
    cluster.gateway = ""
    cluster.keep(until=30)
    assert cluster.store.read().detail == "it serves"


def test_a_gateway_that_is_reloaded_is_not_worth_a_word(cluster):
    cluster.plan[20.0] = set_to(cluster, "gateway", "it restarts")
    cluster.plan[26.0] = set_to(cluster, "gateway", "")
    details = set()
    for second in range(40):
        cluster.plan[second + 0.5] = lambda: details.add(cluster.store.read().detail)
    cluster.keep()
    assert details and not any("gateway" in str(detail) for detail in details)


# -- prober, store, peers


def test_the_prober_runs_beside():
    asked = threading.Event()
    prober = keeper_loop.Prober(asked.set, 30.0)
    prober.reset(paused=False)
    prober.begin()
    assert asked.wait(5)


def test_the_prober_remembers_since_when():
    now = [0.0]
    prober = keeper_loop.Prober(lambda: None, 30.0, lambda: now[0])

    def fail():
        assert prober.silent_since is not None
        raise ProbeError("timeout", "no", "x")

    prober.ask = fail
    prober.once()
    now[0] = 9.0
    prober.once()
    assert (prober.silent_since, prober.kind) == (0.0, "timeout")
    prober.ask = lambda: None
    prober.once()
    assert (prober.silent_since, prober.ok_at) == (None, 9.0)


def prints(*lines, **more):
    """Another node, whose connection brings these lines."""
    return keeper_peers.There("b", popen=lambda *_a, **_k: Printed("".join(lines)), sleep=lambda _s: None, **more)


def test_another_node_reports_over_one_connection():
    now = [0.0]
    there = prints("motd\n", Report({}).text() + "\n", clock=lambda: now[0])
    assert there.latest()[0] is False
    there.follow(1)
    assert there.latest()[:2] == (True, Report({}))
    assert there.problem == "motd"
    now[0] = keeper_peers.FRESH_S + 1
    assert there.latest()[::2] == (False, "motd")

    def none(*_a, **_k):
        raise FileNotFoundError(2, "No such file")

    there.popen = none
    there.follow(1)
    assert "No such file" in there.problem


def test_a_node_that_lets_nobody_in_is_said_with_what_to_do():
    """The key of the peers was removed there."""
    line = "sparkmatrix-peer@10.0.0.14: Permission denied (publickey).\n"
    there = prints(line)
    assert there.latest()[::2] == (False, "")  # nobody has asked it yet
    there.follow(1)
    assert there.latest()[2] == f"{line.strip()} {keeper_peers.REMEDY}"


def test_a_report_that_is_not_understood_counts_as_none():
    lines = [Report({}, schema=9).text() + "\n", "\x1b[1mbye\n"]
    there = prints(lines[0])
    there.follow(1)
    seen, report, problem = there.latest()
    assert (seen, report) == (False, Report({})) and "schema 9, this release reads 1" in problem
    there.popen = lambda *_a, **_k: Printed("".join(lines))
    there.follow(1)
    assert there.problem == "?[1mbye"


def printed(program):
    """A connection whose other side is a real process."""
    return lambda _argv, **how: subprocess.Popen([sys.executable, "-c", program], **how)


@pytest.mark.parametrize(
    ("bytes_", "problem"),
    [
        (b"Gr\xfc\xdfe\n", "Gr\ufffd\ufffde"),  # a banner in Latin-1
        (b"[" * 200_000 + b"\n", "[[["),
        (b"{" * 200_000 + b"\n", "is not understood"),
        (b"x" * 3_000_000, "a line of more than"),
        (b"\x00\x1b]0;title\x07\n", "??]0;title?"),
        (b"", "the connection ended"),
    ],
    ids=["latin1", "brackets", "braces", "no newline", "control", "nothing"],
)
def test_the_keeper_survives_whatever_a_node_prints(tmp_path, bytes_, problem):
    said = tmp_path / "said"
    said.write_bytes(bytes_)
    program = f"import sys, shutil; shutil.copyfileobj(open({str(said)!r}, 'rb'), sys.stdout.buffer)"
    there = keeper_peers.There("b", popen=printed(program), sleep=lambda _s: None)
    there.follow(1)
    assert problem in there.problem
    assert len(there.problem) <= keeper_peers.SAID
    good = f"print({Report({}, boot='x').text()!r})"
    there.popen = printed(good)
    there.follow(1)
    assert there.latest()[:2] == (True, Report({}, boot="x"))


def test_nothing_ends_the_thread_that_watches_a_node(monkeypatch):
    def never_thought_of(_line):
        raise MemoryError("x")

    monkeypatch.setattr(keeper_peers, "parse", never_thought_of)
    there = keeper_peers.There("b", popen=printed("print('{}'); input()"), sleep=lambda _s: None)
    there.follow(2)
    assert there.problem == "what it says is not understood (x)"


def test_what_a_node_answers_is_short_and_printable():
    there = keeper_peers.There("b", runner=lambda _argv, _t: Completed(1, "", "\x1b[2J" + "x" * 9000))
    assert there.act("stop").startswith("b: ?[2Jxxx")
    assert len(there.act("stop")) < 600
    with pytest.raises(SparkError) as caught:
        keeper_peers.check(["b"], lambda _argv, _t: Completed(1, "", "y" * 9000))
    assert len(str(caught.value)) < 900


def test_another_node_is_told_by_one_word():
    answers = [Completed(0), Completed(1, "", "x: no"), Completed(124, "", "")]
    asked = []
    there = keeper_peers.There("b", runner=lambda argv, _t: asked.append(argv[-2:]) or answers.pop(0))
    assert [there.act("kill") for _ in range(3)] == ["", "b: x: no", "b: no answer to rank-kill within 240 s"]
    assert asked[0] == ["b", "rank-kill"]


def test_this_node_is_told_directly():
    class Own:
        def report(self):
            return Report({})

        def start(self):
            raise SparkError("no", "here")

        def stop(self):
            self.report = self.start

        kill = stop

    here = keeper_peers.Here("a", Own())
    assert here.latest() == (True, Report({}), "")
    assert here.act("start") == "here: no."
    assert here.act("stop") == ""
    assert here.latest()[0] is False


def test_check_says_which_node_does_not_let_it_in():
    good = Completed(0, Report({}).text())
    keeper_peers.check(["a"], lambda _argv, _t: good)
    with pytest.raises(SparkError, match=r"b \(Not allowed.\).*--tags access"):
        keeper_peers.check(["a", "b"], lambda argv, _t: good if argv[-2] == "a" else Completed(126, "", "Not allowed."))
    with pytest.raises(SparkError, match=r"a \(the report of its ranks is not understood"):
        keeper_peers.check(["a"], lambda _argv, _t: Completed(0, "{}"))


@pytest.mark.parametrize(("rc", "expected"), [(0, True), (1, False), (127, None)])
def test_ping(rc, expected):
    assert keeper_peers.pings("192.0.2.1", lambda _argv, _t: Completed(rc)) is expected


# -- commands


def config(tmp_path, engine=None, **changes):
    key = tmp_path / "key"
    key.write_text('VLLM_API_KEY="k"\n')
    made = Description(
        host="127.0.0.1",
        port=engine.port if engine else 1,
        model="m",
        key_file=str(key),
        units=(RAY, ENGINE),
        members=(Member("spark1", 0, "a", True, True), Member("spark2", 1, "b", False, False)),
        unit=ENGINE,
        backend="ray",
    )
    return replace(made, **changes)


def test_make_reads_the_description(tmp_path):
    def systemctl(argv):
        return Completed(
            0, "LoadState=loaded\nActiveState=active\nSubState=running\n" if "show" in argv else "stopping"
        )

    pulse = Pulse(-1)
    keeper = keeper_loop.make(
        config(tmp_path, keeper=Settings(hang_s=77), budget_bytes=5), pulse, Machine("/", systemctl)
    )
    parts = keeper.parts
    assert keeper.settings.hang_s == 77
    assert parts.budget == 5
    assert [node.host for node in parts.nodes] == ["spark1"]
    assert parts.shutting_down()
    assert parts.start_ray() == ""
    assert parts.ray() == ""
    assert parts.metrics() == ""
    assert "journal" in parts.explain(ENGINE, "")
    assert parts.told({ENGINE: UnitReport(invocation="i")}) == parts.told({}) == Told()
    with pytest.raises(ProbeError):
        parts.prober.ask()
    assert keeper_loop.make(config(tmp_path, backend="native"), pulse, Machine("/", systemctl)).parts.start_ray is None
    parts.sleep(0)
    assert pulse.stepped > 0


def test_what_it_took_before_is_waited_for_where_nothing_is_planned(tmp_path, monkeypatch):
    seen = [("other", "x:1", 9), ("own", "x:2", 8), ("own", "x:1", 7), ("own", "x:1", 6)]
    taken = tuple(Taken(recipe, image, 2, took) for recipe, image, took in seen)
    monkeypatch.setattr(keeper_loop.kept_plan, "taken_here", lambda: taken)

    def budget(**values):
        told = config(tmp_path, recipe="own", settings={"image": "x:1"}, **values)
        return keeper_loop.make(told, Pulse(-1), Machine("/", lambda _argv: None)).parts.budget

    assert (budget(), budget(budget_bytes=5)) == (7, 5)
    taken = ()
    assert budget() == 0


def test_a_path_that_answers_comes_before_a_token_while_it_loads(tmp_path):
    def prober(engine, model="tiny"):
        told = config(tmp_path, engine, health="/health", model=model)
        return keeper_loop.make(told, Pulse(-1), Machine("/", lambda _argv: None)).parts.prober

    with fake_engine("open") as engine:
        asked = prober(engine)
        asked.hasty = True
        asked.ask()
        paths = [path for _method, path, _body in engine.requests]
        assert paths == ["/health", "/v1/models", "/v1/chat/completions"]
        asked.hasty = False
        asked.ask()
        assert len(engine.requests) == 4
        other = prober(engine, "another")
        other.hasty = True
        other.once()
        assert (other.kind, "its models are tiny" in other.problem) == ("name", True)
        asked.hasty = True
        for mode, last in (("500", "/health"), ("404", "/v1/chat/completions")):
            engine.mode = mode
            with pytest.raises(ProbeError):
                asked.ask()
            assert engine.requests[-1][1] == last


def test_ray_is_asked_for_every_member(tmp_path, monkeypatch):
    ray = Ray("/p", "", "a:1", {}, "u")
    queries = []

    class Verdict:
        complete = False

        def sentence(self, nodes):
            return f"missing {max(nodes)}"

    monkeypatch.setattr(keeper_loop.ray_cluster, "read", lambda query: queries.append(query) or Verdict())
    assert keeper_loop._ray(config(tmp_path, ray=ray)) == "Ray is not complete: missing spark2"
    assert queries[0].nodes == {"spark1": "a", "spark2": "b"}

    def no(_query):
        raise SparkError("no python", "/p")

    monkeypatch.setattr(keeper_loop.ray_cluster, "read", no)
    assert "no python" in keeper_loop._ray(config(tmp_path, ray=ray))


def test_start_of_ray_says_what_went_wrong():
    node = keeper_loop.engine_rank.Node(
        keeper_loop.engine_rank.Ranks((RAY, ENGINE), ENGINE), Machine("/", lambda _argv: Completed(1, "", "no bus"))
    )
    assert "no bus" in keeper_loop._start_ray(node)


def test_the_command(tmp_path, monkeypatch, capsys):
    path = tmp_path / "engine.json"
    assert run_program(keeper_loop, "--config", str(path)) == 1
    assert "in no engine" in capsys.readouterr().err
    path.write_text(json.dumps(config(tmp_path).as_dict()))
    checked = []
    monkeypatch.setattr(keeper_loop.keeper_peers, "check", checked.append)
    assert run_program(keeper_loop, "--check", "--config", str(path)) == 0
    assert checked == [[]]
    handlers = []
    monkeypatch.setattr(keeper_loop.signal, "signal", lambda number, handler: handlers.append(handler))

    class Made:
        def run(self):
            with pytest.raises(keeper_loop.StopError):
                handlers[0](15, None)
            return 3

    monkeypatch.setattr(keeper_loop, "make", lambda _config, _pulse, _machine: Made())
    held = []
    monkeypatch.setattr(keeper_loop, "hold", lambda instance: held.append(keeper_pulse.hold(instance, str(tmp_path))))
    monkeypatch.setattr(keeper_loop, "Pulse", lambda _handle: Pulse(held.pop(0), tell=told.append))
    told = []
    assert run_program(keeper_loop, "--config", str(path)) == 3
    assert told == ["WATCHDOG=1", "READY=1"]
    capsys.readouterr()
    # That one still has the lock.
    assert run_program(keeper_loop, "--config", str(path)) == 1
    assert f"a keeper of this engine runs already (process {os.getpid()})" in capsys.readouterr().err


def test_metrics_are_read_with_the_key(monkeypatch):
    with fake_engine() as engine:
        target = Target("127.0.0.1", engine.port, "m", KEY)
        assert json.loads(keeper_loop.probe.metrics(target))
        assert keeper_loop.probe.metrics(replace(target, key="wrong")) == ""
        asked = len(engine.requests)
        monkeypatch.setattr(keeper_loop.probe.listening, "stranger", lambda *_args: "python3 (process 7)")
        assert keeper_loop.probe.metrics(target) == ""
        assert len(engine.requests) == asked


# -- status and waiting


def runner(rc=0, pid=0, active="active"):
    shown = f"LoadState=loaded\nActiveState={active}\nMainPID={pid}\n"
    return lambda argv: Completed(0, shown) if "show" in argv else Completed(rc)


def alive(_instance):
    return Sign(1, 1.0)


def test_status_tells_how_long(cluster):
    def shown():
        found = keeper_status.collect(
            cluster.store, Machine("/", runner(), now=cluster.parts.wall), sign=alive, ask=lambda _name: ""
        )
        return found.elapsed_s, found.start_elapsed_s, keeper_status.text(found).splitlines()[1]

    cluster.answers = False
    seen = []
    for second in (20, 50):
        cluster.plan[float(second)] = lambda: seen.append((cluster.phase, *shown()))
    cluster.plan[60.0] = set_to(cluster, "answers", True)
    cluster.keep(until=100)
    # The detail changes while it loads, the phase does not; the start began with it.
    assert seen[0][:3] == ("loading", 20, 20)
    assert seen[1][:3] == ("loading", 50, 50)
    assert seen[1][3] == (
        "for 50 s, since 2001-09-09T01:46:40+00:00; this start for 50 s, at most 910 s; failures in a row: 0 of 3"
    )
    elapsed, start_elapsed, _text = shown()
    assert start_elapsed is None and elapsed <= cluster.now - 60
    assert "this start" not in shown()[2]
    stopped = keeper_status.collect(cluster.store, Machine("/", runner(active="inactive")), ask=lambda _name: "")
    assert stopped.elapsed_s is None


class Waiting:
    def __init__(self, tmp_path, monkeypatch, answers):
        self.store, self.now, self.answers = Store(str(tmp_path)), 0.0, answers
        monkeypatch.setattr(keeper_wait.probe, "ask", self.ask)
        self.states = []

    def ask(self, *_args):
        found = self.answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def sleep(self, seconds):
        self.now += seconds
        if self.states:
            self.store.write(print, **self.states.pop(0))

    def wait(self, run=None, timeout=10.0, **how):
        target = Target("h", 1, "m")
        return keeper_wait.wait_ready(
            lambda: target,
            Question(),
            timeout,
            store=self.store,
            machine=Machine("/", run or runner(), self.sleep, lambda: self.now),
            **how,
        )


ANSWER = Answer("m", "x", 1, 1.0, 1.0, 1.0)


def test_waiting_ends_with_a_token_of_the_engine_that_the_keeper_is_content_with(tmp_path, monkeypatch):
    waiting = Waiting(tmp_path, monkeypatch, [ProbeError("refused", "no", "x"), ANSWER])
    serving = {"phase": "serving", "pid": 7, "failures": 0}
    waiting.store.write(print, **{"phase": "serving", "pid": 6})  # of the keeper before
    waiting.states = [{"phase": "loading", "pid": 7}, serving, serving]
    assert waiting.wait(runner(pid=7)) is ANSWER
    assert waiting.now == 3.0


def test_waiting_ends_with_a_failure_and_its_reason(tmp_path, monkeypatch):
    waiting = Waiting(tmp_path, monkeypatch, [])
    waiting.store.add(Entry("t", "start", "no such model"), print)
    waiting.store.add(Entry("t", "gateway", "it is frozen"), print)
    waiting.states = [{"phase": "backoff", "failures": 1}]
    with pytest.raises(SparkError, match="no such model"):
        waiting.wait()


def test_waiting_ends_where_nobody_starts_it(tmp_path, monkeypatch):
    waiting = Waiting(tmp_path, monkeypatch, [])
    waiting.store.write(print, **{"end": "gave_up", "detail": "why", "failures": 3})
    with pytest.raises(SparkError, match=r"does not run\. why"):
        waiting.wait(runner(3))


def test_waiting_ends_in_time_and_with_a_refusal(tmp_path, monkeypatch):
    waiting = Waiting(tmp_path, monkeypatch, [])
    waiting.store.write(print, **{"phase": "waiting", "detail": "spark2 is off"})
    with pytest.raises(SparkError, match="no token within 70 s; last: the keeper says waiting: spark2 is off"):
        waiting.wait()
    waiting = Waiting(tmp_path, monkeypatch, [ProbeError("status", "HTTP 401", "x", 401)])
    waiting.store.write(print, **{"phase": "serving", "pid": 0})
    with pytest.raises(SparkError, match="another key"):
        waiting.wait()


def test_the_keeper_has_more_time_than_whoever_waits_for_it(tmp_path, monkeypatch):
    waiting = Waiting(tmp_path, monkeypatch, [])
    settings = replace(SETTINGS, ready_s=1000, memory_wait_s=50)
    waiting.store.write(print, **{"phase": "loading", "detail": "x", "start_limit_s": settings.start_s})
    with pytest.raises(SparkError, match="no token within 1890 s; last: the keeper says loading: x"):
        waiting.wait(timeout=100)
    assert waiting.now > settings.start_s > settings.ready_s + settings.memory_wait_s


def test_whoever_waits_is_told_of_a_node_that_stays_away(tmp_path, monkeypatch):
    waiting = Waiting(tmp_path, monkeypatch, [])
    waiting.store.write(print, **{"phase": "waiting", "detail": "spark2 does not answer"})
    with pytest.raises(SparkError, match="waited for 600 s, and goes on: spark2 does not answer"):
        waiting.wait(timeout=7200)
    assert waiting.now == keeper_wait.MISSING_S


def test_a_wait_in_parts_is_one_wait(tmp_path, monkeypatch):
    waiting = Waiting(tmp_path, monkeypatch, [])
    waiting.store.write(print, **{"phase": "loading", "detail": "x", "since": "", "failures": 1})
    part = waiting.wait(part_s=20.0)
    assert part == keeper_wait.Part("loading (at most 70 s): x", 20.0, 0.0, 1)
    waiting.store.write(print, **{"phase": "waiting", "detail": "spark2 is off", "since": "2001-01-01T00:00:00+00:00"})
    waiting.now += 3.0  # between two parts
    part = waiting.wait(part_s=20.0, before=part)
    assert part.words.startswith("waiting for ") and part.words.endswith(" s (at most 70 s): spark2 is off")
    assert (part.waited_s, part.missing_s, part.failures) == (40.0, 20.0, 1)
    with pytest.raises(SparkError, match="no token within 70 s"):
        waiting.wait(before=part)
    # A failure in an earlier part, or between two, is one of this wait.
    waiting.store.add(Entry("t", "start", "no such model"), print)
    waiting.store.write(print, **{"phase": "backoff", "failures": 2})
    with pytest.raises(SparkError, match="no such model"):
        waiting.wait(part_s=20.0, before=part)


# -- trial ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def tried(cluster):
    """A cluster with another configuration, whose way back is there."""
    cluster.parts.config, cluster.parts.before = "new", lambda: Before("p", "old")
    cluster.store.write(print, tried=("older", "old"))
    for node in (cluster.head, cluster.worker):
        node.available = 10 * 2**30
    return cluster


LASTS_S = trial.HANGS * SETTINGS.hang_s
LONG = LASTS_S + 100
PLACED = ["place spark2", "place spark1"]


def slower(tried):
    tried.parts.compare = lambda: Compared(True, "", (Difference("regression", "half as fast"),), msg="half as fast")


def test_what_passes_its_trial_is_tried_no_more(tried):
    asked = []
    tried.parts.compare = lambda: asked.append(tried.now) or Compared(True, "as vllm 0.32")
    tried.keep(until=2 * LONG)
    assert len(asked) == 1 and asked[0] >= LASTS_S
    assert (tried.events, tried.store.read().tried) == ([], ("older", "old", "new"))
    tried.keep(until=2 * LONG)
    assert len(asked) == 1


def test_without_trials_what_answers_is_good(tried):
    slower(tried)
    tried.keep(replace(SETTINGS, trial=False), until=2 * LONG)
    assert (tried.events, tried.store.read().tried) == ([], ("older", "old", "new"))


def test_who_is_asked_beside_the_loop_is_asked_until_he_answers(tried):
    answers = [None, None, Compared(True, "as before")]
    tried.parts.compare = lambda: answers.pop(0)
    tried.keep(until=LONG)
    assert answers == [] and tried.store.read().tried[-1] == "new"


@pytest.mark.parametrize("rule", ["numbers_differ", "template_differs", "smoke_failed", "regression"])
def test_what_differs_goes_back_to_what_was_good(tried, rule):
    """It serves until all could go back, and what it answers then may end."""
    tried.parts.compare = lambda: Compared(True, "", (Difference(rule, "it differs"),), msg="it differs")
    ends = []
    tried.parts.busy = lambda: tried.now > LASTS_S and not ends.append(tried.now) and len(ends) < 9
    tried.keep(until=2 * LONG)
    assert len(ends) >= 9
    assert [one for one in tried.did if not one.startswith("ray")] == [
        *("start spark2", "start spark1"),
        *("check spark1", "check spark2"),
        *("stop spark1", "kill spark2", *PLACED),
        *("start spark2", "start spark1"),  # by another keeper, which is told that this was done
    ]
    state = tried.store.read()
    assert [entry.reason for entry in state.history] == ["it differs", "what served before serves again"]
    # It is tried no more, and is something to go back to.
    assert (state.tried, state.back, state.failures, state.phase) == (("older", "old"), None, 0, "serving")
    # The same again is tried again.
    tried.parts.config, tried.parts.busy = "new", lambda: False
    tried.keep(until=2 * LONG)
    assert tried.parts.config == "old" and tried.did.count("place spark1") == 2


@pytest.mark.parametrize(("most", "events"), [(9, ["trial", "trial"]), (3, [])])
def test_what_loses_memory_all_the_time_goes_back_and_what_comes_to_rest_stays(tried, most, events):
    lasts = 2 * 3600
    for second in range(0, lasts, 30):
        left = (10 << 30) - min(second * (2 << 20), most << 30)
        tried.plan[float(second)] = set_to(tried.worker, "available", left)
    tried.keep(replace(SETTINGS, hang_s=600), until=lasts)
    assert tried.events == events
    assert (tried.store.read().tried[-1] == "new") != bool(events)
    assert [entry.host for entry in tried.store.read().history[:1]] == ["spark2"][: len(events)]


def test_what_hangs_goes_back_also_where_that_is_known_later(tried):
    tried.plan[LASTS_S - 40] = set_to(tried, "answers", False)
    tried.plan[LASTS_S + 10] = lambda: tried.plan.update({tried.now + 100: set_to(tried, "answers", True)})
    tried.keep(until=2 * LONG)
    assert tried.events == ["hang", "trial"], "it stays on trial until it answers or hangs"


def test_what_dies_goes_back_and_that_counts_as_no_failure(tried):
    tried.plan[100.0] = lambda: tried.head.units.update({ENGINE: "failed"})
    tried.keep(until=LONG)
    assert tried.events == ["dead", "trial"]
    assert (tried.parts.config, tried.store.read().failures) == ("old", 0)


def test_a_fault_of_the_first_one_that_there_is_is_that_fault_and_nothing_else(tried):
    tried.parts.before = lambda: None
    tried.plan[100.0] = lambda: tried.head.units.update({ENGINE: "failed"})
    tried.keep(until=100 + 2 * LONG)
    assert tried.events == ["dead"] and tried.store.read().tried[-1] == "new"


def test_a_node_that_is_gone_speaks_for_nobody(tried):
    tried.plan[100.0] = lambda: (set_to(tried, "answers", False)(), set_to(tried, "pings", False)())
    tried.plan[400.0] = lambda: (set_to(tried, "answers", True)(), set_to(tried, "pings", True)())
    tried.keep(until=500)
    assert tried.events == ["lost"] and "place spark1" not in tried.did


@pytest.mark.parametrize("kept", [None, Before("p", "older")])
def test_only_what_served_until_now_and_was_good_comes_back(tried, kept):
    """A key that is another one, or an image under the same name, is another configuration of the same plan."""
    tried.parts.before = lambda: kept
    slower(tried)
    assert tried.keep(until=2 * LONG) is None
    (entry,) = tried.store.read().history
    assert entry.reason == f"half as fast; there is nothing that has been good; {trial.BY_HAND}"
    assert tried.phase == "serving" and tried.store.read().against
    assert not [one for one in tried.did if one.startswith(("check", "place", "kill"))]
    assert tried.store.read().tried == ("older", "old"), "it is nothing to go back to"


def test_a_node_that_cannot_go_back_stops_nothing(tried):
    tried.worker.lacks = {"check": "spark2 keeps no earlier plan"}
    slower(tried)
    tried.keep(until=LONG)
    assert tried.store.read().history[-1].reason == "half as fast; spark2 keeps no earlier plan"
    assert tried.phase == "serving" and "stop spark1" not in tried.did


def test_no_rank_starts_before_the_way_back_is_ended_on_all_nodes(tried):
    tried.worker.lacks = {"place": "spark2 does not answer"}
    tried.plan[100.0] = lambda: tried.head.units.update({ENGINE: "failed"})
    tried.plan[106.0] = tried.worker.lacks.clear
    tried.keep(until=300)
    assert set(tried.events[1:-1]) == {"start"} and tried.events[-1] == "trial"
    assert (tried.parts.config, tried.phase) == ("old", "serving")
    placed = tried.did.index("place spark1")
    assert tried.did.count("start spark1") == 2 and tried.did.index("start spark1", 3) > placed


def test_a_keeper_that_was_killed_on_the_way_back_becomes_the_one_that_a_run_sees(tried):
    """systemd has started it by the unit that was there before the files were put in place."""
    tried.store.write(print, back=Before("p", "old", "new"))
    tried.parts.config = "old"
    outlived = [True]
    tried.parts.outlived = lambda: outlived.pop() if outlived else False
    again = tried.parts.again
    tried.parts.again = lambda placed: tried.did.append("again") or again(placed)
    tried.keep(until=LONG)
    assert tried.did.count("again") == 1 and tried.did.index("place spark1") < tried.did.index("again")
    assert (tried.events, tried.phase) == (["trial"], "serving")


@pytest.mark.parametrize(("end", "instead"), [("stopped", "new"), ("", "newer")])
def test_whoever_stops_the_keeper_or_places_others_ends_the_way_back(tried, end, instead):
    tried.store.write(print, back=Before("p", "old", instead), end=end)
    tried.keep()
    assert tried.store.read().back is None and tried.parts.config == "new"


def test_models_that_take_turns_are_tried_once_each(tried):
    asked = []
    tried.parts.compare = lambda: asked.append(tried.parts.config) or Compared(True, "as before")
    for config in ("a", "b", "a", "b", *map(str, range(8)), "a"):
        tried.parts.config = config
        tried.keep(until=LONG)
    assert asked == ["a", "b", *map(str, range(8)), "a"], "so many are remembered and no more"


def test_after_a_rollback_what_serves_again_is_what_the_next_one_goes_back_to(tried):
    tried.store.write(print, tried=("old", "rolled back"))
    tried.parts.config = "old"
    tried.keep(until=100)
    tried.parts.config = "new"
    tried.plan[tried.now + 100] = lambda: tried.head.units.update({ENGINE: "failed"})
    tried.keep(until=300)
    assert (tried.parts.config, tried.store.read().tried) == ("old", ("rolled back", "old"))


def test_another_configuration_begins_its_own_trial(tried):
    asked = []
    tried.parts.compare = lambda: asked.append(tried.now) or Compared(True, "as before")
    tried.plan[100.0] = lambda: (tried.head.hashes.update({ENGINE: "old"}), set_to(tried.parts, "config", "newer")())
    tried.keep(until=3 * LONG)
    assert len(asked) == 1 and asked[0] > 100 + LASTS_S
    assert tried.store.read().tried == ("older", "old", "newer")
