# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import (
    Machine,
    Run,
    Service,
    Serving,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.limits import limits
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._verdict import serving
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._verdict.serving import Measured
from hypothesis import given
from hypothesis import strategies as st

LIMITS = limits()
SERVICE = Service("qwen", "qwen3-8b", engine="vllm", version="0.33.0", image="sha256:aa", hosts=("spark1", "spark2"))


def point(rate=20.0, spread=0.3, tpot=45.0, **values):
    return Serving(
        **{
            **dict.fromkeys(("prompt_tokens", "output_tokens"), 128),
            **{"service": "qwen", "model": "qwen3-8b", "concurrency": 1, "repetitions": 3, "requests": 6, "failed": 0},
            **{"seed": 1, "output_rate": rate, "output_rate_low": rate - spread, "output_rate_high": rate + spread},
            **{"tpot_ms": {"median": tpot, "p90": tpot, "p99": tpot}, "ttft_ms": {"median": 80.0}},
            **values,
        }
    )


def run(*points, at="2026-11-22T08:00:00Z", service=SERVICE, machines=()):
    return Run("spark1", "benchmark", at, 200, "0.1.0", services=(service,), serving=points, machines=machines)


def judged(*points, earlier=(), now=None, **values):
    measured = [Measured(SERVICE, one, f"at {one.concurrency}", **values) for one in points]
    found = serving.judge(measured, earlier, now, LIMITS)
    return {verdict.check: verdict for verdict in found if verdict.outcome != "pass"}, {
        verdict.check for verdict in found if verdict.outcome == "pass"
    }


def test_a_service_as_fast_as_planned_and_as_before_passes():
    good = point(expected_low=8, expected_high=28)
    wrong, passed = judged(good, earlier=[run(point(20.2))])
    assert wrong == {}
    assert passed == {"serving_requests", "serving_expected", "serving_regression"}


def test_less_than_the_plan_expects():
    wrong, _passed = judged(point(tpot=200.0, expected_low=8, expected_high=28))
    (slow,) = wrong.values()
    assert (slow.check, slow.outcome, slow.cause) == ("serving_expected", "fail", "below_expectation")
    assert (slow.value, slow.limit[0].value) == (5.0, 8)
    assert "5.0 tokens/s at 1 request(s) at a time; the plan expects 8 to 28" in slow.found
    assert slow.remedy


def test_answers_of_one_token_have_no_speed():
    wrong, _passed = judged(point(tpot=0.0, expected_low=8, expected_high=28, published=100))
    assert [(one.check, one.outcome) for one in wrong.values()] == [("serving_speed", "unknown")]
    assert "was not measured" in wrong["serving_speed"].found


def test_much_less_than_somebody_published():
    several = {"concurrency": 4, "expected_low": 80, "expected_high": 125, "published": 100}
    wrong, _passed = judged(point(tpot=100.0, **several))  # 40 tokens/s together
    assert "somebody measured 100 of the same, 80 to 125" in wrong["serving_expected"].found
    assert judged(point(tpot=45.0, **several))[0] == {}, "89 of 100"


def test_the_middle_one_of_all_points_decides():
    slow, fast = point(tpot=200.0, expected_low=8), point(concurrency=4, tpot=100.0, expected_low=30)
    assert judged(slow, fast, replace(fast, concurrency=8))[0] == {}
    assert judged(slow, replace(slow, concurrency=2, expected_low=20), fast)[0]["serving_expected"].value == 5.0


def test_slower_than_all_earlier_repetitions_and_by_more_than_the_limit():
    then = [Machine("spark1", 0, {"driver": "580.95", "kernel": "6.14", "clock": "2405 MHz"})]
    now = [Machine("spark1", 0, {"driver": "580.126", "kernel": "6.14", "clock": "208 MHz"})]
    old = replace(SERVICE, image="sha256:bb", options={"max-model-len": "32768"})
    earlier = [run(point(20.0), service=old, machines=tuple(then)), run(point(20.5), at="2026-11-20T08:00:00Z")]
    wrong, _passed = judged(point(18.0), earlier=earlier, now=run(machines=tuple(now)))
    slow = wrong["serving_regression"]
    assert (slow.outcome, slow.cause, slow.value) == ("fail", "regression", 18.0)
    assert "18.0 tokens/s (17.7 to 18.3), before 20.2 (19.7 to 20.3)" in slow.found
    assert slow.limit[0].value == round(20.25 * 0.95, 2)
    assert slow.limit[0].source == "2 earlier run(s), the last 2026-11-22T08:00:00Z"
    assert slow.evidence == (
        "image: sha256:bb -> sha256:aa",
        "option max-model-len: 32768 -> not set",
        "spark1 driver: 580.95 -> 580.126",
    )


