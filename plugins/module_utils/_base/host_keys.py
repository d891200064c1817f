# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""How an ssh host key that has changed is forgotten."""

from __future__ import annotations

import re
import shlex


def forget(said: str, name: str) -> str:
    """The command that removes the old key, by what ssh has said; ``name``: whose, where that is not in it."""
    changed = re.search(r"ost key for ([\w.:\[\]-]+) has changed", said)
    place = re.search(r"ffending [\w ]+ in (\S+?):\d", said)
    file = f"-f {shlex.quote(place[1])} " if place and not place[1].endswith("/.ssh/known_hosts") else ""
    return f"ssh-keygen {file}-R {shlex.quote(changed[1]) if changed else name}"
