# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.action import engine_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import report as engine_report
from fabric_rates import fabric
from module_runner import action

REQUIREMENTS = ["vllm==0.33.0", "ray[default]==2.60.0"]


def fact(rank, count, state="applied"):
    return replace(fabric(count)[f"spark{rank + 1}"], state=state).as_dict()


def plan(hosts, check=False, **variables):
    """``variables``: of the role engine, without ``engine_``, or any by its name."""
    given = {"recipe": "qwen3-235b-a22b-gptq-int4", "venv_requirements": REQUIREMENTS, **variables}
    named = {name if name.startswith(("ray_", "spark_")) else f"engine_{name}": value for name, value in given.items()}
    return action(engine_plan, {"variables": named}, check=check).run(
        task_vars={"groups": {"sparks": list(hosts)}, "hostvars": hosts}
    )


def test_from_this_runs_fabric_and_preflight():
    node = {"node": {"memory": {"total": 121 * 1024**3}}}
    result = plan({f"spark{rank + 1}": {"spark_fabric": fact(rank, 2), "spark_node_info": node} for rank in range(2)})
    assert not result.get("failed")
    assert not result["changed"]
    assert set(result["plans"]) == {"spark1", "spark2"}
    assert json.loads(json.dumps(result["plans"])) == result["plans"]
    assert not result["plans"]["spark1"]["here"][0]["memory"]["assumed"]
    assert result["summary"][0].startswith("Fits: ")


def test_a_command_of_a_recipe_is_planned_by_what_it_took():
    recipe = Path(__file__).resolve().parents[4] / "tests/lab/recipes/own-command.yml"
    asked = {"recipe": str(recipe), "allow": ["command"], "mount_directories": ["/opt/sparkmatrix"]}
    hosts = {f"spark{rank + 1}": {"spark_fabric": fact(rank, 2)} for rank in range(2)}
    first = plan(hosts, **asked)
    image = first["plans"]["spark1"]["here"][0]["image"]
    assert "not known before its first start" in first["summary"][0] and image.startswith(
        "sparkmatrix/own-command:own-"
    )
    assert "no batch job is written" in first["sbatch"]["refused"]
    taken = [{"recipe": "own-command", "image": image, "nodes": 2, "took": 80 * 1024**3}]
    for variables in hosts.values():
        variables["spark_node_info"] = {"node": {"taken": taken}}
    second = plan(hosts, **asked)
    assert "80.0 GiB of each machine, measured when it served" in second["summary"][0]
    marks = [made["plans"]["spark1"]["here"][0]["config_hash"] for made in (first, second)]
    assert marks[0] == marks[1]


def test_from_the_file_of_an_earlier_run():
    result = plan(
        {f"spark{rank + 1}": {"spark_node_info": {"node": {"memory": {}}, "fact": fact(rank, 2)}} for rank in range(2)}
    )
    assert result["plans"]["spark2"]["here"][0]["role"] == "worker"


def test_ray_options_reach_the_plan():
    hosts = {f"spark{rank + 1}": {"spark_fabric": fact(rank, 2)} for rank in range(2)}
    ray = {"ray_port": 7000}
    result = plan(hosts, launch="ray", **ray, venv_path="/data/venv", environment={"A": 1})
    command = result["plans"]["spark1"]["ray"]["command"]
    assert command["program"][0] == "/data/venv/bin/ray"
    argv = command["options"]
    assert argv[argv.index("--port") + 1] == "7000"
    assert result["plans"]["spark1"]["ray"]["env"]["A"] == "1"


def test_a_planned_fabric_is_enough_in_check_mode_only():
    hosts = {f"spark{rank + 1}": {"spark_fabric": fact(rank, 2, "planned")} for rank in range(2)}
    assert plan(hosts, check=True)["plans"]
    result = plan(hosts)
    assert result["failed"]
    assert "not 'applied'" in result["msg"]


@pytest.mark.parametrize(("cages", "made"), [([1], "script"), ("auto", "refused")])
def test_a_batch_script_says_what_it_assumes_or_asks(cages, made):
    result = plan({name: {"fabric_cages": cages} for name in ("spark1", "spark2")}, plan_only=True)
    assert made in result["sbatch"] and result["plans"]
    if made == "script":
        assert "# spark2: enp1s0f1np1 192.168.100.11\n" in result["sbatch"]["script"]
        assert "spark2: enp1s0f1np1 192.168.100.11" in result["sbatch"]["assumed"]


