# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What is measured of a service, in which order, about how long it takes, and what the module is told. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._bench.generator import Point
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import ServicePlan

PROMPT, LONG_PROMPT, OUTPUT = 512, 4096, 128  # tokens
STEP = 4  # from one concurrency to the next
LEAST_REQUESTS = 2  # of a repetition
MAX_TEXT = 768  # tokens of a prompt in plain English: the generator leaves out longer ones than 1024
SEEDS = 100  # from one point to the next
STARTING_S = 15.0  # until the generator has read its libraries
PREFILL = 1000.0  # prompt tokens/s, about
UNKNOWN = 10.0  # tokens/s of one request, where the plan has no figure
DRAFTS = ("--speculative", "--spec-")  # how options begin that let an engine draft

REPETITIONS = 3  # whose spread decides whether a later run is slower; one more warms up
REQUESTS = 2  # of one repetition, per request at a time


@dataclass(frozen=True)
class Settings:
    """Empty lists and 0: by the plan of the service. ``seed`` 0: another one for every run."""

    concurrency: tuple[int, ...] = ()
    prompt_tokens: tuple[int, ...] = ()
    output_tokens: int = 0
    program: str = ""  # a path on the head, or an address to download it from, with #sha256= behind it

    @property
    def download(self) -> dict[str, str]:
        """What the head fetches; empty for nothing."""
        address, _mark, digest = self.program.partition("#sha256=")
        return {"url": address, "sha256": digest} if "://" in address else {}

    @property
    def path(self) -> str:
        return paths.BENCH_PROGRAM if self.download else self.program


def drafts(plan: ServicePlan) -> bool:
    """Whether the engine drafts tokens (speculative decoding)."""
    said = [*plan.engine.command.options, *plan.engine.files.values()]
    return any(word.startswith(DRAFTS) or "speculative_config" in word for word in said)


def points(plan: ServicePlan, settings: Settings, seed: int) -> list[Point]:
    """First more and more requests at a time with short prompts, then one at a time with longer prompts."""
    context = plan.memory.context or 2 * PROMPT  # not known of a recipe's own command
    output = settings.output_tokens or min(OUTPUT, max(context // 4, 1))
    short = min(PROMPT, max(context // 2, 1))
    long = min(LONG_PROMPT, context - output - 64)  # room for what a tokenizer adds
    prompts = list(settings.prompt_tokens) or [short, *([long] if long >= 2 * short else [])]
    tight = [prompt for prompt in prompts if prompt + output > plan.memory.context > 0]
    if tight:
        raise SparkError(
            f"a prompt of {tight[0]} and an answer of {output} tokens do not fit into {context} tokens of context",
            "benchmark_prompt_tokens",
            "Choose shorter ones, or a longer engine_context",
        )
    wanted = list(settings.concurrency) or _steps(plan.memory.concurrency)
    pairs = [(one, prompts[0]) for one in wanted] + [(wanted[0], prompt) for prompt in prompts[1:]]
    return [
        Point(
            concurrency=concurrency,
            prompt_tokens=prompt,
            output_tokens=output,
            requests=max(REQUESTS * concurrency, LEAST_REQUESTS),
            repetitions=REPETITIONS,
            seed=seed + number * SEEDS,
            text=drafts(plan) and prompt <= MAX_TEXT,
        )
        for number, (concurrency, prompt) in enumerate(pairs)
    ]


def _steps(most: int) -> list[int]:
    """1, 4, 16, … and the most that the plan has room for."""
    most = max(most, 1)
    return sorted({STEP**power for power in range(math.ceil(math.log(most, STEP)) + 1) if STEP**power < most} | {most})


def seconds(plan: ServicePlan, point: Point) -> float:
    """About, from the speed that the plan expects; the first run, which warms up, is one more."""
    expected = plan.expectation
    rate = expected.at(1)[0] or UNKNOWN
    rounds = math.ceil(point.requests / point.concurrency) * point.repetitions + 1
    prefill = point.prompt_tokens * point.concurrency / PREFILL
    return STARTING_S + rounds * (point.output_tokens / rate + prefill)


def announced(plan: ServicePlan, planned: Sequence[Point]) -> str:
    """What a user reads before it begins."""
    minutes = max(round(sum(seconds(plan, point) for point in planned) / 60), 1)
    steps = ", ".join(
        f"{point.concurrency} x {point.prompt_tokens}{' (text)' if point.text else ''}" for point in planned
    )
    basis = "" if plan.expectation.paces else f", at {UNKNOWN:g} tokens/s, since the plan has no figure"
    count, time = _several(len(planned), "point"), _several(minutes, "minute")
    return (
        f"{plan.engine.served_model_name}: {count}, requests at a time x tokens of a prompt: {steps};"
        f" {planned[0].output_tokens} tokens per answer, {planned[0].repetitions} times each; about {time}{basis}"
    )


def _several(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def arguments(plan: ServicePlan, settings: Settings, user: str) -> dict[str, Any]:
    """What the call ``serving_bench`` is told of the service; only the point is missing."""
    engine = plan.engine
    options = options_of(plan)
    model = next((one for one in plan.models if one.name == engine.model), None)
    inside = plan.contained and not settings.path
    return {
        "description": plan.names.description,
        "service": plan.instance,
        "model": engine.served_model_name,
        "generator": {
            "python": "python3" if plan.contained or settings.path else f"{plan.venv.path}/bin/python",
            "container": plan.names.project if inside else "",
            "user": "" if inside else user,
            "environment": {} if plan.contained else dict(engine.env),
            "program": settings.path,
            "tokenizer": options.get("tokenizer") or options.get("tokenizer-path") or engine.model,
            "revision": model.revision if model else "",
            "cache": plan.model_cache,
            "tokenizer_mode": options.get("tokenizer-mode", ""),
            "remote_code": "trust-remote-code" in options,
        },
    }


def options_of(plan: ServicePlan) -> dict[str, str]:
    """Options of the engine by name, without dashes; one that is given alone has an empty value."""
    found: dict[str, str] = {}
    name = ""
    for word in plan.engine.command.options:
        if word.startswith("--"):
            name, _equals, value = word[2:].partition("=")
            found[name] = value
        elif name:
            found[name] = f"{found[name]} {word}".strip()
    return found


def runs(plan: ServicePlan, settings: Settings, seed: int, user: str) -> list[dict[str, Any]]:
    """What the role loops over, with a label for the screen."""
    planned = points(plan, settings, seed)
    told = arguments(plan, settings, user)
    return [
        {
            **told,
            "point": asdict(point),
            "label": f"{plan.engine.served_model_name} {number} of {len(planned)}: {point.concurrency} at a time,"
            f" prompts of {point.prompt_tokens} tokens, about {seconds(plan, point):.0f} s",
        }
        for number, point in enumerate(planned, 1)
    ]


def read_settings(options: Mapping[str, Any]) -> Settings:
    """Of the role's variables; :class:`SparkError` says which is none."""
    found: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in options.items()
    }
    settings = Settings(**found)
    for name in ("concurrency", "prompt_tokens"):
        if any(value < 1 for value in getattr(settings, name)):
            raise SparkError(f"{min(getattr(settings, name))} is too small", f"benchmark_{name}", "Choose 1 or more")
    if settings.download and not re.fullmatch(r"https://[^#]+#sha256=[0-9a-f]{64}", settings.program):
        raise SparkError(
            "a program that is downloaded needs an https address and its SHA-256 (https://…#sha256=…)",
            "benchmark_program",
            "Take both from the page of the release, or copy the file to the head and name its path",
        )
    return settings
