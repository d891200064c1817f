# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The planners of the test of NCCL: ``nccl`` says which rank each node is, ``nccl_verdicts`` what the figures mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, ports
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fact as fabric_fact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._nccl import log, results
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._nccl.run import MAX_OUTPUT
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base.planner import Options, Planner
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._nccl.schedule import schedule
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.limits import limits
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._verdict import nccl as judge_nccl
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._verdict.planners import part

MIB = 2**20


def plan(options: Options) -> dict[str, Any]:
    facts: Mapping[str, fabric_fact.FabricFact] = options["facts"]
    made = schedule(
        facts,
        options["looks"],
        head=options["head"],
        largest=options["largest_mib"] * MIB,
        forks=options["forks"],
        port=options["port"],
    )
    return {"parts": document.plain(made.parts), "reason": made.reason}


def verdicts(options: Options) -> dict[str, Any]:
    facts: Mapping[str, fabric_fact.FabricFact] = options["facts"]
    measured = {host: answer for host, answer in options["measured"].items() if answer.rc is not None}
    known = limits(options["limits"])
    if options["reason"] or not measured:
        made = judge_nccl.not_measured(options["reason"] or "nothing was started", sorted(facts))
    else:
        made = judge_nccl.judge(judge_nccl.from_ranks(measured, facts), facts, known)
    for path in options["outputs"]:
        made += judge_nccl.judge(_given(path), facts, known)
    return {"part": part(verdicts=made.verdicts, nccl=made.figures), "lines": judge_nccl.lines(made.figures)}


def _given(path: str) -> judge_nccl.Found:
    """Output of nccl-tests that the user has."""
    remedy = "Correct benchmark_nccl_outputs"
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            text = stream.read(MAX_OUTPUT)
        said = log.parse(text)
        try:
            return judge_nccl.from_text([results.table(text)], said)
        except SparkError:  # a run that failed may have nothing but what NCCL says of it
            if said.trouble:
                return judge_nccl.from_text([], said)
            raise
    except OSError as exc:
        raise SparkError(f"cannot be read ({exc.strerror})", path, remedy) from exc
    except SparkError as exc:
        raise SparkError(exc.found, path, remedy) from exc


PLANNERS = {
    "nccl": Planner(
        plan,
        {
            "head": {"type": "str", "required": True},
            "largest_mib": {"type": "int", "default": 4096},
            "forks": {"type": "int", "default": 5},
            "port": {"type": "int", "default": ports.NCCL_TEST},
        },
        gathered={"facts": fabric_fact.load, "looks": "nccl_look"},
    ),
    "nccl_verdicts": Planner(
        verdicts,
        {
            "reason": {"type": "str", "default": ""},
            "limits": {"type": "dict", "default": {}},
            "outputs": {"type": "list", "elements": "path", "default": []},
        },
        gathered={"facts": fabric_fact.load, "measured": "nccl_test"},
    ),
}
