# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": [1, null]}', {"a": [1, None]}),
        (b'{"a": "\xc3\xa4"}', {"a": "ä"}),
        (b"\xef\xbb\xbf[]", []),  # with the mark that Windows writes
        ('"\\ud83d\\ude00"', "\U0001f600"),
        ("[" * json_text.MAX_DEEP + "]" * json_text.MAX_DEEP, None),
    ],
)
def test_what_is_read(text: str | bytes, value: Any) -> None:
    read = json_text.read(text)
    assert value is None or read == value


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "this is no JSON (Expecting value"),
        ("{", "this is no JSON (Expecting property name"),
        (b"\xff", "this is no JSON ('utf-8' codec can't decode"),
        ('{"a": ' + "1" * 5000 + "}", "this is no JSON (Exceeds the limit"),
        ("[" * 101 + "]" * 101, "this JSON is more than 100 levels deep"),
        ('{"a":' * 101 + "1" + "}" * 101, "this JSON is more than 100 levels deep"),
        ("[" * 3000, "this JSON is more than 100 levels deep"),
        ('["\\ud800"]', "this is no JSON ('utf-8' codec can't encode"),
        ('["\ud800"]', "this is no JSON ('utf-8' codec can't encode"),
    ],
)
@pytest.mark.parametrize("reader", [json_text.read, json_text.mapping, json_text.mappings])
def test_what_is_refused(reader: Callable[..., Any], text: str | bytes, found: str) -> None:
    with pytest.raises(SparkError) as refused:
        reader(text, "/a/file", "Write it again")
    assert refused.value.found.startswith(found)
    assert (refused.value.where, refused.value.remedy) == ("/a/file", "Write it again")


@pytest.mark.parametrize(
    ("reader", "text", "found"),
    [
        (json_text.mapping, "[1]", "this is JSON, but no object: [1]"),
        (json_text.mapping, '"a\\u001b"', "this is JSON, but no object: 'a\\x1b'"),
        (json_text.mappings, "{}", "this is JSON, but no list of objects: {}"),
        (json_text.mappings, "[{}, 1]", "this is JSON, but no list of objects: [{}, 1]"),
    ],
)
def test_another_type_is_refused(reader: Callable[..., Any], text: str, found: str) -> None:
    with pytest.raises(SparkError) as refused:
        reader(text)
    assert refused.value.found == found


def test_parts_of_another_type_are_empty() -> None:
    value = {"object": {"a": 1}, "list": [{"b": 2}, 3, None], "null": None}
    assert json_text.entry(value, "object") == {"a": 1}
    assert json_text.entries(value, "list") == [{"b": 2}]
    for other in ("list", "null", "nothing"):
        assert json_text.entry(value, other) == {}
    for other in ("object", "null", "nothing"):
        assert json_text.entries(value, other) == []
    assert (json_text.entry([], "a"), json_text.entries(None, "a")) == ({}, [])


@pytest.mark.parametrize(
    ("raised", "why"),
    [
        (KeyError("schema"), "'schema' is missing"),
        (ValueError("of\ntwo  lines"), "of two lines"),
        (ValueError("x" * 1000), "x" * json_text.MAX_SAID),
        (PermissionError(13, "Permission denied"), "Permission denied"),
        (OverflowError(), "OverflowError"),
        (SparkError("this is no JSON", "elsewhere", "Do something else"), "this is no JSON"),
    ],
)
def test_reading_says_what_cannot_be_read(raised: Exception, why: str) -> None:
    with pytest.raises(SparkError) as refused, json_text.Reading("it is damaged", "/a/file", "Delete it"):
        raise raised
    assert (refused.value.found, refused.value.where) == (f"it is damaged ({why})", "/a/file")
    assert refused.value.remedy == "Delete it"
