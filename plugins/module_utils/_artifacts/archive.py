# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Models in one file, for machines without network: a tar of their manifests and then of every blob once.

It is written and read as a stream, never as a whole, and what is in it is verified on the way. The reader lets in what
the manifests name, and no link, device, directory or other path.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import cache as caches
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import check, folders, selection
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.cache import Cache
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.hashing import Tell, nothing
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.manifest import File, Manifest, parse
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError

MANIFEST, BLOBS = "manifest.json", "blobs/"
ANOTHER = "Use an archive that playbooks/artifacts.yml has written, and copy it as a whole"
_SCHEMA = 1
_LARGEST_MANIFEST = 256 * 1024 * 1024
_CHUNK = 4 * 1024 * 1024
_SPARE = 1 << 30  # bytes that stay free


@dataclass(frozen=True)
class Imported:
    """``refs``: branches and tags that the model is known by."""

    manifest: Manifest
    refs: tuple[str, ...]
    changed: bool


# --- written ---


def write(cache: Cache, models: Sequence[tuple[str, str]], path: str, tell: Tell = nothing) -> list[Manifest]:
    """``models``: names and revisions that are whole here. Another file appears only when all of it is written."""
    found = [_whole(cache, name, revision) for name, revision in models]
    known = caches.kept(cache)
    refs = {(one.name, one.revision): one.refs for one in known}
    told = [
        {"manifest": one.as_dict(), "refs": [ref for ref in refs.get((one.name, one.revision), ()) if ref]}
        for one in found
    ]
    aside = f"{path}.part"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(aside)  # an interrupted export left it, or somebody else made it in /tmp
    opened = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        with os.fdopen(opened, "wb") as file:
            with tarfile.open(fileobj=file, mode="w|", bufsize=_CHUNK, format=tarfile.PAX_FORMAT) as tar:
                tar.copybufsize = _CHUNK  # type: ignore[attr-defined]  # of 16 KiB
                text = json.dumps({"schema": _SCHEMA, "models": told}).encode()
                tar.addfile(_info(MANIFEST, len(text)), io.BytesIO(text))
                for manifest, one in _blobs(found):
                    _add(tar, cache, manifest, one, tell)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError as exc:
        if exc.errno == errno.EFBIG:
            remedy = "This file system holds no large files (FAT32): format the disk with exFAT or ext4"
        else:
            remedy = "Look at the disk and its free space"
        raise SparkError(f"the archive cannot be written ({exc.strerror or exc})", path, remedy) from exc
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(aside)
    return found


def _whole(cache: Cache, name: str, revision: str) -> Manifest:
    found = caches.read(cache, name, revision)
    if found is None or not check.check(cache, found).whole:
        raise SparkError(
            f"{name} {revision[:12]} is not whole on this node", cache.home, "Run the layer artifacts first"
        )
    return found


def _blobs(manifests: Iterable[Manifest]) -> Iterator[tuple[Manifest, File]]:
    seen = set()
    for manifest in manifests:
        for file in manifest.files:
            if file.blob not in seen:
                seen.add(file.blob)
                yield manifest, file


def _info(name: str, size: int) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.size, made.mode = size, 0o644
    return made


def _add(tar: tarfile.TarFile, cache: Cache, manifest: Manifest, one: File, tell: Tell) -> None:
    with folders.inside(cache.home, (*cache.folder(manifest.name), "blobs")) as blobs:
        opened = folders.open_file(one.blob, blobs)
    with os.fdopen(opened, "rb") as file:
        reader: Any = _Verified(file, one, tell)
        tar.addfile(_info(BLOBS + one.blob, one.size), reader)
        os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_DONTNEED)
        reader.end("the disk of this node gives another content than it has verified")


class _Verified:
    """Reads a file of a model and compares its hash."""

    def __init__(self, file: Any, one: File, tell: Tell) -> None:
        self._file, self._one, self._tell = file, one, tell
        self._hash = hashlib.sha256()

    def read(self, count: int = _CHUNK) -> bytes:
        data: bytes = self._file.read(count)
        self._hash.update(data)
        self._tell(len(data))
        return data

    def end(self, found: str) -> None:
        if self._hash.hexdigest() != self._one.sha256:
            raise SparkError(
                f"{self._one.path}: {found}", "archive", "Verify the model (playbooks/artifacts.yml), repair it"
            )


# --- read ---


def read(cache: Cache, path: str, pickle: bool = False, tell: Tell = nothing) -> list[Imported]:
    """Brings all models of an archive into the cache; nothing of it is visible before all of it is verified."""
    with _opened(path) as tar:
        return _read(cache, tar, path, pickle, tell)


def find(path: str, name: str, ref: str) -> Manifest:
    """Of a model in an archive, of which only the beginning is read."""
    with _opened(path) as tar:
        return pick(_manifests(tar, next(iter(tar), None), path), name, ref, path)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tarfile.TarFile]:
    try:
        with open(path, "rb") as file, tarfile.open(fileobj=file, mode="r|", bufsize=_CHUNK) as tar:
            yield tar
    except (tarfile.TarError, EOFError) as exc:
        raise _odd(path, f"it is damaged or cut off ({exc})") from exc
    except OSError as exc:
        raise SparkError(f"it cannot be read ({exc.strerror or exc})", path, "Look at the path and the disk") from exc


