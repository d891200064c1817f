# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which options a recipe may set without the user's word: numbers, switches, and choices that the engine's table knows.

A text, a path, an address or a key of JSON can make an engine load code, read a file or ask another machine, and each
version knows new ones. So only those pass that the engine's file lists as harmless. What is judged is the command that
was rendered, read back as the engine's parser reads it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import option_tables
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds import base as kinds_base
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.base import Engine
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.option_tables import Given, Table
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.recipe_variables import UNKNOWN

_WORD = re.compile(r"[+-]?[A-Za-z0-9_][A-Za-z0-9_.:,;+-]{0,79}")


def doubts(engine: Engine, version: str, name: str, value: Any) -> dict[str, str]:
    """Of one option in its :func:`~.kinds.base.merge` form: by each word that allows it (``option``, ``option.key``)
    what it does, as the end of a sentence."""
    if name in kinds_base.in_file(engine, version, {name: value}):
        return dict(_of_leaves(engine, name, value))
    own = option_tables.load(engine.name, version)
    if kinds_base.planned(engine, version, name):
        return {}  # nobody may set it
    table = option_tables.newest(engine.name, version)
    made: dict[str, str] = {}
    for given in option_tables.read(kinds_base.render({name: value}, own or table), table, engine.underscores):
        if given.name or own is None:  # where there is a table, what it does not know is refused
            made |= _of_given(engine, table, given)
    return made


def leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """(``option.key.key``, value) of all that is no mapping and no list, also inside of a text that is JSON."""
    if isinstance(value, str) and value.lstrip()[:1] in {"{", "["}:
        with contextlib.suppress(SparkError):
            value = json_text.read(value)
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from leaves(f"{name}.{key}", inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from leaves(name, inner)
    else:
        yield name, value


def _of_given(engine: Engine, table: Table, given: Given) -> dict[str, str]:
    name, kind = given.name[2:], table.options.get(given.name)
    if not name:
        # Nobody refuses an abbreviation where the version has no table.
        whole = [known for known in table.options if known.startswith(given.spelling)]
        name = (whole[0] if len(whole) == 1 else given.spelling).lstrip("-")
        return {name: engine.dangerous.get(name, UNKNOWN)}
    if name in engine.dangerous:
        return {name: engine.dangerous[name]} if given.on else {}
    fits = not given.keys and option_tables.complaint(given, table, {}) is None
    numbers = kind == "list" and all(re.fullmatch(r"-?\d+(\.\d+)?", value) for value in given.values)
    if fits and (isinstance(kind, list) or kind in {"flag", "int", "float", "size"} or given.name in table.values):
        return {}
    return {} if fits and numbers else dict(_of_leaves(engine, name, list(given.values)))


def _of_leaves(engine: Engine, name: str, value: Any) -> Iterator[tuple[str, str]]:
    if name in engine.dangerous:
        yield name, engine.dangerous[name]
        return
    listed = any(known.partition(".")[0] == name for known in (*engine.harmless, *engine.dangerous))
    for path, leaf in leaves(name, value):
        if not _harmless(engine, path, leaf):
            word = path if listed else name
            yield word, engine.dangerous.get(word, UNKNOWN)


def _harmless(engine: Engine, path: str, leaf: Any) -> bool:
    """A number, a switch or a word of an option or a key that is listed, with this value or with any."""
    if not _WORD.fullmatch(str(leaf)):
        return False
    above = path.split(".")[:-1]
    known = {path, f"{path}={leaf}", *(".".join((*above[: number + 1], "*")) for number in range(len(above)))}
    return not known.isdisjoint(engine.harmless)
