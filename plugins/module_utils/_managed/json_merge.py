# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Add keys to somebody else's JSON file, and take exactly these away again.

Keys are paths with dots: ``log-opts.max-size``. What is there already is never overwritten, so taking away our keys
gives back what everybody else wants, whatever they changed in the meantime.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text

Document = dict[str, Any]


def load(content: bytes | None, path: str) -> Document:
    """The object in a file; nothing, and an empty file, are an empty one."""
    if content is None or not content.strip():
        return {}
    return json_text.mapping(content, path, "Repair the file; its service cannot read it either")


def dump(document: Document) -> bytes:
    return (json.dumps(document, indent=4) + "\n").encode()


def add(document: Document, keys: Mapping[str, Any]) -> tuple[Document, dict[str, Any], dict[str, Any]]:
    """Return (document with the keys, what was added, what somebody else has set otherwise)."""
    result = copy.deepcopy(document)
    added: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for key, value in keys.items():
        *parents, last = key.split(".")
        place: Any = result
        for parent in parents:
            if isinstance(place, dict):
                place = place.setdefault(parent, {})
        if not isinstance(place, dict):
            others[key] = place
        elif last not in place:
            place[last] = value
            added[key] = value
        elif place[last] != value:
            others[key] = place[last]
    return result, added, others


def take(document: Document, added: Mapping[str, Any]) -> Document:
    """Undo :func:`add`: remove what still has the value that we gave it, and the objects that become empty by that."""
    result = copy.deepcopy(document)
    for key, value in added.items():
        _take(result, key.split("."), value)
    return result


def _take(place: Any, words: list[str], value: Any) -> None:
    if not isinstance(place, dict) or words[0] not in place:
        return
    if len(words) == 1:
        if place[words[0]] == value:
            del place[words[0]]
        return
    child = place[words[0]]
    _take(child, words[1:], value)
    if child == {}:
        del place[words[0]]
