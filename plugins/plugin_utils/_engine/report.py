# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a plan says of itself: budget, expected speed, and the sentences that a user reads."""

from __future__ import annotations

from collections.abc import Mapping

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import (
    Expectation,
    Memory,
    NodePlan,
    Published,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import (
    consent,
    expected_speed,
    option_tables,
    parallelism,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.job import Job


def verdict(job: Job) -> list[str]:
    """What is known of a plan that was refused."""
    lines = [f"Recipe {job.recipe.name}: {job.model} with {job.engine.label} on {len(job.ordered)} node(s)"]
    lines += [*([job.parallel.reason] if job.parallel else []), *_lowered(job)]
    return lines + ([f"Memory per node: {job.budget.sentence()}", job.budget.room()] if job.budget else [])


def _lowered(job: Job) -> list[str]:
    """Where the model is shorter than what the profile is for."""
    wanted, limit = job.profile.context if job.profile else 0, job.architecture.max_context
    if job.settings.context or not 0 < limit < wanted:
        return []
    return [f"Profile {job.settings.profile} asks for {wanted} tokens of context, and the model ends at {limit}"]


def memory_report(job: Job) -> Memory:
    budget = job.budget
    if budget is None:
        # vLLM's CPU platform sizes its cache by kv-cache-memory-bytes and knows no utilization.
        sentence = f"not computed: a CPU has no GPU memory; {job.concurrency} x {job.context} tokens as the recipe says"
        return Memory("not computed", sentence, "", job.recipe.device, job.context, job.concurrency, 0.0)
    sizes = {**budget.as_dict(), "context": job.context, "concurrency": job.concurrency}
    return Memory(
        **sizes, sentence=budget.sentence(), room=budget.room(), at_once=budget.at_once(), device=job.recipe.device
    )


def expectation(job: Job, parallel: parallelism.Parallel) -> Expectation:
    """A band for one stream, and what others have measured on as many nodes."""
    band = expected_speed.tokens_per_second(job.architecture, parallel, job.recipe.active_gb)
    low, high = band or (0.0, 0.0)
    published = tuple(
        Published(item.tokens_per_second, item.streams, item.engine, item.source, item.measured_here)
        for item in job.recipe.expected
        if item.nodes == len(job.ordered)
    )
    return Expectation(round(low, 1), round(high, 1), published)


def brings(job: Job) -> str:
    """What of a recipe is code, or reaches into the nodes."""
    settings = job.recipe_settings
    own_image = job.image and job.image == settings.image
    packages = job.runtime == "venv" and settings.requirements
    files = [f"{item.path} ({item.why})" for item in consent.host_files(job)]
    asked = [f"{address} ({name})" for address, name in consent.addresses(job)]
    allowed = [f"{danger.word} ({danger.why})" for danger in consent.dangers(job)]
    # Image and packages are code, and a version without a table may take for code what all others do not.
    known = option_tables.load(job.engine.name, job.version) and not own_image and not packages
    unread = "" if known else " that this release knows of"
    parts = [
        f"image {job.image}, which runs as root of a container" if own_image else "no image",
        f"packages {', '.join(settings.requirements)}" if packages else "no packages",
        f"host files {', '.join(files)}" if files else "no host files",
        f"outside addresses {', '.join(asked)}" if asked else "no outside addresses",
        f"with your consent {', '.join(allowed)}" if allowed else f"no remote code{unread}",
    ]
    return f"This recipe brings: {'; '.join(parts)}"


def summary(job: Job, plans: Mapping[str, NodePlan]) -> list[str]:
    (head,) = plans[job.ordered[0].host].here
    engine, expected = head.engine, head.expectation
    nodes = ", ".join(f"{fact.host} {fact.cluster_address}" for fact in job.ordered)
    version = f" {job.version}" if job.version else ""
    lines = [
        f"Recipe {job.recipe.name}: {job.model} with {engine.name}{version} on {len(plans)} node(s): {nodes}",
        brings(job),
        head.parallel.reason,
        *_lowered(job),
        f"Memory per node: {head.memory.sentence}",
    ]
    lines += [line for line in (head.memory.room, head.memory.at_once) if line]
    if expected.high:
        lines.append(
            f"Expected for one stream: {expected.low:.0f} to {expected.high:.0f} tokens/s, an estimate from"
            " memory bandwidth (docs/engine.md)"
        )
    for item in expected.published:
        origin = "measured by this project" if item.measured_here else "reported, not repeated here"
        lines.append(
            f"{item.tokens_per_second:g} tokens/s with {item.streams} stream(s) on {item.engine}: {origin}"
            f" ({item.source})"
        )
    lines += [
        f"Endpoint: {engine.endpoint} on {head.host}, model name {engine.served_model_name}",
        f"Command: {' '.join(engine.command.words)}",
    ]
    if head.not_pinned:
        lines.append(f"Not pinned: {', '.join(head.not_pinned)} (docs/recipes.md, Pinned revisions)")
    return [*lines, *(f"Known problem: {hazard}" for hazard in [*_compiled(job, engine.env), *job.recipe.hazards])]


def _compiled(job: Job, environment: Mapping[str, str]) -> list[str]:
    """An environment has its kernels fetched when it is made; what an image brings nobody knows before."""
    if job.runtime != "container" or "NVFP4" not in f"{job.recipe.quantization} {job.recipe.description}":
        return []
    return [
        "kernels for NVFP4 that the image lacks are compiled at its first start, beside the weights,"
        f" {environment['MAX_JOBS']} at a time; they are kept (docs/engine.md, Compiled kernels)"
    ]
