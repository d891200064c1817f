# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The units of all services of this node together: engines, or the keepers that start them.

Which services were here before is known to the node alone: a service that left the inventory is found by its unit file,
or by its process where an earlier run has removed the file.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Diff, Flag, Words
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import engine_json, word
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import names as engine_names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.engine_json import Description
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import Names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import drain
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.store import STOPS, Stop, Store, stamp
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.service import Service, Wanted


@dataclass(frozen=True)
class Request:
    """Units of a ``kind``: a keeper starts ranks, and an engine is a rank. ``absent`` stops them and forgets what the
    keepers have kept; unit files are left to ``managed_files``. ``keep``: units that are left as they are. ``service``:
    the unit of this service alone, which need not be on this node. ``by`` and ``user``: the playbook that stops the
    keepers, and who runs it; ``sparkmatrix status`` names them."""

    kind: str = field(metadata=document.one_of("engine", "keeper"))
    state: str = field(metadata=document.one_of("started", "stopped", "absent"))
    keep: tuple[str, ...] = ()
    service: str = ""
    by: str = ""
    user: str = ""
    return_after: float = 0.0  # seconds after which the node starts what was stopped again; 0: never
    timeout: float = 90.0  # seconds that one unit may take


@dataclass
class Units:
    """``descriptions``: files about the services of the units. ``services``: names of those that this node takes part
    in; one that is alone has none. ``over_ray``: ranks of the service that was stopped are in this node's Ray."""

    changed: Flag = False
    units: list[Words] = field(default_factory=list)
    descriptions: list[Words] = field(default_factory=list)
    services: list[Words] = field(default_factory=list)
    over_ray: Flag = False
    diff: Diff = field(default_factory=list)


def ensure(request: Request, check: bool) -> Units:
    """Find the units of all services that are here, also of those that the inventory no longer names, and bring them
    into a state."""
    ray = request.state == "stopped" and bool(request.service) and over_ray(request.service, Machine())
    made = bring(
        request.kind,
        request.state,
        Machine(),
        keep=request.keep,
        only=request.service,
        timeout_s=request.timeout,
        return_s=request.return_after,
        stop=Stop(stamp(time.time()), request.by, request.user) if request.by else None,
        check_mode=check,
    )
    made.services, made.over_ray = [name for name in engine_names.instances() if name], ray
    return made


def found(kind: str, machine: Machine) -> list[str]:
    """Units of a kind that are installed or loaded."""
    names = set(installed(kind, machine))
    listed = machine.runner(
        ["systemctl", "list-units", "--all", "--plain", "--no-legend", f"sparkmatrix-{kind}*.service"]
    )
    names.update(line.split()[0] for line in listed.out.splitlines() if line.strip())
    return sorted(name for name in names if _kind(name) == kind)


def installed(kind: str, machine: Machine) -> list[str]:
    return [name for name in machine.names(paths.UNITS) if _kind(name) == kind]


def over_ray(only: str, machine: Machine) -> bool:
    """Whether the service ``only`` has ranks in this node's Ray. Raises where its description cannot be read."""
    if only not in engine_names.instances(machine.root):
        return False
    return engine_names.RAY_UNIT in engine_json.read(machine.real(Names(only).description)).units


def _kind(unit: str) -> str:
    match = engine_names.UNIT.fullmatch(unit)
    return match.group(1) if match else ""


def bring(
    kind: str,
    state: str,
    machine: Machine,
    *,
    keep: Sequence[str] = (),
    only: str = "",
    timeout_s: float = 90.0,
    return_s: float = 0.0,
    stop: Stop | None = None,
    check_mode: bool = False,
    service: Callable[..., Service] = Service,
    busy: Callable[[Description], bool] = drain.busy,
) -> Units:
    """All units of ``kind`` but those of ``keep`` into ``state``. A keeper starts at boot, unless it is stopped.

    ``only``: the unit of this service alone. ``stop``: who stops the keepers, for whoever asks why they do not run.
    ``return_s``: the node starts what was stopped again after so many seconds, unless somebody else has.
    """
    made = Units()
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    enabled = None if kind == "engine" or return_s else state == "started"
    for unit in installed(kind, machine) if state == "started" else found(kind, machine):
        instance = engine_names.instance_of(unit)
        if unit in keep or (only and instance != only):
            continue
        wanted = Wanted(unit, state, enabled=enabled, start_timeout_s=timeout_s, return_s=return_s)
        done = service(wanted, machine, check_mode=check_mode).run()
        made.units.append(unit)
        made.descriptions.append(Names(instance).description)
        store, forgets = Store(machine.root, instance), state == "absent" and kind == "keeper"
        if done.changed:
            made.changed = True
            before[unit], after[unit] = done.before, done.after
        if done.changed and not check_mode:
            if stop:
                store.stop(stop)
            if return_s or (stop and stop.by != STOPS):
                _drained(instance, machine, busy)
        if forgets and (store.exists if check_mode else store.forget()):
            made.changed = True
    made.diff = [{"before": before, "after": after}]
    return made


def _drained(instance: str, machine: Machine, busy: Callable[[Description], bool]) -> None:
    """Whoever stops the keeper of this node for a while ends its engine next."""
    with contextlib.suppress(OSError, SparkError):
        config = engine_json.read(machine.real(Names(instance).description))
        drain.drain(
            lambda: busy(config),
            lambda: word.tell(word.DRAINING, instance, machine.root),
            machine.clock,
            machine.sleep,
        )
