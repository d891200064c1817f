# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What one version of an engine's command line knows, and command lines held against it.

The tables in ``versions/`` are facts read from the engines' own sources by ``tools/make_option_table.py``. Only
whole names count: the parsers also take unambiguous abbreviations, which break as soon as another option shares the
prefix.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import spelling

DIRECTORY = Path(__file__).resolve().parent / "versions"
_NUMBERS = {
    "int": re.compile(r"[+-]?\d+"),
    "float": re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"),
    "size": re.compile(r"(auto|[+-]?\d+(\.\d+)?([kKmMgGtT]i?)?)"),
}
_WORDS = {"int": "a whole number", "float": "a number", "size": "a number such as 131072 or 128k", "json": "JSON"}


@dataclass(frozen=True)
class Table:
    """``options``: by long name a kind (flag, int, float, size, str, json, list) or a list of choices."""

    engine: str
    version: str
    options: Mapping[str, Any]
    aliases: Mapping[str, str]
    opposites: Mapping[str, str]
    values: Mapping[str, Sequence[str]]
    environment: Sequence[str] = ()
    source: str = ""
    parts: int = 2  # of a version that decide; patch releases of most engines change no options

    def long_name(self, spelling: str) -> str:
        """The long name of a spelling, for flags also of the opposite, or an empty text."""
        if spelling in self.options:
            return spelling
        return self.aliases.get(spelling) or self._inverse.get(spelling, "")

    def turns_off(self, spelling: str) -> bool:
        """It is the opposite of a flag."""
        return spelling not in self.options and spelling not in self.aliases and spelling in self._inverse

    @functools.cached_property
    def _inverse(self) -> dict[str, str]:
        # vLLM keeps --no-x working beside --disable-x.
        kept = {f"--no-{name[2:]}": name for name in self.opposites}
        return {**kept, **{other: name for name, other in self.opposites.items()}}


def matching(version: str, parts: int) -> str:
    """The part of a version that decides which table is right."""
    return ".".join(version.split("+", maxsplit=1)[0].split(".")[:parts])


def within(version: str, since: str, before: str) -> bool:
    """An unknown version, and one of a build of somebody's own, is not."""
    one, first, end = ([int(part) for part in re.findall(r"\d+", text)[:3]] for text in (version, since, before))
    return bool(one) and first <= one < end


@functools.cache
def load(engine: str, version: str) -> Table | None:
    """The table for a version such as ``0.33.0`` or ``0.33``; nothing where there is none."""
    for known in versions(engine) if version else ():
        if matching(known, 2) != matching(version, 2):
            continue
        table = Table(**document(engine, known))
        if matching(known, table.parts) == matching(version, table.parts):
            return table
    return None


def document(engine: str, version: str) -> dict[str, Any]:
    """Of an older version the file has what differs from the newest one: names, and ``null`` for what is not there."""
    own = dict(json_text.mapping((DIRECTORY / f"{engine}-{version}.json").read_bytes()))
    newer = own.pop("differs_from", "")
    if not newer:
        return own
    made = document(engine, newer)
    for part, change in own.items():
        named = made[part]
        if isinstance(change, dict):
            names = {**(named if isinstance(named, dict) else dict.fromkeys(named, True)), **change}
            kept = {name: kind for name, kind in sorted(names.items()) if kind is not None}
            made[part] = kept if isinstance(named, dict) else list(kept)
        else:
            made[part] = change
    return made


def newest(engine: str, version: str) -> Table:
    """The table for a version, or where there is none that of the newest one; an empty one of an engine without."""
    known = versions(engine)
    if not known:
        return Table(engine, "", {}, {}, {}, {})
    return load(engine, version) or cast("Table", load(engine, known[-1]))


@functools.cache
def versions(engine: str) -> tuple[str, ...]:
    found = (path.stem[len(engine) + 1 :] for path in DIRECTORY.glob(f"{engine}-*.json"))
    return tuple(sorted(found, key=lambda text: [int(part) for part in re.findall(r"\d+", text)]))


def close(word: str, known: Sequence[str], prefix: str = "--") -> str:
    """One name: an engine has hundreds of options, and many begin alike."""
    return spelling.did_you_mean(word, known, prefix=prefix, most=1)


@dataclass(frozen=True)
class Given:
    """One option of a command line, as the engine's parser reads it."""

    spelling: str  # as written, without keys and value
    name: str  # the whole name, or empty where the table has none
    values: Sequence[str]
    keys: str = ""  # of JSON behind the first dot: --limit-mm-per-prompt.video
    on: bool = True  # of a flag; the opposite of one is off
    inline: bool = False  # the value stands behind =


