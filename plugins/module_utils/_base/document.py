# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Documents that are dataclasses: read from plain data with every type checked, written back, and as a JSON schema.

Known kinds of fields: ``str``, ``int``, ``float``, ``bool``, dataclasses, ``tuple[X, ...]``, ``list[X]``,
``Mapping[K, X]``, ``Optional[X]`` and ``Annotated[X, parser]`` with a parser of :mod:`_base.strict`; :mod:`_base.kinds`
has names of them.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError

_SCALARS: dict[Any, tuple[type, ...]] = {str: (str,), int: (int,), float: (int, float), bool: (bool,)}
T = typing.TypeVar("T")
_KINDS: dict[Any, dict[str, Any]] = {}  # types of the fields, by class
_WORDS = {str: "string", int: "integer", float: "number", bool: "boolean"}


def one_of(*allowed: str) -> Mapping[str, Any]:
    """Metadata of a field that holds one of some words."""
    return {"enum": allowed}


LARGEST = 2**63 - 1
TRUE = {**dict.fromkeys(("true", "yes", "on", "1"), True), **dict.fromkeys(("false", "no", "off", "0"), False)}


def load(cls: type[T], values: Any, where: str = "", spoken: bool = False) -> T:
    """An instance of a dataclass; :class:`TypeError` or :class:`ValueError` says what does not fit, and where.

    Nothing may be left over, but of a class with ``PART = True``, which is a part of something larger.
    ``spoken``: as variables of Ansible are, where numbers, truth values and lists may be texts (``-e port=8443``) and
    null is not given.
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"{where or cls.__name__} is {values!r:.60}, not a mapping")
    kinds = _kinds(cls)
    prefix = f"{where}." if where else ""
    unknown = [] if getattr(cls, "PART", False) else sorted(str(name) for name in values if name not in kinds)
    if unknown:
        raise ValueError(f"unknown keys: {', '.join(prefix + name for name in unknown)}")
    made = {}
    for item in fields(typing.cast("Any", cls)):
        if item.name in values and not (spoken and values[item.name] is None and not _is_required(item)):
            made[item.name] = _value(kinds[item.name], values[item.name], prefix + item.name, spoken)
            allowed = item.metadata.get("enum")
            if allowed and made[item.name] not in allowed:
                words = ", ".join(repr(word) for word in allowed)
                raise ValueError(f"{prefix}{item.name} is {made[item.name]!r}, expected one of {words}")
        elif _is_required(item):
            raise ValueError(f"{prefix}{item.name} is missing")
    return cls(**made)


def load_known(cls: type[T], values: Any) -> T:
    """:func:`load` of the fields that the class has, whatever else is there; :class:`ValueError` in any case."""
    if not isinstance(values, Mapping):
        raise ValueError(f"is {values!r:.60}, not a mapping")
    kinds = _kinds(cls)
    try:
        return load(cls, {name: value for name, value in values.items() if name in kinds})
    except TypeError as exc:
        raise ValueError(f"has a field that does not fit: {exc}") from exc


def plain(value: Any) -> Any:
    """What JSON and YAML can write."""
    if is_dataclass(value):
        return {item.name: plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def schema(cls: type[Any]) -> dict[str, Any]:
    """The JSON schema of a dataclass; those in it stand once each, by their names."""
    parts: dict[str, dict[str, Any]] = {}
    made = _schema_of_class(cls, parts)
    return {**made, "$defs": parts} if parts else made


def _schema_of_class(cls: type[Any], parts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    kinds = _kinds(cls)
    properties = {}
    for item in fields(cls):
        properties[item.name] = _schema_of(kinds[item.name], parts)
        if "enum" in item.metadata:
            properties[item.name]["enum"] = list(item.metadata["enum"])
    required = [item.name for item in fields(cls) if _is_required(item)]
    return {"type": "object", "additionalProperties": False, "properties": properties, "required": required}


def _kinds(cls: type[Any]) -> dict[str, Any]:
    if cls not in _KINDS:
        _KINDS[cls] = typing.get_type_hints(cls, include_extras=True)
    return _KINDS[cls]


def _is_required(item: Any) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


def _value(kind: Any, value: Any, where: str, spoken: bool = False) -> Any:
    if isinstance(kind, type) and kind in _SCALARS:  # most are
        return _scalar(kind, value, where, spoken)
    if is_dataclass(kind):
        return load(typing.cast("type[Any]", kind), value, where, spoken)
    arguments = typing.get_args(kind)
    if hasattr(kind, "__metadata__"):  # Annotated
        try:
            return kind.__metadata__[0](_meant(kind.__origin__, value) if spoken else value)
        except ValueError as exc:
            raise ValueError(f"{where} {exc}") from exc
        except SparkError as exc:
            raise ValueError(f"{where}: {exc.found}") from exc
    made = typing.get_origin(kind)
    if made is typing.Union:  # Optional
        nothing = value is None or (spoken and value == "" and arguments[0] is not str)
        return None if nothing else _value(arguments[0], value, where, spoken)
    if made in (tuple, list):
        if spoken and isinstance(value, str):
            value = [word for word in value.split(",") if word]
        if not isinstance(value, (list, tuple)):
            raise TypeError(f"{where} is {value!r:.60}, not a list")
        return made(_value(arguments[0], item, f"{where}[{number}]", spoken) for number, item in enumerate(value))
    if made is Mapping:
        if not isinstance(value, Mapping):
            raise TypeError(f"{where} is {value!r:.60}, not a mapping")
        return {
            _value(arguments[0], key, where): _value(arguments[1], item, f"{where}.{key}", spoken)
            for key, item in value.items()
        }
    return _scalar(kind, value, where, spoken)


def _scalar(kind: Any, value: Any, where: str, spoken: bool) -> Any:
    if spoken:
        value = _meant(kind, value)
    if not isinstance(value, _SCALARS[kind]) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{where} is {value!r:.60}, expected {_WORDS[kind]}")
    if isinstance(value, str) and strict.CONTROLS.search(value):
        raise ValueError(f"{where} has control characters")
    if isinstance(value, (int, float)) and not -LARGEST <= value <= LARGEST:  # nor NaN, which JSON can bring
        raise ValueError(f"{where} is no number of 64 bits")
    return kind(value)  # also where Ansible hands over a type of its own


def _meant(kind: Any, value: Any) -> Any:
    """What a text says where something else is expected, and the text of a number where a text is."""
    if kind is str and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if kind not in (int, float, bool) or not isinstance(value, str):
        return value
    text = value.strip().lower()
    if kind is bool:
        return TRUE.get(text, value)
    try:
        return kind(text)
    except ValueError:
        return value


def _schema_of(kind: Any, parts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    if is_dataclass(kind):
        cls = typing.cast("type[Any]", kind)
        if cls.__name__ not in parts:
            parts[cls.__name__] = _schema_of_class(cls, parts)
        return {"$ref": f"#/$defs/{cls.__name__}"}
    arguments = typing.get_args(kind)
    if hasattr(kind, "__metadata__"):
        return _schema_of(kind.__origin__, parts)
    if typing.get_origin(kind) is typing.Union:
        return {"anyOf": [_schema_of(arguments[0], parts), {"type": "null"}]}
    if typing.get_origin(kind) in (tuple, list):
        return {"type": "array", "items": _schema_of(arguments[0], parts)}
    if typing.get_origin(kind) is Mapping:
        return {"type": "object", "additionalProperties": _schema_of(arguments[1], parts)}
    return {"type": _WORDS[kind]}
