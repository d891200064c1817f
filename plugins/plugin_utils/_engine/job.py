# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""One job: recipe, settings and nodes together, and what follows from them alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import OptionNames
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Memory, Parallel
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import (
    cache_layout,
    hazards,
    image_build,
    loaders,
    memory_fit,
    memory_options,
    parallelism,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.image_build import Build
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds import base as kinds_base
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.base import Engine
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.registry import KINDS
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.model import Architecture, Draft, Weights
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.ray import OBJECT_STORE
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.recipe import (
    Recipe,
    RecipeSettings,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.user_settings import UserSettings

GIB = memory_fit.GIB

LAUNCHES = ("auto", "ray", "native")
INTO_SWAP = "load-into-swap"  # word of engine_allow
MAX_NODES = 16  # that are tried
SHARES = (memory_fit.DEFAULT_UTILIZATION, memory_fit.MAX_UTILIZATION, memory_fit.HARD_MAX_UTILIZATION)
_STATES = {"float32": 4, "float16": 2, "bfloat16": 2}  # bytes of a value, by vLLM's mamba-ssm-cache-dtype
DEFAULT_BATCHED = 8192  # tokens that are computed in one step when nobody sets them


@dataclass(frozen=True)
class Profile:
    """What a cluster is used for, laid over any recipe; what an engine adds to it is in its file.

    ``context`` is what the recipe's is raised to where the model can; ``at_most`` is what it is lowered to.
    """

    description: str
    concurrency: int
    context: int = 0
    at_most: int = 0
    batched: int = 0  # tokens that are computed in one step; 0: the engine's default
    throughput: bool = False

    def context_of(self, recipe: Recipe) -> int:
        """Tokens of the longest request: of the profile, as far as the model goes."""
        limit = recipe.architecture.max_context or recipe.context
        wanted = max(recipe.context, self.context)
        return min(wanted, limit, self.at_most or wanted)


PROFILES: Mapping[str, Profile] = {
    "chatbot": Profile("short answers for several people", concurrency=8, at_most=16384, batched=4096),
    "agentic": Profile(
        "long prompts that grow from call to call, with tools",
        concurrency=4,
        context=65536,
        batched=4096,
    ),
    "batch": Profile(
        "many requests at once; the speed of one does not matter",
        concurrency=32,
        at_most=8192,
        batched=8192,
        throughput=True,
    ),
    # 2048 tokens in one step keep the prefill's activations small: reports of frozen hosts are about long prefills.
    "long_context": Profile("few very long prompts", concurrency=1, context=131072, batched=2048),
}


@dataclass(frozen=True)
class Job:
    """What all nodes have in common."""

    recipe: Recipe
    settings: UserSettings
    ordered: tuple[FabricFact, ...]  # by rank; the first is the head
    engine: Engine
    recipe_settings: RecipeSettings
    profile: Profile | None
    options: Mapping[str, Any]
    environment: Mapping[str, str]
    architecture: Architecture
    weights: Weights
    shaped: bool = False  # architecture and weights are the model's own files', not the recipe's
    parallel: Parallel | None = None  # once it is known, as the next
    budget: Memory | None = None  # of the smallest node; none on a CPU
    ways: tuple[str, ...] = ()  # settings with which it would fit where it does not, each alone
    others: tuple[str, ...] = ()  # what else would do, in words
    spelled: Mapping[str, Any] = field(default_factory=dict)  # the options, from memory_options

    @property
    def several(self) -> bool:
        return len(self.ordered) > 1

    @property
    def model(self) -> str:
        return self.settings.model or self.recipe.model

    @property
    def served(self) -> str:
        return self.settings.served_model_name or self.recipe.served_model_name or self.recipe.name

    @property
    def names(self) -> OptionNames:
        return self.settings.names

    @property
    def where(self) -> str:
        return f"recipe {self.recipe.name}"

    @property
    def user(self) -> kinds_base.User:
        return kinds_base.User(
            kinds_base.merge(self.engine, {}, self.settings.options), self.settings.environment, self.names
        )

    @property
    def draft(self) -> Draft | None:
        """The recipe's, unless the options bring one."""
        return None if self.engine.draft_option in self.options else self.recipe.draft

    @property
    def drafting(self) -> kinds_base.Drafting | None:
        """What the options say of speculative decoding."""
        return self.engine.drafting(self.spelled)

    @property
    def used_draft(self) -> Draft | None:
        """What will draft: the recipe's, as far as the options leave it. One that nobody has the shape of has none."""
        told, own = self.drafting, self.recipe.draft
        if told is None:
            return own
        if told.nothing:
            return None
        below = None if told.whole else own
        model = told.model if told.model not in {"", self.model} else below.model if below else ""
        if own and own.model == model:
            return replace(own, tokens=told.tokens or own.tokens)
        # Layers of the model itself are among its files; there is one of them.
        return Draft(told.method, told.tokens, model, layers=0 if model else 1)

    @property
    def unknown_draft(self) -> str:
        """A draft model of which nobody has said what it takes."""
        draft = self.used_draft
        return draft.model if draft and not (draft.weights_gb and (draft.layers or draft.caches)) else ""

    @property
    def runtime(self) -> str:
        return self.settings.runtime or self.recipe.runtime or self.engine.runtime

    @property
    def requirements(self) -> list[str]:
        return [*self.settings.requirements, *self.recipe_settings.requirements]

    @cached_property
    def image(self) -> str:
        """Asked for often, and of one that is built by all its files."""
        if self.runtime != "container":
            return ""
        if self.build:
            return image_build.name(self.settings.image or f"sparkmatrix/{self.recipe.name}:own", self.build)
        return self.settings.image or self.recipe_settings.image or self.engine.image

    @property
    def build(self) -> Build:
        """The user's; the recipe's, where the user names no image."""
        own = not (self.settings.image or self.settings.image_build) and self.engine.opaque
        return self.recipe.own_build if own else self.settings.image_build

    @property
    def version(self) -> str:
        """``major.minor.patch`` of the engine, or an empty text."""
        if self.runtime == "venv":
            return kinds_base.pinned(self.requirements, self.engine.distributions)
        own = "" if self.settings.image else self.recipe_settings.version
        return own or self.engine.image_version(self.image)

    @property
    def backend(self) -> str:
        """How the ranks find each other."""
        if not self.several:
            return "single"
        return self.engine.backend(self.settings.launch, self.replicas_of_one, self.image)

    @property
    def replicas_of_one(self) -> bool:
        return bool(self.parallel and self.parallel.replicas_of_one)

    @property
    def context(self) -> int:
        fallback = self.profile.context_of(self.recipe) if self.profile else self.recipe.context
        return self.settings.context or fallback

    @property
    def concurrency(self) -> int:
        """Requests of full length that must fit: a promise."""
        return self.settings.concurrency or (self.profile.concurrency if self.profile else self.recipe.concurrency)

    def number(self, option: str) -> int | None:
        """In an option, whichever way it is written."""
        asked = memory_options.number(self.spelled.get(memory_options.plain(option)))
        return None if asked is None else int(asked)

    @property
    def took(self) -> int:
        """Bytes of the fullest node, when the same recipe served from the same image before; 0: it has not."""
        mine = (self.recipe.name, self.image, len(self.ordered))
        hosts = [self.settings.taken.get(fact.host, ()) for fact in self.ordered]
        # More than a Spark has is nothing that was measured; services beside it on other nodes would be refused.
        known = [[one for one in here if one.took <= memory_fit.GB10_TOTAL] for here in hosts]
        found = [next((one.took for one in here if (one.recipe, one.image, one.nodes) == mine), 0) for here in known]
        return max(found) if all(found) else 0

    @property
    def sequences(self) -> int:
        """Requests that the scheduler runs at once, whatever their length: a limit."""
        asked = self.number(self.engine.sequences_option)
        if asked and asked > 0:
            return asked
        return self.concurrency if self.recipe.device == "cpu" else max(self.concurrency, memory_fit.SEQUENCES)

    @property
    def batched(self) -> int:
        """Tokens that are computed in one step."""
        asked = self.number(self.engine.batched_option)
        # SGLang: a negative number is a whole prompt.
        return DEFAULT_BATCHED if asked is None else asked if asked > 0 else self.context

    @property
    def drafted_at_once(self) -> int | None:
        """Requests whose drafts fit into one step; nothing where drafts do not have to."""
        draft = self.used_draft
        in_one = draft and draft.method in self.engine.drafts_in_one_step
        return self.batched // (draft.tokens + 1) if draft and in_one else None


def make_job(
    recipe: Recipe,
    facts: Mapping[str, FabricFact],
    settings: UserSettings,
    name: str,
    shape: tuple[Architecture, Weights | None] | None,
) -> Job:
    engine = KINDS[name]
    recipe_settings = recipe.settings(name) or RecipeSettings()
    profile = PROFILES.get(settings.profile)
    of_profile = dict(engine.profile_options.get(settings.profile, {}))
    if profile and profile.batched and recipe.device == "gpu" and engine.batched_option:
        of_profile[engine.batched_option] = profile.batched
    options = kinds_base.merge(
        engine, {**of_profile, **kinds_base.merge(engine, recipe_settings.options, {})}, settings.options
    )
    architecture, weights = shape or (recipe.architecture, None)
    job = Job(
        recipe=recipe,
        settings=settings,
        ordered=tuple(sorted(facts.values(), key=lambda fact: fact.rank)),
        engine=engine,
        recipe_settings=recipe_settings,
        profile=profile,
        options=options,
        # A recipe's environment is that of its engine; the common part of others is in engines.<name>.environment.
        environment={
            **recipe_settings.environment,
            **{name: str(value) for name, value in settings.environment.items()},
        },
        architecture=architecture,
        shaped=shape is not None,
        weights=weights or Weights(int(recipe.weights_gb * 1e9), int(recipe.replicated_gb * 1e9)),
    )
    job = replace(job, spelled=memory_options.spelled(engine, job.version, options))
    added = hazards.settings(facts_of(job))
    options = {**added, **options}
    return replace(job, options=options, spelled=memory_options.spelled(engine, job.version, options)) if added else job


def facts_of(job: Job) -> dict[str, str | int]:
    """What :mod:`_engine.hazards` look at. Options have two dashes, keys of mappings a dot, switches true or false."""
    draft, told, parallel = job.used_draft, job.drafting, job.parallel or Parallel(0, 0, "")
    method = draft.method if draft else told.method if told else ""
    made: dict[str, str | int] = {
        "engine": job.engine.name,
        "label": job.engine.label,
        "version": job.version,
        "model": f"{job.recipe.model} {job.settings.model}".strip(),
        "quantization": f"{job.recipe.quantization} {job.recipe.model}",
        "device": job.recipe.device,
        "experts": job.architecture.experts,
        "context": job.context,
        "draft": method or ("unknown" if draft or told else ""),
        "draft_model": draft.model if draft else "",
        "image": _last(job.image),
        "requirements": " ".join(map(_last, job.requirements)) if job.runtime == "venv" else "",
        "backend": job.backend,
        "nodes": len(job.ordered),
        "tensor": parallel.tensor,
        "pipeline": parallel.pipeline,
        "data": parallel.data,
        "expert": str(parallel.expert).lower(),
        "attention": job.architecture.attention,
        "patches": len(job.recipe.patches),
        "prefix_cache_gb": job.settings.prefix_cache_gb,
        "weights_gb": int(job.budget.weights / 1e9) if job.budget else 0,
        **{name: value for name, value in job.environment.items() if name.isupper()},
    }
    options = dict(job.spelled)
    if job.draft:
        options |= {f"{job.engine.draft_option}.{name}": value for name, value in job.draft.options.items()}
    for name, value in options.items():
        made[f"--{name.replace('_', '-')}"] = str(value).lower() if isinstance(value, bool) else str(value)
    return made


def known_problems(job: Job) -> list[str]:
    return [*hazards.notes(facts_of(job), job.names), *job.recipe.hazards]


def _last(item: str) -> str:
    """Of an image or a requirement what is neither a host, nor a digest, nor an address."""
    return item.rpartition("/")[2].partition("@")[0]


def _load(job: Job, data: int = 1) -> cache_layout.Load:
    draft = job.used_draft
    return cache_layout.Load(
        job.context,
        -(-job.concurrency // data),
        job.engine.kv_dtype(job.options),
        batched=job.batched,
        drafted=draft.tokens if draft else 0,
        draft_layers=draft.layers if draft else 0,
        draft_kv=(draft.kv_heads, draft.head_dim) if draft else (0, 0),
        draft_caches=draft.caches if draft else (),
        sequences=job.sequences,
        loader=str(job.options.get(job.engine.loader_option, "")),
        prefixes=_on(job, "enable_prefix_caching"),
        ahead=int(_on(job, "async_scheduling")),
        windows=not job.spelled.get("disable_hybrid_kv_cache_manager"),
    )


def _on(job: Job, option: str) -> bool:
    """What vLLM does where nobody says otherwise."""
    return job.spelled.get(option) is not False and not job.spelled.get(f"no_{option}")


def share_of_node(job: Job, total: int, context: int = 0) -> float:
    """What engines may have of a node, all services on it together. ``context``: instead of the job's."""
    free = int(job.settings.free_memory_gib * GIB)
    asked = job.settings.gpu_memory_utilization or job.recipe.gpu_memory_utilization
    return memory_fit.utilization(context or job.context, asked, total, free)


def fit(job: Job, parallel: Parallel, memory: Mapping[str, int]) -> Memory:
    """The budget of the smallest node, since every rank gets the same share."""
    measured = [memory[fact.host] for fact in job.ordered if memory.get(fact.host)]
    total = min(measured) if len(measured) == len(job.ordered) else 0
    draft, told, settings = job.used_draft, job.drafting, job.settings
    apart = (told.tensor if told else 0) or (draft and draft.options.get("draft_tensor_parallel_size"))
    share = share_of_node(job, total or memory_fit.GB10_TOTAL)
    beyond = memory_fit.LONG_CONTEXT + (job.context <= memory_fit.LONG_CONTEXT)
    other_share = share_of_node(job, total or memory_fit.GB10_TOTAL, beyond)
    # Shares that are more than the whole are found where all services are known.
    others_share = min(settings.others_share, 1 - settings.memory_share)
    beside = int(share * others_share * (total or memory_fit.GB10_TOTAL))
    states = _STATES.get(str(job.spelled.get("mamba_ssm_cache_dtype")), job.architecture.state_bytes)
    return memory_fit.fit(
        replace(job.architecture, state_bytes=states),
        parallel,
        job.weights,
        _load(job, parallel.data),
        share=share * settings.memory_share,
        other_share=other_share * settings.memory_share,
        overhead_gib=job.recipe.overhead_gib,
        total=total,
        draft=int(draft.weights_gb * 1e9 / (kinds_base.whole(apart) or parallel.tensor)) if draft else 0,
        object_store=OBJECT_STORE if job.backend == "ray" else 0,
        beside=beside + settings.others * memory_fit.ENGINE_HOST,
        eager=bool(job.options.get(job.engine.eager_option)),
        takes=memory_options.takes(job.engine, job.spelled, job.architecture, parallel.tensor * parallel.pipeline),
        into_swap=INTO_SWAP in settings.allow,
        at_once=job.drafted_at_once or 0,
        # On hybrid models reports of 25 to 36 GiB beside its weights, and no measure (jschmied/dgx-spark-setup-guide).
        least=bool(draft and draft.method == "dspark" and job.architecture.linear_layers),
        prefixes=settings.prefix_cache_gb > 0,
    )


def split(job: Job, memory: Mapping[str, int]) -> tuple[Job, list[Finding]]:
    """The job with its sizes and its budget, or without and with the reasons."""
    recipe, settings = job.recipe, job.settings
    if job.engine.opaque:
        reason = "How the model is split over its nodes, its command says."
        return replace(job, parallel=Parallel(len(job.ordered), 1, reason)), []
    asked = parallelism.Asked(
        tensor=settings.tensor_parallel_size or recipe.tensor_parallel_size,
        pipeline=settings.pipeline_parallel_size or recipe.pipeline_parallel_size,
        data=settings.data_parallel_size or recipe.data_parallel_size,
        expert=recipe.expert_parallel if settings.expert_parallel is None else settings.expert_parallel,
        throughput=bool(job.profile and job.profile.throughput),
    )
    if asked.throughput and recipe.device == "gpu":
        whole = fit(job, Parallel(1, 1, "", len(job.ordered)), memory).verdict != memory_fit.NO
        asked = replace(asked, whole_on_one=whole)
    parallel, problems = parallelism.choose(job.architecture, len(job.ordered), asked, job.engine)
    job = replace(job, parallel=parallel)
    if not parallel or recipe.device != "gpu":
        return job, problems
    budget = fit(job, parallel, memory)
    job = replace(job, budget=budget)
    if budget.verdict == memory_fit.NO:
        job = replace(
            job,
            ways=tuple(_ways(job, parallel, budget, memory)),
            others=tuple(_others(job, parallel, budget, memory, asked)),
        )
    return job, problems


def _ways(job: Job, parallel: Parallel, budget: Memory, memory: Mapping[str, int]) -> Iterator[str]:
    """Settings with which it fits, each tried alone."""
    names, settings, option = job.names, job.settings, job.engine.loader_option

    def fits(**values: Any) -> bool:
        return _fits(replace(job, settings=replace(settings, **values)), parallel, memory)

    share, free = share_of_node(job, budget.total), settings.free_memory_gib * GIB or budget.total
    others = [item for item in SHARES if share < item <= free / budget.total]
    if budget.budget + budget.host > budget.total:  # it is what it leaves that is too little
        others = [round(share - 0.05 * steps, 2) for steps in range(1, 10)]
    others.sort(key=lambda item: item > memory_fit.MAX_UTILIZATION)
    enough = next((item for item in others if item > 0 and fits(gpu_memory_utilization=item)), 0.0)
    if enough:
        frozen = f" (nodes have frozen above {memory_fit.MAX_UTILIZATION})"
        yield f"{names['gpu_memory_utilization']}: {enough}{frozen if enough > memory_fit.MAX_UTILIZATION else ''}"
    if 0 < budget.max_context < job.context and fits(context=budget.max_context):
        yield f"{names['context']}: {budget.max_context}"
    if 0 < budget.max_concurrency < job.concurrency and fits(concurrency=budget.max_concurrency):
        yield f"{names['concurrency']}: {budget.max_concurrency}"
    direct = {**job.options, option: loaders.DIRECT}
    if loaders.DIRECT in kinds_base.values_of(job.engine, job.version, option) and _fits(
        replace(job, options=direct), parallel, memory
    ):
        yield f"{names['options']}: {{{option}: {loaders.DIRECT}}}"


def _others(
    job: Job,
    parallel: Parallel,
    budget: Memory,
    memory: Mapping[str, int],
    asked: parallelism.Asked,
) -> Iterator[str]:
    """What else would do."""
    for name in job.engine.counted:
        left = {key: value for key, value in job.spelled.items() if key != memory_options.plain(name)}
        if len(left) < len(job.spelled) and _fits(replace(job, spelled=left), parallel, memory):
            yield f"leave {name} out"
    if job.settings.prefix_cache_gb > 0:
        nothing = replace(job.settings, prefix_cache_gb=0)
        if _fits(replace(job, settings=nothing), parallel, memory):
            yield f"set {job.names['prefix_cache_gb']}: 0"
    computed = replace(asked, tensor=0, pipeline=0, data=0)
    for nodes in range(len(job.ordered) + 1, min(job.recipe.max_nodes, MAX_NODES) + 1):
        split_over, _problems = parallelism.choose(job.architecture, nodes, computed, job.engine)
        if split_over and _fits(job, split_over, memory):
            yield f"use {nodes} nodes"
            break
    allowed = replace(job.settings, allow=[*job.settings.allow, INTO_SWAP])
    if _fits(replace(job, settings=allowed), parallel, memory):
        more = memory_fit.gib(budget.load_peak + budget.host - budget.total)
        yield f"give each node {more} GiB of swap or more and set {job.names['allow']}: [{INTO_SWAP}]"


def _fits(job: Job, parallel: Parallel, memory: Mapping[str, int]) -> bool:
    return fit(job, parallel, memory).verdict != memory_fit.NO
