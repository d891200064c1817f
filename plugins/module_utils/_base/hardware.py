# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Which machine this is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Flag, Words
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine

# Product names of the GB10 machines, as the makers write them into DMI. The GPU's own name counts more (see below).
_GB10_DMI = re.compile(
    r"GB10|DGX[ _-]?Spark|\bGX10\b|ZGX[ _-]?Nano|ThinkStation[ _-]?PGX|EdgeXpert|AI[ _-]?TOP[ _-]?ATOM|\bGN100\b", re.I
)
_GB10_GPU = re.compile(r"\bGB10\b", re.I)


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
    gpu = gpu_name(machine)
    evidence = None
    if gpu is not None:
        evidence = f"GPU {gpu}" if _GB10_GPU.search(gpu) else None
    else:
        # No driver yet, or it does not load: the board still says what it is.
        evidence = next((f"DMI {value}" for value in dmi.values() if value and _GB10_DMI.search(value)), None)
    return Hardware(dmi["sys_vendor"], dmi["product_name"], gpu, evidence is not None, evidence)


def gpu_name(machine: Machine) -> str | None:
    """``Model:`` in /proc/driver/nvidia/gpus/<address>/information, else what nvidia-smi says."""
    for address in machine.names("/proc/driver/nvidia/gpus"):
        text = machine.text(f"/proc/driver/nvidia/gpus/{address}/information") or ""
        match = re.search(r"^Model:\s*(\S.*?)\s*$", text, re.M)
        if match:
            return match.group(1)
    output = machine.output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    # nvidia-smi exits 0 and prints "No devices were found" when the driver is there and the GPU is not.
    lines = [line.strip() for line in (output or "").splitlines() if line.strip()]
    return lines[0] if lines and "No devices" not in lines[0] else None
