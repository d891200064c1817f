# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Which files all nodes serve by: those of the model that clients ask for, and where another configuration does not
pass its trial, those of what served before. Both are put in place while nothing runs, the head's last: whoever was
killed in between, or begins as the keeper of what is in place then, finds in the state what it was, and puts it there
once more.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import at_hand, kept_plan
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.golden import Difference
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import Names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.switch import CHECK, PLACE, Wanted
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import by_name, trial
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.by_name import Models
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.decide import Verdict, View
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.parts import Parts, Reach
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.peers import at_once
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.store import Before, State
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.service import HASH_VARIABLE, hash_of

PLACED = "SPARKMATRIX_PLACED"
AGAIN_S = 60.0  # until nodes are asked again, after one has not said whether it could serve


def each(nodes: Sequence[Reach], act: Callable[[Reach], str]) -> str:
    """What went wrong on any of them, all at the same time."""
    return "; ".join(filter(None, at_once(nodes, act)))


def before(machine: Machine, instance: str = "") -> Before | None:
    """What the engine of this node could go back to."""
    plan = kept_plan.read(machine.root).previous
    if plan is None:
        return None
    try:
        return Before(plan.identity, at_hand.read("", plan.identity, machine).description(instance).config_hash)
    except (SparkError, KeyError):
        return None


