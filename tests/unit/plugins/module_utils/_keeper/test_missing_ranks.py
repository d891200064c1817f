# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.report import Report, UnitReport
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.decide import Gone, Member
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.missing_ranks import Watched

RAY = "sparkmatrix-ray.service"


def member(*ranks, host="spark2", seen=True, active="active", **unit):
    names = {rank: f"rank {rank}" for rank in ranks}
    found = UnitReport(**{"active": active, "invocation": "one", "looked": True, "ranks": names, **unit})
    return Member(host, seen, Report({RAY: found}))


@pytest.fixture
def watched():
    return Watched(30.0)


def test_all_there(watched):
    assert watched.see([member("1-5", host="spark1"), member("1-5")], 0.0) == []
    assert watched.see([member("1-5", host="spark1"), member("1-5", "2-6")], 2.0) == []


def test_who_is_missed_first_comes_first(watched):
    watched.see([member("9-1", host="spark1"), member("1-5", "2-6")], 0.0)
    watched.see([member("9-1", host="spark1"), member("1-5")], 2.0)
    watched.see([member(host="spark1"), member("1-5")], 4.0)
    assert watched.see([member(host="spark1"), member("1-5")], 6.0) == [
        Gone("spark2", f"rank 2-6 ({RAY})", 2.0),
        Gone("spark1", f"rank 9-1 ({RAY})", 4.0),
    ]
    assert len(watched.see([member("9-1", host="spark1"), member("1-5")], 8.0)) == 1


@pytest.mark.parametrize(
    "says",
    [
        member(seen=False),
        member(active="deactivating"),
        Member("spark2", True, Report({RAY: UnitReport(active="active", invocation="one")})),  # it could not look
        member(invocation="two"),
    ],
)
def test_who_cannot_tell_misses_nobody(watched, says):
    watched.see([member("1-5", "2-6")], 0.0)
    watched.see([member("1-5")], 2.0)
    before = [Gone("spark2", f"rank 2-6 ({RAY})", 2.0)]
    assert watched.see([says], 4.0) == ([] if says.units[RAY].invocation == "two" else before)
    assert watched.see([says], 6.0) == ([] if says.units[RAY].invocation == "two" else before)


def test_what_somebody_begins_later_may_end(watched):
    watched.see([member("1-5")], 0.0)
    watched.see([member("1-5", "8-9")], 30.0)
    assert watched.see([member("1-5")], 40.0) == []
