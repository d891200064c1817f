# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""One request of every kind that clients send: does each come back as it should? Nobody judges what the model writes.

What a service does not offer, it refuses with a status of 400 to 422; that is no failure, and is said as such.
"""

from __future__ import annotations

import base64
import struct
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import api_paths, json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Number, Word, Words
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import probe
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.probe import ProbeError, Question, Target

OK, FAILED, NOT_OFFERED, NOT_JUDGED = "ok", "failed", "not offered", "not judged"
KINDS: Mapping[str, Sequence[str]] = {
    "generate": ("chat", "stream", "tool", "json", "vision"),
    "embed": ("embedding",),
    "rank": ("rerank",),
}
TOKENS = 512  # thoughts included
LONGEST = 1500  # words of the long prompt: enough for messages between ranks that use every half of the fabric
REFUSED = (400, 404, 405, 415, 422, 501)
# Beginnings of what models write for a call, where nothing has made a call of it.
MARKS = ("<tool_call", "<|tool_call", "[TOOL_CALLS]", "<function=", "<\uff5ctool", "<minimax:tool_call")
PIXELS = 224  # of each side; smaller ones are too small for some models
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city, now.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string", "enum": ["yes", "no"]}},
    "required": ["answer"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Tried:
    kind: Word
    outcome: Words  # ok, failed, not offered, not judged
    seconds: Number
    found: Words


@dataclass(frozen=True)
class Request:
    """``description``: file about the service. ``context``: tokens of the longest request, 0 where nobody knows.
    ``timeout`` for each answer, in seconds."""

    description: str
    context: int = 0
    timeout: float = 300.0


@dataclass(frozen=True)
class Smoked:
    tried: tuple[Tried, ...] = ()


def ask(request: Request, _check: bool) -> Smoked:
    """One request of every kind; one that fails is no failure of the call."""
    target = probe.target_of(probe.read_config(request.description))
    return Smoked(tuple(run(target, request.context, request.timeout)))


def run(
    target: Target,
    context: int = 0,
    timeout_s: float = 60.0,
    clock: Callable[[], float] = time.monotonic,
    kinds: Sequence[str] = (),
) -> list[Tried]:
    """``context``: tokens of the longest request, 0 where nobody knows. ``kinds``: no others; empty: all."""
    words = min(LONGEST, context // 16) if context else LONGEST // 10  # a tokenizer of bytes makes four tokens of one
    tokens = min(TOKENS, context // 4) if context else TOKENS
    requests: dict[str, Callable[[], tuple[str, str]]] = {
        "chat": lambda: _chat(target, words, timeout_s),
        "stream": lambda: _stream(target, timeout_s),
        "tool": lambda: _tool(target, timeout_s, tokens),
        "json": lambda: _json(target, timeout_s, tokens),
        "vision": lambda: _vision(target, timeout_s, tokens),
        "embedding": lambda: _asked(target, timeout_s),
        "rerank": lambda: _asked(target, timeout_s),
    }
    return [_tried(kind, requests[kind], clock) for kind in KINDS[target.task] if not kinds or kind in kinds]


def _tried(kind: str, request: Callable[[], tuple[str, str]], clock: Callable[[], float]) -> Tried:
    began = clock()
    try:
        outcome, found = request()
    except ProbeError as exc:
        # Chat and streams are what the service is for.
        refused = exc.status in REFUSED and kind not in ("chat", "stream", "embedding", "rerank")
        outcome, found = NOT_OFFERED if refused else FAILED, exc.found
    return Tried(kind, outcome, round(clock() - began, 3), found)


# --- requests --------------------------------------------------------------------------------------------------------


def _chat(target: Target, words: int, timeout_s: float) -> tuple[str, str]:
    # It begins as no other one, so that no prefix of it is cached: ranks have to work on all of it.
    text = f"{time.time_ns()} Say hello, and ignore the rest: " + " ".join(
        ("fox", "dog", "sun", "sea")[n % 4] for n in range(words)
    )
    answer = _completion(target, text, timeout_s, max_tokens=16)
    usage = answer.get("usage")
    read = usage.get("prompt_tokens") if isinstance(usage, Mapping) else None
    return OK, f"an answer to a prompt of {read} tokens" if read else "an answer"


def _stream(target: Target, timeout_s: float) -> tuple[str, str]:
    answer = probe.ask(target, Question(max_tokens=16, timeout_s=timeout_s))
    return OK, answer.measured


def _asked(target: Target, timeout_s: float) -> tuple[str, str]:
    return OK, probe.ask(target, Question(timeout_s=timeout_s)).measured


def _tool(target: Target, timeout_s: float, tokens: int) -> tuple[str, str]:
    """As clients ask for one, the model chooses; where it chooses none it is told to, which needs no parser."""
    text = "What is the weather in Paris? Use the tool."
    answer = _completion(target, text, timeout_s, max_tokens=tokens, tools=[WEATHER], tool_choice="auto")
    message, told = _message(answer, target), False
    said = str(message.get("content") or "")
    if not message.get("tool_calls"):
        if any(mark in said for mark in MARKS):
            raise ProbeError(
                "garbage", f"the call came as text, so its parser does not fit the model: {said[:80]!r}", target.where
            )
        chosen = {"type": "function", "function": {"name": "get_weather"}}
        answer = _completion(target, text, timeout_s, max_tokens=tokens, tools=[WEATHER], tool_choice=chosen)
        message, told = _message(answer, target), True
    try:
        return OK, f"a call{' when told to' if told else ''}: {_called(message, target)}"
    except ProbeError as exc:
        # A model that makes none by itself says little about its parser.
        if not told and not _cut(answer, tokens):
            raise
        return NOT_JUDGED, f"it made no complete call within {tokens} tokens; {exc.found}"


def _json(target: Target, timeout_s: float, tokens: int) -> tuple[str, str]:
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA}}
    text = "Is water wet? Answer yes or no, in JSON."
    answer = _completion(target, text, timeout_s, max_tokens=tokens, response_format=wanted)
    content = str(_message(answer, target).get("content") or "")
    try:
        if json_text.mapping(content)["answer"] in ("yes", "no"):
            return OK, "an answer by the schema"
    except (KeyError, SparkError):
        if _cut(answer, tokens):
            return NOT_JUDGED, f"no complete answer within {tokens} tokens"
    raise ProbeError("garbage", f"the answer is not by the schema: {content[:80]!r}", target.where)


def _vision(target: Target, timeout_s: float, tokens: int) -> tuple[str, str]:
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(png()).decode()}"}}
    content = [{"type": "text", "text": "Which colour is this? One word."}, picture]
    message = _message(_completion(target, content, timeout_s, max_tokens=tokens), target)
    return OK, f"an answer to a red picture: {str(message.get('content') or '')[-40:]!r}"


# --- answers ---------------------------------------------------------------------------------------------------------


def _completion(target: Target, content: Any, timeout_s: float, **more: Any) -> dict[str, Any]:
    body = {
        "model": target.model,
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        **more,
    }
    document, _seconds = probe.exchange(target, api_paths.PROBED["generate"], body, timeout_s, "chat completion")
    _message(document, target)
    return document


def _message(document: Mapping[str, Any], target: Target) -> Mapping[str, Any]:
    try:
        message: Mapping[str, Any] = document["choices"][0]["message"]
        # Thoughts have three names; a call has no text.
        text = [message.get(name) for name in ("content", "reasoning_content", "reasoning", "tool_calls")]
    except (KeyError, IndexError, TypeError, AttributeError) as exc:
        found = f"the answer is no chat completion: {dict(document)!r:.80}"
        raise ProbeError("garbage", found, target.where) from exc
    # A model may end at once, or write what its template leaves out: those are tokens, too.
    if not any(text) and not _tokens(document):
        raise ProbeError("empty", "the answer is empty", target.where)
    return message


def _tokens(document: Mapping[str, Any]) -> int:
    usage = document.get("usage")
    count = usage.get("completion_tokens") if isinstance(usage, Mapping) else 0
    return count if isinstance(count, int) else 0


def _cut(document: Mapping[str, Any], tokens: int) -> bool:
    """The reason that is given for the end of a call does not tell."""
    return _tokens(document) >= tokens or document["choices"][0].get("finish_reason") == "length"


def _called(message: Mapping[str, Any], target: Target) -> str:
    try:
        function = message["tool_calls"][0]["function"]
        city = json_text.mapping(function["arguments"])["city"]
        if function["name"] != "get_weather":
            raise ValueError(function["name"])
    except (*json_text.DAMAGE, SparkError) as exc:
        found = f"the call of a tool is not as its schema: {message.get('tool_calls')!r:.300}"
        raise ProbeError("garbage", found, target.where) from exc
    return f"get_weather({str(city)[:40]!r})"


def png() -> bytes:
    """A red square."""

    def chunk(name: bytes, content: bytes) -> bytes:
        body = name + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", PIXELS, PIXELS, 8, 2, 0, 0, 0)
    rows = zlib.compress((b"\0" + b"\xff\0\0" * PIXELS) * PIXELS)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
