# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import metrics

METRICS = """# HELP vllm:generation_tokens_total Number
vllm:generation_tokens_total{engine="0"} 100.0
vllm:generation_tokens_total{engine="1"} 47.0
vllm:generation_tokens_total_created 9.0
vllm:num_requests_running{engine="0"} 2.0
"""


def test_tokens_of_all_replicas():
    assert metrics.total(METRICS, metrics.TOKENS) == 147.0
    assert metrics.total(METRICS, metrics.RUNNING) == 2.0
    assert metrics.total(METRICS, metrics.WAITING) is None
    assert metrics.total('vllm:generation_tokens_total{a="b"} NaN\n', metrics.TOKENS) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('vllm:num_requests_running{engine="0"} 2.0\nvllm:num_requests_running{engine="1"} 1.0\n', 3),
        ('sglang:num_running_reqs{model_name="x"} 4\n', 4),
        ("# HELP vllm:num_requests_running Number\nother 1\n", None),
        ("vllm:num_requests_running NaN\n", None),
        ("vllm:num_requests_running many\n", None),
        ("", None),
    ],
)
def test_requests_that_it_works_on(text, expected):
    assert metrics.work(text).running == expected
