# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What was computed of prompts comes back from the disk: options, memory, whose it is, and where it is refused."""

from __future__ import annotations

import json

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import plan as engine_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import recipe as engine_recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render import compose, service_files
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.user_settings import UserSettings
from engine_plans import required

GIB = 1024**3
BASE = "/var/lib/sparkmatrix/prefixes/sparkmatrix-engine"
VLLM, SGLANG = (
    {"engine": "vllm", "requirements": ("vllm==0.33.0",)},
    {"engine": "sglang", "requirements": ("sglang==0.5.23",)},
)


def planned(name="qwen3-8b", count=1, gb=100, **settings):
    recipe = required(*engine_recipe.find(name, ()))
    given = {"runtime": "venv", "prefix_cache_gb": gb, **(VLLM if "engine" not in settings else {}), **settings}
    facts = engine_plan.assumed_facts([f"spark{number + 1}" for number in range(count)])
    return engine_plan.plan(recipe, facts, UserSettings(**given), {})


def services(result):
    assert result.plans, [str(item) for item in result.findings]
    return [plan.here[0] for plan in result.plans.values()]


def option(service, name):
    words = service.engine.command.options
    return words[words.index(name) + 1]


def test_nothing_is_kept_unless_it_is_asked_for():
    (service,) = services(planned(gb=0))
    assert "--kv-transfer-config" not in service.engine.command.options
    assert (service.prefixes.base, service.memory.prefixes) == ("", 0)


def test_vllm_writes_into_a_directory_of_this_model_and_this_engine():
    (service,) = services(planned())
    told = json.loads(option(service, "--kv-transfer-config"))
    kept = service.prefixes
    assert (kept.base, kept.disk_gb) == (BASE, 100) and kept.directory == f"{BASE}/{kept.key}"
    assert told == {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "spec_name": "TieringOffloadingSpec",
            "cpu_bytes_to_use": service.memory.prefixes,
            "secondary_tiers": [{"type": "fs", "root_dir": kept.directory}],
        },
    }


def test_memory_in_which_it_comes_and_goes_is_counted_outside_of_the_share():
    (without,), (service,), (long,) = (
        services(planned(gb=gb, context=context)) for gb, context in ((0, 4096), (100, 4096), (100, 40960))
    )
    assert service.memory.prefixes == 0.75 * GIB  # one request: 4096 x 147,456 bytes, in quarters of a GiB
    assert long.memory.prefixes == 4 * GIB  # at most
    assert service.memory.host == without.memory.host + service.memory.prefixes
    assert service.memory.kv_available == without.memory.kv_available


def test_what_does_not_fit_beside_it_names_it():
    refused = planned(context=40960, gpu_memory_utilization=0.9)
    assert not refused.plans and any("set engine_prefix_cache_gb: 0" in item.remedy for item in refused.findings)


@pytest.mark.parametrize(
    "settings",
    [
        {"requirements": ("vllm==0.32.0",), "engine": "vllm"},
        {"options": {"kv-cache-dtype": "fp8"}},
        {"model": "/models/other"},
        {"environment": {"VLLM_KV_CACHE_LAYOUT": "HND"}},
        {"name": "qwen3-32b-nvfp4"},
    ],
)
def test_another_key_for_whatever_may_change_what_is_written(settings):
    (mine,), (other,) = services(planned()), services(planned(**settings))
    assert mine.prefixes.key != other.prefixes.key
    assert services(planned())[0].prefixes.key == mine.prefixes.key


def test_a_limit_and_a_port_change_no_key():
    (mine,), (other,) = services(planned()), services(planned(gb=50, port=8100, served_model_name="other"))
    assert mine.prefixes.key == other.prefixes.key


def test_replicas_of_one_node_keep_their_own():
    first, second = services(planned(count=2, data_parallel_size=2))
    assert first.prefixes == second.prefixes and "--kv-transfer-config" in second.engine.command.options


