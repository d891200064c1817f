# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import stat
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._bench import generator
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._bench.generator import Generator, Load, Point
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.probe import Target

KEY = "sk-benchmark-secret"
POINT = Point(concurrency=4, prompt_tokens=512, output_tokens=128, requests=8, repetitions=2, seed=700)
MODEL = Generator("/models/qwen3-8b")
LOAD = Load(Target("127.0.0.1", 8000, "qwen3-8b", KEY), MODEL, POINT, timeout_s=20)
# Stands in for `vllm bench serve`: writes down how it was called, and a result.
STANDIN = r"""
import json, os, sys, time
def main(argv=None):
    words = argv or sys.argv[1:]
    option = lambda name: words[words.index(name) + 1]
    print("Namespace(…)")
    with open(os.environ["SEEN"], "a") as seen:
        path = option("--dataset-path") if "--dataset-path" in words else ""
        prompts = [one["conversations"][0]["value"] for one in json.load(open(path))] if path else []
        seen.write(json.dumps([words, os.environ.get("OPENAI_API_KEY"), prompts, os.environ["NO_PROXY"]]) + "\n")
    BEHAVIOUR
    number = int(option("--num-prompts"))
    found = {"num_prompts": number, "completed": number, "output_throughput": 64.0, "model_id": "not asked for"}
    with open(option("--result-dir") + "/" + option("--result-filename"), "w") as file:
        json.dump(found, file)
"""


def with_generator(**more):
    return replace(LOAD, generator=replace(MODEL, **more))


@pytest.fixture
def fake(tmp_path):
    """A Python environment whose vLLM behaves as told. Returns (place, what it was called with)."""

    def made(behaviour="pass", program=False, copy=False):
        text = STANDIN.replace("BEHAVIOUR", behaviour)
        seen = tmp_path / "seen"
        if program:
            path = tmp_path / "vllm-bench"
            path.write_text(f"#!{sys.executable}\n{text}\nmain()\n")
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        elif copy:
            path = tmp_path / "tensorrt_llm/serve/scripts/benchmark_serving.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\nif __name__ == '__main__':\n    main()\n")
        else:
            path = tmp_path / "vllm/entrypoints/cli/main.py"
            path.parent.mkdir(parents=True)
            path.write_text(text)
        environment = {"PYTHONPATH": str(tmp_path), "SEEN": str(seen), "TMPDIR": str(tmp_path)}
        ours = {"environment": environment, "program": str(path) if program else ""}
        load = with_generator(python=sys.executable, **ours)
        return load, lambda: [json.loads(line) for line in seen.read_text().splitlines()]

    return made


def left(load):
    return list(Path(load.generator.environment["TMPDIR"]).glob("sparkmatrix-benchmark-*"))


@pytest.mark.parametrize("program", [False, True])
def test_one_process_warms_up_and_then_measures(fake, program):
    load, seen = fake(program=program)
    outcome = generator.measure(load)
    assert (outcome.missing, outcome.broken, outcome.lines) == ("", "", ())
    assert [repetition.requests for repetition in outcome.repetitions] == [8, 8], "the first run only warms up"
    calls = seen()
    words = [call[0] for call in calls]
    if not program:
        assert {tuple(word[:2]) for word in words} == {("bench", "serve")}
    assert [word[word.index("--seed") + 1] for word in words] == ["700", "701", "702"]
    assert [word[word.index("--num-prompts") + 1] for word in words] == ["4", "8", "8"]
    assert {call[1] for call in calls} == {KEY}, "the key is in the environment"
    assert KEY not in json.dumps(words), "and not in the command"
    assert left(load) == []


def test_tensorrt_llm_brings_a_copy_of_the_same_generator(fake):
    load, seen = fake(copy=True)
    outcome = generator.measure(load)
    assert (outcome.missing, outcome.broken, [repetition.requests for repetition in outcome.repetitions]) == (
        "",
        "",
        [8, 8],
    )
    assert all(call[0][:1] == ["--base-url"] and call[0][-1] == "--random-ids" for call in seen())
    assert {call[1] for call in seen()} == {KEY}
    assert left(load) == []
    load, seen = fake("raise ValueError('no tokenizer')", copy=True)
    assert generator.measure(load).broken == "ValueError: no tokenizer"


def test_plain_english_is_another_one_for_every_request_and_about_as_long_as_asked_for(fake):
    load, seen = fake()
    generator.measure(replace(load, point=replace(POINT, text=True, repetitions=1)))
    prompts = [prompt for call in seen() for prompt in call[2]]
    assert len(prompts) == len({prompt[:30] for prompt in prompts}) == 4 + 8
    assert all(2000 < len(prompt) < 2600 for prompt in prompts)
    assert "--ignore-eos" not in seen()[0][0]


