# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import spelling
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import variables

RECIPES = (
    "gpt-oss-120b",
    "llama-3.1-405b-awq",
    "qwen3-235b-a22b-gptq-int4",
    "qwen3-235b-a22b-nvfp4-trtllm",
    "qwen3-8b",
    "qwen3.8-27b-fp8",
)
ENGINE = [name for name in variables.load() if name.startswith("engine_")]


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("qwen3-235b", ["qwen3-235b-a22b-gptq-int4", "qwen3-235b-a22b-nvfp4-trtllm"]),
        ("gpt-oss", ["gpt-oss-120b"]),
        ("gpt-oss-12b", ["gpt-oss-120b"]),
        ("405b", ["llama-3.1-405b-awq"]),
        ("qwen3-9b", ["qwen3-8b"]),
        ("mistral", []),
        ("", []),
    ],
)
def test_a_recipe(word, meant):
    assert spelling.closest(word, RECIPES) == meant


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("engine_max_model_len", "engine_context"),
        ("engine_num_ctx", "engine_context"),
        ("engine_max_num_seqs", "engine_concurrency"),
        ("engine_extra_args", "engine_options"),
        ("engine_model", "engine_recipe or engine_model_path"),
        ("engine_tensor_parallel", "engine_tensor_parallel_size"),
        ("engine_contxt", "engine_context"),
        ("engine_parallel_tensor", "engine_tensor_parallel_size"),
    ],
)
def test_a_variable_of_the_engine(word, meant):
    assert spelling.did_you_mean(word, ENGINE, prefix="engine_") == f"Did you mean {meant}?"


def test_every_name_of_others_leads_to_one_of_ours():
    assert {f"engine_{name}" for names in spelling.ALIASES.values() for name in names} <= set(ENGINE)
    assert not {f"engine_{name}" for name in spelling.ALIASES} & set(ENGINE)


def test_three_names_are_a_list():
    assert spelling.did_you_mean("a", ["a-b", "a-c", "a-d", "e"], shown=repr) == "Did you mean 'a-b', 'a-c' or 'a-d'?"


@pytest.mark.parametrize(
    ("word", "slip"),
    [
        ("engine_recipe", False),
        ("engin_recipe", True),
        ("engine_reecipe", True),
        ("engine_rexipe", True),
        ("engine_rceipe", True),
        ("engine_rceipes", False),
        ("engine_recipe_", True),
        ("ngine_recip", False),
        ("", False),
    ],
)
def test_one_slip(word, slip):
    assert spelling.one_slip(word, "engine_recipe") is slip
