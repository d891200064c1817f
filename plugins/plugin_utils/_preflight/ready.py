# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The last sentence of a preflight that refuses nothing: what there is, how long the run takes, what it downloads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import cache as caches
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import Names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import prefixes
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import early, expected_speed, loaders
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.services import Service
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import fabric as preflight_fabric
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight.base import (
    Context,
    environment,
    whole,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.rule import MODELS

GB = 10**9
_COMMIT = re.compile("[0-9a-f]{40}")  # a branch has a snapshot of another name


@dataclass(frozen=True)
class Model:
    """What a node needs of a service. ``cache``: its directory in the cache, of a pinned model that of the revision;
    empty for a path of the user's."""

    host: str
    name: str
    gb: float  # whole; every node downloads all of it
    load_s: float  # until the node has read its part
    cache: str
    container: bool
    partial: str = ""  # where the layer artifacts keeps what has come of a model so far


def _services(context: Context) -> list[tuple[Service, Sequence[str], str | None]]:
    """With their hosts and, where they are loaded by a run, their names, empty of one alone: by the recipes, without a
    plan; what is wrong with them is said by ``check_engine_plan``."""
    hosts = sorted(context.hosts, key=lambda host: whole(context.hosts[host].get("spark_rank")))
    if not context.layers & MODELS or not hosts or context.value(hosts[0], "engine_recipe") is None:
        return []

    def value(name: str) -> Any:
        return context.value(hosts[0], name)

    loaded, others = early.asked(value, hosts)[0], early.by_name(value)
    named = [(service, service.entry.name if len(loaded) > 1 else "") for service in loaded]
    each = [*named, *((service, None) for service in others)]
    return [(service, service.entry.hosts or tuple(hosts), name) for service, name in each]


def models(context: Context) -> Iterator[Model]:
    for service, on, instance in _services(context):
        recipe, settings = service.recipe, service.settings
        pinned = "" if settings.model else recipe.revision
        wanted = [(settings.model or recipe.model, recipe.files_gb, recipe.weights_gb, pinned)]
        draft = recipe.draft
        wanted += [(draft.model, draft.weights_gb, draft.weights_gb, draft.revision)] if draft and draft.model else []
        container = (settings.runtime or recipe.runtime) == "container"
        loader = loaders.of(str(recipe.options.get("load-format", "")))
        for host in on:
            for name, gb, loaded, revision in wanted:
                cache = "" if name.startswith("/") else f"{settings.hf_home}/hub/{caches.folder_name(name)}"
                if cache and _COMMIT.fullmatch(revision):
                    cache += f"/snapshots/{revision}"
                partial = f"{settings.hf_home}/sparkmatrix/partial"
                load_s = 0.0 if instance is None else loader.seconds(loaded * GB, len(on))
                yield Model(host, name, gb, load_s, cache, container, partial)


def _kept(context: Context) -> dict[str, dict[str, int]]:
    """Bytes that may lie in a directory, of what services keep of prompts, by host."""
    found: dict[str, dict[str, int]] = {}
    for service, on, instance in _services(context):
        directory, size = Names(instance or "").prefixes, service.settings.prefix_cache_gb * GB
        for host in on if size > 0 else ():
            own = found.setdefault(host, {})
            own[directory] = max(size, own.get(directory, 0))
    return found


def paths(context: Context) -> set[str]:
    """What ``node_info`` looks for, to tell what is downloaded already, and what is kept."""
    cached = {path for model in models(context) if model.cache for path in (model.cache, model.partial)}
    return cached | {directory for kept in _kept(context).values() for directory in kept}


def _missing(context: Context) -> dict[str, list[Model]]:
    """What is downloaded yet, by host. A download that has begun is compared by the byte when it goes on."""
    wanted, found = list(models(context)), {}
    for host in context.nodes:
        own = {model.cache: model for model in wanted if model.host == host and model.cache}
        if not any(_there(context, host, model.partial) for model in own.values()):
            found[host] = [model for model in own.values() if not _there(context, host, model.cache)]
    return found


def check_model_disk(context: Context) -> Iterator[Finding]:
    """By the sizes in the recipes."""
    for host, missing in _missing(context).items():
        if not missing:
            continue
        first = missing[0]  # all are in one directory
        disk = context.nodes[host].paths.get(first.cache)
        free = disk.free if disk else None
        needed = sum(model.gb for model in missing) * GB
        if free is not None and free < needed:
            names = ", ".join(model.name for model in missing)
            yield Finding(
                host,
                f"{names}: {needed / GB:.1f} GB to download, {free / GB:.1f} GB free,"
                f" {(needed - free) / GB:.1f} GB short",
                device=first.cache.partition("/hub/")[0],
            )


def check_prefix_disk(context: Context) -> Iterator[Finding]:
    """Before it is there: what has been accepted stays below its limit by itself."""
    missing = _missing(context)
    for host, kept in _kept(context).items():
        new = {path: size for path, size in kept.items() if not _there(context, host, path)}
        disk = context.nodes[host].paths.get(next(iter(new), "")) if host in context.nodes else None
        if disk is None or disk.free is None or not disk.total:
            continue
        same = [model for model in missing.get(host, ()) if _on(context, host, model.cache) == (disk.total, disk.free)]
        fetched, stays = sum(model.gb for model in same) * GB, disk.total // prefixes.FREE
        room, asked = disk.free - stays - fetched, sum(new.values())
        if room < asked:
            models_first = f" and {fetched / GB:.0f} GB are for models to download" if fetched else ""
            yield Finding(
                host,
                f"computed prompts may take {asked / GB:.0f} GB; {disk.free / GB:.0f} GB are free, of which"
                f" {stays / GB:.0f} GB stay free{models_first}: there is room for {max(0, room) // GB:.0f} GB",
                device=next(iter(new)),
            )


def sentence(context: Context) -> str:
    """``Ready: 4 machines, switch at 200 Gb/s, about 18 minutes plus 125 GB to download on each node (…)``."""
    count = len(context.nodes)
    parts = [f"{count} machine{'s' if count != 1 else ''}", *_fabric(context)]
    wanted = list(models(context))
    if not wanted:
        return f"Ready: {', '.join(parts)}"
    missing = [model for model in wanted if model.cache and not _there(context, model.host, model.cache)]
    bare = {model.host for model in wanted if not model.container and not environment(context, model.host).exists}
    load = max(sum(model.load_s for model in wanted if model.host == host) for host in {model.host for model in wanted})
    minutes = expected_speed.run_minutes(load, environment=bool(bare))
    runs = any(node.engine_units for node in context.nodes.values())
    more = _bring(wanted, missing) if "artifacts" in context.layers else _download(missing, count)
    parts.append(f"{'up to' if runs else 'about'} {minutes:.0f} minutes{more}")
    notes = ["less where the engine need not start again"] if runs else []
    notes += [f"a Python environment is made on {context.who(h for h in context.hosts if h in bare)}"] if bare else []
    notes += ["time for pulling container images comes on top"] if any(model.container for model in wanted) else []
    # A download that was cut off has made the directory.
    known = [model for model in wanted if model.cache and model not in missing]
    notes += [f"{known[0].name} is taken to be complete in the cache"] if known else []
    return f"Ready: {', '.join(parts)} ({'; '.join([*notes, 'times are estimates'])})"


def _bring(wanted: list[Model], missing: list[Model]) -> str:
    """One node fetches what none has, the others get it over the fabric."""
    lacking = {model.cache: model.gb for model in missing}
    there = {model.cache for model in wanted if model.cache and model not in missing}
    fetched = sum(gb for cache, gb in lacking.items() if cache not in there)
    hosts = list(dict.fromkeys(model.host for model in missing if model.cache in there))
    parts = [f"{fetched:.0f} GB to download once"] if fetched else []
    parts += [f"{max(lacking.values()):.0f} GB to copy to {', '.join(hosts)}"] if hosts else []
    return f" plus {' and '.join(parts)}" if parts else ""


def _download(missing: list[Model], count: int) -> str:
    by_host: dict[str, float] = {}
    for model in missing:
        by_host[model.host] = by_host.get(model.host, 0) + model.gb
    if not by_host:
        return ""
    most = f"{max(by_host.values()):.0f} GB to download"
    if len(by_host) == count:
        return f" plus {most} on each node" if count > 1 else f" plus {most}"
    return f" plus {most} on {', '.join(by_host)}"


def _fabric(context: Context) -> list[str]:
    """Of the fabric that is applied, else as the machines have heard each other now."""
    if len(context.nodes) < 2:
        return []
    facts = [fact for host in context.nodes if (fact := context.fact(host)) and fact.state == "applied"]
    made = preflight_fabric.cables(context)
    if made is not None and made.topology:
        return [f"{made.topology} at {made.gbps:g} Gb/s" if made.gbps else made.topology]
    if len(facts) == len(context.nodes):
        slowest = min((rail.link_gbps for fact in facts for rail in fact.rails), default=0.0)
        return [f"{facts[0].topology} at {slowest:g} Gb/s" if slowest else facts[0].topology]
    return ["cables not looked at yet"] if "fabric" in context.layers else []


def _on(context: Context, host: str, path: str) -> tuple[int | None, int | None]:
    """The same for all paths on a file system."""
    disk = context.nodes[host].paths.get(path)
    return (disk.total, disk.free) if disk else (None, None)


def _there(context: Context, host: str, path: str) -> bool:
    disk = context.nodes[host].paths.get(path)
    return disk is not None and disk.exists