def pick(models: Iterable[tuple[Manifest, Sequence[str]]], name: str, ref: str, path: str) -> Manifest:
    """``ref``: branch, tag or commit; empty for main. An archive of a cluster that was upgraded has two revisions."""
    found = [(one, refs) for one, refs in models if one.name == name]
    fits = [one for one, refs in found if (ref or "main") in (one.revision, *refs)]
    fits = fits or [one for one, _refs in found if len(found) == 1 and not ref]
    if not fits:
        there = ", ".join(f"{name} {one.revision[:12]}" for one, _refs in found) or "no such model"
        raise SparkError(f"it does not have {name} {ref or 'main'}, but {there}", path, "Name an archive that has it")
    return fits[0]


def refuse_pickle(manifest: Manifest, path: str) -> None:
    if any(file.path.endswith(selection.PICKLE) for file in manifest.files):
        raise SparkError(
            f"{manifest.name} has pickle files: reading them runs whatever program is in them",
            path,
            "If you trust who made it, allow it: artifacts_allow_pickle: true",
        )


def _odd(path: str, found: str) -> SparkError:
    return SparkError(found, path, ANOTHER)


def _read(cache: Cache, tar: tarfile.TarFile, path: str, pickle: bool, tell: Tell) -> list[Imported]:
    members = iter(tar)
    models = _manifests(tar, next(members, None), path)
    for manifest, _refs in models:
        if not pickle:
            refuse_pickle(manifest, path)
    expected = {file.blob: file for manifest, _refs in models for file in manifest.files}
    lacking = _lacking(cache, [manifest for manifest, _refs in models])
    _check_room(cache, sum(expected[blob].size * len(wanted) for blob, wanted in lacking.items()), path)
    for manifest, _refs in models:
        caches.drop_partial(cache, manifest.revision)  # of an interrupted copy: not whole
    seen: set[str] = set()
    for member in members:
        blob = member.name[len(BLOBS) :] if member.name.startswith(BLOBS) else ""
        if not member.isreg() or member.issparse() or blob not in expected or blob in seen:
            raise _odd(path, f"it has {ascii(member.name)[:80]}, which is none of its files")
        one = expected[blob]
        if member.size != one.size:
            raise _odd(path, f"{member.name} has {member.size} bytes of {one.size}")
        seen.add(blob)
        source = tar.extractfile(member) if blob in lacking else None
        if source:
            _extract(cache, lacking[blob], one, source, tell)
    missing = sorted(expected[blob].path for blob in set(lacking) - seen)
    if missing:
        raise _odd(path, f"{len(missing)} files are missing in it, {missing[0]} the first")
    return [Imported(manifest, refs, caches.place(cache, manifest, refs)) for manifest, refs in models]


def _manifests(
    tar: tarfile.TarFile, first: tarfile.TarInfo | None, path: str
) -> list[tuple[Manifest, tuple[str, ...]]]:
    if first is None or first.name != MANIFEST or not first.isreg() or first.size > _LARGEST_MANIFEST:
        raise _odd(path, f"it does not begin with {MANIFEST}")
    source = tar.extractfile(first)
    with json_text.Reading(f"its {MANIFEST} cannot be used", path, ANOTHER):
        told = json_text.mapping(source.read() if source else b"")
        if told["schema"] != _SCHEMA:
            raise ValueError(f"schema is {told['schema']!r:.20}")
        models = [(parse(model["manifest"]), tuple(map(caches.check_ref, model["refs"]))) for model in told["models"]]
    if not models:
        raise _odd(path, "it has no model")
    return models


def _lacking(cache: Cache, manifests: Sequence[Manifest]) -> Mapping[str, list[Manifest]]:
    """By blob, whom it has to be brought for: one revision of every model that has it."""
    found: dict[str, list[Manifest]] = {}
    for manifest in manifests:
        broken = {one.path for one in check.check(cache, manifest).broken}
        for blob in {file.blob for file in manifest.files if file.path in broken and file.size}:
            if manifest.name not in {one.name for one in found.setdefault(blob, [])}:
                found[blob].append(manifest)
    return found


def _check_room(cache: Cache, needs: int, path: str) -> None:
    os.makedirs(cache.home, 0o755, exist_ok=True)
    room = os.statvfs(cache.home)
    free = room.f_bavail * room.f_frsize
    if needs and free < needs + _SPARE:
        raise SparkError(
            f"{cache.home} has {free / 1e9:.1f} GB free, and {(needs + _SPARE) / 1e9:.1f} GB are needed for it",
            path,
            "Remove models that nobody needs (playbooks/artifacts.yml lists them)",
        )


def _extract(cache: Cache, wanted: Sequence[Manifest], one: File, source: Any, tell: Tell) -> None:
    first, *others = wanted
    reader = _Verified(source, one, tell)
    with folders.inside(cache.home, cache.arriving(first.revision), make=True) as blobs:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(one.blob, dir_fd=blobs)
        target = os.open(one.blob, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=blobs)
        try:
            with os.fdopen(target, "wb") as file:
                shutil.copyfileobj(reader, file, _CHUNK)
            reader.end("the archive has another content than its manifest says")
        except BaseException:
            os.unlink(one.blob, dir_fd=blobs)
            raise
        for other in others:
            arriving = folders.inside(cache.home, cache.arriving(other.revision), make=True)
            with arriving as more, contextlib.suppress(FileExistsError):
                os.link(one.blob, one.blob, src_dir_fd=blobs, dst_dir_fd=more)
