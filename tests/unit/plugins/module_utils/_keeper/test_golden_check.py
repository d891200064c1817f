# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.engine_json import Description
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.golden import Difference, Record, Said, Step
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Member
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import golden_check, store
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.store import Store

COMMIT = "a" * 40


def steps(logprob):
    return (Said((Step("a", logprob, {"a": logprob, "b": -3.0}),), 9),)


def record(logprob=-0.1, weights="w", **values):
    return Record(weights, "s", "vllm 0.32 on 2 nodes", "2026-11-26", steps(logprob), steps(logprob), **values)


@pytest.fixture
def service(tmp_path, monkeypatch):
    """A service that says what ``said`` holds, and where its answers are kept."""
    member = Member("spark1", 0, "10.0.0.1", True, True)
    told = {"engine": "vllm 0.33", "model": "org/model", "context": "4096"}
    description = Description(
        "h",
        1,
        "m",
        "/key",
        ("u",),
        (member,),
        settings=told,
        model_directory=str(tmp_path / "hf"),
        numbers="n",
        pace="p",
    )
    monkeypatch.setattr(golden_check.engine_json, "read", lambda _path: description)
    monkeypatch.setattr(golden_check.probe, "target_of", lambda _config: None)
    monkeypatch.setattr(golden_check.probe, "metrics", lambda _target: "vllm:num_requests_running 1.0\n")
    monkeypatch.setattr(golden_check, "Store", lambda instance="": Store(str(tmp_path), instance))
    said = [-0.1]

    def ask(_target, made, context, _kinds):
        assert context == 4096
        return replace(made, plain=steps(said[-1]), chat=steps(said[-1]), tokens_per_s=30.0)

    monkeypatch.setattr(golden_check.golden, "ask", ask)
    return said


def compared(**values):
    return golden_check.compare(golden_check.Request("/etc/engine.json", **values), False)


def test_the_first_answer_is_kept_and_the_next_is_compared_with_it(service):
    first = compared()
    assert (first.numbers, first.failed, first.differences) == (
        False,
        False,
        (),
    ) and "nothing is kept yet" in first.words
    assert not compared(keep=True).failed
    again = compared()
    assert again.numbers and again.words.startswith("as vllm 0.33 on 1 node, 2")
    service.append(-1.5)
    bad = compared()
    assert bad.failed and [one.rule for one in bad.differences] == ["numbers_differ"] and "before: vllm 0.33" in bad.msg
    assert compared(keep=True).failed
    service.pop()
    assert not compared().failed, "what differs is nothing to compare with"


def test_what_its_trial_has_found_is_said_too(service, tmp_path):
    Store(str(tmp_path)).write(print, against=(Difference("memory_grows", "spark2 loses memory"),))
    assert [one.rule for one in compared().differences] == ["memory_grows"]


def test_check_mode_and_a_model_without_tokens_are_not_asked(service, monkeypatch):
    assert golden_check.compare(golden_check.Request("/x", keep=True), True).words == "not asked in check mode"
    monkeypatch.setattr(golden_check.engine_json, "read", lambda _path: replace(DESCRIPTION, task="embed"))
    assert compared() == compared(keep=True) == golden_check.NOT_ASKED


DESCRIPTION = Description("h", 1, "m", "/key", ("u",), (Member("spark1", 0, "10.0.0.1", True, True),))


def test_a_speed_that_was_measured_stays_known_where_others_are_served(service, tmp_path, monkeypatch):
    kept = Store(str(tmp_path))
    monkeypatch.setattr(golden_check.probe, "metrics", lambda _target: "")
    compared(keep=True)
    monkeypatch.setattr(golden_check.probe, "metrics", lambda _target: "vllm:num_requests_running 1.0\n")
    service.append(-0.11)
    compared(keep=True)
    found = kept.golden(golden_check.weights(golden_check.engine_json.read("")))
    assert (found.busy, found.tokens_per_s, found.plain) == (False, 30.0, steps(-0.11))


def test_a_call_that_succeeded_stays_known_where_there_was_no_time_for_one(service, tmp_path, monkeypatch):
    """Else whoever fills the engine then would have the next update compared with nothing."""
    outcomes = ["ok", "not judged", "failed", "failed"]

    def ask(_target, made, *_more):
        return replace(made, plain=steps(-0.1), tried={"tool": outcomes.pop(0)})

    monkeypatch.setattr(golden_check.golden, "ask", ask)
    for _time in range(2):
        assert not compared(keep=True).failed
    assert [one.rule for one in compared().differences] == ["smoke_failed"]


@pytest.mark.parametrize(("rates", "found"), [([30, 9, 29], []), ([30, 9, 10], ["regression"]), ([30, 28], [])])
def test_a_speed_has_to_be_low_twice(service, monkeypatch, rates, found):
    monkeypatch.setattr(golden_check.probe, "metrics", lambda _target: "")

    def ask(_target, made, *_more):
        return replace(made, plain=steps(-0.1), tokens_per_s=float(rates.pop(0)))

    monkeypatch.setattr(golden_check.golden, "ask", ask)
    compared(keep=True)
    assert [one.rule for one in compared().differences] == found
    assert rates == []


def test_whose_speed_it_is(service):
    found = golden_check.ask(golden_check.engine_json.read(""))
    assert (found.busy, found.setup, found.by) == (True, "p", "vllm 0.33 on 1 node")


def test_a_branch_is_the_commit_that_it_is_here(tmp_path):
    where = tmp_path / "hub/models--org--model/refs"
    where.mkdir(parents=True)
    config = replace(DESCRIPTION, settings={"model": "org/model"}, model_directory=str(tmp_path), numbers="n")
    unknown = golden_check.weights(config)
    (where / "main").write_text(COMMIT)
    held = golden_check.weights(config)
    (where / "main").write_text("b" * 40)
    other = golden_check.weights(config)
    pinned = golden_check.weights(replace(config, revision=COMMIT))
    in_place = golden_check.weights(replace(config, settings={"model": "/models/m"}))
    assert len({unknown, held, other}) == 3 and pinned == held
    assert in_place == golden_check.weights(replace(config, settings={"model": "/models/m"}, model_directory="/other"))
    assert held != golden_check.weights(replace(config, revision=COMMIT, numbers="other"))


def test_so_many_models_are_kept_and_no_more(tmp_path):
    kept = Store(str(tmp_path))
    for number in range(12):
        kept.keep_golden(record(weights=f"w{number}"))
    kept.keep_golden(record(-0.2, weights="w11"))
    assert [kept.golden(f"w{number}").weights for number in (3, 4)] == ["w11", "w4"], "else the newest"
    assert kept.golden("w11").plain[0].steps[0].logprob == -0.2
    where = tmp_path / kept.directory.lstrip("/") / store.GOLDEN
    assert where.stat().st_mode & 0o777 == 0o600
    where.write_text("{")
    assert kept.golden("w11") is None
    kept.keep_golden(record())
    assert kept.golden("w") == record()
    assert kept.forget() and not where.exists()


def test_an_answer_is_waited_for_beside_the_loop():
    answers = [SparkError("it is not there"), golden_check.Compared(words="as before")]
    now = [0.0]

    def ask():
        answer = answers.pop(0)
        if isinstance(answer, SparkError):
            raise answer
        return answer

    def called():
        found = beside()
        beside.thread.join()
        return found

    beside = golden_check.Beside(ask, lambda: now[0])
    assert called() is called() is None and len(answers) == 1, "an engine that fails is not asked all the time"
    now[0] = golden_check.AGAIN_S
    assert (called() or called()) == golden_check.Compared(words="as before")
