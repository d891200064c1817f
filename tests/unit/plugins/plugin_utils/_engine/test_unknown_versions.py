# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

"""Images and versions without an option table: what is refused at once, and what after the engine was asked."""

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.version import Answer
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import (
    consent,
    option_tables,
    services,
    unknown_versions,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import plan as engine_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import recipe as engine_recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds import registry
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.user_settings import UserSettings
from engine_plans import required
from planning import plan as run_planner

NIGHTLY = "vllm/vllm-openai:nightly"
RELEASES = [
    "nvcr.io/nvidia/vllm:26.10-py3",
    "lmsysorg/sglang:v0.5.23-cu130",
    "nvcr.io/nvidia/tensorrt-llm/release:1.4.0rc1",
    "sparkmatrix.test/vllm-cpu:v0.32.0",
    "localhost:5000/mine:2.1",
    "vllm/vllm-openai@sha256:" + 64 * "a",
    "vllm/vllm-openai:nightly@sha256:" + 64 * "a",
    "vllm/vllm-openai:nightly-0123456789abcdef0123456789abcdef01234567",
]
MOVING = [
    NIGHTLY,
    "nvcr.io/nvidia/vllm:latest",
    "lmsysorg/sglang",
    "localhost:5000/mine",
    "lmsysorg/sglang:spark",
    "lmsysorg/sglang:latest-cu130",
    "lmsysorg/sglang:dev-cu13",
    "mine:cu130-nightly",
    "mine:main",
]


@pytest.mark.parametrize("image", RELEASES)
def test_a_release_stays_what_it_is(image):
    assert not consent.moves(image)


@pytest.mark.parametrize("image", MOVING)
def test_a_name_that_moves(image):
    assert consent.moves(image)


def made(recipe="qwen3-8b", **settings):
    found = required(*engine_recipe.find(recipe, ()))
    facts = engine_plan.assumed_facts(["spark1"])
    entry = services.Entry(services.ALONE, (), 1.0, {})
    given = {"runtime": "container", "image": NIGHTLY, "allow": (consent.MOVING_IMAGE,), **settings}
    return services.plan([services.Service(entry, found, UserSettings(**given))], facts, {})


@pytest.mark.parametrize(
    ("settings", "replacement"),
    [
        ({"options": {"speculative-model": "x", "num-speculative-tokens": 5}}, "--speculative-config"),
        ({"options": {"quantization": "fp4"}}, "modelopt_fp4"),
        ({"options": {"swap-space": 16}}, "removed in 0.18"),
        ({"environment": {"VLLM_ATTENTION_BACKEND": "X"}}, "--attention-backend"),
        ({"engine": "sglang", "image": "lmsysorg/sglang:latest", "options": {"cuda-graph-max-bs": 8}}, "-decode"),
        (
            {
                "engine": "tensorrt-llm",
                "image": "nvcr.io/nvidia/tensorrt-llm/release:latest",
                "options": {"engine_dir": "/engines"},
            },
            "Give the model itself",
        ),
    ],
)
def test_what_is_long_gone_is_refused_without_a_table(settings, replacement):
    result = made(**settings)
    assert not result.plans
    assert replacement in "\n".join(str(item) for item in result.findings if item.severity == "error")


def test_what_came_back_is_not_gone():
    # Gone in 0.20 to 0.32, there again in 0.33: whoever asks for what is newer gets it.
    assert made(options={"disable-log-requests": True}).plans


def plans(**settings):
    result = made(**settings)
    assert result.plans, result.findings
    return result.plans


def judged(told, **settings):
    return unknown_versions.judge(plans(**settings), {"spark1": {NIGHTLY: told}})


def test_only_what_has_no_table_is_asked():
    (unknown,) = plans()["spark1"].unknown
    assert (unknown.name, unknown.contained, unknown.distributions[0]) == (NIGHTLY, True, "vllm")
    assert plans(image=RELEASES[0])["spark1"].unknown == ()
    (unknown,) = plans(runtime="venv", requirements=("vllm==0.99.0",))["spark1"].unknown
    assert (unknown.name, unknown.contained) == ("/opt/sparkmatrix/engine", False)


def test_a_known_version_is_held_to_its_table():
    assert judged(Answer("0.33.0")) == []
    (finding,) = judged(Answer("0.33.0"), options={"max-num-seq": 3})
    assert "no option --max-num-seq, it is an abbreviation" in finding.found and "asked on spark1" in finding.found
    (finding,) = judged(Answer("0.33.0+nv25.11"), environment={"VLLM_NO_SUCH": "1"})
    assert "no variable VLLM_NO_SUCH" in finding.found


def test_a_version_without_a_table_is_held_to_its_own_parser():
    names = [*option_tables.load("vllm", "0.33.0").options]
    assert judged(Answer("0.99.0", tuple(names))) == []
    (finding,) = judged(Answer("0.99.0", tuple(names)), options={"foo_bar": 2, "limit_mm_per_prompt.video": 0})
    assert (finding.severity, finding.remedy) == ("error", "Leave it out")
    assert "vLLM 0.99.0 has no option --foo-bar" in finding.found


def test_an_engine_that_lists_nothing_is_a_warning():
    (finding,) = judged(Answer("0.99.0"))
    assert finding.severity == "warning"


def test_an_image_whose_name_tells_nothing_is_asked_whether_it_has_a_known_hole():
    (finding,) = judged(Answer("0.33.0", (), "12.9"))
    assert "(CUDA 12.9) is made for CUDA 12" in finding.found and finding.severity == "warning"
    assert judged(Answer("0.33.0", (), "13.0")) == []
    (finding,) = judged(Answer("0.17.1", tuple(option_tables.load("vllm", "0.33.0").options)))
    assert "CVE-2026-27893" in finding.found and finding.severity == "warning"


def test_an_image_without_the_engine():
    (finding,) = judged(Answer(""))
    assert "it has no vLLM" in finding.found and finding.severity == "error"


def test_a_node_that_was_not_asked_says_nothing():
    assert unknown_versions.judge(plans(), {"spark1": {}}) == []
    documents = {host: item.as_dict() for host, item in plans(options={"foo": 1}).items()}
    asked = {"spark1": {"engines": {NIGHTLY: {"version": "0.33.0", "options": []}}}}
    result = run_planner("engine_versions", {"plans": documents, "told": asked})
    assert result["failed"] and "no option --foo" in result["msg"] and "nothing was started" in result["msg"]
    assert not run_planner("engine_versions", {"plans": documents, "told": {"spark1": {"skipped": True}}}).get("failed")


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"image": "nvcr.io/nvidia/vllm:26.03-py3"}, ["CVE-2026-27893"]),
        ({"runtime": "venv", "image": "", "requirements": ("vllm==0.13.0",)}, ["CVE-2026-27893", "CVE-2026-22778"]),
        ({"engine": "sglang", "image": "lmsysorg/sglang:v0.5.9"}, ["CVE-2026-3059"]),
        ({"engine": "sglang", "image": "lmsysorg/sglang:v0.5.10"}, []),
        ({"engine": "tensorrt-llm", "image": "nvcr.io/nvidia/tensorrt-llm/release:0.18.1"}, ["CVE-2025-23254"]),
        ({"image": "vllm/vllm-openai:v0.18.0"}, []),
        ({"image": NIGHTLY}, []),
        *(({"engine": kind.name, "image": kind.image}, []) for kind in registry.ENGINES.values()),
    ],
)
def test_a_version_with_a_known_hole_is_named_with_the_first_one_without(settings, names):
    found = [item for item in made(**settings).findings if "known hole" in item.found]
    assert [
        name
        for item in found
        for name in ("CVE-2026-27893", "CVE-2026-22778", "CVE-2026-3059", "CVE-2025-23254")
        if name in item.found
    ] == names
    assert all(item.severity == "warning" and "or newer" in item.remedy for item in found)
