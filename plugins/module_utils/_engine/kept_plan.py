# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The engine plan that this node serves by, and the one before it: what an upgrade falls back to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import drop_state, write_state

DIRECTORY = f"{paths.STATE}/plan"
NAMES = ("current", "previous")
# Ids of the container images by name, as they were when the plan served. A name may mean another image tomorrow.
IMAGES = "image_ids"


def identity(plan: Mapping[str, Any]) -> tuple[str, ...]:
    """What makes two plans the same to a user. Measured memory, say, differs from run to run and changes nothing.

    All nodes take the same step: a node whose own part stays as it was keeps the plan of the new state, too.
    """
    if plan.get("identity"):
        return (str(plan["identity"]),)
    parts = [plan.get(name) or {} for name in ("engine", "ray", "container")]
    hashes = [str(part.get("config_hash") or part.get("text") or "") for part in parts if isinstance(part, Mapping)]
    return (*hashes, str(plan.get("image") or ""), str(plan.get("recipe") or ""))


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Names of the services that this node serves otherwise by one plan than by the other; a lone one is ``""``."""
    mine, theirs = _services(one), _services(other)
    return sorted(name for name in {*mine, *theirs} if mine.get(name) != theirs.get(name))


def services(*plans: Mapping[str, Any]) -> list[str]:
    """Names of the services that this node takes part in by any of these plans; a lone one has none."""
    return sorted({name for plan in plans for name in _services(plan) if name})


def _services(plan: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    parts = [] if plan.get("role", "idle") == "idle" else [plan, *plan.get("beside", ())]
    return {str((part.get("names") or {}).get("instance") or ""): identity({**part, "identity": ""}) for part in parts}


def read(root: str = "/") -> dict[str, Any]:
    """``{"current": plan or {}, "previous": plan or {}}``"""
    return {name: _load(name, root) for name in NAMES}


def keep(plan: Mapping[str, Any], root: str = "/", check_mode: bool = False) -> bool:
    """Make ``plan`` the current one. True when it is another one than before, which becomes the previous one.

    One that says the same in another form, of an earlier release, is replaced: it has to be usable to come back to.
    """
    current = _load("current", root)
    same = bool(current) and identity(current) == identity(plan)
    if same and set(current) == set(plan) and current.get(IMAGES) == plan.get(IMAGES):
        return False
    if not check_mode:
        # The older one first: an interruption in between loses nothing that is needed.
        if current and not same:
            _save("previous", current, root)
        _save("current", plan, root)
    return True


def put(current: Mapping[str, Any], previous: Mapping[str, Any], root: str = "/", check_mode: bool = False) -> bool:
    """Keep exactly these two, on nodes that a failed upgrade left in different steps."""
    wanted = {"current": dict(current), "previous": dict(previous)}
    kept = read(root)
    different = [name for name in NAMES if kept[name] != wanted[name]]
    if not check_mode:
        for name in different:
            if wanted[name]:
                _save(name, wanted[name], root)
            else:
                drop_state(f"{DIRECTORY}/{name}.json", root=root)
    return bool(different)


def forget(root: str = "/", check_mode: bool = False) -> bool:
    there = [name for name in NAMES if _path(name, root).exists()]
    if not check_mode:
        for name in there:
            drop_state(f"{DIRECTORY}/{name}.json", root=root)
    return bool(there)


def _path(name: str, root: str) -> Path:
    return Path(root) / DIRECTORY.lstrip("/") / f"{name}.json"


def _load(name: str, root: str) -> dict[str, Any]:
    try:
        found = json.loads(_path(name, root).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as exc:
        raise SparkError(f"cannot be read ({exc})", f"{DIRECTORY}/{name}.json", "Remove it: sudo rm") from exc
    return found if isinstance(found, dict) else {}


def _save(name: str, plan: Mapping[str, Any], root: str) -> None:
    write_state(f"{DIRECTORY}/{name}.json", (json.dumps(plan, indent=1, sort_keys=True) + "\n").encode(), root=root)
