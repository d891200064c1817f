# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Whether an inference engine runs on this node, ours or anybody's: what takes a link down must not run beside one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import engine_signs, gpu
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine

UNITS = ("sparkmatrix-engine.service", "sparkmatrix-ray.service")
# What systemd calls neither inactive nor failed: also a unit that is starting or stopping has processes.
_STOPPED = ("inactive", "failed", "")
_PROGRAMS = frozenset(
    {
        *(program for signs in engine_signs.ENGINES for program in signs.programs),
        "tritonserver",
        "text-generation-server",
        "llama-server",
        "rpc-server",  # llama.cpp's ranks
        "raylet",
        "gcs_server",
    }
)
_MODULES = tuple(signs.package for signs in engine_signs.ENGINES)
_INTERPRETER = re.compile(r"python[0-9.]*|(ba|da)?sh")
# Engines rename their child processes like this.
_TITLE = re.compile("|".join(["ray::", *(signs.title for signs in engine_signs.ENGINES if signs.title)]), re.I)


def running(machine: Machine | None = None) -> list[str]:
    """One line per sign of a running engine: units, processes, compute processes of the GPU. Empty: there is none."""
    machine = machine or Machine()
    try:
        states = {name: unit.active for name, unit in machine.units(UNITS).items()}
    except SparkError:  # systemd does not answer
        states = {}
    found = [f"unit {name} is {active}" for name, active in states.items() if active not in _STOPPED]
    seen: set[int] = set()
    for pid in sorted(int(name) for name in machine.names("/proc") if name.isdigit()):
        name = engine_name(_arguments(machine, pid))
        if name:
            seen.add(pid)
            found.append(f"process {pid} ({name})")
    return found + [f"GPU process {pid} ({name})" for pid, name in gpu.processes(machine) if pid not in seen]


def engine_name(argv: Sequence[str]) -> str:
    """The engine that a command line starts, or nothing. Arguments like a log's path do not count."""
    if not argv:
        return ""
    title = argv[0].strip()
    if _TITLE.match(title):
        return title.split()[0]
    words = list(argv)
    if _INTERPRETER.fullmatch(_base(words[0])):
        words = words[1:]
        if words[:1] == ["-m"] and len(words) > 1:
            return words[1] if words[1].split(".")[0] in _MODULES else ""
    program = _base(words[0]) if words else ""
    return program if program in _PROGRAMS else ""


def _base(word: str) -> str:
    return word.rpartition("/")[2]


def _arguments(machine: Machine, pid: int) -> list[str]:
    try:
        content = machine.content(f"/proc/{pid}/cmdline") or b""
    except SparkError:  # the process ended meanwhile
        return []
    return [part.decode("utf-8", "replace") for part in content.rstrip(b"\0").split(b"\0")] if content else []
