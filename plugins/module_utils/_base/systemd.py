# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What systemd knows of units: the one reader of ``systemctl show`` (properties: org.freedesktop.systemd1(5))."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Runner
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError

_PROPERTIES = (
    "LoadState",
    "LoadError",
    "ActiveState",
    "SubState",
    "UnitFileState",
    "MainPID",
    "NeedDaemonReload",
    "Result",
    "ExecMainCode",
    "ExecMainStatus",
    "StatusText",
    "NRestarts",
    "InvocationID",
    "ConditionResult",
    "Job",
    "ControlGroup",
    "Slice",
    "Accept",
    "Listen",
    "CPUUsageNSec",
)


@dataclass(frozen=True)
class Unit:
    """One reading of a unit. The defaults are those of a unit that does not exist."""

    name: str = ""
    load: str = "not-found"  # loaded, not-found, masked, bad-setting, error
    load_error: str = ""
    active: str = "inactive"  # active, reloading, refreshing, inactive, failed, activating, deactivating
    sub: str = "dead"
    enabled: str = ""  # UnitFileState: enabled, disabled, static, masked, ... or empty
    main_pid: int = 0
    needs_reload: bool = False
    result: str = "success"
    exit_code: int = 0  # CLD_* of waitid(2): 1 exited, 2 killed, 3 dumped core
    exit_status: int = 0  # exit status, or the signal
    status_text: str = ""
    restarts: int = 0
    invocation: str = ""
    condition: bool = True
    job: bool = False
    cgroup: str = ""  # empty while it does not run
    slice: str = ""
    accept: bool = False  # of a socket: one process per connection
    listen: tuple[str, ...] = ()  # of a socket: "[::]:22 (Stream)"
    cpu_ns: str = ""  # processor time used; not a number where it is not accounted
    running_hash: str | None = None  # of the process; read by _managed.service only

    @property
    def exists(self) -> bool:
        return self.load not in ("not-found", "masked")

    @property
    def running(self) -> bool:
        return self.active in ("active", "reloading", "refreshing")

    @property
    def starting(self) -> bool:
        return self.active == "activating"

    @property
    def alive(self) -> bool:
        return self.running or self.starting

    @property
    def stopped(self) -> bool:
        return self.active in ("inactive", "failed")

    @property
    def is_enabled(self) -> bool:
        return self.enabled == "enabled"


def units(runner: Runner, names: Sequence[str]) -> dict[str, Unit]:
    """``{name: unit}`` in the order of ``names``; a unit that does not exist is there too."""
    if not names:
        return {}
    blocks = _show(runner, _PROPERTIES, names)
    if len(blocks) != len(names):
        raise SparkError(f"systemctl show reported {len(blocks)} of {len(names)} units", " ".join(names))
    return {name: _unit(name, block) for name, block in zip(names, blocks)}


def unit(runner: Runner, name: str) -> Unit:
    return units(runner, [name])[name]


def manager(runner: Runner, properties: Sequence[str]) -> dict[str, str]:
    """Properties of systemd itself."""
    return {name: values[-1] for block in _show(runner, properties) for name, values in block.items()}


def _show(runner: Runner, properties: Sequence[str], names: Sequence[str] = ()) -> list[dict[str, list[str]]]:
    done = runner(["systemctl", "show", f"--property={','.join(properties)}", *(["--", *names] if names else [])])
    if done.rc != 0:
        where = " ".join(names) or "systemd"
        raise SparkError(
            f"systemctl show failed ({done.complaint})", where, "systemd has to be the init system of this machine"
        )
    return parse(done.out)


def parse(text: str) -> list[dict[str, list[str]]]:
    """A block of ``Name=value`` lines for each unit, blank lines between them; a name may come several times."""
    found = []
    for block in re.split(r"\n\s*\n", text.strip()):
        values: dict[str, list[str]] = {}
        for line in block.splitlines():
            name, separator, value = line.partition("=")
            if separator:
                values.setdefault(name, []).append(value)
        found.append(values)
    return found


def _unit(name: str, block: Mapping[str, Sequence[str]]) -> Unit:
    """Missing properties are harmless: each type of unit has its own."""
    values = {key: texts[-1] for key, texts in block.items()}
    return Unit(
        name=name,
        load=values.get("LoadState") or "not-found",
        load_error=values.get("LoadError", ""),
        active=values.get("ActiveState") or "inactive",
        sub=values.get("SubState") or "dead",
        enabled=values.get("UnitFileState", ""),
        main_pid=_number(values.get("MainPID")),
        needs_reload=values.get("NeedDaemonReload") == "yes",
        result=values.get("Result") or "success",
        exit_code=_number(values.get("ExecMainCode")),
        exit_status=_number(values.get("ExecMainStatus")),
        status_text=values.get("StatusText", ""),
        restarts=_number(values.get("NRestarts")),
        invocation=values.get("InvocationID", ""),
        condition=values.get("ConditionResult") != "no",
        job=_number(values.get("Job")) > 0,
        cgroup=values.get("ControlGroup", ""),
        slice=values.get("Slice", ""),
        accept=values.get("Accept") == "yes",
        listen=tuple(text for text in block.get("Listen", ()) if text),
        cpu_ns=values.get("CPUUsageNSec", ""),
    )


def _number(text: str | None) -> int:
    return strict.digits(text) or 0


def notify(text: str, environment: Mapping[str, str] | None = None) -> None:
    """Tell systemd (sd_notify(3)). What was started by hand has nobody to tell."""
    place = (os.environ if environment is None else environment).get("NOTIFY_SOCKET", "")
    if not place:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as way:
        way.connect(f"\0{place[1:]}" if place.startswith("@") else place)
        way.sendall(text.encode())
