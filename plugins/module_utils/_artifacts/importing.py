# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Models that are on this node already: in a cache of Hugging Face, with or without shared blobs, or in a directory.

Nothing is downloaded, and nothing is copied that can be linked. What is here afterwards is the file itself: a link that
leads nowhere is a file that is missing, and one that leads out of where models are is refused. What finds, reads and
measures a model also runs on the computer that Ansible runs on, which may be a Mac.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import cache as caches
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import folders, hashing, selection
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.cache import Cache
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.hashing import Tell, nothing
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.manifest import File, Manifest, check_name
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import model_files

_COMMIT = re.compile(r"[0-9a-f]{40}")
_ETAG = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_CHUNK = 16 * 1024 * 1024
_LARGEST_INDEX = 256 * 1024 * 1024
_NAMED = 3


@dataclass(frozen=True)
class Source:
    """A model on this node. ``roots``: where its files may be. ``revision``: the hub's commit, where it is known.
    ``etags``: what the hub calls the content of a file, where that is known."""

    name: str
    place: str
    roots: tuple[str, ...]
    sizes: Mapping[str, int]
    broken: tuple[str, ...] = ()
    revision: str = ""
    etags: Mapping[str, str] = field(default_factory=dict)

    def choose(self, pickle: bool = False) -> selection.Choice:
        """Raises where it is not complete."""
        indexes = {one: self._text(one) for one in selection.INDEXES if one in self.sizes and one not in self.broken}
        chosen = selection.choose(self.name, self.sizes, indexes, pickle)
        lacking = sorted(set(chosen.paths) & set(self.broken))
        if lacking:
            some = ", ".join(lacking[:_NAMED]) + (", …" if len(lacking) > _NAMED else "")
            raise SparkError(
                f"{len(lacking)} of its {len(chosen.paths)} files are links to nothing ({some})",
                self.place,
                "It was copied without the files that the links lead to, as rsync -a does. Copy it with them"
                " (rsync -aL), or let it be downloaded",
            )
        model_files.read(Path(self.place))  # weights that are cut off, or pointers of git-lfs
        return chosen

    def copied(self, choice: selection.Choice, device: int) -> int:
        """Bytes that a file system takes for it: other files get a second name."""
        seen = [os.stat(os.path.join(self.place, path)) for path in choice.paths]
        return sum(one.st_size for one in seen if not _is_linked(one, device))

    def _text(self, path: str) -> str:
        with _opened(self, path) as file:
            return os.pread(file, _LARGEST_INDEX, 0).decode("utf-8", "replace")


def find(name: str, place: str, revision: str = "") -> Source:
    """``place``: the directory of the model, of its snapshot, of a cache (HF_HUB_CACHE) or above it (HF_HOME).

    ``revision``: branch, tag or commit in a cache; the only one there is, or main, where it is empty.
    """
    check_name(name)
    base = os.path.realpath(place)
    folder = caches.folder_name(name)
    for hub in (base, f"{base}/hub", os.path.dirname(base) if os.path.basename(base) == folder else base):
        if os.path.isdir(f"{hub}/{folder}/snapshots"):
            commit = _commit(f"{hub}/{folder}", revision, name)
            return _source(name, f"{hub}/{folder}/snapshots/{commit}", (f"{hub}/{folder}", f"{hub}/blobs"), commit)
    above = base.split("/")
    if len(above) > 3 and above[-2] == "snapshots" and above[-3].startswith("models--"):
        model = "/".join(above[:-2])
        return _source(name, base, (model, f"{os.path.dirname(model)}/blobs"), above[-1])
    if not os.path.isdir(base):
        raise SparkError("there is no such directory", place, "Correct the path of the source")
    return _source(name, base, (base,), "")


def _commit(folder: str, revision: str, name: str) -> str:
    known = sorted(os.listdir(f"{folder}/snapshots"))
    wanted = revision or "main"
    with contextlib.suppress(OSError, ValueError):
        if not wanted.startswith("/") and ".." not in wanted.split("/"):
            wanted = Path(folder, "refs", wanted).read_text(encoding="ascii").strip()
    if wanted in known and _COMMIT.fullmatch(wanted):
        return wanted
    if not revision and len(known) == 1:
        return known[0]
    raise SparkError(
        f"it has no revision {revision or 'main'} of {name}, only {', '.join(known[:_NAMED]) or 'none'}",
        folder,
        "Name one of these, or let the model be downloaded",
    )


def _source(name: str, place: str, roots: tuple[str, ...], revision: str) -> Source:
    sizes, broken, etags = {}, [], {}
    for above, inner, names in os.walk(place):
        # A link to a directory is none of the model: os.walk does not enter it.
        inner[:] = sorted(one for one in inner if not one.startswith("."))
        for one in sorted(names):
            path = os.path.join(above, one)
            relative = os.path.relpath(path, place)
            try:
                sizes[relative] = os.stat(path).st_size
            except OSError:
                sizes[relative] = 0
                broken.append(relative)
            with contextlib.suppress(OSError):
                etag = os.path.basename(os.readlink(path))
                if revision and _ETAG.fullmatch(etag):
                    etags[relative] = etag
    commits = set()
    if not revision:  # `hf download --local-dir` notes what it has brought
        for path in sizes:
            commit, etag = _noted(place, path)
            if path.endswith((".safetensors", ".json")):
                commits.add(commit)
            if etag:
                etags[path] = etag
    if len(commits) == 1:
        revision = commits.pop()
    known = revision if _COMMIT.fullmatch(revision) else ""
    return Source(name, place, roots, sizes, tuple(broken), known, etags)


