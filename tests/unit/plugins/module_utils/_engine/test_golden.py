# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import golden, probe, smoke
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.golden import Record, Said, Step
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.table import RULES

TARGET = probe.Target("127.0.0.1", 1, "m")
WORDS = [f"w{number}" for number in range(40)]
THEN, NEXT = "2026-11-26T11:00:00+00:00", "2026-11-27T11:00:00+00:00"
OK = dict.fromkeys(("tool", "json"), smoke.OK)
# Of the lab's model after it had learned plain text, by tests/bench/golden_noise.py: each served by vLLM's CPU build.
RECORDED = json.loads((Path(__file__).parent / "golden_records.json").read_text(encoding="utf-8"))


def said(seed, noise=0.0, chance=0, tokens=48):
    """An answer of a model that is ``seed``, computed with so much noise in its logits."""
    model, kernels = random.Random(seed), random.Random(chance)
    steps = []
    for _token in range(golden.TOKENS):
        logits = {word: model.gauss(0, 3) + kernels.gauss(0, noise) for word in WORDS}
        total = math.log(math.fsum(map(math.exp, logits.values())))
        likely = sorted(logits, key=logits.__getitem__, reverse=True)[: golden.TOP]
        top = {word: round(logits[word] - total, 4) for word in likely}
        steps.append(Step(likely[0], top[likely[0]], top))
    return Said(tuple(steps), tokens)


def record(seed=1, noise=0.0, chance=0, chat=None, **values):
    plain = tuple(said(f"{seed} {number}", noise, f"{chance} {number}") for number in range(len(golden.PROMPTS)))
    chats = (chat or said(f"{seed} chat", noise, f"{chance} chat"),)
    made = Record("weights", "setup", "vllm 0.33 on 2 nodes", THEN, plain, chats, round(noise, 4), OK, 30.0)
    return replace(made, **values)


def second_best(made):
    """Of a sampler that is broken: the second of the likeliest tokens."""
    chosen = tuple(
        Said(tuple(Step(list(step.top)[1], list(step.top.values())[1], step.top) for step in one.steps), 0)
        for one in made.plain
    )
    return replace(made, plain=chosen)


def unsure():
    """Of ranks that do not fit each other: all words are alike."""
    step = Step(WORDS[0], -3.69, dict.fromkeys(WORDS[: golden.TOP], -3.69))
    return (Said((step,) * golden.TOKENS),) * len(golden.PROMPTS)


def rules(before, now):
    return [one.rule for one in golden.compare(before, now)]


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.03, 0.06, 0.1])
@pytest.mark.parametrize("chance", range(20))
def test_noise_of_batches_and_ranks_is_kept(noise, chance):
    assert rules(record(noise=noise), record(noise=noise, chance=chance + 1)) == []


SABOTAGED = {
    "other weights": (golden.NUMBERS, lambda: record(2)),
    "one rank has another revision": (golden.NUMBERS, lambda: record(noise=0.6, chance=3)),
    "a kernel that is wrong by a third": (golden.NUMBERS, lambda: record(noise=0.33, chance=3)),
    "wrong, and noisy": (golden.NUMBERS, lambda: replace(record(noise=1.5, chance=3), noise=1.5)),
    "wrong tokens of right numbers": (golden.NUMBERS, lambda: second_best(record())),
    "another template": (golden.TEMPLATE, lambda: record(chat=said("1 chat", tokens=61))),
    "another template of the same length": (golden.TEMPLATE, lambda: record(chat=said("2 chat"))),
    "another template of a token less": (golden.TEMPLATE, lambda: record(chat=said("1 chat", tokens=47))),
    "another template on another day": (golden.TEMPLATE, lambda: record(chat=said("2 chat"), time=NEXT)),
    "its calls are text": (golden.KINDS, lambda: record(tried={**OK, "tool": smoke.FAILED})),
    "other weights that are garbage": (golden.NUMBERS, lambda: record(plain=unsure(), weights="other")),
    "other weights whose calls are text": (
        golden.KINDS,
        lambda: record(2, weights="other", tried={**OK, "tool": smoke.FAILED}),
    ),
    "its JSON is none": (golden.KINDS, lambda: record(tried={**OK, "json": smoke.FAILED})),
    "half speed": (golden.SLOWER, lambda: record(tokens_per_s=15.0)),
}


@pytest.mark.parametrize(("rule", "now"), SABOTAGED.values(), ids=SABOTAGED)
def test_a_sabotaged_update_is_found_by_its_rule(rule, now):
    assert rules(record(), now()) == [rule]
    assert rule in RULES


