# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Options for ``ansible-playbook`` behind a verb: what is wrong with them in a line, instead of pages of its usage."""

from __future__ import annotations

import contextlib
import re
from argparse import ArgumentError, ArgumentParser
from collections.abc import Mapping, Sequence
from typing import Any, cast

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import yaml_text
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._screen import verbs


def _parser() -> ArgumentParser:
    from ansible.cli.playbook import PlaybookCLI  # noqa: PLC0415  takes its time

    ansible = PlaybookCLI(["ansible-playbook"])
    ansible.init_parser()
    ansible.parser.exit_on_error = False
    return cast(ArgumentParser, ansible.parser)


def words(options: Sequence[str], name: str) -> list[str]:
    """Of a variable that is a list of words and is given with ``-e``, as text, YAML or JSON; files are not read, and
    of what is none of these Ansible says so."""
    from ansible.errors import AnsibleError  # noqa: PLC0415
    from ansible.parsing.splitter import parse_kv  # noqa: PLC0415

    given: Any = None
    for text in _parser().parse_known_args(["a playbook", *options])[0].extra_vars if options else ():
        found: Any = None
        with contextlib.suppress(AnsibleError, SparkError):
            found = yaml_text.read(text, "-e") if text.startswith("{") else parse_kv(text)
        given = found.get(name, given) if isinstance(found, Mapping) else given
    listed = given.split(",") if isinstance(given, str) else given if isinstance(given, list) else []
    return [str(word).strip() for word in listed]


def refused(options: Sequence[str], own: Sequence[str] = ()) -> str:
    """Empty where Ansible takes them; ``own``: that the verb has besides."""
    if not options:
        return ""
    parser = _parser()
    try:
        found, strange = parser.parse_known_args(["a playbook", *options])
    except ArgumentError as exc:
        return f"{exc}."
    for word in (*strange, *found.args[1:]):
        if not word.startswith("-"):
            return f"What is {word} for? For some machines only: --limit {word}"
        known = [*own, *re.findall(r"--[a-z][\w-]+", parser.format_help())]
        return verbs.unknown("option", word.partition("=")[0], known).partition(" There are")[0]  # too many
    return ""
