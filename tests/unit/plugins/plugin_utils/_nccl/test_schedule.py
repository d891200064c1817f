# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._nccl.run import Part, Ready
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.plan import plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.types import Settings
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._nccl.schedule import Schedule, schedule
from fabric_inputs import wired

GIB = 2**30
READY = Ready(True, True, (), 100 * GIB)
HOSTS = ("spark1", "spark2")
FACTS = plan(wired("spark1.0 spark2.0"), Settings()).facts
THREE = {**FACTS, "spark3": FACTS["spark2"]}
BUSY = {"spark2": {"busy": ("sparkmatrix-engine.service",)}}


def scheduled(count: int = 2, ready: Any = None, **changes: Any) -> Schedule:
    facts = dict(list(THREE.items())[:count])
    looks = {host: replace(READY, **(ready or {}).get(host, {})) for host in facts}
    options = {"head": "spark1", "largest": 4 * GIB, "forks": 5, "port": 29562, **changes}
    return schedule(facts, looks, **options)


def test_one_rank_on_each_machine_that_meet_at_the_head() -> None:
    part = Part(0, 2, f"{FACTS['spark1'].cluster_address}:29562", 4 * GIB, 600)
    assert scheduled() == Schedule({"spark1": part, "spark2": replace(part, rank=1)})


def test_the_head_is_first_and_the_others_follow_as_the_fabric_counts_them() -> None:
    order = {"a": 3, "b": 1, "c": 2, "d": 2, "e": 0}
    facts = {host: replace(FACTS["spark1"], host=host, rank=rank) for host, rank in reversed(order.items())}
    made = schedule(facts, dict.fromkeys(facts, READY), head="c", largest=GIB, forks=5, port=1)
    assert made.reason == ""
    assert {host: part.rank for host, part in made.parts.items()} == {"c": 0, "e": 1, "b": 2, "d": 3, "a": 4}


@pytest.mark.parametrize(
    "changes",
    [
        {"forks": 2},
        {"largest": 2**20},
        {"ready": {"spark2": {"available": 12 * GIB}}},
        {"largest": 2 * GIB, "ready": {"spark2": {"available": 8 * GIB}}},
    ],
)
def test_just_enough(changes: dict[str, Any]) -> None:
    made = scheduled(**changes)
    assert (made.reason, list(made.parts)) == ("", ["spark1", "spark2"])


NO_ENGINE = "the plan has no engine, whose Python or image would run the test, on "
NO_PROGRAM = "the engine's Python, image or files are missing (run the layer engine) on "
NO_ROOM = "less than the 12.0 GiB that it needs are free (lower benchmark_nccl_largest_mib) on "


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"count": 0}, "there is one machine, and NCCL is tested between machines"),
        ({"count": 1}, "there is one machine, and NCCL is tested between machines"),
        ({"ready": BUSY}, "the engine is running and would be disturbed (stop it with playbooks/stop.yml) on spark2"),
        ({"ready": {"spark1": {"program": False}}}, f"{NO_PROGRAM}spark1"),
        ({"ready": {host: {"program": False} for host in HOSTS}}, f"{NO_PROGRAM}all machines"),
        ({"count": 3, "ready": {host: {"program": False} for host in HOSTS}}, f"{NO_PROGRAM}spark1, spark2"),
        ({"ready": {"spark1": {"available": 12 * GIB - 1}}}, f"{NO_ROOM}spark1"),
        ({"ready": {"spark1": {"available": 0}}}, f"{NO_ROOM}spark1"),
        ({"forks": 1}, "all ranks must run at the same time, and Ansible runs 1 at once (set --forks 2)"),
        ({"largest": 5}, "benchmark_nccl_largest_mib has to be 1 or more"),
        ({"ready": {"spark2": {"engine": False, "program": False}}}, f"{NO_ENGINE}spark2"),
        ({"head": ""}, "the plan has no head, where the ranks would meet"),
    ],
)
def test_reasons_not_to_measure(changes: dict[str, Any], reason: str) -> None:
    made = scheduled(**changes)
    assert made == Schedule({}, reason)
