#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""How do the time and the memory of the controller grow with the machines?

    .venv/bin/python tests/bench/scale.py [--nodes 16 50 64 200] [--layers site] [--check]

Runs an unchanged site.yml for that many simulated nodes on a switch: what modules would answer is made on the
controller (tests/bench/callback/simulated_nodes.py), so nothing but Ansible, our actions, planners and templates is
measured. Prints seconds, processor time, memory (the largest sum of all processes, shared pages counted once) and the
largest of what a node was given and has answered; then the growth as a power of the number of nodes. ``--check`` fails
above the limits of docs/performance.md.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass

ROOT = pathlib.Path(__file__).resolve().parents[2]
GROWTH_OF_TIME = math.log(4.4) / math.log(4)  # t(200) / t(50) is at most 4.4
GROWTH_OF_SIZES = math.log(2.2) / math.log(2)  # what one node gets may grow with the nodes, not with their square
MEMORY_MIB = 1024
SETTINGS = {
    "fabric_topology": "switch",
    "fabric_subnets": ["10.100.0.0/16", "10.101.0.0/16"],
    "fabric_host_offset": 10,
    "access_firewall": True,
}
SITE = "site"
SERVING = {"engine_launch": "ray", "gateway_listen": ["10.64.0.10"]}


@dataclass(frozen=True)
class Run:
    nodes: int
    seconds: float
    cpu_s: float
    memory_mib: float
    largest_given: int
    largest_answer: int


def services(nodes: int) -> list[dict[str, object]]:
    """One for each pair of nodes: as many as there can be over more than one node."""
    return [
        {"name": f"s{first}", "nodes": [f"spark{first}", f"spark{first + 1}"], "port": 20000 + first}
        | {"recipe": "qwen3-8b", "served_model_name": f"m{first}"}
        for first in range(1, nodes, 2)
    ]


def inventory(nodes: int, layers: str) -> dict[str, object]:
    settings = {**SETTINGS, **SERVING, "engine_services": services(nodes)} if layers == SITE else SETTINGS
    hosts = {
        f"spark{rank + 1}": {"spark_rank": rank, "ansible_host": f"10.64.{(rank + 10) // 256}.{(rank + 10) % 256}"}
        for rank in range(nodes)
    }
    return {"all": {"children": {"sparks": {"hosts": hosts, "vars": settings}}}}


def memory(pid: int) -> float:
    """MiB of a process and its children."""
    total, waiting = 0, [pid]
    while waiting:
        one = waiting.pop()
        try:
            rollup = pathlib.Path(f"/proc/{one}/smaps_rollup").read_text()
            children = pathlib.Path(f"/proc/{one}/task/{one}/children").read_text()
        except OSError:
            continue  # it has just ended
        total += next((int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")), 0)
        waiting += [int(child) for child in children.split()]
    return total / 1024


def measure(nodes: int, layers: str, folder: pathlib.Path) -> Run:
    hosts, sizes, log = folder / f"{nodes}.json", folder / f"{nodes}.sizes", folder / f"{nodes}.log"
    hosts.write_text(json.dumps(inventory(nodes, layers)))
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_CALLBACK_PLUGINS": str(ROOT / "tests/bench/callback"),
        "ANSIBLE_CALLBACKS_ENABLED": "simulated_nodes",
        "ANSIBLE_STDOUT_CALLBACK": "default",
        "SIMULATED_SIZES": str(sizes),
    }
    command = [str(pathlib.Path(sys.executable).parent / "ansible-playbook"), "site.yml", "-i", str(hosts)]
    command += ["--tags", layers] if layers != SITE else []
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)
    largest = 0.0
    ended = threading.Event()

    def wait() -> None:
        process.wait()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    while not ended.wait(1):
        largest = max(largest, memory(process.pid))
    seconds, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode:
        sys.exit(f"{nodes} nodes: site.yml failed. The end of {log}:\n{log.read_text()[-3000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    rows = [line.split() for line in sizes.read_text().splitlines()]
    given, said = collections.Counter[str](), collections.Counter[str]()
    for _module, host, one, other in rows:
        given[host] += int(one)
        said[host] += int(other)
    return Run(nodes, seconds, cpu, largest, max(given.values()), max(said.values()))


def growth(runs: list[Run], what: str) -> float:
    """The power of the number of nodes by which it grows, from the two largest runs."""
    few, many = runs[-2:]
    return math.log(getattr(many, what) / getattr(few, what)) / math.log(many.nodes / few.nodes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--nodes", type=int, nargs="+", default=[16, 50, 64, 200])
    parser.add_argument("--layers", default="fabric", help=f"{SITE} for all of them")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    runs = []
    print("| Nodes | Seconds | Processor time | Memory | Given to a node | Answered by a node |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for nodes in options.nodes:
            run = measure(nodes, options.layers, pathlib.Path(folder))
            runs.append(run)
            print(
                f"| {nodes} | {run.seconds:.0f} s | {run.cpu_s:.0f} s | {run.memory_mib:.0f} MiB |"
                f" {run.largest_given / 1000:.0f} kB | {run.largest_answer / 1000:.0f} kB |",
                flush=True,
            )
    compared = ("cpu_s", "largest_given", "largest_answer") if len(runs) > 1 else ()
    grows = {what: growth(runs, what) for what in compared}
    shown = {what: round(power, 2) for what, power in grows.items()}
    print(json.dumps({"runs": [asdict(run) for run in runs], "grows": shown}))
    too_much = [
        *(
            f"{what} grows by n^{power:.3f}"
            for what, power in grows.items()
            if power > (GROWTH_OF_TIME if what == "cpu_s" else GROWTH_OF_SIZES)
        ),
        *(f"{run.nodes} nodes take {run.memory_mib:.0f} MiB" for run in runs if run.memory_mib > MEMORY_MIB),
    ]
    print("\n".join(too_much))
    return 1 if options.check and too_much else 0


if __name__ == "__main__":
    sys.exit(main())
