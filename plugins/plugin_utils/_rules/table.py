# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""All rules, and verdicts about them: preflight, verdicts, alerts, report and the guide are selections of this."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import PASS, UNKNOWN, Limit, Verdict
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules import (
    fabric,
    inventory,
    machines,
    nccl,
    serving,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.rule import Rule

# What an owner sees, and the faults that it may be: the headings of docs/troubleshooting.md.
SYMPTOMS: Mapping[str, tuple[Rule, ...]] = {
    "A cable or a half is slow, or carries nothing": fabric.SLOW,
    "RDMA does not work, or the ranks do not use it": fabric.RDMA,
    "NCCL is slow, or does not start": nccl.NCCL,
    "A service does not answer as it should": serving.ANSWERS,
    "A service is slower than expected": serving.SPEED,
    "A machine is in trouble": machines.TROUBLE,
    "What runs is not what was planned": machines.PLANNED,
}
# Those that only a check before a run finds.
CHECKS = (*inventory.CHECKS, *machines.CHECKS, *fabric.CHECKS, *nccl.CHECKS)
RULES: Mapping[str, Rule] = {rule.id: rule for group in (*SYMPTOMS.values(), CHECKS) for rule in group}


def verdict(
    check: str,
    scope: str,
    found: str,
    cause: str = "",
    hosts: Sequence[str] = (),
    *,
    device: str = "",
    outcome: str = "",
    value: float = 0,
    limit: Limit | None = None,
    evidence: Sequence[str] = (),
    remedy: str = "",
) -> Verdict:
    """A verdict with the severity and remedy of its rule (``cause``), or with those of this one place."""
    if (cause == "") == (outcome not in (PASS, UNKNOWN)):
        raise ValueError(f"{check}: the verdict {outcome} {'needs a' if cause == '' else 'has no'} cause")
    rule = RULES[cause] if cause else None
    return Verdict(
        check=check,
        outcome=outcome or (rule.severity if rule else ""),
        scope=scope,
        found=found,
        hosts=tuple(hosts),
        device=device,
        value=value,
        limit=(limit,) if limit else (),
        cause=cause,
        evidence=tuple(evidence),
        remedy=remedy or (rule.remedy if rule else ""),
        otherwise=rule.otherwise if rule else "",
    )


def passed(check: str, scope: str, found: str, hosts: Sequence[str] = (), device: str = "", **measured: Any) -> Verdict:
    return verdict(check, scope, found, "", hosts, device=device, outcome=PASS, **measured)


def unknown(
    check: str, scope: str, found: str, hosts: Sequence[str] = (), device: str = "", **measured: Any
) -> Verdict:
    """Somebody wanted to know it, and it was not measured."""
    return verdict(check, scope, found, "", hosts, device=device, outcome=UNKNOWN, **measured)


def or_passed(check: str, words: str, hosts: Iterable[str], found: Iterable[Verdict]) -> Iterator[Verdict]:
    """What was found of machines; a pass for all without a finding."""
    said = list(found)
    yield from said
    good = [host for host in hosts if not any(host in one.hosts for one in said)]
    if good:
        yield passed(check, "node", words, good)
