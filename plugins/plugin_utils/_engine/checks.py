# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What is refused or warned of before anything is started: one table of checks, each with its severity.

A check sees what was asked for, or the job that it became, and yields findings; how these count is the table's.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths, strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import ports as fixed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding, SparkError, errors
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.image import MIN_RAY, MIN_RAY_TEXT
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import OptionNames
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import GPUS
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import (
    consent,
    hazards,
    image_build,
    memory_fit,
    memory_options,
    option_tables,
    own_command,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.job import (
    LAUNCHES,
    PROFILES,
    Job,
    facts_of,
    share_of_node,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds import base as kinds_base
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.registry import ENGINES, KINDS
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.parallelism import WHERE
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.recipe import MAX_PORT, MIN_PORT, Recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render import systemd_quoting
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.secret_names import looks_secret
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.user_settings import UserSettings

GIB = memory_fit.GIB
MAX_FREE_GIB = 122  # all that a Spark has

# Of the fabric's variables those that a service may set to another value.
FREE = frozenset({"NCCL_DEBUG"})
# Which transport serves is the fabric's, also where its fact does not say so.
OF_THE_FABRIC = frozenset({"NCCL_NET", "NCCL_IB_DISABLE", "NCCL_NET_PLUGIN"})
# Each node's own; a value for all nodes would be wrong on all but one.
PER_NODE = frozenset(
    {
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
class Asked:
    """What is known before there is a job."""

    recipe: Recipe
    facts: Mapping[str, FabricFact]
    settings: UserSettings

    @property
    def engine(self) -> str:
        return self.settings.engine or self.recipe.engine

    @property
    def names(self) -> OptionNames:
        return self.settings.names


@dataclass(frozen=True)
class Check:
    """A row of the table.

    ``stage``: when it is made, see :data:`CHECKS`. ``level``: how its findings count; empty where they say it
    themselves. ``to_print``: how they count where nothing is started from the plan.
    """

    stage: str
    judge: Callable[[Any], Iterable[Finding]]
    level: str = "error"
    to_print: str = ""

    @property
    def rule(self) -> str:
        """Its id, by the name of what judges."""
        return self.judge.__name__.strip("_")


def run(stage: str, subject: Any, table: Sequence[Check] = ()) -> list[Finding]:
    """All findings of a stage. ``subject``: what its judges take. ``table``: instead of :data:`CHECKS`."""
    made = []
    for check in table or CHECKS:
        if check.stage == stage:
            lowered = check.to_print and subject.settings.only_print
            level = check.to_print if lowered else check.level
            made += [
                replace(finding, severity=level or finding.severity, rule=check.rule)
                for finding in check.judge(subject)
            ]
    return made


def check_facts(facts: Mapping[str, FabricFact]) -> list[Finding]:
    """Whether the facts of all hosts are of one cluster."""
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
    return findings


def _facts(asked: Asked) -> list[Finding]:
    return check_facts(asked.facts)


def _number_of_nodes(asked: Asked) -> Iterator[Finding]:
    recipe, count = asked.recipe, len(asked.facts)
    if count and not recipe.min_nodes <= count <= recipe.max_nodes:
        yield Finding(
            asked.names["recipe"],
            f"{recipe.name} is for {recipe.for_nodes} node{'' if recipe.max_nodes == 1 else 's'}, and there"
            f" {'is' if count == 1 else 'are'} {count}",
            "Choose another recipe; playbooks/recipes.yml says which fit your machines",
        )


def _no_rdma(asked: Asked) -> Iterator[Finding]:
    if len(asked.facts) > 1 and any(fact.transport == "socket" for fact in asked.facts.values()):
        yield Finding(
            WHERE,
            "the fabric has no RDMA, so tensor parallel answers slowly",
            f"{asked.names['pipeline_parallel_size']} set to the number of nodes needs less exchange",
        )


def _words(asked: Asked) -> Iterator[Finding]:
    settings, names = asked.settings, asked.names
    for where, value, allowed in (
        (names["engine"], asked.engine, tuple(KINDS)),
        (names["launch"], settings.launch, LAUNCHES),
        (names["runtime"], settings.runtime, ("", "venv", "container")),
        (names["profile"], settings.profile, ("", *PROFILES)),
        ("engine_container_gpus", settings.gpus, GPUS),
    ):
        if value not in allowed:
            yield Finding(where, f"{value!r} is not known", f"Choose one of: {', '.join(filter(None, allowed))}")


def _model_path(asked: Asked) -> Iterator[Finding]:
    model = asked.settings.model
    if model and not model.startswith("/"):
        yield Finding(
            asked.names["model_path"],
            f"{model!r} is no absolute path, and the engine would take it for a name on Hugging Face",
            "Name a directory that is on every node; models of Hugging Face are named in a recipe",
        )


def _numbers(asked: Asked) -> Iterator[Finding]:
    """Numbers that nothing can be computed from."""
    settings, names = asked.settings, asked.names
    share = settings.gpu_memory_utilization
    numbers: list[tuple[str, float, bool, str]] = [
        (names["context"], settings.context, settings.context >= 0, "0 (as the recipe says) or more"),
        (names["concurrency"], settings.concurrency, settings.concurrency >= 0, "0 (as the recipe says) or more"),
        (
            names["gpu_memory_utilization"],
            share,
            0 <= share <= 1,
            f"0 (computed) to {memory_fit.HARD_MAX_UTILIZATION}: it is a share, so 80 % is 0.8",
        ),
        (
            names["prefix_cache_gb"],
            settings.prefix_cache_gb,
            settings.prefix_cache_gb >= 0,
            "0 (nothing is kept) or more, in GB of each node's disk",
        ),
        (
            "engine_free_memory_gib",
            settings.free_memory_gib,
            0 <= settings.free_memory_gib <= MAX_FREE_GIB,
            f"0 (not measured) to {MAX_FREE_GIB}, in GiB",
        ),
        *(
            (names[f"{name}_parallel_size"], size, size >= 0, "0 (computed) to the number of nodes")
            for name, size in (
                ("tensor", settings.tensor_parallel_size),
                ("pipeline", settings.pipeline_parallel_size),
                ("data", settings.data_parallel_size),
            )
        ),
    ]
    for where, value, good, allowed in numbers:
        if not good:
            yield _outside(where, value, allowed)


def _ports(job: Job) -> Iterator[Finding]:
    """Each may have one purpose only."""
    settings, names = job.settings, job.names
    ports = [(names["port"], settings.port), (names["rendezvous_port"], settings.rendezvous_port)]
    ports += (
        [("ray_port", settings.ray_port), ("ray_dashboard_port", settings.ray_dashboard_port)]
        if job.backend == "ray"
        else []
    )
    for where, port in ports:
        if not MIN_PORT <= port <= MAX_PORT:
            yield _outside(where, port, f"{MIN_PORT} to {MAX_PORT}")
    used = ports[2:] if job.backend == "ray" else ports[1:2] if job.several else []
    if job.parallel and job.parallel.data > 1:
        used.append((f"the port of {job.engine.label}'s data parallel ranks", job.engine.replica_port))
    for where, port in ports:
        if job.backend == "ray" and port in fixed.RAY_RANGE:
            found = f"{port} is one of Ray's ports ({fixed.RAY_RANGE[0]} to {fixed.RAY_RANGE[-1]})"
            yield Finding(where, found, "Choose another")
    taken = {settings.port: names["port"]}
    for where, port in used:
        if port in taken:
            yield Finding(taken[port], f"{port} is {where}, too", "Choose another")
        taken.setdefault(port, where)


def _outside(where: str, value: float, allowed: str) -> Finding:
    return Finding(where, f"{value} is out of its range", f"Use {allowed}")


def _able(word: str) -> str:
    """Which engines can do it: a device or a task."""
    return f"Use {' or '.join(name for name, engine in ENGINES.items() if word in (*engine.devices, *engine.tasks))}"


def _unsupported(job: Job) -> Iterator[Finding]:
    reason = job.recipe_settings.unsupported
    if reason:
        yield Finding(job.where, f"{job.engine.label} cannot serve it: {reason}", f"Use {job.recipe.engine}")


def _silent_recipe(job: Job) -> Iterator[Finding]:
    if job.recipe.settings(job.engine.name) is None:
        yield Finding(
            job.where,
            f"it says nothing about {job.engine.label}, so only common settings are used",
            f"The recipe was made for {job.recipe.engine}",
        )


def _abilities(job: Job) -> Iterator[Finding]:
    recipe, engine = job.recipe, job.engine
    if recipe.device not in engine.devices:
        yield Finding(job.where, f"{engine.label} does not run on CPUs here", _able("cpu"))
    if recipe.task not in engine.tasks:
        yield Finding(job.where, f"{engine.label} is started for tokens only here", _able(recipe.task))
    if job.draft and job.draft.method not in engine.drafts:
        able = ", ".join(name for name, other in ENGINES.items() if job.draft.method in other.drafts)
        yield Finding(job.where, f"{engine.label} cannot serve it: its draft is {job.draft.method}", f"Use {able}")


def _shape_of_another_model(job: Job) -> Iterator[Finding]:
    if job.settings.model and not job.shaped and job.recipe.device == "gpu":
        yield Finding(
            job.names["model_path"],
            f"weights and shape, and with them memory and sizes, are computed for {job.recipe.model} of the recipe",
            f"If {job.settings.model} is another model, set {job.names['model_files']}: a directory of this controller"
            " with its config.json and model.safetensors.index.json",
        )


def _context(job: Job) -> Iterator[Finding]:
    limit = job.architecture.max_context
    if limit and job.context > limit:
        yield Finding(
            job.names["context"], f"{job.context} is above the model's {limit} tokens", f"Use at most {limit}"
        )


def _served_name(job: Job) -> Iterator[Finding]:
    """It stands in units, where a newline begins another setting and a backslash takes the next one in."""
    if not job.served.isprintable() or "\\" in job.served:
        yield Finding(
            job.names["served_model_name"] if job.settings.served_model_name else job.where,
            f"the name for clients {strict.quoted(job.served)} has a backslash or a character that cannot be seen",
            "Give it a plain name (served_model_name)",
        )


def _options(job: Job) -> Iterator[Finding]:
    return kinds_base.examine(job.engine, job.version, job.options, job.environment, job.where, user=job.user)


def _environment(job: Job) -> Iterator[Finding]:
    per_node = PER_NODE.union(*(engine.per_node for engine in ENGINES.values()))
    for name in sorted(job.environment):
        theirs = name in job.recipe_settings.environment and name not in job.settings.environment
        where = job.where if theirs else job.names["environment"]
        if not systemd_quoting.NAME.fullmatch(name):
            yield Finding(
                where,
                f"{name!r} is no name of an environment variable",
                "Use letters, digits and _, and no digit first",
            )
        elif "\0" in job.environment[name]:
            yield Finding(where, f"{name} holds a NUL character", "Take it out")
        elif name in per_node and not (job.engine.opaque and own_command.places(job.environment[name])):
            yield Finding(where, f"{name} differs from node to node", "Leave it out: the plan sets it")
        elif looks_secret(name, job.environment[name]):
            yield Finding(
                where,
                f"{name} looks like a secret, and this environment is readable by every user of the node",
                "Use a variable that names a file, such as HF_TOKEN_PATH, or an address without a login",
            )
        elif name in OF_THE_FABRIC and job.several:
            for fact in job.ordered:
                if fact.environment.get(name) != job.environment[name]:
                    yield Finding(
                        where,
                        f"{name} decides how nodes reach each other, and {fact.host} has"
                        f" {fact.environment.get(name) or 'none'}",
                        "Set it in fabric_environment, and run the fabric layer",
                    )
                    break


def _allowed_words(asked: Asked) -> Iterator[Finding]:
    known = consent.words()
    for word in asked.settings.allow:
        if word not in known and not consent.is_name(word, asked.recipe):
            # No dangerous one is guessed for "all" or "any".
            hint = option_tables.close(word, sorted(known)) if len(word) > 3 else ""
            hint = hint or "Name each one by itself, as the plan named it when it refused (docs/recipes.md)"
            yield Finding(asked.names["allow"], f"{word!r} is no name of something that can be allowed", hint)


def _dangers(job: Job) -> Iterator[Finding]:
    for danger in consent.dangers(job):
        if danger.place == "environment" and looks_secret(danger.word, job.environment[danger.word]):
            continue  # refused by _environment, whatever is allowed
        if not consent.granted(danger.word, job.settings.allow):
            allow = job.names["allow"]
            line = f" (in a command line: -e {allow}={danger.word})" if allow == "engine_allow" else ""
            away = f"; {job.names[danger.place]} can take it away" if danger.place else ""
            brings = ". It brings:" * bool(danger.brings) + "".join(f"\n     - {part}" for part in danger.brings)
            yield Finding(
                job.where,
                f"it sets {danger.word}, which {danger.why}",
                f"If you trust whoever wrote it, set {allow}: [{danger.word}]{line}{away}{brings}",
            )


def _host_files(job: Job) -> Iterator[Finding]:
    for item in consent.host_files(job):
        if item.mounted and not consent.within(item.path, job):
            allowed = ", ".join((*job.settings.mount_directories, job.settings.hf_home))
            yield Finding(
                job.where,
                f"it takes {item.path} of the nodes ({item.why}), which is not below {allowed}",
                "If you trust whoever wrote it, add its directory to engine_mount_directories",
            )


def _moving_image(job: Job) -> Iterator[Finding]:
    # One that is built here has a name that says from what.
    image = (job.build.base if not job.build.dockerfile else "") if job.build else job.image
    if image and consent.MOVING_IMAGE not in job.settings.allow and consent.moves(image):
        yield Finding(
            job.names["image"] if job.settings.image else job.where,
            f"{image} is another image tomorrow: its name has neither a digest nor a tag with a version",
            f"Name a release or a digest (name@sha256:...), or set {job.names['allow']}: [{consent.MOVING_IMAGE}]",
        )


def _image_build(job: Job) -> Iterator[Finding]:
    build, names = job.build, job.names
    where = names["image_build"] if build == job.settings.image_build else job.where
    if not build:
        if build.arguments:
            yield Finding(
                names["image_build"], "it names no dockerfile", "Name one: dockerfile: vllm, or the path of a file"
            )
        return
    if job.runtime != "container":
        yield Finding(
            where,
            "the engine runs in a Python environment and not in a container",
            f"Set {names['runtime']}: container, or take {names['image_build']} out",
        )
    image = job.settings.image
    if where != job.where and ("@" in image or not image.rpartition("/")[2].partition(":")[2]):
        yield Finding(
            names["image"],
            f"{image or 'nothing'} is no name for an image that is built here",
            "Give it a name and the version of the engine in it: sparkmatrix/vllm:v0.33.0",
        )
    secret = [name for name, value in build.arguments.items() if looks_secret(name, str(value))]
    if secret:
        yield Finding(
            where,
            f"whoever has the image can read its build arguments, and {', '.join(secret)} looks like a secret",
            "Build without it; what is private belongs onto the nodes, not into an image",
        )
    try:
        image_build.read(build)
        image_build.files(build)
    except SparkError as exc:
        yield Finding(where, exc.found, exc.remedy)


def _requirements_of_an_image(job: Job) -> Iterator[Finding]:
    if job.runtime == "container" and job.recipe_settings.requirements:
        names = job.names
        yield Finding(
            job.where,
            f"its requirements are not installed into an image: {', '.join(job.recipe_settings.requirements)}",
            f"Use an image that has them ({names['image']}), or set {names['runtime']}: venv",
        )


def _patches_without_an_image(job: Job) -> Iterator[Finding]:
    if job.runtime == "venv" and job.recipe.patches:
        targets = "; ".join(f"{patch.target} ({patch.why})" for patch in job.recipe.patches)
        yield Finding(
            job.where,
            f"its patches are for files of an image, and a Python environment would go without them: {targets}",
            f"Set {job.names['runtime']}: container, or use a recipe without patches",
        )


def _no_engine(job: Job) -> Iterator[Finding]:
    engine, names = job.engine, job.names
    if engine.opaque:
        if job.runtime == "venv":
            found = "a command of a recipe's own runs in a container, and not in a Python environment"
            yield Finding(names["runtime"], found, f"Set {names['runtime']}: container")
        return
    brought = {kinds_base.distribution(item) for item in job.requirements}
    if job.runtime == "venv" and brought.isdisjoint(engine.distributions):
        line = f"{engine.distributions[0]}=={option_tables.versions(engine.name)[-1]}"
        yield Finding(
            names["venv_requirements"],
            f"none of them brings {engine.label}: {', '.join(job.requirements) or 'there are none'}",
            f"Require {line}, and nothing of another engine, in an environment of its own ({names['venv_path']}),"
            f" or set {names['runtime']}: container",
        )


def _rays(job: Job) -> list[tuple[str, str]]:
    """(requirement, pinned version) for Ray in a Python environment. An image is asked for its own on the nodes."""
    ours = [item for item in job.requirements if kinds_base.distribution(item) == "ray"]
    return [(item, kinds_base.pinned([item], ("ray",))) for item in ours]


def _has_tokens(version: str) -> bool:
    return tuple(int(part) for part in version.split(".")[:2] if strict.digits(part) is not None) >= MIN_RAY


def _no_use_for_ray(job: Job) -> Iterator[Finding]:
    # A command of its own says itself how its ranks meet: nothing that was asked for is missing.
    if job.several and job.settings.launch == "ray" and job.backend != "ray" and not job.engine.opaque:
        why = job.engine.no_ray(job.replicas_of_one, job.image)
        yield Finding(job.names["launch"], f"{why}, so ray is not used", "Set it to auto")


def _ray_without_tokens(job: Job) -> Iterator[Finding]:
    if job.backend != "ray" or job.runtime != "venv":
        return
    where, known = job.names["venv_requirements"], option_tables.versions("ray")[-1]
    remedy = f"Require ray[default]=={known}, or set {job.names['launch']}: native, which needs no Ray"
    rays = _rays(job)
    if not rays:
        yield Finding(where, "the backend is Ray, but no requirement installs it", remedy)
    for requirement, version in rays:
        if not version:
            found = f"{requirement!r} names no version of Ray; those before {MIN_RAY_TEXT} have no tokens"
            yield Finding(where, found, remedy)
        elif not _has_tokens(version):
            found = f"Ray {version} has no tokens ({MIN_RAY_TEXT} has): anyone who reaches its port could run code"
            yield Finding(where, found, remedy)


def _unknown_ray(job: Job) -> Iterator[Finding]:
    if job.backend != "ray" or job.runtime != "venv":
        return
    for _requirement, version in _rays(job):
        if version and _has_tokens(version) and option_tables.load("ray", version) is None:
            yield Finding(
                job.names["venv_requirements"],
                f"there is no option table for Ray {version}, so its options are not checked",
                f"There are tables for {', '.join(option_tables.versions('ray'))}",
            )


def _clear_over_management(job: Job) -> Iterator[Finding]:
    """In a ring no fabric address is reached by all nodes, so they meet at their management addresses."""
    if not job.several or job.ordered[0].topology != "ring":
        return
    what = "Ray's traffic with its token, and the ranks' own" if job.backend == "ray" else "the ranks' traffic"
    yield Finding(
        WHERE,
        f"in a ring {what} beside NCCL's crosses the management network, and nothing encrypts it: who can listen "
        "there, or answer in the place of a node, can run code on all nodes",
        "Give the management network to these machines and people whom you trust alone, or connect the machines by a "
        "switch: then it stays on the fabric",
    )


def _rules_of_the_engine(job: Job) -> Iterator[Finding]:
    if job.parallel:
        yield from job.engine.rules(job.parallel, job.backend, job.where, job.names)


def _hazards(job: Job) -> Iterator[Finding]:
    return hazards.findings(facts_of(job), job.where, job.names)


def _capped_by_drafts(job: Job) -> Iterator[Finding]:
    at_once, wanted, draft = job.drafted_at_once, job.sequences, job.used_draft
    if draft and at_once is not None and at_once < wanted:
        yield Finding(
            job.where,
            f"drafts fill a step of {job.batched} tokens with {at_once} requests, so no more run at once, and not"
            f" {wanted}",
            f"Set {job.engine.batched_option}: {wanted * (draft.tokens + 1)} for all of them, or draft fewer tokens",
            severity="warning" if at_once else "error",  # then the engine does not start
        )


def _not_started(job: Job) -> Iterator[Finding]:
    reason = job.parallel and job.engine.not_started(job.backend, job.runtime, job.parallel, job.names)
    if reason:
        what, remedy = reason
        yield Finding(
            WHERE,
            f"this release plans, and does not start, {what}",
            f"{remedy}. playbooks/plan.yml prints the plan all the same",
        )


def _share_of_memory(job: Job) -> Iterator[Finding]:
    if not job.budget:
        return
    share, limit, variable = (
        share_of_node(job, job.budget.total),
        _usual_share(job),
        job.names["gpu_memory_utilization"],
    )
    if share > memory_fit.HARD_MAX_UTILIZATION:
        left = (1 - share) * job.budget.total / GIB
        yield Finding(
            variable,
            f"{share} leaves the operating system {left:.0f} GiB, and a Spark without memory freezes as a whole",
            f"Use at most {memory_fit.MAX_UTILIZATION}",
        )
    elif share > limit and not job.settings.gpu_memory_utilization:
        yield Finding(
            job.where,
            f"it asks for gpu_memory_utilization {share}, above {limit:.2f}",
            f"Set {variable}: {share} yourself if you accept that the node may freeze",
        )


def _large_share_of_memory(job: Job) -> Iterator[Finding]:
    if not job.budget or not job.settings.gpu_memory_utilization:
        return
    share = share_of_node(job, job.budget.total)
    limit = _usual_share(job) if job.context > memory_fit.LONG_CONTEXT else memory_fit.MAX_UTILIZATION
    if limit < share <= memory_fit.HARD_MAX_UTILIZATION:
        yield Finding(
            job.names["gpu_memory_utilization"],
            f"{share} is above {limit}: a long prompt can freeze the whole node",
            "Watch MemAvailable under load",
        )


def _usual_share(job: Job) -> float:
    return memory_fit.utilization(job.context, 0)


def _free_memory(job: Job) -> Iterator[Finding]:
    """What the user has measured, else what this run has; the keeper would wait for it, and then give up."""
    if not job.budget:
        return
    settings, total = job.settings, job.budget.total
    share = share_of_node(job, total)
    free = settings.free_memory_gib * GIB
    if free and share * total > free:
        yield Finding(
            job.names["gpu_memory_utilization"],
            f"{share} of {total / GIB:.1f} GiB is more than the {settings.free_memory_gib} GiB that are free",
            f"Use at most {int(100 * free / total) / 100}",
        )
    if free or settings.only_print:
        return
    needed = share * (settings.memory_share + settings.others_share) * total
    for fact in job.ordered:
        available = settings.available.get(fact.host, 0)
        if 0 < available < needed:
            yield Finding(
                fact.host,
                f"{available / GIB:.1f} GiB of memory are available and no engine runs there; the plan takes"
                f" {needed / GIB:.1f} GiB",
                f"Stop what uses it, or plan within it: engine_free_memory_gib: {int(available / GIB)}",
            )


def _own_command(job: Job) -> Iterator[Finding]:
    """Of a recipe with a command of its own: secrets in it, and what a user asks for and it would not hear."""
    recipe, settings, names = job.recipe, job.settings, job.names
    if not job.engine.opaque or recipe.own is None:
        return
    for name in sorted(set(own_command.secrets([*recipe.own.command.texts, *recipe.own.worker.texts]))):
        yield Finding(
            job.where,
            f"its command holds what looks like a secret ({name}), and command lines are readable by every user of the"
            " node",
            "Take it out: clients get keys from the gateway, and a token for downloads is a file (HF_TOKEN_PATH in"
            " environment)",
        )
    taken = {mount.target for mount in recipe.mounts} & {settings.hf_home, paths.KERNELS, "/etc/nccl.conf"}
    for target in sorted(taken):
        yield Finding(job.where, f"its mount at {target} is where the plan has one of its own", "Leave it out")
    yield from _writable_mounts(job, job.recipe.mounts)
    if settings.served_model_name and not recipe.own.names_served:
        yield Finding(
            names["served_model_name"],
            f"the command of {recipe.name} does not take it: it has no @served@",
            "Leave it out, or write @served@ where the command names the model for clients",
        )
    for option in sorted(settings.options):
        yield Finding(
            names["options"],
            f"{option} would reach nothing: the command of {recipe.name} is run as it is written",
            "Write it into the recipe's command",
        )


def _writable_mounts(job: Job, its: Sequence[own_command.HostMount]) -> Iterator[Finding]:
    """What a container may write, it may also make a link of, which leads anywhere on the node when that is mounted."""
    home = posixpath.normpath(job.settings.hf_home)
    mounts = [(own_command.plain(own_command.fill(one.source, {"model": job.model})), one.read_only) for one in its]
    writable = {home, *(source for source, read_only in mounts if not read_only)}
    for source, read_only in mounts:
        if never := own_command.forbidden(source):
            yield Finding(
                job.where, f"it mounts {source}, with {never} of the node in it", "Take it out, or name another model"
            )
        if folder := next((one for one in sorted(writable) if source.startswith(f"{one.rstrip('/')}/")), ""):
            yield Finding(
                job.where,
                f"it mounts {source}, which is below {folder}: a container may write there, and with a link in its"
                " place the next start would mount anything of the node",
                f"Mount {folder} itself, or a directory that is not below it",
            )
        elif not read_only and home.startswith(f"{source.rstrip('/')}/"):
            yield Finding(
                job.where,
                f"it may write to {source}, and so to what root notes of the models in {home}",
                "Set read_only: true, or mount a directory of its own",
            )


def _not_heard(job: Job) -> Iterator[Finding]:
    """What a user sets, and a command of a recipe's own does not take."""
    numbers = ("context", "concurrency", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    given = [name for name in (*numbers, "gpu_memory_utilization", "profile") if getattr(job.settings, name)]
    if job.engine.opaque and given:
        yield Finding(
            job.where,
            f"its command is run as it is written, without {', '.join(job.names[name] for name in given)}",
            "Write into its words or its script what they are for, or leave them out",
        )


def _other_engine(asked: Asked) -> Iterator[Finding]:
    own, wanted = KINDS.get(asked.recipe.engine), KINDS.get(asked.engine)
    if own and wanted and own is not wanted and (own.opaque or wanted.opaque):
        found = f"{asked.recipe.name} is a recipe for {own.name}, and {wanted.name} cannot serve it"
        yield Finding(asked.names["engine"], found, f"Leave it out, or set it to {own.name}")


def _uncounted(job: Job) -> Iterator[Finding]:
    """What takes memory, and nobody knows how much."""
    if job.recipe.device != "gpu":
        return
    mine = kinds_base.merge(job.engine, {}, job.settings.options)
    own = {name.partition(".")[0] for name in memory_options.spelled(job.engine, job.version, mine)}
    for name, found, remedy in memory_options.refused(job.engine, job.spelled):
        given = {option: value for option, value in job.options.items() if memory_options.plain(option) == name}
        if errors(kinds_base.examine(job.engine, job.version, given, {}, job.where)):
            continue  # said by _options
        yield Finding(job.names["options"] if name.partition(".")[0] in own else job.where, found, remedy)
    if job.unknown_draft:
        yield Finding(
            job.names["options"] if any(name.startswith("spec") for name in own) else job.where,
            f"{job.unknown_draft} drafts, and its weights and layers are not known: nobody can say what it takes",
            "Write the recipe's key draft, with its model, weights_gb and layers, in a recipe of your own"
            " (docs/recipes.md)",
        )


def _prefixes_not_kept(job: Job) -> Iterator[Finding]:
    if job.settings.prefix_cache_gb <= 0:
        return
    if job.recipe.task != "generate":
        yield Finding(
            job.names["prefix_cache_gb"],
            f"{job.recipe.name} is for {job.recipe.task}: nothing is computed that the next request could use",
            f"Set {job.names['prefix_cache_gb']}: 0",
        )
    for name, fine in job.engine.prefixes_otherwise.items():
        plain = memory_options.plain(name)
        given = [told for key, told in job.spelled.items() if key == plain or key.startswith(f"{plain}.")]
        if any(told != fine for told in given):
            yield Finding(
                job.names["prefix_cache_gb"],
                f"with the option {name} {job.engine.label} keeps no computed prompts, or keeps them in another way",
                f"Leave {name} out, or set {job.names['prefix_cache_gb']}: 0",
            )


def _expert_parallel(job: Job) -> Iterator[Finding]:
    if job.settings.expert_parallel and job.recipe.expert_parallel is False:
        yield Finding(
            job.names["expert_parallel"],
            f"recipe {job.recipe.name} switches expert parallel off, since the model does not run with it: "
            + "; ".join(hazard for hazard in job.recipe.hazards if "expert parallel" in hazard.casefold()),
            "Leave it at auto",
        )


def _does_not_fit(job: Job) -> Iterator[Finding]:
    if job.budget and job.budget.verdict == memory_fit.NO:
        found, remedy = memory_fit.refusal(job.budget, job.ways, job.others)
        if job.settings.memory_share < 1:
            remedy += f". Or give it a larger memory_share than {job.settings.memory_share:g}"
        yield Finding(job.where, found, remedy)


def _tight(job: Job) -> Iterator[Finding]:
    if job.budget and job.budget.verdict == "tight":
        yield Finding(
            job.where,
            f"memory is tight: {job.budget.sentence}: {'; '.join(job.budget.reasons)}",
            f"If the engine does not start, lower {job.names['context']} or {job.names['concurrency']}"
            if job.budget.load_peak + job.budget.host <= job.budget.total
            else "Watch memory and swap while it loads; more nodes or a smaller quantization take less",
        )


# asked: before there is a job, which needs all of it. numbers: what nothing could be computed from. job: recipe,
# settings and nodes. ray, ports: where the ranks meet. sizes: the split of the model, and the budget.
CHECKS = (
    Check("asked", _facts),
    Check("asked", _number_of_nodes),
    Check("asked", _no_rdma, "warning"),
    Check("asked", _words),
    Check("asked", _model_path),
    Check("asked", _allowed_words),
    Check("asked", _other_engine),
    Check("numbers", _numbers),
    Check("job", _unsupported),
    Check("job", _silent_recipe, "warning"),
    Check("job", _abilities),
    Check("job", _shape_of_another_model, "warning"),
    Check("job", _context),
    Check("job", _served_name),
    Check("job", _options, ""),
    Check("job", _environment),
    Check("job", _dangers),
    Check("job", _host_files),
    Check("job", _moving_image),
    Check("job", _image_build),
    Check("job", _requirements_of_an_image, "warning"),
    Check("job", _patches_without_an_image),
    Check("job", _no_engine),
    Check("job", _own_command),
    Check("job", _not_heard, "warning"),
    Check("job", _uncounted),
    Check("job", _prefixes_not_kept),
    Check("job", _expert_parallel),
    Check("ray", _ray_without_tokens),
    Check("ray", _unknown_ray, "warning"),
    Check("ray", _clear_over_management, "warning"),
    Check("ports", _ports),
    Check("sizes", _no_use_for_ray, "warning"),
    Check("sizes", _rules_of_the_engine),
    Check("sizes", _hazards, ""),
    Check("sizes", _capped_by_drafts, ""),
    Check("sizes", _share_of_memory),
    Check("sizes", _large_share_of_memory, "warning"),
    Check("sizes", _free_memory),
    Check("sizes", _does_not_fit),
    Check("sizes", _tight, "warning"),
    Check("sizes", _not_started, to_print="warning"),
)
