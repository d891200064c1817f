# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

"""The document that the planner and everybody after it share."""

import json
from pathlib import Path

import jsonschema
import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import plan_document as documents
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import NodePlan
from engine_plans import PLAN, node_plans

SCHEMA = json.loads((Path(__file__).parents[5] / "docs/engine-plan.schema.json").read_text(encoding="utf-8"))
GPTQ = "qwen3-235b-a22b-gptq-int4"
PLANS = {
    "one node": (1, "qwen3-8b", {}),
    "over Ray": (4, GPTQ, {"launch": "ray"}),
    "over Ray in containers": (2, GPTQ, {"launch": "ray", "runtime": "container", "image": "x/y:v0.33.0"}),
    "native": (2, GPTQ, {"launch": "native"}),
    "over MPI": (2, "llama-3.1-70b-fp8", {"engine": "tensorrt-llm"}),
    "sglang": (2, GPTQ, {"engine": "sglang"}),
}


@pytest.mark.parametrize(("count", "recipe", "settings"), PLANS.values(), ids=PLANS)
def test_real_plans_keep_to_the_schema(count, recipe, settings):
    for plan in node_plans(count, recipe, **settings).values():
        text = json.dumps(plan.as_dict())
        jsonschema.validate(json.loads(text), SCHEMA)
        assert documents.load(json.loads(text)) == plan
        # What is a file's text is made from it, and not in it.
        assert "[Service]" not in text and "container_name" not in text and "env_file" not in text


def test_a_node_without_a_service():
    idle = NodePlan("spark1")
    jsonschema.validate(idle.as_dict(), SCHEMA)
    assert documents.load(idle.as_dict()) == idle
    assert (idle.here, idle.heads, idle.ray.needed, idle.mpi.role) == ((), (), False, "")


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (None, "there is no engine plan"),
        ({}, "there is no engine plan"),
        ("torn", "the engine plan is no mapping"),
        ({**PLAN.as_dict(), "schema": 0}, "made by another release: it has schema 0, this one reads 1"),
        ({"role": "head", "engine": {}}, "it has schema none"),
        ({**PLAN.as_dict(), "role": "idle"}, r"is damaged \(unknown keys: role\)"),
        ({"schema": 1, "host": "a", "mpi": {"role": "boss"}}, "mpi.role is 'boss', expected one of '', 'head'"),
    ],
)
def test_what_is_no_plan_is_refused_with_words(values, found):
    with pytest.raises(SparkError, match=found) as refused:
        documents.load(values)
    assert "site.yml" in refused.value.remedy
