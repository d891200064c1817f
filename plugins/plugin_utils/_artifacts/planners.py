# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The planners of the layer artifacts: what has to be brought, whether it fits, who fetches from whom, and whether all
have the same in the end."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.look import WHOLE
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import plan_document as documents
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fact as fabric_fact
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._artifacts import fanout, plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import answers, border
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
    plans = {host: documents.load(one, f"engine plan of {host}") for host, one in options["plans"].items()}
    seen = {host: told["models"] for host, told in options["seen"].items()}
    sources = {name: _path(text) for name, text in options["sources"].items()}
    made = plan.wanted(plans, seen, options["seed"], sources, options["here"])
    shown = judged(REFUSED, made.findings)
    return {**shown, "bring": [document.plain(one) for one in made.bring], "lines": list(made.lines)}


def _path(source: Any) -> str:
    """``~`` on this computer is its user's."""
    where, at, path = str(source).rpartition(plan.CONTROLLER)
    return str(source) if where or not at else f"{at}{os.path.expanduser(path)}"


def room(options: Options) -> dict[str, Any]:
    """One model. ``listing``: what the hub says of it; empty where the seed has it. ``prepare``: nodes that have a part
    of it, which they read before they ask for the rest. ``aside``: it is left to the engines."""
    bring = options["bring"]
    findings: list[Finding] = []
    listing = border.read(answers.LISTING, options["listing"], bring["seed"], findings) or {}
    nodes = _nodes(options["looks"], bring)
    seed = nodes[bring["seed"]]
    revision = listing.get("revision") or bring["revision"]
    size = listing.get("size") or seed.size or seed.there
    if _pinned(bring["ref"]) and revision != bring["ref"]:
        source = listing.get("hub") or "its cache"
        findings.append(
            Finding(
                bring["seed"],
                f"{source} calls {bring['ref']} {revision}"
                if revision
                else f"{source} does not say of which commit it is, and {bring['ref']} is wanted",
                "Look at the address of the hub; or name a source of this commit (artifacts_sources): an archive, a"
                " cache, or a directory as hf download --local-dir makes it",
            )
        )
    whole = [host for host, node in nodes.items() if node.state == WHOLE and node.revision == revision]
    needing = {host: node for host, node in nodes.items() if host not in whole}
    if bring["obtain"] in (plan.ADOPT, plan.IMPORT) and bring["seed"] in needing:
        # What is on the same disk and everybody may read is linked.
        linked = size - listing.get("copied", 0)
        there = linked if bring["obtain"] == plan.ADOPT else max(linked, seed.there)
        needing[bring["seed"]] = replace(seed, there=there)
        if linked >= size:
            needing.pop(bring["seed"])
    apart = _apart(options["facts"], bring, {*whole, bring["seed"]})
    alone = bring["obtain"] not in (plan.IMPORT, plan.SEND) and not plan.is_offline(bring["environment"])
    findings += [] if alone else apart
    shown = judged(REFUSED, [*findings, *plan.room(bring["name"], size, needing)])
    if apart:
        names = ", ".join(finding.host for finding in apart)
        line = f"{bring['name']}: {names}: {apart[0].found}, so every engine fetches the model itself"
        return {**shown, "lines": [line], "revision": revision, "prepare": [], "aside": True}
    lines = [f"{bring['name']} {revision[:12]}: {plan.gb(size)}"]
    left = sum((listing.get("left_out") or {}).values())
    if listing:
        unneeded = f", {plan.gb(left)} there are not needed" if left else ""
        lines[0] += f" in {listing['files']} files of {listing['hub']}{unneeded}"
    for host, node in nodes.items():
        lacks = plan.gb(max(0, size - node.there))
        if host in whole:
            lines.append(f"{host} has it")
        elif host != bring["seed"]:
            lines.append(f"{host} gets {lacks} over the fabric, {plan.gb(node.free)} are free there")
        elif bring["obtain"] == plan.DOWNLOAD:
            lines.append(f"{host} fetches {lacks}, {plan.gb(node.free)} are free there")
        elif bring["obtain"] == plan.SEND:
            lines.append(f"{host} gets {lacks} from this computer, {plan.gb(node.free)} are free there")
        else:
            lines.append(f"{host} has it in its cache, and reads it once for its manifest")
    prepare = [host for host, node in nodes.items() if node.there and host not in (*whole, bring["seed"])]
    return {**shown, "lines": lines, "revision": revision, "prepare": prepare, "aside": False}


def _apart(facts: Mapping[str, Any], bring: Mapping[str, Any], whole: set[str]) -> list[Finding]:
    """A check of new nodes has no fabric yet, and a node alone needs none."""
    known = {host: fabric_fact.load(facts[host], host) for host in bring["hosts"] if facts.get(host)}
    return list(fanout.plan(known, whole, known).findings) if len(known) == len(bring["hosts"]) else []


