# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.plan import Settings, plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._nccl.schedule import Schedule, Sizes, schedule
from fabric_inputs import wired

GIB = 2**30
READY = {"engine": True, "program": True, "busy": [], "available": 100 * GIB}
HOSTS = ("spark1", "spark2")
FACTS = plan(wired("spark1.0 spark2.0"), Settings()).facts
BUSY = {"spark2": {"busy": ["sparkmatrix-engine.service"]}}


def scheduled(count: int = 2, ready: Any = None, **changes: Any) -> Schedule:
    facts = dict(list(FACTS.items())[:count])
    looks = {host: {**READY, **(ready or {}).get(host, {})} for host in facts}
    options = {"head": "spark1", "sizes": Sizes(2**20, 4 * GIB), "forks": 5, "port": 29562, "timeout_s": 600, **changes}
    return schedule(facts, looks, **options)


def test_one_rank_on_each_machine_that_meet_at_the_head() -> None:
    made = scheduled()
    assert made.reason == ""
    head, other = made.parts["spark1"], made.parts["spark2"]
    assert (head.rank, other.rank, head.ranks) == (0, 1, 2)
    assert head.store == other.store == f"{FACTS['spark1'].cluster_address}:29562"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"count": 1}, "there is one machine"),
        ({"ready": BUSY}, "the engine is running and would be disturbed (stop it with playbooks/stop.yml) on spark2"),
        ({"ready": {"spark1": {"program": False}}}, "run the layer engine) on spark1"),
        ({"ready": {"spark1": {"available": 11 * GIB}}}, "less than the 12.0 GiB that it needs are free"),
        ({"ready": {host: {"program": False} for host in HOSTS}}, "on all machines"),
        ({"forks": 1}, "set --forks 2"),
        ({"sizes": Sizes(0, 5)}, "benchmark_nccl_smallest_mib has to be 1 or more"),
        ({"ready": {"spark2": {"engine": False}}}, "the plan has no engine"),
        ({"head": ""}, "the plan has no head"),
    ],
)
def test_reasons_not_to_measure(changes: dict[str, Any], reason: str) -> None:
    made = scheduled(**changes)
    assert reason in made.reason
    assert made.parts == {}
