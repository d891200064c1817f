# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The state of the whole cluster from what every machine says of itself (``sparkmatrix status --json``). Pure.

The cluster's head speaks for all nodes. Where it does not answer, the others say what they know; a service is believed
by its own head only.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text, strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError, alike, named
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._status import node
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base.planner import Options, Planner

NOT_SET_UP = "it is not set up yet: run site.yml"
MOST_CHARACTERS = 1024 * 1024
BY_SSH = "Failed to connect to the host via ssh: "
OTHER = "its node program is of another release: run site.yml"


@dataclass(frozen=True)
class Answer:
    """``document`` is empty where there is a ``problem``."""

    document: Mapping[str, Any]
    problem: str = ""


def read(result: Any, host: str) -> Answer:
    """The result of the task that asked. A machine that says what none of ours says is one without an answer."""
    if not isinstance(result, Mapping) or not result:
        return Answer({}, "it was not asked")
    said = result.get("stdout")
    if result.get("unreachable") or not said:
        words = str(result.get("msg") or result.get("stderr") or "it printed nothing")
        # All that Ansible's command says of a program that is not there.
        if result.get("rc") == errno.ENOENT and words.startswith("Error executing command"):
            return Answer({}, NOT_SET_UP)
        flat = " ".join(words.split()).removeprefix("Task failed: ").removeprefix(BY_SSH)
        return Answer({}, strict.words(flat[: strict.MOST_WORDS]))
    try:
        if len(str(said)) > MOST_CHARACTERS:
            raise ValueError("it is too long")
        document = strict.plain(json_text.mapping(str(said)))
        if document.get("schema") != node.SCHEMA_VERSION:
            return Answer({}, OTHER)
        if "problem" in document:
            return Answer({}, strict.words(document["problem"]))
        answer = Answer(document)
        node.text(document)  # all of it can be shown
        _of_another(host, answer, with_node=True)
        serving({host: answer}, host)
    except (*json_text.DAMAGE, SparkError) as exc:
        return Answer({}, f"its status is not understood ({exc!r:.200}); {OTHER}")
    return answer


def serving(answers: Mapping[str, Answer], head: str) -> bool:
    """Whether every service is seen to serve; of a head that does not answer nobody knows."""
    own = [one for answer in answers.values() for one in _own(answer).values()]
    return bool(own) and not answers[head].problem and all(one["serving"] for one in own)


def lines(answers: Mapping[str, Answer], head: str) -> list[str]:
    found = []
    silent = {host: answer.problem for host, answer in answers.items() if answer.problem}
    if answers[head].document:
        found += node.text(answers[head].document).splitlines()
    for host, answer in answers.items():
        if host != head and answer.document:
            found += _of_another(host, answer, with_node=not answers[head].document)
    for hosts, _beside, why in alike((host, "", why) for host, why in silent.items()):
        which = " (the head)" if hosts == [head] else f" ({head} is the head)" if head in hosts else ""
        found.append(f"{'no answer':<10}{named(hosts)}{which}: {why}")
    return found


def _of_another(host: str, answer: Answer, with_node: bool) -> list[str]:
    """Services whose head it is, and what it says of itself where the cluster's head does not."""
    label = f"on {host}"
    found = []
    for name, one in _own(answer).items():
        found += [f"{label:<10}{line}" for line in node.service_lines(name or "engine", one, answer.document)]
    nodes = [one for one in answer.document["nodes"] if one["host"] == host] if with_node else []
    return [*found, *(f"{'nodes':<10}{node.Node(**one).line}" for one in nodes)]


def _own(answer: Answer) -> dict[str, Mapping[str, Any]]:
    """Services whose head it is."""
    return {name: one for name, one in (answer.document.get("services") or {}).items() if one.get("unit")}


def _judge(options: Options) -> dict[str, Any]:
    answers: Mapping[str, Answer] = options["answers"]
    head = options["head"]
    shown, serves = lines(answers, head), serving(answers, head)
    return {"lines": shown, "serving": serves, "verdict": _verdict(answers, head, serves)}


def _verdict(answers: Mapping[str, Answer], head: str, serves: bool) -> str:
    """What is true now, and the one command that comes next."""
    problems = {answer.problem for answer in answers.values()} - {""}
    if serves:
        return "The cluster serves."
    if problems == {NOT_SET_UP} and len(answers) == sum(bool(answer.problem) for answer in answers.values()):
        return "Nothing is set up on these machines yet. Next: ansible-playbook site.yml"
    now = f"Its head {head} does not answer, so" if answers[head].problem else ""
    now = f"{now} nobody can tell whether the cluster serves." if now else "The cluster does not serve: see above."
    if problems - {NOT_SET_UP}:
        return f"{now} What to do about machines that do not answer: ansible-playbook playbooks/preflight.yml"
    own = [one for answer in answers.values() for one in _own(answer).values()]
    if own and all(one.get("stopped") or one["serving"] for one in own):
        return f"{now} Next: ansible-playbook playbooks/start.yml"
    return f"{now} Next: ansible-playbook playbooks/doctor.yml  (names the cause)"


PLANNERS = {
    "cluster_status": Planner(_judge, {"head": {"type": "str", "required": True}}, gathered={"answers": read}),
}
