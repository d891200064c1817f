# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The golden answer: what a model said, how sure it was of each token, and how fast, when it was last good.

Two engines that compute the same give the same log probabilities but for the order in which their kernels add up; that
noise depends on batch, tensor parallelism and kernels, and turns a token where two are nearly as likely. So texts are
never compared: log probabilities are, up to the first token that differs, against what the engine itself differs when
it is asked one by one and all at once. Measured by ``tests/bench/golden_noise.py``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import api_paths, json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import (
    Count,
    Number,
    Text,
    Word,
    WordOrEmpty,
    Words,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import metrics, probe, smoke
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.probe import ProbeError, Question, Target

# Beginnings that plain text goes on from; whether a model knows the answer does not matter. Short ones share no block
# of a prefix cache with what users ask.
PROMPTS = (
    "The capital of France is the city of",
    "One, two, three, four, five, six,",
    "def add(first, second):\n    return",
    "Water boils at a temperature of",
    "On Monday it rained, and on Tuesday the",
    "A cable connects the first machine to the",
    "To be, or not to be, that is the",
    'for number in range(10):\n    print("The number is',
)
CHAT = "Which colour has the sky on a clear day? Answer in one word."
TOKENS = 8  # of each answer
TIMEOUT_S = 120.0  # of one
TOP = 5
TOPS = (TOP, 1)  # TensorRT-LLM gives one; vLLM no more than --max-logprobs
RATE_TOKENS = 64
RATES = 3  # the best of so many: others may be served meanwhile
MAX_TOKEN = 60  # characters of one that is kept
BLANK = ("", "\ufffd")  # what tokens that are no text are called, all of them alike

# What two records of the same weights may differ by, in nats (docs/golden.md has the sources).
FLOOR = 0.05  # mean over all positions, however little noise was measured
TIMES = 4.0  # the noise of the one that was good: it knows batches alone, and not versions and parallelism
CEILING = 1.0  # an engine for which more would be noise says nothing by its numbers
DATE_FLOOR = 0.5  # of an answer in a chat on another day
SURE = 2.0  # by so much a token was likelier than the one that is there now: not by noise
TURNED = 1  # answers in which that may happen all the same: one expert chosen otherwise
DATE_TOKENS = 2  # by which a question may be longer or shorter then
UNSURE = -3.0  # of the likeliest tokens: less is what random weights give
FAR = 3.0  # the most that one position counts, so that one expert chosen otherwise is not all
LEAST_RATE = 0.7  # of the speed before
# Rules of the table (``plugin_utils/_rules``) that differences are.
NUMBERS, TEMPLATE, KINDS, SLOWER = "numbers_differ", "template_differs", "smoke_failed", "regression"
OF_A_MOMENT = frozenset((KINDS, SLOWER))  # others may be served, a token may turn


@dataclass(frozen=True)
class Step:
    """One token, and the likeliest ones in its place."""

    token: Text
    logprob: Number
    top: Mapping[Text, Number]


@dataclass(frozen=True)
class Said:
    """One answer. Without ``steps`` the engine gives no log probabilities."""

    steps: tuple[Step, ...] = ()
    prompt_tokens: Count = 0


@dataclass(frozen=True)
class Record:
    """``weights`` and ``setup``: the same where numbers and speed have to be the same; without ``setup`` nothing is
    said of speed. ``by``: who computed them, in words. ``noise``: mean difference from itself, in nats. ``tried``:
    kinds of requests and how they went."""

    weights: Word
    setup: WordOrEmpty
    by: Words
    time: Words = ""
    plain: tuple[Said, ...] = ()
    chat: tuple[Said, ...] = ()
    noise: Number = 0.0
    tried: Mapping[Word, Words] = field(default_factory=dict)
    tokens_per_s: Number = 0.0
    busy: bool = False  # others were served meanwhile, so its speed says nothing


@dataclass(frozen=True)
class Difference:
    """``rule``: of the table of rules."""

    rule: Word
    found: Words


# -- asking -----------------------------------------------------------------------------------------------------------


def ask(target: Target, made: Record, context: int = 0, kinds: bool = True) -> Record:
    """Everything of one engine, filled into ``made``. What it does not offer is left out. ``context``: as smoke tests
    have it; ``kinds``: also a tool and JSON, which may take hundreds of tokens.

    Raises :class:`ProbeError` where it gives no token at all.
    """
    before = metrics.work(probe.metrics(target)).tokens or 0.0
    rates = [probe.ask(target, Question(PROMPTS[0], RATE_TOKENS, TIMEOUT_S)).tokens_per_s for _ in range(RATES)]
    # A tenth is for the keeper, which asks for a token meanwhile.
    others = (metrics.work(probe.metrics(target)).tokens or 0.0) - before > 1.1 * RATES * RATE_TOKENS
    found = smoke.run(target, context, TIMEOUT_S, kinds=("tool", "json")) if kinds else ()
    after = metrics.work(probe.metrics(target))
    filled = (after.running or 0) + (after.waiting or 0) > len(found)  # ours may be there still
    tried = {
        one.kind: smoke.NOT_JUDGED
        if one.outcome == smoke.FAILED and one.seconds >= TIMEOUT_S and filled
        else one.outcome
        for one in found
    }
    return numbers(target, replace(made, busy=made.busy or others, tokens_per_s=max(rates), tried=tried))


def numbers(target: Target, made: Record) -> Record:
    """The log probabilities alone, which take seconds."""
    plain = [said for prompt in PROMPTS for said in _plain(target, [prompt])]
    together = _plain(target, PROMPTS)
    noise = distance(plain, together).mean if plain and together else 0.0
    return replace(made, plain=tuple(plain), chat=tuple(_chat(target)), noise=round(noise, 4))


def _plain(target: Target, prompts: Sequence[str]) -> list[Said]:
    """Answers to texts that go through no template."""
    asked = list(prompts) if len(prompts) > 1 else prompts[0]
    bodies = [{"prompt": asked, "logprobs": count} for count in TOPS]
    return _offered(target, api_paths.COMPLETIONS, bodies)


def _chat(target: Target) -> list[Said]:
    messages = [{"role": "user", "content": CHAT}]
    bodies = [{"messages": messages, "logprobs": True, "top_logprobs": count} for count in TOPS]
    return _offered(target, api_paths.PROBED["generate"], bodies)


def _offered(target: Target, path: str, bodies: Sequence[Mapping[str, Any]]) -> list[Said]:
    """Of the first one that it takes; nothing where it takes none."""
    for body in bodies:
        asked = {"model": target.model, "max_tokens": TOKENS, "temperature": 0, **body}
        try:
            return read(probe.exchange(target, path, asked, TIMEOUT_S, "completion")[0], target)
        except ProbeError as exc:
            if exc.status not in smoke.REFUSED:
                raise
    return []


# -- reading ----------------------------------------------------------------------------------------------------------


def read(document: Mapping[str, Any], target: Target) -> list[Said]:
    """Of a completion or a chat completion, in the order of the prompts. Of an engine without log probabilities each
    answer is empty; NaN, which is what a broken kernel gives, and whatever else does not fit is refused."""
    with json_text.Reading("the answer's log probabilities are not as OpenAI's API has them", target.where):
        usage = json_text.entry(document, "usage")
        asked = usage.get("prompt_tokens", 0)
        choices = sorted(document["choices"][: len(PROMPTS)], key=lambda choice: int(choice["index"]))
        tokens = int(asked) if len(choices) == 1 else 0  # of several prompts it is the sum
        return [Said(tuple(_steps(choice.get("logprobs"))), max(tokens, 0)) for choice in choices]


def _steps(given: Any) -> list[Step]:
    if not given:
        return []
    if "content" in given:
        steps = [
            (one["token"], one["logprob"], {top["token"]: top["logprob"] for top in one.get("top_logprobs") or []})
            for one in given["content"] or []
        ]
    else:
        tops = given.get("top_logprobs") or [None] * len(given["tokens"])
        steps = list(zip(given["tokens"], given["token_logprobs"], [top or {} for top in tops]))
    return [
        Step(_name(token), _logprob(value), {_name(name): _logprob(one) for name, one in list(top.items())[: 2 * TOP]})
        for token, value, top in steps[: 2 * TOKENS]
    ]


def _name(token: Any) -> str:
    """Kept and compared, never printed as it is."""
    if not isinstance(token, str):
        raise TypeError(f"a token is {token!r:.40}")
    return token if token.isprintable() and len(token) <= MAX_TOKEN else ascii(token)[:MAX_TOKEN]


def _logprob(value: Any) -> float:
    number = float(value)
    if isinstance(value, (bool, str)) or not -1e4 < number <= 1e-3:
        raise ValueError(f"a log probability is {value!r:.40}")
    return round(min(number, 0.0), 4)


# -- comparing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Distance:
    """``mean``: nats, over all ``positions`` that compare. ``turned``: answers that go on with another token where one
    of both was sure of its own; ``most``: how sure."""

    mean: float = 0.0
    turned: int = 0
    most: float = 0.0
    positions: int = 0

    def beyond(self, allowed: float) -> bool:
        return self.mean > allowed or self.turned > TURNED


def distance(before: Sequence[Said], now: Sequence[Said]) -> Distance:
    """Answers up to the first token that differs: what follows is an answer to something else."""
    apart: list[float] = []
    ahead = [0.0]
    for old, new in zip(before, now):
        for mine, theirs in zip(old.steps, new.steps):
            found = _apart(mine, theirs)
            if found is not None:
                apart.append(min(found, FAR))
            if mine.token != theirs.token:
                ahead.append(max(_ahead(mine, theirs.token), _ahead(theirs, mine.token)))
                break
    mean = math.fsum(apart) / len(apart) if apart else 0.0
    return Distance(mean, sum(one > SURE for one in ahead), max(ahead), len(apart))


def _apart(mine: Step, theirs: Step) -> float | None:
    """Mean difference over the likeliest tokens; of one that only one of them has, the least that it can be."""
    ours, others = _top(mine), _top(theirs)
    low, their_low = min(ours.values(), default=0.0), min(others.values(), default=0.0)
    each = []
    for name in {*ours, *others}:
        my = ours.get(name, min(low, others.get(name, low)))
        their = others.get(name, min(their_low, ours.get(name, their_low)))
        each.append(abs(my - their))
    return math.fsum(each) / len(each) if ours and others else None


def _top(step: Step) -> dict[str, float]:
    return {name: value for name, value in {step.token: step.logprob, **step.top}.items() if name not in BLANK}


def _ahead(step: Step, other: str) -> float:
    """How much surer it was of its own token than of the other's."""
    if step.token in BLANK or other in BLANK:
        return 0.0
    return step.logprob - step.top.get(other, min(step.top.values(), default=step.logprob))


def bound(before: Record) -> float:
    """Mean difference that is noise, in nats. Of the good one's alone: what is broken may be noisy."""
    return max(FLOOR, TIMES * before.noise)


def comparable(before: Record) -> bool:
    """Whether it has numbers that others can be compared with."""
    return any(said.steps for said in (*before.plain, *before.chat)) and bound(before) <= CEILING


def compare(before: Record, now: Record) -> list[Difference]:
    """What is beyond noise, each by its rule; empty where it is as good as before, or nothing can be compared."""
    same = before.weights == now.weights
    found = (*_numbers(before, now), *_kinds(before, now), *_speed(before, now)) if same else _others(before, now)
    return [Difference(rule, f"{told}; before: {before.by}, {before.time}") for rule, told in found]


def _others(before: Record, now: Record) -> Iterator[tuple[str, str]]:
    """Of other weights: any model is sure of what comes next in plain texts, and none is whose ranks do not fit each
    other."""
    was, sure = sureness(before), sureness(now)
    if was is not None and sure is not None and sure < UNSURE and was - sure > SURE:
        yield NUMBERS, f"it is sure of nothing: its likeliest tokens have {sure:.1f} nats on average, and had {was:.1f}"
    yield from _kinds(before, now)


def sureness(record: Record) -> float | None:
    """Mean log probability of its own tokens."""
    values = [step.logprob for said in record.plain for step in said.steps]
    return math.fsum(values) / len(values) if values else None


def _numbers(before: Record, now: Record) -> Iterator[tuple[str, str]]:
    if not comparable(before):
        return
    allowed = bound(before)
    plain, chat = distance(before.plain, now.plain), distance(before.chat, now.chat)
    if plain.beyond(allowed):
        yield NUMBERS, _words(plain, allowed)
        return
    if not plain.positions:
        if chat.beyond(allowed):
            yield NUMBERS, f"in a chat: {_words(chat, allowed)}"
        return
    # A template may tell the model what day it is.
    more, allowed = (0, allowed) if same_day(before.time, now.time) else (DATE_TOKENS, max(DATE_FLOOR, allowed))
    for old, new in zip(before.chat, now.chat):
        if old.prompt_tokens and new.prompt_tokens and abs(old.prompt_tokens - new.prompt_tokens) > more:
            yield TEMPLATE, f"a question has {new.prompt_tokens} tokens with its template, and had {old.prompt_tokens}"
            return
    if chat.mean > allowed or chat.turned:
        yield TEMPLATE, f"in a chat: {_words(chat, allowed)}"


def same_day(one: str, other: str) -> bool:
    """For whoever counts days here, in UTC or by the clock on the wall."""
    try:
        times = [datetime.fromisoformat(time) for time in (one, other)]
        return len({(time.astimezone(timezone.utc).date(), time.astimezone().date()) for time in times}) == 1
    except ValueError:
        return False


def _words(found: Distance, allowed: float) -> str:
    mean = f"{found.mean:.2f} on average, up to {allowed:.2f} is noise"
    told = f"log probabilities of {found.positions} tokens differ by {mean}"
    if found.turned:
        told += f"; {found.turned} answer(s) go on with another token, which was behind by up to {found.most:.1f}"
    return told


def _kinds(before: Record, now: Record) -> Iterator[tuple[str, str]]:
    for kind, outcome in before.tried.items():
        if (outcome, now.tried.get(kind)) == (smoke.OK, smoke.FAILED):
            yield KINDS, f"a request of the kind {kind} succeeded, and fails"


def _speed(before: Record, now: Record) -> Iterator[tuple[str, str]]:
    """Of the same options on the same nodes; who changes these knows why."""
    if not now.setup or before.setup != now.setup or before.busy or now.busy or not before.tokens_per_s:
        return
    share = now.tokens_per_s / before.tokens_per_s
    if share < LEAST_RATE:
        yield SLOWER, f"{now.tokens_per_s:.1f} tokens/s for one request, {before.tokens_per_s:.1f} before ({share:.0%})"
