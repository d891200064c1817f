# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The ranks of this node: report, start, stop. Run by the keeper on the head, and over ssh on the other nodes.

Which units they are, and in which order they start, is in ``/etc/sparkmatrix/engine.json`` of the node (of several
services: of the one that spans nodes); whoever asks can name none.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text, meminfo, paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.systemd import Unit
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import engine_json, rank_processes, taken
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import names as engine_names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.causes import explain
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.engine_json import Description
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import Names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.report import Report, Stopped, UnitReport
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.service import Service, Wanted
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._os import memory_watchdog

WATCH_S = 2.0  # between two reports of rank-watch
# A rank that is killed has no request to finish: what it does not end by itself in this time is killed.
KILL_GRACE_S = 1.0
CLIENT_S = 20.0  # for Compose to see that its container is gone, and to remove it
STOP_S = 60.0
LOOK_S = 10.0  # between two looks at the processes of the ranks: they go through all processes of the node


@dataclass(frozen=True)
class Ranks:
    """``units`` in the order in which they start; ``engine`` is the one with the engine itself, or empty."""

    units: tuple[str, ...]
    engine: str = ""
    config_hash: str = ""  # that the engine's unit has to run with
    container: bool = False
    stop_s: float = STOP_S


def config(root: str = "/") -> str:
    """The description of the ranks that peers ask for: of the service that is alone, or of the one that spans nodes.

    There is one of these at most on a node. Where none is found, but one cannot be read, it is that: whoever reads it
    then is told why.
    """
    found = engine_names.instances(root)
    damaged = ""
    for instance in found if "" not in found else ():
        path = Names(instance).description
        try:
            if engine_json.read(f"{root.rstrip('/')}{path}").nodes > 1:
                return path
        except SparkError:
            damaged = damaged or path
    return damaged or paths.ENGINE


def of(told: Description) -> Ranks:
    return Ranks(told.units, told.unit, told.config_hash, told.runtime == "container", told.stop_timeout_s)


