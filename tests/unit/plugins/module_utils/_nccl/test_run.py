# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import TIMED_OUT, Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Mount, NodePlan, RayPlan
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fact as fabric_fact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._nccl import collectives, run
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._nccl.run import (
    Part,
    Program,
    Ready,
    Request,
    argv,
    measure,
    ready,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.plan import plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.types import Settings
from engine_plans import node_plans, with_service
from fabric_inputs import wired

ENVIRONMENT = {"NCCL_NET": "IB", "NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/tmp/x", "NCCL_SOCKET_IFNAME": "=enP7s7"}
VENV = Program("/opt/sparkmatrix/engine/bin/python", environment=ENVIRONMENT, home="/var/lib/sparkmatrix/home")
MOUNTS = (Mount("/a", "/b", True, ""), Mount("/c", "/d", False, ""))
PLAN = node_plans(2)["spark1"]
PART = Part(0, 2, "192.168.100.10:29562", 2**32, 600)
ASKED = Request(PLAN, PART)
TOLD = {
    **{"rank": 0, "ranks": 2, "store": "192.168.100.10:29562", "smallest": 2**20, "largest": 2**32, "factor": 4},
    **{"most": 20, "seconds": 2.0, "tests": ["all_gather", "all_reduce"], "timeout": 180},
}


def machine(tmp_path: Path, active: Sequence[str] = ()) -> tuple[Machine, list[list[str]]]:
    called: list[list[str]] = []

    def runner(words: Sequence[str]) -> Completed:
        called.append(list(words))
        return Completed(0 if words[-1] in active else 3)

    return Machine(root=str(tmp_path), runner=runner), called


def test_a_unit_of_the_engines_slice_in_its_environment() -> None:
    words = argv(ASKED, VENV)
    options, program = words[: words.index("--")], words[words.index("--") + 1 :]
    assert options == [
        *("systemd-run", "--quiet", "--pipe", "--wait", "--collect", "--unit=sparkmatrix-nccl.service"),
        "--slice=sparkmatrix-engine.slice",
        "--property=RuntimeMaxSec=600",
        "--property=LimitMEMLOCK=infinity",
        "--uid=sparkmatrix",
        "--property=WorkingDirectory=/var/lib/sparkmatrix/home",
        "--setenv=NCCL_DEBUG=INFO",
        "--setenv=NCCL_NET=IB",
        "--setenv=NCCL_SOCKET_IFNAME==enP7s7",
        "--setenv=PYTHONUNBUFFERED=1",
    ]
    assert program[:3] == ["/opt/sparkmatrix/engine/bin/python", "-c", inspect.getsource(collectives)]
    assert [json.loads(word) for word in program[3:]] == [TOLD]
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
    words = argv(ASKED, program)
    unit, docker = words[: words.index("--")], words[words.index("--") + 1 :]
    assert unit == [
        *argv(ASKED, VENV)[:9],
        '--property=ExecStopPost=-/bin/sh -c "exec /usr/bin/docker rm --force sparkmatrix-nccl >/dev/null 2>&1"',
    ], "Docker's words would hide why the test failed"
    options, (source, told) = docker[: -len(start) - 2], docker[-2:]
    assert " ".join(options) == (
        "docker run --rm --name sparkmatrix-nccl --pull never --user 0:0 --network host --ipc host --init"
        " --cgroup-parent sparkmatrix-engine.slice --cap-add IPC_LOCK --ulimit memlock=-1 --ulimit stack=67108864"
        " --gpus all --device /dev/infiniband"
        " --mount type=bind,source=/a,target=/b,readonly --mount type=bind,source=/c,target=/d"
        " --env NCCL_DEBUG=INFO --env NCCL_NET=IB --env NCCL_SOCKET_IFNAME==enP7s7 --env PYTHONUNBUFFERED=1"
    )
    assert docker[len(options) : -2] == list(start)
    assert (source, json.loads(told)) == (inspect.getsource(collectives), TOLD)


def test_limits_of_the_user_are_those_of_both() -> None:
    given = Request(PLAN, PART, "other", "8388608")
    assert {"--uid=other", "--property=LimitMEMLOCK=8388608"} < set(argv(given, VENV))
    words = argv(given, Program("python3", "a/b@sha256:12"))
    assert words[words.index("--ulimit") + 1] == "memlock=8388608"
    assert "--property=LimitMEMLOCK=8388608" in words
    assert words[-4] == "a/b:sha256-12", "a name that Docker knows without a registry"


@pytest.mark.parametrize(("timeout_s", "most", "meet"), [(90.5, "90.5", 90.5), (180, "180", 180), (181, "181", 180)])
def test_ranks_wait_for_each_other_no_longer_than_they_run(timeout_s: float, most: str, meet: float) -> None:
    words = argv(Request(PLAN, replace(PART, timeout_s=timeout_s)), VENV)
    assert f"--property=RuntimeMaxSec={most}" in words
    assert json.loads(words[-1])["timeout"] == meet


def test_the_program_is_that_of_the_service() -> None:
    given = {"VLLM_HOST_IP": "of the fabric", "OTHER": "of the fabric"}
    service = node_plans(2)["spark2"].here[0]
    environment = {**service.engine.env, "OTHER": "of the fabric"}
    assert run.program_of(node_plans(2)["spark2"], given) == Program(
        f"{service.venv.path}/bin/python", environment=environment, home="/var/lib/sparkmatrix/home"
    )
    contained = node_plans(2, runtime="container", image="vllm/vllm-openai:v0.33.0")["spark1"]
    service = contained.here[0]
    found = run.program_of(contained, given)
    assert found == Program(
        *("python3", "vllm/vllm-openai:v0.33.0", "all", ("/dev/infiniband",), service.mounts),
        {**service.engine.env, "OTHER": "of the fabric"},
        "/var/lib/sparkmatrix/home",
    )
    assert run.program_of(contained).environment == service.engine.env
    assert "/etc/nccl.conf" in [mount.target for mount in found.mounts], "images bring one with settings"
    over_ray = replace(with_service(contained, backend="ray"), ray=RayPlan(mounts=MOUNTS))
    assert run.program_of(over_ray).mounts == MOUNTS, "a worker has no files of the engine's own container"
    assert not run.program_of(NodePlan("spark3")).wanted


def test_look(tmp_path: Path) -> None:
    planned = node_plans(2)["spark1"]
    python = tmp_path / f"{planned.here[0].venv.path}/bin/python".lstrip("/")
    node, called = machine(tmp_path)
    assert ready(planned, node) == Ready(True, False)
    units = ("sparkmatrix-engine.service", "sparkmatrix-engine-*.service", "sparkmatrix-nccl.service")
    assert called == [["systemctl", "is-active", "--quiet", unit] for unit in units]
    assert ready(NodePlan("spark1"), node) == Ready()
    python.parent.mkdir(parents=True)
    python.touch()
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemAvailable:   1024 kB\n")
    node, _called = machine(tmp_path, ["sparkmatrix-engine.service"])
    assert ready(planned, node) == Ready(True, True, ("sparkmatrix-engine.service",), 2**20)


def test_a_container_needs_what_it_mounts_too(tmp_path: Path) -> None:
    """The engine layer has not been run yet, or was undone: Docker would refuse, in words that nobody understands."""
    planned = node_plans(2, runtime="container", image="vllm/vllm-openai:v0.33.0")["spark1"]

    def runner(words: Sequence[str]) -> Completed:
        return Completed(0, json.dumps([{"Id": "sha256:1", "RepoTags": []}])) if words[0] == "docker" else Completed(3)

    node = Machine(root=str(tmp_path), runner=runner)
    assert not ready(planned, node).program
    for mount in planned.here[0].mounts:
        (tmp_path / mount.source.lstrip("/")).mkdir(parents=True, exist_ok=True)
    assert ready(planned, node).program


def fabric(tmp_path: Path) -> list[Path]:
    """The counters of both halves, with the fact that names them."""
    fact = plan(wired("spark1.0 spark2.0"), Settings()).facts["spark1"]
    fact = replace(fact, state="applied", environment={**fact.environment, "OF": "the fabric"})
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

    def runner(words: Sequence[str], timeout_s: float) -> Completed:
        counters[0].write_text("1100\n")
        assert (timeout_s, "--setenv=OF=the fabric" in words) == (630, True), "systemd ends it first, after 600"
        return Completed(0, text)

    node, called = machine(tmp_path)
    answer = measure(ASKED, node, runner)
    assert [result.test for result in answer.results] == ["all_gather", "all_reduce"]
    assert sorted(answer.moved.values()) == [0, 4000]
    assert (answer.rc, answer.trouble, answer.log.transport, called) == (0, "", "NET/Socket", [])
    other = measure(replace(ASKED, part=replace(PART, rank=1)), node, lambda *_: Completed(0, ""))
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
    answer = measure(ASKED, node, lambda *_: Completed(1, text))
    assert (answer.rc, answer.results, set(answer.moved.values())) == (1, (), {0})
    assert trouble in answer.trouble


def test_what_does_not_end_is_stopped(tmp_path: Path) -> None:
    fabric(tmp_path)
    node, called = machine(tmp_path)
    answer = measure(ASKED, node, lambda *_: Completed(TIMED_OUT, "", "no answer"))
    assert called == [["systemctl", "stop", "sparkmatrix-nccl.service"]]
    assert "not done after 600 s" in answer.trouble
    measure(ASKED, node, lambda *_: Completed(1, "", "it printed more than 4194304 bytes"))
    assert called == [["systemctl", "stop", "sparkmatrix-nccl.service"]] * 2


def test_a_half_that_counts_nothing_is_told_from_one_that_carried_nothing(tmp_path: Path) -> None:
    first, _other = fabric(tmp_path)
    first.unlink()
    node, _called = machine(tmp_path)
    assert sorted(measure(ASKED, node, lambda *_: Completed(0, "")).moved.values()) == [-1, 0]


def test_rank_0_that_printed_no_figures(tmp_path: Path) -> None:
    fabric(tmp_path)
    node, called = machine(tmp_path)
    answer = measure(ASKED, node, lambda *_: Completed(0, "it is done"))
    assert (answer.rc, answer.results, called) == (0, (), [])
    assert answer.trouble == "there is no result in it; it ends with 'it is done'"


def test_without_the_fabric_nothing_is_started(tmp_path: Path) -> None:
    node, called = machine(tmp_path)
    with pytest.raises(SparkError, match=r"^this node /etc/\S+: there is no fabric fact: "):
        measure(ASKED, node, lambda *_: pytest.fail("it was started"))
    assert called == []


LATE = "it was not done after 600 s, or was ended before (exit code {})"


@pytest.mark.parametrize(
    ("rc", "text", "trouble"),
    [
        (1, "a\nValueError: one\n[rank0]: torch.DistBackendError: two\nlast", "torch.DistBackendError: two"),
        (1, "ValueError: one\nLast error:\n[rank0]: it broke \nlast", "it broke"),
        (1, f"Last error:\n{'x' * 241}", "x" * 240),
        (1, "first\nlast\n", "last"),
        (137, "first\nunit: Service reached RuntimeMaxSec= time limit\n", LATE.format(137)),
        (TIMED_OUT, "first\n", LATE.format(TIMED_OUT)),
    ],
)
def test_the_last_that_a_run_said_of_its_failure(tmp_path: Path, rc: int, text: str, trouble: str) -> None:
    fabric(tmp_path)
    node, _called = machine(tmp_path)
    assert measure(ASKED, node, lambda *_: Completed(rc, text)).trouble == trouble
    assert measure(ASKED, node, lambda *_: Completed(rc, "", text)).trouble == trouble


def test_what_a_run_prints_is_limited() -> None:
    assert run._run(["printf", "done"], 60) == Completed(0, "done")
    assert run._run(["sleep", "60"], 0.1).rc == TIMED_OUT
    assert run._run(["head", "-c", str(2**22 + 1), "/dev/zero"], 60).rc != 0
    assert len(run._run(["head", "-c", str(2**22), "/dev/zero"], 60).out) == 2**22
