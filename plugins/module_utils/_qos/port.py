# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Brings the interfaces of one node to QoS settings, all of them or none: read, compare, set the difference, read back.

The module ``mlnx_qos`` and ``sparkmatrix-node qos-apply`` both come here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Union

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import sysfs
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Diff, Flag, Interface, Word, Words
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._qos import dcb
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._qos import state as qos_state

POLL_S = 0.2


@dataclass
class Change:
    """What happens to one interface. True at any time, also after a failure."""

    before: qos_state.QosState
    goal: qos_state.QosState
    state: qos_state.QosState  # in check mode the goal
    applied: list[str] = field(default_factory=list)
    commands: list[list[str]] = field(default_factory=list)
    bounced: bool = False  # a change of the PFC mask takes the link down and up
    carrier: bool = False


@dataclass
class Port:
    """A :class:`Change` as the module returns it."""

    applied: list[Word]
    commands: list[list[Words]]
    link_bounced: Flag
    carrier: Flag
    state: qos_state.QosState


@dataclass
class Problem:
    device: Words
    found: Words
    remedy: Words


@dataclass
class Qos:
    """What the module ``mlnx_qos`` returns. ``differs``: the same as ``changed``, which a task may override."""

    changed: Flag
    differs: Flag
    interfaces: Mapping[Interface, Port]
    link_bounced: Flag
    problems: list[Problem]
    engines: list[Words]  # signs of a running engine, looked for in check mode
    diff: Diff = field(default_factory=list)

    @property
    def bouncing(self) -> list[str]:
        return [netdev for netdev, port in self.interfaces.items() if port.link_bounced]


