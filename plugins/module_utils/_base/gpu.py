# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The GPU of a node: its name, whether CUDA starts, how fast it runs now, who computes on it, and how fast it reads
memory. What asks it has a time limit and is left behind when it hangs: nothing can end one that waits in the driver.
"""

from __future__ import annotations

import os
import pwd
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import TIMED_OUT, Completed, run
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import printable
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Count, Flag, Number, Whole, Words
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine

# CUDA_SUCCESS is 0; names by cuGetErrorName. A GPU whose firmware hangs answers NVML (nvidia-smi) and not this.
_CU_INIT = """
import ctypes
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError as exc:
    print("absent", exc)
else:
    code = cuda.cuInit(0)
    name = ctypes.c_char_p()
    cuda.cuGetErrorName(code, ctypes.byref(name))
    print("answer", code, (name.value or b"").decode())
"""
ASK_S = 20.0

# Printed as "60.50, 96, 71, 2405, 0x0000000000000000": watts, percent, degrees Celsius, MHz, and a mask of NVML's event
# reasons.
_QUERY = "power.draw,utilization.gpu,temperature.gpu,clocks.sm,clocks_event_reasons.active"
_WATTS = re.compile(r"[0-9]{1,4}(\.[0-9]{1,3})?")
# By nvml.h (nvmlClocksEventReasons), in the words of nvidia-smi -q. Left out is 0x1: idle.
REASONS = {
    0x2: "applications clocks setting",
    0x4: "software power cap",  # what a GPU has that is at its limit, as it should be under full load
    0x8: "hardware slowdown",  # also while it changes its clock; what is wrong has a bit of its own
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clock setting",
}
FAULTS = tuple(REASONS[bit] for bit in (0x20, 0x40, 0x80))
BUSY = 50  # percent; an idle GPU clocks down
READ_S = 45.0  # torch takes most of it
# Half a gibibyte of bfloat16, which no cache holds, as often as fits into a second after a warm-up.
_READ = """
import time, torch
torch.manual_seed(0)
size = 16384
matrix = torch.ones(size, size, dtype=torch.bfloat16, device="cuda")
vector = torch.ones(size, dtype=torch.bfloat16, device="cuda")
for _ in range(20):
    torch.mv(matrix, vector)
torch.cuda.synchronize()
began = time.monotonic()
count = 0
while time.monotonic() - began < 1.0:
    for _ in range(20):
        torch.mv(matrix, vector)
    torch.cuda.synchronize()
    count += 20
print("GBS", 2 * size * size * count / (time.monotonic() - began) / 1e9)
"""


@dataclass(frozen=True)
class Cuda:
    """Whether CUDA can be initialized. ``code``: CUresult."""

    checked: Flag
    ok: Optional[Flag] = None
    code: Optional[Whole] = None
    message: Words = ""


@dataclass(frozen=True)
class Clocks:
    """How fast the GPU runs now: ``busy`` in percent, ``mhz`` of the SMs; ``slowed``: why its clock is held down, which
    is a fault by some REASONS only."""

    busy: Optional[Count] = None
    celsius: Optional[Count] = None
    mhz: Optional[Count] = None
    slowed: tuple[Words, ...] = ()
    watts: Optional[Number] = None


@dataclass(frozen=True)
class Rate:
    """A matrix-vector product that reads memory for a second. ``reason``: why it was not measured."""

    gbs: float = 0
    reason: Words = ""


def model(machine: Machine) -> str | None:
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


def _asked(machine: Machine, argv: Sequence[str]) -> Completed:
    return run(argv, ASK_S) if machine.runner is run else machine.runner(argv)


def cuda(machine: Machine) -> Cuda:
    """In a process of its own."""
    done = _asked(machine, [sys.executable, "-I", "-c", _CU_INIT])
    words = done.out.split(None, 2)
    if done.rc == TIMED_OUT:
        return Cuda(True, False, message="cuInit gives no answer")
    if words[:1] == ["absent"]:
        return Cuda(False, message=" ".join(done.out.split()[1:]))
    if done.rc == 0 and len(words) >= 2 and words[0] == "answer" and strict.digits(words[1]) is not None:
        code = strict.digits(words[1])
        return Cuda(True, code == 0, code, words[2].strip() if len(words) > 2 else "")
    # A signal (rc below 0) is the library's; everything else is ours.
    return Cuda(done.rc < 0, False if done.rc < 0 else None, message=done.complaint)


def clocks(machine: Machine) -> Clocks | None:
    """None where nvidia-smi does not tell. Of several GPUs the one with a fault, else the slowest that is at work."""
    done = _asked(machine, ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"])
    found = [_clocks(line) for line in done.out.splitlines()] if done.rc == 0 else []
    return min(
        (one for one in found if one),
        key=lambda one: (not set(one.slowed) & set(FAULTS), (one.busy or 0) < BUSY, one.mhz or 0),
        default=None,
    )


def _clocks(line: str) -> Clocks | None:
    words = [word.strip() for word in line.split(",")]
    if len(words) != len(_QUERY.split(",")) or not re.fullmatch(r"0x[0-9a-fA-F]{1,16}", words[-1]):
        return None
    slowed = tuple(why for bit, why in REASONS.items() if int(words[-1], 16) & bit)
    watts = float(words[0]) if _WATTS.fullmatch(words[0]) else None
    busy, celsius, mhz = map(strict.digits, words[1:4])
    return Clocks(busy, celsius, mhz, slowed, watts)


def processes(machine: Machine) -> list[tuple[int, str]]:
    """Number and name of those that compute; a desktop session does not."""
    return parse_processes(
        machine.output("nvidia-smi", "--query-compute-apps=pid,process_name", "--format=csv,noheader")
    )


def parse_processes(text: str | None) -> list[tuple[int, str]]:
    """``nvidia-smi --query-compute-apps=pid,process_name --format=csv,noheader``: ``1234, /usr/bin/python3`` per line.

    Only compute contexts are listed, so a desktop session does not count. Other lines ("No devices were found") are
    left out.
    """
    found = []
    for line in (text or "").splitlines():
        pid, _comma, name = line.partition(",")
        number = strict.digits(pid.strip())
        if number is not None:
            found.append((number, name.strip()))
    return found


def rate(machine: Machine, environments: Sequence[str]) -> Rate:
    """How fast it reads memory, the only sign of its slow state.

    Args:
        environments: Paths of Python environments with torch; the first that is there is used.
    """
    place = next((path for path in environments if machine.exists(f"{path}/bin/python")), "")
    if not place:
        return Rate(reason="no Python environment of an engine is here that has torch")
    # As its owner: root does not run what somebody else can change.
    owner = pwd.getpwuid(os.stat(machine.real(place)).st_uid).pw_name
    argv = ["runuser", f"--user={owner}", "--", f"{place}/bin/python", "-I", "-c", _READ]
    done = run(argv, READ_S)
    words = done.out.split()
    if done.rc == 0 and len(words) >= 2 and words[-2] == "GBS":
        return Rate(gbs=round(float(words[-1]), 1))
    return Rate(reason=printable(done.complaint[-200:]))
