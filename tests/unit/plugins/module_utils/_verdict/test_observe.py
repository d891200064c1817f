# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access import port_filter
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import kept_plan, probe
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.engine_json import Description
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FACT_PATH, Rail, dump
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.observation import (
    BUSY,
    NO_GPU,
    UNLIMITED,
    Difference,
    load,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.observe import Asked, observe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.plan import assumed_facts
from engine_plans import node_plans, with_service
from root_or_not import root_or_not  # noqa: F401

UNIT = "sparkmatrix-engine.service"
ANSWER = probe.Answer("m", " a", 1, 0.2, 0.2, 5.0)
HALVES = ("rocep1s0f0", "roceP2p1s0f0")
NO_LIMITS = "Max locked memory         unlimited            unlimited            bytes\n"


class Spark:
    """The head of two, with a service whose rank is process 4242."""

    def __init__(self, root):
        self.root = root
        fact = assumed_facts(("spark1", "spark2"))["spark1"]
        rails = tuple(
            Rail(index, 0, "0000", f"net{index}", device, 1, f"192.168.10{index}.10", 24, 9000, 200.0)
            for index, device in enumerate(HALVES)
        )
        self.fact = replace(fact, state="applied", rails=rails)
        self.write(FACT_PATH, dump(self.fact))
        self.plan = node_plans(2)["spark1"]
        self.service = self.plan.here[0]
        self.keep(self.plan)
        told = Description(
            host="127.0.0.1",
            port=8000,
            model=self.service.engine.served_model_name,
            key_file=str(root / "key"),
            units=(UNIT,),
            members=self.service.members,
            unit=UNIT,
            runtime=self.service.runtime,
            role="head",
        )
        self.write("key", 'VLLM_API_KEY="secret"')
        self.write("etc/sparkmatrix/engine.json", json.dumps(told.as_dict()))
        self.write("proc/uptime", "100000.0 1.0")
        self.write("proc/meminfo", "MemTotal: 100 kB\nMemAvailable: 40 kB\n")
        self.process(4242)
        self.answers = {}
        self.said = ANSWER
        self.gpu = Completed(0, "GBS 231.5\n")

    def write(self, path, text):
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def keep(self, plan):
        self.write(f"{kept_plan.DIRECTORY}/current.json", json.dumps(plan.as_dict()))

    def process(self, pid, limits=NO_LIMITS, opened=HALVES, **environment):
        proc = f"proc/{pid}"
        self.write(f"{proc}/cgroup", f"0::/sparkmatrix.slice/{UNIT}\n")
        self.write(f"{proc}/io", "rchar: 1\nwchar: 1\n")
        self.write(f"{proc}/cmdline", "VLLM::Worker_TP0\0")
        self.write(f"{proc}/stat", f"{pid} (VLLM::Worker) S 1 {' '.join(['0'] * 17)} 100 0 0\n")
        self.write(f"{proc}/limits", limits)
        values = {**self.service.engine.env, **environment}
        self.write(f"{proc}/environ", "\0".join(f"{name}={value}" for name, value in values.items()))
        (self.root / proc / "fd").mkdir(exist_ok=True)
        for number, device in enumerate(HALVES):
            self.write(f"{proc}/root/dev/infiniband/uverbs{number}", "")
            self.write(f"sys/class/infiniband_verbs/uverbs{number}/ibdev", device)
            link = self.root / proc / "fd" / str(number)
            link.unlink(missing_ok=True)
            if device in opened:
                link.symlink_to(f"/dev/infiniband/uverbs{number}")

    def run(self, argv):
        words = list(argv)
        for start, answer in self.answers.items():
            if " ".join(words).startswith(start):
                return answer
        if words[:2] == ["systemctl", "show"] and "LimitMEMLOCK" in words:
            return Completed(0, "infinity\n")
        if words[:2] == ["systemctl", "show"]:
            return Completed(0, f"Id={UNIT}\nLoadState=loaded\nActiveState=active\nInvocationID=1\nMainPID=4242\n")
        if words[0] == "journalctl":
            return Completed(1 if "-t" in words else 0, "")
        return Completed(127, "", "not here")

    def ask(self, _target):
        if isinstance(self.said, Exception):
            raise self.said
        return self.said

    def seen(self, **asked):
        machine = Machine(str(self.root), self.run)
        asked = Asked(
            **{
                "answer": self.ask,
                "told": lambda _target: {},
                "gpu_runner": lambda _argv: self.gpu,
                "gpu": False,
                **asked,
            }
        )
        found = observe(machine, asked)
        assert load(json.loads(json.dumps(found.as_dict())), "spark1") == found
        return found


@pytest.fixture
def spark(tmp_path):
    return Spark(tmp_path)


def test_a_machine_where_all_is_well(spark):
    found = spark.seen()
    assert found.problems == () and found.filters == () and found.lines == () and found.journal_read
    assert (found.host, found.halves, found.used_bytes) == ("spark1", HALVES, 60 * 1024)
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
    assert "hf_secret" not in json.dumps(found.as_dict())


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
    assert found.total_bytes


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


def test_the_gpu_is_measured_where_nothing_runs(spark):
    assert spark.seen(gpu=True).gpu.reason == NO_GPU
    spark.write("proc/driver/nvidia/gpus/000f:01:00.0/information", "Model: 		 NVIDIA GB10\n")
    assert spark.seen(gpu=True).gpu.reason == BUSY  # the unit is active, and VLLM:: a process
    spark.answers = {
        "systemctl show": Completed(0, f"Id={UNIT}\nActiveState=inactive\n\nId=r\nActiveState=inactive\n"),
    }
    spark.write("proc/4242/cmdline", "bash\0")
    assert spark.seen(gpu=True).gpu.reason.startswith("no Python environment")
    spark.write(f"{spark.service.venv.path}/bin/python", "")
    assert spark.seen(gpu=True).gpu.gbs == 231.5
    spark.gpu = Completed(1, "", "ModuleNotFoundError: No module named 'torch'")
    assert "No module named" in spark.seen(gpu=True).gpu.reason
