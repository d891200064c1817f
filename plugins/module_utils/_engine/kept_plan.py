# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The engine plan that this node serves by, and the one before it: what an upgrade falls back to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Optional

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, json_text, paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Count, Flag, WordOrEmpty, Words
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine, remove
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import at_hand, image, taken
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import plan_document as engine_plan
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import NodePlan
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import drop_state, write_state

DIRECTORY = at_hand.SERVED
CURRENT, PREVIOUS = "current", "previous"
UPGRADE, ROLLBACK = "upgrade", "rollback"
REMEDY = "Run site.yml with the recipe that you want; it keeps the plan that then serves"


@dataclass(frozen=True)
class Kept:
    """``refused``: why a plan that is there cannot be used; it was kept by another release, or is damaged."""

    current: NodePlan | None
    previous: NodePlan | None
    refused: str = ""


def differing(node_plan: NodePlan | None, other: NodePlan | None) -> list[str]:
    """Names of the services that this node serves otherwise by one plan than by the other; a lone one is ``""``."""
    mine, theirs = _services(node_plan), _services(other)
    return sorted(name for name in {*mine, *theirs} if mine.get(name) != theirs.get(name))


def services(*plans: NodePlan | None) -> list[str]:
    """Names of the services that this node takes part in by any of these plans; a lone one has none."""
    return sorted({name for plan in plans for name in _services(plan) if name})


def _services(plan: NodePlan | None) -> dict[str, str]:
    return {service.instance: service.config_hash for service in plan.here} if plan else {}


def read(root: str = "/") -> Kept:
    plans: dict[str, NodePlan | None] = {}
    refused = []
    for name in (CURRENT, PREVIOUS):
        try:
            plans[name] = _load(name, root)
        except SparkError as exc:
            plans[name] = None
            refused.append(str(exc))
    return Kept(plans[CURRENT], plans[PREVIOUS], " ".join(refused))


def keep(plan: NodePlan, root: str = "/", check_mode: bool = False) -> bool:
    """Make ``plan`` the current one. True when it is another one than before, which becomes the previous one.

    All nodes take the same step: a node whose own part stays as it was keeps the plan of the new state, too. What
    differs from run to run and changes nothing, such as measured memory, makes no step. One that cannot be read is
    replaced: what is kept has to be usable to come back to.
    """
    current = read(root).current
    same = current is not None and current.identity == plan.identity
    if current is not None and same and current.image_ids == plan.image_ids:
        return False
    # What it took when it served first is what counts: later it may be under load.
    plan = replace(plan, took=current.took) if current is not None and same and current.took else plan
    if not check_mode:
        # The older one first: an interruption in between loses nothing that is needed.
        if current is not None and not same:
            _save(PREVIOUS, current, root)
        _save(CURRENT, plan, root)
    return True


def put(current: NodePlan, previous: NodePlan | None, root: str = "/", check_mode: bool = False) -> bool:
    """Keep exactly these two, on nodes that a failed upgrade left in different steps."""
    kept = read(root)
    different = [
        (name, wanted)
        for name, there, wanted in ((CURRENT, kept.current, current), (PREVIOUS, kept.previous, previous))
        if there != wanted or (wanted is None and _path(name, root).exists())  # a plan of another release reads as none
    ]
    if not check_mode:
        for name, wanted in different:
            if wanted is None:
                drop_state(f"{DIRECTORY}/{name}.json", root=root)
            else:
                _save(name, wanted, root)
    return bool(different)


def drop_prefixes(plan: NodePlan, root: str = "/", check_mode: bool = False) -> bool:
    """Remove what services have kept of prompts on disk that keep nothing any more: none of their engines runs with it
    now. Their own directories stay, which containers have mounted.
    """
    kept, base = {service.prefixes.base for service in plan.all}, Path(root) / paths.PREFIXES.lstrip("/")
    others = [own for own in base.glob("*") if f"{paths.PREFIXES}/{own.name}" not in kept and not own.is_symlink()]
    there = [path for own in others for path in own.glob("*")]
    for path in there if not check_mode else ():
        remove(str(path))
    return bool(there)


def forget(root: str = "/", check_mode: bool = False) -> bool:
    there = [name for name in (CURRENT, PREVIOUS) if _path(name, root).exists()]
    prefixes = Path(root) / paths.PREFIXES.lstrip("/")
    changed = bool(there) or prefixes.exists()
    if not check_mode:
        at_hand.forget(root)
        for name in there:
            drop_state(f"{DIRECTORY}/{name}.json", root=root)
        remove(str(prefixes))
    return changed


def _path(name: str, root: str) -> Path:
    return Path(root) / DIRECTORY.lstrip("/") / f"{name}.json"


def _load(name: str, root: str) -> NodePlan | None:
    where = f"{DIRECTORY}/{name}.json"
    try:
        text = _path(name, root).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise SparkError(f"it cannot be read ({exc})", where, REMEDY) from exc
    with json_text.Reading("it cannot be read", where, REMEDY):
        found = json_text.read(text)
    return engine_plan.load(found, where, REMEDY)


def _save(name: str, plan: NodePlan, root: str) -> None:
    text = json.dumps(plan.as_dict(), indent=1, sort_keys=True) + "\n"
    write_state(f"{DIRECTORY}/{name}.json", text.encode(), root=root)


