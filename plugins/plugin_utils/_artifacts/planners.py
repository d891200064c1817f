# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The planners of the layer artifacts: what has to be brought, whether it fits, who fetches from whom, and whether all
have the same in the end."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.cache import Kept
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.look import (
    WHOLE,
    Held,
    Listing,
    Look,
    Referred,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.manifest import Manifest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import calls, document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import plan_document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import NodePlan
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fact as fabric_fact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._artifacts import fanout, plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import planner
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base.planner import (
    Options,
    Planner,
    RefusedError,
    judged,
)

REFUSED = "The models cannot be brought to the nodes, and nothing was downloaded, copied or stopped:"
REFUSED_COPY = "The model is not whole on all nodes, so nothing was stopped or started:"
REFUSED_REMOVE = "Nothing was removed:"


def wanted(options: Options) -> dict[str, Any]:
    plans: Mapping[str, NodePlan] = options["plans"]
    seen = {host: found.models for host, found in options["seen"].items()}
    sources = {name: _path(text) for name, text in options["sources"].items()}
    made = plan.wanted(plans, seen, options["seed"], sources, options["here"])
    shown = judged(REFUSED, made.findings)
    return {**shown, "bring": [document.plain(bring) for bring in made.bring], "lines": list(made.lines)}


def _path(source: Any) -> str:
    """``~`` on this computer is its user's."""
    where, at, path = str(source).rpartition(plan.CONTROLLER)
    return str(source) if where or not at else f"{at}{os.path.expanduser(path)}"


def room(options: Options) -> dict[str, Any]:
    """One model. ``listing``: what the hub says of it; empty where the seed has it. ``aside``: left to the engines."""
    bring: plan.Bring = document.load(plan.Bring, options["bring"])
    findings: list[Finding] = []
    listing: Listing = options["listing"].get(bring.seed, Listing())
    nodes = _nodes(options["looks"], bring)
    seed = nodes[bring.seed]
    revision = listing.revision or bring.revision
    size = listing.size or seed.held.size or seed.held.there
    if _pinned(bring.ref) and revision != bring.ref:
        source = listing.hub or "its cache"
        findings.append(
            Finding(
                bring.seed,
                f"{source} calls {bring.ref} {revision}"
                if revision
                else f"{source} does not say of which commit it is, and {bring.ref} is wanted",
                "Look at the address of the hub; or name a source of this commit (artifacts_sources): an archive, a"
                " cache, or a directory as hf download --local-dir makes it",
            )
        )
    whole = [host for host, node in nodes.items() if node.held.state == WHOLE and node.held.revision == revision]
    needing = {host: node for host, node in nodes.items() if host not in whole}
    if bring.obtain in (plan.ADOPT, plan.IMPORT) and bring.seed in needing:
        # What is on the same disk and everybody may read is linked.
        linked = size - listing.copied
        there = linked if bring.obtain == plan.ADOPT else max(linked, seed.held.there)
        needing[bring.seed] = replace(seed, held=replace(seed.held, there=there))
        if linked >= size:
            needing.pop(bring.seed)
    apart = _apart(options["facts"], bring, {*whole, bring.seed})
    alone = bring.obtain not in (plan.IMPORT, plan.SEND) and not plan.is_offline(bring.environment)
    findings += [] if alone else apart
    shown = judged(REFUSED, [*findings, *plan.room(bring.name, size, needing)])
    if apart:
        names = ", ".join(finding.host for finding in apart)
        line = f"{bring.name}: {names}: {apart[0].found}, so every engine fetches the model itself"
        return {**shown, "lines": [line], "revision": revision, "aside": True}
    lines = [f"{bring.name} {revision[:12]}: {plan.gb(size)}"]
    left = sum(listing.left_out.values())
    if listing.name:
        unneeded = f", {plan.gb(left)} there are not needed" if left else ""
        lines[0] += f" in {listing.files} files of {listing.hub}{unneeded}"
    for host, node in nodes.items():
        lacks = plan.gb(max(0, size - node.held.there))
        if host in whole:
            lines.append(f"{host} has it")
        elif host != bring.seed:
            lines.append(f"{host} gets {lacks} over the fabric, {plan.gb(node.free)} are free there")
        elif bring.obtain == plan.DOWNLOAD:
            lines.append(f"{host} fetches {lacks}, {plan.gb(node.free)} are free there")
        elif bring.obtain == plan.SEND:
            lines.append(f"{host} gets {lacks} from this computer, {plan.gb(node.free)} are free there")
        else:
            lines.append(f"{host} has it in its cache, and reads it once for its manifest")
    return {**shown, "lines": lines, "revision": revision, "aside": False}


def _apart(facts: Mapping[str, FabricFact | None], bring: plan.Bring, whole: set[str]) -> list[Finding]:
    """A check of new nodes has no fabric yet, and a node alone needs none."""
    known = {host: fact for host in bring.hosts if (fact := facts.get(host))}
    return _pulls(known, whole)[1] if len(known) == len(bring.hosts) else []


def _pulls(facts: Mapping[str, FabricFact], whole: set[str]) -> tuple[list[dict[str, fanout.Pull]], list[Finding]]:
    """With those that no node with the model reaches."""
    ordered = sorted(facts, key=lambda host: (facts[host].rank, host))
    lacking = [host for host in ordered if host not in whole]
    made, apart = fanout.rounds(facts, [host for host in ordered if host in whole], lacking)
    return made, [
        Finding(
            host,
            "no node that has the model, or gets it, shares a cable with this one",
            "Let a node between them serve the model too, or name a node that is its neighbour as artifacts_seed",
        )
        for host in apart
    ]


def fan_out(options: Options) -> dict[str, Any]:
    """``rounds``: who offers it, and the work of those who get it; none where nobody lacks it."""
    bring: plan.Bring = document.load(plan.Bring, options["bring"])
    seed = bring.seed
    of: Manifest | None = options["had"][seed].manifest
    if of is None:
        raise RefusedError(f"{seed}: there is no manifest of {bring.name}. Run the layer artifacts again")
    if (of.name, of.revision) != (bring.name, bring.ref if _pinned(bring.ref) else of.revision):
        judged(planner.REFUSED, [Finding(seed, f"its manifest is of {of.name} {of.revision}", calls.REMEDY)])
    looks = _nodes(options["looks"], bring)
    whole = {host for host, node in looks.items() if (node.held.state, node.held.digest) == (WHOLE, of.digest)} | {seed}
    if whole == set(looks):
        return {"rounds": [], "digest": of.digest}
    facts = {host: fact or fabric_fact.load(None, host) for host, fact in options["facts"].items() if host in looks}
    made, findings = _pulls(facts, whole)
    shown = judged(REFUSED, findings)
    known = {"kind": "copy", "home": bring.home, "name": of.name, "revision": of.revision, "ref": bring.ref or "main"}
    rounds = []
    for one in made:
        gives = [pull.host for pull in one.values()]
        works = {
            host: {
                **known,
                "host": pull.host,
                "addresses": list(pull.addresses),
                # What one node sends to several is shared by them.
                "rate": int(options["rate_mb_s"] * 10**6) // gives.count(pull.host),
            }
            for host, pull in one.items()
        }
        rounds.append({"offers": sorted({*gives}), "works": works})
    return {**shown, "rounds": rounds, "digest": of.digest}


def done(options: Options) -> dict[str, Any]:
    """Every receiver says by its manifest that it has what the seed has. ``hosts``: as :func:`here` has them."""
    findings, lines = [], []
    for host in options["receivers"]:
        result = options["worked"][host].result if host in options["worked"] else None
        if result is None or result.digest != options["digest"]:
            findings.append(
                Finding(
                    host,
                    f"{options['model']} is not what {options['seed']} has",
                    "Run the layer again: it goes on where this ended",
                )
            )
            continue
        sources = ", ".join(f"{plan.gb(count)} from {source}" for source, count in sorted(result.sources.items()))
        lines.append(f"{options['model']} is whole on {host}{f': {sources}' if sources else ''}")
    return {**judged(REFUSED_COPY, findings), "lines": lines, **here({**options, "obtained": options["worked"]})}


def here(options: Options) -> dict[str, Any]:
    """``hosts``: on which a model was brought or changed in this run. ``before``: with the models before this one."""
    brought = [host for host, told in options["obtained"].items() if told.result and told.result.changed]
    return {"hosts": list(dict.fromkeys([*options["before"], *brought]))}


@dataclass(frozen=True)
class _Item:
    """A model's revision or an image on one node. ``names``: by which a user names it. ``why``: what needs it.
    ``ours``: it goes where nobody names anything. ``removal``: of what kind it is, and what the node is told."""

    what: str
    size: int
    words: tuple[str, ...]
    names: frozenset[str]
    why: str
    frees: str
    ours: bool
    removal: tuple[str, dict[str, Any]]


def _items(look: Look, named: Collection[str] = ()) -> Iterator[_Item]:
    for one in sorted(look.kept, key=lambda one: (one.name, -one.used_at)):
        words = [f"last read {_day(one.used_at)}", "verified" if one.manifest else "without a manifest"]
        words += [f"{len(one.broken)} files are missing"] if one.broken else []
        yield _Item(
            f"{one.name} {one.revision[:12]}",
            one.size,
            tuple(words),
            frozenset(_names(one)),
            _why(one, look.referred),
            plan.gb(one.frees),
            True,
            ("models", {"name": one.name, "revision": one.revision}),
        )
    for image in sorted(look.images, key=lambda image: (image.names, image.id)):
        short = image.id.rpartition(":")[2][:12]
        by = {*named, *image.known}
        whole = {image.id, short, *image.digests} & set(named)
        yield _Item(
            f"image {', '.join(image.names or image.digests) or 'without a name'} {short}",
            image.size,
            (f"last in a plan {_day(image.used_at)}" if image.known else "in no plan so far",),
            frozenset({image.id, short, *image.names, *image.digests}),
            image.why,
            f"up to {plan.gb(image.size)}",
            bool(image.known),
            ("images", {"id": image.id, "names": [name for name in image.names if whole or name in by]}),
        )


def _names(one: Kept) -> tuple[str, str]:
    """By which a user names a model."""
    return one.name, f"{one.name}@{one.revision}"


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds)) if seconds else "never"


