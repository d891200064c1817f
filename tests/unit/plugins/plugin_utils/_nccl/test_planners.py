# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._nccl import log, results
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._nccl.run import Answer
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.plan import plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.types import Settings
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._nccl.planners import verdicts
from fabric_inputs import wired
from planning import plan as run

PLANNED = plan(wired("spark1.0 spark2.0"), Settings()).facts
FACTS = {host: fact.as_dict() for host, fact in PLANNED.items()}

READY = {"engine": True, "program": True, "busy": [], "available": 100 * 2**30}
PART = {"ranks": 2, "largest": 2**32, "timeout_s": 600.0}


def planned(looks: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    return run("nccl", {"facts": FACTS, "looks": looks or dict.fromkeys(FACTS, READY)}, head="spark1", **options)


def judged(**options: Any) -> dict[str, Any]:
    return verdicts({"facts": PLANNED, "measured": {}, "reason": "", "limits": {}, "outputs": [], **options})


@pytest.mark.parametrize(
    ("options", "port", "fields"),
    [
        ({}, 29562, {}),
        (
            {"largest_mib": 2, "port": 30000, "forks": 2},
            *(30000, {"largest": 2 * 2**20}),
        ),
    ],
)
def test_each_node_gets_its_part(options: dict[str, Any], port: int, fields: dict[str, Any]) -> None:
    part = {**PART, "store": f"{FACTS['spark1']['cluster_address']}:{port}", **fields}
    found = planned(**options)
    assert found == {
        "changed": False,
        "parts": {"spark1": {**part, "rank": 0}, "spark2": {**part, "rank": 1}},
        "reason": "",
    }


def test_a_machine_that_was_skipped_is_a_reason_and_has_no_part() -> None:
    found = planned({"spark1": READY, "spark2": {"changed": False, "skipped": True}})
    assert (found["parts"], found["reason"][:22]) == ({}, "the plan has no engine")


def test_what_the_ranks_measured_is_judged() -> None:
    moved = {rail["rdma_device"]: 10**9 for rail in FACTS["spark1"]["rails"]}
    row = results.Row(2**32, 1000, 46, 23)
    text = "NET/IB : Using [0]a:1/RoCE [1]b:1/RoCE [RO]\n" + "".join(
        f"Channel 0{half}/0 : 0[0] -> 1[0] [send] via NET/IB/{half}\n" for half in (0, 1)
    )
    answer = Answer(0, (results.Results("all_gather", (row,), 2, average_gbs=22),), log.parse(text), moved)
    answers = {"spark1": answer, "spark2": Answer(0, (), log.parse(text), moved)}
    measured = {host: {**document.plain(one), "changed": False} for host, one in answers.items()}
    found = run("nccl_verdicts", {"facts": FACTS, "measured": measured}, limits={"nccl_pair_gbs": 22.5})
    assert found["lines"] == ["all_gather between 2 ranks: 23 GB/s with 4 GiB, 22 on average, over NET/IB"]
    assert [(verdict["check"], verdict["outcome"], verdict["found"]) for verdict in found["part"]["verdicts"]] == [
        ("nccl_values", "pass", "all values were right"),
        ("nccl_transport", "pass", "NCCL used NET/IB"),
        ("nccl_halves", "pass", "all halves carried their share"),
        ("nccl_rate", "pass", "all_gather between 2 ranks: 23.00 GB/s with 4 GiB"),
    ]
    assert [one["largest_gbs"] for one in found["part"]["nccl"]] == [23]
    slow = run("nccl_verdicts", {"facts": FACTS, "measured": measured}, limits={"nccl_pair_gbs": 23.1})
    assert [verdict["outcome"] for verdict in slow["part"]["verdicts"]] == ["pass", "pass", "pass", "warn"]
    refused = run("nccl_verdicts", {"facts": FACTS, "measured": measured}, reason="the engine is running")
    assert [verdict["found"] for verdict in refused["part"]["verdicts"]] == [
        "NCCL was not measured: the engine is running"
    ]


@pytest.mark.parametrize("answer", [{"changed": False, "skipped": True}, {"rc": None}])
def test_machines_without_an_answer_were_not_measured(answer: dict[str, Any]) -> None:
    found = run("nccl_verdicts", {"facts": FACTS, "measured": dict.fromkeys(FACTS, answer)})
    (one,) = found["part"]["verdicts"]
    assert (one["found"], one["hosts"]) == ("NCCL was not measured: nothing was started", ["spark1", "spark2"])
    assert (found["part"]["nccl"], found["lines"]) == ([], ["NCCL was not measured"])


def test_outputs_of_nccl_tests_are_judged_by_the_users_limits(fixtures: Path) -> None:
    output = str(fixtures / "nccl/all_gather-pair-16g.txt")
    for limit, outcome in ((21.9, "pass"), (23, "warn")):
        found = judged(reason="no engine", outputs=[output], limits={"nccl_pair_gbs": limit})
        rates = [verdict["outcome"] for verdict in found["part"]["verdicts"] if verdict["check"] == "nccl_rate"]
        assert rates == ["unknown", outcome]
        assert found["lines"] == ["all_gather between 2 ranks: 22.96 GB/s with 16 GiB, 22.961 on average"]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"caf\xc3\xa9 \xff", "there is no table of nccl-tests in it; it ends with 'caf\u00e9 \ufffd'"),
        (None, "cannot be read (No such file or directory)"),
    ],
)
def test_what_is_no_output_is_refused_by_its_path(tmp_path: Path, content: bytes | None, found: str) -> None:
    path = tmp_path / "output"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SparkError) as refused:
        judged(outputs=[str(path)])
    assert str(refused.value) == f"{path}: {found}. Correct benchmark_nccl_outputs."


def test_a_run_that_left_nothing_but_its_failure(tmp_path: Path) -> None:
    path = tmp_path / "failed.txt"
    path.write_text("a:1:2 [0] misc/ibvwrap.cc:9 NCCL WARN Call to ibv_modify_qp failed with 110\n")
    found = judged(reason="no engine", outputs=[str(path)])["part"]["verdicts"]
    assert [one["cause"] for one in found] == ["", "gid_mismatch"]
