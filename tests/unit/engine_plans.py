# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Engine plans of real recipes, for tests of whoever reads them."""

from __future__ import annotations

from dataclasses import replace

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import plan as engine_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import recipe as engine_recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import services as engine_services
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.user_settings import UserSettings

REQUIREMENTS = GPU = ("vllm==0.33.0", "ray[default]==2.60.0")

# Of somebody else.
FOREIGN = {
    "model": "somebody/small",
    "architecture": {"layers": 36, "attention_heads": 32, "kv_heads": 8, "head_dim": 128},
    "weights_gb": 16,
    "context": 4096,
    "concurrency": 2,
}


def required(recipe, findings):
    """What parse() and find() return, where a test needs the recipe."""
    assert recipe, findings
    return recipe


def foreign(values, count=1, **settings):
    """What planning says of a recipe of somebody else with these values, refused or not."""
    made = required(*engine_recipe.parse({**FOREIGN, **values}, "foreign.yml", "foreign"))
    facts = engine_plan.assumed_facts([f"spark{number + 1}" for number in range(count)])
    return engine_plan.plan(made, facts, UserSettings(**{"requirements": REQUIREMENTS, **settings}), {})


def node_plans(count=1, recipe="qwen3-8b", **settings):
    """By host."""
    found = required(*engine_recipe.find(recipe, ()))
    facts = engine_plan.assumed_facts([f"spark{number + 1}" for number in range(count)])
    made = engine_plan.plan(
        found, facts, UserSettings(**{"requirements": REQUIREMENTS, "only_print": True, **settings}), {}
    )
    assert made.plans, made.findings
    return made.plans


def cluster_plans(count=2, recipe="qwen3-8b", **settings):
    """By host, as the cluster gets them: with the services that each node is the head of."""
    found = required(*engine_recipe.find(recipe, ()))
    facts = engine_plan.assumed_facts([f"spark{number + 1}" for number in range(count)])
    given = UserSettings(**{"requirements": REQUIREMENTS, "only_print": True, **settings})
    entry = engine_services.Entry(engine_services.ALONE, (), 1.0, {})
    made = engine_services.plan([engine_services.Service(entry, found, given)], facts, {})
    assert made.plans, made.findings
    return made.plans


# --- a large model, the machines, and what a user asks of them

GIB = 1024**3


def recipe(**values):
    document = {
        "model": "someone/big",
        "architecture": {"layers": 94, "attention_heads": 64, "kv_heads": 4, "head_dim": 128},
        "weights_gb": 125,
        "context": 32768,
        "concurrency": 8,
        **values,
    }
    return required(*engine_recipe.parse(document, "big.yml", "big"))


def facts(count, **values):
    return {
        f"spark{rank + 1}": FabricFact(
            **{
                "host": f"spark{rank + 1}",
                "state": "applied",
                "topology": "switch" if count > 1 else "single",
                "transport": "rdma",
                "rank": rank,
                "nodes": count,
                "management_address": f"10.0.0.{rank + 1}",
                "cluster_address": f"192.168.100.{rank + 10}",
                "cluster_interface": "enp1s0f0np0",
                "environment": {"NCCL_SOCKET_IFNAME": f"if{rank}", "NCCL_IB_HCA": f"hca{rank}"},
                **values,
            }
        )
        for rank in range(count)
    }


def over_ray(**values):
    """As the shipped inventories have it, unless ``values`` say otherwise."""
    return UserSettings(**{"requirements": GPU, "launch": "ray", **values})


def made(count=4, settings=None, memory=None, **values):
    return engine_plan.plan(recipe(**values), facts(count), settings or over_ray(), memory or {})


PLAN = node_plans()["spark1"]


def with_service(plan=PLAN, **values):
    """The plan with other values in its first service."""
    return replace(plan, here=(replace(plan.here[0], **values), *plan.here[1:]))
