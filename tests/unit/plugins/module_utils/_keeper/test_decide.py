# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.report import Report, UnitReport
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import decide as k
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.store import State
from hypothesis import given
from hypothesis import strategies as st

RAY, ENGINE = "sparkmatrix-ray.service", "sparkmatrix-engine.service"
S = k.Settings(hang_s=600, lost_s=20)


def member(host="spark1", active="active", **changes):
    unit = UnitReport(active=active, invocation="one", hash="h", wanted="h", result="signal", status=9)
    values = {"seen": True, "report": Report({ENGINE: unit}, available=50 * 2**30), **changes}
    return k.Member(host, **values)


def two(**changes):
    return [member(), member("spark2", **changes)]


def started(members):
    return {item.host: item.invocations for item in members}


def judge(view, now=1000.0, known=None):
    return k.judge(S, now, view, started(view.members) if known is None else known)


def test_all_well():
    assert judge(k.View(two(), progress_at=990.0)) is None


@pytest.mark.parametrize("active", ["failed", "inactive", "deactivating"])
def test_a_rank_that_does_not_run_is_dead_whatever_the_probe_says(active):
    verdict = judge(k.View(two(active=active), progress_at=1000.0))
    assert verdict.kind == "dead"
    assert "spark2" in verdict.reason
    assert "status 9" in verdict.reason


def test_a_node_that_does_not_report_is_not_dead():
    assert judge(k.View(two(seen=False, active="failed"))) is None


def test_a_rank_that_starts_is_not_dead():
    assert judge(k.View(two(active="activating"))) is None


def test_a_rank_that_somebody_else_started_again_has_lost_the_others():
    members = two()
    assert judge(k.View(members), known={"spark2": ((ENGINE, "zero"),)}).kind == "changed"
    assert judge(k.View(members[:1]), known={"spark1": ((ENGINE, "zero"),)}) is None  # alone it is whole


def test_a_rank_without_its_process_is_dead_when_the_engine_has_had_time_to_end():
    gone = [k.Gone("spark2", "ray::RayWorkerProc (sparkmatrix-ray.service)", 990.0)]
    assert judge(k.View(two(), gone=gone), now=997.0) is None
    verdict = judge(k.View(two(), gone=gone), now=998.0)
    assert (verdict.kind, verdict.host) == ("dead", "spark2")
    assert "for 8 s: ray::RayWorkerProc (sparkmatrix-ray.service) on spark2" in verdict.reason
    # What ended with a result says more.
    assert "status 9" in judge(k.View(two(active="failed"), gone=gone)).reason


def test_an_earlier_configuration_is_a_planned_restart():
    other = UnitReport(active="active", invocation="one", hash="h", wanted="other")
    members = [member(), member("spark2", report=Report({ENGINE: other}))]
    verdict = judge(k.View(members))
    assert verdict.kind == "configuration"
    assert verdict.planned


@pytest.mark.parametrize(
    ("failing", "progress", "expected"),
    [
        (None, 0.0, None),
        (395.0, 0.0, "hang"),
        (401.0, 0.0, None),  # not yet for long enough
        (100.0, 900.0, None),  # busy: counters move
        (100.0, 399.0, "hang"),
    ],
)
def test_hang_needs_failing_probes_and_still_counters(failing, progress, expected):
    verdict = judge(k.View(two(), failing, "timeout", progress))
    assert (verdict.kind if verdict else None) == expected


def test_without_counters_a_failed_probe_proves_nothing():
    assert judge(k.View(two(), 1.0, "timeout", 0.0, counters=False)) is None


@pytest.mark.parametrize(
    ("failing", "progress", "expected"), [(975.0, 0.0, "lost"), (985.0, 0.0, None), (1.0, 995.0, None)]
)
def test_a_node_off_the_fabric_is_lost_only_where_no_token_comes(failing, progress, expected):
    verdict = judge(k.View(two(seen=False, pings=False), failing, "timeout", progress))
    assert (verdict.kind if verdict else None) == expected
    assert judge(k.View(two(pings=False), None, "", 0.0)) is None


def test_a_closed_port_of_a_running_process():
    assert judge(k.View(two(), 979.0, "refused", 0.0)).kind == "closed"
    assert judge(k.View(two(), 990.0, "refused", 0.0)) is None
    assert "its port has been somebody else's for 21 s" in judge(k.View(two(), 979.0, "stranger", 0.0)).reason


