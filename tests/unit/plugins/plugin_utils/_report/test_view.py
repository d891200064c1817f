# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Which runs count, what they say together, and the tables and bars of the page."""

from __future__ import annotations

from dataclasses import replace

import pytest
import report_samples as samples
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import Machine, Rdma, Verdict
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._report.view import places, standing, view


def at(day: int, playbook: str = "doctor", **parts: object):
    return samples.run(playbook, f"2026-11-{day:02}T07:30:00Z", **parts)


def said(outcome: str, check: str = "rdma_rate", **parts: object) -> Verdict:
    return Verdict(check, outcome, "half", f"it is {outcome}", ("spark1",), "mlx5_0", **parts)


def test_the_newest_run_of_a_playbook_counts_and_a_part_leaves_the_other_parts():
    both = at(1, "benchmark", rdma=samples.rdma(), serving=samples.serving())
    fabric = at(2, "benchmark", rdma=samples.rdma())
    runs = [at(5), at(4), at(3, "site"), fabric, both, at(0, "verify")]
    assert standing(runs) == [at(5), at(3, "site"), fabric, both]
    assert standing([at(3, "benchmark", rdma=samples.rdma(), serving=samples.serving()), fabric, both]) == [
        at(3, "benchmark", rdma=samples.rdma(), serving=samples.serving())
    ]


def test_a_latency_beside_an_engine_takes_no_rate_back():
    slow = at(1, "benchmark", rdma=samples.rdma(), verdicts=(said("fail", cause="nic_degraded"),))
    latency = Rdma("spark1", "spark2", ("mlx5_0",), "latency", 1.7)
    light = at(2, "benchmark", rdma=(latency,), verdicts=(said("pass", "rdma_latency"),))
    seen = view([light, slow])
    assert {one.verdict.check: one.verdict.outcome for one in seen.said} == {
        "rdma_latency": "pass",
        "rdma_rate": "fail",
    }
    again = at(3, "benchmark", rdma=(*samples.rdma(), latency), verdicts=(said("pass"),))
    assert [one.verdict.outcome for one in view([again, light, slow]).said] == ["pass"]


def test_a_run_that_counts_for_its_measurement_has_no_word_on_what_a_newer_one_has_judged():
    """What was found on a machine then, and passes for all of them together now, is no problem any more."""
    then = at(
        1, "site", rdma=samples.rdma(), verdicts=(said("fail", "both_halves", cause="one_half_only"), said("warn"))
    )
    passed = Verdict("both_halves", "pass", "half", "all halves carry alike", ("spark1",))
    seen = view([at(2, "verify", verdicts=(passed,)), then])
    assert {(one.verdict.check, one.verdict.outcome) for one in seen.said} == {
        ("both_halves", "pass"),
        ("rdma_rate", "warn"),
    }


@pytest.mark.parametrize(
    ("newer", "older", "shown"),
    [
        ("pass", "fail", "pass"),
        ("fail", "pass", "fail"),
        ("unknown", "fail", "fail"),
        ("unknown", "pass", "pass"),
        ("unknown", "unknown", "unknown"),
    ],
)
def test_the_newest_word_on_a_thing_counts_and_no_word_takes_none_back(newer, older, shown):
    seen = view([at(1, "benchmark", verdicts=(said(older),)), at(2, verdicts=(said(newer),))])
    assert [one.verdict.outcome for one in seen.said] == [shown]


def test_what_one_run_says_of_one_thing_is_all_shown():
    seen = view([at(1, verdicts=(said("fail", cause="a"), said("fail", cause="b"), said("pass")))])
    assert {outcome: len(found) for outcome, found in seen.by.items()} == {
        "fail": 2,
        "warn": 0,
        "unknown": 0,
        "pass": 1,
    }


@pytest.mark.parametrize(
    ("outcomes", "headline"),
    [
        (["fail", "fail", "warn"], "1 problem and 1 warning"),
        (["warn", "pass"], "1 warning"),
        (["pass", "pass"], "2 checks passed, no problem"),
        (["pass", "unknown"], "No problem found, 1 not measured"),
        ([], "Nothing was checked"),
    ],
)
def test_the_headline(outcomes, headline):
    verdicts = [replace(said(outcome), device=str(number)) for number, outcome in enumerate(outcomes)]
    assert view([at(1, verdicts=tuple(verdicts))]).headline == headline


