# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What a node reports about its ranks: one JSON object per line, from another machine, so nothing in it is trusted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import printable

SCHEMA_VERSION = 1
MAX_CHARACTERS = 1024 * 1024  # of one line


@dataclass(frozen=True)
class UnitReport:
    active: str = "inactive"
    sub: str = ""
    invocation: str = ""
    result: str = ""
    status: int = 0
    hash: str = ""  # of the configuration that it runs with; empty where it does not run
    wanted: str = ""  # that it has to run with; empty: any
    why: str = ""  # what its journal says about its death
    counted: bool = False  # ``read`` and ``written`` are known
    read: int = 0  # the most that one of its processes has, in bytes
    written: int = 0
    looked: bool = False  # ``ranks`` are known: who asks must not miss any where they are not
    ranks: Mapping[str, str] = field(default_factory=dict)  # name by id


@dataclass(frozen=True)
class Stopped:
    """When and why the memory watchdog stopped something last; empty where it never did."""

    time: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Report:
    units: Mapping[str, UnitReport]
    boot: str = ""
    available: int = 0  # bytes of memory
    watchdog: Stopped = Stopped()
    schema: int = SCHEMA_VERSION

    def text(self) -> str:
        return json.dumps(document.plain(self))


EMPTY = Report({})


def parse(text: str) -> Report:
    """The only reader. Raises :class:`SparkError` with what does not fit."""
    with json_text.Reading(
        "the report of its ranks is not understood", "", "Give all nodes the same release: run the engine layer"
    ):
        if len(text) > MAX_CHARACTERS:
            raise ValueError(f"it has more than {MAX_CHARACTERS} characters")
        values = _printable(json_text.mapping(text))
        if values.get("schema") != SCHEMA_VERSION:
            raise ValueError(f"schema {values.get('schema')!r:.40}, this release reads {SCHEMA_VERSION}")
        report: Report = document.load(Report, values)
        if report.available < 0 or any(min(unit.read, unit.written) < 0 for unit in report.units.values()):
            raise ValueError("a number of bytes is below 0")
    return report


def _printable(value: Any) -> Any:
    """The same without control characters: texts of another node end up in the journal and on terminals."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {_printable(key): _printable(item) for key, item in value.items()}
    return [_printable(item) for item in value] if isinstance(value, list) else value
