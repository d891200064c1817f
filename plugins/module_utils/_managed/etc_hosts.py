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


def with_block(text: str, lines: Sequence[str], owner: str) -> str:
    """``text`` with our marked block holding ``lines``, at its old place or at the end; without it when there are none.

    Raises :class:`SparkError` when the block begins and does not end, since what belongs to it cannot be told.
    """
    begin, end = marks(owner)
    have = text.splitlines(keepends=True)
    bare = [line.strip() for line in have]
    block = [strict.line(line, PATH) + "\n" for line in (begin, *lines, end)] if lines else []
    if begin in bare:
        start = bare.index(begin)
        if end not in bare[start:]:
            raise SparkError(
                f"the block {begin!r} has no end", PATH, f"Add the line {end!r} after its last entry, or remove it"
            )
        return "".join(have[:start] + block + have[bare.index(end, start) + 1 :])
    if not block:
        return text
    return text + ("" if not text or text.endswith("\n") else "\n") + "".join(block)


def block_of(text: str, owner: str) -> list[str]:
    """The lines in our block, none when there is no block."""
    begin, end = marks(owner)
    bare = [line.strip() for line in text.splitlines()]
    if begin not in bare or end not in bare[bare.index(begin) :]:
        return []
    return text.splitlines()[bare.index(begin) + 1 : bare.index(end, bare.index(begin))]


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
