# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""This node's rank in a test of NCCL: :mod:`.collectives`, in the Python or image and environment of the engine.

It runs in a transient unit, in the slice of the engine: strangers reach none of its ports, and it may lock memory.
systemd ends it with all its processes when its time is over, also where who asked for it is gone by then.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Optional

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import command, document, meminfo
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import TIMED_OUT, Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import (
    Count,
    Flag,
    RdmaDevice,
    Whole,
    Words,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import image, nosuid, plan_document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import GPUS, Mount, NodePlan
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fact as fabric_fact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import traffic
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._firewall.port_filter import SLICE
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._nccl import collectives, log, results
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._nccl.log import Log
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._nccl.results import Results

UNIT = "sparkmatrix-nccl.service"
CONTAINER = "sparkmatrix-nccl"
ENGINES = ("sparkmatrix-engine.service", "sparkmatrix-engine-*.service")
SMALLEST = 2**20  # bytes
# Each size four times the one before, repeated at most 20 times and for at most two seconds.
SIZES = {
    "tests": ["all_gather", "all_reduce"],
    "smallest": SMALLEST,
    "factor": 4,
    "most": 20,
    "seconds": 2.0,
}
MAX_OUTPUT = 4 * 2**20  # bytes
GRACE_S = 30.0  # for systemd to end it
MEET_S = 180.0  # until all ranks are there, and that one operation may take
STACK = 67108864  # bytes; what NVIDIA's images ask for
_ENTRYPOINT_KEPT = "nvcr.io/"  # what these images do before the program has to be done
# What would send NCCL's words elsewhere, or leave the ones out that are read.
_OURS = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": None, "NCCL_DEBUG_SUBSYS": None, "PYTHONUNBUFFERED": "1"}
_LAST = re.compile(r"^(?:\[rank\d+\]: )?([\w.]*(?:Error|Exception)\w*: .*)$", re.MULTILINE)

TimedRunner = Callable[[Sequence[str], float], Completed]


@dataclass(frozen=True)
class Program:
    """What runs the test, from the node's part of the engine plan; empty where that has no engine."""

    python: str = ""
    image: str = ""
    gpus: str = field(default="none", metadata=document.one_of(*GPUS))
    devices: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    home: str = "/"

    @property
    def wanted(self) -> bool:
        return bool(self.python)


@dataclass(frozen=True)
class Part:
    """What this node has to do. ``largest`` in bytes; ``store``: address and port of rank 0, where the ranks meet."""

    rank: int
    ranks: int
    store: str
    largest: int
    timeout_s: float


def _plan(values: Any) -> NodePlan:
    return plan_document.load(values)


Plan = Annotated[NodePlan, _plan]


@dataclass(frozen=True)
class LookRequest:
    plan: Plan


@dataclass(frozen=True)
class Ready:
    """``engine``: whether the plan has one here; ``program``: whether what would run the test is there; ``busy``: units
    that it would disturb; ``available``: bytes of memory that are free."""

    engine: Flag = False
    program: Flag = False
    busy: tuple[Words, ...] = ()
    available: Count = 0


@dataclass(frozen=True)
class Request:
    """``user``: whom a Python environment runs as; a container has its own root. ``memlock``: systemd's word for a
    limit."""

    plan: Plan
    part: Part
    user: str = "sparkmatrix"
    memlock: str = "infinity"


@dataclass(frozen=True)
class Answer:
    """How it went on this node. ``rc``: None where nothing was started. ``results`` are rank 0's. ``moved``: bytes by
    RDMA device, -1 where not counted."""

    rc: Optional[Whole] = None
    results: tuple[Results, ...] = ()
    log: Log = field(default_factory=Log)
    moved: Mapping[RdmaDevice, Whole] = field(default_factory=dict)
    trouble: Words = ""


def program_of(plan: NodePlan, environment: Mapping[str, str] | None = None) -> Program:
    """``environment``: of the fabric, for what the plan leaves open. The service that spans nodes is the first."""
    if not plan.here:
        return Program()
    service = plan.here[0]
    known = {**(environment or {}), **service.engine.env}
    if not service.contained:
        return Program(python=f"{service.venv.path}/bin/python", environment=known, home=service.home)
    given = service.container
    # Ranks over Ray run in Ray's container; that of the engine, with its files, is on the head only.
    mounts = plan.ray.mounts if service.over_ray else service.mounts
    return Program("python3", service.image, given.gpus, given.devices, mounts, known, service.home)


# --- whether this node can -------------------------------------------------------------------------------------------


def look(request: LookRequest, _check: bool) -> Ready:
    return ready(request.plan, Machine())


def ready(plan: NodePlan, machine: Machine) -> Ready:
    wanted = program_of(plan)
    there = machine.exists(wanted.python) if wanted.python and not wanted.image else False
    if wanted.image:
        # Of a mount whose source is missing Docker makes an error, not a container.
        sources = all(machine.exists(mount.source) for mount in wanted.mounts)
        there = sources and bool(image.find(wanted.image, machine.runner).id)
    busy = tuple(unit for unit in (*ENGINES, UNIT) if machine.works("systemctl", "is-active", "--quiet", unit))
    return Ready(wanted.wanted, there, busy, meminfo.read(machine.root).get("MemAvailable", 0))


# --- the test --------------------------------------------------------------------------------------------------------


def argv(request: Request, program: Program) -> list[str]:
    """The unit, and in it the program. Nothing in the environment is secret: what is stands in files."""
    part = request.part
    environment = {name: value for name, value in {**program.environment, **_OURS}.items() if value is not None}
    asked = {name: getattr(part, name) for name in ("rank", "ranks", "store", "largest")}
    told = json.dumps({**asked, **SIZES, "timeout": min(part.timeout_s, MEET_S)})
    words = ["-c", inspect.getsource(collectives), told]
    unit = ["systemd-run", "--quiet", "--pipe", "--wait", "--collect", f"--unit={UNIT}", f"--slice={SLICE}"]
    unit += [f"--property=RuntimeMaxSec={part.timeout_s:g}", f"--property=LimitMEMLOCK={request.memlock}"]
    if not program.image:
        names = [f"--setenv={name}={value}" for name, value in sorted(environment.items())]
        return [
            *unit,
            f"--uid={request.user}",
            f"--property=WorkingDirectory={program.home}",
            *names,
            "--",
            program.python,
            *words,
        ]
    # The container is Docker's child, not the unit's: whatever ends the unit ends it too. Most often it is gone by
    # then, and Docker's words about that must not be the last ones of the output.
    unit += [f'--property=ExecStopPost=-/bin/sh -c "exec /usr/bin/docker rm --force {CONTAINER} >/dev/null 2>&1"']
    run = ["docker", "run", "--rm", "--name", CONTAINER, "--pull", "never", "--user", "0:0", "--network", "host"]
    run += ["--ipc", "host", "--init", "--cgroup-parent", SLICE, "--cap-add", "IPC_LOCK"]
    run += [
        "--ulimit",
        f"memlock={-1 if request.memlock == 'infinity' else request.memlock}",
        "--ulimit",
        f"stack={STACK}",
    ]
    run += [*image.GPUS[program.gpus], *(word for device in program.devices for word in ("--device", device))]
    for mount in program.mounts:
        only = ",readonly" if mount.read_only else ""
        run += ["--mount", f"type=bind,source={mount.source},target={mount.target}{only}"]
    run += [word for name, value in sorted(environment.items()) for word in ("--env", f"{name}={value}")]
    name = image.local_name(program.image)
    if program.image.startswith(_ENTRYPOINT_KEPT):
        return [*unit, "--", *run, name, program.python, *words]
    return [*unit, "--", *run, "--entrypoint", program.python, name, *words]


def _run(words: Sequence[str], timeout_s: float) -> Completed:
    return command.run_limited(words, timeout_s, MAX_OUTPUT)


def test(request: Request, check: bool) -> Answer:
    """Run this node's rank; all nodes have to do it at the same time. One without a result says why.

    Raises:
        SparkError: It cannot even be started.
    """
    return Answer() if check else measure(request, Machine())


def measure(request: Request, machine: Machine, runner: TimedRunner = _run) -> Answer:
    part = request.part
    fact = fabric_fact.load(fabric_fact.on_disk(machine), "this node")
    rails = traffic.planned(machine)
    before = traffic.read(machine, rails)
    program = program_of(request.plan, fact.environment)
    nosuid.guard([mount.source for mount in program.mounts if not mount.read_only], machine)
    done = runner(argv(request, program), part.timeout_s + GRACE_S)
    if done.rc != 0:  # also where only systemd-run has ended: its time was over, or it printed too much
        machine.runner(["systemctl", "stop", UNIT])
    after = traffic.read(machine, rails)
    moved = traffic.judge(rails, before, after, UNIT).moved
    text = f"{done.out}\n{done.err}"
    found, trouble = _results(text) if part.rank == 0 else ([], "")
    return Answer(
        done.rc,
        tuple(found),
        log.parse(text),
        {device: -1 if size is None else size for device, size in moved.items()},
        _trouble(text, done, part) if done.rc != 0 else trouble,
    )


def _results(text: str) -> tuple[list[Results], str]:
    try:
        return results.ours(text), ""
    except SparkError as exc:
        return [], exc.found


def _trouble(text: str, done: Completed, part: Part) -> str:
    """The last that it said of its failure."""
    last = re.search(r"Last error:\s*\n(?:\[rank\d+\]: )?(.+)", text)
    errors = _LAST.findall(text)
    if last:
        return last[1].strip()[: log.MAX_LINE]
    if errors:
        return str(errors[-1])[: log.MAX_LINE]
    if done.rc == TIMED_OUT or "RuntimeMaxSec" in text or not text.strip():
        return f"it was not done after {part.timeout_s:g} s, or was ended before (exit code {done.rc})"
    return next(line.strip() for line in reversed(text.splitlines()) if line.strip())[: log.MAX_LINE]
