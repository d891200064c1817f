# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Every row of the table fires for what it is about, and is silent for its neighbour."""

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import VARIABLES
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import hazards
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import plan as engine_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.hazards import ERROR, HAZARDS, NOTE, WARNING
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.registry import ENGINES
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.user_settings import UserSettings
from engine_plans import facts, recipe

MTP = {"engine": "vllm", "version": "0.27.1", "model": "nvidia/Qwen3.6-27B-NVFP4", "draft": "mtp", "context": 65536}
SYNC, PIPED = {"--async-scheduling": "false"}, {"engine": "vllm", "version": "0.33.0", "draft": "mtp", "pipeline": 2}
SGLANG = {"engine": "sglang", "version": "0.5.23"}
SUPER = {
    "engine": "vllm",
    "version": "0.33.0",
    "draft": "mtp",
    "model": "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4",
    "experts": 512,
    "quantization": "NVFP4",
    "device": "gpu",
}
LIGHT = {"engine": "vllm", "model": "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4", "image": "vllm:26.10-py3"}
TRTLLM = {"engine": "tensorrt-llm", "version": "1.2.1", "image": "release:1.2.1"}
EXPERT = {"engine": "vllm", "expert": "true", "tensor": 2, "data": 2}
KEPT = {"engine": "vllm", "version": "0.33.0", "label": "vLLM", "prefix_cache_gb": 100}
KEPT_BY_SGLANG = {**SGLANG, "label": "SGLang", "prefix_cache_gb": 100}
# Number of the row, severity, what it fires for, and by what its neighbours differ.
CASES = [
    ("MTP under", NOTE, {**MTP, **SYNC}, [{"version": "0.29.0"}, {"model": "x/Qwen3-8B"}, {"draft": "dflash"}]),
    ("MTP under", WARNING, {**MTP, "--async-scheduling": "true"}, [{"version": "0.33.0"}]),
    ("MTP under", NOTE, {**MTP, **SYNC, "version": "0.33.0", "VLLM_USE_V2_MODEL_RUNNER": "0"},
     [{"VLLM_USE_V2_MODEL_RUNNER": "1"}]),
    ("drafts of MiMo", NOTE, {"engine": "vllm", "model": "XiaomiMiMo/MiMo-V2.6-Flash", "draft": "dflash", **SYNC},
     [{"draft": ""}, {"model": "x/MiniMax-M3"}]),
    ("token 32768", NOTE, MTP, [{"context": 32768}, {"version": "0.29.0"}, {"draft": "dflash"}]),
    ("under pipeline parallel give wrong", ERROR, {**PIPED, **SYNC}, [{"pipeline": 1}, {"--async-scheduling": "true"}]),
    ("under pipeline parallel give wrong", ERROR, {**PIPED, "version": "0.28.0"}, [{"draft": ""}]),
    ("under pipeline parallel give wrong", ERROR, {**PIPED, "VLLM_USE_V2_MODEL_RUNNER": "0"}, [{"pipeline": 1}]),
    ("not known to work", WARNING, PIPED, [SYNC, {"version": "0.28.0"}, {"pipeline": 1}, {"draft": ""}]),
    ("not known to work", WARNING, {**PIPED, "version": ""}, [{"engine": "tensorrt-llm"}]),
    ("EAGLE only", ERROR, {**SGLANG, "pipeline": 2, "draft": "STANDALONE"},
     [{"draft": "eagle3"}, {"draft": "EAGLE"}, {"draft": "mtp"}, {"pipeline": 1}, {"draft": ""}]),
    ("the experts of its MTP layer", WARNING, SUPER,
     [{"--speculative-config.moe-backend": "triton"}, {"experts": 0}, {"quantization": "FP8"}, {"draft_model": "a/b"}]),
    ("the experts of its MTP layer", NOTE, {**SUPER, "model": "Sehyo/x"}, [{"device": "cpu"}]),
    ("draft that are quantized", WARNING, {**MTP, "draft": "dflash", "draft_model": "a/Qwen3.6-27B-DFlash-FP8"},
     [{"version": "0.33.0"}, {"draft": "eagle3"}, {"draft_model": "z-lab/Qwen3.6-27B-DFlash"}]),
    ("expandable_segments", NOTE, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
     [{"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}, {"PYTORCH_CUDA_ALLOC_CONF": ""}]),
    ("InstantTensor", WARNING, {"engine": "vllm", "--load-format": "instanttensor", "draft": "mtp", "nodes": 2},
     [{"nodes": 1}, {"draft": ""}, {"--load-format": "fastsafetensors"}]),
    ("mapped into memory", WARNING, {"engine": "vllm", "weights_gb": 90},
     [{"weights_gb": 80}, {"--load-format": "fastsafetensors"}]),
    ("made for CUDA 12", WARNING, {"device": "gpu", "image": "vllm-openai:v0.26.0-aarch64-cu129-ubuntu2404"},
     [{"image": "vllm-openai:v0.26.0-aarch64-cu130-ubuntu2404"}, {"device": "cpu"}]),
    ("made for CUDA 12", WARNING, {"device": "gpu", "requirements": "vllm==0.33.0 torch==2.11.0+cu128"},
     [{"requirements": "vllm==0.33.0 torch==2.11.0+cu130"}]),
    ("error 715", NOTE, {**LIGHT, "--kv-cache-dtype": "fp8"}, [{"--kv-cache-dtype": "auto"}, {"image": ""}]),
    ("1.3.0rc15", WARNING, {**TRTLLM, "image": "release:1.3.0rc15"}, [{"image": "release:1.3.0rc12"}]),
    ("1.2.0rc6", WARNING, {**TRTLLM, "image": "release:1.2.0rc6", "model": "nvidia/NVIDIA-Nemotron-3-Super-120B"},
     [{"image": "release:1.2.1"}, {"model": "x/Qwen3-8B"}]),
    ("the launcher of TensorRT-LLM 1.2.1", WARNING, {**TRTLLM, "backend": "mpi"},
     [{"backend": "single"}, {"version": "1.4.0"}]),
    ("capture of CUDA graphs", NOTE, {**SGLANG, "nodes": 2, "experts": 8},
     [{"nodes": 1}, {"experts": 0}, {"--disable-cuda-graph": "true"}]),
    ("overlap schedule", ERROR, {**SGLANG, "pipeline": 2, "--disable-overlap-schedule": "false"},
     [{"pipeline": 1}, {"--disable-overlap-schedule": "true"}]),
    ("gave wrong answers", ERROR, EXPERT, [{"expert": "false"}, {"tensor": 1}, {"data": 1}]),
    ("different answers", NOTE, {"engine": "vllm", "VLLM_MARLIN_USE_ATOMIC_ADD": "1"},
     [{"VLLM_MARLIN_USE_ATOMIC_ADD": "0"}]),
    ("arrive as text", WARNING, {"engine": "vllm", "--tool-call-parser": "hermes"},
     [{"--enable-auto-tool-choice": "true"}, {"engine": "sglang"}]),
    ("renames the ranks", ERROR, {"VLLM_PROCESS_NAME_PREFIX": "x"}, [{"VLLM_PROCESS_NAME_PREFIX": ""}]),
    ("memory of several machines", WARNING, {"engine": "vllm", "--kv-offloading-size": "12", "nodes": 2},
     [{"nodes": 1}, {"data": 2}, {"--kv-offloading-size": ""}]),
    ("written by the head alone", ERROR, {**KEPT, "tensor": 2},
     [{"tensor": 1}, {"prefix_cache_gb": 0}, KEPT_BY_SGLANG]),
    ("written by the head alone", ERROR, {**KEPT, "pipeline": 2}, [{"pipeline": 1}]),
    ("since 0.32", ERROR, {**KEPT, "version": "0.31.0"}, [{"version": "0.32.0"}, {"version": "1.0"}, KEPT_BY_SGLANG]),
    ("since 0.32", ERROR, {**KEPT, "version": ""}, [{"prefix_cache_gb": 0}]),
    ("since 0.5.23", ERROR, {**KEPT_BY_SGLANG, "version": "0.5.19"},
     [{"version": "0.5.24"}, {"version": "0.6.0"}, KEPT]),
    ("keeps nothing on disk", ERROR, {**TRTLLM, "prefix_cache_gb": 1},
     [KEPT, KEPT_BY_SGLANG, {"prefix_cache_gb": 0}]),
    ("refuses a CPU", ERROR, {**KEPT, "device": "cpu"}, [{"device": "gpu"}]),
    ("have alike (MLA)", ERROR, {**KEPT_BY_SGLANG, "attention": "mla", "nodes": 2},
     [{"nodes": 1}, {"attention": "gqa"}]),
    ("compressed tokens or rings", ERROR, {**KEPT, "attention": "listed"}, [{"attention": "mla"}]),
    ("a scale for each token", ERROR, {**KEPT, "--kv-cache-dtype": "fp8_per_token_head"},
     [{"--kv-cache-dtype": value} for value in ("auto", "fp8", "fp8_e4m3", "fp8_ds_mla", "bfloat16", "")]),
    ("meets a connector", ERROR, {**KEPT, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
     [{"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}, KEPT_BY_SGLANG]),
    ("another seed", ERROR, {**KEPT, "--prefix-caching-hash-algo": "xxhash_cbor"},
     [{"--prefix-caching-hash-algo": "sha256_cbor"}]),
    ("by its name alone", ERROR, {**KEPT, "--enable-lora": "true"}, [{"--enable-lora": "false"}]),
    ("replaces files of its image", ERROR, {**KEPT, "patches": 1}, [{"patches": 0}]),
    ("CVE-2026-27893", WARNING, {"engine": "vllm", "version": "0.17.1", "label": "vLLM"}, [{"version": "0.18.0"}]),
    ("CVE-2026-22778", WARNING, {"engine": "vllm", "version": "0.13.0", "label": "vLLM"}, [{"version": "0.14.1"}]),
    ("CVE-2026-3059", WARNING, {**SGLANG, "version": "0.5.9", "label": "SGLang"}, [{"version": "0.5.10"}]),
    ("CVE-2025-23254", WARNING, {**TRTLLM, "version": "0.18.1", "label": "TensorRT-LLM"}, [{"version": "0.18.2"}]),
]  # fmt: skip


def said(given, words):
    """Severities with which it is said."""
    found = [(one.severity, str(one)) for one in hazards.findings(given, "recipe x", VARIABLES)]
    found += [(NOTE, text) for text in hazards.notes(given, VARIABLES)]
    return [severity for severity, text in found if words in text]


@pytest.mark.parametrize(("words", "severity", "given", "neighbours"), CASES, ids=[case[0] for case in CASES])
def test_a_row_fires_for_its_configuration_and_not_for_its_neighbour(words, severity, given, neighbours):
    assert said(given, words) == [severity]
    for other in neighbours:
        assert not said({**given, **other}, words), other


def test_of_an_unknown_version_notes_alone_are_said():
    known = {**MTP, "version": "", "label": "vLLM"}
    assert not list(hazards.findings({**known, "pipeline": 2, "backend": "mpi"}, "x", VARIABLES))[1:]
    race, dead = hazards.notes(known, VARIABLES)
    assert race.startswith("if vLLM is older than 0.29: MTP under") and "; set no-async-scheduling: true." in race
    assert dead.startswith("if vLLM is older than 0.29: once") and not hazards.settings(known)
    assert "; set " not in hazards.notes({**known, **SYNC}, VARIABLES)[0]


def test_every_row_has_a_case_and_a_source():
    fired = {number for number, row in enumerate(HAZARDS) for case in CASES if row.concerns(case[2])}
    assert fired == set(range(len(HAZARDS)))
    assert all(row.engine in {"", *ENGINES} and row.severity in {ERROR, WARNING, NOTE} for row in HAZARDS)
    assert all(row.source for row in HAZARDS if row.severity == NOTE)


DRAFTED = recipe(model="Qwen/Qwen3.6-27B", weights_gb=30, draft={"method": "mtp", "tokens": 3, "layers": 1})


def command(version, nodes=1, **settings):
    made = engine_plan.plan(DRAFTED, facts(nodes), UserSettings(requirements=(f"vllm=={version}",), **settings), {})
    assert made.plans, made.findings
    head = made.plans["spark1"].here[0]
    return head.engine.command.options, head.hazards, [str(one) for one in made.findings]


def test_the_variable_for_the_kernel_of_experts_is_answered_with_what_does_the_same():
    given = UserSettings(requirements=("vllm==0.33.0",), environment={"VLLM_USE_FLASHINFER_MOE_FP16": "0"})
    (said,) = [one for one in engine_plan.plan(DRAFTED, facts(1), given, {}).findings if "FP16" in one.found]
    assert "moe_backend" in said.remedy and "Did you mean" not in said.remedy


def test_a_plan_sets_what_a_row_asks_for_unless_the_user_says_otherwise():
    words, known, _findings = command("0.27.1")
    assert "--no-async-scheduling" in words and "so the plan sets no-async-scheduling: true" in known[0]
    words, known, findings = command("0.27.1", options={"async-scheduling": True})
    assert "--async-scheduling" in words and "--no-async-scheduling" not in words
    assert not any("sets" in line for line in known) and any("Set no-async-scheduling: true" in one for one in findings)
    words, known, _findings = command("0.33.0")
    assert "--no-async-scheduling" not in words and not known
    words, _known, findings = command("0.33.0", options={"no-async-scheduling": True})
    assert "--no-async-scheduling" in words and not findings
