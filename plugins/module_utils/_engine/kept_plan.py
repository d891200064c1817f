# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The engine plan that this node serves by, and the one before it: what an upgrade falls back to."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text, paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import plan_document as engine_plan
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import NodePlan
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import drop_state, write_state

DIRECTORY = f"{paths.STATE}/plan"
CURRENT, PREVIOUS = "current", "previous"
REMEDY = "Run site.yml with the recipe that you want; it keeps the plan that then serves"


@dataclass(frozen=True)
class Kept:
    """``refused``: why a plan that is there cannot be used; it was kept by another release, or is damaged."""

    current: NodePlan | None
    previous: NodePlan | None
    refused: str = ""


def differing(one: NodePlan | None, other: NodePlan | None) -> list[str]:
    """Names of the services that this node serves otherwise by one plan than by the other; a lone one is ``""``."""
    mine, theirs = _services(one), _services(other)
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


def forget(root: str = "/", check_mode: bool = False) -> bool:
    there = [name for name in (CURRENT, PREVIOUS) if _path(name, root).exists()]
    if not check_mode:
        for name in there:
            drop_state(f"{DIRECTORY}/{name}.json", root=root)
    return bool(there)


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
