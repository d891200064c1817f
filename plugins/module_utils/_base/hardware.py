# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Which machine this is, and its memory."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import gpu, meminfo
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Count, Flag, Words
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine

# Product names of the GB10 machines, as the makers write them into DMI. The GPU's own name counts more (see below).
_GB10_DMI = re.compile(
    r"GB10|DGX[ _-]?Spark|\bGX10\b|ZGX[ _-]?Nano|ThinkStation[ _-]?PGX|EdgeXpert|AI[ _-]?TOP[ _-]?ATOM|\bGN100\b", re.I
)
_GB10_GPU = re.compile(r"\bGB10\b", re.I)
# Of /proc/meminfo, in the order of Memory.
MEMORY = ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree", "CmaTotal", "CmaFree")


@dataclass(frozen=True)
class Hardware:
    """``evidence``: by what this is a GB10."""

    vendor: Optional[Words] = None
    product: Optional[Words] = None
    gpu: Optional[Words] = None
    is_gb10: Flag = False
    evidence: Optional[Words] = None


def hardware(machine: Machine) -> Hardware:
    """Whether this is a GB10 is told by the GPU's name, else by DMI, never by host name."""
    dmi = {name: machine.text(f"/sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name", "product_family")}
    model = gpu.model(machine)
    evidence = None
    if model is not None:
        evidence = f"GPU {model}" if _GB10_GPU.search(model) else None
    else:
        # No driver yet, or it does not load: the board still says what it is.
        evidence = next((f"DMI {value}" for value in dmi.values() if value and _GB10_DMI.search(value)), None)
    return Hardware(dmi["sys_vendor"], dmi["product_name"], model, evidence is not None, evidence)


@dataclass(frozen=True)
class Memory:
    """In bytes."""

    total: Optional[Count] = None
    available: Optional[Count] = None
    swap_total: Optional[Count] = None
    swap_free: Optional[Count] = None
    cma_total: Optional[Count] = None
    cma_free: Optional[Count] = None


def memory(machine: Machine) -> Memory:
    return Memory(*map(meminfo.read(machine.root).get, MEMORY))
