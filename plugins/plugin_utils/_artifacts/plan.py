# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Which models have to be brought to which nodes, from where, and whether there is room for them. Pure.

First (:func:`wanted`) by what ``engine_inputs`` has seen, which every run does anyway: where everything is whole, or
where the layer has nothing to do with a model, that is all. Then, for a model that has to be brought, by the sizes of
its files and what each disk has (:func:`room`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import inputs
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.look import (
    FOREIGN,
    WHOLE,
    Held,
    is_cache_of,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import model_files
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Model, NodePlan

GB = 10**9
SPARE = GB  # bytes that stay free on a disk
_ON = {"1", "true", "yes", "on"}
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
DOWNLOAD, ADOPT, IMPORT, SEND = "download", "adopt", "import", "send"
CONTROLLER = "controller:"  # before the path of a source that is on the computer that Ansible runs on


@dataclass(frozen=True)
class Bring:
    """A model that is not whole on all nodes that need it. ``hosts``: all of these, by rank. ``seed``: from whom the
    others get it. ``obtain``: what the seed has to do first: nothing, ``adopt`` what is in its cache without a
    manifest, ``download``, ``import`` the ``source`` that the user names, or wait until it is sent (``send``) from the
    computer that Ansible runs on. ``environment``: of the engine."""

    name: str
    ref: str
    hosts: tuple[str, ...]
    seed: str
    obtain: str
    revision: str
    home: str
    environment: Mapping[str, str]
    source: str = ""


@dataclass(frozen=True)
class Wanted:
    """``lines``: of models that are left as they are, or are whole."""

    bring: tuple[Bring, ...]
    lines: tuple[str, ...]
    findings: tuple[Finding, ...] = ()


def wanted(
    plans: Mapping[str, NodePlan],
    seen: Mapping[str, Sequence[inputs.Model]],
    seed: str = "",
    sources: Mapping[str, str] | None = None,
    here: Collection[str] = (),
) -> Wanted:
    """``seen``: per host what it has of its models. ``seed``: the host that the user names.
    ``sources``: directories by the name of the model. ``here``: the host that Ansible itself runs on."""
    bring, lines, findings = [], [], []
    ordered = _by_rank(plans)
    for name, ref in dict.fromkeys((model.name, model.revision) for host in ordered for model in plans[host].models):
        models = {
            host: model
            for host in ordered
            for model in plans[host].models
            if (model.name, model.revision) == (name, ref)
        }
        told = {host: _told(seen.get(host, ()), name, ref) for host in models}
        first = next(iter(models))
        own = [host for host in models if not is_cache_of(models[host].environment, plans[host].model_cache)]
        aside = _aside(name, own, list(told.values()))
        if aside:
            lines.append(f"{name}: {aside}")
            continue
        source = (sources or {}).get(name, "")
        made = _bring(models, plans[first].model_cache, told, seed=seed, source=source, here=here)
        finding = _refused(made, seed)
        findings += [finding] if finding else []
        bring += [] if finding else [made]
    return Wanted(tuple(bring), tuple(lines), tuple(findings))


def _told(models: Sequence[inputs.Model], name: str, ref: str) -> inputs.Model:
    return next((model for model in models if (model.name, model.ref) == (name, ref)), inputs.Model(name, "", ref=ref))


def _bring(
    models: Mapping[str, Model],
    home: str,
    told: Mapping[str, inputs.Model],
    *,
    seed: str,
    source: str,
    here: Collection[str],
) -> Bring:
    """``seed``, ``source``: as the user names them. ``here``: hosts that Ansible itself runs on."""
    whole = [host for host in models if told[host].in_cache.state == WHOLE]
    foreign = [host for host in models if told[host].in_cache.state == FOREIGN and told[host].alike]
    named = [seed] if seed in models else []
    # Who has it needs no source. A source that is named is on the node that is named, or on the head.
    first = [host for host in named if host in whole] or whole or named or ([] if source else foreign)
    chosen = next(iter((*first, *models)))
    way = SEND if source.startswith(CONTROLLER) and chosen not in here else IMPORT
    obtain = "" if chosen in whole else way if source else ADOPT if chosen in foreign else DOWNLOAD
    source = source.removeprefix(CONTROLLER)
    revision = told[chosen].in_cache.revision if obtain in ("", ADOPT) else ""
    model = models[chosen]
    return Bring(
        model.name, model.revision, tuple(models), chosen, obtain, revision, home, dict(model.environment), source
    )


def _refused(made: Bring, seed: str) -> Finding | None:
    if seed and seed not in made.hosts:
        return Finding(
            "artifacts_seed",
            f"{seed} does not serve {made.name}, so it does not have to have it",
            f"Name one of {', '.join(made.hosts)}, or leave artifacts_seed out",
        )
    if made.source and not made.source.startswith("/"):
        return Finding(
            "artifacts_sources",
            f"the source of {made.name}, {made.source}, is no whole path",
            "Write it like /mnt/usb/name, or controller:~/models/name for one on the computer that Ansible runs on",
        )
    if made.obtain == DOWNLOAD and is_offline(made.environment):
        return Finding(
            made.seed,
            f"model {made.name}: no node has it, and its environment forbids downloads",
            "Take HF_HUB_OFFLINE out of the environment, or name a directory that has it: artifacts_sources",
        )
    return None


def is_offline(environment: Mapping[str, str]) -> bool:
    return any(environment.get(name, "").lower() in _ON for name in _OFFLINE)


def _aside(name: str, own: Sequence[str], told: Sequence[inputs.Model]) -> str:
    """Why the layer has nothing to do for a model; empty where it has. ``own``: hosts with a cache of their own."""
    if name.startswith("/"):
        return "a directory of the nodes, which stays as it is"
    if any(model.where == model_files.ELSEWHERE for model in told):
        return "not from a hub like Hugging Face's, so the engine itself fetches it"
    if own:
        return f"the engine's environment on {', '.join(own)} names a cache of its own, so the engine itself fetches it"
    states = {model.in_cache.state for model in told}
    if states == {WHOLE} and len({model.in_cache.digest for model in told}) == 1:
        return f"whole on {_nodes(len(told))}, revision {told[0].in_cache.revision[:12]}"
    if states == {FOREIGN} and len({model.alike for model in told}) == 1 and told[0].alike:
        return f"in the cache of {_nodes(len(told))} already, fetched by the engines themselves, and stays as it is"
    return ""


def _by_rank(plans: Mapping[str, NodePlan]) -> list[str]:
    ranks = {
        member.host: member.rank
        for plan in plans.values()
        for service_plan in plan.here
        for member in service_plan.members
    }
    return sorted(plans, key=lambda host: (ranks.get(host, len(plans)), host))


def _nodes(count: int) -> str:
    return "its node" if count == 1 else f"all {count} nodes that serve it"


# --- the space on the disks ---


@dataclass(frozen=True)
class Node:
    """``removable``: what could go, and the bytes that this frees."""

    free: int
    held: Held
    removable: tuple[tuple[str, int], ...] = ()


def room(model: str, size: int, nodes: Mapping[str, Node]) -> list[Finding]:
    """Of all nodes that do not have it, at once."""
    found = []
    for host, node in nodes.items():
        needed = max(0, size - node.held.there) + SPARE
        if node.free >= needed:
            continue
        removable = [f"{name} ({gb(count)})" for name, count in node.removable if count]
        could = f"could be removed: {', '.join(removable[:5])} (playbooks/artifacts.yml -e artifacts_action=remove)"
        found.append(
            Finding(
                host,
                f"{model} needs {gb(needed - SPARE)}, with {gb(SPARE)} that stay free; {gb(node.free)} are free,"
                f" {needed - node.free} bytes ({gb(needed - node.free)}) are missing",
                could if removable else "Make room, or put engine_model_cache on a larger disk",
            )
        )
    return found


def gb(count: int) -> str:
    return f"{count / GB:.1f} GB" if count >= GB else f"{count / 10**6:.1f} MB"
