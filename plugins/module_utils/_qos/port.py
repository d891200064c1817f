# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Brings one interface to the wanted QoS settings: read, compare, apply the difference, read back.

Commands run through a callable, so that this works with ``AnsibleModule.run_command`` as with a table in a test.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import sysfs
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._qos import dcb, mlnx_qos
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._qos import state as qos_state

BACKENDS: dict[str, Any] = {"mlnx_qos": mlnx_qos, "dcb": dcb}  # in the order of preference
PROC = pathlib.Path("/proc")
ROUNDS = 2  # the second one completes what the tool does in two calls (MLNX_OFED: prio2buffer after buffer_size)
Run = Callable[[Sequence[str]], "tuple[int, str, str]"]  # argv to exit code, stdout, stderr


@dataclass
class Outcome:
    """What happened, true at any time, also after a failure."""

    backend: str = ""
    before: qos_state.QosState | None = None
    state: qos_state.QosState | None = None
    applied: list[str] = field(default_factory=list)
    not_applied: list[str] = field(default_factory=list)
    commands: list[list[str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def record(self, step: qos_state.Step) -> None:
        self.commands.append(list(step.argv))
        self.applied += [name for name in step.settings if name not in self.applied]

    def as_result(self) -> dict[str, Any]:
        """The return values of the module."""
        result: dict[str, Any] = {
            "changed": bool(self.commands) or self.state != self.before,
            "applied": self.applied,
            "commands": self.commands,
            "link_bounced": False,
        }
        if self.backend:
            result["backend"] = self.backend
        if self.before is not None and self.state is not None:
            result["state"] = self.state.as_dict()
            result["diff"] = {"before": self.before.for_diff(), "after": self.state.for_diff()}
            result["link_bounced"] = self.before.pfc != self.state.pfc
        if self.not_applied:
            result["not_applied"] = self.not_applied
        return result


@dataclass(frozen=True)
class Port:
    """One interface with the command that reads and sets it."""

    name: str
    backend: str
    tool: str
    run: Run

    @property
    def api(self) -> Any:
        return BACKENDS[self.backend]

    def read(self) -> qos_state.QosState:
        results = [self.run(argv) for argv in self.api.show(self.tool, self.name)]
        state: qos_state.QosState = self.api.read(results, self.name)
        return state

    def steps(self, state: qos_state.QosState, goal: qos_state.QosState) -> list[qos_state.Step]:
        steps: list[qos_state.Step] = self.api.steps(self.tool, self.name, state, goal)
        return steps


def require_interface(name: str) -> None:
    """Refuse a netdev that does not exist: mlnx_qos says the same about it as about an unsupported one."""
    netdevs = sysfs.root() / "class/net"
    if not sysfs.exists(netdevs / name):
        present = ", ".join(sysfs.names(netdevs) or []) or "none"
        raise SparkError(
            f"there is no such interface; present are: {present}",
            name,
            "Correct the option interface. Without a cable a Spark removes its ConnectX interfaces",
        )


def find_port(name: str, backend: str, find_tool: Callable[[str], str | None], run: Run) -> Port:
    """The port with the backend that was asked for, or for ``auto`` the first one that is installed."""
    names = list(BACKENDS) if backend == "auto" else [backend]
    for candidate in names:
        tool = find_tool(candidate)
        if tool:
            return Port(name, candidate, tool, run)
    raise SparkError(
        f"the command {' or '.join(names)} is not installed",
        name,
        "Install nvidia-mlnx-tools (DGX OS) for mlnx_qos, or iproute2 for dcb",
    )


def require_able(port: Port, want: qos_state.Wanted) -> None:
    cannot = ", ".join(name for name in want.names() if name in port.api.CANNOT)
    if cannot:
        raise SparkError(
            f"backend {port.backend} cannot set {cannot}",
            port.name,
            f"Leave out {cannot}, or install mlnx_qos (package nvidia-mlnx-tools on DGX OS) and use it",
        )


def lldpad_runs() -> bool:
    for comm in PROC.glob("[0-9]*/comm"):
        try:
            if comm.read_text(errors="replace").strip() == "lldpad":
                return True
        except OSError:  # the process ended meanwhile
            continue
    return False


def owners(port: Port, state: qos_state.QosState, must_change: bool, allow_lldpad: bool) -> list[str]:
    """Warnings about others who own the settings; refuses when something must change."""
    warnings: list[str] = []
    if state.dcbx == "firmware":
        found = "DCBX is firmware controlled, so the switch decides about these settings"
        if must_change:
            remedy = f"Make the change on the switch, or take over with: mlnx_qos -i {port.name} -d os"
            raise SparkError(found, port.name, remedy)
        warnings.append(f"{port.name}: {found}")
    if state.lldpad or lldpad_runs():
        found = "lldpad is running and may overwrite these settings"
        if must_change and not allow_lldpad:
            raise SparkError(found, port.name, "Stop it (systemctl disable --now lldpad) or set allow_lldpad: true")
        warnings.append(f"{port.name}: {found}")
    return warnings


def apply(port: Port, steps: Sequence[qos_state.Step], outcome: Outcome) -> None:
    """Run the commands one by one. A failure names what is in force and what is not, and reads the state again."""
    for index, step in enumerate(steps):
        rc, out, err = port.run(step.argv)
        if rc == 0:
            outcome.record(step)
            continue
        outcome.not_applied = list(dict.fromkeys(name for later in steps[index:] for name in later.settings))
        with contextlib.suppress(SparkError):  # the failure below matters more
            outcome.state = port.read()
        raise SparkError(
            f"{' '.join(step.argv)} failed: {qos_state.command_error(rc, out, err)}. "
            f"Applied before: {', '.join(outcome.applied) or 'nothing'}; not applied: {', '.join(outcome.not_applied)}",
            port.name,
            "Correct it and run again: what is in force already is not repeated",
        )


def ensure(port: Port, want: qos_state.Wanted, outcome: Outcome, check_mode: bool, allow_lldpad: bool) -> None:
    """Bring ``port`` to ``want``; in check mode only work out what would happen. ``outcome`` is filled on the way."""
    outcome.backend = port.backend
    require_able(port, want)
    state = port.read()
    outcome.before = outcome.state = state
    goal = qos_state.target(state, want, port.name)
    outcome.warnings += owners(port, state, bool(qos_state.changes(state, goal)), allow_lldpad)
    if check_mode:
        for step in port.steps(state, goal):
            outcome.record(step)
        outcome.state = goal
        return
    for _round in range(ROUNDS):
        steps = [step for step in port.steps(state, goal) if list(step.argv) not in outcome.commands]
        if not steps:
            break
        apply(port, steps, outcome)
        outcome.state = state = port.read()
        goal = qos_state.target(state, want, port.name)
    if qos_state.changes(state, goal):
        raise SparkError(
            f"the NIC did not take over all settings: {qos_state.mismatch(state, goal)}",
            port.name,
            "See dmesg for the driver's reason",
        )
