# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.plan import Settings, plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._nccl.planners import verdicts
from fabric_inputs import wired

FACTS = {host: fact.as_dict() for host, fact in plan(wired("spark1.0 spark2.0"), Settings()).facts.items()}


def judged(**options: Any) -> dict[str, Any]:
    return verdicts({"facts": FACTS, "measured": {}, "reason": "", "limits": {}, "outputs": [], **options})


def test_what_was_not_measured_is_unknown_with_its_reason() -> None:
    found = judged(reason="the engine is running")
    (one,) = found["part"]["verdicts"]
    assert (one["outcome"], one["found"]) == ("unknown", "NCCL was not measured: the engine is running")
    assert found["lines"] == ["NCCL was not measured"]


def test_outputs_of_nccl_tests_are_judged_by_the_users_limits(fixtures: Path) -> None:
    output = str(fixtures / "nccl/all_gather-pair-16g.txt")
    for limit, outcome in ((21.9, "pass"), (23, "warn")):
        found = judged(reason="no engine", outputs=[output], limits={"nccl_pair_gbs": limit})
        rates = [one["outcome"] for one in found["part"]["verdicts"] if one["check"] == "nccl_rate"]
        assert rates == ["unknown", outcome]
        assert found["lines"] == ["all_gather between 2 ranks: 22.96 GB/s with 16 GiB, 22.961 on average"]


def test_what_is_no_output_is_refused_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for name in ("empty", "missing"):
        with pytest.raises(SparkError, match=f"{name}: .*benchmark_nccl_outputs"):
            judged(outputs=[str(tmp_path / name)])
