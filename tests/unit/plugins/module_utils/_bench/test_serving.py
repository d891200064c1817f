# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.gpu import Clocks
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._bench import serving, surroundings
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._bench.generator import Generator, Outcome, Repetition
from fake_engine import KEY, MODEL, fake_engine
from module_runner import run_call

POINT = {"concurrency": 2, "prompt_tokens": 64, "output_tokens": 16, "requests": 4, "repetitions": 1, "seed": 7}
TIMES = {"median": 45.0, "p90": 46.0, "p99": 47.0}
REPETITION = Repetition(4, 0, 32.0, TIMES, TIMES, 0.0)


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """Runs the module against an engine. Returns its result, and with what the generator was started."""
    key_file = tmp_path / "key"
    key_file.write_text(f'VLLM_API_KEY="{KEY}"\n')
    started = []

    def measure(load):
        started.append(load)
        return Outcome((REPETITION,))

    monkeypatch.setattr(serving.generator, "measure", measure)
    monkeypatch.setattr(serving.status, "check", lambda _service, model: None)

    def run(port, check=False, **options):
        described = {"host": "127.0.0.1", "port": port, "model": MODEL, "key_file": str(key_file)}
        (tmp_path / "engine.json").write_text(json.dumps(described))
        arguments = {
            "description": str(tmp_path / "engine.json"),
            "generator": {"tokenizer": "/models/tiny", "user": "sparkmatrix", "environment": {"OMP_NUM_THREADS": 1}},
            "point": POINT,
            **options,
        }
        return (*run_call("serving_bench", arguments, check=check), started)

    return run


def test_what_was_measured_and_under_which_circumstances(bench):
    with fake_engine() as engine:
        result, failed, (load,) = bench(engine.port)
    assert not failed and not result["changed"]
    assert result["repetitions"][0]["output_rate"] == 32
    assert result["gpu"] == {"mhz": None, "celsius": None, "slowed": []}
    environment = {"OMP_NUM_THREADS": "1"}
    assert load.generator == Generator("/models/tiny", user="sparkmatrix", environment=environment)
    assert (load.target.model, load.target.key) == (MODEL, KEY)
    assert load.point.concurrency == 2
    assert KEY not in json.dumps(result)


def test_nothing_is_loaded_where_nobody_answers(bench, monkeypatch):
    with fake_engine() as engine:
        port = engine.port
    result, failed, started = bench(port)
    assert not failed and "nothing listens there" in result["silent"] and not started

    def stopped(_service, model):
        raise SparkError("Stopped by stop.yml", "sparkmatrix-keeper.service", "Start it")

    monkeypatch.setattr(serving.status, "check", stopped)
    result, failed, started = bench(port)
    assert not failed and not started
    assert (result["repetitions"], result["others"]) == ([], None)
    assert "Stopped by stop.yml" in result["silent"]


def test_check_mode_asks_nobody(bench):
    result, failed, started = bench(1, check=True)
    assert (failed, started, result["repetitions"]) == (False, [], [])


def test_a_question_of_the_keeper_is_not_one_of_others():
    looks = iter(["vllm:num_requests_running 1.0", "vllm:num_requests_running 0.0"])
    slept = []
    assert surroundings.others(lambda: next(looks), slept.append) == 0
    assert slept == [surroundings.AGAIN_S]
    assert surroundings.others(lambda: "vllm:num_requests_running 2.0", slept.append) == 2


def test_the_gpu_under_load():
    looks = iter(
        [
            Clocks(3, 50, 208),
            Clocks(96, 71, 2405),
            Clocks(97, 83, 1800, ("hardware thermal slowdown",)),
            None,
        ]
    )
    with surroundings.Gpu(lambda: next(looks), every_s=0.001) as gpu:
        gpu._thread.join(5)
    assert gpu.seen() == surroundings.GpuSeen(1800, 83, ("hardware thermal slowdown",))
    with surroundings.Gpu(lambda: None, every_s=0.001) as none:
        pass
    assert none.seen() == surroundings.GpuSeen()
