# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The models of all nodes together: what a plan reads, and what is refused before anything is stopped."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import inputs as found_inputs
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.image import Found
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import (
    Image,
    Model,
    NodePlan,
    Unknown,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import images, inputs
from engine_plans import node_plans, with_service
from planning import plan as run_planner

PLANS = node_plans(2, model="/models/a")
NOTHING = {"changed": False, "environments": {}, "models": []}


def seen(signature="0a", where="files", problem="", name="/models/a"):
    return found_inputs.Model(name, where, signature, problem, "Copy it")


def judge(one, other, plans=PLANS):
    return inputs.judge(plans, {"spark1": [one], "spark2": [other]})


def test_the_same_everywhere():
    assert judge(seen(), seen()) == []


def test_each_node_that_lacks_it_is_named():
    findings = judge(seen("", problem="it has no config.json"), seen("", problem="there is nothing at this path"))
    assert [(f.host, f.severity) for f in findings] == [("spark1", "error"), ("spark2", "error")]
    assert str(findings[1]) == "spark2: model /models/a: there is nothing at this path. Copy it."


@pytest.mark.parametrize(("where", "severity"), [("files", "error"), ("cache", "warning")])
def test_different_files(where, severity):
    (finding,) = judge(seen("0a", where), seen("0b", where))
    assert finding.severity == severity
    assert "spark1 0a, spark2 0b" in finding.host
    assert "is not the same on these nodes" in finding.found


def test_services_without_a_common_rank_may_read_different_files():
    alone = {"spark1": node_plans(1)["spark1"]}
    name = alone["spark1"].here[0].models[0].name
    assert judge(seen(name=name), seen("0b", name=name), {**alone, "spark2": NodePlan("spark2")}) == []


def test_what_a_plan_reads():
    (model,) = PLANS["spark2"].here[0].models
    assert (model.name, model.revision, model.contained) == ("/models/a", "", False)
    assert model.environment["HF_HUB_OFFLINE"] == "1"
    by_name = {one.name: one for one in node_plans(1)["spark1"].here[0].models}
    assert set(by_name) == {"Qwen/Qwen3-8B"}
    assert by_name["Qwen/Qwen3-8B"].environment["HF_HOME"]
    drafted = node_plans(2, recipe="llama-3.1-70b-fp8-eagle3")["spark1"].here[0].models
    assert len(drafted) == 2
    draft = {"method": "eagle3", "model": "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B", "revision": "abc"}
    own = node_plans(2, recipe="llama-3.1-70b-fp8-eagle3", options={"speculative-config": draft})["spark1"].here[0]
    assert Model(draft["model"], "abc", own.models[0].environment) in own.models


@pytest.mark.parametrize(
    ("version", "fabric", "told"),
    [
        ("2.28.9", {"NCCL_NET": "IB"}, "2.29.3 or newer"),
        ("2.29.3", {"NCCL_NET": "IB"}, ""),
        ("2.30.4", {"NCCL_NET": "IB", "NCCL_IB_SUBNET_AWARE_ROUTING": "1"}, "2.30.7 or newer"),
        ("2.28.9", {"NCCL_NET": "Socket"}, ""),
        ("", {"NCCL_NET": "IB"}, ""),
    ],
)
def test_an_image_with_an_old_nccl(version, fabric, told):
    plans = {
        host: with_service(plan, image="x", engine=replace(plan.here[0].engine, env=fabric))
        for host, plan in node_plans(2, runtime="container").items()
    }
    findings = images.judge(plans, dict.fromkeys(plans, Found(nccl={"x": version} if version else {})))
    assert [f.severity for f in findings] == (["warning"] if told else [])
    assert told in "".join(map(str, findings))
    assert not told or findings[0].host == "spark1, spark2"


@pytest.mark.parametrize("part", [{}, {"images": (Image("x"),)}, {"unknown": (Unknown("x", True, (), ()),)}])
def test_it_says_for_all_nodes_whether_any_has_images_or_unknown_versions(part):
    """So that none of them has to ask all others."""
    plans = {**PLANS, "spark2": replace(PLANS["spark2"], **part)}
    told = dict.fromkeys(plans, NOTHING)
    result = run_planner("engine_inputs", {"plans": {h: p.as_dict() for h, p in plans.items()}, "seen": told})
    assert (result["images"], result["unknown"]) == ("images" in part, "unknown" in part)


def test_all_nodes_are_refused_at_once():
    lacking = document.plain(seen("", problem="there is nothing at this path"))
    told = {"spark1": NOTHING, "spark2": {**NOTHING, "models": [lacking]}}
    result = run_planner("engine_inputs", {"plans": {h: p.as_dict() for h, p in PLANS.items()}, "seen": told})
    assert result["failed"]
    assert result["msg"].startswith("The models were refused, and nothing was stopped")
    assert "spark2: model /models/a: there is nothing at this path" in result["msg"]
