# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The modules engine_probe, ray_cluster and cluster_secret through their own main()."""

from __future__ import annotations

import dataclasses
import json

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import ray_cluster as engine_ray_cluster
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import units
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.store import Store
from ansible_collections.sparkmatrix.cluster.plugins.modules import (
    engine_probe,
    engine_units,
    kept_plan,
    ray_cluster,
)
from engine_plans import with_service
from fake_engine import KEY, MODEL, fake_engine
from module_runner import run_module


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "key"
    path.write_text(f'VLLM_API_KEY="{KEY}"\n')
    return str(path)


def probe(engine, key_file, check=False, **options):
    port = engine if isinstance(engine, int) else engine.port
    return run_module(engine_probe, {"port": port, "model": MODEL, "key_file": key_file, **options}, check=check)


def test_probe_answers(key_file):
    with fake_engine() as engine:
        result, failed = probe(engine, key_file, max_tokens=2, check_access=True)
    assert not failed
    assert not result["changed"]
    assert result["ready"]
    assert result["access"] == 401
    assert result["answer"]["completion_tokens"] == 2
    assert KEY not in json.dumps(result)


def test_probe_without_rdma_traffic_warns(monkeypatch, key_file):
    rails = (object(),)
    monkeypatch.setattr(engine_probe.traffic, "planned", lambda _machine: rails)
    monkeypatch.setattr(engine_probe.traffic, "read", lambda _machine, asked: {"count": len(engine.requests)})
    seen = []

    def judge(asked, before, after, unit):
        seen.append((asked, before, after, unit))
        return engine_probe.traffic.Verdict("none moved", "over TCP", {"x": 0})

    monkeypatch.setattr(engine_probe.traffic, "judge", judge)
    with fake_engine() as engine:
        result, failed = probe(engine, key_file, check_rdma=True)
        assert not failed and result["rdma"] == {"words": "none moved", "warning": "over TCP", "moved": {"x": 0}}
        assert (
            "rdma" not in probe(engine, key_file)[0]
            and "rdma" not in probe(engine, key_file, check_rdma=True, check=True)[0]
        )
    assert seen == [(rails, {"count": 0}, {"count": 1}, "sparkmatrix-engine")]


def test_probe_without_a_key():
    with fake_engine("open") as engine:
        result, failed = run_module(engine_probe, {"port": engine.port, "model": MODEL})
    assert not failed
    assert result["ready"]


def test_a_cache_that_is_smaller_than_planned(key_file, monkeypatch):
    said = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="250"} 1.0'
    monkeypatch.setattr(engine_probe.probe, "metrics", lambda *_words: said)
    with fake_engine() as engine:
        result, failed = probe(engine, key_file, planned_tokens=16000)
        assert not failed
        assert result["cache"]["tokens"] == 4000
        assert "25 % of the planned 16000" in result["cache"]["warning"]
        assert "cache" not in probe(engine, key_file)[0]


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


def test_a_missing_key_file(tmp_path):
    result, failed = probe(9, str(tmp_path / "none"))
    assert failed
    assert "key file does not exist" in result["msg"]


NODES = {"spark1": "10.0.0.1", "spark2": "10.0.0.2"}


def cluster(monkeypatch, answer, check=False):
    asked = []

    def read(query):
        asked.append(query)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(engine_ray_cluster, "read", read)
    options = {"address": "10.0.0.1:6379", "nodes": NODES, "environment": {"A": 1}, "timeout": 7}
    return (*run_module(ray_cluster, options, check=check), asked[0])


def test_a_complete_cluster(monkeypatch):
    result, failed, query = cluster(monkeypatch, engine_ray_cluster.Verdict(("10.0.0.1", "10.0.0.2")))
    assert not failed
    assert result == {"changed": False, "complete": True, "alive": ["10.0.0.1", "10.0.0.2"], **result}
    assert query.addresses == ("10.0.0.1", "10.0.0.2")
    assert query.environment == {"A": "1"}
    assert query.timeout_s == 7


def test_an_incomplete_cluster(monkeypatch):
    verdict = engine_ray_cluster.Verdict(("10.0.0.1",), missing=("10.0.0.2",))
    result, failed, _query = cluster(monkeypatch, verdict)
    assert failed
    assert "missing: spark2 (10.0.0.2)" in result["msg"]
    result, failed, query = cluster(monkeypatch, verdict, check=True)
    assert not failed
    assert not result["complete"]
    assert query.timeout_s == 0


def test_a_cluster_that_cannot_be_asked(monkeypatch):
    assert cluster(monkeypatch, SparkError("no python"))[1]
    result, failed, _query = cluster(monkeypatch, SparkError("no python"), check=True)
    assert not failed
    assert "no python" in result["reason"]


def keeper_waits(monkeypatch, found=None):
    asked = []

    def wait(target, question, seconds, **how):
        asked.append((seconds, how["instance"], how["part_s"], how["before"]))
        return found or engine_probe.probe.ask(target(), question)

    monkeypatch.setattr(engine_probe.keeper_wait, "wait_ready", wait)
    return asked


def test_what_was_verified_is_kept_for_status(monkeypatch, key_file, tmp_path):
    monkeypatch.setattr(engine_probe, "Store", lambda instance="": Store(str(tmp_path), instance))
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
    def refuse(_instance):
        raise SparkError("Stopped by stop.yml at t, run by anna", "sparkmatrix-keeper.service", "Start it")

    monkeypatch.setattr(engine_probe.keeper_status, "check", refuse)
    with fake_engine() as engine:
        result, failed = probe(engine, key_file, check_keeper=True, timeout=60)
        assert engine.requests == []
    assert failed
    assert result["msg"] == "sparkmatrix-keeper.service: Stopped by stop.yml at t, run by anna. Start it."


