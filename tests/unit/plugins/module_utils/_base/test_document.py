# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.document import one_of


@dataclass(frozen=True)
class Part:
    name: str


@dataclass(frozen=True)
class Whole:
    number: int
    share: float
    kind: str = field(default="a", metadata=one_of("a", "b"))
    on: bool = False
    parts: tuple[Part, ...] = ()
    ports: Mapping[str, int] = field(default_factory=dict)


GOOD = {"number": 1, "share": 0.5, "kind": "b", "on": True, "parts": [{"name": "x"}], "ports": {"api": 80}}


def test_there_and_back():
    made = document.load(Whole, GOOD)
    assert made == Whole(1, 0.5, "b", True, (Part("x"),), {"api": 80})
    assert document.plain(made) == GOOD
    assert document.load(Whole, {"number": 1, "share": 2}) == Whole(1, 2.0)


class Tagged(str):
    __slots__ = ()


def test_types_of_ansible_become_plain():
    assert type(document.load(Part, {"name": Tagged("x")}).name) is str


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"number": "1"}, "number is '1', expected integer"),
        ({"number": True}, "number is True, expected integer"),
        ({"number": None}, "number is None, expected integer"),
        ({"share": "x"}, "share is 'x', expected number"),
        ({"share": float("nan")}, "share is no number of 64 bits"),
        ({"number": 10**400}, "number is no number of 64 bits"),
        ({"on": 1}, "on is 1, expected boolean"),
        ({"kind": "c"}, "kind is 'c', expected one of 'a', 'b'"),
        ({"parts": "x"}, "parts is 'x', not a list"),
        ({"parts": ["x"]}, r"parts\[0\] is 'x', not a mapping"),
        ({"parts": [{}]}, r"parts\[0\].name is missing"),
        ({"parts": [{"name": "x", "more": 1}]}, r"unknown keys: parts\[0\].more"),
        ({"ports": []}, r"ports is \[\], not a mapping"),
        ({"ports": {"api": "x"}}, "ports.api is 'x', expected integer"),
        ({"other": 1}, "unknown keys: other"),
    ],
)
def test_what_does_not_fit_is_named(change, message):
    with pytest.raises((TypeError, ValueError), match=message):
        document.load(Whole, {**GOOD, **change})
    with pytest.raises(TypeError, match="Whole is 7, not a mapping"):
        document.load(Whole, 7)


def test_schema():
    assert document.schema(Whole) == {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "number": {"type": "integer"},
            "share": {"type": "number"},
            "kind": {"type": "string", "enum": ["a", "b"]},
            "on": {"type": "boolean"},
            "parts": {
                "type": "array",
                "items": {"$ref": "#/$defs/Part"},
            },
            "ports": {"type": "object", "additionalProperties": {"type": "integer"}},
        },
        "required": ["number", "share"],
        "$defs": {
            "Part": {
                "type": "object",
                "additionalProperties": False,
                "properties": {"name": {"type": "string"}},
                "required": ["name"],
            }
        },
    }
