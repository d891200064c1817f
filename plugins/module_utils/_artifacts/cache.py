# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Where the files of models are on a node: the classic cache of Hugging Face, and what is known about it beside it.

Below the home of the cache (HF_HOME, engine_model_cache)::

    hub/models--org--name/blobs/<File.blob>
    hub/models--org--name/snapshots/<revision>/<File.path> -> ../../blobs/<File.blob>
    hub/models--org--name/refs/main                        the revision
    sparkmatrix/manifests/models--org--name/<revision>.json        the manifest
    sparkmatrix/manifests/models--org--name/<revision>.state.json  how the files were when they were verified
    sparkmatrix/partial/<revision>/                        what is not whole yet
    sparkmatrix/partial/<revision>/coming.json             the manifest of what the controller sends

The engine and the tools of users find a model there without network.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import folders, hashing
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.folders import OWN
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.hashing import Stamp
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.manifest import (
    File,
    Manifest,
    check_name,
    check_revision,
    parse,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Commit, Count, Flag, Number, Words

COMING = "coming.json"
_REF = re.compile(r"[A-Za-z0-9][\w.-]{0,99}(/[A-Za-z0-9][\w.-]{0,99}){0,3}", re.ASCII)
_FOLDER = re.compile(r"models--[\w.-]+", re.ASCII)


@dataclass(frozen=True)
class State:
    """``stamps``: of every blob, taken when it was verified."""

    stamps: Mapping[str, Stamp] = field(default_factory=dict)


@dataclass(frozen=True)
class Kept:
    """One revision of a model in the cache. ``size``: bytes of its files; ``frees``: those of them that go when it is
    removed, because no other revision has them. ``used_at``: when a file of it was read last, to a day. ``manifest``:
    it was brought by this collection. ``broken``: links that lead nowhere, and so files that are missing."""

    name: Words
    revision: Commit
    files: Count
    size: Count
    frees: Count
    refs: tuple[Words, ...] = ()
    used_at: Number = 0.0
    manifest: Flag = False
    broken: tuple[Words, ...] = ()


@dataclass(frozen=True)
class Cache:
    """``home``: engine_model_cache."""

    home: str

    def folder(self, name: str) -> tuple[str, str]:
        return ("hub", _folder(name))

    def blob(self, name: str, blob: str) -> Path:
        return Path(self.home, *self.folder(name), "blobs", blob)

    def snapshot(self, name: str, revision: str) -> Path:
        check_revision(revision)
        return Path(self.home, *self.folder(name), "snapshots", revision)

    def partial(self, revision: str) -> Path:
        """Where blobs are made whole, named by ``File.blob``."""
        check_revision(revision)
        return Path(self.home, OWN, "partial", revision)

    def arriving(self, revision: str) -> tuple[str, ...]:
        """Below ``home``: blobs of it that are made whole."""
        check_revision(revision)
        return (OWN, "partial", revision, "blobs")


def folder_name(name: str) -> str:
    """Of a model, in a cache of Hugging Face."""
    return f"models--{name.replace('/', '--')}"


def _folder(name: str) -> str:
    check_name(name)
    return folder_name(name)


def _own(name: str) -> tuple[str, ...]:
    return (OWN, "manifests", _folder(name))


# --- what is known ---


def read(cache: Cache, name: str, revision: str) -> Manifest | None:
    """The manifest of a revision; nothing where there is none, or a damaged one, which is brought again."""
    try:
        check_revision(revision)
        found = parse(folders.read_json(cache.home, _own(name), f"{revision}.json"))
    except (ValueError, TypeError):
        return None
    return found if (found.name, found.revision) == (name, revision) else None


def manifests(cache: Cache, name: str) -> list[str]:
    """The revisions of which there is a manifest."""
    ends = ".json"
    found = [one[: -len(ends)] for one in folders.names(cache.home, _own(name)) if one.endswith(ends)]
    return [one for one in found if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", one)]


def revision(cache: Cache, name: str, ref: str = "main") -> str:
    """What a branch or tag is here; empty where it is not known."""
    parts = (*cache.folder(name), "refs", *ref.split("/"))
    if not _REF.fullmatch(ref):
        return ""
    try:
        with folders.inside(cache.home, parts[:-1]) as directory:
            text = (folders.read(directory, parts[-1], 100) or b"").decode("ascii", "replace").strip()
        check_revision(text)
    except (OSError, ValueError, SparkError):
        return ""
    return text


def coming(cache: Cache, name: str) -> dict[str, Manifest]:
    """Of a model that is on its way from the controller, by revision."""
    found = {}
    for revision_ in folders.names(cache.home, (OWN, "partial")):
        with contextlib.suppress(ValueError, TypeError):
            of = parse(folders.read_json(cache.home, (OWN, "partial", revision_), COMING))
            if (of.name, of.revision) == (name, revision_):
                found[revision_] = of
    return found


def state(cache: Cache, manifest: Manifest) -> State:
    try:
        read_: State = document.load(
            State, folders.read_json(cache.home, _own(manifest.name), f"{manifest.revision}.state.json")
        )
    except (ValueError, TypeError):
        return State()
    return read_


def remember(cache: Cache, manifest: Manifest, stamps: Mapping[str, Stamp]) -> None:
    """These blobs are verified, as they are now."""
    text = json.dumps(document.plain(State(stamps))).encode()
    folders.write(cache.home, _own(manifest.name), f"{manifest.revision}.state.json", text)


# --- putting a model there ---


def place(cache: Cache, manifest: Manifest, refs: Iterable[str] = ()) -> bool:
    """A model becomes visible, as a whole. Whether something was changed.

    Blobs that lie in ``cache.arriving`` have been verified; they are moved. Others have to be in the cache, and are
    taken by their stamp or read again.
    """
    name, parts = manifest.name, cache.folder(manifest.name)
    stamps, changed = dict(state(cache, manifest).stamps), False
    with folders.inside(cache.home, (*parts, "blobs"), make=True) as blobs:
        for file in manifest.contents:
            moved = _move(cache, manifest, file, blobs)
            if not file.size:
                _make_empty(file.blob, blobs)  # nobody brings it
            if moved:
                stamps[file.blob], changed = moved, True
            else:
                stamps[file.blob] = _verified(file, stamps.get(file.blob), blobs, name)
        os.fsync(blobs)
    for file in manifest.files:
        *way, last = file.path.split("/")
        place_of = (*parts, "snapshots", manifest.revision, *way)
        with folders.inside(cache.home, place_of, make=True) as directory:
            changed |= folders.link(f"{'../' * (2 + len(way))}blobs/{file.blob}", last, directory)
    for ref in refs:
        changed |= point(cache, name, ref, manifest.revision)
    text = json.dumps(manifest.as_dict(), sort_keys=True).encode()
    changed |= folders.write(cache.home, _own(name), f"{manifest.revision}.json", text)
    remember(cache, manifest, {file.blob: stamps[file.blob] for file in manifest.files})
    drop_partial(cache, manifest.revision)
    with contextlib.suppress(OSError, SparkError), folders.inside(cache.home, (OWN,)) as own:
        os.rmdir("partial", dir_fd=own)  # preflight takes it for a download that has begun
    return changed


def point(cache: Cache, name: str, ref: str, revision_: str) -> bool:
    """A branch or tag is this revision. Whether it was another one."""
    check_ref(ref)
    *way, last = ref.split("/")
    return folders.write(cache.home, (*cache.folder(name), "refs", *way), last, revision_.encode())


def check_ref(ref: str) -> str:
    if not _REF.fullmatch(ref):
        raise ValueError(f"{ascii(ref)[:80]} is no name of a revision")
    return ref


def _move(cache: Cache, manifest: Manifest, file: File, blobs: int) -> Stamp | None:
    with contextlib.ExitStack() as held:
        try:
            source = held.enter_context(folders.inside(cache.home, cache.arriving(manifest.revision)))
            opened = folders.open_file(file.blob, source)
        except FileNotFoundError:
            return None
        try:
            size = os.fstat(opened).st_size
            if size != file.size:
                raise SparkError(
                    f"{file.blob} has {size} bytes of {file.size}", manifest.name, "Run this again; it is repaired"
                )
            os.fsync(opened)
            os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_DONTNEED)  # written, and so it can go from memory
            if os.fstat(opened).st_nlink == 1:
                settle(opened)  # else it is a file of somebody else, too, which everybody may read
            seen = hashing.stamp(os.fstat(opened))
        finally:
            os.close(opened)
        os.rename(file.blob, file.blob, src_dir_fd=source, dst_dir_fd=blobs)
    return seen


def _make_empty(blob: str, blobs: int) -> None:
    with contextlib.suppress(FileExistsError):
        opened = os.open(blob, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=blobs)
        settle(opened)
        os.close(opened)


def settle(opened: int) -> None:
    """A file of a model belongs to root and is for everybody to read."""
    if os.geteuid() == 0:
        os.fchown(opened, 0, 0)
    os.fchmod(opened, 0o644)


def _verified(file: File, known: Stamp | None, blobs: int, name: str) -> Stamp:
    try:
        opened = folders.open_file(file.blob, blobs)
    except OSError as exc:
        raise SparkError(
            f"{file.blob} of {name} is not there ({exc.strerror or exc})",
            "model cache",
            "Run this again; it is fetched",
        ) from exc
    try:
        if hashing.stamp(os.fstat(opened)) == known:
            return known
        found = hashing.measure(opened)
    finally:
        os.close(opened)
    if found.sha256 != file.sha256:
        raise SparkError(
            f"{file.blob} of {name} is not what it should be", "model cache", "Run this again; it is repaired"
        )
    return found.stamp


# --- what is there ---


def kept(cache: Cache) -> list[Kept]:
    """Every revision of every model, also those that others have put there."""
    found = []
    for folder in folders.names(cache.home, ("hub",)):
        if _FOLDER.fullmatch(folder):
            name = folder[len("models--") :].replace("--", "/", 1)
            try:
                check_name(name)
            except ValueError:
                continue
            found += _revisions(cache, name)
    return found


def _revisions(cache: Cache, name: str) -> list[Kept]:
    place_of = Path(cache.home, *cache.folder(name))
    refs: dict[str, list[str]] = {}
    for path in sorted((place_of / "refs").rglob("*")):
        ref = str(path.relative_to(place_of / "refs"))
        refs.setdefault(revision(cache, name, ref), []).append(ref)
    files = {
        one: _files(place_of / "snapshots" / one)
        for one in folders.names(cache.home, (*cache.folder(name), "snapshots"))
    }
    known = manifests(cache, name)
    return [
        Kept(
            name,
            one,
            len(there.real),
            sum(seen.st_size for seen in there.real.values()),
            sum(seen.st_size for seen in there.real.values() if not _elsewhere(seen, one, files)),
            tuple(refs.get(one, ())),
            max((seen.st_atime for seen in there.real.values()), default=0.0),
            one in known,
            tuple(there.broken),
        )
        for one, there in files.items()
        if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", one)
    ]


@dataclass(frozen=True)
class _Files:
    """``real``: what the links of a snapshot lead to, by inode."""

    real: Mapping[tuple[int, int], os.stat_result]
    broken: tuple[str, ...]


def _files(snapshot: Path) -> _Files:
    real, broken = {}, []
    for above, _folders, names in os.walk(snapshot):
        for one in names:
            path = os.path.join(above, one)
            try:
                seen = os.stat(path)
            except OSError:
                broken.append(os.path.relpath(path, snapshot))
                continue
            if stat.S_ISREG(seen.st_mode):
                real[(seen.st_dev, seen.st_ino)] = seen
    return _Files(real, tuple(sorted(broken)))


def _elsewhere(seen: os.stat_result, revision_: str, files: Mapping[str, _Files]) -> bool:
    key = (seen.st_dev, seen.st_ino)
    return any(key in there.real for other, there in files.items() if other != revision_)


# --- taking it away ---


def remove(cache: Cache, name: str, revision_: str) -> None:
    """A revision goes, and with it what no other one has."""
    check_revision(revision_)
    parts = cache.folder(name)
    place_of = Path(cache.home, *parts)
    snapshots = {
        one: _blobs_of(place_of / "snapshots" / one) for one in folders.names(cache.home, (*parts, "snapshots"))
    }
    unused = snapshots.pop(revision_, set()).difference(*snapshots.values())
    for path in list((place_of / "refs").rglob("*")):
        ref = str(path.relative_to(place_of / "refs"))
        if revision(cache, name, ref) == revision_:
            folders.remove(cache.home, (*parts, "refs", *ref.split("/")[:-1]), path.name)
    folders.remove(cache.home, (*parts, "snapshots"), revision_)
    for blob in unused:
        shared = shared_blob(cache, place_of / "blobs" / blob)
        folders.remove(cache.home, (*parts, "blobs"), blob)
        if shared and not _links_to(cache, shared):
            above = os.path.relpath(os.path.dirname(shared), os.path.realpath(cache.home)).split("/")
            for one in (os.path.basename(shared), f"{os.path.basename(shared)}.refs"):
                folders.remove(cache.home, above, one)
    for one in (f"{revision_}.json", f"{revision_}.state.json"):
        folders.remove(cache.home, _own(name), one)
    drop_partial(cache, revision_)


def drop_partial(cache: Cache, revision_: str, blob: str = "") -> None:
    """``blob``: only this one. :func:`place` takes what is there for whole."""
    check_revision(revision_)
    above = (OWN, "partial", revision_, "blobs") if blob else (OWN, "partial")
    folders.remove(cache.home, above, blob or revision_)


def _blobs_of(snapshot: Path) -> set[str]:
    """The names of the blobs that the links of a snapshot lead to."""
    found = set()
    for above, _folders, names in os.walk(snapshot):
        for one in names:
            path = os.path.join(above, one)
            if os.path.islink(path):
                found.add(os.path.basename(os.readlink(path)))
    return found


def shared_blob(cache: Cache, blob: Path) -> str:
    """The file in the store that newer clients share between models, where the blob is a link into it."""
    if not blob.is_symlink():
        return ""
    leads, store = os.path.realpath(blob), os.path.realpath(os.path.join(cache.home, "hub", "blobs"))
    return leads if leads.startswith(f"{store}/") else ""


def _links_to(cache: Cache, shared: str) -> bool:
    return any(
        path.is_symlink() and os.path.realpath(path) == shared
        for path in Path(cache.home, "hub").glob("models--*/blobs/*")
    )
