# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import json_merge
from hypothesis import given
from hypothesis import strategies as st

leaves = st.one_of(st.integers(), st.text(max_size=3), st.booleans())
documents = st.dictionaries(
    st.sampled_from("abc"), st.one_of(leaves, st.dictionaries(st.sampled_from("xyz"), leaves, min_size=1)), max_size=3
)
keys = st.dictionaries(st.sampled_from(["a", "d", "a.x", "b.y", "d.x", "e.x"]), st.integers(), max_size=4)


def independent(wanted):
    """No key that is also the parent of another one."""
    return not any(other.startswith(f"{key}.") for key in wanted for other in wanted)


@given(documents, keys.filter(independent))
def test_there_and_back(document, wanted):
    result, added, others = json_merge.add(document, wanted)
    assert set(added) | set(others) <= set(wanted)
    assert json_merge.take(result, added) == document
    assert json_merge.add(result, added)[0] == result


def test_nothing_is_overwritten():
    result, added, others = json_merge.add({"a": {"x": 1}, "b": 2}, {"a.x": 3, "a.y": 4, "b.x": 5, "b": 2})
    assert (result, added, others) == ({"a": {"x": 1, "y": 4}, "b": 2}, {"a.y": 4}, {"a.x": 1, "b.x": 2})


def test_what_somebody_changed_stays():
    assert json_merge.take({"a": {"x": 2, "y": 1}}, {"a.x": 1, "a.y": 1, "b.c": 1}) == {"a": {"x": 2}}


@pytest.mark.parametrize("content", [None, b"", b" \n", b"{}"])
def test_empty(content):
    assert json_merge.load(content, "/x") == {}


@pytest.mark.parametrize("content", [b"{", b"[]", b"1", b"\xff"])
def test_refused(content):
    with pytest.raises(SparkError, match="/x: this is"):
        json_merge.load(content, "/x")


def test_dump():
    assert json.loads(json_merge.dump({"a": 1})) == {"a": 1}
