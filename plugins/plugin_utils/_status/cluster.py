# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The state of the whole cluster from what every machine says of itself (``sparkmatrix status --json``). Pure.

The cluster's head speaks for all nodes. Where it does not answer, the others say what they know; a service is believed
by its own head only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding, SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._status import node
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import border
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base.border import Document
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base.planner import Options, Planner

MOST_CHARACTERS = 1024 * 1024
OTHER = "its node program is of another release: run site.yml"


@dataclass(frozen=True)
class Answer:
    """``document`` is empty where there is a ``problem``."""

    document: Mapping[str, Any]
    problem: str = ""


def read(result: Any, host: str) -> Answer:
    """The result of the task that asked. Raises :class:`SparkError` for what no machine of ours says."""
    if not isinstance(result, Mapping) or not result:
        return Answer({}, "it was not asked")
    said = result.get("stdout")
    if result.get("unreachable") or not said:
        words = str(result.get("msg") or result.get("stderr") or "it printed nothing")
        return Answer({}, strict.words(" ".join(words.split())[: strict.MOST_WORDS]))
    try:
        if len(str(said)) > MOST_CHARACTERS:
            raise ValueError("it is too long")
        findings: list[Finding] = []
        document = border.read(border.anything, json.loads(str(said)), host, findings)
        if findings:
            raise ValueError(str(findings[0]))
    except (ValueError, RecursionError) as exc:
        raise SparkError(f"its status is not understood ({exc})", host, OTHER) from exc
    if document.get("schema") != node.SCHEMA_VERSION:
        return Answer({}, OTHER)
    return Answer({}, document["problem"]) if "problem" in document else Answer(document)


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
        if host == head or not answer.document:
            continue
        label = f"on {host}"
        for name, one in _own(answer).items():
            found += [f"{label:<10}{line}" for line in node.service_lines(name or "engine", one, answer.document)]
        if not answers[head].document:
            found += [
                f"{'nodes':<10}{node.Node(**own).line}" for own in answer.document["nodes"] if own["host"] == host
            ]
    found += [f"{'no answer':<10}{host}{' (the head)' if host == head else ''}: {why}" for host, why in silent.items()]
    return found


def _own(answer: Answer) -> dict[str, Mapping[str, Any]]:
    """Services whose head it is."""
    return {name: one for name, one in (answer.document.get("services") or {}).items() if one.get("unit")}


def _judge(options: Options) -> dict[str, Any]:
    answers: Mapping[str, Answer] = options["answers"]
    head = options["head"]
    try:
        shown, serves = lines(answers, head), serving(answers, head)
    except (LookupError, TypeError, AttributeError) as exc:
        raise SparkError(f"a status is not complete ({exc!r})", "", OTHER) from exc
    verdict = "The cluster serves." if serves else "The cluster does not serve, or nobody can tell: see above."
    return {"lines": shown, "serving": serves, "verdict": verdict}


PLANNERS = {
    "cluster_status": Planner(
        _judge, {"head": {"type": "str", "required": True}}, gathered={"answers": Document(read)}
    ),
}