def listing(options: Options) -> dict[str, Any]:
    """What is where, and what of it could go."""
    looks: Mapping[str, Look] = options["looks"]
    lines = []
    for host, look in looks.items():
        lines.append(f"{host}: {plan.gb(look.room.free)} of {plan.gb(look.room.total)} are free")
        for item in _items(look):
            free = f"not used by a plan; removing it frees {item.frees}"
            end = item.why or (free if item.ours else "removed only when you name it (artifacts_images)")
            lines.append(f"  {item.what}: {', '.join([plan.gb(item.size), *item.words, end])}")
        lines += [] if look.kept else ["  no models from a hub"]
        lines += [f"  images: {look.docker}"] if look.docker else []
    return {"lines": lines}


def unused(options: Options) -> dict[str, Any]:
    """What may be removed on each node: models that no plan refers to, and images that none refers to any more.
    ``named``: only these, where given."""
    named = set(options["named"])
    removals: dict[str, dict[str, list[dict[str, Any]]]] = {}
    findings, lines = [], []
    looks: Mapping[str, Look] = options["looks"]
    for host, look in looks.items():
        removals[host] = {"models": [], "images": []}
        lines += [f"{host}: images stay: {look.docker}"] if look.docker else []
        for item in _items(look, named):
            if not (item.names & named if named else item.ours and not item.why):
                continue
            if item.why:
                findings.append(Finding(host, f"{item.what}: {item.why}", "Name another, or leave it"))
            elif look.plans:
                findings.append(Finding(host, f"{item.what} may be what serves: {look.plans}", "Run site.yml first"))
            else:
                kind, told = item.removal
                removals[host][kind].append(told)
                lines.append(f"{host}: {item.what} frees {item.frees}")
    return {**judged(REFUSED_REMOVE, findings), "removals": removals, "lines": lines or ["Nothing is unused."]}


