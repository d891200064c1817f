# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What else decides a measurement: whether others ask the engine, and how fast the GPU runs under the load."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Optional

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import gpu
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.gpu import Clocks
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Count, Words
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import metrics

EVERY_S = 10.0  # a look at the GPU takes 50 ms of a processor
AGAIN_S = 3.0


def others(look: Callable[[], str], sleep: Callable[[float], None] = time.sleep) -> int | None:
    """Requests of others, who are there for longer than the keeper's own question of one token; None where the engine
    does not tell. ``look`` is its ``/metrics``."""
    found = metrics.work(look()).running
    if found:
        sleep(AGAIN_S)
        found = metrics.work(look()).running
    return None if found is None else int(found)


@dataclass(frozen=True)
class GpuSeen:
    """The lowest clock while it was busy, the highest temperature, and why its clock was held down."""

    mhz: Optional[Count] = None
    celsius: Optional[Count] = None
    slowed: tuple[Words, ...] = ()


class Gpu:
    """Looks at the GPU as long as the block runs."""

    def __init__(self, look: Callable[[], Clocks | None] = lambda: gpu.clocks(Machine()), every_s: float = EVERY_S):
        self._look, self._every_s = look, every_s
        self._seen: list[Clocks] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Gpu:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._end.set()
        self._thread.join(self._every_s)

    def _run(self) -> None:
        while not self._end.wait(self._every_s):
            found = self._look()
            if found is None:
                return
            self._seen.append(found)

    def seen(self) -> GpuSeen:
        busy = [clocks for clocks in self._seen if (clocks.busy or 0) >= gpu.BUSY] or self._seen
        return GpuSeen(
            mhz=min((clocks.mhz for clocks in busy if clocks.mhz), default=None),
            celsius=max((clocks.celsius for clocks in busy if clocks.celsius), default=None),
            slowed=tuple(sorted({why for clocks in busy for why in clocks.slowed})),
        )
