# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is refused or warned of before anything is started, beside the options themselves."""

from __future__ import annotations

from collections.abc import Mapping

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.image import MIN_RAY, MIN_RAY_TEXT
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import OptionNames
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan import GPUS
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import (
    memory_fit,
    option_tables,
    parallelism,
    profiles,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.job import (
    LAUNCHES,
    Job,
    fit,
    share_of_node,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds import base as kinds_base
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.registry import ENGINES
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.recipe import Recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render import systemd
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.secret_names import looks_secret
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.wishes import Wishes

GIB = memory_fit.GIB
WHERE = "engine plan"
MIN_PORT, MAX_PORT = 1024, 65535
MIN_OBJECT_STORE = 80 * 1024**2  # Ray takes no less
MAX_FREE_GIB = 122  # all that a Spark has

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


def check_nodes(recipe: Recipe, facts: Mapping[str, FabricFact], names: OptionNames) -> list[Finding]:
    count = len(facts)
    findings = check_facts(facts)
    if not facts:
        return findings
    if not recipe.min_nodes <= count <= recipe.max_nodes:
        findings.append(
            Finding(
                names["recipe"],
                f"{recipe.name} is for {recipe.min_nodes} to {recipe.max_nodes} nodes, and there are {count}",
                "Choose another recipe",
            )
        )
    if count > 1 and any(fact.transport == "socket" for fact in facts.values()):
        findings.append(
            Finding(
                WHERE,
                "the fabric has no RDMA, so tensor parallel answers slowly",
                f"{names['pipeline_parallel_size']} set to the number of nodes needs less exchange",
                severity="warning",
            )
        )
    return findings


def check_words(recipe: Recipe, wishes: Wishes, name: str) -> list[Finding]:
    names = wishes.names
    words = [
        (names["engine"], name, tuple(ENGINES)),
        (names["launch"], wishes.launch, LAUNCHES),
        (names["runtime"], wishes.runtime, ("", "venv", "container")),
        (names["profile"], wishes.profile, ("", *profiles.PROFILES)),
        ("engine_container_gpus", wishes.container.gpus, GPUS),
    ]
    findings = [
        Finding(where, f"{value!r} is not known", f"Choose one of: {', '.join(filter(None, allowed))}")
        for where, value, allowed in words
        if value not in allowed
    ]
    if wishes.model and not wishes.model.startswith("/"):
        findings.append(
            Finding(
                names["model_path"],
                f"{wishes.model!r} is no absolute path, and the engine would take it for a name on Hugging Face",
                "Name a directory that is on every node; models of Hugging Face are named in a recipe",
            )
        )
    return findings


def check_numbers(wishes: Wishes) -> list[Finding]:
    """Numbers that nothing can be computed from."""
    names, share = wishes.names, wishes.gpu_memory_utilization
    numbers: list[tuple[str, float, bool, str]] = [
        (names["context"], wishes.context, wishes.context >= 0, "0 (as the recipe says) or more"),
        (names["concurrency"], wishes.concurrency, wishes.concurrency >= 0, "0 (as the recipe says) or more"),
        (
            names["gpu_memory_utilization"],
            share,
            0 <= share <= 1,
            f"0 (computed) to {memory_fit.HARD_MAX_UTILIZATION}: it is a share, so 80 % is 0.8",
        ),
        (
            "engine_free_memory_gib",
            wishes.free_memory_gib,
            0 <= wishes.free_memory_gib <= MAX_FREE_GIB,
            f"0 (not measured) to {MAX_FREE_GIB}, in GiB",
        ),
        *(
            (names[f"{name}_parallel_size"], size, size >= 0, "0 (computed) to the number of nodes")
            for name, size in (
                ("tensor", wishes.tensor_parallel_size),
                ("pipeline", wishes.pipeline_parallel_size),
                ("data", wishes.data_parallel_size),
            )
        ),
    ]
    return [_outside(where, value, allowed) for where, value, good, allowed in numbers if not good]


def check_ports(job: Job) -> list[Finding]:
    """Ports, and the other numbers of Ray where it is started; each port may have one purpose only."""
    wishes, ray, names = job.wishes, job.wishes.ray, job.names
    ports = [(names["port"], wishes.port), (names["rendezvous_port"], wishes.rendezvous_port)]
    taken = {wishes.port: names["port"]}
    findings = []
    if job.backend == "ray":
        ports += [("ray_port", ray.port), ("ray_dashboard_port", ray.dashboard_port)]
        if ray.object_store_bytes < MIN_OBJECT_STORE:
            findings.append(_outside("ray_object_store_mib", ray.object_store_bytes // 1024**2, "80 or more, in MiB"))
        if ray.num_cpus < 1:
            findings.append(_outside("ray_num_cpus", ray.num_cpus, "1 or more"))
    findings += [
        _outside(where, port, f"{MIN_PORT} to {MAX_PORT}") for where, port in ports if not MIN_PORT <= port <= MAX_PORT
    ]
    used = ports[2:] if job.backend == "ray" else ports[1:2] if job.several else []
    if job.parallel and job.parallel.data > 1:
        used.append((f"the port of {job.engine.label}'s data parallel ranks", job.engine.replica_port))
    for where, port in used:
        if port in taken:
            findings.append(Finding(taken[port], f"{port} is {where}, too", "Choose another"))
        taken.setdefault(port, where)
    return findings


def _outside(where: str, value: float, allowed: str) -> Finding:
    return Finding(where, f"{value} is out of its range", f"Use {allowed}")


def _able(word: str) -> str:
    """Which engines can do it: a device or a task."""
    return f"Use {' or '.join(name for name, engine in ENGINES.items() if word in (*engine.devices, *engine.tasks))}"


def check_engine(job: Job) -> list[Finding]:
    recipe, name, names = job.recipe, job.engine.name, job.names
    findings = []
    if job.settings.unsupported:
        findings.append(
            Finding(
                job.where, f"{job.engine.label} cannot serve it: {job.settings.unsupported}", f"Use {recipe.engine}"
            )
        )
    if recipe.settings(name) is None:
        findings.append(
            Finding(
                job.where,
                f"it says nothing about {job.engine.label}, so only common settings are used",
                f"The recipe was made for {recipe.engine}",
                severity="warning",
            )
        )
    if recipe.device not in job.engine.devices:
        findings.append(Finding(job.where, f"{job.engine.label} does not run on CPUs here", _able("cpu")))
    if recipe.task not in job.engine.tasks:
        findings.append(Finding(job.where, f"{job.engine.label} is started for tokens only here", _able(recipe.task)))
    if job.wishes.model and not job.shaped and recipe.device == "gpu":
        findings.append(
            Finding(
                names["model_path"],
                f"weights and shape, and with them memory and sizes, are computed for {recipe.model} of the recipe",
                f"If {job.wishes.model} is another model, set {names['model_files']}: a directory of this controller"
                " with its config.json and model.safetensors.index.json",
                severity="warning",
            )
        )
    limit = job.architecture.max_context
    if limit and job.context > limit:
        findings.append(
            Finding(names["context"], f"{job.context} is above the model's {limit} tokens", f"Use at most {limit}")
        )
    if job.wishes.launch == "ray" and not job.engine.over_ray:
        findings.append(Finding(names["launch"], f"{job.engine.label} is not started over Ray here", "Use auto"))
    return findings


def check_environment(environment: Mapping[str, str], names: OptionNames) -> list[Finding]:
    per_node = PER_NODE.union(*(engine.per_node for engine in ENGINES.values()))
    refused = {name: why for engine in ENGINES.values() for name, why in engine.refused_environment.items()}
    findings = []
    for name in sorted(environment):
        if not systemd.NAME.match(name):
            findings.append(
                Finding(
                    names["environment"],
                    f"{name!r} is no name of an environment variable",
                    "Use letters, digits and _, and no digit first",
                )
            )
        elif "\0" in environment[name]:
            findings.append(Finding(names["environment"], f"{name} holds a NUL character", "Take it out"))
        elif name in per_node:
            findings.append(
                Finding(names["environment"], f"{name} differs from node to node", "Leave it out: the plan sets it")
            )
        elif name in refused:
            findings.append(Finding(names["environment"], f"{name} {refused[name]}", "Leave it out"))
        elif looks_secret(name):
            findings.append(
                Finding(
                    names["environment"],
                    f"{name} looks like a secret, and this environment is readable by every user of the node",
                    "Use a variable that names a file, such as HF_TOKEN_PATH",
                )
            )
    return findings


def check_runtime(job: Job) -> list[Finding]:
    """What the recipe or the user names for the other way to run an engine than the one that is used."""
    recipe, engine, names = job.recipe, job.engine, job.names
    findings = []
    if job.runtime == "container" and job.settings.requirements:
        findings.append(
            Finding(
                job.where,
                f"its requirements are not installed into an image: {', '.join(job.settings.requirements)}",
                f"Use an image that has them ({names['image']}), or set {names['runtime']}: venv",
                severity="warning",
            )
        )
    if job.runtime == "venv" and recipe.patches:
        targets = "; ".join(f"{patch.target} ({patch.why})" for patch in recipe.patches)
        findings.append(
            Finding(
                job.where,
                f"its patches are for files of an image, and a Python environment would go without them: {targets}",
                f"Set {names['runtime']}: container, or use a recipe without patches",
            )
        )
    if job.runtime == "venv" and not any(
        kinds_base.distribution(item) in engine.distributions for item in job.requirements
    ):
        line = f"{engine.distributions[0]}=={option_tables.versions(engine.name)[-1]}"
        findings.append(
            Finding(
                names["venv_requirements"],
                f"none of them brings {engine.label}: {', '.join(job.requirements) or 'there are none'}",
                f"Require {line}, and nothing of another engine, in an environment of its own ({names['venv_path']}),"
                f" or set {names['runtime']}: container",
            )
        )
    return findings


def check_ray(job: Job) -> list[Finding]:
    """The Ray of a Python environment, which a requirement names. An image is asked for its own on the nodes."""
    if job.backend != "ray" or job.runtime != "venv":
        return []
    names = job.names
    where, known = names["venv_requirements"], option_tables.versions("ray")[-1]
    remedy = f"Require ray[default]=={known}, or set {names['launch']}: native, which needs no Ray"
    ours = [requirement for requirement in job.requirements if kinds_base.distribution(requirement) == "ray"]
    if not ours:
        return [Finding(where, "ranks shall meet over Ray, and no requirement brings one", remedy)]
    findings = []
    for requirement in ours:
        version = kinds_base.pinned([requirement], ("ray",))
        if not version:
            found = f"{requirement!r} names no version of Ray; those before {MIN_RAY_TEXT} have no tokens"
            findings.append(Finding(where, found, remedy))
        elif tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < MIN_RAY:
            found = f"Ray {version} has no tokens ({MIN_RAY_TEXT} has): anyone who reaches its port could run code"
            findings.append(Finding(where, found, remedy))
        elif option_tables.load("ray", version) is None:
            findings.append(
                Finding(
                    where,
                    f"there is no option table for Ray {version}, so its options are not checked",
                    f"There are tables for {', '.join(option_tables.versions('ray'))}",
                    severity="warning",
                )
            )
    return findings


def check_startable(job: Job, parallel: parallelism.Parallel) -> list[Finding]:
    """What this release plans and does not start yet: an error where it should be started, else a warning."""
    reason = job.engine.not_started(job.backend, job.runtime, parallel, job.names)
    if reason is None:
        return []
    what, remedy = reason
    return [
        Finding(
            WHERE,
            f"this release plans, and does not start, {what}",
            f"{remedy}. playbooks/plan.yml prints the plan all the same",
            severity="warning" if job.wishes.only_print else "error",
        )
    ]


def _check_available(job: Job, share: float, total: int) -> list[Finding]:
    """What this run has measured; the keeper would wait for the memory, and then give up."""
    wishes = job.wishes
    if wishes.free_memory_gib or wishes.only_print:
        return []
    needed = share * (wishes.memory_share + wishes.others_share) * total
    return [
        Finding(
            fact.host,
            f"{wishes.available[fact.host] / GIB:.1f} GiB of memory are available and no engine runs there; the plan"
            f" takes {needed / GIB:.1f} GiB",
            f"Stop what uses it, or plan within it: engine_free_memory_gib: {int(wishes.available[fact.host] / GIB)}",
        )
        for fact in job.ordered
        if 0 < wishes.available.get(fact.host, 0) < needed
    ]


def judge_memory(
    job: Job, parallel: parallelism.Parallel, memory: Mapping[str, int]
) -> tuple[memory_fit.Budget, list[Finding]]:
    budget = fit(job, parallel, memory)
    wishes, share = job.wishes, share_of_node(job, budget.total)
    names = job.names
    variable = names["gpu_memory_utilization"]
    limit = memory_fit.utilization(job.context, 0)
    findings = []
    if share > memory_fit.HARD_MAX_UTILIZATION:
        findings.append(
            Finding(
                variable,
                f"{share} leaves the operating system {(1 - share) * budget.total / GIB:.0f} GiB, and a Spark without"
                " memory freezes as a whole",
                f"Use at most {memory_fit.MAX_UTILIZATION}",
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
    elif share > (memory_fit.MAX_UTILIZATION if job.context <= memory_fit.LONG_CONTEXT else limit):
        findings.append(
            Finding(
                variable,
                f"{share} is above {limit if job.context > memory_fit.LONG_CONTEXT else memory_fit.MAX_UTILIZATION}:"
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
    else:
        findings += _check_available(job, share, budget.total)
    if budget.verdict == "does not fit":
        found, remedy = memory_fit.refusal(budget, len(job.ordered), names)
        if wishes.memory_share < 1:
            remedy += f". Or give it a larger memory_share than {wishes.memory_share:g}"
        findings.append(Finding(job.where, found, remedy))
    elif budget.verdict == "tight":
        findings.append(
            Finding(
                job.where,
                f"memory is tight: {budget.sentence()}: {'; '.join(budget.reasons)}",
                f"If the engine does not start, lower {names['context']} or {names['concurrency']}",
                severity="warning",
            )
        )
    return budget, findings
