# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""How the user calls playbooks: what a run tells people to type next works where they stand, with their inventory."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from ansible import constants
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._screen import verbs

PLAIN = "ansible-playbook"
# "ansible-playbook site.yml" and "run site.yml" of a message, and "playbooks/plan.yml says" for who has verbs; not what
# is a command of this run already.
SAID = re.compile(
    rf"(?:(?P<before>(?<![\w./-]){PLAIN} |\b[Rr]un )(?:playbooks/)?|(?<![\w./-])(?<!{PLAIN} )playbooks/)"
    r"(?P<name>[a-z_]+)\.yml"
    r"(?P<tags> --tags [\w,]+)?(?P<more> -i)?"
)


@dataclass(frozen=True)
class Commands:
    """``folder``: of this collection, seen from where the user is; ``top``: playbooks there."""

    program: str = PLAIN
    folder: str = ""
    options: str = ""
    top: tuple[str, ...] = ()
    others: tuple[str, ...] = ()  # in its folder playbooks
    by_verbs: bool = False  # called by the command ``sparkmatrix``

    def play(self, name: str, more: str = "") -> str:
        if self.by_verbs:
            part = "--tags" in more  # of what a verb does
            verb = f"{verbs.OTHERS} {name}" if part or name not in verbs.NAMED else verbs.NAMED[name]
            return " ".join(word for word in (self.program, verb, more) if word)
        path = f"{name}.yml" if name in self.top else f"playbooks/{name}.yml"
        return " ".join(part for part in (self.program, f"{self.folder}{path}", self.options, more) if part)

    def whole(self, text: str) -> str:
        """``text`` with its commands as they can be typed here."""
        for option, short in verbs.SHORT.items() if self.by_verbs else ():
            text = text.replace(option, short.format(self.program))
        return SAID.sub(self._whole, text)

    def _whole(self, found: re.Match[str]) -> str:
        name = found["name"]
        before = found["before"] or ""
        if name not in (*self.top, *self.others) or not (before or self.by_verbs):
            return found[0]
        run = before if before.lower().startswith("run") else ""
        # Where it goes on with an inventory of its own, this run's is left out.
        how = replace(self, options="") if found["more"] else self
        told = how.play(name, (found["tags"] or "").strip())
        if not before and found.string[found.end() :][:2].strip().isalpha():  # it goes on with other words
            told = f"'{told}'"
        return f"{run}{told}{found['more'] or ''}"


def typed(inventories: Iterable[str], *, ask_sudo: bool = False) -> Commands:
    """As this run was called. Where nobody has typed it (AWX), the plain names."""
    root = Path(__file__).resolve().parents[3]
    others = tuple(path.stem for path in root.glob("playbooks/*.yml"))
    if called := os.environ.get(verbs.CALLED_BY):
        return Commands(called, others=others, by_verbs=True)
    # With ansible.cfg's inventory, the next command needs none either.
    given = [inventory for inventory in inventories if inventory not in constants.DEFAULT_HOST_LIST]
    options = [word for one in given for word in ("-i", seen_from_here(one))]
    if ask_sudo:
        options.append("-K")
    folder = seen_from_here(str(root))
    called = sys.argv[0]
    return Commands(
        program=seen_from_here(called) if "/" in called and called != shutil.which(PLAIN) else PLAIN,
        folder="" if folder == "." else f"{folder}/",
        options=shlex.join(options),
        top=tuple(path.stem for path in root.glob("*.yml")),
        others=others,
    )


def seen_from_here(path: str) -> str:
    """Relative where it is below the current directory; a list of hosts (``-i host,``) as it is."""
    if "," in path or not os.path.isabs(path):
        return path
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
