# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Several services side by side: who runs where, what they may not share, and one document per node.

One service is the list with one entry.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import ports as fixed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding, SparkError, errors
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import names as engine_names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import plan_document as documents
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.kept_plan import Taken
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import OptionNames
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import (
    Cluster,
    Head,
    Image,
    MpiPlan,
    NodePlan,
    Offer,
    RayPlan,
    ServicePlan,
    Unknown,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import spelling
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import checks as engine_checks
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import (
    memory_fit,
    option_tables,
    report,
    user_settings,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import model as engine_model
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import plan as engine_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import recipe as engine_recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.checks import Check
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.registry import KINDS
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.model import Architecture, Weights
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.recipe import Recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.user_settings import (
    ENTRY,
    MERGED,
    SPEC,
    UserSettings,
)

WHERE = "engine_services"
MODELS = "engine_models"
ALONE = "engine"  # what the only service is called
OWN = ("name", "nodes", "memory_share")
# /etc/sparkmatrix/engine-key.env is the key.
RESERVED = ("key",)
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Entry:
    name: str
    hosts: tuple[str, ...]  # the first is its head; none: all, by rank
    share: float
    values: Mapping[str, Any]  # options of engine_plan


@dataclass(frozen=True)
class Service:
    entry: Entry
    recipe: Recipe
    settings: UserSettings
    shape: tuple[Architecture, Weights | None] | None = None


@dataclass(frozen=True)
class Planned:
    """A service with its plan of each of its nodes."""

    service: Service
    plans: Mapping[str, NodePlan]

    @property
    def name(self) -> str:
        return self.service.entry.name

    @property
    def first(self) -> ServicePlan:
        """The plan of its head."""
        return next(plan.here[0] for plan in self.plans.values() if plan.here[0].is_head)


@dataclass(frozen=True)
class Together:
    """All services of a cluster, and those of them that are planned."""

    services: Sequence[Service]
    facts: Mapping[str, FabricFact]
    head: str
    firewall: bool
    planned: Sequence[Planned] = ()


def read(entries: Sequence[Any], hosts: Sequence[str]) -> tuple[list[Entry], list[Finding]]:
    """``engine_services`` as entries; an empty list becomes the one service of the ``engine_*`` variables on all nodes.

    An entry with a finding is left out.
    """
    if not entries:
        return [Entry(ALONE, (), 1.0, {})], []
    findings: list[Finding] = []
    made = []
    for number, values in enumerate(entries):
        where = f"{WHERE}[{number}]"
        if not isinstance(values, Mapping):
            findings.append(Finding(where, f"{values!r} is no mapping", "Give it keys: name, recipe, nodes, port, ..."))
            continue
        entry, problems = _entry(where, values, hosts)
        findings += problems
        made += [] if problems else [entry]
    for name, count in Counter(entry.name for entry in made).items():
        if count > 1:
            findings.append(Finding(WHERE, f"{count} services are called {name!r}", "Give each a name of its own"))
    # What else two of one name do to each other would only follow from that.
    first = {entry.name: entry for entry in reversed(made)}
    return [entry for entry in made if first[entry.name] is entry], findings


def _strange_keys(where: str, values: Mapping[str, Any], known: Sequence[str]) -> Iterator[Finding]:
    for key in sorted(str(key) for key in values if key not in known):
        hint = spelling.did_you_mean(key, known, shown=repr)
        yield Finding(where, f"it has no key {key!r}", hint or f"Use: {', '.join(known)}")


def _entry(where: str, values: Mapping[str, Any], hosts: Sequence[str]) -> tuple[Entry, list[Finding]]:
    findings = list(_strange_keys(where, values, (*OWN, *ENTRY)))
    name = str(values.get("name") or "")
    if not engine_names.NAME.fullmatch(name) or name in RESERVED:
        reason = "is taken" if name in RESERVED else "is no name of a service"
        findings.append(
            Finding(where, f"{name!r} {reason}", "Use a-z, 0-9 and -, a letter first, at most 32 characters")
        )
    where = f"{WHERE} {name}" if name else where
    nodes = values.get("nodes")
    if isinstance(nodes, str) and nodes:
        findings.append(Finding(where, f"nodes is the text {nodes!r}", f"Write a list: [{nodes}]"))
    elif nodes is not None and (not isinstance(nodes, (list, tuple)) or not nodes):
        findings.append(Finding(where, f"nodes is {nodes!r}", "Name one host at least, or leave it out for all"))
    if not isinstance(nodes, (list, tuple)):
        nodes = []
    nodes = [str(node) for node in nodes]
    for node in sorted(set(nodes)):
        if node not in hosts:
            findings.append(Finding(where, f"{node} is no host of the group 'sparks'", f"There are {', '.join(hosts)}"))
        if nodes.count(node) > 1:
            findings.append(Finding(where, f"{node} is named {nodes.count(node)} times", "Name it once"))
    share = values.get("memory_share", 1)
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
        findings.append(Finding(where, f"memory_share is {share!r}", "Use a number above 0, and at most 1"))
        share = 1
    own = {ENTRY[key]: value for key, value in values.items() if key in ENTRY and value is not None}
    return Entry(name, tuple(nodes), float(share), own), findings


def over(common: Mapping[str, Any], entry: Entry) -> dict[str, Any]:
    """The options of engine_plan for one service."""
    merged = {**common, **entry.values}
    for name in MERGED:
        if isinstance(entry.values.get(name), Mapping):
            merged[name] = {**(common.get(name) or {}), **entry.values[name]}
    if "image" in entry.values and "image_build" not in entry.values:
        merged["image_build"] = {}  # that of another image
    return merged


def service(
    entry: Entry,
    args: Mapping[str, Any],
    available: Mapping[str, int],
    taken: Mapping[str, Sequence[Taken]] | None = None,
) -> tuple[Service | None, list[Finding]]:
    """Recipe, settings and shape of one service from the options of engine_plan, or what is wrong with them."""
    given = over(args, entry)
    given["expert_parallel"] = str(given["expert_parallel"]).lower()
    checked = ArgumentSpecValidator(SPEC).validate({name: given[name] for name in SPEC})
    if checked.error_messages:
        return None, [Finding("", message, "Correct it in the inventory") for message in checked.error_messages]
    given = {**given, **checked.validated_parameters}
    recipe, findings = engine_recipe.find(
        given["recipe"], args["recipe_paths"], OptionNames(in_entry=bool(args["services"]))
    )
    shape = None
    if given["model_files"]:
        try:
            shape = engine_model.read(Path(given["model_files"]).expanduser())
        except SparkError as exc:
            findings.append(Finding(exc.where, exc.found, exc.remedy))
    if recipe is None:
        return None, findings
    settings = replace(user_settings.read(given), available=available, taken=taken or {})
    # It listens where its command says.
    settings = replace(settings, port=recipe.port) if recipe.port else settings
    return Service(entry, recipe, settings, shape), findings


def said(entry: Entry, findings: Sequence[Finding], where: str = WHERE) -> list[Finding]:
    """What was found about one entry, under its name."""
    return [
        replace(finding, host=f"{entry.name}: {finding.host}" if finding.host else f"{where} {entry.name}")
        for finding in findings
    ]


def wanted(
    args: Mapping[str, Any],
    hosts: Sequence[str],
    available: Mapping[str, int] | None = None,
    taken: Mapping[str, Sequence[Taken]] | None = None,
) -> tuple[list[Service], list[Finding]]:
    """The services that can be read, and what is wrong with the others. ``args``: :func:`user_settings.given`, with
    ``services`` and ``recipe_paths``; ``available``: bytes by host, where no engine is installed;
    ``taken``: what services have taken there before."""
    entries, findings = read(args["services"], hosts)
    made = []
    for entry in entries:
        known, problems = service(entry, args, available or {}, taken)
        findings += said(entry, problems) if args["services"] else problems
        made += [known] if known else []
    return made, findings


# What says which model it is: a variable of these is about the one that a run loads.
_OF_ONE_MODEL = ("served_model_name", "model", "model_files", "image", "image_build")


def by_name(
    args: Mapping[str, Any], available: Mapping[str, int], taken: Mapping[str, Sequence[Taken]] | None = None
) -> tuple[list[Service], list[Finding]]:
    """``engine_models``: what takes the place of the one service when it is asked for by its name."""
    made: list[Service] = []
    findings: list[Finding] = []
    common = {**args, "services": [{}], **{name: SPEC[name].get("default") for name in _OF_ONE_MODEL}}
    for number, given in enumerate(args["models"]):
        values = {"recipe": given} if isinstance(given, str) else given
        where = f"{MODELS}[{number}]"
        if not isinstance(values, Mapping) or not values.get("recipe"):
            remedy = "Name one, or give it keys: recipe, context ..."
            findings.append(Finding(where, f"{given!r} names no recipe", remedy))
            continue
        strange = list(_strange_keys(where, values, [key for key in ENTRY if key != "port"]))
        findings += strange
        if strange:
            continue
        own = {ENTRY[key]: value for key, value in values.items() if value is not None}
        entry = Entry(str(values.get("served_model_name") or values["recipe"]), (), 1.0, own)
        found, problems = service(entry, common, available, taken)
        findings += said(entry, problems, MODELS)
        made += [found] if found else []
    if made and args["services"]:
        findings.append(
            Finding(
                MODELS,
                f"{len(args['services'])} engine_services are given, too: which of them is to make room is not known",
                "Leave engine_services empty, or list the models there, side by side",
            )
        )
    return made, findings


def plan(
    services: Sequence[Service],
    facts: Mapping[str, FabricFact],
    memory: Mapping[str, int],
    *,
    firewall: bool = False,
    given: int = 0,
    models: Sequence[Service] = (),
) -> engine_plan.Plans:
    """One document per host, or the findings of all services.

    ``given``: entries of ``engine_services``, where ranks follow the order in which an entry names its nodes.
    ``models``: :func:`by_name`.
    """
    findings = engine_checks.check_facts(facts)
    if errors(findings):
        return engine_plan.Plans({}, (), findings)
    ordered = sorted(facts.values(), key=lambda fact: fact.rank)
    head = ordered[0].host
    everywhere = tuple(fact.host for fact in ordered)
    services = [
        replace(service, entry=replace(service.entry, hosts=service.entry.hosts or everywhere)) for service in services
    ]
    named = given > 1
    together = Together(services, facts, head, firewall)
    findings += engine_checks.run("services", together, CHECKS) if given else []
    planned: list[Planned] = []
    summary: list[str] = []
    for service in services:
        settings = _settings(service, services, facts, head, given)
        own = _subset(service.entry.hosts, facts) if given else facts
        result = engine_plan.plan(service.recipe, own, settings, memory, service.shape)
        findings += said(service.entry, result.findings) if given else result.findings
        summary += (
            [f"Service {service.entry.name}", *(f"  {line}" for line in result.summary)] if named else result.summary
        )
        planned += [Planned(service, result.plans)] if result.plans else []
    if named and services and services[0].settings.only_print:
        summary.append(report.CHANGES)
    findings += engine_checks.run("plans", replace(together, planned=planned), CHECKS)
    at_hand: list[Planned] = []
    for model in models:
        one = replace(model, entry=replace(model.entry, hosts=everywhere))
        alone = replace(_settings(one, [one], facts, head, 0), names=OptionNames(in_entry=True))
        result = engine_plan.plan(one.recipe, facts, alone, memory, one.shape)
        findings += said(one.entry, result.findings, MODELS)
        at_hand += [Planned(one, result.plans)] if result.plans else []
    if at_hand and planned:
        found = engine_checks.run("models", replace(together, planned=[*planned, *at_hand]), CHECKS)
        findings += [replace(finding, host=finding.host.replace(WHERE, MODELS)) for finding in found]
        named_models = ", ".join(other.first.engine.served_model_name for other in at_hand)
        summary.append(f"In its place, when it is asked for by its name: {named_models}")
        for other in at_hand:
            summary += _both_at_once(planned[0], other, together, memory)
    if errors(findings) or len(planned) < len(services) or len(at_hand) < len(models):
        return engine_plan.Plans({}, summary, findings)
    identity = _identity([*planned, *at_hand])
    plans = {fact.host: replace(_document(fact, ordered, planned, at_hand), identity=identity) for fact in ordered}
    others = [one.first for one in at_hand]
    plans[head] = replace(plans[head], services=tuple(_offer(one.name, one.first, others) for one in planned))
    return engine_plan.Plans(plans, summary, findings)


def _both_at_once(one: Planned, other: Planned, together: Together, memory: Mapping[str, int]) -> Iterator[str]:
    """Whether the other model would fit beside it on its head, where nobody would wait for it. What each of them may
    have more than it needs is its owner's to give away."""
    first, of_other = one.first, other.service
    if not first.memory.budget or not other.first.memory.budget:  # it is not known what a command of its own takes
        return
    needed = first.memory.weights + first.memory.overhead + first.memory.kv_needed
    share = math.ceil(100 * needed / first.memory.budget) / 100
    if share >= 1:
        return
    rest = round(1 - share, 2)
    wide = replace(one.service, entry=replace(one.service.entry, name="wide", share=share))
    entry = replace(of_other.entry, name="beside", hosts=(first.host,), share=rest)
    beside = replace(of_other, entry=entry, settings=replace(of_other.settings, port=of_other.settings.port + 1))
    if plan((wide, beside), together.facts, memory, firewall=together.firewall, given=2).plans:
        yield (
            f"{other.first.engine.served_model_name} would fit beside {first.engine.served_model_name} on {first.host}:"
            f" as engine_services, with a memory_share of {rest:g} and {share:g}, both stay loaded, each with the"
            " requests that are planned for it (docs/services.md)"
        )


def _identity(planned: Sequence[Planned]) -> str:
    """Changes with every part of the plan that a user would see, on any node."""
    parts = [
        (plan.here[0].instance, host, plan.here[0].config_hash)
        for one in planned
        for host, plan in sorted(one.plans.items())
    ]
    return documents.fingerprint(parts)


def _subset(hosts: Sequence[str], facts: Mapping[str, FabricFact]) -> dict[str, FabricFact]:
    """Ranks within a service: in the order in which its nodes are named."""
    return {host: replace(facts[host], rank=rank, nodes=len(hosts)) for rank, host in enumerate(hosts)}


def _settings(
    service: Service, services: Sequence[Service], facts: Mapping[str, FabricFact], head: str, given: int
) -> UserSettings:
    entry = service.entry
    beside = [
        [other.entry.share for other in services if other is not service and host in other.entry.hosts]
        for host in entry.hosts
    ]
    fullest = max(beside, key=sum, default=[])
    return replace(
        service.settings,
        names=OptionNames(in_entry=given > 0),
        instance=entry.name if given > 1 else "",
        api_host=service.settings.api_host if entry.hosts[0] == head else facts[entry.hosts[0]].cluster_address,
        memory_share=entry.share,
        others=len(fullest),
        others_share=sum(fullest),
    )


def _shares_of_a_node(together: Together) -> Iterator[Finding]:
    for host, here in _by_host(together):
        total = sum(entry.share for entry in here)
        if total > 1 + _ROUNDING:
            shares = " + ".join(f"{entry.name} {entry.share:g}" for entry in here)
            yield Finding(
                host,
                f"its services have more than its memory: {shares} = {total:g}",
                "Give each a memory_share, together at most 1",
            )


def _two_that_span_nodes(together: Together) -> Iterator[Finding]:
    for host, here in _by_host(together):
        wide = [entry.name for entry in here if len(entry.hosts) > 1]
        if len(wide) > 1:
            yield Finding(
                host,
                f"{len(wide)} of its services span several nodes: {', '.join(wide)}",
                "Ray and the ports where ranks meet exist once per node: keep all but one of them on one node each",
            )


def _by_host(together: Together) -> Iterator[tuple[str, list[Entry]]]:
    entries = [service.entry for service in together.services]
    for host in sorted({host for entry in entries for host in entry.hosts}):
        yield host, [entry for entry in entries if host in entry.hosts]


def _ports_of_services(together: Together) -> Iterator[Finding]:
    """Between services; what is wrong with the ports of one by itself its own plan says."""
    taken: dict[int, str] = {}
    for service in together.services:
        name, port = service.entry.name, service.settings.port
        where, others = f"{WHERE} {name}", _ports_of_others(service, together.services)
        if others and port in fixed.RAY_RANGE:
            yield Finding(where, f"port {port} is one of Ray's", "Choose another")
        elif port in others:
            yield Finding(where, f"port {port} is the one {others[port]}", "Choose another")
        elif port in taken:
            yield Finding(where, f"port {port} is that of {taken[port]} too", "Give it a port of its own")
        taken.setdefault(port, name)


def _ports_of_others(service: Service, services: Sequence[Service]) -> dict[int, str]:
    """On any node: the head of one service may have a rank of another."""
    found: dict[int, str] = {}
    for other in services:
        if other is not service and len(other.entry.hosts) > 1:
            settings = other.settings
            engine = KINDS.get(settings.engine or other.recipe.engine)
            if engine and engine.replica_port:
                found[engine.replica_port] = f"of {engine.label}'s data parallel ranks"
            found |= {
                settings.ray_port: "of Ray",
                settings.ray_dashboard_port: "of Ray's dashboard",
                settings.rendezvous_port: f"where the ranks of {other.entry.name} meet (rendezvous_port)",
            }
    return found


def _names_of_models(together: Together) -> Iterator[Finding]:
    names: dict[str, str] = {}
    for one in together.planned:
        model = one.first.engine.served_model_name
        if model in names:
            yield Finding(
                f"{WHERE} {one.name}",
                f"it serves the model {model}, and so does {names[model]}: clients could not tell them apart",
                "Give it a served_model_name of its own",
            )
        names.setdefault(model, one.name)


def _part_of_a_node(together: Together) -> Iterator[Finding]:
    for one in together.planned:
        first = one.first
        others = {host for other in together.planned if other is not one for host in other.service.entry.hosts}
        crowded = not others.isdisjoint(one.plans)
        if crowded and KINDS[first.engine.name].share_of_free and not first.memory.cache_tokens:
            yield Finding(
                f"{WHERE} {one.name}",
                f"{first.engine.name} takes a share of what is free when it starts, and its cache can be limited in"
                " tokens only, which not all layers of this model keep: it cannot be given a part of a node",
                "Serve it with vllm, or on nodes of its own",
            )


def _room_beside(together: Together) -> Iterator[Finding]:
    """What a command of a recipe's own takes is known once it has served; the others have a budget."""
    for host in sorted(together.facts):
        here = {one.name: one.plans[host].here[0].memory for one in together.planned if host in one.plans}
        own = [one.name for one in together.planned if host in one.plans and KINDS[one.first.engine.name].opaque]
        if not own or len(here) < 2:
            continue
        for name in own:
            if not here[name].measured:
                yield Finding(
                    f"{WHERE} {name}",
                    f"what it takes of {host} is not known before its first start, and {len(here) - 1} other"
                    f" {'service is' if len(here) == 2 else 'services are'} to run there",
                    "Start it alone once, and then the others beside it",
                    severity="warning",
                )
        total = max(memory.total for memory in here.values()) or memory_fit.GB10_TOTAL
        needed = {name: memory.measured or memory.budget + memory.host - memory.beside for name, memory in here.items()}
        if sum(needed.values()) > total:
            shares = " + ".join(f"{name} {memory_fit.gib(size)}" for name, size in needed.items())
            yield Finding(
                host,
                f"its services take more than its {memory_fit.gib(total)} GiB: {shares}",
                f"Give the others a smaller memory_share, or nodes of their own: {', '.join(own)} took that much when"
                " it served",
            )


def _one_environment(together: Together) -> Iterator[Finding]:
    environments: dict[tuple[str, str], tuple[str, Sequence[str]]] = {}
    for one in together.planned:
        for host, plan_ in one.plans.items() if not one.first.contained else ():
            path, requirements = plan_.here[0].venv.path, plan_.here[0].venv.requirements
            other, theirs = environments.setdefault((host, path), (one.name, requirements))
            if theirs != requirements:
                yield Finding(
                    f"{WHERE} {one.name}",
                    f"on {host} it needs other packages in {path} than {other}",
                    "Give it an environment of its own (venv_path)",
                )


def _elsewhere(together: Together) -> Iterator[tuple[Planned, FabricFact]]:
    """Services whose head is another machine than the cluster's: they are reached over the network."""
    for one in together.planned:
        fact = together.facts[one.first.host]
        if one.first.host != together.head and one.first.engine.host == fact.cluster_address:
            yield one, fact


def _no_key_on_the_network(together: Together) -> Iterator[Finding]:
    for one, fact in _elsewhere(together):
        engine = one.first.engine
        if not engine.key:
            yield Finding(
                f"{WHERE} {one.name}",
                f"{engine.name} asks for no key, and on {fact.host} it would listen on the network",
                f"Make {together.head} the first of its nodes, or serve it with vllm",
            )


def _no_firewall(together: Together) -> Iterator[Finding]:
    for one, fact in _elsewhere(together) if not together.firewall else ():
        lan = fact.cluster_address == fact.management_address
        yield Finding(
            f"{WHERE} {one.name}",
            f"its API listens on {fact.cluster_address} of {fact.host}"
            + (", the management network," if lan else " (fabric)")
            + " without a firewall, where the key guards /v1 only",
            f"Leave spark_port_filter: true, or make {together.head} the first of its nodes",
            severity="error" if lan else "warning",
        )


def _open_mpi(together: Together) -> Iterator[Finding]:
    """Open MPI's daemons and ranks listen on all interfaces, whatever they are told, and ask nobody for a secret."""
    for one in together.planned if not together.firewall else ():
        if one.first.backend == "mpi":
            yield Finding(
                "spark_port_filter" if one.name == ALONE else f"{WHERE} {one.name}",
                "TensorRT-LLM over several nodes is a job of Open MPI, whose processes listen on all interfaces of"
                " every node and take orders from whoever connects",
                "Leave spark_port_filter: true; the nodes stay open to each other",
                severity="warning" if one.service.settings.only_print else "error",
            )


def _in_its_place(together: Together) -> Iterator[Finding]:
    """What a switch cannot change: it replaces the files of the one service, and nothing else."""
    first = together.planned[0].first
    for one in together.planned[1:]:
        engine, where = one.first.engine, f"{MODELS} {one.name}"
        if engine.port != first.engine.port:
            yield Finding(
                where, f"it listens on port {engine.port}, the others on {first.engine.port}", "Give it the same port"
            )
        if engine.key != first.engine.key:
            yield Finding(
                where,
                f"of {engine.name} and {first.engine.name} one asks for a key and the other does not",
                "Serve them with engines that both ask for one",
            )
    over_ray = [one.first.engine.served_model_name for one in together.planned if one.first.over_ray]
    if over_ray:
        yield Finding(
            MODELS,
            f"the ranks of {', '.join(over_ray)} would be in Ray, which is no part of a switch",
            "Serve them without it (engine_launch: native)",
        )


# services: what was asked for; plans: what came of it; models: the same with those that may take the place.
CHECKS = (
    Check("services", _shares_of_a_node),
    Check("services", _two_that_span_nodes),
    Check("services", _ports_of_services),
    Check("plans", _names_of_models),
    Check("plans", _part_of_a_node),
    Check("plans", _room_beside, ""),
    Check("plans", _one_environment),
    Check("plans", _no_key_on_the_network),
    Check("plans", _no_firewall, ""),
    Check("plans", _open_mpi, ""),
    Check("models", _in_its_place),
    Check("models", _names_of_models),
    Check("models", _one_environment),
)


def _document(
    fact: FabricFact, ordered: Sequence[FabricFact], planned: Sequence[Planned], at_hand: Sequence[Planned]
) -> NodePlan:
    here = [(one.name, one.plans[fact.host]) for one in planned if fact.host in one.plans]
    here.sort(key=lambda item: -item[1].here[0].nodes)  # the one that spans nodes first; stable
    served = [plan.here[0] for _name, plan in here]
    others = [one.plans[fact.host].here[0] for one in at_hand]
    plans = [*served, *others]
    heads = [(name, plan.here[0]) for name, plan in here if plan.here[0].is_head]
    loopback = UserSettings().api_host
    return NodePlan(
        host=fact.host,
        here=tuple(served),
        at_hand=tuple(others),
        heads=tuple(_head(name, plan) for name, plan in heads),
        ray=next((plan.ray for _name, plan in here if plan.ray.needed), RayPlan()),
        mpi=next((MpiPlan(plan.role, plan.head) for plan in plans if plan.backend == "mpi"), MpiPlan()),
        images=_images(plans),
        environments=documents.environments(plans),
        models=tuple({(model.name, model.revision): model for plan in plans for model in plan.models}.values()),
        unknown=_unknown(plans),
        model_cache=next((plan.model_cache for plan in plans if plan.model_cache), ""),
        open_to_peers=any(plan.backend != "single" for plan in plans)
        or any(plan.engine.host != loopback for _name, plan in heads),
        cluster=Cluster(ordered[0].host, len(ordered), fact.host == ordered[0].host),
    )


def _images(plans: Sequence[ServicePlan]) -> tuple[Image, ...]:
    """Each once; the files that cover it count where Ray is asked in it."""
    made: dict[str, Image] = {}
    several = {plan.image for plan in plans if plan.nodes > 1}
    for plan in plans:
        if plan.from_image and (plan.over_ray or plan.image not in made):
            patches = plan.patches if plan.over_ray else ()
            made[plan.image] = Image(plan.image, plan.over_ray, patches, plan.image in several, plan.container.gpus)
    return tuple(made.values())


def _unknown(plans: Sequence[ServicePlan]) -> tuple[Unknown, ...]:
    """Engines that have to tell themselves what they know, each once."""
    made: dict[str, Unknown] = {}
    for plan in plans:
        kind, place = KINDS[plan.engine.name], plan.image if plan.contained else plan.venv.path
        if plan.engine.runs_here and not kind.opaque and option_tables.load(kind.name, plan.engine.version) is None:
            made[place] = Unknown(
                place, plan.contained, tuple(kind.distributions), tuple(kind.help_words), plan.container.gpus
            )
    return tuple(made.values())


def _head(name: str, plan: ServicePlan) -> Head:
    engine, names = plan.engine, plan.names
    return Head(
        name=name,
        instance=names.instance,
        unit=names.unit,
        keeper=names.keeper,
        description=names.description,
        host=engine.host,
        port=engine.port,
        endpoint=engine.endpoint,
        key=engine.key,
        task=engine.task,
        engine=engine.name,
        model=engine.served_model_name,
        nodes=plan.nodes,
        recipe=plan.recipe,
    )


def _offer(name: str, plan: ServicePlan, others: Sequence[ServicePlan]) -> Offer:
    """``others``: that may take its place."""
    engine = plan.engine
    salted = [KINDS[one.engine.name].salted for one in (plan, *others) if one.prefixes.base]
    return Offer(
        name,
        engine.served_model_name,
        engine.host,
        engine.port,
        engine.key,
        engine.task,
        paths.ENGINE_KEY,
        tuple(other.engine.served_model_name for other in others),
        tuple(path for path in salted[0] if all(path in paths for paths in salted)) if salted else (),
    )
