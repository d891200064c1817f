# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import (
    Command,
    Expectation,
    Pace,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._bench import sweep
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._bench.sweep import Settings
from engine_plans import node_plans

PLAN = node_plans(2)["spark1"].here[0]


def with_memory(context, concurrency=8):
    return replace(PLAN, memory=replace(PLAN.memory, context=context, concurrency=concurrency))


def shape(points):
    return [(point.concurrency, point.prompt_tokens, point.output_tokens) for point in points]


@pytest.mark.parametrize(
    ("context", "concurrency", "expected"),
    [
        (32768, 8, [(1, 512, 128), (4, 512, 128), (8, 512, 128), (1, 4096, 128)]),
        (32768, 1, [(1, 512, 128), (1, 4096, 128)]),
        (32768, 16, [(1, 512, 128), (4, 512, 128), (16, 512, 128), (1, 4096, 128)]),
        (2048, 2, [(1, 512, 128), (2, 512, 128), (1, 1856, 128)]),
        (0, 0, [(1, 512, 128)]),
        (256, 2, [(1, 128, 64), (2, 128, 64)]),
    ],
)
def test_the_sweep_fits_into_the_plan(context, concurrency, expected):
    assert shape(sweep.points(with_memory(context, concurrency), Settings(), 0)) == expected


def test_no_two_runs_of_a_sweep_have_prompts_in_common():
    points = sweep.points(PLAN, Settings(), 4200)
    seeds = [point.seed + number for point in points for number in range(point.repetitions + 1)]
    assert len(seeds) == len(set(seeds))
    assert min(seeds) == 4200


def test_the_users_own_sweep():
    settings = sweep.read_settings({"concurrency": [2, 3], "prompt_tokens": [100, 200], "output_tokens": 10})
    points = sweep.points(PLAN, settings, 0)
    assert shape(points) == [(2, 100, 10), (3, 100, 10), (2, 200, 10)]


def test_what_does_not_fit_into_the_context_is_refused():
    with pytest.raises(SparkError, match="prompt of 40000 and an answer of 128 tokens do not fit into 32768"):
        sweep.points(PLAN, Settings(prompt_tokens=(512, 40000)), 0)


@pytest.mark.parametrize("wrong", [{"concurrency": [0]}, {"prompt_tokens": [512, -1]}])
def test_nothing_is_measured_no_times(wrong):
    with pytest.raises(SparkError, match="Choose 1 or more"):
        sweep.read_settings(wrong)


@pytest.mark.parametrize(
    "options", [("--speculative-config", "{}"), ("--speculative-algorithm", "EAGLE"), ("--spec-model", "x")]
)
def test_a_service_that_drafts_is_asked_in_plain_english(options):
    drafting = replace(PLAN, engine=replace(PLAN.engine, command=Command(options=options)))
    assert [point.text for point in sweep.points(drafting, Settings(), 0)] == [True, True, True, False]
    assert not any(point.text for point in sweep.points(PLAN, Settings(), 0))


def test_how_long_it_takes_is_said_before():
    plan = replace(PLAN, expectation=Expectation(paces=(Pace(1, 20), Pace(8, 90))))
    points = sweep.points(plan, Settings(), 0)
    assert round(sweep.seconds(plan, points[0])) == 15 + 7 * (6.4 + 0.512) // 1
    said = sweep.announced(plan, points)
    assert said == (
        "qwen3-8b: 4 points, requests at a time x tokens of a prompt: 1 x 512, 4 x 512, 8 x 512, 1 x 4096; 128 tokens"
        " per answer, 3 times each; about 5 minutes"
    )
    assert "at 10 tokens/s, since the plan has no figure" in sweep.announced(
        replace(PLAN, expectation=Expectation()), points
    )


def test_the_generator_of_an_environment_runs_as_the_engine_does():
    told = sweep.arguments(PLAN, Settings(), "sparkmatrix")
    generator = told["generator"]
    assert (told["description"], told["service"], told["model"]) == ("/etc/sparkmatrix/engine.json", "", "qwen3-8b")
    assert generator["python"] == "/opt/sparkmatrix/engine/bin/python"
    assert (generator["user"], generator["container"]) == ("sparkmatrix", "")
    assert generator["environment"] == PLAN.engine.env
    assert (generator["tokenizer"], generator["cache"]) == ("Qwen/Qwen3-8B", PLAN.model_cache)
    assert generator["revision"] == PLAN.models[0].revision != ""


def test_the_generator_of_an_image_runs_in_the_engines_container():
    plan = node_plans(2, runtime="container")["spark1"].here[0]
    generator = sweep.arguments(plan, Settings(), "sparkmatrix")["generator"]
    assert (generator["python"], generator["container"], generator["user"]) == ("python3", "sparkmatrix-engine", "")
    assert generator["environment"] == {}
    fetched = Settings(program=f"https://example.org/vllm-bench#sha256={'a' * 64}")
    assert sweep.arguments(plan, fetched, "sparkmatrix")["generator"]["program"] == sweep.paths.BENCH_PROGRAM
    assert fetched.download == {"url": "https://example.org/vllm-bench", "sha256": "a" * 64}
    own = sweep.arguments(plan, Settings(program="/opt/vllm-bench"), "sparkmatrix")["generator"]
    assert (own["program"], own["container"], own["user"]) == ("/opt/vllm-bench", "", "sparkmatrix")


def test_only_the_first_point_is_refused_where_nothing_answers():
    runs = sweep.runs(PLAN, Settings(), 0, "sparkmatrix")
    assert runs[1]["label"].startswith("qwen3-8b 2 of 4: 4 at a time, prompts of 512 tokens, about ")


def test_options_are_read_by_name():
    command = Command(options=("--a", "1", "--b", "--c=2", "--d", "3", "4"))
    plan = replace(PLAN, engine=replace(PLAN.engine, command=command))
    assert sweep.options_of(plan) == {"a": "1", "b": "", "c": "2", "d": "3 4"}


@pytest.mark.parametrize(
    "program",
    ["https://example.org/x", f"https://example.org/x#sha256={'A' * 64}", f"http://example.org/x#sha256={'a' * 64}"],
)
def test_a_generator_from_elsewhere_needs_its_hash(program):
    with pytest.raises(SparkError, match="https address and its SHA-256"):
        sweep.read_settings({"program": program})
    assert sweep.read_settings({"program": "/opt/vllm-bench"}).download == {}