def export(options: Options) -> dict[str, Any]:
    """What one node has of what its plans refer to, or of what is named."""
    named = options["models"]
    found = [
        one
        for host, look in options["looks"].items()
        for one in look.kept
        if host == options["host"]
        and one.manifest
        and ({*_names(one)} & {*named} if named else _why(one, look.referred))
    ]
    if not found:
        what = "of what is named" if named else "that its plans refer to"
        raise RefusedError(
            f"{options['host']}: there is no model {what} with a manifest. Name one that"
            " playbooks/artifacts.yml shows as verified: artifacts_models, or another node: artifacts_seed"
        )
    return {
        "models": [f"{one.name}@{one.revision}" for one in found],
        "lines": [f"{one.name} {one.revision[:12]}: {plan.gb(one.size)}" for one in found],
    }


def _why(one: Kept, referred: Sequence[Referred]) -> str:
    refs = (one.revision, *one.refs)
    return next((other.why for other in referred if other.name == one.name and (other.ref or "main") in refs), "")


def _nodes(looks: Mapping[str, Look], bring: plan.Bring) -> dict[str, plan.Node]:
    found = {}
    for host in bring.hosts:
        look = looks[host]
        held = next((model for model in look.models if model.name == bring.name), Held(bring.name, bring.ref))
        removable = tuple(
            (f"{one.name} {one.revision[:12]}", one.frees)
            for one in sorted(look.kept, key=lambda one: -one.frees)
            if not (look.plans or _why(one, look.referred)) and one.name != bring.name
        )
        found[host] = plan.Node(look.room.free, held, removable)
    return found


