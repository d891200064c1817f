# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Blocks of ours in ``/etc/hosts``, one per owner, between two comments; what is around them stays as it is."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import temp_path

PATH = "/etc/hosts"


def marks(owner: str) -> tuple[str, str]:
    return f"# BEGIN sparkmatrix.cluster {owner}", f"# END sparkmatrix.cluster {owner}"


def around(lines: list[str], owner: str, path: str = PATH) -> tuple[list[str], list[str], list[str]]:
    """The lines before our block, those of it with its marks, and those behind it; all are before where there is none.

    Raises :class:`SparkError` when the block begins and does not end, since what belongs to it cannot be told.
    """
    begin, end = marks(owner)
    bare = [line.strip() for line in lines]
    if begin not in bare:
        return lines, [], []
    start = bare.index(begin)
    if end not in bare[start:]:
        raise SparkError(
            f"the block {begin!r} has no end", path, f"Add the line {end!r} after its last entry, or remove it"
        )
    stop = bare.index(end, start) + 1
    return lines[:start], lines[start:stop], lines[stop:]


def with_block(text: str, lines: Sequence[str], owner: str) -> str:
    """``text`` with our marked block holding ``lines``, at its old place or at the end; without it when there are none.

    Raises :class:`SparkError` when the block begins and does not end.
    """
    begin, end = marks(owner)
    before, old, after = around(text.splitlines(keepends=True), owner)
    block = [strict.line(line, PATH) + "\n" for line in (begin, *lines, end)] if lines else []
    if block and not old and before and not before[-1].endswith("\n"):
        block.insert(0, "\n")
    return "".join([*before, *block, *after])


def block_of(text: str, owner: str) -> list[str]:
    """The lines in our block, none when there is no block."""
    try:
        _before, block, _after = around(text.splitlines(), owner)
    except SparkError:
        return []
    return block[1:-1]


def write(machine: Machine, text: str, path: str = PATH) -> None:
    """Replace a file of others with the same mode and owner; in place where it is a mount point, as in containers."""
    real = os.path.realpath(machine.real(path))
    temp = temp_path(real)
    data = text.encode("utf-8", "surrogateescape")
    try:
        with open(temp, "wb") as stream:
            stream.write(data)
            stream.flush()
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(real)
                os.fchmod(stream.fileno(), status.st_mode & 0o7777)
                os.fchown(stream.fileno(), status.st_uid, status.st_gid)
            os.fsync(stream.fileno())
        try:
            os.rename(temp, real)
        except OSError as exc:
            os.unlink(temp)
            if exc.errno != errno.EBUSY:
                raise
            with open(real, "r+b") as stream:
                stream.write(data)
                stream.truncate()
    except OSError as exc:
        raise SparkError(f"cannot be written ({exc.strerror})", path, "Make it writable for root") from exc
