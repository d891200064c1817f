# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What lies on a node for a service."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import engine_json
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import rank as engine_rank
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Container, NodePlan
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.pulse import BEAT_S, STALE_S, WATCHDOG_S
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import option_tables as tables
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render import service_files as render_files
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render.service_files import Marks, Settings
from engine_plans import PLAN, node_plans, with_service

ENGINE = "/etc/systemd/system/sparkmatrix-engine.service"
KEEPER = "/etc/systemd/system/sparkmatrix-keeper.service"
MARKS = Marks("f00", {"": "sha256:abc", "x/y:v0.33.0": "sha256:abc"}, "feed")


def plans(count=2, recipe="qwen3-235b-a22b-gptq-int4", **settings):
    return node_plans(count, recipe, **settings)


def make(plan, marks=MARKS, **settings):
    return render_files.make(plan.here[0], plan.ray, Settings(**settings), marks)


CASES = {
    "ray": ({"launch": "ray"}, [ENGINE, KEEPER, "engine.env", "vllm/ray_non_carry_over_env_vars.json"], []),
    "native": (
        {"launch": "native"},
        [ENGINE, KEEPER, "engine.env", "vllm/ray_non_carry_over_env_vars.json"],
        [ENGINE, "engine.env", "vllm/ray_non_carry_over_env_vars.json"],
    ),
    "container": (
        {"launch": "native", "runtime": "container", "image": "x/y:v0.33.0"},
        [
            ENGINE,
            KEEPER,
            "engine.env",
            "engine/compose.yml",
            "engine/nccl.conf",
            "vllm/ray_non_carry_over_env_vars.json",
        ],
        [ENGINE, "engine.env", "engine/compose.yml", "engine/nccl.conf", "vllm/ray_non_carry_over_env_vars.json"],
    ),
    "ray in containers": (
        {"launch": "ray", "runtime": "container", "image": "x/y:v0.33.0"},
        [
            ENGINE,
            KEEPER,
            "engine.env",
            "engine/compose.yml",
            "engine/nccl.conf",
            "vllm/ray_non_carry_over_env_vars.json",
        ],
        [],
    ),
}


@pytest.mark.parametrize(("settings", "head", "worker"), CASES.values(), ids=CASES)
def test_files_of_head_and_worker(settings, head, worker):
    made = plans(**settings)
    for host, wanted in (("spark1", head), ("spark2", worker)):
        paths = {path if path.startswith("/") else f"/etc/sparkmatrix/{path}" for path in [*wanted, "engine.json"]}
        assert set(make(made[host]).files) == paths


@pytest.mark.parametrize(("settings", "_head", "_worker"), CASES.values(), ids=CASES)
def test_the_node_tool_reads_the_description(settings, _head, _worker):
    for plan in plans(**settings).values():
        made = make(plan)
        ranks = engine_rank.of(engine_json.parse(json.loads(made.files["/etc/sparkmatrix/engine.json"])))
        assert ranks.engine == ("sparkmatrix-engine.service" if plan.here[0].engine.runs_here else "")
        assert bool(ranks.config_hash) == plan.here[0].engine.runs_here
        if ranks.config_hash:
            assert made.files[ENGINE].endswith(f"\nEnvironment=SPARKMATRIX_CONFIG_HASH={ranks.config_hash}\n")


def test_a_unit_in_full():
    plan = plans(1, "qwen3-8b")["spark1"]
    text = make(plan, sandbox=False).files[ENGINE]
    command = " ".join(plan.here[0].engine.command.words)
    wanted = f"""\
# Managed by sparkmatrix.cluster (role engine). The last line changes with everything that needs a restart.
[Unit]
Description=vllm serving qwen3-8b
Documentation=https://docs.vllm.ai/
Wants=network-online.target
After=network-online.target
Wants=sparkmatrix-drop-caches.service sparkmatrix-gpu-devices.service
After=sparkmatrix-drop-caches.service sparkmatrix-gpu-devices.service
# Started, counted and restarted by sparkmatrix-keeper.service, together with the other ranks; so not at boot either.
StartLimitIntervalSec=0

[Service]
Type=exec
User=sparkmatrix
Group=sparkmatrix
# What it listens on is known, and closed to strangers, by this.
Slice=sparkmatrix-engine.slice
WorkingDirectory=/var/lib/sparkmatrix/home
EnvironmentFile=/etc/sparkmatrix/engine.env
EnvironmentFile=/etc/sparkmatrix/engine-key.env
ExecStart={command}
# vLLM's main process ends its children itself; what is left after it is killed.
KillMode=mixed
TimeoutStopSec=60
PrivateTmp=yes
# Shared memory that killed processes left; done when the last service of this user has stopped.
RemoveIPC=yes
Restart=no
LimitMEMLOCK=infinity
LimitNOFILE=65536
Environment=SPARKMATRIX_CONFIG_HASH="""
    assert text[:-13] == wanted