def test_sglang_keeps_over_nodes_what_each_rank_has():
    first, second = services(planned("llama-3.1-70b-fp8", count=2, **SGLANG))
    words, kept = first.engine.command.options, first.prefixes
    assert "--enable-hierarchical-cache" in words
    assert option(first, "--hicache-storage-backend") == "file" and option(first, "--page-size") == "64"
    assert 0 <= first.memory.prefixes - int(option(first, "--hicache-size")) * 10**9 < 10**9
    assert json.loads(option(first, "--hicache-storage-backend-extra-config")) == {"max_size": 100 * 10**9 * 9 // 10}
    for service in (first, second):
        assert service.engine.env["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] == kept.directory


OWN = ("vllm @ https://example.com/vllm.whl",)
SEGMENTS = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
TRTLLM = {"engine": "tensorrt-llm", "runtime": "container", "image": "nvcr.io/nvidia/tensorrt-llm/release:1.4.0"}
REFUSED = {
    "over nodes": ("llama-3.1-70b-fp8", 2, {}, "several nodes"),
    "before 0.32": ("qwen3-8b", 1, {"engine": "vllm", "requirements": ("vllm==0.31.0",)}, "0.32"),
    "an unknown version": ("qwen3-8b", 1, {"engine": "vllm", "requirements": OWN}, "0.32"),
    "expandable segments": ("qwen3-8b", 1, {"environment": SEGMENTS}, "expandable_segments"),
    "no prefix caching": ("qwen3-8b", 1, {"options": {"enable-prefix-caching": False}}, "prefix"),
    "a connector of the user's": ("qwen3-8b", 1, {"options": {"kv-offloading-size": 4}}, "kv-offloading-size"),
    "adapters": ("qwen3-8b", 1, {"options": {"enable-lora": True}}, "adapter"),
    "another hash at each start": ("qwen3-8b", 1, {"options": {"prefix-caching-hash-algo": "xxhash"}}, "hash"),
    "a format of few bits": ("qwen3-8b", 1, {"options": {"kv-cache-dtype": "int8_per_token_head"}}, "dtype"),
    "TensorRT-LLM": ("qwen3-8b", 1, TRTLLM, "keeps nothing"),
    "SGLang's own": ("qwen3-8b", 1, {**SGLANG, "options": {"hicache-size": 4}}, "hicache-size"),
    "SGLang without a tree": ("qwen3-8b", 1, {**SGLANG, "options": {"disable-radix-cache": True}}, "radix-cache"),
    "vectors": ("qwen3-embedding-0.6b", 1, {}, "is for embed"),
    "less than nothing": ("qwen3-8b", 1, {"gb": -1}, "out of its range"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_where_it_is_not_right_it_is_refused(case):
    name, count, settings, words = REFUSED[case]
    result = planned(name, count, **settings)
    said = [item for item in result.findings if item.severity == "error"]
    assert not result.plans and any(words in str(item) for item in said), [str(item) for item in result.findings]


def test_the_unit_stands_before_the_engine_and_ends_with_it():
    (service,) = services(planned())
    made = service_files.make(service, engine_plan.documents.RayPlan(), service_files.Settings(), service_files.Marks())
    unit = made.files["/etc/systemd/system/sparkmatrix-prefixes.service"]
    assert "BindsTo=sparkmatrix-engine.service\nBefore=sparkmatrix-engine.service\n" in unit
    assert (
        "User=sparkmatrix\n" in unit
        and "StateDirectory=sparkmatrix/prefixes/sparkmatrix-engine\nStateDirectoryMode=0700\n" in unit
    )
    (start,) = [line for line in unit.splitlines() if line.startswith("ExecStart=")]
    assert f"prefixes {BASE} --key {service.prefixes.key}" in start and "--limit-gb 100" in start
    assert "--model /opt/sparkmatrix/models/huggingface/hub/models--Qwen--Qwen3-8B" in start
    engine = made.files["/etc/systemd/system/sparkmatrix-engine.service"]
    assert "".join(f"{word}=sparkmatrix-prefixes.service\n" for word in ("Requires", "After", "Upholds")) in engine
    assert "Restart=" not in unit, "systemd would start the engine anew with it"
    assert BASE in next(line for line in engine.splitlines() if line.startswith("ReadWritePaths="))
    assert "\nTemporaryFileSystem=/dev/shm:" in engine, "other accounts make files in the node's, which it would open"


def test_a_container_has_it_mounted_and_its_image_decides_whose_it_is():
    image = "vllm/vllm-openai:v0.33.0"
    (service,) = services(planned(runtime="container", engine="vllm", requirements=(), image=image))
    assert BASE in [mount.source for mount in service.mounts if not mount.read_only]
    marked = [
        service_files.make(
            service,
            engine_plan.documents.RayPlan(),
            service_files.Settings(),
            service_files.Marks(images={service.image: mark}),
        ).files["/etc/systemd/system/sparkmatrix-prefixes.service"]
        for mark in ("sha256:1", "sha256:2")
    ]
    assert "User=" not in marked[0] and marked[0] != marked[1]
    assert "PrivateDevices" in marked[0]
    (made,) = compose.document(service)["services"].values()
    assert made["ipc"] == "private" and made["shm_size"] > service.prefixes.memory


def test_the_plan_says_it():
    result = planned()
    assert any("Prefix cache" in line and "100 GB" in line for line in result.summary)