@given(
    progress=st.floats(401.0, 1000.0),
    failing=st.floats(0.0, 1000.0),
    kind=st.sampled_from(["timeout", "status", "garbage"]),
)
def test_an_engine_whose_counters_move_is_never_restarted_for_its_probe(progress, failing, kind):
    assert judge(k.View(two(), failing, kind, progress)) is None


def test_fingerprint_takes_what_moves_and_nothing_else():
    text = (
        '# HELP vllm:generation_tokens_total x\nvllm:generation_tokens_total{engine="0"} 33.0\n'
        'vllm:num_requests_running{engine="0"} 1.0\nvllm:kv_cache_usage_perc{engine="0"} 0.25\n'
        'vllm:request_success_total{finished_reason="abort"} 3.0\nsglang:num_used_tokens 12\nnonsense\n'
    )
    assert k.fingerprint(text) == (
        "sglang:num_used_tokens=12",
        'vllm:generation_tokens_total{engine="0"}=33.0',
        'vllm:kv_cache_usage_perc{engine="0"}=0.25',
    )


@pytest.mark.parametrize(
    "text,expected",
    [
        ("[]", ()),
        ('[{"iter": 6, "iterLatencyMS": 9.5}, {"iter":7,"kvCacheStats":{"usedNumBlocks":1}}]', ("iter=7",)),
        ('[{"iter": 6}, {"iter": 7}, {"it', ("iter=7",)),  # cut off
        ('["iter"]', ()),
    ],
)
def test_fingerprint_of_a_list_of_iterations(text, expected):
    assert k.fingerprint(text) == expected


@given(st.one_of(st.text(), st.text().map("[{}".format)))
def test_fingerprint_reads_anything(text):
    assert isinstance(k.fingerprint(text), tuple)


def test_missing_names_every_node():
    new = member("d", seen=False)  # since the keeper began
    found = k.missing([member(), member("b", seen=False, problem="off"), member("c", pings=False), new])
    assert found == ["b does not answer (off)", "c does not answer on the fabric", "d has not answered yet"]


def test_memory_gate():
    assert k.short_of_memory([member()], 0) == []
    assert k.short_of_memory([member()], 50 * 2**30) == []
    assert k.short_of_memory([member()], 51 * 2**30) == ["spark1 has 50.0 GiB available, the plan needs 51.0 GiB"]


def test_backoff_begins_with_the_second_failure_and_doubles():
    policy = k.Policy(k.Settings(backoff_s=10, backoff_max_s=60))
    waits = []
    for _ in range(6):
        policy.failed()
        waits.append(policy.backoff())
    assert waits == [0, 10, 20, 40, 60, 60]
    assert k.Policy(S, 1).backoff(watchdog=True) == k.WATCHDOG_BACKOFF_S


def test_serving_for_long_ends_the_row():
    policy = k.Policy(S, 4)
    policy.served(599)
    assert policy.failures == 4
    policy.served(600)
    assert policy.failures == 0
    assert k.Policy(S, 5).exhausted


@pytest.mark.parametrize(
    ("before", "failures", "gave_up", "remark"),
    [
        ({}, 0, False, False),
        ({"boot": "old", "end": "stopped", "failures": 3}, 0, False, False),
        ({"boot": "new", "end": "gave_up", "failures": 5}, 0, False, False),
        ({"boot": "old", "end": "gave_up", "failures": 5, "detail": "r"}, 5, True, False),
        ({"boot": "old", "end": "shutdown", "phase": "loading", "failures": 2}, 2, False, False),
        ({"boot": "old", "end": "", "phase": "loading", "failures": 2}, 3, False, True),
        ({"boot": "old", "end": "", "phase": "serving", "failures": 0}, 1, False, True),
        ({"boot": "old", "end": "", "phase": "serving", "stable": True, "failures": 0}, 0, False, False),
        ({"boot": "old", "end": "", "phase": "waiting", "failures": 1}, 1, False, False),
        ({"boot": "new", "end": "", "phase": "loading", "failures": 2}, 2, False, False),  # the keeper itself died
    ],
)
def test_resume(before, failures, gave_up, remark):
    policy, said = k.resume(S, State(**before), "new")
    assert policy.failures == failures
    assert bool(policy.gave_up) == gave_up
    assert bool(said) == remark


def test_a_member_without_a_report_does_not_run():
    nothing = k.Member("x", True)
    assert not nothing.running
    assert nothing.units == {}