@dataclass
class Outcome:
    """What was done on the node, or in check mode would be."""

    interfaces: dict[str, Change] = field(default_factory=dict)
    problems: list[SparkError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    kept: bool = False  # files, units or the record changed
    diff: list[dict[str, Any]] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        return self.kept or any(change.commands or change.state != change.before for change in self.interfaces.values())

    def answer(self, engines: list[str]) -> Qos:
        shown = [
            {"before_header": name, "after_header": name, "before": change.before.for_diff(), "after": after}
            for name, change in self.interfaces.items()
            if (after := change.state.for_diff()) != change.before.for_diff()
        ]
        return Qos(
            self.changed,
            self.changed,
            {
                name: Port(change.applied, change.commands, change.bounced, change.carrier, change.state)
                for name, change in self.interfaces.items()
            },
            any(change.bounced for change in self.interfaces.values()),
            [Problem(exc.where, exc.found, exc.remedy) for exc in self.problems],
            engines,
            shown + self.diff,
        )


# By interface: what a user asks for, or what it had before.
Goals = Mapping[str, Union[qos_state.Wanted, qos_state.QosState]]


def read(machine: Machine, interface: str) -> qos_state.QosState:
    return dcb.read([machine.runner(argv) for argv in dcb.show(interface)], interface)


def look(machine: Machine, goals: Goals, outcome: Outcome, *, allow_lldpad: bool = False) -> None:
    """Read every interface and work out what has to change on it. What stands in the way is in ``problems``."""
    for name, want in goals.items():
        try:
            require_interface(machine, name)
            state = read(machine, name)
            outcome.interfaces[name] = change = Change(state, state, state, carrier=carrier(machine, name))
            goal = want if isinstance(want, qos_state.QosState) else qos_state.target(state, want, name)
            names = qos_state.changes(state, goal)
            outcome.warnings += _owners(machine, name, state, bool(names), allow_lldpad)
            change.applied, change.bounced, change.goal, change.state = names, "pfc" in names, goal, goal
            change.commands = [list(step.argv) for step in dcb.steps(name, state, goal)]
        except SparkError as exc:
            outcome.problems.append(exc)


def refuse(outcome: Outcome, *, check_mode: bool) -> None:
    """Raise one error with the text of all problems, if there are any."""
    if outcome.problems and not check_mode:
        outcome.interfaces = {name: _untouched(change) for name, change in outcome.interfaces.items()}
    if len(outcome.problems) == 1:
        raise outcome.problems[0]
    if outcome.problems:
        raise SparkError("\n".join(str(problem) for problem in outcome.problems))


def bring(machine: Machine, outcome: Outcome) -> None:
    """Make the changes of :func:`look`. After a failure every interface gets back what it had before this run."""
    due = [name for name, change in outcome.interfaces.items() if change.commands]
    for name in due:
        outcome.interfaces[name] = _untouched(outcome.interfaces[name])
    for index, name in enumerate(due):
        try:
            _set(machine, name, outcome.interfaces[name])
        except SparkError as exc:
            left = [other for other in due[: index + 1] if not _take_back(machine, other, outcome.interfaces[other])]
            done = f"not taken back on {', '.join(left)}" if left else "taken back on every interface of this node"
            raise SparkError(f"{exc.found}. The change was {done}", exc.where, exc.remedy) from exc


def ensure(machine: Machine, goals: Goals, outcome: Outcome, *, check_mode: bool, allow_lldpad: bool = False) -> None:
    """Look at all interfaces, refuse when one of them cannot be changed, then change."""
    look(machine, goals, outcome, allow_lldpad=allow_lldpad)
    refuse(outcome, check_mode=check_mode)
    if not check_mode:
        bring(machine, outcome)


def _untouched(change: Change) -> Change:
    return Change(change.before, change.goal, change.before, carrier=change.carrier)


def _set(machine: Machine, name: str, change: Change) -> None:
    for step in dcb.steps(name, change.before, change.goal):
        done = machine.runner(step.argv)
        if done.rc != 0:
            raise SparkError(f"{' '.join(step.argv)} failed: {dcb.complaint(done)}", name, "Correct it and run again")
        change.commands.append(list(step.argv))
        change.applied += [setting for setting in step.settings if setting not in change.applied]
        change.bounced = change.bounced or "pfc" in step.settings
    change.state = read(machine, name)
    if qos_state.changes(change.state, change.goal):
        raise SparkError(
            f"the NIC did not take over all settings: {qos_state.mismatch(change.state, change.goal)}",
            name,
            "See dmesg for the driver's reason",
        )


def _take_back(machine: Machine, name: str, change: Change) -> bool:
    with contextlib.suppress(SparkError):
        change.state = read(machine, name)
        if qos_state.changes(change.state, change.before):
            back = Change(change.state, change.before, change.state)
            _set(machine, name, back)
            change.state = back.state
            change.commands += back.commands
        change.applied = []
        return True
    return False


def require_interface(machine: Machine, name: str) -> None:
    netdevs = machine.sysfs / "class/net"
    if not sysfs.exists(netdevs / name):
        present = ", ".join(sysfs.names(netdevs) or []) or "none"
        raise SparkError(
            f"there is no such interface; present are: {present}",
            name,
            "Correct the option interfaces. Without a cable a Spark removes its ConnectX interfaces",
        )


def lldpad_runs(machine: Machine) -> bool:
    return any(machine.text(f"/proc/{name}/comm") == "lldpad" for name in machine.names("/proc") if name.isdigit())


def _owners(machine: Machine, name: str, state: qos_state.QosState, must_change: bool, allow_lldpad: bool) -> list[str]:
    """Warnings about others who own the settings; refuses when something must change."""
    warnings: list[str] = []
    if state.dcbx == "firmware":
        found = "DCBX is firmware controlled, so the switch decides about these settings"
        if must_change:
            remedy = f"Make the change on the switch, or take over with: dcb dcbx set dev {name} host ieee"
            raise SparkError(found, name, remedy)
        warnings.append(f"{name}: {found}")
    if lldpad_runs(machine):
        found = "lldpad is running and may overwrite these settings"
        if must_change and not allow_lldpad:
            raise SparkError(found, name, "Stop it (systemctl disable --now lldpad) or set allow_lldpad: true")
        warnings.append(f"{name}: {found}")
    return warnings


def carrier(machine: Machine, interface: str) -> bool:
    return sysfs.read_int(machine.sysfs / "class/net" / interface / "carrier") == 1


def wait_for_carrier(machine: Machine, outcome: Outcome, timeout_s: float) -> None:
    """Note the carrier of each interface as soon as all have it, at the latest after ``timeout_s``."""
    deadline = machine.clock() + timeout_s
    while True:
        for name, change in outcome.interfaces.items():
            change.carrier = carrier(machine, name)
        if all(change.carrier for change in outcome.interfaces.values()) or machine.clock() >= deadline:
            return
        machine.sleep(POLL_S)