GOOD = {
    "the date in its template": lambda: record(chat=replace(said("1 chat", 0.2, 5), prompt_tokens=49), time=NEXT),
    "others were served meanwhile": lambda: record(tokens_per_s=9.0, busy=True),
    "on other nodes, or with other options": lambda: record(setup="other", tokens_per_s=9.0),
    "on a processor that others use": lambda: record(setup="", tokens_per_s=9.0),
    "a little slower": lambda: record(tokens_per_s=24.0),
    "a call that its parser no longer offers": lambda: record(tried={**OK, "tool": smoke.NOT_OFFERED}),
    "other weights on purpose": lambda: record(2, weights="other"),
    "no log probabilities": lambda: record(plain=(), chat=Said((), 48)),
}


@pytest.mark.parametrize("now", GOOD.values(), ids=GOOD)
def test_a_good_update_is_kept(now):
    assert rules(record(), now()) == []


def test_a_token_that_turns_where_two_are_alike_ends_the_comparison_and_is_no_fault():
    one = Step("a", -0.70, {"a": -0.70, "b": -0.71})
    two = Step("b", -0.70, {"b": -0.70, "a": -0.72})
    after = Step("x", -9.0, {"x": -9.0, "y": -9.5})
    found = golden.distance([Said((one, one))], [Said((two, after))])
    assert (found.positions, found.turned, round(found.most, 2), round(found.mean, 3)) == (1, 0, 0.02, 0.015)
    sure = Step("c", -0.1, {"c": -0.1, "a": -4.0})
    assert golden.distance([Said((one,))], [Said((sure,))]).turned == 1


def test_without_plain_texts_a_chat_is_held_to_the_noise():
    before = record(plain=())
    assert rules(before, record(plain=(), chat=said("1 chat", 0.4, 9))) == [golden.NUMBERS]


def test_tokens_that_are_no_text_are_not_compared():
    """All of them have one name."""
    one, two = Step("", -1.0, {"": -1.0, "a": -2.0}), Step("", -3.0, {"": -3.0, "a": -2.0})
    assert golden.distance([Said((one,))], [Said((two,))]).mean == 0


# -- recorded ---------------------------------------------------------------------------------------------------------


def recorded(name):
    return replace(document.load(Record, RECORDED[name]), weights="w", setup="s", tokens_per_s=0.0)


@pytest.mark.parametrize("name", [name for name in RECORDED if name.startswith("good: ")])
def test_what_vllm_computed_otherwise_and_right_is_kept(name):
    assert rules(recorded("last good"), recorded(name)) == []


@pytest.mark.parametrize("name", [name for name in RECORDED if name.startswith(("numbers_", "template_"))])
def test_what_vllm_computed_wrong_is_found(name):
    assert rules(recorded("last good"), recorded(name)) == [name.partition(":")[0]]


# -- reading ----------------------------------------------------------------------------------------------------------

COMPLETION = {
    "choices": [
        {"index": 1, "logprobs": {"tokens": ["b"], "token_logprobs": [-0.5], "top_logprobs": [{"b": -0.5, "c": -1}]}},
        {"index": 0, "logprobs": {"tokens": ["a\n"], "token_logprobs": [-0.25], "top_logprobs": None}},
    ],
    "usage": {"prompt_tokens": 9},
}


def of_chat(**step):
    step = {"token": "a", "logprob": -0.5, "top_logprobs": [{"token": "a", "logprob": -0.5}], **step}
    return {"choices": [{"index": 0, "logprobs": {"content": [step]}}], "usage": {"prompt_tokens": 9}}


def test_answers_of_both_kinds_are_read():
    first, second = golden.read(COMPLETION, TARGET)
    assert first == Said((Step(r"'a\n'", -0.25, {}),), 0)
    assert second.steps[0].top == {"b": -0.5, "c": -1}
    assert golden.read(of_chat(), TARGET) == [Said((Step("a", -0.5, {"a": -0.5}),), 9)]
    assert golden.read({"choices": [{"index": 0, "logprobs": None}]}, TARGET) == [Said()]


@pytest.mark.parametrize("wrong", [math.nan, -math.inf, 0.5, "-1", None, True, -1e5])
def test_a_number_that_is_no_log_probability_is_refused(wrong):
    with pytest.raises(SparkError, match="log probabilities"):
        golden.read(of_chat(logprob=wrong), TARGET)


@pytest.mark.parametrize(
    "document", [{}, {"choices": [{}]}, {"choices": 1}, of_chat(token=1), {"choices": [{"index": 0, "logprobs": 7}]}]
)
def test_what_is_no_answer_is_refused(document):
    with pytest.raises(SparkError):
        golden.read(document, TARGET)


# -- asking -----------------------------------------------------------------------------------------------------------