def test_what_the_generator_says_of_failed_requests_is_kept_without_the_key(fake):
    load, _seen = fake(f"print('Error 0: Unauthorized {KEY}')")
    outcome = generator.measure(load)
    assert outcome.lines == ("Error 0: Unauthorized ***",) * 3


def test_an_environment_without_vllm_has_no_generator(tmp_path):
    load = with_generator(python=sys.executable, environment={"PYTHONPATH": "", "TMPDIR": str(tmp_path)})
    outcome = generator.measure(load)
    assert "No module named 'vllm'" in outcome.missing
    assert outcome.repetitions == ()
    with pytest.raises(SparkError, match="cannot be started"):
        generator.measure(with_generator(python="/nowhere/python"))


@pytest.mark.parametrize(
    ("behaviour", "broken"),
    [
        ("sys.exit(2)", "SystemExit: 2"),
        ("raise ValueError('no chat template')", "ValueError: no chat template"),
        ("os._exit(1)", "it ended without a word"),
    ],
)
def test_a_generator_that_ends_early(fake, behaviour, broken):
    outcome = generator.measure(fake(behaviour)[0])
    assert (outcome.broken, outcome.repetitions) == (broken, ())


def test_nothing_runs_on_when_the_time_is_over(fake):
    load, _seen = fake("time.sleep(60)", program=True)
    began = time.monotonic()
    outcome = generator.measure(replace(load, timeout_s=0.7))
    assert outcome.broken == "it was not done after 1 s"
    assert time.monotonic() - began < 10
    assert left(load) == []
    running = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [one for one in running if load.generator.program.encode() in one]


def test_figures_of_vllm(fixtures):
    found = generator.repetition(json.loads((fixtures / "bench/vllm-0.32.json").read_text()))
    assert (found.requests, found.failed) == (4, 0)
    assert round(found.output_rate, 2) == 13.44
    assert {name: round(value) for name, value in found.tpot_ms.items()} == {"median": 136, "p90": 158, "p99": 158}
    assert found.acceptance is None
    failed = generator.repetition(json.loads((fixtures / "bench/vllm-0.32-failed.json").read_text()))
    assert (failed.requests, failed.failed, failed.output_rate) == (4, 4, 0)


def test_the_mean_of_nothing_is_no_number():
    """Python writes it into JSON, and the controller would refuse the whole answer for it."""
    found = generator.repetition(json.loads('{"num_prompts": 2, "output_throughput": NaN, "p99_ttft_ms": Infinity}'))
    assert (found.output_rate, found.ttft_ms["p99"]) == (0, 0)


@pytest.mark.parametrize("line", ["{", "[]", '{"num_prompts": "many"}', "null"])
def test_figures_that_are_none(line):
    assert "not understood" in generator.read(line).broken


def test_in_a_container_the_key_is_named_and_not_told(monkeypatch):
    asked = {}

    class Process:
        stdin = None

        def __init__(self, argv, **options):
            asked.update(argv=argv, **options)

        def __enter__(self):
            return self

        def __exit__(self, *_exc):
            pass

        def wait(self, _timeout):
            return 0

    monkeypatch.setattr(generator.subprocess, "Popen", Process)
    generator.measure(with_generator(container="sparkmatrix-engine", user="sparkmatrix"))
    assert asked["argv"][:7] == ["docker", "exec", "-i", "-e", "OPENAI_API_KEY", "-e", "HF_HUB_OFFLINE"]
    assert asked["argv"][7:9] == ["sparkmatrix-engine", "python3"]
    assert "user" not in asked
    assert (asked["env"]["OPENAI_API_KEY"], KEY in " ".join(asked["argv"])) == (KEY, False)


def test_the_tokenizer_of_a_pinned_model_is_its_snapshot(tmp_path):
    pinned = Generator("Qwen/Qwen3-8B", revision="a" * 40, cache=str(tmp_path))
    snapshot = tmp_path / "hub/models--Qwen--Qwen3-8B/snapshots" / pinned.revision
    assert generator.tokenizer(pinned) == "Qwen/Qwen3-8B"
    snapshot.mkdir(parents=True)
    assert generator.tokenizer(pinned) == str(snapshot)
    assert generator.tokenizer(replace(pinned, revision="main")) == "Qwen/Qwen3-8B"
    assert generator.tokenizer(replace(pinned, tokenizer="/models/qwen")) == "/models/qwen"
