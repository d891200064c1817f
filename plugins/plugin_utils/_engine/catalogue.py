# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Which recipes fit a number of Sparks, and what is known of each: a table, the fastest first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding, errors
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Expectation
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import consent, option_tables
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import plan as engine_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import recipe as engine_recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.expected_speed import PROMPT
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.job import INTO_SWAP
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.registry import KINDS
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.recipe import Recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.user_settings import UserSettings

USES = {"generate": "chat", "embed": "vectors", "rank": "ranking"}
SPECIAL = {"coding": "for coding", "speech": "speech to text"}
SEVERAL = 8  # users
HEADINGS = ("Name", "For", "1 user", f"{SEVERAL} users", "Requests", "Wait", "GB")  # with the longest name 77 signs
LEGEND = (
    f"1 user, {SEVERAL} users: tokens per second of all of them; ~: estimated, else reported.",
    "Requests: so many of so many tokens (k: 1024) fit at once.",
    f"Wait: seconds until the first token after {PROMPT} tokens of prompt (estimate).",
    "GB: to download. Empty or ?: not known.",
)


@dataclass(frozen=True)
class Entry:
    """A recipe. ``why``: it does not fit; empty where it does."""

    recipe: Recipe
    verdict: str
    spare_gib: float
    expected: Expectation
    consent: bool  # is asked for, since it brings code of others
    why: str = ""

    @property
    def use(self) -> str:
        """By what the description says: it is written for people who search."""
        words = self.recipe.description
        found = [use for use, says in SPECIAL.items() if says in words]
        if self.recipe.task == "generate" and found:
            return found[0]
        return "images" if "images" in words and self.recipe.task == "generate" else USES[self.recipe.task]

    def speed(self, users: int) -> str:
        rate, measured = self.expected.at(users, self.recipe.engine)
        if self.recipe.task != "generate" or not rate:
            return ""
        return f"{'' if measured else '~'}{rate:.0f}"

    @property
    def cells(self) -> tuple[str, ...]:
        recipe = self.recipe
        draft, thousands = recipe.draft.weights_gb if recipe.draft else 0.0, recipe.context // 1024
        room = f"{recipe.concurrency} x {recipe.context}"
        return (
            recipe.name,
            self.use,
            self.speed(1),
            self.speed(SEVERAL),
            room.replace(f"x {thousands * 1024}", f"x {thousands}k") if recipe.context else "?",
            f"{self.expected.first_token_s:.1f}" if self.expected.first_token_s else "",
            f"{recipe.files_gb + draft:.0f}" if recipe.files_gb else "?",
        )

    @property
    def document(self) -> dict[str, Any]:
        """For programs. ``tokens_per_s``: of one user, as others report it; ``estimate``: by the model of cost."""
        recipe = self.recipe
        paces = {pace.users: pace.tokens_per_second for pace in self.expected.paces}
        rate, measured = self.expected.at(1, recipe.engine)
        return {
            "name": recipe.name,
            "model": recipe.model,
            "task": recipe.task,
            "sparks": [recipe.min_nodes, recipe.max_nodes],
            "tokens_per_s": round(rate, 1) if measured else None,
            "estimate": paces.get(1),
            "tokens_per_s_by_users": {str(users): speed for users, speed in paces.items()},
            "first_token_s": self.expected.first_token_s or None,
            "context": recipe.context,
            "requests": recipe.concurrency,
            "download_gb": round(recipe.files_gb + (recipe.draft.weights_gb if recipe.draft else 0.0), 1),
            "memory": self.verdict,
            "licence_to_accept": recipe.gated,
        }

    @property
    def details(self) -> list[str]:
        recipe = self.recipe
        told = [
            f"{recipe.description or recipe.model} ({recipe.model})",
            f"for {recipe.for_nodes} Spark(s)",
            f"memory of each Spark: {self.verdict}, {self.spare_gib:.0f} GiB to spare"
            if self.recipe.own is None
            else "memory of each Spark: not known before its first start (its own image and command)",
            *(["it brings code of others: its plan asks for your consent"] if self.consent else []),
            *(["its licence has to be accepted on Hugging Face before"] if recipe.gated else []),
            *(
                f"{item.tokens_per_second:g} tokens/s with {KINDS[item.engine].label}, {item.streams} stream(s),"
                f" {item.nodes} Spark(s){f', {item.differs}' if item.differs else ''}: {item.source}"
                for item in recipe.expected
            ),
            *(f"known problem: {hazard}" for hazard in recipe.hazards),
        ]
        return ["", f"{recipe.name}:", *(f"  - {text}" for text in told)]

    def has(self, words: str) -> bool:
        """All of them, each as the beginning of a word in whatever it says of itself."""
        recipe = self.recipe
        text = f"{recipe.name} {recipe.model} {recipe.description} {self.use} {recipe.engine}".lower()
        return all(re.search(rf"(?<![a-z0-9]){re.escape(word)}", text) for word in words.lower().split())


