#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Counts of what the planner and the recipes achieve, as docs/performance.md has them; a unit test holds them there."""

from __future__ import annotations

import pathlib
import sys
import tempfile

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "collections"), str(pathlib.Path(__file__).parent)]

import planner_verdicts
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import catalogue
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._peers import as_engine, read

NODES = (1, 2, 3, 4, 8)
PEERS = ROOT / "tests/unit/fixtures/peer_recipes.yml"


def translated() -> list[bool]:
    """For each recipe of others: can what comes out be planned as it is, without a shape from the model's files?"""
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "their.yaml"
        whole = []
        for peer in yaml.safe_load(PEERS.read_text(encoding="utf-8")):
            path.write_text(yaml.safe_dump(peer["theirs"]), encoding="utf-8")
            made = as_engine.made(read.read(str(path)))
            if not made.findings:
                whole.append("architecture" in made.document)
        return whole


def verdicts(apart: bool) -> str:
    right, by_fit, within = (
        planner_verdicts.right(apart, by, beyond)
        for by, beyond in (("right", True), ("right_by_fit", True), ("right", False))
    )
    return f"{right}; {within} without shares that are refused in any case; {by_fit} by the fit alone"


def table() -> list[str]:
    recipes = [recipe for recipe, _findings in catalogue.recipes([]) if recipe and recipe.device == "gpu"]
    fitting = ", ".join(f"{len(catalogue.fitting([], nodes)[0])} on {nodes}" for nodes in NODES)
    pinned = sum(not recipe.not_pinned() for recipe in recipes)
    whole, peers = translated(), len(yaml.safe_load(PEERS.read_text(encoding="utf-8")))
    return [
        "| Figure | Value |",
        "|---|---|",
        f"| verdicts of the planner that are right, cases known while it was made | {verdicts(False)} |",
        f"| the same, cases that were kept apart | {verdicts(True)} |",
        f"| shipped recipes, and how many fit by the planner | {len(recipes)}: {fitting} Spark(s) |",
        f"| shipped recipes whose models are pinned to a commit | {pinned} of {len(recipes)} |",
        f"| recipes of others that are translated without an error | {len(whole)} of {peers} |",
        f"| of these, shape of the model known here; the others need `recipes_model_files` | {sum(whole)} |",
    ]


if __name__ == "__main__":
    print("\n".join(table()))
