# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which recipes fit a number of Sparks, and what is known of each: one line per recipe, the fastest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import option_tables
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import plan as engine_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import recipe as engine_recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.recipe import Recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.user_settings import UserSettings

WORDS = {"generate": "chat", "embed": "vectors", "rank": "ranking"}


@dataclass(frozen=True)
class Entry:
    """A recipe that fits. ``published``: tokens per second of one stream on as many nodes, 0 where nobody says."""

    recipe: Recipe
    verdict: str
    spare_gib: float
    published: float
    estimate: float

    @property
    def line(self) -> str:
        recipe = self.recipe
        draft = recipe.draft.weights_gb if recipe.draft else 0.0
        if self.published:
            speed = f"{self.published:g} tokens/s reported"
        else:
            speed = f"up to {self.estimate:.0f} tokens/s estimated" if self.estimate else "speed not known"
        parts = [
            f"{recipe.name}: {WORDS[recipe.task]}, {speed if recipe.task == 'generate' else 'small'}",
            f"{recipe.concurrency} x {recipe.context} tokens",
            f"{self.verdict}, {self.spare_gib:.0f} GiB to spare",
            f"download {(recipe.download_gb or recipe.weights_gb) + draft:.0f} GB",
            *(["its licence has to be accepted on Hugging Face"] if recipe.gated else []),
            *([f"known problems: {len(recipe.hazards)}"] if recipe.hazards else []),
        ]
        return "; ".join(parts)


def recipes(paths: Sequence[str]) -> Iterator[tuple[Recipe | None, list[Finding]]]:
    """Every recipe once, the user's before the shipped ones of the same name."""
    seen = set()
    for directory in [*(Path(path).expanduser() for path in paths), engine_recipe.SHIPPED]:
        for path in sorted(directory.glob("*.y*ml")):
            if path.stem not in seen:
                seen.add(path.stem)
                yield engine_recipe.read(path)


def fitting(paths: Sequence[str], nodes: int) -> tuple[list[Entry], list[Finding]]:
    """What fits so many Sparks by the planner, the fastest first, and what is wrong with the unreadable."""
    facts = engine_plan.assumed_facts([f"spark{number + 1}" for number in range(nodes)])
    requirements = [
        f"{package}=={option_tables.versions(name)[-1]}"
        for package, name in (("vllm", "vllm"), ("sglang", "sglang"), ("ray[default]", "ray"))
    ]
    settings = UserSettings(only_print=True, requirements=requirements)
    entries, findings = [], []
    for recipe, problems in recipes(paths):
        findings += problems
        if recipe is None or recipe.device != "gpu":
            continue
        plans = engine_plan.plan(recipe, facts, settings, {}).plans
        if plans:
            (service,) = plans["spark1"].here
            memory = service.memory
            single = [
                item.tokens_per_second
                for item in service.expectation.published
                if item.streams == 1 and item.engine == recipe.engine
            ]
            spare = (memory.kv_available - memory.kv_needed) / 1024**3
            entries.append(Entry(recipe, memory.verdict, spare, max(single, default=0.0), service.expectation.high))
    entries.sort(key=lambda entry: (entry.recipe.task != "generate", -entry.published, -entry.estimate))
    return entries, findings