def test_a_keeper_that_hangs_is_ended():
    lines = make(plans()["spark1"]).files[KEEPER].splitlines()
    assert {"Type=notify", "WatchdogSec=30", "WatchdogSignal=SIGKILL", "Restart=always", "MemoryMax=1G"} <= set(lines)
    # It has lost several signs of life by then, and `status` has told of them.
    assert 3 * BEAT_S < STALE_S < WATCHDOG_S


def test_over_ray_the_engine_goes_with_ray():
    made = plans(launch="ray")
    text = make(made["spark1"]).files[ENGINE]
    assert "\nPartOf=sparkmatrix-ray.service\n" in text
    assert make(made["spark1"]).description["units"] == ["sparkmatrix-ray.service", "sparkmatrix-engine.service"]
    worker = make(made["spark2"])
    assert worker.description["units"] == ["sparkmatrix-ray.service"]
    assert not worker.keeper_hash
    assert make(made["spark1"]).description["ray"]["address"] == "192.168.100.10:6379"


def test_only_the_head_reads_the_key():
    made = plans(launch="native")
    assert "engine-key.env" in make(made["spark1"]).files[ENGINE]
    assert "engine-key.env" not in make(made["spark2"]).files[ENGINE]


def test_a_worker_in_a_container_gets_less_time():
    made = plans(launch="native", runtime="container", image="x/y:v0.33.0")
    for host, seconds in (("spark1", 60), ("spark2", 5)):
        text = make(made[host]).files[ENGINE]
        assert f"compose.yml down --timeout {seconds}\n# The container" in text
        assert "TimeoutStopSec=75\n" in text


def test_settings(tmp_path):
    environment = tmp_path / "engine.env"
    environment.write_text('OPENSSL_CONF="/tmp/x.cnf"\n')
    plan = plans(1, "qwen3-8b")["spark1"]
    made = make(plan, login_environment=True, user="me", keeper={"hang_s": 7})
    assert "User=me\n" in made.files[ENGINE]
    login = made.files["/etc/profile.d/sparkmatrix-engine.sh"]
    assert ". /etc/sparkmatrix/engine.env\n" in login
    for uid, seen in ((0, ""), (1000, "/tmp/x.cnf")):
        script = login.replace("/etc/sparkmatrix/engine.env", str(environment)).replace("$(id -u)", str(uid))
        argv = ["sh", "-c", f"{script}echo $OPENSSL_CONF"]
        assert subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip() == seen
    assert made.description["keeper"]["hang_s"] == 7


@pytest.mark.parametrize(
    ("marks", "rank", "keeper"),
    [
        (replace(MARKS, key="other"), True, True),
        (replace(MARKS, images={"": "sha256:other"}), True, True),
        (replace(MARKS, tool="other"), False, True),  # new code is no reason to restart ranks
    ],
)
def test_what_needs_a_restart(marks, rank, keeper):
    plan = plans(1, "qwen3-8b")["spark1"]
    before, after = make(plan), make(plan, marks)
    assert (before.description["config_hash"] != after.description["config_hash"]) is rank
    assert (before.keeper_hash != after.keeper_hash) is keeper
    assert make(plan).files == before.files