def read(words: Sequence[str], table: Table, underscores: bool = False) -> Iterator[Given]:
    """``words``: the arguments behind the program and its subcommand. A word that belongs to no option is one of its
    own, which no table has. ``underscores``: the parser takes ``_`` for ``-`` (vLLM)."""
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if not is_option(word):
            yield Given(word, "", ())
            continue
        spelling, equals, inline = word.partition("=")
        spelling, _dot, keys = spelling.partition(".")
        if underscores:
            spelling = spelling.replace("_", "-")
        values = [inline] if equals else []
        while not equals and position < len(words) and not is_option(words[position]):
            values.append(words[position])
            position += 1
        name = table.long_name(spelling)
        on = spelling in table.options or spelling in table.aliases
        yield Given(spelling, name, values, keys, on, bool(equals))


def is_option(word: str) -> bool:
    """For argparse and click: all that begins with a dash, but for a number."""
    return word.startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?", word)


def check(
    words: Sequence[str], table: Table, removed: Mapping[str, str], label: str, underscores: bool = False
) -> Iterator[tuple[str, str]]:
    """(found, remedy) for each option that is unknown, removed or renamed, or whose value cannot be right.

    ``removed``: remedy by name.
    """
    for given in read(words, table, underscores):
        if not given.name:
            yield _unknown(given.spelling, table, removed, label)
        elif not given.keys:
            found = complaint(given, table, removed)
            if found:
                yield found


def check_removed(
    words: Sequence[str], newest: Table, removed: Mapping[str, str], underscores: bool = False
) -> Iterator[tuple[str, str]]:
    """(found, remedy) for what is gone, where the version is not known. What the newest one has again is not."""
    for position, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, value = _name(word, underscores), words[position + 1] if position + 1 < len(words) else ""
        if name in removed and not newest.long_name(name):
            yield f"has no option {name} any more", removed[name]
        elif f"{name}={value}" in removed:
            yield f"knows no {name} {value} any more", removed[f"{name}={value}"]


def check_names(
    words: Sequence[str], known: Collection[str], removed: Mapping[str, str], label: str, underscores: bool = False
) -> Iterator[tuple[str, str]]:
    """(found, remedy) for options that an engine does not name when it is asked for all of its own."""
    for word in words:
        name = _name(word, underscores)
        if word.startswith("--") and name not in known:
            yield f"{label} has no option {name}", removed.get(name) or close(name, sorted(known)) or "Leave it out"


def _name(word: str, underscores: bool) -> str:
    """JSON options may be dotted: --limit-mm-per-prompt.video"""
    name = word.partition("=")[0].partition(".")[0]
    return name.replace("_", "-") if underscores else name


def check_environment(
    names: Sequence[str], prefix: str, table: Table, removed: Mapping[str, str], label: str
) -> Iterator[tuple[str, str]]:
    """Variables with the engine's own prefix that this version does not read."""
    for name in names:
        if name in removed and name not in table.environment:
            yield f"{label} has no variable {name}", removed[name]
        elif name.startswith(prefix) and table.environment and name not in table.environment:
            yield f"{label} has no variable {name}", close(name, table.environment, prefix) or "Leave it out"


def _unknown(name: str, table: Table, removed: Mapping[str, str], label: str) -> tuple[str, str]:
    if name in removed:
        return f"{label} has no option {name} any more", removed[name]
    whole = [known for known in (*table.options, *table.aliases) if known.startswith(name)]
    if len(whole) == 1:
        return f"{label} has no option {name}, it is an abbreviation at best", f"Write {whole[0]} in full"
    return f"{label} has no option {name}", close(name, (*table.options, *table.aliases)) or "Leave it out"


def complaint(given: Given, table: Table, removed: Mapping[str, str]) -> tuple[str, str] | None:
    """(found, remedy) for values that this option cannot have."""
    name, long_name, values = given.spelling, given.name, given.values
    kind = table.options[long_name]
    if kind == "flag":
        if values:
            return f"{name} takes no value, and {' '.join(values)!r} was given", "Leave the value out, or write true"
        return None
    if not values:
        return f"{name} needs a value, and none was given", "Give one"
    if len(values) > 1 and kind != "list":
        return f"{name} takes one value, and {' '.join(values)!r} was given", "Give one"
    known = table.values.get(long_name) or (kind if isinstance(kind, list) else ())
    for value in values:
        note = removed.get(f"{long_name}={value}")
        if note:
            return f"{name} {value} is no value of this version", note
        if known and value.casefold() not in {item.casefold() for item in known}:
            hint = close(value, list(known))
            return f"{name} {value} is no value of this version", f"{hint} Known: {', '.join(known)}".strip()
        if isinstance(kind, str) and kind in _NUMBERS and not _NUMBERS[kind].fullmatch(value):
            return f"{name} is {value!r}", f"It has to be {_WORDS[kind]}"
    return None
