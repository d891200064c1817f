# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Whether a model of the plan is on this node: the one look at it for doctor, ``sparkmatrix drift`` and metrics."""

from __future__ import annotations

import os
import stat

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import cache as caches
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import look
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Model
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._snapshot.snapshot import Weights

MAX_FILES = 10000  # of a directory with a model


def read(machine: Machine, model: Model, home: str) -> Weights:
    """Reads no file of it. ``home``: the cache of the plan."""
    if model.name.startswith("/"):
        problem = _dangling(machine.real(model.name))
        return Weights(model.name, "", "broken" if problem else "whole", problem)
    if not look.is_cache_of(model.environment, home):
        return Weights(model.name, model.revision, "unseen", "it comes from a cache of its own")
    cache = caches.Cache(machine.real(home))
    held = look.held(cache, model.name, model.revision)
    if held.state == look.NONE:
        return Weights(model.name, model.revision, "missing", "it is not in the cache of this node")
    if held.state == look.FOREIGN:
        broken = [
            path
            for kept in caches.kept(cache)
            if (kept.name, kept.revision) == (model.name, held.revision)
            for path in kept.broken
        ]
        if broken:
            return Weights(model.name, held.revision, "broken", _first("leads nowhere", broken))
    return Weights(model.name, held.revision, held.state, held.found[:300])


def _first(what: str, paths: list[str]) -> str:
    more = f", and {len(paths) - 1} more" if len(paths) > 1 else ""
    return f"{paths[0]} {what}{more}"


def _dangling(path: str) -> str:
    """What is wrong with a directory, or a file, that a model is read from."""
    if not os.path.exists(path):
        return "a link that leads nowhere" if os.path.islink(path) else "it is not there"
    if not stat.S_ISDIR(os.stat(path).st_mode):
        return ""
    broken = []
    for count, (above, _folders, names) in enumerate(os.walk(path)):
        if count > MAX_FILES:
            break
        broken += [os.path.join(above, name) for name in names if not os.path.exists(os.path.join(above, name))]
    return _first("leads nowhere", sorted(broken)) if broken else ""
