# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""How fast an engine reads the weights, and what that takes."""

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import loaders
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds import base as kinds_base
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.registry import ENGINES

GB = 10**9


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_engines_know_the_loaders(engine):
    known = kinds_base.values_of(ENGINES[engine], "", "load-format")
    assert {"runai_streamer", loaders.DIRECT, *loaders.LOADERS} <= set(known)


@pytest.mark.parametrize(
    ("load_format", "ranks", "least", "most"),
    [
        ("instanttensor", 2, 37, 69),  # 176 GB over two machines: 37 to 69 s in three reports
        ("", 2, 290, 540),  # the same by itself: 293 and 507 s
        ("safetensors", 1, 290, 540),
        ("fastsafetensors", 1, 300, 540),
    ],
)
def test_seconds_are_those_of_the_reports(load_format, ranks, least, most):
    assert least < loaders.of(load_format).seconds(176 * GB, ranks) < most


def test_only_what_divides_the_files_gains_by_ranks():
    for name in ("", "pt", "fastsafetensors", "instanttensor"):
        loader = loaders.of(name)
        gain = loader.seconds(GB, 1) / loader.seconds(GB, 2)
        assert gain == (2 if loader.divided else 1) and loader.divided == (name in loaders.LOADERS)