@pytest.mark.parametrize("outcome", ["fail", "unknown", "pass"])
def test_what_is_alike_on_several_machines_stands_once_with_their_names(outcome):
    verdicts = [
        replace(said(outcome), hosts=(host,), device=device, found=f"{host} is slow", remedy=f"Look at {host}")
        for host in ("spark1", "spark2", "spark3")
        for device in ("eth0", "eth1")
    ]
    page = view([at(1, verdicts=tuple(verdicts))])
    shown = places(page.by[outcome])
    assert [where for where, _one in shown] == ["spark1..spark3 eth0", "spark1..spark3 eth1"]
    who = "spark1 (and spark2, spark3)"
    assert (shown[0][1].verdict.found, shown[0][1].verdict.remedy) == (f"{who} is slow", f"Look at {who}")


def test_the_cluster_in_a_line():
    assert view(samples.healthy()).about == "4 machines; switch; serves minimax-m2.7-awq"
    assert view([at(1)]).about == "switch"


def test_a_cause_is_one_problem_wherever_it_is_and_its_evidence_is_bounded():
    (problem,) = view(samples.degraded()).problems
    assert problem.title == "A ConnectX-7 has not initialised properly"
    assert [where for where, _said in problem.places] == ["spark3 rocep1s0f0", "spark3 roceP2p1s0f0"]
    assert problem.places[0][1].measured == "13 Gb/s, at least 90"
    assert problem.limits == (samples.LEAST,) and problem.evidence == samples.EVIDENCE
    long = view([at(1, verdicts=(said("fail", cause="of_another_release", evidence=tuple(map(str, range(50)))),))])
    assert (long.problems[0].title, len(long.problems[0].evidence), long.problems[0].more_evidence) == (
        "Of another release", 40, 10,
    )  # fmt: skip


def test_parts_come_from_the_newest_run_that_has_them():
    seen = view(samples.healthy())
    assert seen.newest.playbook == "doctor" and seen.memory[1] == seen.newest
    assert seen.pairs[3] == seen.nccl[1] == seen.speed[1] == samples.healthy()[-2]
    empty = view([at(1, machines=(Machine("a", 0, {}, 0, 0, 120),))])
    assert (empty.cables, empty.pairs, empty.nccl, empty.memory, empty.speed) == (None,) * 5


def test_a_pair_has_its_slower_half_and_its_higher_latency():
    tables, _all, software = view(samples.degraded()).pairs[:3]
    assert len(tables) == 3 and not software
    halves = (
        Rdma("a", "b", ("x",), "write", 0),
        Rdma("a", "b", ("y",), "write", 90),
        Rdma("b", "a", ("x",), "write", 90),
        Rdma("b", "a", ("x",), "latency", 2),
        Rdma("b", "a", ("y",), "latency", 7),
    )
    (write, latency), everything, *_rest = view([at(1, rdma=halves)]).pairs
    assert write[1].rows == (("a", "-", "0"), ("b", "90", "-"))
    assert latency[1].rows == (("a", "-", "-"), ("b", "7", "-"))
    assert len(everything.rows) == 5


def test_memory_that_was_planned_and_measured():
    machines = (Machine("b", 1, {}, 90, 130, 120, {"weights": 90}), Machine("a", 0, {}, 60, 0, 120))
    table, _run = view([at(1, machines=machines)]).memory
    assert table.rows == (("a", "-", "60", "not measured", "120"), ("b", "90", "90", "130", "120"))


def test_the_speed_of_one_request_is_held_to_the_plan():
    (speed,) = view(samples.healthy()).speed[0]
    assert len(speed.notes) == 2 and "the plan expects 13 to 46" in speed.notes[0]
    assert len(speed.table.rows) == 6
    failed = [replace(point, failed=2) for point in samples.serving()[:2]]
    assert "4 requests failed" in view([at(1, serving=tuple(failed))]).speed[0][0].notes


@pytest.mark.parametrize(
    ("count", "p90", "p99", "notes"), [(6, False, False, 1), (30, True, False, 1), (200, True, True, 0)]
)
def test_percentiles_of_few_answers_are_not_shown(count, p90, p99, notes):
    point = replace(samples.serving()[4], requests=count, repetitions=2)
    (speed,) = view([at(1, serving=(point,))]).speed[0]
    row = dict(zip(speed.table.head, speed.table.rows[0]))
    assert (row["TTFT p90, ms"] != "-", row["TTFT p99, ms"] != "-", len(speed.notes)) == (p90, p99, notes)


def test_history_has_every_run():
    seen = view(samples.degraded())
    assert len(seen.history) == 7 and seen.history[0].numbers == ("25.1", "2.1", "11.2", "97.4")
    assert seen.history[1].numbers == ("-",) * 4


def test_versions_that_differ_are_named():
    table, differ, _run = view(samples.degraded()).machines
    assert differ == ("Firmware",) and table.head[1] == "spark1 (rank 0)"