class Node:
    """The units of a service on this node."""

    def __init__(self, ranks: Ranks, machine: Machine | None = None) -> None:
        self.ranks = ranks
        self.machine = machine or Machine()
        self.deaths: dict[tuple[str, str], str] = {}
        self.containers: dict[tuple[str, str], str] = {}
        self.looked_at = 0.0
        self.looked_for: dict[str, str] = {}  # unit: invocation
        self.seen: dict[str, rank_processes.Unit] = {}
        self.known: dict[str, dict[str, str]] = {}  # unit: processes of its ranks, those that died too

    def _service(self, unit: str, state: str = "started") -> Service:
        wanted = Wanted(unit, state, start_timeout_s=self.ranks.stop_s + 30 if state == "stopped" else 90.0)
        return Service(wanted, self.machine)

    def report(self) -> Report:
        states = {unit: self._service(unit).read() for unit in self.ranks.units}
        self._look({unit: state.invocation for unit, state in states.items() if state.running})
        return Report(
            units={unit: self._unit(unit, state) for unit, state in states.items()},
            boot=boot_id(self.machine),
            available=meminfo.read(self.machine.root).get("MemAvailable", 0),
            watchdog=self._watchdog(),
        )

    def _unit(self, unit: str, state: Unit) -> UnitReport:
        seen = self.seen.get(unit) if state.running else None
        known = self.known.get(unit) if state.running else None
        return UnitReport(
            active=state.active,
            sub=state.sub,
            invocation=state.invocation,
            result=state.result,
            status=state.exit_status,
            hash=state.running_hash or "",
            wanted=self.ranks.config_hash if unit == self.ranks.engine else "",
            why=self._why(unit, state.invocation) if state.active == "failed" else "",
            counted=seen is not None,
            read=seen.read if seen else 0,
            written=seen.written if seen else 0,
            looked=known is not None,
            ranks={one: name for one, name in (known or {}).items() if rank_processes.alive(one, self.machine.root)},
        )

    def _look(self, running: Mapping[str, str]) -> None:
        """See to the processes of the ranks of each running unit (with its invocation), and what they have moved.

        Nothing is known of the processes of a unit that could not be looked at yet.
        """
        if running != self.looked_for or self.machine.clock() - self.looked_at >= LOOK_S:
            marks = {unit: self._mark(unit, invocation) for unit, invocation in running.items()}
            self.seen = rank_processes.look({unit: mark for unit, mark in marks.items() if mark}, self.machine.root)
            same = {unit: known for unit, known in self.known.items() if self.looked_for.get(unit) == running.get(unit)}
            self.known = {**same, **{unit: {**same.get(unit, {}), **seen.ranks} for unit, seen in self.seen.items()}}
            self.looked_at, self.looked_for = self.machine.clock(), dict(running)

    def _mark(self, unit: str, invocation: str) -> str:
        """What the control group of the unit's processes is called: a container's has its id, asked once per start."""
        if not self.ranks.container:
            return f"/{unit}"
        if (unit, invocation) not in self.containers:
            done = self.machine.runner(["docker", "inspect", "--format", "{{.Id}}", "--", _container(unit)])
            if done.rc != 0 or not done.out.strip():
                return ""
            self.containers = {key: found for key, found in self.containers.items() if key[0] != unit}
            self.containers[unit, invocation] = done.out.strip()
        return self.containers[unit, invocation]

    def _why(self, unit: str, invocation: str) -> str:
        """What its journal says, read once per death."""
        if (unit, invocation) not in self.deaths:
            self.deaths = {(unit, invocation): explain(unit, self.machine.runner, invocation)}
        return self.deaths[unit, invocation]

    def _watchdog(self) -> Stopped:
        try:
            found = json_text.mapping(self.machine.text(memory_watchdog.REASON) or "")
            return Stopped(str(found["time"]), str(found["reason"]))
        except (KeyError, SparkError):
            return Stopped()

    def start(self, *, only: str = "") -> None:
        """Start the units in their order (or ``only`` one); those that run are left alone."""
        for unit in [only] if only else self.ranks.units:
            if unit == self.ranks.engine and self._stopped(unit):
                taken.note([unit], self.machine)
            self._service(unit).run()

    def stop(self) -> None:
        """In the opposite order, with the time that each unit has for ending its requests."""
        for unit in reversed(self.ranks.units):
            service = self._service(unit, "stopped")
            if service.read().load == "loaded":
                service.run()

    def kill(self) -> None:
        """All at once, and by force after a short grace: after a failure there is nothing to finish.

        Of a container the unit's own processes are only Compose's clients, the one that removes the container among
        them. So the container is killed, which may have requests that wait for a rank that is dead; they end with it.
        One whose unit has ended may still run, where whatever ended it has killed that client, too.
        """
        left = [unit for unit in self.ranks.units if not self._stopped(unit)]
        for unit in reversed(left):
            self.machine.runner(["systemctl", "--no-block", "stop", "--", unit])
        left = self._wait(left, KILL_GRACE_S)
        if self.ranks.container:
            self.machine.runner(["docker", "kill", "--", *map(_container, self.ranks.units)])
            left = self._wait(left, CLIENT_S)
        for unit in left:
            self.machine.runner(["systemctl", "kill", "--signal=SIGKILL", "--", unit])
        left = self._wait(left, STOP_S)
        if left:
            raise SparkError(
                "does not stop, not even when killed",
                ", ".join(left),
                "A process that hangs in the kernel needs a reboot of this node",
            )

    def _wait(self, units: Sequence[str], at_most_s: float) -> list[str]:
        """Until they have stopped; those that have not."""
        deadline = self.machine.clock() + at_most_s
        while True:
            left = [unit for unit in units if not self._stopped(unit)]
            if not left or self.machine.clock() > deadline:
                return left
            self.machine.sleep(0.2)

    def _stopped(self, unit: str) -> bool:
        return self.machine.unit(unit).stopped


def _container(unit: str) -> str:
    """Its container's name, which it has from the unit."""
    return unit.partition(".")[0]


def boot_id(machine: Machine) -> str:
    """Another one after each boot, of a container too: the kernel's, and when the first process started (proc(5))."""
    fields = (machine.text("/proc/1/stat") or "").rpartition(")")[2].split()
    started = fields[19] if len(fields) > 19 else ""
    return f"{machine.text('/proc/sys/kernel/random/boot_id') or ''}-{started}"


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def watch(node: Node, rounds: int | None = None, tell: Callable[[str], None] = say) -> None:
    """A report every two seconds, until nobody listens any more (writing fails then)."""
    done = 0
    while rounds is None or done < rounds:
        try:
            said = node.report().text()
        except SparkError as exc:  # the next one may come: systemd is busy, or starts itself anew
            said = str(exc)
        tell(said)
        done += 1
        node.machine.sleep(WATCH_S)


# -- sparkmatrix-node rank --------------------------------------------------------------------------------------------

HELP = "report, start or stop the ranks of this node"
ACTIONS = ("status", "watch", "start", "stop", "kill")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=ACTIONS, help="watch: report every two seconds; kill: stop by force")
    parser.add_argument("--config", default="", help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    try:
        act(Node(of(engine_json.read(arguments.config or config()))), arguments.action)
    except SparkError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    except BrokenPipeError:  # who watched has gone
        return 0
    return 0


def act(node: Node, action: str) -> None:
    if action == "watch":
        watch(node)
    elif action == "status":
        say(node.report().text())
    else:
        {"start": node.start, "stop": node.stop, "kill": node.kill}[action]()
