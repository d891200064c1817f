#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Measure site.yml with two other shipped inventories on a lab: twice, the second time without a change; then ask."""

from __future__ import annotations

import json
import sys

import cluster

# Inventory: nodes, topology of the cables. molecule/inventories has a test for each inventory.
TOPOLOGIES = {"1spark": (1, "single"), "2spark": (2, "direct")}


def one(inventory: str, nodes: int, topology: str) -> dict[str, object]:
    cluster.boot(topology, nodes)
    first = cluster.play(f"{inventory}-first", inventory=f"inventories/{inventory}", show=False)
    if first.code:
        raise cluster.LabError(f"{inventory}: the first run failed:\n{cluster.log_tail(f'{inventory}-first')}")
    second = cluster.play(f"{inventory}-second", inventory=f"inventories/{inventory}", show=False)
    if second.code or second.changed:
        changed = second.stats.get("changed_tasks")
        raise cluster.LabError(f"{inventory}: the second run ended with {second.code} and changed {changed}")
    reply = cluster.ssh(cluster.HEAD, "sudo /usr/local/lib/sparkmatrix/sparkmatrix-node probe --json --max-tokens 8")
    answer = json.loads(reply.stdout)
    if reply.returncode or answer["completion_tokens"] < 1:
        raise cluster.LabError(f"{inventory}: no answer: {reply.stdout}{reply.stderr}")
    return {
        "inventory": inventory,
        "nodes": nodes,
        "topology": topology,
        "first_run_s": round(first.seconds, 1),
        "second_run_s": round(second.seconds, 1),
        "completion_tokens": answer["completion_tokens"],
    }


def main() -> int:
    failed = 0
    try:
        cluster.build()
        for inventory, (nodes, topology) in TOPOLOGIES.items():
            try:
                print(json.dumps(one(inventory, nodes, topology)))
            except cluster.LabError as exc:
                failed += 1
                print(exc)
    finally:
        cluster.step("Remove the lab", cluster.lab("down"), "down.log")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
