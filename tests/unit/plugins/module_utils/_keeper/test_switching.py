# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The keeper switches between models: on two nodes that can be killed, with a keeper that can be killed at any step."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import TIMED_OUT, Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import word
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.engine_json import Settings
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.probe import ProbeError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.report import Report, UnitReport
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.switch import wanted
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import (
    by_name,
    golden_check,
    in_place,
    loop,
    peers,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.model_socket import ModelSocket
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.prober import Prober
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.store import Store
from fake_machine import Killed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from module_runner import run_program

ENGINE = "sparkmatrix-engine.service"
SETTINGS = Settings(ready_s=60, memory_wait_s=10, start_limit=3, backoff_s=2)
PLANS = {"one": "p", "two": "p", "three": "p"}


class Again(BaseException):
    """The keeper has become that of another model."""


class Node:
    """``placed``: whose files are in place; ``runs``: what was started of them."""

    def __init__(self, host, cluster):
        self.host, self.cluster = host, cluster
        self.placed, self.runs, self.active, self.invocation, self.lacks = "one", "", "inactive", 0, ""
        self.silent = False

    def latest(self):
        unit = UnitReport(
            active=self.active,
            invocation=str(self.invocation),
            hash=self.runs,
            wanted=self.cluster.socket.model if self is self.cluster.nodes[0] else self.placed,
        )
        return True, Report({ENGINE: unit}, available=100), ""

    def act(self, action):
        with self.cluster.step(f"{action} {self.host}"):
            if action == "start":
                if self.placed != self.cluster.socket.model:
                    self.cluster.mixed.append(f"{self.host} started {self.placed}")
                self.runs, self.invocation = self.placed, self.invocation + 1
                self.active = "failed" if self.placed in self.cluster.broken else "active"
            else:
                self.runs, self.active = "", "inactive"
        return ""

    def switch(self, action, told):
        model = wanted(told).model
        with self.cluster.step(f"{action} {self.host}"):
            if action == "check" and self.silent:
                raise SparkError("no answer to switch-check within 20 s", self.host)
            if action == "check" and self.lacks == model:
                return f"{self.host}: it is not on this node"
            if action == "place":
                assert self.active != "active" or self.runs == model
                self.placed = model
        return ""


class Cluster:
    """Two nodes and the keepers that live on the head, one after the other. ``kill``: the step at which one dies."""

    def __init__(self, root):
        root.mkdir(exist_ok=True)
        self.root, self.now, self.did, self.said = root, 0.0, [], []
        self.nodes = [Node("spark1", self), Node("spark2", self)]
        self.plans, self.broken, self.mixed = dict(PLANS), set(), []
        self.asks: dict[str, tuple[float, float]] = {}  # by model: from and until when somebody waits for it
        self.kills: set[int] = set()
        self.stops: set[int] = set()  # the same by SIGTERM: by hand, or by a run
        self.large: set[str] = set()  # models that find too little memory
        self.steps = self.until = 0
        self.keepers = 0
        self.configs = False  # whether configurations are on trial
        self.socket, self.placed = None, ""
        self.busy_until, self.words = 0.0, []

    def step(self, what):
        return Step(self, what)

    def count(self):
        self.steps += 1
        if self.steps in self.kills:
            raise Killed
        if self.steps in self.stops:
            raise loop.StopError

    @property
    def answers(self):
        """The model that a client gets a token of."""
        runs = {node.runs if node.active == "active" else "" for node in self.nodes}
        return runs.pop() if len(runs) == 1 else ""

    def busy(self):
        self.words.append(word.read(word.path(root=str(self.root))).phase)
        return self.now < self.busy_until

    def ask(self):
        if not self.answers or self.answers != self.socket.model:
            raise ProbeError("refused", "nothing listens there", "x")
        return ""

    def sleep(self, seconds):
        self.now += seconds
        if self.now > self.until:
            raise TimeoutError
        for model, (since, until) in self.asks.items():
            if since <= self.now <= until:
                self.socket.ask_for(model)
        if not self.prober.paused:
            self.prober.once()

    def live(self, seconds):
        """Keepers for so long."""
        self.until = self.now + seconds
        while True:
            self.keepers += 1
            try:
                self.life()
            except (Again, Killed, loop.StopError):
                self.now += 0.5
            except TimeoutError:
                return

    def life(self):
        head = self.nodes[0]
        machine = Machine(str(self.root), now=lambda: 1e9 + self.now)
        self.socket = Inside(head.placed, machine=machine)
        self.socket.cluster = self
        self.prober = Prober(self.ask, 5.0, lambda: self.now)
        store = Store(str(self.root))
        write = store._write

        def counted(*words):
            with self.step("write"):
                write(*words)

        store._write = counted
        keeper = loop.Keeper(
            SETTINGS,
            loop.Parts(
                nodes=self.nodes,
                addresses={node.host: node.host for node in self.nodes},
                prober=self.prober,
                metrics=lambda: "",
                ping=lambda _address: True,
                ray=lambda: "",
                taken=lambda: "",
                explain=lambda unit, _invocation: f"the journal of {unit}",
                store=store,
                boot="boot",
                shutting_down=lambda: False,
                socket=self.socket,
                again=self.again,
                busy=self.busy,
                placed=self.placed,
                config=f"hash of {head.placed}" if self.configs else "",
                compare=golden_check.Compared,
                sleep=self.sleep,
                clock=lambda: self.now,
                wall=lambda: 1e9 + self.now,
                say=self.said.append,
                budget=1000 if head.placed in self.large else 0,
            ),
        )
        self.placed = ""  # of a keeper that is killed nothing is left
        if keeper.run() == loop.GAVE_UP:
            raise AssertionError("\n".join(self.said[-9:]))
        self.now += 0.5

    def again(self, placed):
        self.placed = placed
        raise Again

    def state(self):
        return Store(str(self.root)).read()


class Step:
    """An action of a node, or a write: the keeper may die before and after it."""

    def __init__(self, cluster, what):
        self.cluster, self.what = cluster, what

    def __enter__(self):
        self.cluster.count()
        self.cluster.did.append(self.what)

    def __exit__(self, kind, *_rest):
        if kind is None:
            self.cluster.count()


class Inside(ModelSocket):
    def look(self):
        self.plans = dict(self.cluster.plans)
        return self.plans

    def tell(self):
        pass


def test_how_a_node_is_told(monkeypatch):
    """After its files are others, what was read of its ranks before does not count."""
    said, ended = [], []

    def ask(argv, _seconds, told):
        said.append((argv[-2:], told))
        return Completed(len(said) > 3, "", "no files of two")

    class Watch:
        def kill(self):
            ended.append("kill")

        def wait(self):
            ended.append("wait")

    monkeypatch.setattr(peers, "ask", ask)
    there, here = peers.There("spark2"), peers.Here("spark1", None)
    there.process, there.at = Watch(), there.clock()
    assert there.latest()[0]
    assert there.switch("check", "x\n") == ""
    assert there.latest()[0]
    assert there.switch("place", "x\n") == here.switch("place", "x\n") == ""
    assert not there.latest()[0]
    assert ended == ["kill", "wait"]
    assert there.switch("check", "x\n") == "spark2: no files of two"
    assert here.switch("check", "x\n") == "spark1: no files of two"
    for rc in (TIMED_OUT, 255):
        monkeypatch.setattr(peers, "ask", lambda _argv, seconds, _told, rc=rc: Completed(rc, "", f"gone, {seconds}"))
        for node in (here, there):
            with pytest.raises(SparkError, match=r"within 20 s|gone, 20\.0"):
                node.switch("check", "x\n")
            assert node.switch("place", "x\n").startswith(f"{node.host}: ")
    words = [argv for argv, told in said if told == "x\n"]
    assert words[:3] == [["spark2", "switch-check"], ["spark2", "switch-place"], ["switch", "place"]]


@pytest.fixture
def cluster(tmp_path):
    return Cluster(tmp_path)


def actions(cluster):
    return [what for what in cluster.did if what != "write"]


def test_a_model_that_is_asked_for_takes_the_place_of_the_other(cluster):
    cluster.live(20)
    assert cluster.answers == "one"
    cluster.did.clear()
    cluster.asks["two"] = (20, 60)
    cluster.live(40)
    assert cluster.answers == "two"
    assert actions(cluster) == [
        *("check spark1", "check spark2"),  # both could, so it is stopped
        *("stop spark1", "kill spark2"),
        *("place spark2", "place spark1"),  # the head last; then another keeper, which is told that this was done
        *("start spark1", "start spark2"),
    ]
    state = cluster.state()
    assert state.models.loaded == "two"
    assert not state.models.going
    assert 0 < state.models.took["two"] < 20
    assert [entry.event for entry in state.history] == ["switch"]
    assert state.failures == 0
    cluster.asks["one"] = (cluster.now, cluster.now + 30)
    cluster.live(40)
    assert cluster.answers == "one"


def test_answers_end_before_a_switch_and_the_gateway_is_told(cluster):
    cluster.live(20)
    cluster.asks["two"], cluster.busy_until = (20, 60), 40.0
    cluster.words.clear()
    cluster.live(15)
    assert "stop spark1" not in cluster.did and set(cluster.words[1:]) == {word.DRAINING}
    cluster.live(30)
    assert cluster.answers == "two"


def test_nothing_is_stopped_for_a_model_that_one_node_does_not_have(cluster):
    cluster.nodes[1].lacks = "two"
    cluster.asks["two"] = (10, 100)
    cluster.live(60)
    assert cluster.answers == "one"
    assert "stop spark1" not in cluster.did
    assert cluster.did.count("check spark2") == 1
    assert "spark2: it is not on this node" in cluster.state().models.broken["two"].why
    assert cluster.socket.shown("two").state == by_name.BROKEN


def test_a_node_that_says_nothing_is_asked_again_and_says_nothing_of_the_model(cluster):
    cluster.nodes[1].silent = True
    cluster.asks["two"] = (10, 1000)
    cluster.live(60)
    assert (cluster.answers, cluster.did.count("check spark1")) == ("one", 1)
    assert not cluster.state().models.broken and "stop spark1" not in cluster.did
    assert "spark2: no answer to switch-check" in cluster.said[-1]
    cluster.nodes[1].silent = False
    cluster.live(60)
    assert cluster.answers == "two"


def test_a_model_that_does_not_start_leads_back_to_the_one_before(cluster):
    cluster.broken = {"three"}
    cluster.asks["three"] = (10, 300)
    cluster.live(120)
    assert cluster.answers == "one"
    state = cluster.state()
    assert [entry.event for entry in state.history] == ["switch", "start"]
    assert state.history[-1].reason.startswith("three does not start, so one comes back: sparkmatrix-engine")
    assert state.models.broken["three"].why == state.history[-1].reason
    assert state.failures == 0
    assert cluster.did.count("stop spark1") == 1  # it is not tried again


def test_one_that_finds_too_little_memory_leads_back_too(cluster):
    cluster.large = {"three"}
    cluster.asks["three"] = (10, 300)
    cluster.live(120)
    assert cluster.answers == "one"
    assert "it would not fit" in cluster.state().models.broken["three"].why


def test_back_it_may_need_as_many_starts_as_ever(cluster):
    cluster.asks["three"] = (10, 14)
    cluster.broken = {"three"}
    cluster.live(10)
    cluster.broken = {"three", "one"}
    with pytest.raises(AssertionError, match="Gave up after 3 failures"):
        cluster.live(200)


def test_a_run_that_takes_the_models_away_leaves_the_one_in_place(cluster):
    cluster.asks["two"] = (10, 30)
    cluster.live(40)
    cluster.plans = {"one": "q"}
    for node in cluster.nodes:
        node.placed = "one"
    cluster.live(40)
    assert cluster.answers == "one"


def test_a_model_that_clients_have_loaded_is_on_no_trial(cluster):
    """What has served before it is another model and no earlier plan."""
    cluster.configs = True
    cluster.live(20)
    cluster.asks["two"] = (20, 60)
    cluster.live(40)
    assert cluster.answers == "two"
    state = cluster.state()
    assert state.tried == ("hash of two",) and state.back is None
    cluster.nodes[0].active = "failed"
    cluster.live(60)
    assert cluster.answers == "two" and [entry.event for entry in cluster.state().history] == ["switch"]


def test_models_that_clients_load_stay_in_their_place_among_what_was_good(cluster):
    """The last one is what an update goes back to."""
    cluster.configs = True
    cluster.live(2 * SETTINGS.hang_s + 60)
    assert cluster.state().tried == ("hash of one",)
    for model in ("two", "one", "two", "one"):
        cluster.asks = {model: (cluster.now, cluster.now + 30)}
        cluster.live(60)
        assert cluster.answers == model
    assert cluster.state().tried == ("hash of two", "hash of one")


def test_a_trial_that_clients_have_cut_off_begins_anew(cluster):
    """Whoever may have models loaded has none pass."""
    cluster.configs = True
    cluster.live(20)
    for model in ("two", "one"):
        cluster.asks = {model: (cluster.now, cluster.now + 30)}
        cluster.live(60)
        assert cluster.answers == model and cluster.state().tried == ("hash of two",)
    cluster.live(2 * SETTINGS.hang_s + 60)
    assert cluster.state().tried == ("hash of two", "hash of one")


def steps_of(tmp_path, broken=()):
    whole = Cluster(tmp_path / "whole")
    whole.broken = set(broken)
    whole.live(20)
    before = whole.steps
    whole.asks["two"] = (20, 1000)
    whole.live(100)
    return range(before + 1, whole.steps + 1), whole


@pytest.mark.parametrize("broken", [(), ("two",)])
def test_a_keeper_that_is_killed_at_any_step_of_a_switch_ends_where_one_that_lives_does(tmp_path, broken):
    """Also where the client has gone by then: what has begun is ended."""
    steps, whole = steps_of(tmp_path, broken)
    assert whole.answers == ("one" if broken else "two")
    assert len(steps) > 30
    for step in steps:
        cluster = Cluster(tmp_path / str(step))
        cluster.broken, cluster.kills = set(broken), {step}
        cluster.live(20)
        cluster.asks["two"] = (20, 1000)
        cluster.live(160)
        assert cluster.answers == whole.answers, step
        assert not cluster.mixed, step
        assert {node.placed for node in cluster.nodes} == {whole.answers}
        assert cluster.state().phase == "serving"


@pytest.mark.parametrize("broken", [(), ("two",)])
def test_whoever_stops_the_keeper_ends_the_switch_and_no_two_models_are_mixed(tmp_path, broken):
    steps, _whole = steps_of(tmp_path, broken)
    seen = set()
    for step in steps:
        cluster = Cluster(tmp_path / str(step))
        cluster.stops, cluster.broken = {step}, set(broken)
        cluster.live(20)
        cluster.asks["two"] = (20, 26)
        cluster.live(160)
        seen.add(cluster.answers)
        assert not cluster.mixed, step
        assert {node.placed for node in cluster.nodes} == {cluster.answers}, step
    assert seen == {"one", "two"} - set(broken)


FAULTS = st.fixed_dictionaries(
    {
        "kills": st.sets(st.integers(1, 400), max_size=12),
        "stops": st.sets(st.integers(1, 400), max_size=3),
        "broken": st.sets(st.sampled_from(["two", "three"])),
        "asks": st.lists(
            st.tuples(st.sampled_from(["one", "two", "three"]), st.integers(0, 300), st.integers(0, 100)), max_size=6
        ),
        "died": st.lists(st.tuples(st.integers(0, 300), st.integers(0, 1)), max_size=3),
    }
)
NUMBER = itertools.count()


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(faults=FAULTS)
def test_whatever_is_killed_and_asked_for_a_whole_model_answers_in_the_end(tmp_path_factory, faults):
    cluster = Cluster(tmp_path_factory.mktemp(f"faults{next(NUMBER)}"))
    cluster.kills, cluster.stops, cluster.broken = faults["kills"], faults["stops"], faults["broken"]
    times = sorted({0, 300, *(at for at, _node in faults["died"]), *(since for _model, since, _for in faults["asks"])})
    for at, after in itertools.pairwise(times):
        cluster.asks.update({model: (since, since + long) for model, since, long in faults["asks"] if since == at})
        for when, number in faults["died"]:
            if when == at and cluster.nodes[number].active == "active":
                cluster.nodes[number].active = "failed"
        cluster.live(after - at)
    cluster.kills = cluster.stops = set()
    cluster.live(400)
    assert cluster.answers
    assert cluster.answers not in cluster.broken
    assert not cluster.mixed
    state = cluster.state()
    assert (state.phase, state.models.loaded, state.models.going) == ("serving", cluster.answers, "")


@pytest.mark.parametrize(
    ("unit", "outlived"),
    [
        ("Environment=SPARKMATRIX_CONFIG_HASH=new\n", True),
        ("Environment=SPARKMATRIX_CONFIG_HASH=old\n", False),
        ("", False),
    ],
)
def test_a_keeper_that_an_earlier_unit_has_started_becomes_another_one_first_of_all(
    tmp_path, monkeypatch, unit, outlived
):
    """Before it holds what only one may have, and before it reads anything by which it acts."""
    there = tmp_path / "etc/systemd/system/sparkmatrix-keeper.service"
    there.parent.mkdir(parents=True)
    there.write_text(f"[Service]\n{unit}")

    def again(_machine, _instance, placed):
        raise Again(placed)

    def hold(_instance):
        raise SparkError("it goes on")

    monkeypatch.setenv("SPARKMATRIX_CONFIG_HASH", "old")
    monkeypatch.setenv(in_place.PLACED, "what is in place")
    monkeypatch.setattr(loop, "Machine", lambda: Machine(str(tmp_path)))
    monkeypatch.setattr(loop.engine_json, "read", lambda _path: SimpleNamespace(instance=""))
    monkeypatch.setattr(loop, "hold", hold)
    monkeypatch.setattr(in_place, "again", again)
    if not outlived:
        assert run_program(loop) == 1
        return
    with pytest.raises(Again, match="what is in place"):
        run_program(loop)


PROGRAM = """
import os, sys
sys.path.insert(0, {path!r})
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import in_place
if in_place.outlived(Machine({root!r}), ""):
    in_place.again(Machine({root!r}), "", "what is in place")
print(os.getpid() == int(os.environ["PARENT"]) or os.environ["SPARKMATRIX_CONFIG_HASH"], sys.argv[1:],
      os.environ[in_place.PLACED])
"""


def test_it_becomes_the_keeper_of_the_other_model(tmp_path):
    """The same process, so systemd sees no end; and a run sees with which configuration it goes on."""
    unit = tmp_path / "etc/systemd/system/sparkmatrix-keeper.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\nEnvironment=SPARKMATRIX_CONFIG_HASH=new\n")
    root = in_place.__file__.partition("/ansible_collections/")[0]
    program = tmp_path / "keeper.py"
    program.write_text(PROGRAM.format(path=root, root=str(tmp_path)))
    environment = {**os.environ, "SPARKMATRIX_CONFIG_HASH": "old", "PARENT": "0"}
    words = [sys.executable, str(program), "keep", "--config", "x"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "new ['keep', '--config', 'x'] what is in place", done.stderr
