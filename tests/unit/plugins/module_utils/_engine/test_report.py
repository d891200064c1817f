# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import report as r
from hypothesis import given
from hypothesis import strategies as st

UNIT = "sparkmatrix-engine.service"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def document(**changes: Any) -> dict[str, Any]:
    return {**json.loads(r.Report({UNIT: r.UnitReport(active="active", ranks={"1-2": "a"})}).text()), **changes}


def test_what_is_written_is_read() -> None:
    unit = r.UnitReport("failed", "failed", "i", "signal", 9, "h", "w", "a\nb", True, 5, 6, True, {"1-2": "VLLM::"})
    made = r.Report({UNIT: unit}, "boot", 7, r.Stopped("t", "low"))
    assert r.parse(made.text()) == made


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"schema": 2}, "schema 2, this release reads 1"),
        ({"schema": None}, "schema None"),
        ({"units": []}, r"units is \[\], not a mapping"),
        ({"units": {UNIT: {"active": 1}}}, "active is 1, expected string"),
        ({"units": {UNIT: {"status": "9"}}}, "status is '9', expected integer"),
        ({"units": {UNIT: {"ranks": {"1-2": ["x"]}}}}, "expected string"),
        ({"available": True}, "available is True, expected integer"),
        ({"watchdog": None}, "watchdog is None, not a mapping"),
        ({"more": 1}, "unknown keys: more"),
        ({"units": {UNIT: {"read": 10**400}}}, "read is no number of 64 bits"),
        ({"units": {UNIT: {"written": -1}}}, "a number of bytes is below 0"),
        ({"available": -1}, "a number of bytes is below 0"),
    ],
)
def test_what_does_not_fit_is_refused_with_words(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(SparkError, match=says):
        r.parse(json.dumps(document(**changes)))


def test_a_refusal_is_one_short_line() -> None:
    with pytest.raises(SparkError) as refused:
        r.parse(json.dumps(document(**{"a\nb" * 100_000: 1})))
    assert len(str(refused.value)) < 400 and "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, '"' + "x" * r.MOST_CHARACTERS + '"'])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(SparkError, match="is not understood"):
        r.parse(text)


@given(JSON)
def test_anything_is_read_or_refused(value: Any) -> None:
    try:
        assert isinstance(r.parse(json.dumps({**document(), "units": {UNIT: value}})), r.Report)
    except SparkError as exc:
        assert "is not understood" in str(exc)


def test_no_control_characters_reach_the_journal() -> None:
    found = r.parse(json.dumps(document(units={UNIT: {"active": "failed", "why": "\x1b[31mred\r\nnext"}})))
    assert found.units[UNIT].why == "?[31mred?\nnext"
