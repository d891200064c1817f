# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import Gone, Member
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper_gone import Watched

RAY = "sparkmatrix-ray.service"


def member(*ranks, host="spark2", seen=True, active="active", **unit):
    found = {"active": active, "ranks": {one: f"rank {one}" for one in ranks}, **unit}
    return Member(host, seen, {"units": {RAY: found}})


def test_all_there():
    watched = Watched()
    assert watched.see([member("1-5", host="spark1"), member("1-5")], 0.0) == []
    assert watched.see([member("1-5", host="spark1"), member("1-5", "2-6")], 2.0) == []


def test_who_is_missed_first_comes_first():
    watched = Watched()
    watched.see([member("9-1", host="spark1"), member("1-5", "2-6")], 0.0)
    watched.see([member("9-1", host="spark1"), member("1-5")], 2.0)
    watched.see([member(host="spark1"), member("1-5")], 4.0)
    assert watched.see([member(host="spark1"), member("1-5")], 6.0) == [
        Gone("spark2", f"rank 2-6 ({RAY})", 2.0),
        Gone("spark1", f"rank 9-1 ({RAY})", 4.0),
    ]


def test_who_says_nothing_misses_nobody():
    watched = Watched()
    watched.see([member("1-5")], 0.0)
    assert watched.see([member(seen=False)], 2.0) == []
    assert watched.see([member(active="deactivating")], 4.0) == []
    assert watched.see([Member("spark2", True, {"units": {RAY: {"active": "active"}}})], 6.0) == []