def _noted(place: str, path: str) -> tuple[str, str]:
    try:
        with open(f"{place}/.cache/huggingface/download/{path}.metadata", encoding="ascii") as noted:
            commit, etag = noted.read(200).split("\n")[:2]
    except (OSError, ValueError):
        return "", ""
    return (commit, etag) if _COMMIT.fullmatch(commit) and _ETAG.fullmatch(etag) else ("", "")


# --- bringing it ---


def bring(cache: Cache, source: Source, choice: selection.Choice, tell: Tell = nothing) -> Manifest:
    """Every file is read once. Blobs lie in ``blobs`` below ``cache.partial`` afterwards, for :func:`cache.place`."""
    counter = hashing.Counter(tell)
    aside = hashlib.sha256(f"{source.name} {source.place}".encode()).hexdigest()
    folders.remove(cache.home, (folders.OWN, "partial"), aside)  # it cannot be told what of it is right
    with folders.inside(cache.home, (folders.OWN, "partial", aside), make=True) as directory:

        def one(item: tuple[int, str]) -> hashing.Measured:
            number, path = item
            _put(source, path, f"{number}", directory)
            with folders.opened(f"{number}", directory) as file:
                return hashing.measure(file, counter)

        of = _manifest(source, choice, hashing.at_once(one, list(enumerate(choice.paths))))
        caches.drop_partial(cache, of.revision)
        with folders.inside(cache.home, cache.arriving(of.revision), make=True) as blobs:
            for number, file in enumerate(of.files):
                os.rename(f"{number}", file.blob, src_dir_fd=directory, dst_dir_fd=blobs)
    folders.remove(cache.home, (folders.OWN, "partial"), aside)
    return of


def measure(source: Source, choice: selection.Choice, tell: Tell = nothing) -> Manifest:
    """Every file is read once, and nothing is written."""
    counter = hashing.Counter(tell)

    def one(path: str) -> hashing.Measured:
        with _opened(source, path) as file:
            return hashing.measure(file, counter)

    return _manifest(source, choice, hashing.at_once(one, choice.paths))


def read(source: Source, path: str, offset: int, size: int) -> bytes:
    """A piece of a file as it is now."""
    with _opened(source, path) as file:
        data = b"".join(hashing.chunks(file, offset, size))
    if len(data) < size:
        raise SparkError(f"{path} became shorter while it was read", source.place, "Run it again")
    return data


def _manifest(source: Source, choice: selection.Choice, measured: Sequence[hashing.Measured]) -> Manifest:
    files = tuple(_file(source, path, found) for path, found in zip(choice.paths, measured))
    told = json.dumps([(file.path, file.size, file.sha256) for file in files])
    revision = source.revision or hashlib.sha256(told.encode()).hexdigest()
    return Manifest(source.name, revision, files, source.place)


def _file(source: Source, path: str, found: hashing.Measured) -> File:
    etag = source.etags.get(path, "")
    if etag and etag not in (found.sha256, found.git):
        raise SparkError(
            f"{path} is not what came from the hub: its content is another one",
            source.place,
            "Remove this file there and download it again, or let the whole model be downloaded",
        )
    return File(path, found.stamp.size, found.sha256, etag or found.sha256)


@contextlib.contextmanager
def _opened(source: Source, path: str) -> Iterator[int]:
    """A file of the model and no other one, whatever links there are on the way, or are put there meanwhile."""
    real = os.path.realpath(os.path.join(source.place, path))
    root = next((one.rstrip("/") for one in source.roots if real.startswith(f"{one.rstrip('/')}/")), "")
    wrong = f"is a link that leads out of it, to {real}"
    if root:
        *way, name = real[len(root) + 1 :].split("/")
        with folders.inside(root, way) as directory:
            if stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
                with folders.opened(name, directory) as file:
                    yield file
                return
        wrong = "is no regular file"
    raise SparkError(f"{path} {wrong}", source.place, "Put the file itself there, or leave it out")


def _put(source: Source, path: str, name: str, directory: int) -> None:
    """A second name of the same file where that is possible and everybody may read it, a copy elsewhere."""
    with _opened(source, path) as file:
        seen = os.fstat(file)
        if _is_linked(seen, os.fstat(directory).st_dev):
            with contextlib.suppress(OSError):
                os.link(f"/proc/self/fd/{file}", name, dst_dir_fd=directory, follow_symlinks=True)
                return
        target = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=directory)
        try:
            _copy(file, target, seen.st_size, path)
        finally:
            os.close(target)


def _is_linked(seen: os.stat_result, device: int) -> bool:
    return bool(seen.st_mode & stat.S_IROTH and seen.st_dev == device and seen.st_nlink)


def _copy(source: int, target: int, size: int, path: str) -> None:
    at = 0
    try:
        while at < size:
            sent = os.sendfile(target, source, at, min(_CHUNK, size - at))
            if not sent:
                raise SparkError(f"{path} became shorter while it was copied", "source", "Run it again")
            os.posix_fadvise(source, at, sent, os.POSIX_FADV_DONTNEED)
            at += sent
    except OSError as exc:
        raise SparkError(
            f"{path} cannot be copied ({exc.strerror})", "model cache", "Look at disk space and disk"
        ) from exc
