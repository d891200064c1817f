# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Directories and files below a model cache or a layer of an image, reached without following a link.

The cache may belong to the user whom the engine runs as, and root works in it: a directory there that has become a link
must not lead root elsewhere. What is noted there of models (what has come, what was verified) is believed: it lies in
directories that are root's, and one that is not root's is as good as none.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError

OWN = "sparkmatrix"  # below a model cache
DOWNLOAD = "download"  # what a client brings who is not root; it is read before it counts
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def inside(base: str, parts: Sequence[str], make: bool = False) -> Iterator[int]:
    """A descriptor of a directory below ``base``. ``make``: what is missing, of the owner that the one above has; but
    what is ours (:data:`OWN`) of the user that this runs as."""
    if make:
        os.makedirs(base, 0o755, exist_ok=True)
    here = os.open(base, _DIRECTORY & ~os.O_NOFOLLOW)
    try:
        ours = tuple(parts[:1]) == (OWN,)
        for part in parts:
            deeper = _enter(here, part, make, f"{base}/{'/'.join(parts)}", ours and part != DOWNLOAD)
            os.close(here)
            here = deeper
        yield here
    finally:
        os.close(here)


def _enter(here: int, part: str, make: bool, place: str, ours: bool) -> int:
    if part in ("", ".", "..") or "/" in part:
        raise ValueError(f"{part!r} is no name of a directory")
    made = False
    if make:
        try:
            os.mkdir(part, 0o755, dir_fd=here)
            made = True
        except FileExistsError:
            pass
    try:
        deeper = os.open(part, _DIRECTORY, dir_fd=here)
    except FileNotFoundError:
        raise
    except OSError as exc:
        raise SparkError(
            f"{part} is no directory ({exc.strerror})",
            place,
            "Look at what it is, and move it away: models are put into real directories only. To have them on"
            " another disk, name a directory there: engine_model_cache",
        ) from exc
    if made:
        above = os.fstat(here)
        os.fchmod(deeper, 0o755)
        if os.geteuid() == 0 and not ours:
            os.fchown(deeper, above.st_uid, above.st_gid)
    seen = os.fstat(deeper)
    if ours and (seen.st_uid != os.geteuid() or seen.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
        os.close(deeper)
        if not make:
            raise FileNotFoundError(errno.ENOENT, "others can write there", place)
        if made:
            raise SparkError(
                f"{part} does not become root's own",
                place,
                "Put engine_model_cache on a file system that keeps owners and modes (not NFS with root_squash)",
            )
        _remove(here, part)
        return _enter(here, part, make, place, ours)
    return deeper


def path(directory: int) -> str:
    """For what works with paths: leads to the directory behind a descriptor, as long as that is open."""
    return f"/proc/self/fd/{directory}"


def open_file(name: str, directory: int) -> int:
    """A regular file, for reading; :class:`OSError` for all else, which is not even opened: devices may act on that."""
    if stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
        opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        if stat.S_ISREG(os.fstat(opened).st_mode):
            return opened
        os.close(opened)
    raise OSError(f"{name} is no regular file")


@contextmanager
def opened(name: str, directory: int) -> Iterator[int]:
    """:func:`open_file`, and closed behind it."""
    file = open_file(name, directory)
    try:
        yield file
    finally:
        os.close(file)


def write(base: str, parts: Sequence[str], name: str, content: bytes) -> bool:
    """As a whole or not at all, readable for everybody. Whether it was another one."""
    with inside(base, parts, make=True) as directory:
        if read(directory, name) == content:
            return False
        aside = f".{name[:100]}.{secrets.token_hex(4)}"
        opened = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=directory)
        with os.fdopen(opened, "wb") as file:
            os.fchmod(opened, 0o644)
            file.write(content)
            file.flush()
            os.fsync(opened)
        os.rename(aside, name, src_dir_fd=directory, dst_dir_fd=directory)
    return True


def read(directory: int, name: str, most: int = 1 << 30) -> bytes | None:
    try:
        opened = open_file(name, directory)
    except OSError:
        return None
    with os.fdopen(opened, "rb") as file:
        return file.read(most)


def read_json(base: str, parts: Sequence[str], name: str) -> Any:
    """What is in it; nothing where it is missing or damaged."""
    try:
        with inside(base, parts) as directory:
            return json_text.read(read(directory, name) or b"null")
    except (OSError, SparkError):
        return None


def link(target: str, name: str, directory: int) -> bool:
    """A symbolic link, in place of what is there. Whether it was another one."""
    try:
        if os.readlink(name, dir_fd=directory) == target:
            return False
    except OSError:
        pass
    aside = f".link.{secrets.token_hex(4)}"
    os.symlink(target, aside, dir_fd=directory)
    try:
        os.rename(aside, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        os.unlink(aside, dir_fd=directory)
        raise
    return True


def names(base: str, parts: Sequence[str]) -> list[str]:
    try:
        with inside(base, parts) as directory:
            return sorted(os.listdir(directory))
    except (OSError, SparkError):
        return []


def remove(base: str, parts: Sequence[str], name: str) -> None:
    """A file, a link or a directory with all that is in it; no link is followed."""
    try:
        with inside(base, parts) as directory:
            _remove(directory, name)
    except FileNotFoundError:
        pass


def _remove(directory: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=directory)
        return
    except IsADirectoryError:
        pass
    deeper = os.open(name, _DIRECTORY, dir_fd=directory)
    try:
        for one in os.listdir(deeper):
            _remove(deeper, one)
    finally:
        os.close(deeper)
    os.rmdir(name, dir_fd=directory)
