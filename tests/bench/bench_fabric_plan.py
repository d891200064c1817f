# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How long does the fabric planner take?

    .venv/bin/python tests/bench/bench_fabric_plan.py [--nodes 2 8 64 512] [--rounds 5]

Plans that many nodes on one switch, in this process, three times:

- ``assumed``: no node heard another, the count of nodes decides;
- ``lldp``: every node heard the switch;
- ``probe``: every node heard every other over both halves of its cage, which is 2 N^2 pieces of evidence.

``verify`` is the judgement of all pings and GIDs afterwards. Prints the median processor times, which other programs on
the machine change little; the last line is one JSON object with the size of the largest fact. Exit code 1 when a plan
is refused.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "collections"), str(REPOSITORY / "tests/unit")]

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import dump
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import plan as fabric_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.plan import Measured, NodeInput, Settings
from fabric_inputs import sparks
from sysfs_tree import gid_of

NETDEVS = ("enp1s0f0np0", "enP2p1s0f0np0")
SETTINGS = Settings(topology="switch", subnets=("10.100.0.0/22", "10.100.4.0/22"))


def hearing(nodes: dict[str, NodeInput], kind: str) -> dict[str, NodeInput]:
    if kind == "assumed":
        return nodes
    found = {}
    for host, node in nodes.items():
        heard: list[dict[str, Any]] = [
            {"netdev": netdev, "cage": 0, "source": "lldp", "node": "", "system": "sw1", "port": "swp1"}
            for netdev in NETDEVS
        ]
        if kind == "probe":
            heard = [
                {"netdev": netdev, "cage": 0, "source": "probe", "node": peer, "peer_cage": 0, "both_ways": True}
                for netdev in NETDEVS
                for peer in nodes
                if peer != host
            ]
        found[host] = replace(node, neighbors={"heard": heard, "interfaces": {}, "notes": []})
    return found


def measured(facts: Any) -> dict[str, Measured]:
    paths = fabric_plan.paths(facts)
    return {
        host: Measured(
            gids=[
                {
                    "device": rail.rdma_device,
                    "port": 1,
                    "index": 3,
                    "gid": gid_of(rail.address),
                    "version": 2,
                    "netdev": rail.netdev,
                }
                for rail in fact.rails
            ],
            probes=[{"rail": path["rail"], "peer": path["peer"], "ok": True} for path in paths[host]],
        )
        for host, fact in facts.items()
    }


def median(call: Callable[[], Any], rounds: int) -> tuple[float, Any]:
    times, result = [], None
    for _round in range(rounds):
        start = time.process_time()
        result = call()
        times.append(time.process_time() - start)
    return statistics.median(times), result


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 8, 64, 512])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    figures: dict[int, dict[str, float]] = {}
    largest, refused = 0, False
    for count in options.nodes:
        own: dict[str, float] = {}
        bare = sparks(count)
        for kind in ("assumed", "lldp", "probe"):
            nodes = hearing(bare, kind)
            own[kind], made = median(lambda n=nodes: fabric_plan.plan(n, SETTINGS), options.rounds)  # type: ignore[misc]
            refused = refused or made.refused
        found = measured(made.facts)
        own["verify"], verified = median(lambda f=made.facts, m=found: fabric_plan.verify(f, m), options.rounds)  # type: ignore[misc]
        refused = refused or verified.refused
        largest = max(largest, *(len(dump(fact)) for fact in verified.facts.values()))
        figures[count] = {name: round(seconds, 4) for name, seconds in own.items()}
        print(f"{count:4} nodes  " + "  ".join(f"{name} {seconds * 1000:7.1f} ms" for name, seconds in own.items()))
    print(
        json.dumps({"benchmark": "fabric_plan", "seconds": figures, "largest_fact_bytes": largest, "ok": not refused})
    )
    return int(refused)


if __name__ == "__main__":
    sys.exit(main())