def fan_out(options: Options) -> dict[str, Any]:
    """``works``: what each node does, but for token and manifest; nothing where nobody lacks it."""
    bring, seed = options["bring"], options["bring"]["seed"]
    findings: list[Finding] = []
    of = border.read(answers.MANIFEST, options["manifest"], seed, findings)
    if of and (of.name, of.revision) != (bring["name"], bring["ref"] if _pinned(bring["ref"]) else of.revision):
        findings.append(Finding(seed, f"its manifest is of {of.name} {of.revision}", border.REMEDY))
    judged(border.REFUSED, findings)
    looks = _nodes(options["looks"], bring)
    whole = {host for host, node in looks.items() if (node.state, node.digest) == (WHOLE, of.digest)} | {seed}
    receivers = [host for host in looks if host not in whole]
    if not receivers:
        return {"works": {}, "receivers": [], "digest": of.digest}
    facts = {host: fabric_fact.load(one, host) for host, one in options["facts"].items() if host in looks}
    made = fanout.plan(facts, whole, receivers)
    shown = judged(REFUSED, made.findings)
    works = {
        host: {
            "kind": "copy",
            "home": bring["home"],
            "name": of.name,
            "revision": of.revision,
            "ref": bring["ref"] or "main",
            "host": host,
            "receivers": list(made.receivers),
            "peers": [document.plain(peer) for peer in peers],
            "rate": int(options["rate_mb_s"] * 10**6),
        }
        for host, peers in made.peers.items()
    }
    return {**shown, "works": works, "receivers": list(made.receivers), "digest": of.digest}


def done(options: Options) -> dict[str, Any]:
    """Every receiver says by its manifest that it has what the seed has."""
    findings, changed, lines = [], [], []
    for host in options["receivers"]:
        result = (options["worked"].get(host) or {}).get("result") or {}
        if result.get("digest") != options["digest"]:
            findings.append(
                Finding(
                    host,
                    f"{options['model']} is not what {options['seed']} has",
                    "Run the layer again: it goes on where this ended",
                )
            )
            continue
        changed += [host] if result["changed"] else []
        sources = ", ".join(f"{plan.gb(count)} from {source}" for source, count in sorted(result["sources"].items()))
        lines.append(f"{options['model']} is whole on {host}{f': {sources}' if sources else ''}")
    return {**judged(REFUSED_COPY, findings), "lines": lines, "anywhere": bool(changed)}


def here(options: Options) -> dict[str, Any]:
    """``hosts``: on which a model was brought or changed in this run. ``before``: with the models before this one."""
    found = list(options["before"])
    for worked in (options["obtained"], options["copied"]):
        found += [host for host, told in worked.items() if ((told or {}).get("result") or {}).get("changed")]
    return {"hosts": list(dict.fromkeys(found))}


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


def _items(look: Mapping[str, Any], named: Collection[str] = ()) -> Iterator[_Item]:
    for one in sorted(look["kept"], key=lambda one: (one["name"], -one["used_at"])):
        words = [f"last read {_day(one['used_at'])}", "verified" if one["manifest"] else "without a manifest"]
        words += [f"{len(one['broken'])} files are missing"] if one["broken"] else []
        yield _Item(
            f"{one['name']} {one['revision'][:12]}",
            one["size"],
            tuple(words),
            frozenset({one["name"], f"{one['name']}@{one['revision']}"}),
            _why(one, look["referred"]),
            plan.gb(one["frees"]),
            True,
            ("models", {"name": one["name"], "revision": one["revision"]}),
        )
    for one in sorted(look.get("images") or (), key=lambda one: (one["names"], one["id"])):
        short = one["id"].rpartition(":")[2][:12]
        by = {*named, *one["known"]}
        whole = {one["id"], short, *one["digests"]} & set(named)
        yield _Item(
            f"image {', '.join(one['names'] or one['digests']) or 'without a name'} {short}",
            one["size"],
            (f"last in a plan {_day(one['used_at'])}" if one["known"] else "in no plan so far",),
            frozenset({one["id"], short, *one["names"], *one["digests"]}),
            one["why"],
            f"up to {plan.gb(one['size'])}",
            bool(one["known"]),
            ("images", {"id": one["id"], "names": [name for name in one["names"] if whole or name in by]}),
        )


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds)) if seconds else "never"


def listing(options: Options) -> dict[str, Any]:
    """What is where, and what of it could go."""
    looks: Mapping[str, Mapping[str, Any]] = options["looks"]
    lines = []
    for host, look in looks.items():
        space = look["room"]
        lines.append(f"{host}: {plan.gb(space['free'])} of {plan.gb(space['total'])} are free")
        for item in _items(look):
            free = f"not used by a plan; removing it frees {item.frees}"
            end = item.why or (free if item.ours else "removed only when you name it (artifacts_images)")
            lines.append(f"  {item.what}: {', '.join([plan.gb(item.size), *item.words, end])}")
        lines += [] if look["kept"] else ["  no models from a hub"]
        lines += [f"  images: {look['docker']}"] if look.get("docker") else []
    return {"lines": lines}


