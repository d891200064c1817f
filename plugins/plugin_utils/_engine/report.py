# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What a plan says of itself: budget, expected speed, and the sentences that a user reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import named
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import (
    Expectation,
    Memory,
    NodePlan,
    Pace,
    Parallel,
    Published,
    ServicePlan,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import (
    consent,
    expected_speed,
    loaders,
    option_tables,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.job import (
    DEFAULT_BATCHED,
    Job,
    known_problems,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.registry import KINDS
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.memory_fit import gib

NOTHING = "This recipe brings: no image; no packages; no host files; no outside addresses; no remote code"
FITS = {"fits": "Fits", "tight": "Fits tightly", "does not fit": "Does not fit"}
# Under a plan of which nothing is started yet; the same for all services.
CHANGES = (
    "It changes network ports of the cables, system settings, a packet filter, /opt/sparkmatrix, services"
    " sparkmatrix-* (all: docs/reference.md). The way back: ansible-playbook reset.yml"
)
NOT_CHECKED = "Not checked: the options of its own command. A mistyped one shows when it starts"
NOT_KNOWN = "not known before its first start; it is measured then"
SMALL = 4200  # bytes of a cable's MTU, below which RDMA sends packets of 1024 or 2048
ASSUMED = "Assumed, as no machine was asked: network, addresses, memory (121.6 GiB of a GB10)"
MORE = "All of it, with the engine's command line: add -e engine_plan_details=true"


def verdict(job: Job) -> list[str]:
    """What is known of a plan that was refused. What does not fit has its figures in the refusal."""
    known = job.budget if job.budget and job.budget.verdict != "does not fit" else None
    return [
        _fits(job),
        *_model(job),
        *([job.parallel.reason] if job.parallel else []),
        *_lowered(job),
        *([f"Memory per node: {known.sentence}"] if known else []),
    ]


def _fits(job: Job) -> str:
    """The first line: does it fit, what, on which machines."""
    budget, names = job.budget, named([fact.host for fact in job.ordered])
    several = f"{len(job.ordered)} machines{f' ({names})' if job.settings.instance else ''}"
    where = several if job.several else names
    if job.engine.opaque:
        return f"{job.recipe.name} on {where}; its memory is {memory_report(job).sentence}"
    if budget is None:
        return f"Not computed whether it fits: {job.recipe.name} on {where}"
    sizes = f"{gib(budget.budget)} of {gib(budget.total)} GiB of memory{' each' if job.several else ''}"
    return f"{FITS[budget.verdict]}: {job.recipe.name} on {where}, {sizes}"


def _model(job: Job) -> list[str]:
    version, budget = f" {job.version}" if job.version else "", job.budget
    lines = [f"Model: {job.model} with {job.engine.label}{version}"]
    if budget and budget.max_concurrency:
        many = f"{budget.max_concurrency} request{'s' if budget.max_concurrency > 1 else ''} of {budget.context} tokens"
        lines.insert(0, f"Room: {many} at once, the longest single one {budget.longest}")
    return lines


def _lowered(job: Job) -> list[str]:
    """Where the model is shorter than what the profile is for."""
    wanted, limit = job.profile.context if job.profile else 0, job.architecture.max_context
    if job.settings.context or not 0 < limit < wanted:
        return []
    return [f"Profile {job.settings.profile} asks for {wanted} tokens of context, and the model ends at {limit}"]


def memory_report(job: Job) -> Memory:
    budget = job.budget
    if job.engine.opaque:
        recipe, took = job.recipe, job.took
        sentence = (
            f"{gib(took)} GiB{' of each machine' if job.several else ''}, measured when it served"
            if took
            else NOT_KNOWN
        )
        return Memory(
            "not computed", sentence, "", recipe.device, recipe.context, recipe.concurrency, 0.0, measured=took
        )
    if budget is None:
        # vLLM's CPU platform sizes its cache by kv-cache-memory-bytes and knows no utilization.
        sentence = f"not computed: a CPU has no GPU memory; {job.concurrency} x {job.context} tokens as the recipe says"
        return Memory("not computed", sentence, "", job.recipe.device, job.context, job.concurrency, 0.0)
    return replace(budget, context=job.context, concurrency=job.concurrency)


def served(job: Job, parallel: Parallel) -> expected_speed.Served:
    """What decides the speed of a job."""
    rails = [rail for fact in job.ordered for rail in fact.rails]
    small = any(rail.mtu < SMALL for rail in rails)
    return expected_speed.Served(
        job.architecture,
        parallel,
        job.weights.total - job.recipe.lookup_gb * 1e9,
        job.recipe.active_gb * 1e9,
        job.recipe.active_b * 1e9,
        job.engine.kv_dtype(job.options),
        job.used_draft,
        bool(job.options.get(job.engine.eager_option)),
        max(1, job.number(job.engine.batched_option) or DEFAULT_BATCHED),
        expected_speed.SMALL_MTU if small else 1.0,
    )


def expectation(job: Job, parallel: Parallel) -> Expectation:
    """What the model of cost says, and what others have measured on as many nodes."""
    published = tuple(
        Published(
            item.tokens_per_second,
            item.streams,
            item.engine,
            ", ".join(filter(None, (item.source, item.date))),
            item.measured_here,
            item.differs,
        )
        for item in job.recipe.expected
        if item.nodes == len(job.ordered)
    )
    loader = loaders.of(str(job.options.get(job.engine.loader_option, "")))
    # The costs are those of engines that are known; what a recipe's own command does nobody knows.
    load_s = 0.0 if job.engine.opaque else loader.seconds(job.weights.total, parallel.ranks)
    draft = job.used_draft
    made = Expectation(
        drafted=draft.tokens if draft else 0,
        accepted=round(expected_speed.accepted(draft), 2),
        assumed=bool(draft and not draft.acceptance),
        load_s=round(load_s),
        published=published,
    )
    if job.engine.opaque or not (job.recipe.active_gb and job.architecture.layers) or job.recipe.task != "generate":
        return made
    what = served(job, parallel)
    users = sorted({*(count for count in expected_speed.USERS if count < job.sequences), min(32, job.sequences)})
    if job.architecture.experts and not job.architecture.experts_per_token:
        users = [] if draft else [1]  # how many experts several tokens ask nobody knows
    paces = tuple(Pace(count, round(expected_speed.tokens_per_second(what, count), 1)) for count in users)
    made = replace(made, paces=paces)
    if what.parameters:
        prompt = min(expected_speed.PROMPT, job.context)
        made = replace(made, prompt=prompt, first_token_s=round(expected_speed.prefill_s(what, prompt), 1))
    low, high = made.healthy(1, job.engine.name)
    return replace(made, low=round(low, 1), high=round(high, 1))


def brings(job: Job) -> str:
    """What of a recipe is code, or reaches into the nodes."""
    settings = job.recipe_settings
    own_image = job.image and job.image == settings.image
    packages = job.runtime == "venv" and settings.requirements
    if job.engine.opaque:
        own = "".join(f"\n  - {part}" for part in consent.brought(job))
        return f"This recipe brings, with your consent {consent.COMMAND}:{own}"
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
    """What a person wants to know first; the engineer's part only where ``details`` are asked for."""
    (head,) = plans[job.ordered[0].host].here
    engine, brought = head.engine, brings(job)
    lines = [_fits(job), *_speed(head), *_model(job)]
    lines += [*([NOT_CHECKED] if job.engine.opaque else []), *_lowered(job)]
    if job.settings.only_print:
        lines += [_takes(job, head), *([] if job.settings.instance else [CHANGES])]
    lines.append(f"Endpoint: {engine.endpoint} on {head.host}, model name {engine.served_model_name}")
    if brought != NOTHING or job.settings.details:
        lines += brought.splitlines()
    if head.prefixes.base:
        lines.append(
            f"Prefix cache: kept over restarts, up to {head.prefixes.disk_gb} GB of each node's disk, with"
            f" {gib(head.prefixes.memory)} GiB of memory beside the engine's share"
        )
    lines += [f"Known problem: {hazard}" for hazard in [*_compiled(job, engine.env), *known_problems(job)]]
    if head.not_pinned:
        lines.append(f"Not pinned: {', '.join(head.not_pinned)} (docs/recipes.md, Pinned revisions)")
    return [*lines, *_details(job, head)] if job.settings.details else lines


def _speed(head: ServicePlan) -> list[str]:
    """How fast, what others report of it (the planned engine first), and how long until the first token."""
    expected, own = head.expectation, head.engine.name
    lines = []
    if expected.paces:
        first, *others = expected.paces
        several = [f"{pace.tokens_per_second:.0f} for {pace.users}" for pace in others]
        lines.append(f"Speed: {first.tokens_per_second:.0f} tokens/s for one user{_listed(several)} (estimate)")
        if expected.drafted:
            whose = "assumed" if expected.assumed else "as measured by others"
            drafted = f"{expected.drafted} drafted token{'' if expected.drafted == 1 else 's'}"
            text = f"With {drafted} a step of the engine gives {expected.accepted:.1f} tokens"
            lines.append(f"{text} ({whose}; the text decides)")
    single = sorted(
        (figure for figure in expected.published if figure.streams == 1),
        key=lambda figure: (figure.engine != own, bool(figure.differs)),
    )
    for figure in [figure for figure in single if figure.engine == single[0].engine]:
        engine = "" if figure.engine == own else f" with {KINDS[figure.engine].label}"
        who = "Measured by this project" if figure.measured_here else "Reported by others"
        differs = f", {figure.differs}" if figure.differs else ""
        lines.append(f"{who}: {figure.tokens_per_second:g} tokens/s for one user{engine}{differs} ({figure.source})")
    if expected.first_token_s:
        start = (expected.load_s + expected_speed.START_S) / 60
        lines.append(
            f"First token: {expected.first_token_s:.1f} s after {expected.prompt} tokens of prompt,"
            f" {start:.0f} min after a start (estimate)"
        )
    return lines


def _listed(several: Sequence[str]) -> str:
    return f", {', '.join(several)}" if several else ""


def _takes(job: Job, head: ServicePlan) -> str:
    """How long until it answers, where nothing is there yet."""
    if job.engine.opaque and not job.recipe.files_gb:
        return "First run: until image and model are there and loaded; how large they are its recipe does not say"
    load_s = head.expectation.load_s
    minutes = (
        expected_speed.LAYERS_MIN
        if job.engine.opaque
        else expected_speed.run_minutes(load_s, environment=not head.contained)
    )
    draft = job.used_draft
    files = job.weights.total / 1e9 if job.shaped else job.recipe.files_gb
    files += draft.weights_gb if draft and draft.model else 0.0
    text = f"First run: about {minutes:.0f} minutes"
    if head.model_cache:
        once, wait = " once" if job.several else "", files / expected_speed.GIGABIT_GB_PER_MIN
        text += f" plus {files:.0f} GB to download{once} ({wait:.0f} minutes at 1 Gb/s)"
    text += " and the container image" if head.contained else ""
    if job.engine.opaque:
        return f"{text} (estimates); how long its command loads is known after its first start"
    text += f"; a later start: {(load_s + expected_speed.START_S) / 60:.0f} minutes"
    if load_s:
        rate = job.weights.total / 1e9 / load_s
        text += f", {load_s / 60:.0f} of them for the weights at {rate:.1f} GB/s"
    return f"{text} (estimates)"


def _details(job: Job, head: ServicePlan) -> list[str]:
    own = head.engine
    nodes = ", ".join(f"{fact.host} {fact.cluster_address}" for fact in job.ordered)
    lines = [f"Addresses: {nodes}", head.parallel.reason, f"Memory per node: {head.memory.sentence}"]
    lines += [line for line in (head.memory.room, head.memory.at_once) if line]
    lines += _fabric(job, head)
    lines += [
        f"{item.tokens_per_second:g} tokens/s with {item.streams} stream(s) on {KINDS[item.engine].label}:"
        f" {'measured by this project' if item.measured_here else 'reported, not repeated here'} ({item.source})"
        for item in head.expectation.published
    ]
    other = job.recipe.own.worker if job.recipe.own and job.several else None
    workers = [f"Command of the other nodes: {' '.join(other.argv)}"] if other and other != job.recipe.command else []
    return [*lines, f"Command: {' '.join(own.command.words)}", *workers]


def _fabric(job: Job, head: ServicePlan) -> list[str]:
    """What a fault of the fabric costs, where ranks exchange a part of each layer."""
    if not head.expectation.first_token_s or head.parallel.tensor == 1:
        return []
    what = served(job, head.parallel)
    told = []
    for fault, share in (("one PCIe path of a port lost", expected_speed.HALF), ("MTU 1500", expected_speed.SMALL_MTU)):
        hurt = replace(what, fabric=share)
        pace = expected_speed.tokens_per_second(hurt, 1)
        wait = expected_speed.prefill_s(hurt, head.expectation.prompt)
        told.append(f"{fault}: {pace:.0f} tokens/s, first token after {wait:.1f} s")
    return [f"With a fault of the fabric (estimates): {'; '.join(told)}"]


def _compiled(job: Job, environment: Mapping[str, str]) -> list[str]:
    """An environment has its kernels fetched when it is made; what an image brings nobody knows before."""
    if job.runtime != "container" or "NVFP4" not in f"{job.recipe.quantization} {job.recipe.description}":
        return []
    return [
        "kernels for NVFP4 that the image lacks are compiled at its first start, beside the weights,"
        f" {environment['MAX_JOBS']} at a time; they are kept (docs/engine.md, Compiled kernels)"
    ]
