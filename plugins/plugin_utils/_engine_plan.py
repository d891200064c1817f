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
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric_fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._findings import Finding, errors, warnings
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils import (
    _engine,
    _expectation,
    _memory_fit,
    _parallel,
    _profile,
    _ray,
    _sglang,
    _systemd,
    _trtllm,
    _vllm,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import API_HOST, Launch, Rank, Spec
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._model import Architecture, Weights
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._ray import RayWishes
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._recipe import Recipe, Settings
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._secret_names import looks_secret

GIB = _memory_fit.GIB
WHERE = "engine plan"
CONFIG_ROOT = "/etc/sparkmatrix/vllm"
MODULES: Mapping[str, ModuleType] = {"vllm": _vllm, "sglang": _sglang, "tensorrt-llm": _trtllm}
LAUNCHES = ("auto", "ray", "native")
# Where a new token is asked for, and where the engine itself generates one for whoever asks.
HEALTH = {"vllm": "", "sglang": "/health_generate", "tensorrt-llm": "/health_generate"}
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
    """What the user asked for. 0, ``None`` and empty mean: from the recipe, or computed."""

    engine: str = ""
    launch: str = "auto"
    runtime: str = ""
    image: str = ""
    profile: str = ""
    context: int = 0
    concurrency: int = 0
    gpu_memory_utilization: float = 0.0
    pin_kv_cache: bool = False
    free_memory_gib: float = 0.0  # measured on an idle node
    tensor_parallel_size: int = 0
    pipeline_parallel_size: int = 0
    data_parallel_size: int = 0
    expert_parallel: bool | None = None
    served_model_name: str = ""
    model: str = ""
    port: int = 8000
    rendezvous_port: int = 29501
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    requirements: Sequence[str] = ()
    venv_path: str = "/opt/sparkmatrix/engine"
    home: str = "/var/lib/sparkmatrix/home"
    hf_home: str = "/opt/sparkmatrix/models/huggingface"
    ray: RayWishes = field(default_factory=RayWishes)
    only_print: bool = False  # nothing will be started from this plan


@dataclass(frozen=True)
class _Job:
    """What all nodes have in common."""

    recipe: Recipe
    wishes: Wishes
    ordered: tuple[FabricFact, ...]  # by rank; the first is the head
    spec: Spec
    settings: Settings
    profile: _profile.Profile | None
    options: Mapping[str, Any]
    environment: Mapping[str, str]
    architecture: Architecture
    weights: Weights

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

    @property
    def runtime(self) -> str:
        """A Python environment for vLLM unless told otherwise; the other engines come as containers."""
        return self.wishes.runtime or self.recipe.runtime or ("venv" if self.spec.name == "vllm" else "container")

    @property
    def requirements(self) -> list[str]:
        return [*self.wishes.requirements, *self.settings.requirements]

    @property
    def image(self) -> str:
        if self.runtime != "container":
            return ""
        return self.wishes.image or self.settings.image or self.spec.image

    @property
    def version(self) -> str:
        """``major.minor.patch`` of the engine, or an empty text."""
        if self.runtime == "venv":
            return _engine.pinned(self.requirements, self.spec.distributions)
        own = "" if self.wishes.image else self.settings.version
        return own or str(MODULES[self.spec.name].image_version(self.image))

    @property
    def backend(self) -> str:
        """How the ranks find each other."""
        if not self.several:
            return "single"
        if self.spec.name == "tensorrt-llm":
            return "mpi"
        if self.spec.name == "sglang":
            return "native"
        return "native" if self.wishes.launch == "native" else "ray"

    @property
    def context(self) -> int:
        fallback = _profile.context_of(self.profile, self.recipe) if self.profile else self.recipe.context
        return self.wishes.context or fallback

    @property
    def concurrency(self) -> int:
        return self.wishes.concurrency or (self.profile.concurrency if self.profile else self.recipe.concurrency)


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
    findings = _check_nodes(recipe, facts)
    name = wishes.engine or recipe.engine
    findings += _check_words(recipe, wishes, name)
    if errors(findings):
        return Plans({}, (), findings)
    job = _job(recipe, facts, wishes, name, shape)
    findings += _check_engine(job)
    parallel, problems = _split(job, memory)
    findings += [Finding(WHERE, found, remedy) for found, remedy in problems]
    findings += _engine.examine(job.spec, job.version, job.options, job.environment, job.where)
    findings += _check_environment(job.environment)
    budget: _memory_fit.Budget | None = None
    if parallel is not None:
        refusals, notes = _parallel.engine_rules(
            parallel, name, job.options, recipe.draft.method if recipe.draft else ""
        )
        findings += [Finding(job.where, found, remedy) for found, remedy in refusals]
        findings += [Finding(job.where, found, remedy, severity="warning") for found, remedy in notes]
        if recipe.device == "gpu":
            budget, made = _memory(job, parallel, memory)
            findings += made
        findings += _check_startable(job, parallel)
    if parallel is None or errors(findings):
        return Plans({}, _verdict(job, parallel, budget), findings)
    launch = _launch(job, parallel, budget)
    ranks: list[Rank] = MODULES[name].ranks(launch)
    # What the plan itself writes has to be right for this version too.
    findings += _engine.check_words(job.spec, job.version, _words(job, ranks[0]), WHERE)
    if errors(findings):
        return Plans({}, _verdict(job, parallel, budget), findings)
    shared = {
        "parallel": {
            "tensor": parallel.tensor,
            "pipeline": parallel.pipeline,
            "data": parallel.data,
            "expert": parallel.expert,
            "reason": parallel.reason,
        },
        "memory": _memory_report(job, budget),
        "expectation": _expected(job, parallel),
        "not_pinned": recipe.not_pinned(job.image),
        "warnings": [str(finding) for finding in warnings(findings)],
    }
    plans = {fact.host: {**_node(job, fact, rank, launch), **shared} for fact, rank in zip(job.ordered, ranks)}
    return Plans(plans, _summary(job, plans), findings)


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


def _job(
    recipe: Recipe,
    facts: Mapping[str, FabricFact],
    wishes: Wishes,
    name: str,
    shape: tuple[Architecture, Weights | None] | None,
) -> _Job:
    spec: Spec = MODULES[name].SPEC
    settings = recipe.settings(name) or Settings()
    profile = _profile.PROFILES.get(wishes.profile)
    of_profile: dict[str, Any] = dict(profile.options.get(name, {})) if profile else {}
    if profile and profile.batched and recipe.device == "gpu":
        of_profile[BATCHED[name]] = profile.batched
    options = _engine.merge(spec, {**of_profile, **_engine.merge(spec, settings.options, {})}, wishes.options)
    architecture, weights = shape or (recipe.architecture, None)
    return _Job(
        recipe=recipe,
        wishes=wishes,
        ordered=tuple(sorted(facts.values(), key=lambda fact: fact.rank)),
        spec=spec,
        settings=settings,
        profile=profile,
        options=options,
        # A recipe's environment is that of its engine; the common part of others is in engines.<name>.environment.
        environment={**settings.environment, **{name: str(value) for name, value in wishes.environment.items()}},
        architecture=architecture,
        weights=weights or Weights(int(recipe.weights_gb * 1e9), int(recipe.replicated_gb * 1e9)),
    )


# Tokens that are computed in one step, by engine: the option, and what it is when nobody sets it.
BATCHED = {"vllm": "max-num-batched-tokens", "sglang": "chunked-prefill-size", "tensorrt-llm": "max_num_tokens"}
DEFAULT_BATCHED = 8192
KV_DTYPE = {"vllm": "kv-cache-dtype", "sglang": "kv-cache-dtype", "tensorrt-llm": "kv_cache_dtype"}


def _check_words(recipe: Recipe, wishes: Wishes, name: str) -> list[Finding]:
    words = [
        ("engine_name", name, tuple(MODULES)),
        ("engine_launch", wishes.launch, LAUNCHES),
        ("engine_runtime", wishes.runtime, ("", "venv", "container")),
        ("engine_profile", wishes.profile, ("", *_profile.PROFILES)),
    ]
    return [
        Finding(where, f"{value!r} is not known", f"Choose one of: {', '.join(filter(None, allowed))}")
        for where, value, allowed in words
        if value not in allowed
    ]


def _check_engine(job: _Job) -> list[Finding]:
    recipe, name = job.recipe, job.spec.name
    findings = []
    if job.settings.unsupported:
        findings.append(
            Finding(job.where, f"{job.spec.label} cannot serve it: {job.settings.unsupported}", f"Use {recipe.engine}")
        )
    if recipe.settings(name) is None:
        findings.append(
            Finding(
                job.where,
                f"it says nothing about {job.spec.label}, so only common settings are used",
                f"The recipe was made for {recipe.engine}",
                severity="warning",
            )
        )
    if recipe.device == "cpu" and name != "vllm":
        findings.append(Finding(job.where, f"{job.spec.label} does not run on CPUs here", "Use vllm"))
    limit = job.architecture.max_context
    if limit and job.context > limit:
        findings.append(
            Finding("engine_context", f"{job.context} is above the model's {limit} tokens", f"Use at most {limit}")
        )
    if job.wishes.launch == "ray" and name != "vllm":
        findings.append(Finding("engine_launch", f"{job.spec.label} is not started over Ray here", "Use auto"))
    return findings


def _check_startable(job: _Job, parallel: _parallel.Parallel) -> list[Finding]:
    """What this release plans and does not start yet: an error where it should be started, else a warning."""
    reasons = _not_startable(job, parallel)
    if not reasons:
        return []
    return [
        Finding(
            WHERE,
            f"this release plans, and does not start, {' and '.join(reasons)}",
            "It starts vLLM from a Python environment, on one node or with Ray: engine_name: vllm,"
            " engine_runtime: venv, engine_launch: auto, no replicas; playbooks/plan.yml prints other plans",
            severity="warning" if job.wishes.only_print else "error",
        )
    ]


def _not_startable(job: _Job, parallel: _parallel.Parallel) -> list[str]:
    reasons = []
    if job.spec.name != "vllm":
        reasons.append(job.spec.label)
    elif job.backend == "native":
        reasons.append("vLLM over several nodes without Ray")
    if job.runtime == "container":
        reasons.append("containers")
    if parallel.data > 1:
        reasons.append("replicas")
    return reasons


def _check_nodes(recipe: Recipe, facts: Mapping[str, FabricFact]) -> list[Finding]:
    count = len(facts)
    findings = []
    again = "Run the fabric layer on all nodes again: ansible-playbook site.yml --tags fabric"
    if not facts:
        return [Finding(WHERE, "there is no node to plan for", "Put your machines into the group 'sparks'")]
    ranks = sorted(fact.rank for fact in facts.values())
    # A machine that was removed leaves a gap: ranks are sticky, and so are the addresses that follow from them.
    if len(set(ranks)) != count or ranks[0] != 0:
        findings.append(Finding(WHERE, f"the fabric facts hold the ranks {ranks}, expected 0 and each once", again))
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


def _load(job: _Job, data: int = 1) -> _memory_fit.Load:
    batched = job.options.get(BATCHED[job.spec.name], DEFAULT_BATCHED)
    draft = job.recipe.draft
    return _memory_fit.Load(
        job.context,
        -(-job.concurrency // data),
        str(job.options.get(KV_DTYPE[job.spec.name], "auto")),
        batched=batched if isinstance(batched, int) else DEFAULT_BATCHED,
        drafted=draft.tokens if draft else 0,
        draft_layers=draft.layers if draft else 0,
    )


def _share(job: _Job, total: int) -> float:
    free = int(job.wishes.free_memory_gib * GIB)
    asked = job.wishes.gpu_memory_utilization or job.recipe.gpu_memory_utilization
    return _memory_fit.utilization(job.context, asked, total, free)


def _fit(job: _Job, parallel: _parallel.Parallel, memory: Mapping[str, int]) -> _memory_fit.Budget:
    """The budget of the smallest node, since every rank gets the same share."""
    measured = [memory[fact.host] for fact in job.ordered if memory.get(fact.host)]
    total = min(measured) if len(measured) == len(job.ordered) else 0
    draft = job.recipe.draft
    return _memory_fit.fit(
        job.architecture,
        parallel,
        job.weights,
        _load(job, parallel.data),
        share=_share(job, total or _memory_fit.GB10_TOTAL),
        overhead_gib=job.recipe.overhead_gib,
        total=total,
        draft=int(draft.weights_gb * 1e9 / parallel.tensor) if draft else 0,
        object_store=job.wishes.ray.object_store_bytes if job.backend == "ray" else 0,
        eager=bool(job.options.get("enforce-eager") or job.options.get("disable-cuda-graph")),
    )


def _split(job: _Job, memory: Mapping[str, int]) -> tuple[_parallel.Parallel | None, list[tuple[str, str]]]:
    recipe, wishes = job.recipe, job.wishes
    asked = _parallel.Asked(
        tensor=wishes.tensor_parallel_size or recipe.tensor_parallel_size,
        pipeline=wishes.pipeline_parallel_size or recipe.pipeline_parallel_size,
        data=wishes.data_parallel_size or recipe.data_parallel_size,
        expert=recipe.expert_parallel if wishes.expert_parallel is None else wishes.expert_parallel,
        throughput=bool(job.profile and job.profile.throughput),
    )
    if asked.throughput and recipe.device == "gpu":
        whole = _fit(job, _parallel.Parallel(1, 1, "", len(job.ordered)), memory).verdict != "does not fit"
        asked = replace(asked, whole_on_one=whole)
    return _parallel.choose(job.architecture, len(job.ordered), asked, job.spec.name)


def _memory(
    job: _Job, parallel: _parallel.Parallel, memory: Mapping[str, int]
) -> tuple[_memory_fit.Budget, list[Finding]]:
    budget = _fit(job, parallel, memory)
    wishes, share = job.wishes, budget.utilization
    variable = "engine_gpu_memory_utilization"
    limit = _memory_fit.utilization(job.context, 0)
    findings = []
    if share > _memory_fit.HARD_MAX_UTILIZATION:
        findings.append(
            Finding(
                variable,
                f"{share} leaves the operating system {(1 - share) * budget.total / GIB:.0f} GiB, and a Spark without"
                " memory freezes as a whole",
                f"Use at most {_memory_fit.MAX_UTILIZATION}",
            )
        )
    elif share > limit and not wishes.gpu_memory_utilization:
        findings.append(
            Finding(
                job.where,
                f"it asks for gpu_memory_utilization {share}, above {limit:.2f}",
                f"Set {variable}: {share} yourself if you accept that the node may freeze",
            )
        )
    elif share > (_memory_fit.MAX_UTILIZATION if job.context <= _memory_fit.LONG_CONTEXT else limit):
        findings.append(
            Finding(
                variable,
                f"{share} is above {limit if job.context > _memory_fit.LONG_CONTEXT else _memory_fit.MAX_UTILIZATION}:"
                " a long prompt can freeze the whole node",
                "Watch MemAvailable under load",
                severity="warning",
            )
        )
    free = wishes.free_memory_gib * GIB
    if free and share * budget.total > free:
        findings.append(
            Finding(
                variable,
                f"{share} of {budget.total / GIB:.1f} GiB is more than the {wishes.free_memory_gib} GiB that are free",
                f"Use at most {int(100 * free / budget.total) / 100}",
            )
        )
    if budget.verdict == "does not fit":
        found, remedy = _memory_fit.refusal(budget, len(job.ordered))
        findings.append(Finding(job.where, found, remedy))
    elif budget.verdict == "tight":
        findings.append(
            Finding(
                job.where,
                f"memory is tight: {budget.sentence()}: {'; '.join(budget.reasons)}",
                "If the engine does not start, lower engine_context or engine_concurrency",
                severity="warning",
            )
        )
    return budget, findings


def _memory_report(job: _Job, budget: _memory_fit.Budget | None) -> dict[str, Any]:
    common = {"device": job.recipe.device, "context": job.context, "concurrency": job.concurrency}
    if budget is None:
        # vLLM's CPU platform sizes its cache by kv-cache-memory-bytes and knows no utilization.
        sentence = f"not computed: a CPU has no GPU memory; {job.concurrency} x {job.context} tokens as the recipe says"
        return {**common, "verdict": "not computed", "utilization": 0.0, "sentence": sentence, "room": ""}
    return {**budget.as_dict(), **common, "sentence": budget.sentence(), "room": budget.room()}


def _expected(job: _Job, parallel: _parallel.Parallel) -> dict[str, Any]:
    """A band for one stream, and what others have measured on as many nodes."""
    band = _expectation.tokens_per_second(job.architecture, parallel, job.recipe.active_gb)
    published = [
        {
            "tokens_per_second": item.tokens_per_second,
            "streams": item.streams,
            "engine": item.engine,
            "source": item.source,
            "measured_here": item.measured_here,
        }
        for item in job.recipe.expected
        if item.nodes == len(job.ordered)
    ]
    return {
        "low": round(band[0], 1) if band else 0.0,
        "high": round(band[1], 1) if band else 0.0,
        "published": published,
    }


def _launch(job: _Job, parallel: _parallel.Parallel, budget: _memory_fit.Budget | None) -> Launch:
    wishes = job.wishes
    return Launch(
        version=job.version,
        model=job.model,
        served=job.served,
        ordered=job.ordered,
        parallel=parallel,
        backend=job.backend,
        context=job.context,
        concurrency=job.concurrency,
        port=wishes.port,
        options=job.options,
        revision="" if wishes.model else job.recipe.revision,
        budget=budget,
        draft=None if "speculative-config" in job.options else job.recipe.draft,
        pin_kv_cache=wishes.pin_kv_cache,
        bin=f"{wishes.venv_path}/bin/" if job.runtime == "venv" else "",
        rendezvous_port=wishes.rendezvous_port,
    )


def _words(job: _Job, rank: Rank) -> Sequence[str]:
    """The options of the engine in a rank's command line, behind program, subcommand and model."""
    argv = list(rank.argv)
    program = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm-serve"}[job.spec.name]
    start = next(number for number, word in enumerate(argv) if word.rpartition("/")[2] == program)
    return argv[start + {"vllm": 3, "sglang": 2, "tensorrt-llm": 2}[job.spec.name] :]


def _node(job: _Job, fact: FabricFact, rank: Rank, launch: Launch) -> dict[str, Any]:
    wishes, head = job.wishes, job.ordered[0]
    over_ray = job.backend == "ray"
    base = _base_environment(job)
    common = {**base, **job.environment, **fact.environment, **_own(job, fact), **rank.environment}
    if job.spec.name == "vllm" and job.backend != "native":
        common |= _ray.environment(wishes.ray, fact.cluster_address)
    ray_argv = _ray.argv(wishes.ray, fact.cluster_address, head.cluster_address)
    address = f"{head.cluster_address}:{wishes.ray.port}"
    environment = {**common, "RAY_ADDRESS": address} if over_ray else dict(common)
    served = _trtllm.served_name(launch) if job.spec.name == "tensorrt-llm" else job.served
    # Under Ray and MPI the workers' processes come from the head; its command is in every plan.
    argv = list(rank.argv) or list(MODULES[job.spec.name].ranks(launch)[0].argv)
    requirements = job.requirements
    return {
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
        "mounts": _mounts(job),
        "not_started": _not_startable(job, launch.parallel),
        "venv": {"path": wishes.venv_path, "requirements": requirements},
        "home": wishes.home,
        "model_cache": "" if job.model.startswith("/") else wishes.hf_home,
        "ray": {
            "needed": over_ray,
            "address": address,
            "members": {node.host: node.cluster_address for node in job.ordered},
            "argv": ray_argv,
            "env": common,
            "command_line": _systemd.command(ray_argv),
            "environment_file": _systemd.environment_file(common),
            "token_path": wishes.ray.token_path,
            "temp_dir": wishes.ray.temp_dir,
            "config_hash": _hash(ray_argv, common, requirements),
        },
        "engine": {
            "name": job.spec.name,
            "version": job.version,
            "runs_here": bool(rank.argv),
            "argv": argv,
            "env": environment,
            # In a container the program is found by its name; that is not for systemd.
            "command_line": _systemd.command(argv) if job.runtime == "venv" else "",
            "environment_file": _systemd.environment_file(environment),
            "files": dict(rank.files),
            "ports": dict(rank.ports),
            "host": API_HOST,
            "port": wishes.port,
            "endpoint": f"http://{API_HOST}:{wishes.port}/v1",
            "model": job.model,
            "served_model_name": served,
            "probe": {"path": "/v1/chat/completions", "model": served, "max_tokens": 1},
            "health": HEALTH[job.spec.name],
            "config_hash": _hash(argv, environment, requirements),
        },
    }


def _own(job: _Job, fact: FabricFact) -> dict[str, str]:
    """What tells a rank its own address; Ray's part has it too."""
    return {"VLLM_HOST_IP": fact.cluster_address} if job.spec.name == "vllm" else {}


def _mounts(job: _Job) -> list[dict[str, Any]]:
    """Paths of the node in the container, at the same place there; a patch covers a file of the image."""
    if job.runtime != "container":
        return []
    model = job.model if job.model.startswith("/") else job.wishes.hf_home
    made = [{"source": model, "target": model, "read_only": job.model.startswith("/"), "why": "the model"}]
    if job.spec.name == "tensorrt-llm":
        made.append(
            {"source": "/etc/sparkmatrix", "target": "/etc/sparkmatrix", "read_only": True, "why": "its options"}
        )
    made += [
        {"source": patch.source, "target": patch.target, "read_only": True, "why": patch.why}
        for patch in job.recipe.patches
    ]
    return made


def _base_environment(job: _Job) -> dict[str, str]:
    """What recipe and user may override."""
    wishes = job.wishes
    made = {"HF_HUB_OFFLINE": "1"} if job.model.startswith("/") else {"HF_HOME": wishes.hf_home}
    if job.runtime == "venv":
        made["HOME"] = wishes.home
        # torch and vLLM compile with programs of the environment (ninja) and of the system (g++).
        made["PATH"] = f"{wishes.venv_path}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    if job.spec.name == "vllm":
        made["VLLM_NO_USAGE_STATS"] = "1"
        # Its ray_non_carry_over_env_vars.json keeps the API key out of what vLLM copies to the ranks.
        made["VLLM_CONFIG_ROOT"] = CONFIG_ROOT
    return made


def _hash(argv: Sequence[str], env: Mapping[str, str], requirements: Sequence[str]) -> str:
    """12 hexadecimal digits over everything that a restart would change."""
    text = json.dumps([list(argv), dict(env), list(requirements)], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _verdict(job: _Job, parallel: _parallel.Parallel | None, budget: _memory_fit.Budget | None) -> list[str]:
    """What is known of a plan that was refused."""
    lines = [f"Recipe {job.recipe.name}: {job.model} with {job.spec.label} on {len(job.ordered)} node(s)"]
    lines += [parallel.reason] if parallel else []
    return lines + ([f"Memory per node: {budget.sentence()}", budget.room()] if budget else [])


def _summary(job: _Job, plans: Mapping[str, Mapping[str, Any]]) -> list[str]:
    head = plans[job.ordered[0].host]
    engine, expected = head["engine"], head["expectation"]
    nodes = ", ".join(f"{fact.host} {fact.cluster_address}" for fact in job.ordered)
    version = f" {job.version}" if job.version else ""
    lines = [
        f"Recipe {job.recipe.name}: {job.model} with {engine['name']}{version} on {len(plans)} node(s): {nodes}",
        head["parallel"]["reason"],
        f"Memory per node: {head['memory']['sentence']}",
    ]
    lines += [head["memory"]["room"]] if head["memory"]["room"] else []
    if expected["high"]:
        lines.append(
            f"Expected for one stream: {expected['low']:.0f} to {expected['high']:.0f} tokens/s, an estimate from"
            " memory bandwidth (docs/engine.md)"
        )
    for item in expected["published"]:
        origin = "measured by this project" if item["measured_here"] else "reported, not repeated here"
        lines.append(
            f"{item['tokens_per_second']:g} tokens/s with {item['streams']} stream(s) on {item['engine']}: {origin}"
            f" ({item['source']})"
        )
    lines += [
        f"Endpoint: {engine['endpoint']} on {head['host']}, model name {engine['served_model_name']}",
        f"Command: {' '.join(engine['argv'])}",
    ]
    if head["not_pinned"]:
        lines.append(f"Not pinned: {', '.join(head['not_pinned'])}")
    return [*lines, *(f"Known hazard: {hazard}" for hazard in job.recipe.hazards)]