class InPlace:
    def __init__(self, parts: Parts, note: Callable[[str, str], None], hang_s: float) -> None:
        self.parts, self.socket, self.note, self.lasts_s = parts, parts.socket, note, trial.HANGS * hang_s
        self.trial: trial.Trial | None = None
        self.not_before = 0.0  # are nodes asked for another model

    @property
    def models(self) -> Models:
        return self.parts.store.state.models

    def begin(self, last: State) -> bool:
        """Whether the keeper before was cut off before all files were in place. Whoever has stopped it, or has placed
        others, has ended that."""
        stopped, back = last.end == "stopped", last.back
        self.know(by_name.adopted(last.models, self.socket.model, self.socket.look(), stopped=stopped))
        if back and self.parts.config != back.config and (stopped or self.parts.config != back.instead):
            self.parts.store.write(self.parts.say, back=None)
        return self.models.going not in ("", self.socket.model) or self.parts.store.state.back is not None

    def know(self, models: Models, serves: bool = False) -> None:
        """Keep it, and tell it: with ``serves`` the model that is loaded answers."""
        if models != self.models:
            self.parts.store.write(self.parts.say, models=models)
        self.socket.models, self.socket.serves_since = models, self.parts.wall() if serves else None
        self.socket.tell()

    def put(self) -> str:
        """What is to be served, on all nodes; what went wrong."""
        parts, back, model = self.parts, self.parts.store.state.back, self.models.going or self.models.loaded
        plan = back.plan if back else self.socket.plans.get(model)
        if not plan:
            return ""  # there is one
        wanted = Wanted(plan, "" if back else model).text
        right = parts.config == back.config if back else model == self.socket.model
        placed, parts.placed = parts.placed, ""
        problem = "" if right and placed == wanted else self.place(wanted)
        if problem:
            return problem
        if not right or parts.outlived():
            parts.again(wanted)
        if back:
            parts.store.write(parts.say, back=None)
            parts.store.tried(parts.config, parts.say)
            self.note(trial.EVENT, "what served before serves again")
        return ""

    def place(self, wanted: str) -> str:
        """The head last: where it has others in place, all have had them before."""
        head, others = self.parts.nodes[0], self.parts.nodes[1:]
        return each(others, lambda node: node.switch(PLACE, wanted)) or head.switch(PLACE, wanted)

    def lacks(self, wanted: Wanted) -> str:
        """What keeps nodes from serving it. Raises :class:`SparkError` where one does not say."""
        return each(self.parts.nodes, lambda node: node.switch(CHECK, wanted.text))

    def serves(self) -> None:
        """It has given a token."""
        parts = self.parts
        state = parts.store.state
        tried = not self.lasts_s or parts.config in state.tried
        by_its_name = self.models.trial or state.named == parts.config != ""
        if not tried and parts.config == state.untried:  # another model has cut its trial off
            by_its_name = False
        if tried != by_its_name:  # the last one is what an update goes back to, and no model that clients have loaded
            parts.store.tried(parts.config, parts.say, first=by_its_name)
        untried = parts.config if not tried and not by_its_name else ""
        parts.store.write(parts.say, named=parts.config if by_its_name else "", untried=untried or state.untried)
        self.know(by_name.arrived(self.models, parts.wall()), serves=True)
        self.trial = trial.Trial(parts.clock(), self.lasts_s) if untried else None

    def gives_way(self, trouble: Verdict, reason: str) -> str:
        """Why this start, or this service, is not tried again, since another one takes its place; empty where it is."""
        if self.models.trial:
            why = f"{self.models.going} does not start, so {self.models.loaded} comes back: {reason}"
            plan = self.socket.plans.get(self.models.going, "")
            self.know(by_name.failed(self.models, plan, why, self.parts.wall()))
            return why
        if self.trial is None or trouble.kind not in trial.FAULTS:
            return ""
        if self.parts.before() is None:  # the first one that there is: it is tried again when it serves again
            self.trial = None
            return ""
        problem = self.back()
        if problem:
            self.ends(problem)
        return "" if problem else reason

    # -- models by name

    def wanted(self) -> str:
        """The model to switch to now: one that somebody waits for, and that all nodes can serve. None is stopped for
        one that they cannot."""
        parts, socket, now = self.parts, self.socket, self.parts.wall()
        model, problem = "", ""
        if parts.clock() >= self.not_before:
            model = by_name.chosen(self.models, socket.look(), socket.asked, socket.serves_since or now, now)
        try:
            problem = self.lacks(Wanted(socket.plans[model], model)) if model else ""
        except SparkError as exc:
            self.not_before = parts.clock() + AGAIN_S
            parts.say(f"{model} is not loaded yet, since a node does not say whether it could serve it: {exc}")
            model = ""
        if problem:
            parts.store.write(parts.say, models=by_name.marked(self.models, model, socket.plans[model], problem, now))
            self.note("broken", f"{model} cannot be served: {problem}")
            socket.models = self.models
        socket.tell()
        if not model or problem:
            return ""
        self.know(by_name.begun(self.models, model, now))
        return model

    # -- the trial of another configuration

    def tries(self, view: View) -> Verdict | None:
        """What speaks against a configuration on trial, and for the one before. One that is asked in vain stays on
        trial, until it answers or hangs."""
        if self.trial is None:
            return None
        now = self.parts.clock()
        self.trial.see(now, [(member.host, member.report.available) for member in view.members if member.seen])
        if not self.trial.over(now) or view.failing_since is not None:
            return None
        host, lost = self.trial.losing()
        if 0 < lost <= trial.ROOM:
            return None
        less = f"{host} has {lost / 2**30:.1f} GiB less memory than when it began to serve, and loses more all the time"
        against = [Difference(trial.GROWS, less)] if lost else []
        if not against:
            found = self.parts.compare()
            if found is None:
                return None
            against = list(found.differences)
            if not against:
                self.trial = None
                self.parts.say(f"passed its trial: {found.words}")
                self.parts.store.tried(self.parts.config, self.parts.say)
                return None
        self.parts.store.write(self.parts.say, against=tuple(against))
        said = "; ".join(one.found for one in against)
        problem = self.back()
        if problem:  # it is not stopped for nothing
            self.ends(f"{said}; {problem}")
            return None
        return Verdict(trial.EVENT, said, host)

    def back(self) -> str:
        """Have what served before take its place. Only what has served until now, and has passed its own trial, on
        nodes that all can; else why not."""
        found = self.parts.before()
        if found is None or self.parts.store.state.tried[-1:] != (found.config,):
            return f"there is nothing that has been good; {trial.BY_HAND}"
        try:
            problem = self.lacks(Wanted(found.plan))
        except SparkError as exc:
            problem = str(exc)
        if not problem:
            self.trial = None
            self.parts.store.write(self.parts.say, back=replace(found, instead=self.parts.config))
        return problem

    def ends(self, how: str) -> None:
        """What has not passed is tried again when it is started again, and is nothing to go back to."""
        self.trial = None
        self.note(trial.EVENT, how)


def _hash(machine: Machine, instance: str) -> str:
    return hash_of(machine.read(f"{paths.UNITS}/{Names(instance).keeper}") or "")


def outlived(machine: Machine, instance: str) -> bool:
    """Whether this process was started by an earlier unit than the one that is there: of a keeper that was killed
    systemd starts what it has read last. A run would take it for the keeper of files that it has never seen."""
    return _hash(machine, instance) not in ("", os.environ.get(HASH_VARIABLE, ""))


def again(machine: Machine, instance: str, placed: str) -> None:
    """This process becomes the keeper of what is in place now, and the unit's as it then is. ``placed``: is for it."""
    environment = {**os.environ, HASH_VARIABLE: _hash(machine, instance), PLACED: placed}
    os.execve(sys.executable, [sys.executable, "-IB", *sys.argv], environment)  # noqa: S606 -- this very program
