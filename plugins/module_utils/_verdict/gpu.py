# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""How fast the GPU reads memory, where no engine runs: the only sign of its slow state."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import hardware
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed, run
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import printable
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import NodePlan
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight import running_engines
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.observation import BUSY, NO_GPU, Gpu

GPU_S = 45.0  # torch takes most of it
# Half a gibibyte of bfloat16, which no cache holds, as often as fits into a second after a warm-up.
PROBE = """
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


def _run(argv: list[str]) -> Completed:
    return run(argv, GPU_S)


def measure(machine: Machine, plan: NodePlan | None, runner: Callable[[list[str]], Completed] = _run) -> Gpu:
    if not hardware.gpu_name(machine):
        return Gpu(reason=NO_GPU)
    if running_engines.running(machine):
        return Gpu(reason=BUSY)
    for one in plan.here if plan else ():
        python = f"{one.venv.path}/bin/python"
        if one.contained or not machine.exists(python):
            continue
        # As its owner: root does not run what somebody else can change.
        owner = pwd.getpwuid(os.stat(machine.real(one.venv.path)).st_uid).pw_name
        done = runner(["runuser", f"--user={owner}", "--", python, "-I", "-c", PROBE])
        words = done.out.split()
        if done.rc == 0 and len(words) >= 2 and words[-2] == "GBS":
            return Gpu(gbs=round(float(words[-1]), 1))
        return Gpu(reason=printable(done.complaint[-200:]))
    return Gpu(reason="no Python environment of an engine is here that has torch")
