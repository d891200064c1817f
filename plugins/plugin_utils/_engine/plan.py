# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The engine plan: from recipe, fabric facts and wishes to one mapping per node.

Computed once per play on the controller. Roles put it on disk and start it; nothing in it is decided again later.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.config_hash import config_hash
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding, errors, warnings
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.image import MIN_RAY_TEXT
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import Names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.probe import PATHS
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import checks as engine_checks
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import job as engine_job
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import memory_fit, parallelism
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import ray as engine_ray
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import report as engine_report
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.checks import WHERE
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.job import Job, Wishes
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds import base as kinds_base
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.base import Launch, Rank
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.model import Architecture, Weights
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.recipe import Recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render import compose as render_compose
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render import systemd


@dataclass(frozen=True)
class Plans:
    """Either one plan per host, or none and at least one finding of severity ``error``."""

    plans: Mapping[str, Mapping[str, Any]]
    summary: Sequence[str]
    findings: Sequence[Finding]

    @property
    def warnings(self) -> list[str]:
        return [str(finding) for finding in warnings(self.findings)]


def plan(
    recipe: Recipe,
    facts: Mapping[str, FabricFact],
    wishes: Wishes,
    memory: Mapping[str, int],
    shape: tuple[Architecture, Weights | None] | None = None,
) -> Plans:
    """``facts``: every host of the cluster. ``memory``: measured bytes per host, for those that were asked.

    ``shape``: read from the model's own files (:func:`_model.read`), in place of what the recipe says.
    """
    findings = engine_checks.check_nodes(recipe, facts)
    name = wishes.engine or recipe.engine
    findings += engine_checks.check_words(recipe, wishes, name)
    wrong = engine_checks.check_numbers(wishes)
    if errors(findings):
        return Plans({}, (), [*findings, *wrong])
    job = engine_job.make_job(recipe, facts, wishes, name, shape)
    findings += [*wrong, *engine_checks.check_engine(job)]
    findings += kinds_base.examine(job.engine, job.version, job.options, job.environment, job.where, user=job.user)
    findings += engine_checks.check_environment(job.environment)
    findings += engine_checks.check_runtime(job)
    if wrong:  # nothing can be computed from them
        return Plans({}, (), [*findings, *engine_checks.check_ports(job)])
    parallel, problems = engine_job.split(job, memory)
    job = replace(job, parallel=parallel)
    findings += [Finding(WHERE, found, remedy) for found, remedy in problems]
    findings += engine_checks.check_ray(job)
    findings += engine_checks.check_ports(job)
    budget: memory_fit.Budget | None = None
    if parallel is not None:
        method = recipe.draft.method if recipe.draft else ""
        findings += job.engine.rules(parallel, job.options, method, job.backend, job.where)
        if recipe.device == "gpu":
            budget, made = engine_checks.judge_memory(job, parallel, memory)
            findings += made
        findings += engine_checks.check_startable(job, parallel)
    if parallel is None or errors(findings):
        return Plans({}, engine_report.verdict(job, parallel, budget), findings)
    launch = _launch(job, parallel, budget)
    ranks = job.engine.ranks(launch)
    # What the plan itself writes has to be right for this version too.
    findings += kinds_base.check_words(job.engine, job.version, ranks[0].options, WHERE)
    findings += job.engine.check_ranks(launch, ranks, job.where)
    if errors(findings):
        return Plans({}, engine_report.verdict(job, parallel, budget), findings)
    shared = {
        # `ranks`: something of the engine runs there as a unit, its rank or the Ray that holds it.
        "members": [
            {
                "host": fact.host,
                "rank": fact.rank,
                "address": fact.cluster_address,
                "runs_here": bool(rank.program),
                "ranks": bool(rank.program) or job.backend == "ray",
            }
            for fact, rank in zip(job.ordered, ranks)
        ],
        "parallel": {
            "tensor": parallel.tensor,
            "pipeline": parallel.pipeline,
            "data": parallel.data,
            "expert": parallel.expert,
            "reason": parallel.reason,
        },
        "memory": engine_report.memory_report(job, budget),
        "expectation": engine_report.expectation(job, parallel),
        "not_pinned": recipe.not_pinned(job.image),
        "warnings": [str(finding) for finding in warnings(findings)],
    }
    plans = {fact.host: {**_node(job, fact, rank, launch), **shared} for fact, rank in zip(job.ordered, ranks)}
    return Plans(plans, engine_report.summary(job, plans), findings)


def assumed_facts(hosts: Sequence[str], first: int = 0) -> dict[str, FabricFact]:
    """Facts for a plan without machines: one switch, RDMA, ranks in the order of the inventory."""
    count = len(hosts)
    return {
        host: FabricFact(
            host=host,
            state="planned",
            topology="single" if count == 1 else "direct" if count == 2 else "switch",
            transport="rdma",
            rank=rank,
            nodes=count,
            management_address=f"192.0.2.{rank + 1}",
            cluster_address=f"192.168.100.{rank + 10}",
            cluster_interface="enp1s0f0np0",
            environment={}
            if count == 1
            else {"NCCL_SOCKET_IFNAME": "enp1s0f0np0", "GLOO_SOCKET_IFNAME": "enp1s0f0np0"},
        )
        for rank, host in enumerate(hosts, start=first)
    }


