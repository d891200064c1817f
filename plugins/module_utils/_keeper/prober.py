# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The keeper's question for a token, asked again and again beside its loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.probe import ProbeError

HASTY_S = 0.5  # between two questions while it loads: a closed port costs nothing
RETRY_S = 5.0  # until the next one, after one that failed
GATEWAY_S = 2 * RETRY_S  # how long the gateway may fail before it is said: it is reloaded now and then


class Prober:
    """In a thread of its own: a request that hangs must not hide a dead rank.

    ``ask`` says what is wrong with the gateway and raises what is wrong with the engine.
    """

    def __init__(
        self, ask: Callable[[], str | None], interval_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.ask = ask
        self.interval_s = interval_s
        self.clock = clock
        self.ok_at: float | None = None
        self.failing_since: float | None = None
        self.kind = ""
        self.problem = ""
        self.blind = ""  # why nobody could ask, which says nothing about the engine
        self.gateway = ""
        self.gateway_since = 0.0
        self.asking_since: float | None = None
        self.hasty = False  # while it loads
        self.paused = True
        self.wake = threading.Event()

    def begin(self) -> None:
        threading.Thread(target=self._loop, name="probe", daemon=True).start()

    def _loop(self) -> None:
        while True:
            if not self.paused:
                self.once()
            calm = self.failing_since is None and not self.gateway and not self.blind
            wait = HASTY_S if self.hasty or self.paused else self.interval_s if calm else RETRY_S
            self.wake.wait(wait)
            self.wake.clear()

    def once(self) -> None:
        began = self.clock()
        self.asking_since = began
        try:
            gateway = self.ask() or ""
        except ProbeError as exc:
            self.kind, self.problem, self.blind = exc.kind, str(exc), ""
            self.failing_since = began if self.failing_since is None else self.failing_since
        except SparkError as exc:
            self.problem = self.blind = str(exc)
        else:
            self.ok_at, self.failing_since, self.kind = self.clock(), None, ""
            self.problem = self.blind = ""
            self.gateway_since = self.gateway_since if self.gateway else began
            self.gateway = gateway
        self.asking_since = None

    def reset(self, *, paused: bool, hasty: bool = False) -> None:
        self.paused, self.hasty = paused, hasty
        self.ok_at = self.failing_since = None
        self.kind = self.problem = self.blind = ""

    @property
    def gateway_problem(self) -> str:
        """What has been wrong with the gateway for longer than a reload of it takes."""
        return self.gateway if self.clock() - self.gateway_since >= GATEWAY_S else ""

    @property
    def silent_since(self) -> float | None:
        """Since when there has been no answer: of failed probes, or of the one under way."""
        return self.asking_since if self.failing_since is None else self.failing_since
