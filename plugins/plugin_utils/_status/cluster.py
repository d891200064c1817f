# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The state of the whole cluster from what every machine says of itself (``sparkmatrix status --json``). Pure.

The cluster's head speaks for all nodes. Where it does not answer, the others say what they know; a service is believed
by its own head only.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, json_text, strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError, alike, named
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._status import node
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._status.node import Status
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base.planner import Options, Planner

NOT_SET_UP = "it is not set up yet: run site.yml"
MAX_CHARACTERS = 1024 * 1024
BY_SSH = "Failed to connect to the host via ssh: "
OTHER = "its node program is of another release: run site.yml"


def read(result: Any, host: str) -> Status:
    """The result of the task that asked. A machine that says what none of ours says is one with a problem."""
    if not isinstance(result, Mapping) or not result:
        return Status(problem="it was not asked")
    said = result.get("stdout")
    if result.get("unreachable") or not said:
        words = str(result.get("msg") or result.get("stderr") or "it printed nothing")
        # All that Ansible's command says of a program that is not there.
        if result.get("rc") == errno.ENOENT and words.startswith("Error executing command"):
            return Status(problem=NOT_SET_UP)
        flat = " ".join(words.split()).removeprefix("Task failed: ").removeprefix(BY_SSH)
        return Status(problem=strict.words(flat[: strict.MAX_WORDS]))
    try:
        if len(str(said)) > MAX_CHARACTERS:
            raise ValueError("it is too long")
        return understood(json_text.mapping(str(said)))
    except (*json_text.DAMAGE, SparkError) as exc:
        return Status(problem=f"its status is not understood ({exc!r:.200}); {OTHER}")


def understood(values: Any) -> Status:
    """What ``sparkmatrix status --json`` has printed on a machine, which is not trusted."""
    try:
        status: Status = document.load(Status, strict.plain(values))
    except (TypeError, ValueError) as exc:
        return Status(problem=f"its status is not understood ({exc!r:.200}); {OTHER}")
    return status if status.schema == node.SCHEMA_VERSION else Status(problem=OTHER)


def serving(answers: Mapping[str, Status], head: str) -> bool:
    """Whether every service is seen to serve; of a head that does not answer nobody knows."""
    own = [service for status in answers.values() for service in status.own.values()]
    return bool(own) and not answers[head].problem and all(service.serving for service in own)


def lines(answers: Mapping[str, Status], head: str) -> list[str]:
    found = []
    told = not answers[head].problem
    if told:
        found += node.text(answers[head]).splitlines()
    for host, status in answers.items():
        if host != head and not status.problem:
            found += _of_another(host, status, with_node=not told)
    silent = ((host, "", status.problem) for host, status in answers.items() if status.problem)
    for hosts, _beside, why in alike(silent):
        which = " (the head)" if hosts == [head] else f" ({head} is the head)" if head in hosts else ""
        found.append(f"{'no answer':<10}{named(hosts)}{which}: {why}")
    return found


def _of_another(host: str, status: Status, with_node: bool) -> list[str]:
    """Services whose head it is, and what it says of itself where the cluster's head does not."""
    label = f"on {host}"
    services = [line for name, service in status.own.items() for line in node.service_lines(name, service, status)]
    nodes = [one.line for one in status.nodes if one.host == host] if with_node else []
    return [*(f"{label:<10}{line}" for line in services), *(f"{'nodes':<10}{line}" for line in nodes)]


def _judge(options: Options) -> dict[str, Any]:
    answers: Mapping[str, Status] = options["answers"]
    head = options["head"]
    shown, serves = lines(answers, head), serving(answers, head)
    return {"lines": shown, "serving": serves, "verdict": _verdict(answers, head, serves)}


def _verdict(answers: Mapping[str, Status], head: str, serves: bool) -> str:
    """What is true now, and the one command that comes next."""
    problems = {status.problem for status in answers.values()}
    if serves:
        return "The cluster serves."
    if problems == {NOT_SET_UP}:
        return "Nothing is set up on these machines yet. Next: ansible-playbook site.yml"
    now = f"Its head {head} does not answer, so" if answers[head].problem else ""
    now = f"{now} nobody can tell whether the cluster serves." if now else "The cluster does not serve: see above."
    if problems - {"", NOT_SET_UP}:
        return f"{now} What to do about machines that do not answer: ansible-playbook playbooks/preflight.yml"
    own = [service for status in answers.values() for service in status.own.values()]
    if own and all(service.stopped or service.serving for service in own):
        return f"{now} Next: ansible-playbook playbooks/start.yml"
    return f"{now} Next: ansible-playbook playbooks/doctor.yml  (names the cause)"


PLANNERS = {
    "cluster_status": Planner(_judge, {"head": {"type": "str", "required": True}}, gathered={"answers": read}),
}