def table(entries: Sequence[Entry]) -> list[str]:
    """Headings and a line for each, in columns as wide as they have to be."""
    rows = [HEADINGS, *(entry.cells for entry in entries)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    right = {HEADINGS.index(name) for name in ("1 user", f"{SEVERAL} users", "Wait", "GB")}
    return [
        "  ".join(
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    ]


def notes(entries: Sequence[Entry]) -> list[str]:
    """What few of them have, so that it needs no column."""
    found = {
        "Brings code of others, and its plan asks for your consent": [e.recipe.name for e in entries if e.consent],
        "Memory is tight": [entry.recipe.name for entry in entries if entry.verdict == "tight"],
        "A licence has to be accepted on Hugging Face before": [e.recipe.name for e in entries if e.recipe.gated],
    }
    return [f"{what}: {', '.join(names)}." for what, names in found.items() if names]


def recipes(paths: Sequence[str]) -> Iterator[tuple[Recipe | None, list[Finding]]]:
    """Every recipe once, the user's before the shipped ones of the same name."""
    seen = set()
    for directory in [*(Path(path).expanduser() for path in paths), engine_recipe.SHIPPED]:
        for path in sorted(directory.glob("*.y*ml")):
            if path.stem not in seen:
                seen.add(path.stem)
                yield engine_recipe.read(path)


def fitting(paths: Sequence[str], nodes: int, launch: str = "auto") -> tuple[list[Entry], list[Finding], list[Entry]]:
    """What fits so many Sparks by the planner, the fastest first, what is wrong with the unreadable, and the rest."""
    facts = engine_plan.assumed_facts([f"spark{number + 1}" for number in range(nodes)])
    requirements = [
        f"{package}=={option_tables.versions(name)[-1]}"
        for package, name in (("vllm", "vllm"), ("sglang", "sglang"), ("ray[default]", "ray"))
    ]
    settings = UserSettings(only_print=True, requirements=requirements, launch=launch)
    allowing = replace(settings, allow=tuple(sorted(consent.words() - {INTO_SWAP})))
    entries, findings, rest = [], [], []
    for recipe, problems in recipes(paths):
        findings += problems
        if recipe is None or recipe.device != "gpu":
            continue
        unasked = engine_plan.plan(recipe, facts, settings, {}).plans
        allowed = engine_plan.plan(recipe, facts, allowing, {}) if not unasked else None
        plans = allowed.plans if allowed else unasked
        if not plans:
            why = "; ".join(dict.fromkeys(finding.found for finding in errors(allowed.findings if allowed else ())))
            rest.append(Entry(recipe, "", 0.0, Expectation(), False, why))
        else:
            (service,) = plans["spark1"].here
            memory = service.memory
            spare = (memory.kv_available - memory.kv_needed) / 1024**3
            entries.append(Entry(recipe, memory.verdict, spare, service.expectation, not unasked))
    entries.sort(key=lambda entry: (entry.recipe.task != "generate", -entry.expected.at(1, entry.recipe.engine)[0]))
    return entries, findings, rest
