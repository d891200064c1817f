# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""How far a long step is, in the same words for all: ``34.2 of 129 GB, 118 MB/s, 13 min left``."""

from __future__ import annotations

from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Words

MB, GB = 10**6, 10**9


@dataclass(frozen=True)
class Waiting:
    """Of the answer of a call that waits, while it goes on. ``notes``: what happened on the way."""

    words: Words
    notes: tuple[Words, ...] = ()


def words(done: float, total: float, rate: float = 0.0) -> str:
    """Bytes, and bytes per second where they are known."""
    unit, name = (GB, "GB") if total >= GB else (MB, "MB")
    whole = total / unit
    said = f"{min(done, total) / unit:.1f} of {whole:.{0 if whole >= 100 else 1}f} {name}"
    if rate < 1 or done >= total:
        return said
    speed = f"{rate / GB:.1f} GB/s" if rate >= GB else f"{rate / MB:.{0 if rate >= 10 * MB else 1}f} MB/s"
    return f"{said}, {speed}, {_left((total - done) / rate)} left"


def _left(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
