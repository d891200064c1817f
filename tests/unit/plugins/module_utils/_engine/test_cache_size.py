# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The KV cache that an engine has, against the one that was planned."""

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import cache_size

INFO = 'vllm:cache_config_info{{block_size="16",engine="{}",num_cpu_blocks="None",num_gpu_blocks="{}",x="1"}} 1.0\n'


@pytest.mark.parametrize(
    ("metrics", "tokens"),
    [
        ("# TYPE vllm:cache_config_info gauge\n" + INFO.format(0, 1000), 16000),
        (INFO.format(0, 1000) + INFO.format(1, 900), 14400),
        (INFO.format(0, "None"), 0),
        ('sglang:max_total_num_tokens{model_name="a"} 2.5e+05\n', 250000),
        ("", 0),
        ("[]", 0),
    ],
)
def test_what_metrics_say(metrics, tokens):
    assert cache_size.tokens(metrics) == tokens


def test_planned_and_real():
    assert cache_size.judge(INFO.format(0, 1000), 0, "u") is None
    assert cache_size.judge("", 16000, "u") is None
    good = cache_size.judge(INFO.format(0, 1000), 16100, "u")
    assert good.words == "its KV cache holds 16000 tokens, 99 % of the planned 16100"
    assert good.as_dict() == {"tokens": 16000, "planned": 16100, "words": good.words, "warning": ""}
    small = cache_size.judge(INFO.format(0, 250), 16000, "sparkmatrix-engine.service")
    assert "25 % of the planned" in small.warning
    assert "journalctl -u sparkmatrix-engine.service" in small.warning