def _pinned(ref: str) -> bool:
    return bool(re.fullmatch("[0-9a-f]{40}", ref))


BRING: dict[str, Any] = {"type": "dict", "required": True}  # one of those that `artifacts_wanted` returns
PLANNERS = {
    "artifacts_wanted": Planner(
        wanted,
        {
            "seed": {"type": "str", "default": ""},
            "sources": {"type": "dict", "default": {}},
            "here": {"type": "list", "elements": "str", "default": []},
        },
        gathered={"plans": plan_document.read, "seen": "engine_inputs"},
        alive=True,
    ),
    "artifacts_room": Planner(
        room,
        {"bring": BRING},
        gathered={"looks": "models", "facts": fabric_fact.read, "listing": "model_listing"},
        alive=True,
        partly=("listing",),
    ),
    "artifacts_fan_out": Planner(
        fan_out,
        {"bring": BRING, "rate_mb_s": {"type": "float", "default": 0}},
        gathered={"looks": "models", "facts": fabric_fact.read, "had": "model_manifest"},
        alive=True,
        partly=("had",),
    ),
    "artifacts_done": Planner(
        done,
        {
            "model": {"type": "str", "required": True},
            "seed": {"type": "str", "required": True},
            "digest": {"type": "str", "required": True},
            "receivers": {"type": "list", "elements": "str", "required": True},
            "before": {"type": "list", "elements": "str", "default": []},
        },
        gathered={"worked": "model_work"},
        alive=True,
    ),
    "artifacts_here": Planner(
        here,
        {"before": {"type": "list", "elements": "str", "default": []}},
        gathered={"obtained": "model_work"},
        alive=True,
    ),
    "artifacts_listing": Planner(listing, {}, gathered={"looks": "models"}),
    "artifacts_export": Planner(
        export,
        {
            "host": {"type": "str", "required": True},
            "models": {"type": "list", "elements": "str", "default": []},
        },
        gathered={"looks": "models"},
    ),
    "artifacts_unused": Planner(
        unused,
        {"named": {"type": "list", "elements": "str", "default": []}},
        gathered={"looks": "models"},
    ),
}
