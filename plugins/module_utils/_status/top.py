# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""``sparkmatrix top``: on the head, what every node does now: memory, GPU, both directions of each half, tokens per
second. A frame every two seconds at a terminal, one elsewhere."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, meminfo, sysfs
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Number, Words
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import engine_json, probe
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import names as engine_names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import rank as engine_rank
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import Names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fact as fabric_fact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight import node_health
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.node import Clocks
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._status import every_node, screen

HELP = "show memory, GPU, rates of the cables and tokens per second of all nodes, live"
SCHEMA_VERSION = 1
EVERY_S = 2.0
ASK_S = 20.0  # for the first two samples of a node
GIB = 2**30
ROOT = "This needs root: sudo sparkmatrix top"
# Names of vLLM and SGLang; TensorRT-LLM counts no tokens.
TOKENS = ("vllm:generation_tokens_total", "sglang:generation_tokens_total")
RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs")
WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs")
CACHE = ("vllm:kv_cache_usage_perc", "sglang:token_usage")
_WORD = 4  # bytes: what InfiniBand counts


# -- on the node ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moved:
    """Bytes in and out of a half, RDMA's and Ethernet's together."""

    received: Number = 0
    sent: Number = 0


@dataclass(frozen=True)
class Work:
    """What an engine tells: generated tokens since its start, requests, and how full its KV cache is (0 to 1)."""

    tokens: Optional[Number] = None
    running: Optional[Number] = None
    waiting: Optional[Number] = None
    cache: Optional[Number] = None


@dataclass(frozen=True)
class Sample:
    """Counters as they stand, and what is so now: ``halves`` by interface, ``services`` by name."""

    at: Number  # seconds, of this node
    total: Number = 0
    available: Number = 0
    load: Number = 0
    gpu: Optional[Clocks] = None
    halves: Mapping[Words, Moved] = field(default_factory=dict)
    services: Mapping[Words, Work] = field(default_factory=dict)


def sample(machine: Machine, metrics: Callable[[str, int, str], str] = probe.metrics) -> Sample:
    memory = meminfo.read(machine.root)
    return Sample(
        at=machine.clock(),
        total=memory.get("MemTotal", 0),
        available=memory.get("MemAvailable", 0),
        load=_load(machine),
        gpu=node_health.gpu_clocks(machine.runner),
        halves=halves(machine),
        services=services(machine, metrics),
    )


def _load(machine: Machine) -> float:
    try:
        return float((machine.text("/proc/loadavg") or "").split()[0])
    except (ValueError, IndexError):
        return 0.0


def halves(machine: Machine) -> dict[str, Moved]:
    """Of the cabled halves by the fabric fact; without one there are none."""
    try:
        rails = fabric_fact.load(fabric_fact.on_disk(machine), "this node").rails
    except SparkError:
        return {}
    found: dict[str, Moved] = {}
    for rail in rails:
        rdma = machine.sysfs / "class/infiniband" / rail.rdma_device / "ports" / str(rail.rdma_port) / "counters"
        port = machine.sysfs / "class/net" / rail.netdev / "statistics"
        found[rail.netdev] = Moved(
            (sysfs.read_int(rdma / "port_rcv_data") or 0) * _WORD + (sysfs.read_int(port / "rx_bytes") or 0),
            (sysfs.read_int(rdma / "port_xmit_data") or 0) * _WORD + (sysfs.read_int(port / "tx_bytes") or 0),
        )
    return found


def services(machine: Machine, metrics: Callable[[str, int, str], str]) -> dict[str, Work]:
    """Of the engines whose API is on this node; one that does not answer is left out."""
    found = {}
    for instance in engine_names.instances(machine.root):
        path = f"{machine.root.rstrip('/')}{Names(instance).description}"
        try:
            told = engine_json.read(path)
            if told.rank != 0 or not told.unit:
                continue
            target = probe.target_of(probe.read_config(path))
        except SparkError:
            continue
        text = metrics(target.host, target.port, target.key)
        work = Work(*(total(text, names) for names in (TOKENS, RUNNING, WAITING, CACHE)))
        if work != Work():
            found[instance or "engine"] = work
    return found


