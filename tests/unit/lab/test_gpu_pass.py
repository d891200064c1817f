# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The pass on GPUs (tests/scenarios/test_gpu.py): what it decides of what it has read, and which step gets how long."""

from __future__ import annotations

from types import SimpleNamespace

import cluster
import pytest
import test_gpu
from test_gpu import STEPS, Pass, beyond, sampled, table

# As nvidia-smi --query-gpu=… --format=csv,noheader,nounits prints it of an H200, and of a card without a power meter.
SAMPLES = sampled(
    "98, 1980, 61, 640.12, 112345\n100, 1905, 64, 699.50, 112345\n99, 1905, 64, [N/A], 112345\nNo devices\n"
)


def test_samples_have_what_nvidia_smi_tells():
    assert [sample.get("watts") for sample in SAMPLES] == [640.12, 699.5, None]
    assert SAMPLES[0] == {"busy": 98, "mhz": 1980, "celsius": 61, "watts": 640.12, "mib": 112345}


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ({"busy": 92, "mhz": 1950, "celsius": 66, "watts": 655.0}, []),
        ({"busy": 0, "mhz": 1950, "celsius": 66, "watts": 655.0}, ["busy 0, nvidia-smi 98 to 100"]),
        (
            {"busy": 99, "mhz": 345, "celsius": 66},
            ["mhz 345, nvidia-smi 1905 to 1980", "watts None, nvidia-smi 640.12"],
        ),
    ],
)
def test_a_reader_is_wrong_beyond_what_was_seen_meanwhile(said, wrong):
    found = beyond("top", said, SAMPLES)
    assert [text.startswith(f"top: {words}") for text, words in zip(found, wrong, strict=True)] == [True] * len(wrong)


def test_what_nvidia_smi_does_not_tell_is_not_missed():
    assert beyond("top", {}, []) == []


def test_the_table_has_a_line_for_each_row():
    row = {
        "step": "first",
        "card": "H200",
        "gpus": 2,
        "seconds": 9.5,
        "result": "FAILED: a | b\nc",
        "figures": {"a": 1},
    }
    assert table([row]).splitlines()[2:] == ['| first | 2 x H200 | 9.5 | FAILED: a / b c | {"a": 1} |']


def test_parts_of_a_start_and_what_came_before_them_are_all_of_it():
    kept = {"start_parts": {"ranks": 2.0, "other": 30.5}, "since": "1970-01-01T00:01:40+00:00"}
    assert cluster.parts_of_start(kept, 50.0) == {"before": 17.5, "ranks": 2.0, "other": 30.5, "token": 50.0}


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.setattr(test_gpu, "FILE", tmp_path / "pass.json")
    monkeypatch.setattr(test_gpu, "FOLDER", tmp_path)

    def made(budget_s=0.0, used_s=0.0, names=()):
        here = SimpleNamespace(
            cpu=False, launch=SimpleNamespace(nodes=1), doing="", ready=lambda: None, logs=lambda _step: None, tail=str
        )
        run = Pass(here, names, budget_s)
        run.began -= used_s
        return run

    return made


def test_what_is_left_of_a_budget_is_kept_for_the_undo(made):
    run = made(600, 400, names=STEPS)
    assert run.left(STEPS["again"]) == pytest.approx(600 - 400 - test_gpu.UNDO_S, abs=1)
    assert run.left(STEPS["undo"]) == pytest.approx(STEPS["undo"].limit_s)
    assert made(600, 550).left(STEPS["again"]) == pytest.approx(50, abs=1)
    assert made().left(STEPS["again"]) == STEPS["again"].limit_s


def test_every_step_gets_a_row_and_one_that_fails_stops_no_other(made):
    def breaks(_here):
        raise test_gpu.FoundError("nothing came", {"seen": 1})

    def hangs(here):
        here.doing = "an answer"
        test_gpu.time.sleep(5)

    def works(_here):
        return {"seen": 2}

    run = made()
    for step in (breaks, hangs, works):
        run.take(test_gpu.Step(step, 1 if step is hangs else 9))
    run.take(test_gpu.Step(works, 9, nodes=2))
    run.budget_s = 0.1
    run.take(test_gpu.Step(works, 9))
    assert [(row["result"], row["figures"]) for row in run.rows] == [
        ("FAILED: nothing came", {"seen": 1}),
        ("FAILED: not done within 1 s; it was at: an answer", {}),
        ("ok", {"seen": 2}),
        ("ok: not run, it takes 2 nodes", {}),
        ("not run: the budget is spent", {}),
    ]
    assert run.bad == 3