def test_what_an_engine_does_not_offer_is_left_out(monkeypatch):
    asked = []

    def exchange(_target, path, body, _timeout_s, _what):
        asked.append((path, body))
        if path.endswith("/chat/completions"):
            return of_chat(), 0.1
        raise probe.ProbeError("status", "HTTP 404", "x", 404)

    monkeypatch.setattr(golden.probe, "exchange", exchange)
    found = golden.numbers(TARGET, Record("w", "s", "by"))
    assert (found.plain, len(found.chat), found.noise) == ((), 1, 0.0)
    assert all(body["temperature"] == 0 for _path, body in asked)
    assert golden.comparable(found) and not golden.comparable(Record("w", "s", "by"))


def test_an_engine_that_gives_fewer_of_the_likeliest_is_asked_for_these(monkeypatch):
    def exchange(_target, path, body, _timeout_s, _what):
        if golden.TOP in (body.get("logprobs"), body.get("top_logprobs")):
            raise probe.ProbeError("status", "HTTP 400 no more than 1", "x", 400)
        return of_chat() if "messages" in body else COMPLETION, 0.1

    monkeypatch.setattr(golden.probe, "exchange", exchange)
    found = golden.numbers(TARGET, Record("w", "s", "by"))
    assert found.plain and found.chat


def test_no_more_answers_are_kept_than_were_asked_for():
    """The keeper has them in its memory and in a file, and an engine may say what it likes."""
    found = golden.read({"choices": [{"index": number} for number in range(50000)]}, TARGET)
    assert len(found) == len(golden.PROMPTS)


@pytest.mark.parametrize(
    ("seconds", "running", "outcome"),
    [(120.1, 64, smoke.NOT_JUDGED), (120.1, 1, smoke.FAILED), (3.0, 64, smoke.FAILED)],
)
def test_a_call_for_which_there_was_no_time_is_no_fault_of_an_engine_that_others_fill(
    monkeypatch, seconds, running, outcome
):
    monkeypatch.setattr(golden.probe, "metrics", lambda _target: f"vllm:num_requests_running {running}\n")
    monkeypatch.setattr(golden.probe, "ask", lambda *_asked: SimpleNamespace(tokens_per_s=30.0))
    monkeypatch.setattr(golden, "numbers", lambda _target, made: made)
    tool = smoke.Tried("tool", smoke.FAILED, seconds, "no complete answer")
    monkeypatch.setattr(golden.smoke, "run", lambda *_asked, **_kinds: [tool])
    found = golden.ask(TARGET, record())
    assert found.tried == {"tool": outcome}
    assert [one.rule for one in golden.compare(record(), found)] == [golden.KINDS] * (outcome == smoke.FAILED)


@pytest.mark.parametrize(("more", "busy"), [(golden.RATES * golden.RATE_TOKENS + 9, False), (400, True)])
def test_whoever_is_served_while_its_speed_is_measured_is_seen(monkeypatch, more, busy):
    """Who comes a moment after it was found idle; what the keeper asks meanwhile is less."""
    pages = [f"vllm:generation_tokens_total {1000.0 + further}\n" for further in (0, more, more)]
    monkeypatch.setattr(golden.probe, "metrics", lambda _target: pages.pop(0))
    monkeypatch.setattr(golden.probe, "ask", lambda *_asked: SimpleNamespace(tokens_per_s=9.0))
    monkeypatch.setattr(golden, "numbers", lambda _target, made: made)
    assert golden.ask(TARGET, record(), kinds=False).busy is busy


def test_an_engine_that_fails_is_no_engine_without_the_path(monkeypatch):
    def exchange(*_arguments):
        raise probe.ProbeError("status", "HTTP 500", "x", 500)

    monkeypatch.setattr(golden.probe, "exchange", exchange)
    with pytest.raises(probe.ProbeError):
        golden.numbers(TARGET, Record("w", "s", "by"))


def test_its_noise_is_what_it_differs_alone_and_in_a_batch(monkeypatch):
    def exchange(_target, path, body, _timeout_s, _what):
        if path.endswith("/chat/completions"):
            return of_chat(), 0.1
        several = isinstance(body["prompt"], list)
        one = {"tokens": ["a"], "token_logprobs": [-0.5 if several else -0.25], "top_logprobs": [{}]}
        count = len(body["prompt"]) if several else 1
        return {"choices": [{"index": number, "logprobs": one} for number in range(count)]}, 0.1

    monkeypatch.setattr(golden.probe, "exchange", exchange)
    found = golden.numbers(TARGET, Record("w", "s", "by"))
    assert (len(found.plain), found.noise) == (len(golden.PROMPTS), 0.25)
    assert golden.comparable(found)
    assert not golden.comparable(replace(found, noise=0.3)), "an engine so noisy says nothing"
