# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The keeper's probe, the way that users go: through the door where one leads to this engine.

A door that fails says nothing about the ranks. So what does not come through it is asked of the engine itself, and only
that answer counts; the door is named. It is not started here: systemd does that for as long as it takes
(``Restart=always``), and a door that systemd leaves stopped was stopped by somebody.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.sparkmatrix.cluster.plugins.module_utils import _gateway, _gateway_status, _probe
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._command import Runner
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._command import run as run_command
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._probe import Answer, ProbeError, Question, Target


@dataclass(frozen=True)
class Door:
    """``path``: its description, which is there while a door is. The callables are replaced by tests."""

    model: str
    path: str = _gateway.DESCRIPTION
    runner: Runner = run_command
    ask: Callable[[Target, Question], Answer] = _probe.ask
    awake: Callable[[], str] = _gateway_status.configuration
    task: str = "generate"

    def probe(self, engine: Callable[[], Target], question: Question) -> str:
        """One answer. What is wrong with the door, or nothing; what is wrong with the engine is raised."""
        problem = ""
        try:
            target = self._target()
            if target is not None:
                self.ask(target, question)
                return ""
        except SparkError as exc:
            if isinstance(exc, ProbeError) and exc.kind == "timeout":
                raise  # The door has just answered for itself: it waits for the engine.
            problem = str(exc)
        self.ask(engine(), question)
        return problem

    def _target(self) -> Target | None:
        """None where no door leads to this engine."""
        if not Path(self.path).exists():
            return None
        config = _probe.read_config(self.path)
        if self.model not in config.get("models", [config["model"]]):
            return None
        state = _probe.unit_state(_gateway.UNIT, self.runner)
        if not state.running:
            found = f"it is {state.active} ({state.sub})"
            raise SparkError(found, _gateway.UNIT, f"Start it: systemctl start {_gateway.UNIT}")
        if not self.awake():
            raise SparkError("it does not answer", _gateway.UNIT, f"Restart it: systemctl restart {_gateway.UNIT}")
        key = _probe.read_key(config["key_file"])
        return Target(config["host"], config["port"], self.model, key, self.task)