def test_everything_that_a_rank_reads_needs_a_restart():
    contained = {"runtime": "container", "image": "x/y:v0.33.0"}
    engine = PLAN.here[0].engine
    changes = [
        {"engine": replace(engine, env={**engine.env, "NCCL_DEBUG": "INFO"})},
        {"engine": replace(engine, files={"/etc/sparkmatrix/options.yml": "a: 1"})},
        {"engine": replace(engine, command=replace(engine.command, options=("--port", "1")))},
        {"venv": replace(PLAN.here[0].venv, requirements=("vllm==0.33.1",))},
        contained,
        {**contained, "container": Container(nofile="4096")},
    ]
    made = [make(PLAN), *(make(with_service(**change)) for change in changes)]
    assert len({each.description["config_hash"] for each in made}) == len(made)
    # How much memory was measured is no reason.
    measured = with_service(memory=replace(PLAN.here[0].memory, total=1))
    assert make(measured).description["config_hash"] == made[0].description["config_hash"]


def test_several_services_have_names_of_their_own():
    plan = plans(1, "qwen3-8b", instance="chat")["spark1"]
    made = make(plan)
    assert made.description["unit"] == "sparkmatrix-engine-chat.service"
    assert made.description["instance"] == "chat"
    text = made.files["/etc/systemd/system/sparkmatrix-keeper-chat.service"]
    assert "sparkmatrix-node keep --config /etc/sparkmatrix/engine-chat.json\n" in text
    assert not {ENGINE, KEEPER, "/etc/sparkmatrix/engine.json", "/etc/sparkmatrix/engine.env"} & set(made.files)


def test_an_engine_beside_ray_in_another_container():
    made = make(plans(launch="ray", runtime="container", image="x/y:v0.33.0")["spark1"])
    unit = made.files[ENGINE]
    for word in ("Requires", "PartOf", "After"):
        assert f"\n{word}=sparkmatrix-ray.service\n" in unit
    assert "JoinsNamespaceOf" not in unit
    # The keeper counts Ray's nodes where Ray is.
    ray = made.description["ray"]
    assert (ray["python"], ray["container"]) == ("python3", "sparkmatrix-ray")
    assert made.description["units"] == ["sparkmatrix-ray.service", "sparkmatrix-engine.service"]
    assert make(plans()["spark1"]).description["ray"]["container"] == ""


def test_all_services_of_a_node():
    one, two = (plans(1, "qwen3-8b", instance=name, port=port)["spark1"] for name, port in (("a", 8000), ("b", 8001)))
    made = render_files.node(replace(one, here=(*one.here, *two.here)), Settings(login_environment=True), MARKS)
    assert [keeper["unit"] for keeper in made.keepers] == [
        "sparkmatrix-keeper-a.service",
        "sparkmatrix-keeper-b.service",
    ]
    assert set(made.units) == {f"sparkmatrix-{kind}-{name}.service" for kind in ("engine", "keeper") for name in "ab"}
    assert ". /etc/sparkmatrix/engine-a.env" in made.files["/etc/profile.d/sparkmatrix-engine.sh"]
    assert made.keepers[1]["description"] == "/etc/sparkmatrix/engine-b.json"


def test_a_node_without_a_service():
    made = render_files.node(NodePlan("spark1"), Settings(), MARKS)
    assert (made.files, made.units, made.keepers) == ({}, [], [])


def test_the_key_is_a_matter_of_the_head():
    worker = plans(launch="native")["spark2"]
    assert make(worker).files == make(worker, replace(MARKS, key="other")).files


def marks_of(recipe="qwen3-8b", **settings):
    made = make(next(iter(node_plans(1, recipe, **settings).values()))).description
    return made["numbers"], made["pace"]


def test_an_update_of_version_or_image_is_compared_and_other_options_are_what_they_are():
    """Golden answers are of the same numbers, or of the same speed, where these are the same."""
    numbers, pace = marks_of()
    assert marks_of(requirements=("vllm==0.32.0",)) == (numbers, pace)
    assert marks_of(runtime="container", image="x/y:v0.33.0")[0] == numbers
    assert marks_of(options={"kv-cache-dtype": "fp8"})[0] != numbers
    eager = marks_of(options={"enforce-eager": True})
    assert eager[0] == numbers and eager[1] != pace
    newest = [tables.newest(name, "") for name in ("vllm", "sglang", "tensorrt-llm")]
    known = {option for table in newest for option in (*table.options, *table.aliases)}
    assert {f"--{name}" for name in render_files.CHANGE_NUMBERS} <= known
