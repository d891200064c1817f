# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

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
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, meminfo, sysfs
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError, printable
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import engine_json, probe
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import names as engine_names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import rank as engine_rank
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import Names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fact as fabric_fact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight import node_health
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._status import every_node, screen

HELP = "show memory, GPU, rates of the cables and tokens per second of all nodes, live"
SCHEMA_VERSION = 1
EVERY_S = 2.0
MOST = 1e30  # of any number that a node tells
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
class Sample:
    """Counters as they stand, and what is so now. ``halves``: bytes in and out by interface, RDMA's and Ethernet's
    together; ``services``: by name, generated tokens since its start and requests."""

    at: float  # seconds, of this node
    total: float = 0
    available: float = 0
    load: float = 0
    gpu: Mapping[str, Any] = field(default_factory=dict)
    halves: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    services: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def sample(machine: Machine, metrics: Callable[[str, int, str], str] = probe.metrics) -> Sample:
    memory = meminfo.read(machine.root)
    return Sample(
        at=machine.clock(),
        total=memory.get("MemTotal", 0),
        available=memory.get("MemAvailable", 0),
        load=_load(machine),
        gpu=node_health.gpu_clocks(machine.runner, power=True) or {},
        halves=halves(machine),
        services=services(machine, metrics),
    )


def _load(machine: Machine) -> float:
    try:
        return float((machine.text("/proc/loadavg") or "").split()[0])
    except (ValueError, IndexError):
        return 0.0


def halves(machine: Machine) -> dict[str, tuple[float, float]]:
    """Of the cabled halves by the fabric fact; without one there are none."""
    try:
        rails = fabric_fact.load(fabric_fact.on_disk(machine), "this node").rails
    except SparkError:
        return {}
    found: dict[str, tuple[float, float]] = {}
    for rail in rails:
        rdma = machine.sysfs / "class/infiniband" / rail.rdma_device / "ports" / str(rail.rdma_port) / "counters"
        port = machine.sysfs / "class/net" / rail.netdev / "statistics"
        found[rail.netdev] = (
            (sysfs.read_int(rdma / "port_rcv_data") or 0) * _WORD + (sysfs.read_int(port / "rx_bytes") or 0),
            (sysfs.read_int(rdma / "port_xmit_data") or 0) * _WORD + (sysfs.read_int(port / "tx_bytes") or 0),
        )
    return found


def services(machine: Machine, metrics: Callable[[str, int, str], str]) -> dict[str, dict[str, float]]:
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
        values = {
            name: value
            for name, names in (("tokens", TOKENS), ("running", RUNNING), ("waiting", WAITING), ("cache", CACHE))
            if (value := total(text, names)) is not None
        }
        if values:
            found[instance or "engine"] = values
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


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and abs(value) < MOST else 0.0


def _words(value: Any) -> list[str]:
    return [printable(str(why))[:60].replace("\n", " ") for why in value[:16]] if isinstance(value, list) else []


def read(found: Mapping[str, Any]) -> Sample:
    """What another node says is not trusted: numbers are numbers, and names have no control characters."""

    def mapping(name: str) -> dict[str, Any]:
        value = found.get(name)
        some = list(value.items())[:64] if isinstance(value, dict) else []
        return {printable(str(key))[:40].replace("\n", " "): one for key, one in some}

    return Sample(
        at=_number(found.get("at")),
        total=_number(found.get("total")),
        available=_number(found.get("available")),
        load=_number(found.get("load")),
        gpu={
            name: _words(value) if name == "slowed" else _number(value)
            for name, value in mapping("gpu").items()
            if value is not None
        },
        halves={
            name: (_number(both[0]), _number(both[1]))
            for name, both in mapping("halves").items()
            if isinstance(both, (list, tuple)) and len(both) == 2
        },
        services={
            name: {str(key): _number(value) for key, value in values.items()}
            for name, values in mapping("services").items()
            if isinstance(values, dict)
        },
    )


def figures(before: Sample, now: Sample) -> dict[str, Any]:
    """Of one node, for ``--json``. A counter that went back was reset meanwhile."""
    seconds = max(now.at - before.at, 0.001)

    def rate(first: float, last: float) -> float:
        return max(last - first, 0.0) / seconds

    return {
        "memory_total_gib": round(now.total / GIB, 1),
        "memory_available_gib": round(now.available / GIB, 1),
        "load": now.load,
        "gpu": dict(now.gpu),
        "halves": {
            name: {
                "in_gbps": round(rate(before.halves.get(name, both)[0], both[0]) * 8 / 1e9, 3),
                "out_gbps": round(rate(before.halves.get(name, both)[1], both[1]) * 8 / 1e9, 3),
            }
            for name, both in now.halves.items()
        },
        "services": {
            name: {
                "tokens_per_s": round(rate(before.services.get(name, one).get("tokens", 0.0), one["tokens"]), 1)
                if "tokens" in one
                else None,
                **{key: one[key] for key in ("running", "waiting", "cache") if key in one},
            }
            for name, one in now.services.items()
        },
    }


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