def _launch(job: Job, parallel: parallelism.Parallel, budget: memory_fit.Budget | None) -> Launch:
    wishes = job.wishes
    return Launch(
        version=job.version,
        model=job.model,
        served=job.served,
        ordered=job.ordered,
        parallel=parallel,
        backend=job.backend,
        context=job.context,
        # Of each replica: what the cache was computed for.
        concurrency=-(-job.concurrency // parallel.data),
        port=wishes.port,
        options=job.options,
        revision="" if wishes.model else job.recipe.revision,
        budget=budget,
        draft=job.draft,
        # Two engines that start at once would take each other's memory for their own when they measure.
        pin_kv_cache=wishes.pin_kv_cache or wishes.others > 0,
        bin=f"{wishes.venv_path}/bin/" if job.runtime == "venv" else "",
        rendezvous_port=wishes.rendezvous_port,
        api_host=wishes.api_host,
        task=job.recipe.task,
        shared=wishes.others > 0,
        # Two services on a node may both have files.
        file_directory=render_compose.Place(Names(wishes.instance)).directory if wishes.instance else paths.ETC,
    )


def _node(job: Job, fact: FabricFact, rank: Rank, launch: Launch) -> dict[str, Any]:
    wishes, head = job.wishes, job.ordered[0]
    over_ray, contained = job.backend == "ray", job.runtime == "container"
    ray = engine_ray.contained(wishes.ray) if contained else wishes.ray
    base = _base_environment(job)
    own = job.engine.own_environment(fact.cluster_address, ray.temp_dir if over_ray and contained else "")
    common = {**base, **job.environment, **fact.environment, **own, **rank.environment, **rank.starter_environment}
    if job.engine.over_ray and job.backend != "native":
        common |= engine_ray.environment(ray, fact.cluster_address)
    ray_argv = engine_ray.argv(ray, fact.cluster_address, head.cluster_address)
    address = f"{head.cluster_address}:{ray.port}"
    environment = {**common, "RAY_ADDRESS": address} if over_ray else dict(common)
    served = job.engine.served_name(launch)
    # Under Ray the workers' processes come from the head; its command is in every plan.
    first = rank if rank.program else job.engine.ranks(launch)[0]
    argv = [*first.starter, *first.program, *first.options]
    requirements = job.requirements
    names = Names(wishes.instance)
    place = render_compose.Place(names)
    mounts = [*_mounts(job, rank, place.nccl_conf), *_beside_ray(job, ray)]
    compose = ""
    if contained:
        made = render_compose.document(
            place,
            wishes.container,
            job.image,
            argv,
            mounts,
            head=fact is head and bool(job.engine.key_variable),
            beside_ray=over_ray,
        )
        compose = render_compose.text(made)
    ray_files = _contained_ray(job, ray, rank, ray_argv)
    return {
        "names": {
            "instance": names.instance,
            "unit": names.unit,
            "keeper": names.keeper,
            "description": names.description,
        },
        "host": fact.host,
        "rank": fact.rank,
        "role": "head" if fact is head else "worker",
        "head": head.host,
        "nodes": len(job.ordered),
        "backend": job.backend,
        "recipe": job.recipe.name,
        "profile": wishes.profile,
        "hazards": list(job.recipe.hazards),
        "runtime": job.runtime,
        "image": job.image,
        "mounts": mounts,
        "patches": [{"source": patch.source, "target": patch.target} for patch in job.recipe.patches],
        "container": {
            "file": place.file,
            "text": compose,
            "nccl_conf": "" if wishes.container.nccl_conf else place.nccl_conf,
            "project": place.project,
        },
        "venv": {"path": wishes.venv_path, "requirements": requirements},
        "home": wishes.home,
        "model_cache": "" if job.model.startswith("/") else wishes.hf_home,
        "ray": {
            "needed": over_ray,
            "address": address,
            "members": {node.host: node.cluster_address for node in job.ordered},
            "argv": ray_argv,
            "env": common,
            "command_line": "" if contained else systemd.command(ray_argv),
            "environment_file": systemd.environment_file(common),
            "token_path": ray.token_path,
            "temp_dir": ray.temp_dir,
            # By environment: also what an earlier plan asked for is held to it.
            "oldest": {wishes.venv_path: MIN_RAY_TEXT} if over_ray and not contained else {},
            # In a container Ray is asked there, by whoever is allowed to talk to Docker.
            "python": "python3" if contained else f"{wishes.venv_path}/bin/python",
            "container": render_compose.RAY_PROJECT if contained else "",
            "compose_file": render_compose.RAY_FILE,
            "files": ray_files,
            "config_hash": _hash([*ray_argv, json.dumps(ray_files, sort_keys=True)], common, requirements),
        },
        "engine": {
            "name": job.engine.name,
            "version": job.version,
            "runs_here": bool(rank.program),
            "argv": argv,
            "env": environment,
            # In a container the program is found by its name; that is not for systemd.
            "command_line": systemd.command(argv) if job.runtime == "venv" else "",
            "environment_file": systemd.environment_file(environment),
            "files": dict(rank.files),
            "ports": dict(rank.ports),
            "host": wishes.api_host,
            "port": wishes.port,
            "endpoint": f"http://{wishes.api_host}:{wishes.port}/v1",
            "model": job.model,
            "served_model_name": served,
            "task": job.recipe.task,
            "probe": {"path": PATHS[job.recipe.task], "model": served},
            "health": job.engine.health,
            "key": bool(job.engine.key_variable),
            "config_hash": _hash([*argv, compose, json.dumps(rank.files, sort_keys=True)], environment, requirements),
        },
    }


def _contained_ray(job: Job, ray: engine_ray.RayWishes, rank: Rank, argv: Sequence[str]) -> dict[str, str]:
    """What Ray's container on a node is made from. Its processes are the ranks, so it sees what a rank sees."""
    if job.backend != "ray" or job.runtime != "container":
        return {}
    mounts = [*_mounts(job, rank, render_compose.RAY_NCCL_CONF), *_ray_mounts(ray)]
    made = render_compose.ray_document(job.wishes.container, job.image, argv, mounts)
    empty = (
        "# Managed by sparkmatrix.cluster (role ray). Nothing is set here: NCCL's settings are in the environment.\n"
    )
    return {render_compose.RAY_FILE: render_compose.text(made), render_compose.RAY_NCCL_CONF: empty}


def _beside_ray(job: Job, ray: engine_ray.RayWishes) -> list[dict[str, Any]]:
    """What the engine's container on the head needs to use the Ray of another container."""
    if job.backend != "ray" or job.runtime != "container":
        return []
    # ray_non_carry_over_env_vars.json keeps the API key out of what vLLM hands to the ranks.
    root = job.engine.config_root
    own = {"source": root, "target": root, "read_only": True, "why": "what ranks are not told"}
    return [*_ray_mounts(ray), own]


def _ray_mounts(ray: engine_ray.RayWishes) -> list[dict[str, Any]]:
    return [
        {"source": ray.temp_dir, "target": ray.temp_dir, "read_only": False, "why": "Ray's sockets and logs"},
        {"source": ray.token_path, "target": ray.token_path, "read_only": True, "why": "Ray's token"},
    ]


def _mounts(job: Job, rank: Rank, own_conf: str) -> list[dict[str, Any]]:
    """Paths of the node in the container, at the same place there; a patch covers a file of the image."""
    if job.runtime != "container":
        return []
    model = job.model if job.model.startswith("/") else job.wishes.hf_home
    made = [{"source": model, "target": model, "read_only": job.model.startswith("/"), "why": "the model"}]
    made += [{"source": path, "target": path, "read_only": True, "why": "its options"} for path in sorted(rank.files)]
    made += _mpi_mounts(job)
    hf_token = {**job.environment}.get("HF_TOKEN_PATH")
    if hf_token:
        made.append({"source": hf_token, "target": hf_token, "read_only": True, "why": "the token for downloads"})
    # Images bring one, with settings that come into force wherever our environment has none.
    conf = job.wishes.container.nccl_conf or own_conf
    made.append({"source": conf, "target": "/etc/nccl.conf", "read_only": True, "why": "NCCL's settings"})
    made += [
        {"source": patch.source, "target": patch.target, "read_only": True, "why": patch.why}
        for patch in job.recipe.patches
    ]
    return made


def _mpi_mounts(job: Job) -> list[dict[str, Any]]:
    """What brings the ranks of an MPI job together; as few images have ssh, it is the node's own tool."""
    if job.backend != "mpi":
        return []
    return [
        {"source": path, "target": path, "read_only": True, "why": why}
        for path, why in ((paths.NODE_PROGRAM, "starts the ranks"), (paths.MPI_TOKEN, "the secret that they share"))
    ]


def _base_environment(job: Job) -> dict[str, str]:
    """What recipe and user may override."""
    wishes = job.wishes
    made = {"HF_HUB_OFFLINE": "1"} if job.model.startswith("/") else {"HF_HOME": wishes.hf_home}
    if job.runtime == "venv":
        made["HOME"] = wishes.home
        # torch and vLLM compile with programs of the environment (ninja) and of the system (g++).
        made["PATH"] = f"{wishes.venv_path}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    made |= job.engine.defaults(job.runtime, job.backend)
    return made


def _hash(argv: Sequence[str], env: Mapping[str, str], requirements: Sequence[str]) -> str:
    """12 hexadecimal digits over everything that a restart would change."""
    text = json.dumps([list(argv), dict(env), list(requirements)], sort_keys=True, separators=(",", ":"))
    return config_hash(text)