def test_probe_waits_for_the_keeper(monkeypatch, key_file, tmp_path):
    asked = keeper_waits(monkeypatch)
    monkeypatch.setattr(engine_probe, "Store", lambda instance="": Store(str(tmp_path), instance))
    Store(str(tmp_path), "chat").write({"start_parts": {"other": 9.0, "memory": 0.5}}, print)
    with fake_engine() as engine:
        result, failed = probe(engine, key_file, keeper=True, service="chat", ready_timeout=9)
    assert not failed
    assert result["ready"]
    assert result["start_parts"] == {"memory": 0.5, "other": 9.0}
    assert asked == [(9, "chat", 0, engine_probe.keeper_wait.Part())]


def test_probe_waits_in_parts(monkeypatch, key_file):
    part = engine_probe.keeper_wait.Part("loading: x", 60.0, 0.0, 1)
    asked = keeper_waits(monkeypatch, part)
    result, failed = probe(1, key_file, keeper=True, part=60, before={"waited_s": 30, "failures": 1})
    assert not failed and not result["changed"] and not result["ready"]
    assert result["waiting"] == {"words": "loading: x", "waited_s": 60.0, "missing_s": 0.0, "failures": 1}
    assert asked[0][2:] == (60, engine_probe.keeper_wait.Part(waited_s=30, failures=1))


def test_probe_reads_the_description(monkeypatch, key_file, tmp_path):
    asked = keeper_waits(monkeypatch)
    path = tmp_path / "engine-chat.json"
    with fake_engine() as engine:
        described = {"host": "127.0.0.1", "port": engine.port, "model": MODEL, "key_file": key_file}
        path.write_text(json.dumps({**described, "instance": "chat"}))
        result, failed = run_module(engine_probe, {"description": str(path), "keeper": True})
    assert not failed and result["ready"]
    assert asked[0][1] == "chat"
    result, failed = run_module(engine_probe, {"description": str(tmp_path / "none"), "keeper": True})
    assert failed and "no engine serves" in result["msg"]
    assert run_module(engine_probe, {})[1]


def test_kept_plan(monkeypatch, tmp_path):
    made = kept_plan.kept_plan
    monkeypatch.setattr(made, "DIRECTORY", str(tmp_path))

    def plan(name, mark):
        return with_service(instance=name, config_hash=mark)

    served = dataclasses.replace(plan("chat", "a"), identity="a").as_dict()
    planned = dataclasses.replace(plan("code", "a"), identity="b").as_dict()
    assert run_module(kept_plan, {"plan": served})[0]["changed"]
    assert not run_module(kept_plan, {"plan": served})[0]["changed"]
    assert run_module(kept_plan, {"plan": served, "images": {"x": "sha256:1"}})[0]["changed"]
    result, failed = run_module(kept_plan, {"state": "read"})
    kept = {**served, "image_ids": {"x": "sha256:1"}}
    assert not failed and (result["current"], result["previous"], result["refused"]) == (kept, {}, "")
    result, _failed = run_module(kept_plan, {"state": "read", "plan": planned})
    assert (result["differing"], result["services"]) == (["chat", "code"], ["chat", "code"])
    assert run_module(kept_plan, {"state": "restored", "plan": planned, "previous": served})[0]["changed"]
    assert "no engine plan" in run_module(kept_plan, {"plan": {}})[0]["msg"]
    assert run_module(kept_plan, {"state": "absent"})[0]["changed"]
    made.keep(plan("chat", "a"))
    (tmp_path / "current.json").write_text('{"role": "head"}')
    assert "made by another release" in run_module(kept_plan, {"state": "read"})[0]["refused"]


def test_engine_units(monkeypatch):
    calls = []

    def bring(kind, state, **options):
        calls.append((kind, state, options["keep"], options["check_mode"]))
        if kind == "engine":
            raise SparkError("does not stop", "x.service")
        return units.Outcome(True, ["sparkmatrix-keeper-chat.service"], {"a": 1}, {"a": 2})

    monkeypatch.setattr(engine_units.units, "bring", bring)
    result, failed = run_module(engine_units, {"kind": "keeper", "state": "absent", "keep": ["k"]})
    assert not failed
    assert result["descriptions"] == ["/etc/sparkmatrix/engine-chat.json"]
    assert result["services"] == []
    assert "ray" not in result
    assert calls == [("keeper", "absent", ["k"], False)]
    monkeypatch.setattr(engine_units.units, "over_ray", lambda service: service == "chat")
    result, failed = run_module(engine_units, {"kind": "keeper", "state": "stopped", "service": "chat"})
    assert result["ray"]

    def damaged(_service):
        raise SparkError("the description of the engine is damaged", "engine-chat.json")

    monkeypatch.setattr(engine_units.units, "over_ray", damaged)
    stops = len(calls)
    result, failed = run_module(engine_units, {"kind": "keeper", "state": "stopped", "service": "chat"})
    assert failed and "damaged" in result["msg"]
    assert len(calls) == stops  # nothing was stopped
    result, failed = run_module(engine_units, {"kind": "engine", "state": "stopped"})
    assert failed
    assert "does not stop" in result["msg"]
