# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils import _memory_fit as fit
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._parallel import Parallel
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._recipe import Architecture

LLAMA_8B = Architecture(layers=32, attention_heads=32, kv_heads=8, head_dim=128)
QWEN_235B = Architecture(layers=94, attention_heads=64, kv_heads=4, head_dim=128)
MINIMAX = Architecture(layers=62, attention_heads=48, kv_heads=8, head_dim=128)
TINY = Architecture(layers=4, attention_heads=4, kv_heads=2, head_dim=32)
ONE = Parallel(1, 1, "")


@pytest.mark.parametrize(
    ("model", "parallel", "dtype", "gib", "tokens", "tolerance"),
    [
        # vllm issue 12330, 10517 (twice), 21348; spark-vllm-docker issue 396; the tiny model on vLLM's CPU build.
        pytest.param(LLAMA_8B, ONE, "auto", 11.12, 91056, 0.001, id="llama-3-8b"),
        pytest.param(LLAMA_8B, ONE, "auto", 3.81, 31232, 0.002, id="llama-3.1-8b"),
        pytest.param(LLAMA_8B, ONE, "auto", 2.89, 23648, 0.002, id="llama-3.1-8b-less"),
        pytest.param(QWEN_235B, Parallel(4, 1, ""), "auto", 8.11, 178880, 0.03, id="qwen3-235b-tp4"),
        pytest.param(MINIMAX, Parallel(2, 1, ""), "auto", 22.5, 190272, 0.001, id="minimax-tp2"),
        pytest.param(TINY, ONE, "auto", 1, 1048576, 0, id="tiny"),
        pytest.param(TINY, Parallel(2, 1, ""), "auto", 1, 2097152, 0, id="tiny-tp2"),
        pytest.param(TINY, Parallel(1, 2, ""), "auto", 1, 2097152, 0, id="tiny-pp2"),
    ],
)
def test_kv_cache_as_engines_logged_it(model, parallel, dtype, gib, tokens, tolerance):  # noqa: PLR0917
    computed = gib * fit.GIB / fit.kv_per_token(model, parallel, dtype)
    assert computed == pytest.approx(tokens, rel=tolerance or 1e-9)


@pytest.mark.parametrize(
    ("dtype", "size"), [("auto", 2), ("fp8", 1), ("fp8_e4m3", 1), ("nvfp4", 0.5625), ("float16", 2), ("other", 2)]
)
def test_kv_bytes(dtype, size):
    assert fit.kv_bytes(dtype) == size


def test_replicated_kv_heads_cost_a_whole_head():
    assert fit.kv_per_token(QWEN_235B, Parallel(8, 1, "")) == fit.kv_per_token(QWEN_235B, Parallel(4, 1, ""))


@pytest.mark.parametrize(
    ("context", "asked", "expected"), [(32768, 0, 0.80), (65536, 0, 0.80), (65537, 0, 0.75), (131072, 0.82, 0.82)]
)
def test_utilization(context, asked, expected):
    assert fit.utilization(context, asked) == expected


def budget(weights_gb=16.4, context=32768, concurrency=8, total=0):
    load = fit.Load(context, concurrency)
    return fit.fit(LLAMA_8B, ONE, weights_gb, load, share=0.8, total=total)


def test_fits_with_the_numbers_of_gb10():
    made = budget()
    assert made.verdict == "fits"
    assert made.assumed
    assert made.budget == int(fit.GB10_TOTAL * 0.8)
    assert "97.3 GiB of 121.6 GiB (assumed) at 0.80: weights 15.3 + overhead 8.0 + KV cache 32.0 GiB" in made.sentence()


def test_measured_memory_counts():
    made = budget(total=64 * fit.GIB)
    assert not made.assumed
    assert made.verdict == "too large"
    assert "(measured)" in made.sentence()


def test_tight():
    made = budget(concurrency=18)
    assert made.verdict == "tight"
    assert made.max_concurrency == 18


def test_refusal_names_what_would_fit():
    made = budget(context=131072, concurrency=8)
    assert made.verdict == "too large"
    found, remedy = fit.refusal(made, 1)
    assert "does not fit" in found
    assert remedy == f"Set engine_context: {made.max_context} or engine_concurrency: 4, or use more nodes"
    assert fit.fit(LLAMA_8B, ONE, 16.4, fit.Load(made.max_context, 8), share=0.8).verdict == "tight"


def test_refusal_when_not_even_one_request_fits():
    _found, remedy = fit.refusal(budget(weights_gb=90, context=131072, concurrency=1), 1)
    assert "engine_concurrency" not in remedy
    assert "engine_context" in remedy


def test_refusal_when_the_weights_alone_are_too_large():
    _, remedy = fit.refusal(budget(weights_gb=200), 2)
    assert "more than 2 node(s)" in remedy


def test_as_dict():
    assert budget().as_dict()["verdict"] == "fits"
