# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""``sparkmatrix top``: on the head, what every node does now: memory, GPU, both directions of each half, tokens per
second. A frame every two seconds at a terminal, one elsewhere."""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import rank as engine_rank
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.metrics import Work
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._snapshot import quick
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._snapshot.snapshot import Snapshot
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._status import every_node, word_colours

HELP = "show memory, GPU, rates of the cables and tokens per second of all nodes, live"
SCHEMA_VERSION = 1
EVERY_S = 2.0
ASK_S = 20.0  # for the first two snapshots of a node
GIB = 2**30
ROOT = "This needs root: sudo sparkmatrix top"


# -- on the node ------------------------------------------------------------------------------------------------------


def tell(machine: Machine, rounds: int | None = None, say: Callable[[str], None] = engine_rank.say) -> None:
    """A snapshot every two seconds, until nobody listens any more."""
    done = 0
    while rounds is None or done < rounds:
        say(json.dumps(document.plain(quick.read(machine))))
        done += 1
        machine.sleep(EVERY_S)


# -- on the head ------------------------------------------------------------------------------------------------------


def figures(before: Snapshot, now: Snapshot) -> dict[str, Any]:
    """Of one node, for ``--json``. A counter that went back was reset meanwhile."""
    seconds = max(now.at - before.at, 0.001)

    def rate(first: float | None, last: float) -> float:
        return max(last - (first or 0), 0.0) / seconds

    def gbps(first: float, last: float) -> float:
        return round(rate(first, last) * 8 / 1e9, 3)

    halves = {name: (before.moved.get(name, both), both) for name, both in now.moved.items()}
    earlier = {service.instance: service.work for service in before.services}
    services = {
        service.instance or "engine": (earlier.get(service.instance, service.work), service.work)
        for service in now.services
    }
    return {
        "memory_total_gib": round((now.memory.total or 0) / GIB, 1),
        "memory_available_gib": round((now.memory.available or 0) / GIB, 1),
        "load": now.load,
        "gpu": _told(now.clocks),
        "halves": {
            name: {"in_gbps": gbps(first.received, last.received), "out_gbps": gbps(first.sent, last.sent)}
            for name, (first, last) in halves.items()
        },
        "services": {
            name: {
                **_told(last),
                "tokens_per_s": None if last.tokens is None else round(rate(first.tokens, last.tokens), 1),
            }
            for name, (first, last) in services.items()
        },
    }


def _told(known: Any) -> dict[str, Any]:
    """The fields that are known, but for a counter."""
    return {name: value for name, value in vars(known or Work()).items() if value is not None and name != "tokens"}


class Latest:
    """The last two snapshots of each node. What another one says is not trusted."""

    def __init__(self, nodes: Mapping[str, bool]) -> None:
        self.seen: dict[str, list[Snapshot]] = {host: [] for host in nodes}
        self.lock = threading.Lock()

    def take(self, host: str, found: Mapping[str, Any]) -> None:
        with self.lock:
            self.seen[host] = [*self.seen[host][-1:], document.load(Snapshot, found)]

    @property
    def complete(self) -> bool:
        with self.lock:
            return all(len(seen) == 2 for seen in self.seen.values())

    def document(self, problems: Mapping[str, str]) -> dict[str, Any]:
        with self.lock:
            pairs = {host: list(seen) for host, seen in self.seen.items()}
        return {
            "schema": SCHEMA_VERSION,
            "nodes": {
                host: figures(*pair)
                if len(pair) == 2 and host not in problems
                else {"problem": problems.get(host, "not yet")}
                for host, pair in pairs.items()
            },
        }


def lines(found: Mapping[str, Any]) -> list[str]:
    made = []
    for host, node in found["nodes"].items():
        if "problem" in node:
            made.append(f"{host:<10} not known: {node['problem']}")
            continue
        used = node["memory_total_gib"] - node["memory_available_gib"]
        parts = [
            f"memory {used:.1f} of {node['memory_total_gib']:.1f} GiB",
            f"load {node['load']:.1f}",
            _gpu(node["gpu"]),
        ]
        made.append(f"{host:<10} {', '.join(part for part in parts if part)}")
        for name, both in node["halves"].items():
            made.append(f"{'':<10} {name:<15} in {both['in_gbps']:6.1f}  out {both['out_gbps']:6.1f} Gb/s")
        for name, service in node["services"].items():
            made.append(f"{'':<10} {name}: {_service(service)}")
    return made


def _gpu(gpu: Mapping[str, Any]) -> str:
    words = [
        f"{gpu[key]:.0f} {unit}"
        for key, unit in (("busy", "%"), ("mhz", "MHz"), ("celsius", "C"), ("watts", "W"))
        if key in gpu
    ]
    slowed = f" ({', '.join(gpu['slowed'])})" if gpu.get("slowed") else ""
    return f"GPU {' '.join(words)}{slowed}" if words else ""


def _service(one: Mapping[str, Any]) -> str:
    speed = "tokens not counted" if one["tokens_per_s"] is None else f"{one['tokens_per_s']:.1f} tokens/s"
    words = [f"{one[key]:.0f} {key}" for key in ("running", "waiting") if key in one]
    cache = [f"KV cache {100 * one['cache']:.0f} %"] if "cache" in one else []
    return ", ".join([speed, *words, *cache])


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--node", action="append", default=[], metavar="NAME", help="of this node only; several times")
    parser.add_argument("--once", action="store_true", help="one frame")
    parser.add_argument("--json", action="store_true", help="one frame as a JSON object (docs/operations.md)")
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace, machine: Machine | None = None) -> int:
    machine = machine or Machine()
    try:
        if arguments.peer:
            tell(machine)
            return 0
        if os.geteuid() != 0:
            raise SparkError(ROOT)
        nodes = every_node.hosts(machine.root, arguments.node)
        return show(arguments, nodes, every_node.streams(nodes, "top", "top", ["--peer"]))
    except SparkError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    except (BrokenPipeError, KeyboardInterrupt):
        return 0


def show(
    arguments: argparse.Namespace,
    nodes: Mapping[str, bool],
    streams: list[every_node.Stream],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    latest = Latest(nodes)
    for stream in streams:
        threading.Thread(target=stream.read, args=(latest.take,), daemon=True).start()
    once = arguments.once or arguments.json or not sys.stdout.isatty()
    began = clock()
    try:
        while not latest.complete and clock() - began < ASK_S:
            sleep(0.1)
            if all(stream.problem or len(latest.seen[stream.host]) == 2 for stream in streams):
                break
        while True:
            problems = {stream.host: stream.problem for stream in streams if stream.problem}
            if once:
                silent = f"no answer within {ASK_S:.0f} s"
                problems = {**{host: silent for host, seen in latest.seen.items() if len(seen) < 2}, **problems}
            found = latest.document(problems)
            if arguments.json:
                engine_rank.say(json.dumps(found))
            else:
                text = "\n".join(lines(found))
                engine_rank.say(
                    text if once else f"\x1b[H\x1b[J{word_colours.paint(text) if word_colours.coloured() else text}"
                )
            if once:
                return 1 if problems else 0
            sleep(EVERY_S)
    finally:
        for stream in streams:
            stream.end()