# --- the way back ----------------------------------------------------------------------------------------------------


def check_way_back(change: str, kept: Kept, planned: NodePlan | None, nodes: int, service: str) -> None:
    """Raise :class:`SparkError` where this node could not serve another plan with a way back. ``nodes``: how many the
    inventory has. ``service``: the one that the user named.
    """
    if change == UPGRADE and planned:
        _upgrade(kept, planned)
        other = planned
    else:
        other = _rollback(kept, nodes)
    others = [name for name in differing(kept.current, other) if name != service] if service else []
    if others:
        told = ", ".join(name or "the service that was alone" for name in others)
        raise SparkError(
            f"{told} would be served otherwise here, too, and engine_service names {service}; nothing was changed",
            "engine_service",
            "Set engine_services so that the others stay as they are, or leave engine_service out",
        )


def _upgrade(kept: Kept, planned: NodePlan) -> None:
    if not kept.current:
        raise SparkError(
            kept.refused or "no plan is kept here, so there is nothing to come back to", "", "Run site.yml"
        )
    have = {each.path: each for each in kept.current.environments}
    in_place = [each.path for each in planned.environments if have.get(each.path, each) != each]
    if in_place:
        raise SparkError(
            f"the requirements change, and {', '.join(in_place)} is the environment that serves now: changed in place, "
            "there would be no way back",
            "engine_venv_path",
            "Name another directory for the new ones",
        )


def _rollback(kept: Kept, nodes: int) -> NodePlan:
    if not kept.previous:
        raise SparkError(kept.refused or "no earlier plan is kept here; nothing was changed", "", "Run site.yml")
    if kept.previous.cluster.nodes != nodes:
        raise SparkError(
            f"the earlier plan is for {kept.previous.cluster.nodes} nodes, the inventory has {nodes}",
            "",
            REMEDY,
        )
    return kept.previous


# --- the call --------------------------------------------------------------------------------------------------------


def plan_or_none(values: Any) -> NodePlan | None:
    return engine_plan.load(values) if values else None


Plan = Annotated[Optional[NodePlan], plan_or_none]


@dataclass(frozen=True)
class Request:
    """``present`` makes ``plan`` the current one, another one that was current becomes the previous one, and prefixes
    go that it does not keep; ``read`` says what is kept; ``restored`` keeps exactly ``plan`` and ``previous``;
    ``absent`` forgets both, all prefixes, and what images have said of themselves.

    With ``read``, ``plan`` is what the current one is compared with, in place of the previous one. ``change`` refuses
    where this node could not serve another plan with a way back: an ``upgrade`` to ``plan``, or a ``rollback`` to the
    previous one, of an inventory of ``nodes``; ``service`` is the only one that may be served otherwise. ``images``:
    ids of the plan's images by name.
    """

    state: str = field(default="present", metadata=document.one_of("present", "read", "restored", "absent"))
    plan: Plan = None
    previous: Plan = None
    change: str = field(default="", metadata=document.one_of("", UPGRADE, ROLLBACK))
    nodes: int = 0
    service: str = ""
    images: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Told:
    """``differing``: services that would be served otherwise here by the other plan; ``services``: all of both."""

    changed: Flag = False
    current: Plan = None
    previous: Plan = None
    refused: Words = ""  # why a kept plan cannot be used
    differing: list[Words] = field(default_factory=list)
    services: list[Words] = field(default_factory=list)


def ensure(request: Request, check: bool) -> Told:
    if request.state == "read":
        return _told(request)
    if request.state == "absent":
        return Told(any([forget(check_mode=check), image.forget(check_mode=check), taken.forget(Machine(), check)]))
    if request.plan is None:
        raise SparkError("there is no engine plan", engine_plan.WHERE, engine_plan.REMEDY)
    if request.state == "restored":
        return Told(put(request.plan, request.previous, check_mode=check))
    plan = replace(request.plan, image_ids=request.images) if request.images else request.plan
    changed = any([keep(replace(plan, took=_took(plan)), check_mode=check), drop_prefixes(plan, check_mode=check)])
    if not check:
        before = read().previous
        at_hand.keep(plan, {before.identity} if before else ())
    return Told(changed)


@dataclass(frozen=True)
class Taken:
    """What a service took of this node's memory when it served, in bytes."""

    recipe: Words
    image: WordOrEmpty
    nodes: Count
    took: Count


def taken_here(root: str = "/") -> tuple[Taken, ...]:
    """By the plans that are kept, the one that serves first."""
    kept = read(root)
    return tuple(
        Taken(service.recipe, service.image, service.nodes, plan.took[service.instance])
        for plan in (kept.current, kept.previous)
        for service in (plan.here if plan else ())
        if plan and plan.took.get(service.instance)
    )


def _took(plan: NodePlan) -> dict[str, int]:
    found = {one.instance: taken.by(one.names.unit, Machine()) for one in plan.here if one.engine.runs_here}
    return {instance: took for instance, took in found.items() if took}


def _told(request: Request) -> Told:
    kept = read()
    both = kept.current, request.plan or kept.previous
    if request.change:
        check_way_back(request.change, kept, both[1], request.nodes, request.service)
    return Told(False, kept.current, kept.previous, kept.refused, differing(*both), services(*both))
