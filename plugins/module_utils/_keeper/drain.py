# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Answers that are being written may end, for a while, before an engine is stopped that is to serve again; the gateway
sends nothing new meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import metrics, probe, word
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.engine_json import Description
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.gateway_probe import Gateway

LOOK_S = 0.5  # somebody waits


def drain(
    busy: Callable[[], bool],
    tell: Callable[[], None],
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> None:
    """``tell``: that it is so, as long as it is."""
    until = clock() + word.DRAIN_S
    while busy() and clock() < until:
        tell()
        sleep(LOOK_S)


def busy(config: Description) -> bool:
    """Whether requests run that a gateway has sent."""
    with contextlib.suppress(SparkError):
        return Gateway(config.model).leads and metrics.work(page(config)).busy
    return False


def page(config: Description) -> str:
    """The engine's counters. Most engines show them to everybody."""
    try:
        return probe.metrics(probe.target_of(config))
    except SparkError:
        return probe.metrics(probe.Target(config.host, config.port, config.model))
