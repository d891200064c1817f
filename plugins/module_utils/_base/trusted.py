# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Whether root may run a program: who can change it would be root."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterator, Sequence

_PEOPLE = 1000  # the first id of groups of people, by login.defs(5)


def distrusted(path: str, users: Sequence[str] = (), root: str = "/") -> str:
    """What is wrong, or nothing. ``users``: accounts that may own it beside root; ``root`` is replaced by tests.

    Every directory on the way counts, also where links lead.
    """
    accounts = {0: 0}
    for name in users:
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        accounts[found.pw_uid] = found.pw_gid
    base = os.path.realpath(root)
    real = base.rstrip("/") + path
    for place in dict.fromkeys([*_way(real, base), *_way(os.path.realpath(real), base)]):
        try:
            seen, link = os.stat(place), os.lstat(place)
        except OSError:
            return ""  # it is not there, so nobody runs it
        shown = place[len(base.rstrip("/")) :]
        strangers = {seen.st_uid, link.st_uid} - set(accounts)
        if strangers:
            return f"{shown} belongs to {_name(min(strangers))}"
        sticky = stat.S_ISDIR(seen.st_mode) and seen.st_mode & stat.S_ISVTX
        if seen.st_mode & stat.S_IWOTH and not sticky:
            return f"everybody may write to {shown}"
        if seen.st_mode & stat.S_IWGRP and seen.st_gid >= _PEOPLE and seen.st_gid not in accounts.values():
            return f"a group of users may write to {shown}"
    return ""


def _way(path: str, base: str) -> Iterator[str]:
    """From the top down; what is above ``base`` is not part of the node."""
    inside = os.path.relpath(path, base)
    place = base
    for part in [] if inside.startswith("..") else inside.split("/"):
        place = os.path.join(place, part)
        yield place


def _name(uid: int) -> str:
    try:
        return f"the account {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"the account {uid}"
