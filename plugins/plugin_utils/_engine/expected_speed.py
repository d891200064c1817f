# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""How fast one request is answered, and how long a run takes, roughly: to compare with what happens, no promise.

A token reads the active weights once, from memory of 273 GB/s of which 60 to 65 % is reached, and with tensor parallel
waits for two all-reduces per layer of about 80 microseconds. Fitted to gpt-oss-120b on one and two Sparks (57.5 and 69
tokens/s); published runs of one model differ by a factor of three, so the band is wide.
"""

from __future__ import annotations

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Parallel
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.model import Architecture

BANDWIDTH = 273e9  # bytes/s of GB10's memory
EFFICIENCY = 0.62
ALL_REDUCE_S = 80e-6  # two nodes, over RDMA
BAND = (0.4, 1.4)
# Assumed, not measured on a Spark: the layers of a run, packages of the engine, weights from disk into memory.
LAYERS_MIN, ENVIRONMENT_MIN, LOAD_GB_PER_MIN = 3, 10, 12
GIGABIT_GB_PER_MIN = 7.5


def tokens_per_second(model: Architecture, parallel: Parallel, active_gb: float) -> tuple[float, float] | None:
    """(low, high) for one stream, or nothing where the active weights are not known."""
    if not active_gb:
        return None
    seconds = active_gb * 1e9 / parallel.tensor / (BANDWIDTH * EFFICIENCY)
    if parallel.tensor > 1:
        seconds += 2 * model.layers * ALL_REDUCE_S
    return BAND[0] / seconds, BAND[1] / seconds


def run_minutes(load_gb: float, *, environment: bool) -> float:
    """Of a run without its downloads. ``load_gb``: that the fullest node loads; ``environment``: Python's is made."""
    return LAYERS_MIN + (ENVIRONMENT_MIN if environment else 0) + load_gb / LOAD_GB_PER_MIN
