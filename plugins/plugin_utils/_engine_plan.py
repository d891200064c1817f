# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The engine plan: from recipe, fabric facts and wishes to one mapping per node.

Computed once per play on the controller. Roles put it on disk and start it; nothing in it is decided again later.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric_fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._findings import Finding, errors, warnings
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils import (
    _engine_options,
    _memory_fit,
    _parallel,
    _ray,
    _systemd,
    _vllm,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._ray import RayWishes
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._recipe import Recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._secret_names import looks_secret

GIB = _memory_fit.GIB
API_HOST = "127.0.0.1"
WHERE = "engine plan"
CONFIG_ROOT = "/etc/sparkmatrix/vllm"
# Each node's own; a value for all nodes would be wrong on all but one.
PER_NODE = frozenset(
    {
        "VLLM_HOST_IP",
        "NCCL_SOCKET_IFNAME",
        "GLOO_SOCKET_IFNAME",
        "TP_SOCKET_IFNAME",
        "UCX_NET_DEVICES",
        "NCCL_IB_HCA",
        "NCCL_IB_GID_INDEX",
        "OMPI_MCA_btl_tcp_if_include",
        "MN_IF_NAME",
        "RAY_ADDRESS",
        "RAY_AUTH_MODE",
        "RAY_AUTH_TOKEN_PATH",
    }
)


@dataclass(frozen=True)
class Wishes:
    """What the user asked for. 0 and empty mean: from the recipe, or computed."""

    context: int = 0
    concurrency: int = 0
    gpu_memory_utilization: float = 0.0
    tensor_parallel_size: int = 0
    pipeline_parallel_size: int = 0
    served_model_name: str = ""
    model: str = ""
    port: int = 8000
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    requirements: Sequence[str] = ()
    venv_path: str = "/opt/sparkmatrix/engine"
    home: str = "/var/lib/sparkmatrix/home"
    hf_home: str = "/opt/sparkmatrix/models/huggingface"
    ray: RayWishes = field(default_factory=RayWishes)


@dataclass(frozen=True)
class _Job:
    """What all nodes have in common."""

    recipe: Recipe
    wishes: Wishes
    ordered: tuple[FabricFact, ...]  # by rank; the first is the head
    options: Mapping[str, Any]
    environment: Mapping[str, str]

    @property
    def several(self) -> bool:
        return len(self.ordered) > 1

    @property
    def model(self) -> str:
        return self.wishes.model or self.recipe.model

    @property
    def served(self) -> str:
        return self.wishes.served_model_name or self.recipe.served_model_name or self.recipe.name

    @property
    def where(self) -> str:
        return f"recipe {self.recipe.name}"


@dataclass(frozen=True)
class Plans:
    """Either one plan per host, or none and at least one finding of severity ``error``."""

    plans: Mapping[str, Mapping[str, Any]]
    summary: Sequence[str]
    findings: Sequence[Finding]

    @property
    def warnings(self) -> list[str]:
        return [str(finding) for finding in warnings(self.findings)]


def plan(recipe: Recipe, facts: Mapping[str, FabricFact], wishes: Wishes, memory: Mapping[str, int]) -> Plans:
    """``facts``: every host of the cluster. ``memory``: measured bytes per host, for those that were asked."""
    findings = _check_nodes(recipe, facts)
    if errors(findings):
        return Plans({}, (), findings)
    job = _Job(
        recipe=recipe,
        wishes=wishes,
        ordered=tuple(sorted(facts.values(), key=lambda fact: fact.rank)),
        options=_vllm.merge(recipe.options, wishes.options),
        environment={**recipe.environment, **{name: str(value) for name, value in wishes.environment.items()}},
    )
    parallel, problems = _parallel.choose(
        recipe.architecture,
        len(job.ordered),
        wishes.tensor_parallel_size or recipe.tensor_parallel_size,
        wishes.pipeline_parallel_size or recipe.pipeline_parallel_size,
    )
    findings += [Finding(WHERE, found, remedy) for found, remedy in problems]
    findings += _vllm.check(_vllm.pinned(wishes.requirements), job.options, job.environment, job.where)
    findings += _check_environment(job.environment)
    budget: dict[str, Any] = {}
    if parallel is not None:
        budget, made = _memory(job, parallel, memory)
        findings += made
    if parallel is None or errors(findings):
        return Plans({}, (), findings)
    serve = _serve(job, parallel, budget)
    shared = {
        "parallel": {"tensor": parallel.tensor, "pipeline": parallel.pipeline, "reason": parallel.reason},
        "memory": budget,
        "warnings": [str(finding) for finding in warnings(findings)],
    }
    plans = {fact.host: {**_node(job, fact, serve), **shared} for fact in job.ordered}
    return Plans(plans, _summary(job, plans), findings)


def _check_nodes(recipe: Recipe, facts: Mapping[str, FabricFact]) -> list[Finding]:
    count = len(facts)
    findings = []
    again = "Run the fabric layer on all nodes again: ansible-playbook site.yml --tags fabric"
    if not facts:
        return [Finding(WHERE, "there is no node to plan for", "Put your machines into the group 'sparks'")]
    ranks = sorted(fact.rank for fact in facts.values())
    if ranks != list(range(count)):
        findings.append(Finding(WHERE, f"the fabric facts hold the ranks {ranks}, expected 0 to {count - 1}", again))
    for host, fact in facts.items():
        if fact.nodes != count:
            findings.append(
                Finding(host, f"its fabric fact is for {fact.nodes} nodes, the inventory has {count}", again)
            )
        if fact.host != host:
            findings.append(Finding(host, f"its fabric fact was written for {fact.host!r}", again))
    addresses: dict[str, str] = {}
    for host, fact in facts.items():
        if fact.cluster_address in addresses:
            other = addresses[fact.cluster_address]
            findings.append(Finding(host, f"its cluster address {fact.cluster_address} is that of {other} too", again))
        addresses[fact.cluster_address] = host
    if not recipe.min_nodes <= count <= recipe.max_nodes:
        findings.append(
            Finding(
                "engine_recipe",
                f"{recipe.name} is for {recipe.min_nodes} to {recipe.max_nodes} nodes, and there are {count}",
                "Choose another recipe",
            )
        )
    if count > 1 and any(fact.transport == "socket" for fact in facts.values()):
        findings.append(
            Finding(
                WHERE,
                "the fabric has no RDMA, so tensor parallel answers slowly",
                "engine_pipeline_parallel_size set to the number of nodes needs less exchange",
                severity="warning",
            )
        )
    return findings


def _check_environment(environment: Mapping[str, str]) -> list[Finding]:
    findings = []
    for name in sorted(environment):
        if name in PER_NODE:
            findings.append(
                Finding("engine_environment", f"{name} differs from node to node", "Leave it out: the plan sets it")
            )
        elif looks_secret(name):
            findings.append(
                Finding(
                    "engine_environment",
                    f"{name} looks like a secret, and this environment is readable by every user of the node",
                    "Use a variable that names a file, such as HF_TOKEN_PATH",
                )
            )
    return findings


def _memory(job: _Job, parallel: _parallel.Parallel, memory: Mapping[str, int]) -> tuple[dict[str, Any], list[Finding]]:
    """The budget of the smallest node, since every rank gets the same share."""
    recipe, wishes = job.recipe, job.wishes
    context, concurrency = wishes.context or recipe.context, wishes.concurrency or recipe.concurrency
    common = {"runtime": recipe.runtime, "context": context, "concurrency": concurrency}
    if recipe.runtime == "cpu":
        # vLLM's CPU platform sizes its cache by kv-cache-memory-bytes and knows no utilization.
        sentence = f"not computed: a CPU has no GPU memory; {concurrency} x {context} tokens as the recipe says"
        return {**common, "verdict": "not computed", "utilization": 0.0, "sentence": sentence}, []
    measured = [memory[fact.host] for fact in job.ordered if memory.get(fact.host)]
    share = _memory_fit.utilization(context, wishes.gpu_memory_utilization or recipe.gpu_memory_utilization)
    budget = _memory_fit.fit(
        recipe.architecture,
        parallel,
        recipe.weights_gb,
        _memory_fit.Load(context, concurrency, str(job.options.get("kv-cache-dtype", "auto"))),
        share=share,
        overhead_gib=recipe.overhead_gib,
        total=min(measured) if len(measured) == len(job.ordered) else 0,
    )
    findings = []
    if share > _memory_fit.HARD_MAX_UTILIZATION:
        findings.append(
            Finding(
                "engine_gpu_memory_utilization",
                f"{share} leaves the operating system {(1 - share) * budget.total / GIB:.0f} GiB, and a Spark without"
                " memory freezes as a whole",
                f"Use at most {_memory_fit.MAX_UTILIZATION}",
            )
        )
    elif share > _memory_fit.MAX_UTILIZATION and not wishes.gpu_memory_utilization:
        findings.append(
            Finding(
                job.where,
                f"it asks for gpu_memory_utilization {share}, above {_memory_fit.MAX_UTILIZATION}",
                f"Set engine_gpu_memory_utilization: {share} yourself if you accept that the node may freeze",
            )
        )
    elif share > _memory_fit.MAX_UTILIZATION:
        findings.append(
            Finding(
                "engine_gpu_memory_utilization",
                f"{share} is above {_memory_fit.MAX_UTILIZATION}: a long prompt can freeze the whole node",
                "Watch MemAvailable under load",
                severity="warning",
            )
        )
    if budget.verdict == "too large":
        found, remedy = _memory_fit.refusal(budget, len(job.ordered))
        findings.append(Finding(job.where, found, remedy))
    elif budget.verdict == "tight":
        findings.append(
            Finding(
                job.where,
                f"memory is tight: {budget.sentence()}",
                "If the engine does not start, lower engine_context or engine_concurrency",
                severity="warning",
            )
        )
    return {**common, **budget.as_dict(), "sentence": budget.sentence()}, findings


def _node(job: _Job, fact: FabricFact, serve: Sequence[str]) -> dict[str, Any]:
    wishes, head = job.wishes, job.ordered[0]
    common = {
        **_base_environment(job),
        **job.environment,
        **fact.environment,
        **_ray.environment(wishes.ray, fact.cluster_address),
    }
    ray_argv = _ray.argv(wishes.ray, fact.cluster_address, head.cluster_address)
    address = f"{head.cluster_address}:{wishes.ray.port}"
    serve_environment = {**common, "RAY_ADDRESS": address} if job.several else dict(common)
    return {
        "host": fact.host,
        "rank": fact.rank,
        "role": "head" if fact is head else "worker",
        "head": head.host,
        "nodes": len(job.ordered),
        "backend": "ray" if job.several else "single",
        "recipe": job.recipe.name,
        "hazards": list(job.recipe.hazards),
        "venv": {"path": wishes.venv_path, "requirements": list(wishes.requirements)},
        "home": wishes.home,
        "model_cache": "" if job.model.startswith("/") else wishes.hf_home,
        "ray": {
            "needed": job.several,
            "address": address,
            "members": {node.host: node.cluster_address for node in job.ordered},
            "argv": ray_argv,
            "env": common,
            "command_line": _systemd.command(ray_argv),
            "environment_file": _systemd.environment_file(common),
            "token_path": wishes.ray.token_path,
            "temp_dir": wishes.ray.temp_dir,
            "config_hash": _hash(ray_argv, common, wishes.requirements),
        },
        "engine": {
            "name": job.recipe.engine,
            "argv": list(serve),
            "env": serve_environment,
            "command_line": _systemd.command(serve),
            "environment_file": _systemd.environment_file(serve_environment),
            "host": API_HOST,
            "port": wishes.port,
            "endpoint": f"http://{API_HOST}:{wishes.port}/v1",
            "model": job.model,
            "served_model_name": job.served,
            "probe": {"path": "/v1/chat/completions", "model": job.served, "max_tokens": 1},
            "config_hash": _hash(serve, serve_environment, wishes.requirements),
        },
    }


def _base_environment(job: _Job) -> dict[str, str]:
    """What recipe and user may override."""
    wishes = job.wishes
    return {
        "HOME": wishes.home,
        # torch and vLLM compile with programs of the environment (ninja) and of the system (g++).
        "PATH": f"{wishes.venv_path}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "VLLM_NO_USAGE_STATS": "1",
        # Its ray_non_carry_over_env_vars.json keeps the API key out of what vLLM copies to the ranks.
        "VLLM_CONFIG_ROOT": CONFIG_ROOT,
        **({"HF_HUB_OFFLINE": "1"} if job.model.startswith("/") else {"HF_HOME": wishes.hf_home}),
    }


def _serve(job: _Job, parallel: _parallel.Parallel, budget: Mapping[str, Any]) -> list[str]:
    planned: dict[str, Any] = {
        "served-model-name": job.served,
        "host": API_HOST,
        "port": job.wishes.port,
        "tensor-parallel-size": parallel.tensor,
        "max-model-len": budget["context"],
        "max-num-seqs": budget["concurrency"],
    }
    if job.recipe.revision and not job.wishes.model:
        planned["revision"] = job.recipe.revision
    if parallel.pipeline > 1:
        planned["pipeline-parallel-size"] = parallel.pipeline
    if job.several:
        # Without it vLLM counts the GPUs of this node only and refuses (since 0.13).
        planned["distributed-executor-backend"] = "ray"
    if job.recipe.runtime == "gpu":
        planned["gpu-memory-utilization"] = f"{budget['utilization']:.2f}"
    tables = _engine_options.vllm_options(_vllm.pinned(job.wishes.requirements))
    flags = tables[0] if tables else frozenset()
    executable = f"{job.wishes.venv_path}/bin/vllm"
    return [executable, "serve", job.model, *_vllm.render({**planned, **job.options}, flags)]


def _hash(argv: Sequence[str], env: Mapping[str, str], requirements: Sequence[str]) -> str:
    """12 hexadecimal digits over everything that a restart would change."""
    text = json.dumps([list(argv), dict(env), list(requirements)], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _summary(job: _Job, plans: Mapping[str, Mapping[str, Any]]) -> list[str]:
    head = plans[job.ordered[0].host]
    engine = head["engine"]
    nodes = ", ".join(f"{fact.host} {fact.cluster_address}" for fact in job.ordered)
    return [
        f"Recipe {job.recipe.name}: {job.model} with {engine['name']} on {len(plans)} node(s): {nodes}",
        head["parallel"]["reason"],
        f"Memory per node: {head['memory']['sentence']}",
        f"Endpoint: {engine['endpoint']} on {head['host']}, model name {engine['served_model_name']}",
        f"Command: {' '.join(engine['argv'])}",
        *(f"Known hazard: {hazard}" for hazard in job.recipe.hazards),
    ]
