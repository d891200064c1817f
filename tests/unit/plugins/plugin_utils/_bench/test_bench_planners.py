# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import time
from types import SimpleNamespace

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._bench import generator
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import load
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import planner
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._bench import planners
from engine_plans import cluster_plans
from preflight_inputs import nodes

PLANS = {host: plan.as_dict() for host, plan in cluster_plans(2).items()}
HOSTS = tuple(PLANS)
KNOWN = dict(zip(HOSTS, nodes(2).values()))


def plan(name, gathered, **options):
    variables = {host: {f"__{option}": values[host] for option, values in gathered.items()} for host in HOSTS}
    hosts = {"ansible_play_hosts_all": HOSTS, "ansible_play_hosts": HOSTS, "hostvars": variables}
    return planner.run(name, planners.PLANNERS[name], {**options, **{name: f"__{name}" for name in gathered}}, hosts)


def swept(**settings):
    return plan("serving_sweep", {"plans": PLANS}, settings=settings)


def repetition(rate, failed=0):
    times = {name: value * 100 / rate for name, value in (("median", 9.0), ("p90", 9.5), ("p99", 9.9))}
    made = generator.Repetition(2, failed, rate, times, times, 0.2)
    return document.plain(made)


def judged(*results, earlier=(), **more):
    runs = swept(concurrency=[1], prompt_tokens=[512, 1024])["runs"]
    served = [{"others": 0, **more, **result} for result in results]
    return plan(
        "serving_verdicts",
        {
            "plans": PLANS,
            "info": {host: {"node": KNOWN[host], "fact": None} for host in HOSTS},
            "measured": {HOSTS[0]: {"results": served}, HOSTS[1]: {"results": []}},
            "earlier": {HOSTS[0]: {"runs": list(earlier), "refused": []}, HOSTS[1]: {"runs": []}},
        },
        runs=runs,
    )


def measured(*rates, **more):
    return {"repetitions": [repetition(rate) for rate in rates], "missing": "", "broken": "", "lines": [], **more}


def test_the_head_measures_and_nobody_else():
    made = swept()
    assert [len(made["runs"][host]) for host in HOSTS] == [4, 0]
    assert made["lines"][0].startswith("qwen3-8b: 4 points")


def test_every_run_has_prompts_of_its_own(monkeypatch):
    def seeds():
        return [one["point"]["seed"] for one in swept()["runs"][HOSTS[0]]]

    monkeypatch.setattr(planners, "time", SimpleNamespace(time=lambda: 1.7e9))
    first = seeds()
    monkeypatch.setattr(planners, "time", SimpleNamespace(time=lambda: 1.7e9 + 60))
    assert not {seed + number for seed in first for number in range(100)} & set(seeds())


def test_nothing_to_measure_is_said():
    alone = {host: {**made, "heads": [], "here": []} for host, made in PLANS.items()}
    assert "No service that generates text is planned" in plan("serving_sweep", {"plans": alone})["msg"]
    assert swept(concurrency=[0])["failed"]


def test_of_several_repetitions_the_median_and_the_spread():
    made = judged(measured(20.0, 22.0, 21.0), measured(10.0))
    first, second = made["part"]["serving"]
    assert [first[name] for name in ("output_rate", "output_rate_low", "output_rate_high")] == [21, 20, 22]
    assert (first["requests"], first["failed"], first["repetitions"]) == (6, 0, 3)
    assert first["tpot_ms"]["median"] == round(900 / 21, 3)
    assert (first["model"], first["prompt_tokens"], second["prompt_tokens"]) == ("qwen3-8b", 512, 1024)
    assert first["expected_high"] == PLANS[HOSTS[0]]["here"][0]["expectation"]["high"] > 0
    assert made["lines"] == [
        "model     at a time  prompt  tokens/s  (low to high)   first token  a token  failed",
        "qwen3-8b  1          512     21.0      (20.0 to 22.0)  43 ms        42.9 ms  0",
        "qwen3-8b  1          1024    10.0      (10.0 to 10.0)  90 ms        90.0 ms  0",
    ]


def test_the_same_again_is_compared_with_the_last_run():
    first = judged(measured(20.0, 20.2), measured(10.0))
    service = {"name": "engine", "model": "qwen3-8b", "hosts": list(HOSTS)}
    run = {"cluster": HOSTS[0], "playbook": "benchmark", "at": "2026-11-22T08:00:00Z", "seconds": 1, "release": "1"}
    kept = load({**run, "schema": 1, **first["part"], "services": [service]}, "kept").as_dict()
    again = judged(measured(15.0, 15.1), measured(10.1), earlier=[kept])
    checks = {(verdict["check"], verdict["outcome"]) for verdict in again["part"]["verdicts"]}
    assert ("serving_regression", "fail") in checks
    slow = next(verdict for verdict in again["part"]["verdicts"] if verdict["check"] == "serving_regression")
    assert slow["evidence"] == ["recipe: unknown -> qwen3-8b", *slow["evidence"][1:]]


def test_the_gpu_under_load_is_kept_beside_the_numbers():
    made = judged(measured(20.0), gpu={"mhz": 1800, "celsius": 83, "slowed": ["hardware thermal slowdown"]})
    assert made["part"]["machines"][0]["facts"] == {
        "clock under load": "1800 MHz",
        "temperature under load": "83 C",
        "clock held down by": "hardware thermal slowdown",
    }
    assert judged(measured(20.0), gpu={"mhz": None, "celsius": None, "slowed": []})["part"]["machines"] == []


def test_without_figures_there_is_a_verdict_and_no_row():
    made = judged(measured(missing="No module named 'vllm'"))
    assert (made["lines"], made["part"]["serving"]) == (["No speed was measured."], [])
    assert [verdict["outcome"] for verdict in made["part"]["verdicts"]] == ["unknown"]


def test_seeds_stay_numbers_that_every_generator_takes():
    assert (planners.SEEDS * planners.sweep.SEEDS).bit_length() <= 31 and time.time() > 0


def test_what_others_have_slowed_down_is_shown_and_not_kept_for_comparison():
    made = judged(measured(20.0), measured(10.0), others=3)
    assert made["part"]["serving"] == [] and "20.0" in made["lines"][1]
