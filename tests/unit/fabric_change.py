# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A change of the fabric on a :class:`FakeNode`: what is wanted, a run, and what the role does after its test."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import rollback
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.apply import (
    Outcome,
    Wanted,
    reconcile,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FACT_PATH, FabricFact, dump
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import files as managed_files
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.hosts_names import hosts_lines
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.plan import plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.types import Settings
from fabric_inputs import spark
from fake_node import FakeNode

A, B = "enp1s0f0np0", "enP2p1s0f0np0"
BEGIN, END = (f"# {mark} sparkmatrix.cluster fabric" for mark in ("BEGIN", "END"))
OTHER = ("enp1s0f1np1", "enP2p1s0f1np1")
NICS = (A, B, *OTHER)


def planned(cage: int = 0, **settings: Any) -> tuple[FabricFact, list[str]]:
    made = plan({"spark1": spark(0, (cage,)), "spark2": spark(1)}, Settings(topology="switch", **settings))
    assert made.facts, made.findings
    return made.facts["spark1"], hosts_lines(made.facts)[0]


def wanted(cage: int = 0, timeout_s: float = 5, **settings: Any) -> Wanted:
    fact, lines = planned(cage, **settings)
    return Wanted(fact, lines, "enP7s7", timeout_s)


NOTHING = Wanted(None, (), "enP7s7", 5)


def machine(node: FakeNode, sysfs: Path | None = None) -> Machine:
    return Machine(str(node.root), node.run, node.sleep, node.clock, sysfs or node.root / "sys", node.clock)


def apply(node: FakeNode, want: Wanted, check: bool = False, sysfs: Path | None = None, hold: bool = False) -> Outcome:
    """A run whose test succeeds; with ``hold`` it ends before the test."""
    outcome = reconcile(machine(node, sysfs), want, check_mode=check, holders=node.holders)
    if outcome.transaction and not hold:
        rollback.confirm(machine(node, sysfs), outcome.transaction)
    return outcome


def verify(node: FakeNode, want: Wanted) -> None:
    """What the role does after the test."""
    assert want.fact
    file = managed_files.File(FACT_PATH, content=dump(replace(want.fact, state="applied")).encode())
    managed_files.apply_set("fabric_fact", [file], root=str(node.root))
