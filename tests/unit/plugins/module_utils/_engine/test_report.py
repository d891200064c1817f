# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import report as r
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
        ({"more": 1}, "unknown keys: more"),
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


def test_no_control_characters_reach_the_journal() -> None:
    found = r.parse(json.dumps(document(units={UNIT: {"active": "failed", "why": "\x1b[31mred\r\nnext"}})))
    assert found.units[UNIT].why == "?[31mred?\nnext"
