# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What a node gives up for a service: available memory before its rank was started, less what is available once it
serves. GPU and processors share the memory, so nothing else tells: what CUDA takes is in no process and no control
group. Other services that start at the same time count, too.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text, meminfo, paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError

if TYPE_CHECKING:
    from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine

NOTED = f"{paths.RUN}/available.json"  # bytes by unit; gone after a boot, as the ranks are


def note(units: list[str], machine: Machine) -> None:
    """Before these are started."""
    available = meminfo.read(machine.root).get("MemAvailable", 0)
    kept = {**_noted(machine), **dict.fromkeys(units, available)}
    try:
        with open(machine.real(NOTED), "w", encoding="utf-8") as stream:
            json.dump(kept, stream)
    except OSError:  # nothing depends on it
        return


def by(unit: str, machine: Machine) -> int:
    """Bytes, 0 where they are not known."""
    before = _noted(machine).get(unit, 0)
    return max(0, before - meminfo.read(machine.root).get("MemAvailable", 0)) if before else 0


def forget(machine: Machine, check_mode: bool = False) -> bool:
    there = os.path.exists(machine.real(NOTED))
    if there and not check_mode:
        os.unlink(machine.real(NOTED))
    return there


def _noted(machine: Machine) -> dict[str, int]:
    try:
        found = json_text.mapping(machine.content(NOTED) or b"{}")
    except SparkError:
        return {}
    return {str(unit): value for unit, value in found.items() if type(value) is int and value > 0}
