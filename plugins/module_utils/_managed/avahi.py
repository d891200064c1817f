# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Interfaces on which avahi neither answers nor asks: one key of ``avahi-daemon.conf``, between two comments.

avahi reads no directory of further files, and reads this one when it starts. A ``deny-interfaces`` of the machine's
owner stays as a comment in our block, and its interfaces stay denied. Of several such lines avahi 0.8 takes the last.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import etc_hosts

PATH = "/etc/avahi/avahi-daemon.conf"
UNIT = "avahi-daemon.service"
_KEY = "deny-interfaces"
_LINE = re.compile(rf"{_KEY}\s*=(.*)", re.IGNORECASE)


def denying(text: str, netdevs: Sequence[str], owner: str) -> str:
    """``text`` with our block that keeps avahi off ``netdevs``; without the block, and as it was, when there are none.

    Raises :class:`SparkError` when the block begins and does not end.
    """
    have = _without(text.splitlines(keepends=True), owner)
    if not netdevs:
        return "".join(have)
    section, place, own = "", None, ""
    for number, line in enumerate(have):
        bare = line.strip()
        if bare.startswith("["):
            section = bare.strip("[]").lower()
            if section == "server" and place is None:
                place = number + 1
        elif section == "server" and _LINE.fullmatch(bare):
            place, own = number, line
    names = dict.fromkeys([*_names(own), *(strict.line(netdev, PATH) for netdev in netdevs)])
    begin, end = etc_hosts.marks(owner)
    block = [f"{begin}\n", *([f"#{own}"] if own else []), f"{_KEY}={','.join(names)}\n", f"{end}\n"]
    if place is None:
        block.insert(1, "[server]\n")
        place = len(have)
    if place and not have[place - 1].endswith("\n"):
        have[place - 1] += "\n"
    return "".join([*have[:place], *block, *have[place + bool(own) :]])


def denied(text: str, owner: str) -> list[str]:
    """The interfaces that our block names, none without one."""
    return [name for line in etc_hosts.block_of(text, owner) for name in _names(line)]


def _names(line: str) -> list[str]:
    found = _LINE.fullmatch(line.strip())
    return [name.strip() for name in found[1].split(",") if name.strip()] if found else []


def _without(have: list[str], owner: str) -> list[str]:
    before, block, after = etc_hosts.around(have, owner, PATH)
    own = [line[1:] for line in block if line.startswith("#") and _LINE.fullmatch(line[1:].strip())]
    return [*before, *own, *after]


def write(machine: Machine, text: str, *, running: bool) -> None:
    """Replace the file; ``running``: and start avahi anew, if it runs, since a reload does not read the file."""
    if machine.read(PATH) != text:
        etc_hosts.write(machine, text, PATH)
    # Its file outlives a package that was removed.
    if running and machine.unit(UNIT).running:
        machine.command(
            "systemctl", "try-restart", UNIT, step="starting avahi anew", remedy=f"See journalctl -u {UNIT}"
        )
