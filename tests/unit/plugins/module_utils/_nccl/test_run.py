# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import TIMED_OUT, Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Mount, NodePlan, RayPlan
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fact as fabric_fact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._nccl import run
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._nccl.run import (
    Account,
    Part,
    Program,
    argv,
    look,
    measure,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.plan import Settings, plan
from engine_plans import node_plans, with_service
from fabric_inputs import wired

ENVIRONMENT = {"NCCL_NET": "IB", "NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/tmp/x", "NCCL_SOCKET_IFNAME": "=enP7s7"}
VENV = Program("/opt/sparkmatrix/engine/bin/python", environment=ENVIRONMENT, home="/var/lib/sparkmatrix/home")
ACCOUNT = Account("sparkmatrix")
MOUNTS = (Mount("/a", "/b", True, ""), Mount("/c", "/d", False, ""))
PLAN = node_plans(2)["spark1"]
PART = Part(0, 2, "192.168.100.10:29562", 2**20, 2**32, 600)


def machine(tmp_path: Path, active: Sequence[str] = ()) -> tuple[Machine, list[list[str]]]:
    called: list[list[str]] = []

    def runner(words: Sequence[str]) -> Completed:
        called.append(list(words))
        return Completed(0 if words[-1] in active else 3)

    return Machine(root=str(tmp_path), runner=runner), called


def test_a_unit_of_the_engines_slice_in_its_environment() -> None:
    words = argv(PART, VENV, ACCOUNT)
    assert words[:5] == ["systemd-run", "--quiet", "--pipe", "--wait", "--collect"]
    options, program = words[: words.index("--")], words[words.index("--") + 1 :]
    assert {"--slice=sparkmatrix-engine.slice", "--uid=sparkmatrix", "--property=RuntimeMaxSec=600"} < set(options)
    assert "--property=LimitMEMLOCK=infinity" in options
    assert [word for word in options if word.startswith("--setenv=NCCL")] == [
        "--setenv=NCCL_DEBUG=INFO",
        "--setenv=NCCL_NET=IB",
        "--setenv=NCCL_SOCKET_IFNAME==enP7s7",
    ]
    assert program[:2] == ["/opt/sparkmatrix/engine/bin/python", "-c"]
    told = json.loads(program[3])
    assert (told["rank"], told["ranks"], told["store"], told["timeout"]) == (0, 2, "192.168.100.10:29562", 180)
    compile(program[2], "collectives", "exec")
    assert not {"$", "%"} & set(program[2]), "systemd would put variables and specifiers there"
    assert len(program[2]) < 16384, "a word of a command line has 128 KiB, and people read it in journals"


@pytest.mark.parametrize(
    ("image", "start"),
    [
        ("vllm/vllm-openai:v0.33.0", ["--entrypoint", "python3", "vllm/vllm-openai:v0.33.0", "-c"]),
        ("nvcr.io/nvidia/vllm:26.10", ["nvcr.io/nvidia/vllm:26.10", "python3", "-c"]),
    ],
)
def test_a_container_that_goes_with_its_unit(image: str, start: Sequence[str]) -> None:
    program = Program("python3", image, "all", ("/dev/infiniband",), MOUNTS, ENVIRONMENT)
    words = argv(PART, program, ACCOUNT)
    (stop,) = [word for word in words if word.startswith("--property=ExecStopPost=")]
    assert "/usr/bin/docker rm --force sparkmatrix-nccl >/dev/null" in stop, "its words would hide why the test failed"
    assert not [word for word in words if word.startswith("--uid")]
    docker = words[words.index("docker") :]
    assert docker[:2] == ["docker", "run"]
    text = " ".join(docker)
    assert "--mount type=bind,source=/a,target=/b,readonly --mount type=bind,source=/c,target=/d " in text
    for option in ("--gpus all", "--device /dev/infiniband", "--ulimit memlock=-1", "--network host", "--pull never"):
        assert option in text
    assert "--env NCCL_DEBUG=INFO" in text
    assert docker[docker.index(start[0]) : docker.index(start[0]) + len(start)] == list(start)


def test_the_program_is_that_of_the_service(tmp_path: Path) -> None:
    planned = node_plans(2)["spark2"]
    found = run.program_of(planned, {"VLLM_HOST_IP": "of the fabric", "OTHER": "of the fabric"})
    assert found.python == f"{planned.here[0].venv.path}/bin/python"
    assert found.environment["OTHER"] == "of the fabric"
    assert found.environment["VLLM_HOST_IP"] == planned.here[0].engine.env["VLLM_HOST_IP"]
    contained = node_plans(2, runtime="container", image="vllm/vllm-openai:v0.33.0")["spark1"]
    found = run.program_of(contained)
    assert (found.image, found.python, found.gpus) == ("vllm/vllm-openai:v0.33.0", "python3", "all")
    assert found.mounts == contained.here[0].mounts
    assert "/etc/nccl.conf" in [mount.target for mount in found.mounts], "images bring one with settings"
    over_ray = replace(with_service(contained, backend="ray"), ray=RayPlan(mounts=MOUNTS))
    assert run.program_of(over_ray).mounts == MOUNTS, "a worker has no files of the engine's own container"
    assert not run.program_of(NodePlan("spark3")).wanted


def test_look(tmp_path: Path) -> None:
    planned = node_plans(2)["spark1"]
    python = tmp_path / f"{planned.here[0].venv.path}/bin/python".lstrip("/")
    node, _called = machine(tmp_path)
    assert look(planned, node) == {"engine": True, "program": False, "busy": [], "available": 0}
    python.parent.mkdir(parents=True)
    python.touch()
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemAvailable:   1024 kB\n")
    node, _called = machine(tmp_path, ["sparkmatrix-engine.service"])
    assert look(planned, node) == {
        "engine": True,
        "program": True,
        "busy": ["sparkmatrix-engine.service"],
        "available": 2**20,
    }


def test_a_container_needs_what_it_mounts_too(tmp_path: Path) -> None:
    """The engine layer has not been run yet, or was undone: Docker would refuse, in words that nobody understands."""
    planned = node_plans(2, runtime="container", image="vllm/vllm-openai:v0.33.0")["spark1"]

    def runner(words: Sequence[str]) -> Completed:
        return Completed(0, json.dumps([{"Id": "sha256:1", "RepoTags": []}])) if words[0] == "docker" else Completed(3)

    node = Machine(root=str(tmp_path), runner=runner)
    assert look(planned, node)["program"] is False
    for mount in planned.here[0].mounts:
        (tmp_path / mount.source.lstrip("/")).mkdir(parents=True, exist_ok=True)
    assert look(planned, node)["program"] is True


def fabric(tmp_path: Path) -> list[Path]:
    """The counters of both halves, with the fact that names them."""
    fact = replace(plan(wired("spark1.0 spark2.0"), Settings()).facts["spark1"], state="applied")
    (place := tmp_path / fabric_fact.FACT_PATH.lstrip("/")).parent.mkdir(parents=True)
    place.write_text(fabric_fact.dump(fact))
    counters = []
    for rail in fact.rails:
        made = tmp_path / f"sys/class/infiniband/{rail.rdma_device}/ports/1/counters"
        made.mkdir(parents=True)
        (made / "port_xmit_data").write_text("100\n")
        (made / "port_rcv_data").write_text("0\n")
        counters.append(made / "port_xmit_data")
    return counters


def test_figures_of_rank_0_and_what_each_half_has_moved(tmp_path: Path, fixtures: Path) -> None:
    counters = fabric(tmp_path)
    text = (fixtures / "nccl/collectives-sockets.txt").read_text()

    def runner(_words: Sequence[str], timeout_s: float) -> Completed:
        assert timeout_s > PART.timeout_s, "systemd ends it first"
        counters[0].write_text("1100\n")
        return Completed(0, text)

    node, called = machine(tmp_path)
    answer = measure(PART, PLAN, ACCOUNT, node, runner)
    assert [one.test for one in answer.results] == ["all_gather", "all_reduce"]
    assert sorted(answer.moved.values()) == [0, 4000]
    assert (answer.rc, answer.trouble, answer.log.transport, called) == (0, "", "NET/Socket", [])
    other = measure(replace(PART, rank=1), PLAN, ACCOUNT, node, lambda *_: Completed(0, ""))
    assert (other.rc, other.results, other.trouble) == (0, (), "")
    assert document.load(run.Answer, json.loads(json.dumps(document.plain(answer)))) == answer


@pytest.mark.parametrize(
    ("name", "trouble"),
    [
        ("no-device", "Failed to initialize any NET plugin"),
        ("rank-killed", "socketProgress: Connection closed by remote peer"),
        ("no-interface", "Bootstrap : no socket interface found"),
        ("rank-missing", "Timed out after 16 seconds waiting for clients. 1/2 clients joined"),
    ],
)
def test_a_run_that_failed_says_why(tmp_path: Path, fixtures: Path, name: str, trouble: str) -> None:
    text = (fixtures / f"nccl/collectives-{name}.txt").read_text()
    fabric(tmp_path)
    node, _called = machine(tmp_path)
    answer = measure(PART, PLAN, ACCOUNT, node, lambda *_: Completed(1, text))
    assert (answer.rc, answer.results, set(answer.moved.values())) == (1, (), {0})
    assert trouble in answer.trouble


def test_what_does_not_end_is_stopped(tmp_path: Path) -> None:
    fabric(tmp_path)
    node, called = machine(tmp_path)
    answer = measure(PART, PLAN, ACCOUNT, node, lambda *_: Completed(TIMED_OUT, "", "no answer"))
    assert called == [["systemctl", "stop", "sparkmatrix-nccl.service"]]
    assert "not done after 600 s" in answer.trouble
    measure(PART, PLAN, ACCOUNT, node, lambda *_: Completed(1, "", "it printed more than 4194304 bytes"))
    assert called == [["systemctl", "stop", "sparkmatrix-nccl.service"]] * 2