def unused(options: Options) -> dict[str, Any]:
    """What may be removed on each node: models that no plan refers to, and images that none refers to any more.
    ``named``: only these, where given."""
    named = set(options["named"])
    removals: dict[str, dict[str, list[dict[str, Any]]]] = {}
    findings, lines = [], []
    for host, look in options["looks"].items():
        removals[host] = {"models": [], "images": []}
        lines += [f"{host}: images stay: {look['docker']}"] if look.get("docker") else []
        for item in _items(look, named):
            if not (item.names & named if named else item.ours and not item.why):
                continue
            if item.why:
                findings.append(Finding(host, f"{item.what}: {item.why}", "Name another, or leave it"))
            elif look.get("plans"):
                findings.append(Finding(host, f"{item.what} may be what serves: {look['plans']}", "Run site.yml first"))
            else:
                kind, told = item.removal
                removals[host][kind].append(told)
                lines.append(f"{host}: {item.what} frees {item.frees}")
    return {**judged(REFUSED_REMOVE, findings), "removals": removals, "lines": lines or ["Nothing is unused."]}


def export(options: Options) -> dict[str, Any]:
    """What one node has of what its plans refer to, or of what is named."""
    look, named = options["looks"].get(options["host"]), options["models"]
    found = [
        one
        for one in (look or {"kept": ()})["kept"]
        if one["manifest"] and (_is_named(one, named) if named else _why(one, look["referred"]))
    ]
    if not found:
        what = "of what is named" if named else "that its plans refer to"
        raise RefusedError(
            f"{options['host']}: there is no model {what} with a manifest. Name one that"
            " playbooks/artifacts.yml shows as verified: artifacts_models, or another node: artifacts_seed"
        )
    return {
        "models": [f"{one['name']}@{one['revision']}" for one in found],
        "lines": [f"{one['name']} {one['revision'][:12]}: {plan.gb(one['size'])}" for one in found],
    }


def _is_named(one: Mapping[str, Any], named: list[str]) -> bool:
    return bool({one["name"], f"{one['name']}@{one['revision']}"} & set(named))


def _why(one: Mapping[str, Any], referred: list[Mapping[str, str]]) -> str:
    for other in referred:
        if other["name"] != one["name"]:
            continue
        ref = other["ref"] or "main"
        if ref in (one["revision"], *one["refs"]):
            return other["why"]
    return ""


def _nodes(looks: Mapping[str, Mapping[str, Any]], bring: Mapping[str, Any]) -> dict[str, plan.Node]:
    found = {}
    for host in bring["hosts"]:
        look = looks[host]
        held: Mapping[str, Any] = next((one for one in look["models"] if one["name"] == bring["name"]), {})
        removable = tuple(
            (f"{one['name']} {one['revision'][:12]}", one["frees"])
            for one in sorted(look["kept"], key=lambda one: -one["frees"])
            if not (look.get("plans") or _why(one, look["referred"])) and one["name"] != bring["name"]
        )
        known = {name: held[name] for name in ("state", "revision", "digest", "size", "there") if name in held}
        found[host] = plan.Node(free=look["room"]["free"], removable=removable, **known)
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
        gathered={"plans": answers.PLAN, "seen": answers.INPUTS},
        alive=True,
    ),
    "artifacts_room": Planner(
        room,
        {
            "bring": BRING,
            "listing": {"type": "dict", "default": {}},
        },
        gathered={"looks": answers.MODELS, "facts": answers.FACT},
        alive=True,
    ),
    "artifacts_fan_out": Planner(
        fan_out,
        {"bring": BRING, "rate_mb_s": {"type": "float", "default": 0}, "manifest": {"type": "str", "required": True}},
        gathered={"looks": answers.MODELS, "facts": answers.FACT},
        alive=True,
    ),
    "artifacts_done": Planner(
        done,
        {
            "model": {"type": "str", "required": True},
            "seed": {"type": "str", "required": True},
            "digest": {"type": "str", "required": True},
            "receivers": {"type": "list", "elements": "str", "required": True},
        },
        gathered={"worked": answers.WORKED},
        alive=True,
    ),
    "artifacts_here": Planner(
        here,
        {"before": {"type": "list", "elements": "str", "default": []}},
        gathered={"obtained": answers.WORKED, "copied": answers.WORKED},
        alive=True,
    ),
    "artifacts_listing": Planner(listing, {}, gathered={"looks": answers.MODELS}),
    "artifacts_export": Planner(
        export,
        {
            "host": {"type": "str", "required": True},
            "models": {"type": "list", "elements": "str", "default": []},
        },
        gathered={"looks": answers.MODELS},
    ),
    "artifacts_unused": Planner(
        unused,
        {"named": {"type": "list", "elements": "str", "default": []}},
        gathered={"looks": answers.MODELS},
    ),
}
