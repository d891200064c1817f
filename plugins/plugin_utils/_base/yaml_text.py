# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""YAML of a file on the controller: the one way to read it. Whatever is wrong raises :class:`SparkError`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from ansible.module_utils.common.yaml import yaml_load
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.json_text import DAMAGE
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.strict import LARGEST, quoted

MAX_TEXT = 1024 * 1024  # characters
MAX_SCALAR = 64 * 1024
MAX_NODES = 20_000
MAX_DEEP = 50


def read(text: str, where: str = "", remedy: str = "Correct it") -> Any:
    try:
        return yaml_load(str(text))  # libyaml takes no text that Ansible has marked, as that of a lookup
    except RecursionError as exc:
        raise SparkError("it is no valid YAML (too deep)", where, remedy) from exc
    except (yaml.YAMLError, *DAMAGE) as exc:  # of a date without such a month, of a key that is a list
        raise SparkError(f"it is no valid YAML ({' '.join(str(exc).split())})", where, remedy) from exc


def file(path: Path, remedy: str, *, aliases: bool = False) -> Any:
    """Of somebody else: without aliases, of which a few lines can make all memory, and not endless. ``remedy``: where
    it cannot be opened. ``aliases``: they are counted as what they stand for."""
    try:
        with path.open(encoding="utf-8") as opened:
            text = opened.read(MAX_TEXT + 1)
    except OSError as exc:
        raise SparkError(f"it cannot be read ({exc.strerror})", str(path), remedy) from exc
    except ValueError as exc:
        raise SparkError(f"it is no valid YAML ({exc})", str(path), "Correct it") from exc
    bounded(text, str(path), aliases=aliases)
    document = read(text, str(path))
    for place in _endless(document):
        raise SparkError(f"its {quoted(place)[2:-1]} has a number that is none to count with", str(path), "Correct it")
    return document


def bounded(text: str, where: str, *, aliases: bool = False) -> None:
    """Refuse what would become larger than it looks, before anything is made of it."""
    if len(text) > MAX_TEXT:
        raise SparkError(f"it has more than {MAX_TEXT} characters", where, "Shorten it")
    nodes = deep = 0
    begun: list[tuple[str, int]] = []
    sizes: dict[str, int] = {}
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            line = f"in line {event.start_mark.line + 1 if event.start_mark else 1}"
            anchor = getattr(event, "anchor", None)
            if isinstance(event, yaml.AliasEvent):
                nodes += sizes.get(str(anchor), MAX_NODES)  # of one that is not complete: endless
            elif isinstance(event, yaml.CollectionStartEvent):
                begun.append((str(anchor or ""), nodes))
            elif isinstance(event, yaml.CollectionEndEvent):
                name, before = begun.pop()
                sizes[name] = nodes - before + 1
            elif anchor:
                sizes[str(anchor)] = 1
            if anchor and not aliases:
                mark = "*" if isinstance(event, yaml.AliasEvent) else "&"
                raise SparkError(
                    f"it has the alias or anchor {mark}{quoted(anchor)[1:-1]} {line}, which is not taken here",
                    where,
                    "Write out what it stands for",
                )
            nodes += isinstance(event, yaml.NodeEvent)
            deep += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if nodes > MAX_NODES or deep > MAX_DEEP or len(getattr(event, "value", "")) > MAX_SCALAR:
                most = f"{MAX_NODES} values, {MAX_DEEP} levels and {MAX_SCALAR} characters of one value"
                raise SparkError(f"it is too large or too deep {line}", where, f"It may have {most}")
    except (yaml.YAMLError, *DAMAGE) as exc:
        raise SparkError(f"it is no valid YAML ({' '.join(str(exc).split())})", where, "Correct it") from exc


def _endless(value: Any, place: str = "") -> Iterator[str]:
    """Where a number is that overflows what is computed of it, or that Python does not even print."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _endless(key, place)
            yield from _endless(inner, f"{place}.{key}" if isinstance(key, str) else place)
    elif isinstance(value, (list, tuple, set)):
        for inner in value:
            yield from _endless(inner, place)
    elif isinstance(value, (int, float)) and not -LARGEST <= value <= LARGEST:  # nor NaN
        yield place


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def check(document: Mapping[Any, Any], kinds: Mapping[str, type], where: str) -> None:
    """What is there of these keys has to be of this type."""
    for name, kind in kinds.items():
        value = document.get(name)
        if value is not None and not isinstance(value, kind):
            # What stands where a mapping should be may be anything, secrets too.
            told = _WORDS.get(type(value), "something else") if kind is dict else quoted(value)
            raise SparkError(f"its {name} is {told}, expected {_WORDS[kind]}", where, "Correct it")


_WORDS = {str: "a text", int: "a whole number", dict: "a mapping", list: "a list"}
