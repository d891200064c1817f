# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import struct
import zlib

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import probe, smoke
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.probe import Answer, ProbeError, Target

TARGET = Target("127.0.0.1", 8000, "tiny")
CALL = {"function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}


def said(content="hello", finish="stop", **more):
    message = {"role": "assistant", "content": content, **more}
    return {"choices": [{"message": message, "finish_reason": finish}], "usage": {"prompt_tokens": 21}}


GOOD = {
    "chat": said(),
    "tool": said(None, "tool_calls", tool_calls=[CALL]),
    "chosen": said(None, tool_calls=[CALL]),
    "json": said('{"answer": "yes"}'),
    "vision": said("Red"),
}


def kind(body):
    if "tools" in body:
        return "tool" if body["tool_choice"] == "auto" else "chosen"
    if "response_format" in body:
        return "json"
    return "vision" if isinstance(body["messages"][0]["content"], list) else "chat"


def tried(monkeypatch, task="generate", context=0, **answers):
    """``answers``: documents or errors in place of the good ones."""
    bodies = {}

    def exchange(_target, _path, body, _timeout, _what):
        bodies[kind(body)] = body
        answer = {**GOOD, **answers}[kind(body)]
        if isinstance(answer, Exception):
            raise answer
        return answer, 0.1

    def ask(_target, _question):
        if isinstance(answers.get("ask"), Exception):
            raise answers["ask"]
        return Answer("tiny", "", 16, 1.0, 0.1, 16.0)

    monkeypatch.setattr(probe, "exchange", exchange)
    monkeypatch.setattr(probe, "ask", ask)
    target = Target(TARGET.host, TARGET.port, TARGET.model, task=task)
    return {trial.kind: trial for trial in smoke.run(target, context)}, bodies


def test_every_kind_is_asked_once_and_is_well(monkeypatch):
    found, bodies = tried(monkeypatch)
    assert {name: one.outcome for name, one in found.items()} == dict.fromkeys(smoke.KINDS["generate"], smoke.OK)
    assert found["chat"].found == "an answer to a prompt of 21 tokens"
    assert found["tool"].found == "a call: get_weather('Paris')"
    assert "chosen" not in bodies


@pytest.mark.parametrize(("task", "kinds"), [("embed", ["embedding"]), ("rank", ["rerank"])])
def test_other_tasks_have_their_own_kind(monkeypatch, task, kinds):
    assert list(tried(monkeypatch, task)[0]) == kinds


def test_the_prompt_is_long_and_fits_and_never_the_same(monkeypatch):
    def prompt(context):
        return tried(monkeypatch, context=context)[1]["chat"]["messages"][0]["content"]

    assert len(prompt(131072).split()) > smoke.LONGEST
    assert len(prompt(400)) < 200
    assert prompt(400).split()[0] != prompt(400).split()[0]


@pytest.mark.parametrize(
    ("name", "answer", "outcome", "found"),
    [
        (
            "vision",
            ProbeError("status", "HTTP 400: tiny is not a multimodal model", "x", 400),
            "not offered",
            "multimo",
        ),
        ("vision", ProbeError("status", "HTTP 500: CUDA error", "x", 500), "failed", "CUDA error"),
        (
            "tool",
            ProbeError("status", "HTTP 400: auto needs --enable-auto-tool-choice", "x", 400),
            "not offered",
            "auto",
        ),
        ("chat", ProbeError("status", "HTTP 400: no chat template", "x", 400), "failed", "no chat template"),
        ("chat", said(""), "failed", "the answer is empty"),
        ("chat", said("", reasoning_content="hm"), "ok", "an answer"),
        ("chat", {**said(""), "usage": {"prompt_tokens": 9, "completion_tokens": 1}}, "ok", "prompt of 9 tokens"),
        ("chat", {"choices": []}, "failed", "no chat completion"),
        ("chat", {"choices": [{"message": "text"}]}, "failed", "no chat completion"),
        ("ask", ProbeError("timeout", "no complete answer within the time limit", "x"), "failed", "time limit"),
        ("tool", said('<tool_call>{"name": "get_weather"}'), "failed", "its parser does not fit the model"),
        ("tool", said("It is sunny."), "ok", "a call when told to"),
        ("tool", said(None, tool_calls=[{"function": {"name": "x", "arguments": "{"}}]), "failed", "not as its schema"),
        ("json", said("yes"), "failed", "not by the schema: 'yes'"),
        ("json", said('{"answer": "maybe"}'), "failed", "not by the schema"),
        ("json", said("[1]"), "failed", "not by the schema"),
        ("json", said("", "length", reasoning="so long"), "not judged", "no complete answer within 512 tokens"),
    ],
)
def test_what_can_go_wrong(monkeypatch, name, answer, outcome, found):
    one = tried(monkeypatch, **{name: answer})[0]["stream" if name == "ask" else name]
    assert (one.outcome, found in one.found) == (outcome, True), one


def test_a_model_that_thinks_too_long_for_a_call_is_not_judged(monkeypatch):
    call = [{"function": {"name": "get_weather", "arguments": '{"ci'}}]
    cut = said(None, "length", tool_calls=call)
    none = said(None, tool_calls=[{"function": {"name": "get_weather", "arguments": "null"}}])
    for chosen in (cut, none):
        assert tried(monkeypatch, tool=said("Well"), chosen=chosen)[0]["tool"].outcome == smoke.NOT_JUDGED
    assert tried(monkeypatch, tool=none)[0]["tool"].outcome == smoke.FAILED
    as_vllm_says = {**said(None, "tool_calls", tool_calls=call), "usage": {"completion_tokens": smoke.TOKENS}}
    assert tried(monkeypatch, tool=as_vllm_says)[0]["tool"].outcome == smoke.NOT_JUDGED


def test_the_picture_is_a_picture():
    picture = smoke.png()
    assert picture.startswith(b"\x89PNG") and struct.unpack(">II", picture[16:24]) == (smoke.PIXELS, smoke.PIXELS)
    start = picture.index(b"IDAT") + 4
    rows = zlib.decompress(picture[start : start + struct.unpack(">I", picture[start - 8 : start - 4])[0]])
    assert len(rows) == smoke.PIXELS * (1 + 3 * smoke.PIXELS)