def test_computed_prompts_are_kept_by_a_service_and_not_by_a_batch_job():
    hosts = {"spark1": {"spark_fabric": fact(0, 1)}}
    kept, plain = (plan(hosts, recipe="qwen3-8b", prefix_cache_gb=gb) for gb in (100, 0))
    assert kept["plans"]["spark1"]["here"][0]["prefixes"]["disk_gb"] == 100
    assert "-e engine_prefix_cache_gb=0" in kept["sbatch"]["refused"] and "script" in plain["sbatch"]


def test_variables_of_the_fabric_are_read_as_a_role_reads_them():
    """Text, as -e gives it; what is of another type is refused, and the plan is made all the same."""
    given = {"fabric_cages": [0], "fabric_host_offset": "20", "fabric_mtu": "1500"}
    result = plan(dict.fromkeys(("spark1", "spark2"), given), plan_only=True)
    assert "# spark2: enp1s0f0np0 192.168.100.21\n" in result["sbatch"]["script"]
    for wrong in ({"fabric_addresses": "x"}, {"fabric_mtu": "large"}, {"fabric_environment": [1]}):
        result = plan({"spark1": given, "spark2": {**given, **wrong}}, plan_only=True)
        assert result["plans"] and f"spark2: {next(iter(wrong))} " in result["sbatch"]["refused"]


def test_everything_that_is_wrong_at_once():
    hosts = {"spark1": {"spark_fabric": fact(0, 2)}, "spark2": {}, "spark3": {"spark_fabric": "torn"}}
    result = plan(hosts, recipe="qwen3-9b")
    assert result["failed"]
    for part in ("spark2", "there is no fabric fact", "not valid JSON", "there is no recipe 'qwen3-9b'"):
        assert part in result["msg"]
    assert "plans" not in result


def test_a_plan_without_machines():
    result = plan({"spark1": {}, "spark2": {"spark_fabric": "torn"}}, plan_only=True)
    assert set(result["plans"]) == {"spark1", "spark2"}
    assert result["summary"][-2:] == [engine_report.ASSUMED, engine_report.MORE]
    assert result["plans"]["spark1"]["here"][0]["memory"]["assumed"]


def test_the_models_own_files(tmp_path):
    hosts = {f"spark{rank + 1}": {"spark_fabric": fact(rank, 2)} for rank in range(2)}
    result = plan(hosts, model_files=str(tmp_path))
    assert result["failed"]
    assert "config.json: it cannot be read" in result["msg"]
    config = {"num_hidden_layers": 4, "num_attention_heads": 8, "hidden_size": 256}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 4000}}))
    assert plan(hosts, model_files=str(tmp_path))["plans"]["spark1"]["here"][0]["memory"]["weights"] == 2000


def test_several_services_are_refused_all_at_once():
    hosts = {f"spark{rank + 1}": {"spark_fabric": fact(rank, 2)} for rank in range(2)}
    services = [
        {"name": "chat", "nodes": ["spark9"]},
        {"name": "oss", "port": "many"},
        {"name": "none", "recipe": "nowhere"},
        {"name": "empty", "model_files": "/nonexistent"},
    ]
    text = plan(hosts, services=services)["msg"]
    assert "spark9 is no host" in text
    assert "engine_services oss: argument 'port'" in text
    assert "nowhere" in text
    assert "/nonexistent" in text


@pytest.mark.parametrize(
    ("units", "refused"),
    [
        (([], []), True),
        ((["sparkmatrix-engine.service"], []), False),  # a worker of Ray has no unit of the engine
        (([], None), False),  # not read
    ],
)
def test_available_memory_counts_while_no_engine_is_installed(units, refused):
    gib = 1024**3
    hosts = {
        f"spark{rank + 1}": {
            "spark_fabric": fact(rank, 2),
            "spark_node_info": {
                "node": {"memory": {"total": 119 * gib, "available": 60 * gib}, "engine_units": units[rank]}
            }
            if units[rank] is not None
            else {},
        }
        for rank in range(2)
    }
    result = plan(hosts)
    assert bool(result.get("failed")) is refused
    if refused:
        assert "spark2: 60.0 GiB of memory are available and no engine runs there" in result["msg"]