@pytest.mark.parametrize(
    ("now", "before"),
    [
        (point(18.0, spread=2.5), point(20.0)),  # within the spread
        (point(19.5, spread=0.1), point(20.0, spread=0.1)),  # beyond it, and less than 5 %
        (point(25.0), point(20.0)),  # faster
    ],
)
def test_what_is_no_regression(now, before):
    assert judged(now, earlier=[run(before)]) == ({}, {"serving_requests", "serving_regression"})


@pytest.mark.parametrize(
    "before",
    [
        run(point(40.0, concurrency=4)),
        run(point(40.0, prompt_tokens=4096)),
        run(point(40.0, text=True)),
        run(point(40.0, failed=1)),
        run(point(40.0), service=replace(SERVICE, hosts=("spark1", "spark2", "spark3", "spark4"))),
        run(point(40.0, model="other")),
    ],
)
def test_only_the_same_is_compared(before):
    wrong, _passed = judged(point(20.0), earlier=[before])
    assert set(wrong) == {"serving_speed"}
    assert wrong["serving_speed"].outcome == "unknown"
    assert "the next one is compared with this" in wrong["serving_speed"].found


def test_an_old_run_counts_no_more():
    slow_since = [run(point(10.0))] * serving.COMPARED
    assert judged(point(10.0), earlier=[*slow_since, run(point(20.0))])[0] == {}


def test_while_others_ask_the_speed_says_nothing():
    wrong, passed = judged(point(tpot=200.0, expected_low=8, expected_high=28), earlier=[run(point(40.0))], others=3)
    assert [(one.check, one.outcome) for one in wrong.values()] == [("serving_speed", "unknown")]
    assert "3 request(s) of others" in wrong["serving_speed"].found
    assert passed == {"serving_requests"}


def test_requests_without_an_answer_fail_and_are_no_speed():
    wrong, passed = judged(point(0, failed=6, tpot=0), lines=("Error 0: Internal Server Error",))
    assert (wrong["serving_requests"].cause, wrong["serving_requests"].value) == ("requests_failed", 6)
    assert wrong["serving_requests"].evidence == ("Error 0: Internal Server Error",)
    assert (len(wrong), passed) == (1, set())


def test_an_engine_without_a_generator_is_not_measured():
    one = Measured(replace(SERVICE, engine="sglang"), None, "at 1", missing="No module named 'vllm'")
    (found,) = serving.judge([one], [], None, LIMITS)
    assert (found.outcome, found.cause) == ("unknown", "")
    assert "sglang brings no vllm bench (No module named 'vllm')" in found.found
    assert "benchmark_program" in found.remedy


def test_what_ended_early_is_not_measured():
    one = Measured(SERVICE, None, "at 8", broken="it was not done after 900 s", lines=("tail",))
    (found,) = serving.judge([one], [], None, LIMITS)
    assert (found.outcome, found.found, found.evidence) == (
        "unknown",
        "at 8: not measured, it was not done after 900 s",
        ("tail",),
    )


@pytest.mark.parametrize(
    ("acceptance", "outcome", "cause"),
    [(0.62, "pass", ""), (0.05, "warn", "speculation_rejected"), (0, "unknown", "")],
)
def test_drafts(acceptance, outcome, cause):
    measured = [Measured(SERVICE, point(text=True, acceptance=acceptance), "at 1")]
    found = next(verdict for verdict in serving.judge(measured, [], None, LIMITS) if verdict.check == "serving_drafts")
    assert (found.outcome, found.cause) == (outcome, cause)


def test_drafts_of_random_tokens_say_nothing():
    assert "serving_drafts" not in judged(point(acceptance=0.01))[0]


@given(
    rates=st.lists(st.floats(1, 100), min_size=1, max_size=8),
    low=st.floats(0, 50),
    spread=st.floats(0, 5),
)
def test_a_run_like_the_last_one_is_never_a_regression(rates, low, spread):
    """Whatever was measured before: the same again raises no alarm that was not there before it."""
    earlier = [run(point(rate, spread)) for rate in rates]
    again = point(rates[0], spread, expected_low=low, expected_high=low + 1)
    slowest = min(one.serving[0].output_rate_low for one in earlier[: serving.COMPARED])
    wrong, _passed = judged(again, earlier=earlier)
    assert ("serving_regression" in wrong) <= (rates[0] + spread < slowest)


def test_a_service_that_does_not_answer_is_a_finding_and_ends_nothing_else():
    measured = [Measured(SERVICE, None, f"at {count}", silent="nothing listens there") for count in (1, 4)]
    found = serving.judge(measured, [], None, LIMITS)
    assert {(verdict.outcome, verdict.cause, verdict.found) for verdict in found} == {
        ("fail", "not_serving", "qwen3-8b: nothing listens there")
    }
