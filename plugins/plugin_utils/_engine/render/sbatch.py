# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The engine plan as a batch script for Slurm, for sites where a job and not a systemd unit holds the machines.

The same command lines and environments as the units have. What belongs to root there (state directories, files below
/etc, secrets) is replaced by a directory of the job's own on each node; the API key comes from a file of the user.
Addresses are in the plan, so the job asks for these very machines, by their names in the inventory.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import image as engine_image
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import NodePlan, ServicePlan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import templates
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.registry import KINDS

# Of the service user; the job has its own.
_DROPPED = frozenset({"HOME", "RAY_AUTH_TOKEN_PATH", "VLLM_CONFIG_ROOT"})
# What starts an MPI job's ranks without Slurm.
_MPI_OWN = (paths.MPI_TOKEN, paths.NODE_PROGRAM)
_JOB_NAME = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class Ray:
    program: str
    python: str
    status: str  # a program that fails until all nodes are there
    major: int = engine_image.MIN_RAY[0]
    minor: int = engine_image.MIN_RAY[1]


@dataclass(frozen=True)
class Job:
    """What the template prints for all nodes. ``container`` and ``mpi``: options of srun, each with a space behind."""

    title: str
    name: str
    key_variable: str
    ray: Ray | None
    container: str
    mpi: str
    tasks: int
    assumed: Sequence[str]  # lines about what no machine was asked for


@dataclass(frozen=True)
class Node:
    """What it prints for one. ``ray`` and ``engine`` are quoted for a shell."""

    host: str
    environment: list[tuple[str, str]]
    files: list[tuple[str, str]]
    ray: str
    engine: str


def script(plans: Mapping[str, NodePlan], assumed: Sequence[str] = ()) -> str:
    """The whole script. ``plans``: by host, with the one service on each. ``assumed``: what it says of its sources."""
    ordered = sorted(plans.values(), key=lambda plan: plan.here[0].rank)
    head = ordered[0]
    (first,) = head.here
    mpi = first.backend == "mpi"
    ranks = [plan for plan in ordered if plan.here[0].engine.runs_here]
    job = Job(
        title=f"{first.recipe}: {first.engine.name} on {len(ordered)} node(s)",
        name=_JOB_NAME.sub("-", first.recipe),
        key_variable=KINDS[first.engine.name].key_variable,
        ray=_ray(head, len(ordered)) if head.ray.needed else None,
        container=_container(first),
        mpi="--mpi=pmix " if mpi else "",
        tasks=len(ordered) if mpi or len(ranks) > 1 else 1,
        assumed=assumed,
    )
    nodes = [_node(plan, first) for plan in ordered]
    return templates.render("engine", "sbatch.sh.j2", job=job, nodes=nodes)


def _ray(head: NodePlan, count: int) -> Ray:
    status = (
        f"import ray; ray.init(address={head.ray.address!r}, logging_level='ERROR');"
        f" raise SystemExit(sum(n['Alive'] for n in ray.nodes()) != {count})"
    )
    return Ray(head.ray.command.program[0], head.ray.python, status)


def _node(plan: NodePlan, head: ServicePlan) -> Node:
    """Under MPI all ranks have the head's command line; what starts it on each node is Slurm here."""
    (service,) = plan.here
    engine = (head if service.backend == "mpi" else service).engine
    files = {path: f'"$work"/{shlex.quote(_name(path))}' for path in engine.files}
    return Node(
        host=plan.host,
        # A job has no directory of the node for what it compiles.
        environment=[
            (name, value)
            for name, value in sorted(service.engine.env.items())
            if name not in _DROPPED and not value.startswith(f"{paths.KERNELS}/")
        ],
        files=[(_name(path), content) for path, content in sorted(engine.files.items())],
        ray=_quoted(plan.ray.command.words, {plan.ray.temp_dir: '"$work/ray"'}) if plan.ray.needed else "",
        engine=_quoted([*engine.command.program, *engine.command.options], files),
    )


def _quoted(words: Iterable[str], moved: Mapping[str, str]) -> str:
    """``moved``: what is in the job's directory."""
    return " ".join(moved.get(word) or shlex.quote(word) for word in words)


def _name(path: str) -> str:
    return path.strip("/").replace("/", "_")


def _container(head: ServicePlan) -> str:
    """For Slurm with Pyxis and enroot, which write the registry before a #."""
    if not head.contained:
        return ""
    registry, slash, rest = head.image.partition("/")
    image = f"{registry}#{rest}" if slash and ("." in registry or ":" in registry) else head.image
    mounts = ",".join(
        f"{mount.source}:{mount.target}{':ro' if mount.read_only else ''}"
        for mount in head.mounts
        if mount.target not in head.engine.files and mount.target not in ("/etc/nccl.conf", paths.KERNELS, *_MPI_OWN)
    )
    odd = [path for mount in head.mounts for path in (mount.source, mount.target) if {",", ":"} & set(path)]
    if odd:
        raise SparkError(
            f"{odd[0]!r} has a comma or a colon, and what Slurm mounts is a list with these", head.recipe, "Rename it"
        )
    return f"--container-image={shlex.quote(image)} --container-mounts={shlex.quote(mounts)},/tmp:/tmp "
