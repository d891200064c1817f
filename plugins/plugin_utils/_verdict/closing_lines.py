# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Verdicts for people: the lines at the end of a run."""

from __future__ import annotations

from collections.abc import Iterator

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import sentence
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import (
    FAIL,
    TITLES,
    UNKNOWN,
    WARN,
    Limit,
    Run,
    Verdict,
    together,
    where,
)

REFUSED = "These checks failed:"
HELP = "How to follow a remedy, and every cause: docs/troubleshooting.md"


def lines(run: Run) -> list[str]:
    """What failed is in :func:`refusal`; what passed is counted only."""
    found = [f"{run.playbook}: {run.counted}"]
    for outcome in (WARN, UNKNOWN):
        found += [f"{TITLES[outcome]}: {text}" for text in _of(run, outcome)]
    return found


def refusal(run: Run) -> str:
    """The failed checks as one text; empty where none failed."""
    failed = _of(run, FAIL)
    if not failed:
        return ""
    return "\n".join([REFUSED, *(f"  {number}. {text}" for number, text in enumerate(failed, 1)), HELP])


def _of(run: Run, outcome: str) -> list[str]:
    return [said(verdict, at) for at, verdict in together(one for one in run.verdicts if one.outcome == outcome)]


def said(verdict: Verdict, at: str = "") -> str:
    return sentence(verdict.found + "".join(_expected(verdict)), at or where(verdict), " ".join(_help(verdict)))


def limited(limit: Limit) -> str:
    """``90 Gb/s at least (this collection, verify_limits.half_good_gbps)``"""
    whose = ", ".join(word for word in (limit.owner, limit.variable) if word)
    return f"{limit.value:g} {limit.unit}".strip() + f" at {limit.kind} ({whose})"


def _expected(verdict: Verdict) -> Iterator[str]:
    for limit in verdict.limit if verdict.outcome in (FAIL, WARN) else ():
        yield f"; expected is {limited(limit)}"


def _help(verdict: Verdict) -> Iterator[str]:
    if verdict.remedy:
        yield f"{verdict.remedy.rstrip('.')}."
    if verdict.otherwise:
        yield f"If that does not help: {verdict.otherwise}"
