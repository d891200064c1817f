# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""JSON of a file, a tool or another machine: the one way to read it. Whatever is wrong raises :class:`SparkError`."""

from __future__ import annotations

import json
import re
from types import TracebackType
from typing import Any, Callable

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.strict import quoted

MAX_DEEP = 100  # what is read has to be written, copied and compared again, each of which recurses
MAX_SAID = 200  # characters of what does not fit
# What code does with a value of another type or size than it takes for granted.
DAMAGE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
_HALF_PAIR = re.compile(r"[\ud800-\udfff]|\\u[dD][89a-fA-F]")
Hook = Callable[[Any], Any]


def read(text: str | bytes, where: str = "", remedy: str = "", pairs: Hook | None = None) -> Any:
    """Any JSON. ``pairs`` makes an object of its names and values, in place of a mapping."""
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8-sig")
        value = json.loads(text, object_pairs_hook=pairs)
        if _HALF_PAIR.search(text):
            json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair can be written nowhere
        if _too_deep(value):
            raise RecursionError
    except RecursionError as exc:
        raise SparkError(f"this JSON is more than {MAX_DEEP} levels deep", where, remedy) from exc
    except ValueError as exc:
        raise SparkError(f"this is no JSON ({exc})", where, remedy) from exc
    return value


def mapping(text: str | bytes, where: str = "", remedy: str = "", pairs: Hook | None = None) -> dict[str, Any]:
    """A JSON object."""
    value = read(text, where, remedy, pairs)
    if not isinstance(value, dict):
        raise SparkError(f"this is JSON, but no object: {quoted(value)}", where, remedy)
    return value


def mappings(text: str | bytes, where: str = "", remedy: str = "") -> list[dict[str, Any]]:
    """A JSON list of objects."""
    value = read(text, where, remedy)
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise SparkError(f"this is JSON, but no list of objects: {quoted(value)}", where, remedy)
    return value


def entry(value: Any, name: str) -> dict[str, Any]:
    """An object inside of another one; empty where it is missing or something else."""
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def entries(value: Any, name: str) -> list[dict[str, Any]]:
    """The objects of a list inside of an object."""
    found = value.get(name) if isinstance(value, dict) else None
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


class Reading:
    """``with Reading("the record is damaged", path, remedy):`` whatever cannot be read in it is refused with that."""

    def __init__(self, found: str, where: str = "", remedy: str = "") -> None:
        self.found, self.where, self.remedy = found, where, remedy

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: Any, exc: BaseException | None, _trace: TracebackType | None) -> None:
        if isinstance(exc, (*DAMAGE, OSError, SparkError)):
            raise SparkError(f"{self.found} ({_words(exc)})", self.where, self.remedy) from exc


def _words(exc: BaseException) -> str:
    said = str(exc)
    if isinstance(exc, SparkError):
        said = exc.found
    elif isinstance(exc, KeyError):
        said = f"{said} is missing"
    elif isinstance(exc, OSError):
        said = exc.strerror or said
    return " ".join(said.split())[:MAX_SAID] or type(exc).__name__


def _too_deep(value: Any) -> bool:
    level = [value]
    for _deep in range(MAX_DEEP):
        inner = [list(one.values()) if isinstance(one, dict) else one for one in level if isinstance(one, (dict, list))]
        level = [one for several in inner for one in several]
        if not level:
            return False
    return True
