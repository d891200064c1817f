#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The test of NCCL between two simulated Sparks, with the real torch of the engine: in its Python environment, and in a
container. It is refused beside an engine that runs, and leaves nothing behind. There is no GPU, so gloo carries the
bytes: everything but NCCL itself is as on Sparks, and the figures are reported as not measured.

Usage: test_nccl.py [--only ray|containers] [--beside ID]
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))

import cluster
import test_staying_up as staying_up
from cluster import LabError, say

LAUNCHES = ("ray", "containers")
SMALL = ("--tags", "nccl", "-e", "benchmark_nccl_largest_mib=4")
LEFT = "systemctl list-units --all --no-legend 'sparkmatrix-nccl*'; pgrep -af '[a]ll_gather' || true"


def measured(here: staying_up.Cluster, name: str, *options: str) -> dict[str, Any]:
    """What the run has kept on the head; nothing of the test may be left on any node."""
    run = here.play(name, "playbooks/benchmark.yml", *SMALL, *options)
    if run.code:
        raise LabError(f"{name} ended with {run.code}:\n{cluster.log_tail(name)}")
    for host in here.launch.hosts:
        left = here.node(host, LEFT)
        if left.strip():
            raise LabError(f"{name}: left on {host}: {left}")
    return here.verdicts()


def check(here: staying_up.Cluster, found: dict[str, Any], tests: list[str], said: str) -> None:
    shown = json.dumps(found)
    figures = found["nccl"]
    if [figure["test"] for figure in figures] != tests or any(
        figure["hosts"] != here.launch.hosts for figure in figures
    ):
        raise LabError(f"expected {tests} between both: {shown[:3000]}")
    if said not in shown:
        raise LabError(f"expected {said!r}: {shown[:3000]}")
    if any(size["wrong"] or size["bus_gbs"] <= 0 for figure in figures for size in figure["sizes"]):
        raise LabError(f"figures that cannot be: {shown[:3000]}")


def main() -> int:
    parser = cluster.options(__doc__)
    parser.add_argument("--only", default=",".join(LAUNCHES), metavar="LAUNCH[,LAUNCH]")
    chosen = parser.parse_args()
    here = staying_up.Cluster(chosen.beside, "containers")
    problems = []
    try:
        cluster.build()
        here.boot()
        for name in chosen.only.split(","):
            here.launch = staying_up.LAUNCHES[name]
            here.site(f"nccl-site-{name}")
            found = measured(here, f"nccl-beside-{name}")
            check(here, found, [], "the engine is running and would be disturbed")
            here.site(f"nccl-stop-{name}", "playbooks/stop.yml")
            found = measured(here, f"nccl-{name}")
            check(here, found, ["all_gather", "all_reduce"], "sees no GPU; over gloo")
            say(f"   {name}: {[one['largest_gbs'] for one in found['nccl']]} GB/s")
    except LabError as exc:
        problems.append(str(exc))
    finally:
        here.down()
    print("\n".join(problems))
    print(json.dumps({"problems": problems}))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
