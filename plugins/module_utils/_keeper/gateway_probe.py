# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The keeper's probe, the way that users go: through the gateway where one leads to this engine.

A gateway that fails says nothing about the ranks. So what does not come through it is asked of the engine itself, and
only that answer counts; the gateway is named. It is not started here: systemd does that for as long as it takes
(``Restart=always``), and a gateway that systemd leaves stopped was stopped by somebody. What systemd does not see is a
gateway that runs and is frozen: that one is killed here, and systemd starts it again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import probe as engine_probe
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.probe import (
    Answer,
    ProbeError,
    Question,
    Target,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import status as gateway_status
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.names import (
    DESCRIPTION,
    RELAY_CONFIG,
    RELAY_UNIT,
    UNIT,
)

# So long no answer and no processor time at all: a gateway that is only busy, or waits for the processor, uses some.
FROZEN_S = 30.0
# More than these would not help; then it is only named.
KILLS = 3
WITHIN_S = 3600.0


@dataclass
class Silence:
    """A gateway that gives no answer: for how long, and how often it was killed for that."""

    since: float | None = None
    spent: str = ""
    kills: list[float] = field(default_factory=list)

    def ended(self) -> None:
        self.since = None

    def frozen(self, now: float, spent: str) -> bool:
        """``spent``: the processor time of all its processes; where systemd does not count it, nothing is known."""
        if self.since is None or spent != self.spent or not spent.isdigit():
            self.since, self.spent = now, spent
            return False
        return now - self.since >= FROZEN_S

    def may_kill(self, now: float) -> bool:
        self.kills = [at for at in self.kills if now - at < WITHIN_S]
        return len(self.kills) < KILLS

    def killed(self, now: float) -> None:
        self.kills.append(now)
        self.since = None


@dataclass(frozen=True)
class Gateway:
    """``path``: its description, which is there while a gateway is. The callables are replaced by tests."""

    model: str
    path: str = DESCRIPTION
    machine: Machine = field(default_factory=Machine)
    ask: Callable[[Target, Question], Answer] = engine_probe.ask
    awake: Callable[[], str] = gateway_status.configuration
    relay: Callable[[], bool] = lambda: not Path(RELAY_CONFIG).exists() or gateway_status.relay() is not None
    task: str = "generate"
    # Told when it is killed: the reason.
    note: Callable[[str], object] = lambda _reason: None
    silence: Silence = field(default_factory=Silence)

    def probe(self, engine: Callable[[], Target], question: Question) -> str:
        """One answer. What is wrong with the gateway, or nothing; what is wrong with the engine is raised."""
        problem = ""
        try:
            target = self._target()
            if target is not None:
                self.ask(target, question)
                return ""
        except SparkError as exc:
            if isinstance(exc, ProbeError) and exc.kind == "timeout":
                raise  # The gateway has just answered for itself: it waits for the engine.
            problem = str(exc)
        self.ask(engine(), question)
        return problem

    @property
    def leads(self) -> bool:
        """To this engine. Raises :class:`SparkError` where its description cannot be read."""
        if not Path(self.path).exists():
            return False
        config = engine_probe.read_config(self.path)
        return self.model in (config.models or (config.model,))

    def _target(self) -> Target | None:
        """None where no gateway leads to this engine."""
        if not self.leads:
            return None
        config = engine_probe.read_config(self.path)
        state = self.machine.unit(UNIT)
        if not state.running:
            found = f"it is {state.active} ({state.sub})"
            raise SparkError(found, UNIT, f"Start it: systemctl start {UNIT}")
        if not self.awake():
            raise self._silent()
        self.silence.ended()
        # Its socket takes whoever comes also while it is down: that wait would say nothing about the engine.
        if not self.relay():
            raise SparkError(
                "its relay does not answer",
                RELAY_UNIT,
                f"systemd starts it again; journalctl -u {RELAY_UNIT} says why it ended",
            )
        return replace(engine_probe.target_of(config), model=self.model, task=self.task)

    def _silent(self) -> SparkError:
        """What is said of a gateway that gives no answer; a frozen one is killed."""
        now, remedy = self.machine.clock(), f"Restart it: systemctl restart {UNIT}"
        used = self.machine.unit(UNIT).cpu_ns
        if not self.silence.frozen(now, used):
            return SparkError("it does not answer", UNIT, remedy)
        found = f"it is frozen: no answer and no processor time for {FROZEN_S:.0f} s"
        if not self.silence.may_kill(now):
            return SparkError(f"{found}; killed {KILLS} times within the hour, it froze again", UNIT, remedy)
        self.silence.killed(now)
        done = self.machine.runner(["systemctl", "kill", "--signal=KILL", UNIT])
        if done.rc != 0:
            return SparkError(f"{found}; it could not be killed: {done.complaint}", UNIT, remedy)
        self.note(f"{found}. Killed; systemd starts it again")
        return SparkError(f"{found}; killed, systemd starts it again", UNIT, "")
