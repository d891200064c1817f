# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The segments of a model on this node: which are here and verified, where they are, and a journal of it.

Segments are named by number, sets of them are the bits of an integer. A segment goes into the journal after its bytes
are on the disk, so that a copy that was killed, at any point, goes on with what is in it; repairing a broken file is
the same operation with few segments missing (:meth:`Store.adopt`).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import threading
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import folders
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.manifest import File, Manifest, Segment
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError

JOURNAL = "journal"
WARM = 1024 * 1024 * 1024  # bytes that stay in the page cache behind a copy, for the nodes that fetch them next
_MOST_JOURNAL = 64 * 1024 * 1024


def fingerprint(manifest: Manifest) -> str:
    """Equal where the numbers of segments mean the same."""
    files = [(one.blob, one.size, one.segments) for one in manifest.files]
    return hashlib.sha256(json.dumps([manifest.digest, manifest.segment_bytes, files]).encode()).hexdigest()


def count(bits: int) -> int:
    return bin(bits).count("1")


def first(bits: int) -> int:
    """The lowest number in a set that is not empty."""
    return (bits & -bits).bit_length() - 1


def numbers(bits: int) -> Iterable[int]:
    while bits:
        number = first(bits)
        yield number
        bits &= bits - 1


class Store:
    """``partial``: directory for files that are not whole yet. ``whole``: path of the files that are here already and
    verified, by blob; they are only read. Afterwards every other blob is in ``partial`` under its name. ``home``:
    directory above ``partial``, below which no link is followed."""

    def __init__(
        self, manifest: Manifest, partial: str, whole: Mapping[str, str] | None = None, home: str = ""
    ) -> None:
        self.manifest = manifest
        self.partial = partial
        self._home = home
        self._held = ""  # the directory itself, whatever is put in its place meanwhile
        self.fingerprint = fingerprint(manifest)
        self.segments: list[Segment] = []
        self.have = 0
        self.wanted = 0  # each content once, although two files may have it
        self._twins: dict[tuple[str, int], int] = {}
        self._whole = {
            one.blob: place
            for one in manifest.files
            for place in [(whole or {}).get(one.blob, "")]
            if place and _size(place) == one.size
        }
        for one in manifest.segments():
            self.segments.append(one)
            content, bit = (one.file.blob, one.offset), 1 << one.number
            if content not in self._twins:
                self.wanted |= bit
            self._twins[content] = self._twins.get(content, 0) | bit
            if one.file.blob in self._whole:
                self.have |= bit
        self.bytes = self.size(self.wanted)  # each content once
        self.lacking = self.size(self.missing)
        self._lock = threading.Lock()
        self._warm: dict[int, Segment] = {}  # in the order in which they came
        self._warm_bytes = 0
        self._journal = -1

    # -- what is here

    @property
    def missing(self) -> int:
        return self.wanted & ~self.have

    @property
    def is_whole(self) -> bool:
        return not self.missing

    @property
    def in_cache(self) -> bool:
        """Nothing has to be made here, not even an empty file."""
        return all(one.blob in self._whole for one in self.manifest.files)

    def size(self, bits: int) -> int:
        """Bytes of a set of segments."""
        return sum(self.segments[number].size for number in numbers(bits & self.wanted))

    def place(self, number: int) -> tuple[str, int] | None:
        """File and offset of a segment that this node has verified."""
        if not 0 <= number < len(self.segments) or not self.have >> number & 1:
            return None
        segment = self.segments[number]
        return self.path(segment.file), segment.offset

    def path(self, file: File) -> str:
        return self._whole.get(file.blob) or os.path.join(self._held or self.partial, file.blob)

    # -- before and while segments arrive

    def open(self) -> None:
        """Read the journal and take the disk space of everything that is missing. Raises :class:`SparkError`."""
        try:
            recorded = self._open_journal()
            for one in {file.blob: file for file in self.manifest.files if file.blob not in self._whole}.values():
                if self._reserve(one):
                    recorded = {number for number in recorded if self.segments[number].file.blob != one.blob}
        except OSError as exc:
            raise SparkError(
                f"{exc.strerror}, and {self.lacking} bytes of {self.manifest.name} are to come here",
                folders.shown(exc.filename or self.partial),
                "Make room, or see to the disk, and run again",
            ) from exc
        for number in recorded:
            self._mark(number)

    def adopt(self, blob: str, path: str, good: Iterable[int]) -> None:
        """Take a broken file out of the cache, so that the next copy repairs it: ``good`` are its segments that are
        right. It stays the same file: whoever has it open sees it whole again. Raises :class:`OSError`."""
        size = next(one.size for one in self.manifest.files if one.blob == blob)
        recorded = self._open_journal()
        here = os.path.join(self._held, blob)
        try:
            # What it says of this file is said of another one, which an interrupted copy has left.
            os.ftruncate(self._journal, 0)
            os.lseek(self._journal, 0, os.SEEK_SET)
            kept = [number for number in sorted(recorded) if self.segments[number].file.blob != blob]
            lines = [f"segments {self.fingerprint}", *map(str, kept)]
            os.write(self._journal, "".join(f"{line}\n" for line in lines).encode())
            os.replace(path, here)
            handle = regular(here, os.O_RDWR)
            try:
                if os.fstat(handle).st_size != size:
                    os.ftruncate(handle, size)
            finally:
                os.close(handle)
            for number in good:
                if self.segments[number].file.blob == blob:
                    self.verified(number)
        finally:
            self.close()

    def close(self) -> None:
        with self._lock:
            for segment in self._warm.values():
                self._cool(segment)
            self._warm.clear()
            if self._journal >= 0:
                os.close(self._journal)
                self._journal = -1

    def verified(self, number: int) -> None:
        """A segment has been written out and has the right hash."""
        with self._lock:
            if self._journal < 0:
                return
            os.write(self._journal, f"{number}\n".encode())
            self._mark(number)
            self._warm[number] = self.segments[number]
            self._warm_bytes += self.segments[number].size
            while self._warm_bytes > WARM:
                oldest = self._warm.pop(next(iter(self._warm)))
                self._warm_bytes -= oldest.size
                self._cool(oldest)

    def sent(self, number: int, handle: int) -> None:
        """What was only read for another node leaves the page cache again."""
        if number not in self._warm:
            _drop(handle, self.segments[number])

    def _mark(self, number: int) -> None:
        segment = self.segments[number]
        if not self.have >> number & 1:
            self.lacking -= segment.size
        self.have |= self._twins[segment.file.blob, segment.offset]

    def _cool(self, segment: Segment) -> None:
        with contextlib.suppress(OSError):
            handle = regular(self.path(segment.file), os.O_RDONLY)
            try:
                _drop(handle, segment)
            finally:
                os.close(handle)

    def _reserve(self, file: File) -> bool:
        """Whether the file was not there in its size, so that nothing can be in it."""
        path = os.path.join(self._held, file.blob)
        handle = regular(path, os.O_RDWR | os.O_CREAT, 0o644)
        fresh = os.fstat(handle).st_size != file.size
        try:
            if fresh:
                os.ftruncate(handle, 0)
            if file.size:
                os.posix_fallocate(handle, 0, file.size)
        except OSError as exc:
            if fresh:
                os.unlink(path)
            exc.filename = path
            raise
        finally:
            os.close(handle)
        return fresh

    def _open_journal(self) -> set[int]:
        """What it says. It is cut behind its last good line: a killed writer may leave a half."""
        if not self._held:
            parts = Path(self.partial).relative_to(self._home).parts if self._home else ()
            with folders.inside(self._home or self.partial, parts, make=True) as directory:
                held = os.dup(directory)
            weakref.finalize(self, os.close, held)  # not in close(): who still serves would find another one there
            self._held = folders.path(held)
        self._journal = regular(os.path.join(self._held, JOURNAL), os.O_RDWR | os.O_CREAT, 0o600)
        with open(self._journal, "rb", closefd=False) as stream:
            text = stream.read(_MOST_JOURNAL)
        head, found, good = f"segments {self.fingerprint}\n".encode(), set(), 0
        if text.startswith(head):
            good = len(head)
            for line in text[good:].splitlines(keepends=True):
                if not (line.endswith(b"\n") and line[:-1].isdigit() and int(line) < len(self.segments)):
                    break
                found.add(int(line))
                good += len(line)
        os.ftruncate(self._journal, good)
        os.lseek(self._journal, good, os.SEEK_SET)
        if not good:
            os.write(self._journal, head)
        return found


def _size(path: str) -> int:
    try:
        return os.stat(path, follow_symlinks=False).st_size
    except OSError:
        return -1


def regular(path: str, how: int, mode: int = 0) -> int:
    """A regular file; raises :class:`OSError` for everything else."""
    opened = os.open(path, how | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, mode)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(errno.EINVAL, "it is no regular file", path)
    return opened


def _drop(handle: int, segment: Segment) -> None:
    with contextlib.suppress(OSError):
        os.posix_fadvise(handle, segment.offset, segment.size, os.POSIX_FADV_DONTNEED)
