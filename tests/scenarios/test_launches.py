#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""vLLM over Ray and without it, on the same two nodes in one run: start, recovery, memory, open ports.

Usage: test_launches.py [--beside ID]

Prints a table for docs/performance.md and one JSON line. Without Ray it must not take more than a tenth more time to
start, or more memory.
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

ROUNDS = ("ray", "native")
LIKE = 1.1
# Of the service user: proportional memory of all processes in MiB, and sockets that listen beyond loopback.
ON_NODE = r"""
import pathlib, pwd, subprocess
uid = pwd.getpwnam("sparkmatrix").pw_uid
kib = 0
for process in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        if process.stat().st_uid == uid:
            kib += next(int(line.split()[1]) for line in open(process / "smaps_rollup") if line.startswith("Pss:"))
    except (OSError, StopIteration):
        pass
lines = subprocess.run(["ss", "-Hltne"], capture_output=True, text=True, check=True).stdout.splitlines()
mine = [line.split()[3] for line in lines if "uid:%d " % uid in line + " "]
print(kib // 1024, sum(not place.startswith(("127.", "[::1]", "[::ffff:127.")) for place in mine))
"""


# What docs/performance.md calls them.
HEADINGS = {
    "first_start_s": "First start, s",
    "start_s": "Start after a fault, s",
    "rank_killed_s": "Rank on the worker killed: serves again, s",
    "head_killed_s": "Head killed: serves again, s",
    "memory_mib": "Memory of both nodes, MiB",
    "open_ports": "Open ports of both nodes",
}


def measured(here: staying_up.Cluster) -> dict[str, Any]:
    here.serving()
    first = here.starts()[-1]
    memory = ports = 0
    for host in here.launch.hosts:
        mib, listening = map(int, here.node(host, "sudo python3 -", data=ON_NODE.encode()).split())
        memory, ports = memory + mib, ports + listening
    result: dict[str, Any] = {"first_start_s": round(first[1] - first[0]), "memory_mib": memory, "open_ports": ports}
    for fault in (staying_up.rank, staying_up.head):
        found = fault(here)
        # The one that is compared: the first launch of a run also reads the files of the other from the disk.
        result.update({f"{fault.__name__}_killed_s": found["serving_s"], "start_s": found["start_s"]})
    return result


def table(results: dict[str, dict[str, Any]]) -> str:
    lines = ["| `engine_launch` | " + " | ".join(HEADINGS.values()) + " |", "|---" * (len(HEADINGS) + 1) + "|"]
    for launch, values in results.items():
        lines.append(f"| `{launch}` | " + " | ".join(str(values[name]) for name in HEADINGS) + " |")
    return "\n".join(lines)


def main() -> int:
    here = staying_up.Cluster(cluster.options(__doc__).parse_args().beside, ROUNDS[0])
    results: dict[str, dict[str, Any]] = {}
    problems = []
    try:
        cluster.build()
        here.boot()
        for name in ROUNDS:
            say(f"-- {name}")
            here.launch = staying_up.LAUNCHES[name]
            here.rank = here.launch.rank
            here.site(f"launches-{name}")
            results[name] = measured(here)
            say(f"   {json.dumps(results[name])}")
        with_ray, without = (results[name] for name in ROUNDS)
        worse = [name for name in ("start_s", "memory_mib") if without[name] > LIKE * with_ray[name]]
        if worse:
            problems.append(f"without Ray it is worse: {', '.join(worse)}")
    except LabError as exc:
        problems.append(str(exc))
    finally:
        here.down()
    print("\n".join([*problems, table(results) if results else ""]))
    print(json.dumps({"launches": results, "problems": problems}))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
