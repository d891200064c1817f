# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a node says of the models in its cache: enough to decide whether anything has to be brought here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import archive, check, importing, selection
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import cache as caches
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.cache import Cache
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.manifest import check_revision
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import nosuid
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.kept_plan import Kept

# A manifest and all its files; a manifest, and files that are not whole; files without a manifest; nothing.
WHOLE, BROKEN, FOREIGN, NONE = "whole", "broken", "foreign", "none"
_BLOCK = 512  # of st_blocks


@dataclass(frozen=True)
class Held:
    """``revision``: the commit that the wanted branch, tag or commit is here; empty where that is not known.
    ``there``: bytes on the disk that need not be fetched, or not be reserved again."""

    name: str
    ref: str
    state: str = NONE
    revision: str = ""
    digest: str = ""
    size: int = 0
    there: int = 0
    found: str = ""

    def as_dict(self) -> dict[str, Any]:
        made: dict[str, Any] = document.plain(self)
        return made


def is_cache_of(environment: Mapping[str, str], home: str) -> bool:
    """Whether an engine with this environment looks for models in the cache below ``home`` and nowhere else."""
    own = environment.get("HF_HUB_CACHE", "")
    return bool(home) and environment.get("HF_HOME") == home and own.rstrip("/") in ("", f"{home.rstrip('/')}/hub")


def held(cache: Cache, name: str, ref: str) -> Held:
    """Reads no file of the model. ``ref``: a branch, tag or commit; empty for main."""
    revision = _revision(cache, name, ref) or next(iter(caches.coming(cache, name)), "")
    if not revision:
        return Held(name, ref)
    of = caches.read(cache, name, revision)
    partial = _taken(cache.partial(revision))
    snapshot = cache.snapshot(name, revision)
    if of is None:
        there = os.path.isdir(snapshot)
        return Held(name, ref, FOREIGN if there else NONE, revision, there=partial + _taken(snapshot))
    seen = check.warm(cache, of)
    blobs = {one.blob: one.size for one in of.files}
    own = sum(size for blob, size in blobs.items() if _exists(cache, name, blob))
    size = sum(blobs.values())
    if seen.whole:
        return Held(name, ref, WHOLE, revision, of.digest, size, size)
    first = [f"{one.path} {one.found}" for one in seen.broken] + [f"{path} has no link" for path in seen.unlinked]
    more = f" and {len(first) - 1} more" if len(first) > 1 else ""
    return Held(name, ref, BROKEN, revision, of.digest, size, min(size, own + partial), f"{first[0]}{more}")


def _revision(cache: Cache, name: str, ref: str) -> str:
    try:
        check_revision(ref)
    except ValueError:
        return caches.revision(cache, name, ref or "main")
    return ref


def _exists(cache: Cache, name: str, blob: str) -> bool:
    return os.path.isfile(cache.blob(name, blob))


def _taken(directory: Path) -> int:
    """Bytes on the disk below a directory, links followed once."""
    found: dict[tuple[int, int], int] = {}
    for above, _folders, names in os.walk(directory):
        for one in names:
            try:
                seen = os.stat(os.path.join(above, one))
            except OSError:
                continue
            found[(seen.st_dev, seen.st_ino)] = seen.st_blocks * _BLOCK
    return sum(found.values())


def _existing(cache: Cache) -> Path:
    """On the file system that the cache is on, or will be on."""
    place = Path(os.path.realpath(cache.home))
    while not place.exists():
        place = place.parent
    return place


def room(cache: Cache) -> dict[str, int]:
    status = os.statvfs(_existing(cache))
    return {"free": status.f_bavail * status.f_frsize, "total": status.f_blocks * status.f_frsize}


def referred(kept: Kept) -> list[dict[str, str]]:
    """Models of the plan that serves on this node, and of the one before it: what a rollback needs."""
    found: dict[tuple[str, str], str] = {}
    for what, plan in (("serves now", kept.current), ("served before", kept.previous)):
        for model in plan.models if plan else ():
            found.setdefault((model.name, model.revision), what)
    return [{"name": name, "ref": ref, "why": why} for (name, ref), why in found.items() if not name.startswith("/")]


def source(cache: Cache, name: str, ref: str, path: str, pickle: bool) -> dict[str, Any]:
    """What a directory or an archive has of a model. ``copied``: bytes that it takes in the cache."""
    told = {"name": name, "revision": "", "hub": path, "files": 0, "left_out": {}}
    if os.path.isfile(path):
        of = archive.find(path, name, ref)
        if not pickle:
            archive.refuse_pickle(of, path)
        size = sum({one.blob: one.size for one in of.files}.values())
        return {**told, "revision": of.revision, "files": len(of.files), "size": size, "copied": size}
    found = importing.find(name, path, ref)
    choice = found.choose(pickle)
    # No second name leads into another mount.
    device = -1 if nosuid.held(cache.home, Machine()) else os.stat(_existing(cache)).st_dev
    copied = found.copied(choice, device)
    return {**told, **chosen(found, choice), "copied": copied}


def chosen(found: importing.Source, choice: selection.Choice) -> dict[str, Any]:
    size = sum(found.sizes[one] for one in choice.paths)
    return {"revision": found.revision, "files": len(choice.paths), "size": size}


def listed(cache: Cache) -> list[Mapping[str, Any]]:
    """Every revision of every model in the cache, whoever brought it."""
    return [document.plain(one) for one in caches.kept(cache)]
