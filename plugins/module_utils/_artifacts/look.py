# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What a node says of the models in its cache: enough to decide whether anything has to be brought here. And the calls
that ask a hub or a source what a model consists of, and that remove models and images.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Optional

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import (
    archive,
    check,
    hub,
    image_list,
    importing,
    selection,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import cache as caches
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import manifest as manifests
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.cache import Cache
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.manifest import check_revision
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, kinds
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import kept_plan, nosuid
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.kept_plan import Kept

# A manifest and all its files; a manifest, and files that are not whole; files without a manifest; nothing.
WHOLE, BROKEN, FOREIGN, NONE = "whole", "broken", "foreign", "none"
_BLOCK = 512  # of st_blocks


@dataclass(frozen=True)
class Held:
    """``revision``: the commit that the wanted branch, tag or commit is here; empty where that is not known.
    ``there``: bytes on the disk that need not be fetched, or not be reserved again."""

    name: kinds.Words
    ref: kinds.WordOrEmpty
    state: kinds.Word = NONE
    revision: kinds.CommitOrEmpty = ""
    digest: kinds.CommitOrEmpty = ""
    size: kinds.Count = 0
    there: kinds.Count = 0
    found: kinds.Words = ""

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
    own = sum(file.size for file in of.contents if os.path.isfile(cache.blob(name, file.blob)))
    size = of.size
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


def room(cache: Cache) -> Room:
    status = os.statvfs(_existing(cache))
    return Room(status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize)


def referred(kept: Kept) -> list[Referred]:
    """Models of the plan that serves on this node, and of the one before it: what a rollback needs."""
    found: dict[tuple[str, str], str] = {}
    for what, plan in (("serves now", kept.current), ("served before", kept.previous)):
        for model in plan.models if plan else ():
            found.setdefault((model.name, model.revision), what)
    return [Referred(name, ref, why) for (name, ref), why in found.items() if not name.startswith("/")]


# --- calls ---


@dataclass(frozen=True)
class Named:
    """``ref``: branch, tag or commit; empty for main."""

    name: str
    ref: str = ""


@dataclass(frozen=True)
class Request:
    """``home``: engine_model_cache. ``models``: those that are wanted. ``images``: of Docker, too."""

    home: str
    models: tuple[Named, ...] = ()
    images: bool = False


@dataclass(frozen=True)
class Room:
    """Bytes of the file system that the cache is on."""

    free: kinds.Count
    total: kinds.Count


@dataclass(frozen=True)
class Referred:
    """A model of the plan that serves on this node, or of the one before it."""

    name: kinds.Words
    ref: kinds.Words
    why: kinds.Words


@dataclass(frozen=True)
class Look:
    """``kept``: every revision in the cache, whoever brought it. ``plans``: why a plan of this node cannot be read, so
    that nobody knows all that it refers to. ``docker``: why Docker does not tell its images. Both mostly empty."""

    room: Room
    models: list[Held]
    kept: list[caches.Kept]
    referred: list[Referred]
    plans: kinds.Words = ""
    images: list[image_list.Image] = field(default_factory=list)
    docker: kinds.Words = ""


def models(request: Request, _check: bool) -> Look:
    """Reads manifests and sizes, no content of models."""
    cache, plans = Cache(request.home), kept_plan.read()
    images, docker = image_list.listed(plans) if request.images else ([], "")
    held_ = [held(cache, model.name, model.ref) for model in request.models]
    return Look(room(cache), held_, caches.kept(cache), referred(plans), plans.refused, images, docker)


@dataclass(frozen=True)
class Asked:
    """``path``: of a source on this node; empty for the hub that ``environment`` names, which also says where a token
    is. ``pickle``: let in weights that can run programs of whoever made them."""

    home: str
    name: str
    ref: str = ""
    path: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    pickle: bool = False


@dataclass(frozen=True)
class Listing:
    """What a hub or a source has of a model. ``left_out``: bytes that are not needed, by reason. ``copied``: bytes that
    it takes in the cache; what comes from a source on the same disk is linked."""

    name: kinds.Words = ""
    revision: kinds.CommitOrEmpty = ""
    hub: kinds.Words = ""
    files: kinds.Count = 0
    size: kinds.Count = 0
    left_out: Mapping[kinds.Words, kinds.Count] = field(default_factory=dict)
    copied: kinds.Count = 0


def listing(asked: Asked, _check: bool) -> Listing:
    """Nothing is downloaded."""
    try:
        return _source(asked) if asked.path else _hub(asked)
    except (OSError, ValueError) as exc:
        raise SparkError(str(exc), asked.path or asked.name, "Look at the source of the model") from exc


def _hub(asked: Asked) -> Listing:
    found = hub.ask(asked.name, asked.ref, asked.environment)
    choice = found.choose(asked.pickle)
    size = sum({remote.blob: remote.size for remote in found.files if remote.path in choice.paths}.values())
    return Listing(found.name, found.revision, found.hub, len(choice.paths), size, choice.left_out)


def _source(asked: Asked) -> Listing:
    if os.path.isfile(asked.path):
        of = archive.find(asked.path, asked.name, asked.ref)
        if not asked.pickle:
            archive.refuse_pickle(of, asked.path)
        return Listing(asked.name, of.revision, asked.path, len(of.files), of.size, copied=of.size)
    found = importing.find(asked.name, asked.path, asked.ref)
    choice = found.choose(asked.pickle)
    # No second name leads into another mount.
    device = -1 if nosuid.held(asked.home, Machine()) else os.stat(_existing(Cache(asked.home))).st_dev
    return chosen(found, choice, asked.path, found.copied(choice, device))


def chosen(found: importing.Source, choice: selection.Choice, where: str, copied: int = -1) -> Listing:
    """``where``: for people. ``copied``: all of it, where it is not given."""
    size = sum(found.sizes[one] for one in choice.paths)
    return Listing(
        found.name, found.revision, where, len(choice.paths), size, choice.left_out, size if copied < 0 else copied
    )


@dataclass(frozen=True)
class Revision:
    name: str
    revision: str


@dataclass(frozen=True)
class OfRevision(Revision):
    home: str


@dataclass(frozen=True)
class Had:
    """``manifest``: None of a node that was not asked."""

    manifest: Optional[Annotated[manifests.Manifest, manifests.parse]] = None


def manifest(asked: OfRevision, _check: bool) -> Had:
    of = caches.read(Cache(asked.home), asked.name, asked.revision)
    if of is None:
        raise SparkError("there is no manifest of it", asked.name, "Run the layer artifacts")
    return Had(of)


@dataclass(frozen=True)
class ImageNames:
    """One that has no name left goes with its last name."""

    id: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Removal:
    home: str
    models: tuple[Revision, ...] = ()
    images: tuple[ImageNames, ...] = ()


@dataclass(frozen=True)
class Removed:
    changed: kinds.Flag


def remove(removal: Removal, check_mode: bool) -> Removed:
    """Revisions go with what no other revision has."""
    cache = Cache(removal.home)
    for model in () if check_mode else removal.models:
        caches.remove(cache, model.name, model.revision)
    for image in () if check_mode else removal.images:
        image_list.remove(image.id, image.names)
    return Removed(bool(removal.models or removal.images))
