# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One job: recipe, settings and nodes together, and what follows from them alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import OptionNames
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import (
    image_build,
    memory_fit,
    parallelism,
    profiles,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.image_build import Build
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds import base as kinds_base
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.base import Engine
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.registry import ENGINES
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.model import Architecture, Weights
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.recipe import Draft, Recipe, RecipeSettings
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.user_settings import UserSettings

GIB = memory_fit.GIB

LAUNCHES = ("auto", "ray", "native")
DEFAULT_BATCHED = 8192  # tokens that are computed in one step when nobody sets them


@dataclass(frozen=True)
class Job:
    """What all nodes have in common."""

    recipe: Recipe
    settings: UserSettings
    ordered: tuple[FabricFact, ...]  # by rank; the first is the head
    engine: Engine
    recipe_settings: RecipeSettings
    profile: profiles.Profile | None
    options: Mapping[str, Any]
    environment: Mapping[str, str]
    architecture: Architecture
    weights: Weights
    shaped: bool = False  # architecture and weights are the model's own files', not the recipe's
    parallel: parallelism.Parallel | None = None  # once it is known, as the next
    budget: memory_fit.Budget | None = None  # of the smallest node; none on a CPU

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
    def runtime(self) -> str:
        return self.settings.runtime or self.recipe.runtime or self.engine.runtime

    @property
    def requirements(self) -> list[str]:
        return [*self.settings.requirements, *self.recipe_settings.requirements]

    @property
    def image(self) -> str:
        if self.runtime != "container":
            return ""
        if self.build.dockerfile:
            return image_build.name(self.settings.image, self.build)
        return self.settings.image or self.recipe_settings.image or self.engine.image

    @property
    def build(self) -> Build:
        return self.settings.image_build

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
        fallback = profiles.context_of(self.profile, self.recipe) if self.profile else self.recipe.context
        return self.settings.context or fallback

    @property
    def concurrency(self) -> int:
        """Requests of full length that must fit: a promise."""
        return self.settings.concurrency or (self.profile.concurrency if self.profile else self.recipe.concurrency)

    @property
    def sequences(self) -> int:
        """Requests that the scheduler runs at once, whatever their length: a limit."""
        asked = self.options.get(self.engine.sequences_option)
        if isinstance(asked, int) and not isinstance(asked, bool) and asked > 0:
            return asked
        return self.concurrency if self.recipe.device == "cpu" else max(self.concurrency, memory_fit.SEQUENCES)


def make_job(
    recipe: Recipe,
    facts: Mapping[str, FabricFact],
    settings: UserSettings,
    name: str,
    shape: tuple[Architecture, Weights | None] | None,
) -> Job:
    engine = ENGINES[name]
    recipe_settings = recipe.settings(name) or RecipeSettings()
    profile = profiles.PROFILES.get(settings.profile)
    of_profile = dict(engine.profile_options.get(settings.profile, {}))
    if profile and profile.batched and recipe.device == "gpu":
        of_profile[engine.batched_option] = profile.batched
    options = kinds_base.merge(
        engine, {**of_profile, **kinds_base.merge(engine, recipe_settings.options, {})}, settings.options
    )
    architecture, weights = shape or (recipe.architecture, None)
    return Job(
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


def _load(job: Job, data: int = 1) -> memory_fit.Load:
    batched = job.options.get(job.engine.batched_option, DEFAULT_BATCHED)
    draft = job.recipe.draft
    return memory_fit.Load(
        job.context,
        -(-job.concurrency // data),
        job.engine.kv_dtype(job.options),
        batched=batched if isinstance(batched, int) else DEFAULT_BATCHED,
        drafted=draft.tokens if draft else 0,
        draft_layers=draft.layers if draft else 0,
        sequences=job.sequences,
        loader=str(job.options.get(job.engine.loader_option, "")),
    )


def share_of_node(job: Job, total: int, context: int = 0) -> float:
    """What engines may have of a node, all services on it together. ``context``: instead of the job's."""
    free = int(job.settings.free_memory_gib * GIB)
    asked = job.settings.gpu_memory_utilization or job.recipe.gpu_memory_utilization
    return memory_fit.utilization(context or job.context, asked, total, free)


def fit(job: Job, parallel: parallelism.Parallel, memory: Mapping[str, int]) -> memory_fit.Budget:
    """The budget of the smallest node, since every rank gets the same share."""
    measured = [memory[fact.host] for fact in job.ordered if memory.get(fact.host)]
    total = min(measured) if len(measured) == len(job.ordered) else 0
    draft = job.recipe.draft
    settings = job.settings
    share = share_of_node(job, total or memory_fit.GB10_TOTAL)
    beyond = memory_fit.LONG_CONTEXT + (job.context <= memory_fit.LONG_CONTEXT)
    other_share = share_of_node(job, total or memory_fit.GB10_TOTAL, beyond)
    beside = int(share * settings.others_share * (total or memory_fit.GB10_TOTAL))
    return memory_fit.fit(
        job.architecture,
        parallel,
        job.weights,
        _load(job, parallel.data),
        share=share * settings.memory_share,
        other_share=other_share * settings.memory_share,
        overhead_gib=job.recipe.overhead_gib,
        total=total,
        draft=int(draft.weights_gb * 1e9 / parallel.tensor) if draft else 0,
        object_store=settings.ray.object_store_bytes if job.backend == "ray" else 0,
        beside=beside + settings.others * memory_fit.ENGINE_HOST,
        eager=bool(job.options.get(job.engine.eager_option)),
    )


def split(job: Job, memory: Mapping[str, int]) -> tuple[Job, list[Finding]]:
    """The job with its sizes and its budget, or without and with the reasons."""
    recipe, settings = job.recipe, job.settings
    asked = parallelism.Asked(
        tensor=settings.tensor_parallel_size or recipe.tensor_parallel_size,
        pipeline=settings.pipeline_parallel_size or recipe.pipeline_parallel_size,
        data=settings.data_parallel_size or recipe.data_parallel_size,
        expert=recipe.expert_parallel if settings.expert_parallel is None else settings.expert_parallel,
        throughput=bool(job.profile and job.profile.throughput),
    )
    if asked.throughput and recipe.device == "gpu":
        whole = fit(job, parallelism.Parallel(1, 1, "", len(job.ordered)), memory).verdict != "does not fit"
        asked = replace(asked, whole_on_one=whole)
    parallel, problems = parallelism.choose(job.architecture, len(job.ordered), asked, job.engine)
    job = replace(job, parallel=parallel)
    budget = fit(job, parallel, memory) if parallel and recipe.device == "gpu" else None
    return replace(job, budget=budget), problems
