# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The border between a machine and the rest of the cluster: what a node answered is read here, field by field, before
anything else sees it. ``_base.answers`` says what our modules answer.

A shape is a parser of :mod:`_base.strict`, one of the classes below, or a mapping of names to shapes. A field that no
shape names is text for people, numbers, or lists and mappings of such; what a field may be put to is in its shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding, SparkError

Shape = Any  # Callable[[Any], Any] | Mapping[str, Shape] | Maybe | Each | By | Full | Only | Document
REFUSED = "What these machines answered cannot be used:"
REMEDY = "Find out what runs on this machine: our modules never answer like this"
MOST_ENTRIES = 65536  # of a list or mapping
MOST_DEEP = 12
MOST_FINDINGS = 5  # of one machine


@dataclass(frozen=True)
class Maybe:
    """Nothing (null), or this."""

    shape: Shape


@dataclass(frozen=True)
class Each:
    """A list of these, of so many where ``count`` is not 0."""

    shape: Shape
    count: int = 0


@dataclass(frozen=True)
class By:
    """A mapping whose keys the node has chosen."""

    key: Callable[[Any], Any]
    shape: Shape


@dataclass(frozen=True)
class Full:
    """A mapping that has these fields, or those that are ``needed``: what reads it goes by that."""

    fields: Mapping[str, Shape]
    needed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Only:
    """A mapping of which nothing else is taken: the result of a task, to which Ansible adds fields of its own, and
    which has none of ours where the task was skipped."""

    fields: Mapping[str, Shape]
    needed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Document:
    """Something with a reader of its own, which takes value and host and raises :class:`SparkError`."""

    read: Callable[[Any, str], Any]


def ours(value: Any) -> Any:
    """A field of the inventory: the user's own word, whoever's result it travels beside."""
    return value


def read(shape: Shape, value: Any, host: str, findings: list[Finding]) -> Any:
    """The value as it may be used; where it may not, findings name host and field, and the value is of no use."""
    reader = _Reader(host, findings)
    try:
        return reader.read(shape, value, "")
    except _EnoughError:
        return None


class _EnoughError(Exception):
    pass


class _Reader:
    def __init__(self, host: str, findings: list[Finding]) -> None:
        self.host = host
        self.findings = findings
        self.count = 0

    def refuse(self, where: str, found: str) -> None:
        self.add(Finding(self.host, f"{where or 'the answer'} {found}", REMEDY))

    def add(self, finding: Finding) -> None:
        self.findings.append(finding)
        self.count += 1
        if self.count == MOST_FINDINGS:
            raise _EnoughError

    def read(self, shape: Shape, value: Any, where: str) -> Any:
        if callable(shape) and shape is not anything:  # most of what there is
            return self._parsed(shape, value, where)
        if isinstance(shape, Maybe):
            # An empty text: what Ansible's templates make of nothing.
            nothing = value is None or (value == "" and not callable(shape.shape))
            return None if nothing else self.read(shape.shape, value, where)
        if isinstance(shape, Each):
            return self._list(shape.shape, value, where, shape.count)
        if isinstance(shape, By):
            return self._mapping(value, where, shape.key, lambda _key: shape.shape)
        if isinstance(shape, (Full, Only)) and _is_mapping(value):
            needed = shape.needed if isinstance(shape, Only) else shape.needed or shape.fields
            lacking = [name for name in needed if name not in value]
            if lacking:
                return self.refuse(where, f"lacks {', '.join(lacking)}")
        if isinstance(shape, Only):
            known = {name: value[name] for name in shape.fields if name in value} if _is_mapping(value) else value
            return self._mapping(known, where, str, shape.fields.__getitem__)
        if isinstance(shape, Full):
            shape = shape.fields
        if isinstance(shape, Mapping):
            return self._mapping(
                value,
                where,
                lambda key: key if key in shape else strict.words(key),
                lambda key: shape.get(key, anything),
            )
        if shape is anything:
            return self._anything(value, where)
        return self._parsed(lambda document: shape.read(document, self.host), value, where)

    def _parsed(self, parse: Callable[[Any], Any], value: Any, where: str) -> Any:
        try:
            return parse(value)
        except ValueError as exc:
            self.refuse(where, str(exc))
        except SparkError as exc:
            self.add(Finding(self.host, strict.words(exc.found), exc.remedy or REMEDY, where))
        return None

    def _list(self, shape: Shape, value: Any, where: str, count: int = 0) -> Any:
        if not isinstance(value, (list, tuple)):
            return self.refuse(where, f"is {strict.quoted(value)}, expected a list")
        if count not in (0, len(value)):
            return self.refuse(where, f"has {len(value)} entries, expected {count}")
        if len(value) > MOST_ENTRIES:
            return self.refuse(where, f"has {len(value)} entries, expected {MOST_ENTRIES} at most")
        return [self.read(shape, item, f"{where}[{number}]") for number, item in enumerate(value)]

    def _mapping(self, value: Any, where: str, key: Callable[[Any], Any], shape_of: Callable[[str], Shape]) -> Any:
        if not _is_mapping(value):
            return self.refuse(where, f"is {strict.quoted(value)}, expected a mapping")
        if len(value) > MOST_ENTRIES:
            return self.refuse(where, f"has {len(value)} entries, expected {MOST_ENTRIES} at most")
        found = {}
        for name, item in value.items():
            try:
                known = key(name)
            except ValueError as exc:
                self.refuse(where, f"has a key that {exc}")
                continue
            found[known] = self.read(shape_of(known), item, f"{where}.{known}" if where else str(known))
        return found

    def _anything(self, value: Any, where: str) -> Any:
        """A field that no shape names."""
        if where.count(".") + where.count("[") > MOST_DEEP:
            return self.refuse(where, "is too deep")
        if _is_mapping(value):
            return self._mapping(value, where, strict.words, lambda _key: anything)
        if isinstance(value, (list, tuple)):
            return self._list(anything, value, where)
        if value is None or isinstance(value, bool):
            return value
        return self.read(strict.words if isinstance(value, str) else strict.number, value, where)


def anything(value: Any) -> Any:
    """The shape of what no shape names; the reader knows it."""
    return value


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)
