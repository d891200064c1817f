# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""How a run asks an engine for an answer; how it waits for the keeper is in test_loop."""

from __future__ import annotations

import json

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import wait
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.store import Store
from ansible_collections.sparkmatrix.cluster.plugins.modules import engine_probe
from fake_engine import KEY, MODEL, fake_engine
from module_runner import run_call, run_module


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "key"
    path.write_text(f'VLLM_API_KEY="{KEY}"\n')
    return str(path)


def probe(engine, key_file, check=False, **options):
    port = engine if isinstance(engine, int) else engine.port
    return run_call("engine_probe", {"port": port, "model": MODEL, "key_file": key_file, **options}, check=check)


def test_probe_answers(key_file):
    with fake_engine() as engine:
        result, failed = probe(engine, key_file, max_tokens=2, check_access=True)
    assert not failed
    assert not result["changed"]
    assert result["ready"]
    assert result["access"] == 401
    assert result["answer"]["completion_tokens"] == 2
    assert KEY not in json.dumps(result)


def test_an_answer_without_rdma_traffic_warns(monkeypatch, key_file):
    rails = (object(),)
    monkeypatch.setattr(wait.traffic, "planned", lambda _machine: rails)
    monkeypatch.setattr(wait.traffic, "read", lambda _machine, asked: {"count": len(engine.requests)})
    seen = []
    monkeypatch.setattr(wait.traffic, "judge", lambda *asked: seen.append(asked) or wait.traffic.Verdict("none", "TCP"))
    with fake_engine() as engine:
        assert probe(engine, key_file, check_rdma=True)[0]["rdma"] == "none"
        assert probe(engine, key_file, check_rdma=True, check=True)[0]["rdma"] == ""
    assert seen == [(rails, {"count": 0}, {"count": 1}, "sparkmatrix-engine")]


def test_an_api_without_a_key_is_a_failure(key_file):
    with fake_engine("open") as engine:
        result, failed = probe(engine, key_file, check_access=True)
    assert failed
    assert "a wrong key got HTTP 200" in result["msg"]


def test_check_mode_asks_once_and_never_fails(key_file):
    with fake_engine("500") as engine:
        result, failed = probe(engine, key_file, check=True)
        assert not failed
        assert not result["ready"]
        assert "HTTP 500" in result["reason"]
        engine.mode = "good"
        assert probe(engine, key_file, check=True)[0]["ready"]
    assert len(engine.requests) == 2


def keeper_waits(monkeypatch, found=None):
    asked = []

    def waits(target, question, seconds, **how):
        asked.append((seconds, how["instance"], how["part_s"], how["before"]))
        return found or wait.probe.ask(target(), question)

    monkeypatch.setattr(wait, "wait_ready", waits)
    return asked


def test_what_was_verified_is_kept_for_status(monkeypatch, key_file, tmp_path):
    monkeypatch.setattr(wait, "Store", lambda instance="": Store(str(tmp_path), instance))
    with fake_engine() as engine:
        assert not probe(engine, key_file, max_tokens=2, expected=[12, 41], check=True)[1]
        assert Store(str(tmp_path)).verified() is None
        result, _failed = probe(engine, key_file, max_tokens=2, expected=[12, 41])
    kept = Store(str(tmp_path)).verified()
    assert not result["changed"]
    assert (kept.model, kept.low, kept.high) == (MODEL, 12.0, 41.0)
    assert kept.tokens_per_s == result["answer"]["tokens_per_s"]
    assert kept.measured == result["answer"]["measured"]


def test_an_engine_that_was_stopped_is_not_waited_for(monkeypatch, key_file):
    def refuse(_instance, model):
        raise SparkError("Stopped by stop.yml at t, run by anna", "sparkmatrix-keeper.service", "Start it")

    monkeypatch.setattr(wait.status, "check", refuse)
    with fake_engine() as engine:
        result, failed = probe(engine, key_file, check_keeper=True, timeout=60)
        assert engine.requests == []
    assert failed
    assert result["msg"] == "sparkmatrix-keeper.service: Stopped by stop.yml at t, run by anna. Start it."


def test_probe_waits_in_parts(monkeypatch, key_file):
    part = wait.Part("loading: x", 60.0, 0.0, 1)
    asked = keeper_waits(monkeypatch, part)
    result, failed = probe(1, key_file, keeper=True, part=60, before={"waited_s": 30, "failures": 1})
    assert not failed and not result["changed"] and not result["ready"]
    assert result["waiting"] == {"words": "loading: x", "waited_s": 60.0, "missing_s": 0.0, "failures": 1}
    assert asked[0][2:] == (60, wait.Part(waited_s=30, failures=1))


def test_a_service_is_asked_by_its_description(monkeypatch, key_file, tmp_path):
    asked = keeper_waits(monkeypatch)
    monkeypatch.setattr(wait, "Store", lambda instance="": Store(str(tmp_path), instance))
    Store(str(tmp_path), "chat").write(print, start_parts={"other": 9.0, "memory": 0.5}, start_load="weights at 1 GB/s")
    path = tmp_path / "engine-chat.json"
    with fake_engine() as engine:
        described = {"host": "127.0.0.1", "port": engine.port, "model": MODEL, "key_file": key_file}
        path.write_text(json.dumps({**described, "instance": "chat"}))
        request = {"description": str(path), "keeper": True, "ready_timeout": 9, "expected": [12, 41]}
        result, failed = run_call("engine_probe", request)
    assert not failed and result["ready"]
    assert result["start_parts"] == {"memory": 0.5, "other": 9.0} and result["start_load"] == "weights at 1 GB/s"
    assert asked == [(9, "chat", 0, wait.Part())]
    assert Store(str(tmp_path), "chat").verified().low == 12.0
    assert wait.Request(description=str(path)).watched == "sparkmatrix-engine-chat.service"
    result, failed = run_call("engine_probe", {"description": str(tmp_path / "none"), "keeper": True})
    assert failed and "no engine serves" in result["msg"]
    assert run_module(engine_probe, {})[1], "a model or a description"
