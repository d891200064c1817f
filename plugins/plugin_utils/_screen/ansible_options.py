# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Options for ``ansible-playbook`` behind a verb: what is wrong with them in a line, instead of pages of its usage."""

from __future__ import annotations

import re
from argparse import ArgumentError
from collections.abc import Sequence

from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._screen import verbs


def refused(options: Sequence[str], own: Sequence[str] = ()) -> str:
    """Empty where Ansible takes them; ``own``: that the verb has besides."""
    if not options:
        return ""
    from ansible.cli.playbook import PlaybookCLI  # noqa: PLC0415  takes its time

    ansible = PlaybookCLI(["ansible-playbook"])
    ansible.init_parser()
    ansible.parser.exit_on_error = False
    try:
        found, strange = ansible.parser.parse_known_args(["a playbook", *options])
    except ArgumentError as exc:
        return f"{exc}."
    for word in (*strange, *found.args[1:]):
        if not word.startswith("-"):
            return f"What is {word} for? For some machines only: --limit {word}"
        known = [*own, *re.findall(r"--[a-z][\w-]+", ansible.parser.format_help())]
        return verbs.unknown("option", word.partition("=")[0], known).partition(" There are")[0]  # too many
    return ""
