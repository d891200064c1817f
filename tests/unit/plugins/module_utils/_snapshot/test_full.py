# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.hardware import Memory
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import kept_plan
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FACT_PATH
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._firewall import port_filter
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._snapshot import full
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._snapshot.snapshot import (
    BUSY,
    NO_GPU,
    UNLIMITED,
    Difference,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict import drift
from engine_plans import with_service
from fake_spark import ANSWER, HALVES, UNIT, Spark
from root_or_not import root_or_not  # noqa: F401


@pytest.fixture
def spark(tmp_path):
    return Spark(tmp_path)


def test_a_machine_where_all_is_well(spark):
    found = spark.seen()
    assert found.problems == () and found.filters == () and found.lines == () and found.journal_read
    assert (found.host, found.halves, found.memory) == ("spark1", HALVES, Memory(100 * 1024, 40 * 1024))
    (service,) = found.services
    assert (service.head, service.runs, service.answered, service.other_settings) == (True, True, True, False)
    assert service.answer == ANSWER.measured
    (rank,) = found.ranks
    assert (rank.title, rank.unit, rank.memlock) == ("VLLM::Worker_TP0", UNIT, UNLIMITED)
    assert set(rank.may_open) == set(rank.opened) == set(HALVES)
    assert rank.environment == () and rank.over_rdma


def test_what_a_rank_lacks(spark):
    spark.process(4242, "Max locked memory         65536                65536                bytes\n", opened=())
    (rank,) = spark.seen().ranks
    assert (rank.memlock, rank.opened) == (65536, ())
    assert set(rank.may_open) == set(HALVES)


def test_an_environment_that_is_not_the_planned_one(spark):
    spark.process(4242, NCCL_NET="Socket", NCCL_IB_DISABLE="1", HF_TOKEN="hf_secret")
    found = spark.seen()
    assert found.ranks[0].environment == (
        Difference("NCCL_NET", "IB", "Socket"),
        Difference("NCCL_IB_DISABLE", "", "1"),
    )
    assert "hf_secret" not in str(found)


@pytest.mark.parametrize(("parent", "found"), [("4000", ("NCCL_NET",)), ("1", ())])
def test_a_title_over_the_environment_is_not_taken_for_it(spark, parent, found):
    """As VLLM::EngineCore leaves it: zero bytes. It was started with the environment of its parent."""
    values = {**spark.service.engine.env, "NCCL_NET": "Socket"}
    spark.write("proc/4000/environ", "\0".join(f"{name}={value}" for name, value in values.items()))
    spark.process(4242)
    spark.write("proc/4242/environ", "\0" * 700)
    spark.write("proc/4242/status", f"Name:\tVLLM\nPPid:\t{parent}\n")
    (rank,) = spark.seen().ranks
    assert (tuple(one.name for one in rank.environment), rank.environment_known) == (found, bool(found))


def test_options_that_the_engine_has_otherwise(spark):
    found = spark.seen(told=lambda _target: {"max_model_len": "17"})
    assert [one.name for one in found.services[0].ignored] == ["--max-model-len"]
    assert found.services[0].options == {"max_model_len": "17"}


@pytest.mark.parametrize("key", ["", None])
def test_a_service_that_does_not_answer(spark, key):
    if key is None:
        spark.said = SparkError("nothing listens there", "http://127.0.0.1:8000")
    else:
        (spark.root / "key").write_text(key)
    (service,) = spark.seen().services
    assert not service.answered
    assert service.answer.startswith("http://127.0.0.1:8000: nothing" if key is None else f"{spark.root}/key: the key")


def test_what_is_damaged_is_named_and_the_rest_is_looked_at(spark):
    spark.write(FACT_PATH, '{"schema"')
    spark.write("etc/sparkmatrix/engine.json", '{"schema"')
    spark.write(f"{kept_plan.DIRECTORY}/current.json", "{")
    found = spark.seen()
    assert [problem.partition(":")[0] for problem in found.problems] == ["fabric fact", "engine plan", "service"]
    assert found.memory.total


def test_a_port_filter_that_somebody_has_flushed(spark, monkeypatch):
    def gone(_machine, name):
        raise SparkError("its table is gone", f"nftables {name}")

    monkeypatch.setattr(port_filter, "require", gone)
    assert spark.seen().filters == ()  # none is kept
    for name in port_filter.NAMES:
        spark.write(port_filter.path(name), "")
    assert len(spark.seen().filters) == len(port_filter.NAMES)


def test_images(spark):
    service = replace(spark.service, image="vllm:1", runtime="container", engine=replace(spark.service.engine))
    plan = replace(with_service(spark.plan, **vars(service)), image_ids={"vllm:1": "sha256:aa"})
    spark.keep(plan)
    told = json.dumps([{"Id": "sha256:bb", "RootFS": {"Layers": ["x"]}}])
    spark.answers = {
        "docker image inspect": Completed(0, told),
        "docker inspect": Completed(0, "sha256:cc\n"),
    }
    (one,) = spark.seen().services
    assert (one.image, one.image_planned, one.image_named, one.image_running) == (
        "vllm:1",
        "sha256:aa",
        "sha256:bb",
        "sha256:cc",
    )
    # Docker that does not answer says nothing of the image: it is not gone.
    spark.answers["docker image inspect"] = Completed(1, "", "Cannot connect to the Docker daemon")
    seen = spark.seen()
    assert [(one.image_planned, one.image_named) for one in seen.services] == [("", "")]
    assert any("Cannot connect" in problem for problem in seen.problems)
    assert [(one.kind, "Cannot connect" in one.found) for one in drift.of_node(seen)] == [("not_looked_at", True)]


def test_weights(spark):
    place = spark.root / "models/own"
    place.mkdir(parents=True)
    (place / "config.json").write_text("{}")
    model = replace(spark.service.models[0], name="/models/own")
    plan = replace(spark.plan, models=(model, *spark.service.models), model_cache=spark.service.model_cache)
    spark.keep(plan)
    path, cached = spark.seen().weights
    assert (path.name, path.state) == ("/models/own", "whole")
    assert (cached.name, cached.state) == (spark.service.models[0].name, "missing")
    (place / "model.safetensors").symlink_to("../blobs/gone")
    broken = spark.seen().weights[0]
    assert broken.state == "broken" and broken.found.endswith("model.safetensors leads nowhere")
    # The engine has fetched it itself, and a blob was lost.
    home = spark.root / spark.service.model_cache.lstrip("/") / f"hub/models--{model_folder(spark)}"
    revision = spark.service.models[0].revision
    (home / f"snapshots/{revision}").mkdir(parents=True)
    os.symlink("../../blobs/1", home / f"snapshots/{revision}/model.safetensors")
    lost = spark.seen().weights[1]
    assert (lost.state, lost.revision, lost.found) == ("broken", revision, "model.safetensors leads nowhere")


def model_folder(spark):
    return spark.service.models[0].name.replace("/", "--")


def test_the_gpu_is_measured_where_nothing_runs(spark, monkeypatch):
    monkeypatch.setattr(full.gpu, "run", lambda _argv, _limit: spark.gpu)

    def measured():
        return spark.seen(gpu=True).gpu

    assert measured().reason == NO_GPU
    spark.write("proc/driver/nvidia/gpus/000f:01:00.0/information", "Model: 		 NVIDIA GB10\n")
    assert measured().reason == BUSY  # the unit is active, and VLLM:: a process
    spark.answers = {
        "systemctl show": Completed(0, f"Id={UNIT}\nActiveState=inactive\n\nId=r\nActiveState=inactive\n"),
    }
    spark.write("proc/4242/cmdline", "bash\0")
    assert measured().reason.startswith("no Python environment")
    spark.write(f"{spark.service.venv.path}/bin/python", "")
    assert measured().gbs == 231.5
    spark.gpu = Completed(1, "", "ModuleNotFoundError: No module named 'torch'")
    assert "No module named" in measured().reason


@pytest.mark.parametrize(("known", "asked"), [("/server_info", 1), ("/get_server_info", 2), ("", 2)])
def test_sglang_is_asked_for_its_settings_by_either_name(monkeypatch, known, asked):
    paths = []

    def exchange(_target, path, *_more):
        paths.append(path)
        if path != known:
            raise SparkError("HTTP 404")
        return {"context_length": 4096, "api_key": "sk-secret"}, 0.1

    monkeypatch.setattr(full.probe, "model_list", lambda _target: {})
    monkeypatch.setattr(full.probe, "metrics", lambda *_where: "sglang:num_running_reqs 0.0\n")
    monkeypatch.setattr(full.probe, "exchange", exchange)
    target = full.probe.Target("127.0.0.1", 8000, "m", "key")
    assert full.told(target) == ({"context_length": "4096"} if known else {})
    assert len(paths) == asked
    # vLLM tells in its metrics, and is not asked for a page that it does not have.
    monkeypatch.setattr(full.probe, "metrics", lambda *_where: 'vllm:cache_config_info{block_size="16"} 1.0\n')
    assert full.told(target) == {"block_size": "16"}
    assert len(paths) == asked
