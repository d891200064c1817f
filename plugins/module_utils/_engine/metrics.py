# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What an engine says of itself in ``/metrics``: its work."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Optional

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import engine_signs
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Number

TOKENS, RUNNING, WAITING, CACHE = (
    tuple(name for name in names if name)
    for names in zip(*((signs.tokens, signs.running, signs.waiting, signs.cache) for signs in engine_signs.ENGINES))
)


@dataclass(frozen=True)
class Work:
    """Generated tokens since its start, requests, and how full its KV cache is (0 to 1)."""

    tokens: Optional[Number] = None
    running: Optional[Number] = None
    waiting: Optional[Number] = None
    cache: Optional[Number] = None

    @property
    def busy(self) -> bool:
        """Nothing that an engine without counters would tell."""
        return bool((self.running or 0) + (self.waiting or 0))


def work(text: str) -> Work:
    return Work(*(total(text, names) for names in (TOKENS, RUNNING, WAITING, CACHE)))


def total(text: str, names: tuple[str, ...]) -> float | None:
    """Of all ranks and replicas that tell it; None where nobody does."""
    values = []
    for line in text.splitlines():
        if line.startswith(names) and line.partition("{")[0].partition(" ")[0] in names:
            try:
                values.append(float(line.rsplit(maxsplit=1)[-1]))
            except ValueError:
                continue
    return sum(values) if values and all(map(math.isfinite, values)) else None
