# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A large model, the machines, and what a user asks of them: what goes into an engine plan."""

from __future__ import annotations

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import recipe as engine_recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.plan import plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.user_settings import UserSettings
from engine_plans import required

GPU = ("vllm==0.33.0", "ray[default]==2.60.0")
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
    return plan(recipe(**values), facts(count), settings or over_ray(), memory or {})