def total(metrics: str, names: tuple[str, ...]) -> float | None:
    """Of all ranks and replicas that tell it; None where nobody does."""
    values = []
    for line in metrics.splitlines():
        if line.startswith(names) and line[len(next(n for n in names if line.startswith(n))) :][:1] in ("{", " "):
            try:
                values.append(float(line.rsplit(maxsplit=1)[-1]))
            except ValueError:
                continue
    return sum(values) if values and all(map(math.isfinite, values)) else None


def tell(machine: Machine, rounds: int | None = None, say: Callable[[str], None] = engine_rank.say) -> None:
    """A sample every two seconds, until nobody listens any more."""
    done = 0
    while rounds is None or done < rounds:
        say(json.dumps(document.plain(sample(machine))))
        done += 1
        machine.sleep(EVERY_S)


# -- on the head ------------------------------------------------------------------------------------------------------


def read(found: Mapping[str, Any]) -> Sample:
    """What another node says is not trusted; raises :class:`TypeError` or :class:`ValueError`."""
    made: Sample = document.load(Sample, found)
    return made


def figures(before: Sample, now: Sample) -> dict[str, Any]:
    """Of one node, for ``--json``. A counter that went back was reset meanwhile."""
    seconds = max(now.at - before.at, 0.001)

    def rate(first: float | None, last: float) -> float:
        return max(last - (first or 0), 0.0) / seconds

    def gbps(first: float, last: float) -> float:
        return round(rate(first, last) * 8 / 1e9, 3)

    halves = {name: (before.halves.get(name, both), both) for name, both in now.halves.items()}
    services = {name: (before.services.get(name, one), one) for name, one in now.services.items()}
    return {
        "memory_total_gib": round(now.total / GIB, 1),
        "memory_available_gib": round(now.available / GIB, 1),
        "load": now.load,
        "gpu": _told(now.gpu),
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
    """The last two samples of each node."""

    def __init__(self, nodes: Mapping[str, bool]) -> None:
        self.samples: dict[str, list[Sample]] = {host: [] for host in nodes}
        self.lock = threading.Lock()

    def take(self, host: str, found: Mapping[str, Any]) -> None:
        with self.lock:
            self.samples[host] = [*self.samples[host][-1:], read(found)]

    @property
    def complete(self) -> bool:
        with self.lock:
            return all(len(seen) == 2 for seen in self.samples.values())

    def document(self, problems: Mapping[str, str]) -> dict[str, Any]:
        with self.lock:
            seen = {host: list(samples) for host, samples in self.samples.items()}
        return {
            "schema": SCHEMA_VERSION,
            "nodes": {
                host: figures(*samples)
                if len(samples) == 2 and host not in problems
                else {"problem": problems.get(host, "not yet")}
                for host, samples in seen.items()
            },
        }


def lines(found: Mapping[str, Any]) -> list[str]:
    made = []
    for host, one in found["nodes"].items():
        if "problem" in one:
            made.append(f"{host:<10} not known: {one['problem']}")
            continue
        used = one["memory_total_gib"] - one["memory_available_gib"]
        parts = [f"memory {used:.1f} of {one['memory_total_gib']:.1f} GiB", f"load {one['load']:.1f}", _gpu(one["gpu"])]
        made.append(f"{host:<10} {', '.join(part for part in parts if part)}")
        for name, both in one["halves"].items():
            made.append(f"{'':<10} {name:<15} in {both['in_gbps']:6.1f}  out {both['out_gbps']:6.1f} Gb/s")
        for name, service in one["services"].items():
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
    for one in streams:
        threading.Thread(target=one.read, args=(latest.take,), daemon=True).start()
    once = arguments.once or arguments.json or not sys.stdout.isatty()
    began = clock()
    try:
        while not latest.complete and clock() - began < ASK_S:
            sleep(0.1)
            if all(one.problem or len(latest.samples[one.host]) == 2 for one in streams):
                break
        while True:
            problems = {one.host: one.problem for one in streams if one.problem}
            if once:
                silent = f"no answer within {ASK_S:.0f} s"
                problems = {**{host: silent for host, seen in latest.samples.items() if len(seen) < 2}, **problems}
            found = latest.document(problems)
            if arguments.json:
                engine_rank.say(json.dumps(found))
            else:
                text = "\n".join(lines(found))
                engine_rank.say(text if once else f"\x1b[H\x1b[J{screen.paint(text) if screen.coloured() else text}")
            if once:
                return 1 if problems else 0
            sleep(EVERY_S)
    finally:
        for one in streams:
            one.end()
