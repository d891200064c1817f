# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""``sparkmatrix-node switch``: a node serves by other files without a run, as the keeper of the head asks all of them.

The files of a model take the place of another model's. Those of the plan before take the place of all, with images and
kept plans: that is the way back of an update. Each file changes at once, all of them do not; whoever was killed in
between is followed by another ``place``.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, json_text, paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Word, WordOrEmpty
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine, alone
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import (
    at_hand,
    image,
    kept_plan,
    model_files,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.at_hand import AtHand
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import NodePlan
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import File, apply_set

CHECK, PLACE = "check", "place"
CHECK_S = 20.0  # of a look at files while it serves: meanwhile the keeper looks at nothing else
LOCK = f"{paths.RUN}/switch.lock"
ROLLBACK = "ansible-playbook playbooks/rollback.yml"
# Parts of a plan that more than the engine follows, and who does. A run sees to them.
OTHERS = {"ray": "Ray", "mpi": "ranks of MPI", "services": "gateway", "open_to_peers": "firewall", "cluster": "nodes"}


@dataclass(frozen=True)
class Wanted:
    """What the keeper asks of a node, as JSON. Without a model: the whole plan, which has served."""

    plan: Word
    model: WordOrEmpty = ""

    @property
    def text(self) -> str:
        return json.dumps(document.plain(self)) + "\n"


def wanted(text: str | bytes) -> Wanted:
    with json_text.Reading("this is no request for a model", "", "Give all nodes the same release: run site.yml"):
        made: Wanted = document.load(Wanted, json_text.mapping(text))
    return made


def check(asked: Wanted, machine: Machine) -> AtHand:
    """Whether this node could serve it: before anything is stopped. Reads names and sizes of the weights."""
    found = at_hand.read(asked.model, asked.plan, machine)
    for need in found.needs:
        if need.startswith("/"):
            if not machine.exists(need):
                raise SparkError("the program of its environment is not there", need, at_hand.REMEDY)
        elif not machine.works("docker", "image", "inspect", "--format", "{{.Id}}", "--", need):
            raise SparkError("this node does not have its image", need, at_hand.REMEDY)
    for model in found.reads:
        seen = model_files.look(model.name, model.revision, model.environment, lambda *_asked: model_files.Reply(200))
        if seen.problem or seen.where == model_files.DOWNLOAD:
            raise SparkError(seen.problem or "it is not on this node", model.name, seen.remedy or at_hand.REMEDY)
    if not asked.model:
        _two_plans(asked.plan, machine)
    return found


def place(asked: Wanted, machine: Machine) -> bool:
    """Put its files in place; whether any was another one."""
    with alone(machine, "the model", LOCK):
        found = at_hand.read(asked.model, asked.plan, machine)
        put = {where: content.encode() for where, content in found.files.items()}
        if asked.model:  # the documents of all models stay
            documents = [f"{at_hand.DIRECTORY}/{name}" for name in machine.names(at_hand.DIRECTORY)]
            put = {**{where: machine.content(where) or b"" for where in documents}, **put}
        else:
            then, now = _two_plans(asked.plan, machine)
            for name, known in then.image_ids.items():
                image.give_back(name, known, machine.runner)
        changed = apply_set(at_hand.SET, [File(where, content) for where, content in put.items()], root=machine.root)
        if not asked.model:
            kept_plan.put(then, now, machine.root)  # the last step: until then it is the plan before
        return changed.changed


def _two_plans(identity: str, machine: Machine) -> tuple[NodePlan, NodePlan]:
    """(the plan of that identity, the other one that is kept). Raises :class:`SparkError` where more than the engine
    would have to follow, or an image is gone."""
    kept = kept_plan.read(machine.root)
    plans = [kept.previous, kept.current]
    if kept.current and kept.current.identity == identity:  # whoever was killed had placed it
        plans.reverse()
    then, now = plans
    if then is None or now is None or then.identity != identity:
        raise SparkError(kept.refused or "no earlier plan is kept here", kept_plan.DIRECTORY, ROLLBACK)
    follow = [who for name, who in OTHERS.items() if getattr(now, name) != getattr(then, name)]
    if follow or len(kept_plan.differing(now, then)) > 1:
        what = ", ".join(follow) or "another service"
        raise SparkError(f"with the earlier plan others would have to follow: {what}", kept_plan.DIRECTORY, ROLLBACK)
    for name, known in then.image_ids.items():
        if not image.inspect(known, machine.runner).id:
            raise SparkError(f"the image that was {name} then is not here any more", known, ROLLBACK)
    return then, now


# -- sparkmatrix-node switch ------------------------------------------------------------------------------------------

HELP = "serve by the files of the model, or of the earlier plan, that is named on standard input"
MAX_ASKED = 2048


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=(CHECK, PLACE), help="check: whether this node could serve it")


def run(arguments: argparse.Namespace) -> int:
    if arguments.action == CHECK:
        signal.alarm(int(CHECK_S))  # nobody waits any more; files of the service user may keep it for longer
    try:
        asked = wanted(sys.stdin.buffer.read(MAX_ASKED))
        {CHECK: check, PLACE: place}[arguments.action](asked, Machine())
    except SparkError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    finally:
        signal.alarm(0)
    return 0
