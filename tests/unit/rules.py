# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What is found in each fault that tests know, and what is said of it, once.

fixtures/rules.txt has a line for every fault: rule, severity, host and device of all that is found.
fixtures/texts.txt has one text of every rule, the first that comes, to be read by a person.
Both written anew: WRITE_FIXTURES=1 pytest -n0 …
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).parent / "fixtures"
ROOT = Path(__file__).resolve().parents[2]  # wherever this checkout is
Found = tuple[str, str, str]  # what is held of each fault; the rule whose text it is; the text

_VARIABLE = re.compile(r"'[^']*'|\S*[\d/]\S*")


def of_findings(findings: Iterable[Any], rule: str = "") -> list[Found]:
    """``rule``: its id; a finding of none has the first words of its text in that place."""
    made = []
    for finding in findings:
        name = rule or first_words(finding.found)
        made.append(
            (f"{name} {finding.severity} {finding.host} {finding.device}", f"{name} {finding.severity}", str(finding))
        )
    return made


def first_words(text: str) -> str:
    return "_".join(re.findall(r"[a-z_]{2,}", _VARIABLE.sub(" ", text.casefold()))[:6])


def of_verdicts(verdicts: Iterable[Any]) -> list[Found]:
    made = []
    for verdict in verdicts:
        rule = f"{verdict.outcome} {verdict.check} {verdict.cause}"
        limits = "".join(f" ({each.kind} {each.value:g} {each.unit})" for each in verdict.limit)
        remedy = [f"> {verdict.remedy}"] if verdict.remedy else []
        text = "\n  ".join([f"{verdict.found}{limits}", *(f"| {line}" for line in verdict.evidence), *remedy])
        made.append((f"{rule} {' - '.join(verdict.hosts)} {verdict.device}", rule, text))
    return made


def hold(topic: str, cases: Iterable[tuple[str, Iterable[Found]]]) -> None:
    lines: list[str] = []
    texts: dict[str, str] = {}
    for name, found in cases:
        held: list[str] = []
        for what, rule, text in found:
            held.append(" ".join(what.split()))
            texts.setdefault(" ".join(rule.split()), text.replace(f"{ROOT}/", ""))
        lines.append(f"{name}: {'; '.join(sorted(held)) or 'nothing'}")
    _compare("rules.txt", topic, lines)
    _compare("texts.txt", topic, [f"{rule}: {text}" for rule, text in texts.items() if rule])


def _compare(fixture: str, topic: str, lines: list[str]) -> None:
    path = FIXTURES / fixture
    parts = dict(part.split("]\n", 1) for part in path.read_text(encoding="utf-8").split("\n[")[1:])
    said = "".join(f"{line}\n" for line in lines)
    if os.environ.get("WRITE_FIXTURES"):
        parts[topic] = said
        path.write_text("".join(f"\n[{name}]\n{parts[name]}" for name in sorted(parts)), encoding="utf-8")
    assert said == parts.get(topic)
