# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pathlib

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules import limits

ROOT = pathlib.Path(__file__).resolve().parents[5]


def test_every_limit_says_whose_it_is_and_how_it_is_set():
    for name, limit in limits.limits().items():
        assert limit.source and limit.owner and limit.kind in ("least", "most"), name
        assert limit.variable == f"verify_limits.{name}"


def test_the_users_number_counts_and_is_his():
    found = limits.limits({"nccl_pair_gbs": 18, "half_good_gbps": "80"})
    assert (found["nccl_pair_gbs"].value, found["nccl_pair_gbs"].owner) == (18, "you")
    assert found["half_good_gbps"].value == 80
    assert found["link_gbps"] == limits.limits()["link_gbps"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"nccl_pair_gb": 18}, "Did you mean nccl_pair_gbs"),
        ({"qwerty": 18}, "Known are half_good_gbps"),
        ({"link_gbps": "fast"}, "link_gbps is 'fast', expected a number"),
        ({"link_gbps": True}, "expected a number"),
        ({"link_gbps": float("nan")}, "expected a number"),
    ],
)
def test_what_is_no_limit_is_refused(settings, said):
    with pytest.raises(SparkError, match=said):
        limits.limits(settings)
