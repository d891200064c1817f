# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""``sparkmatrix-node metrics``: what no exporter has of a Spark, as a file for node_exporter's textfile collector.

GPU (what nvidia-smi really tells on a GB10), each half of the fabric against what was verified, RDMA's counters,
keeper, probe, ranks, models, gateway and the last verdicts. Memory, pressure, disks and ports come from node_exporter.
No part keeps another one from being looked at. One process that stays is cheaper than one every quarter of a minute.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import gpu, paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.exposition import Sample, text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.gpu import Clocks
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine, publish
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import engine_json, kept_plan
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import rank as engine_rank
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import Names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import counters, fabric_drift
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import status as fabric_status
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import Rail
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.interfaces import Effective
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import names as gateway_names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import status as gateway_status
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import pulse
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import status as keeper_status
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.store import Entry, Store, seconds
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._snapshot import models
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict import store as verdict_store

HELP = "write what this node can tell of itself for Prometheus (textfile collector of node_exporter)"
FILE = f"{paths.METRICS}/node.prom"
EVERY_S = 15.0
SELDOM_S = 300.0  # for what lies on disks
MAX_RUNS = 1
PHASES = ("waiting", "starting", "memory", "loading", "serving", "draining", "stopping", "backoff", "gave_up")

METRICS = {
    "sparkmatrix_gpu_utilization_ratio": "Share of time in which the GPU worked.",
    "sparkmatrix_gpu_temperature_celsius": "Temperature of the GPU.",
    "sparkmatrix_gpu_power_watts": "Power that the GPU draws.",
    "sparkmatrix_gpu_sm_clock_hertz": "Clock of the GPU's multiprocessors; idle it is low.",
    "sparkmatrix_gpu_slowed": "Whether the driver holds the GPU's clock down, by reason (of those that are a fault).",
    "sparkmatrix_fabric_applied": "Whether the fabric of this node is applied; 0 while a change is under way.",
    "sparkmatrix_half_up": "Whether a half of a cable is switched on and has a link.",
    "sparkmatrix_half_mtu_bytes": "MTU of a half now.",
    "sparkmatrix_fabric_drift": "What of a half is no longer as it was verified, by kind.",
    "sparkmatrix_rdma_bytes_total": "Bytes that RDMA has moved over a half, both directions.",
    "sparkmatrix_rdma_events_total": "Losses, repeats, pauses and congestion that the adapter has counted.",
    "sparkmatrix_keeper_running": "Whether the keeper of a service runs.",
    "sparkmatrix_keeper_phase": "Phase of the keeper; the present one is 1.",
    "sparkmatrix_keeper_silent_seconds": "Time since the keeper's last sign of life.",
    "sparkmatrix_keeper_failures": "Failures in a row.",
    "sparkmatrix_keeper_restarts": "Restarts and their kind, of those that the keeper remembers (50).",
    "sparkmatrix_keeper_last_restart_seconds": "When it was last restarted, seconds since 1970, and why.",
    "sparkmatrix_probe_answered": "Whether the last question of the keeper got a token.",
    "sparkmatrix_probe_seconds": "How long the last question of the keeper took.",
    "sparkmatrix_probe_asked_seconds": "When the keeper asked last, seconds since 1970.",
    "sparkmatrix_rank_unit_up": "Whether a unit of the ranks of this node runs.",
    "sparkmatrix_rank_processes": "Processes of ranks in a unit.",
    "sparkmatrix_watchdog_stopped_seconds": "When the memory watchdog stopped the engine last, seconds since 1970.",
    "sparkmatrix_model_present": "Whether a model of the plan is here; 0: missing or not whole.",
    "sparkmatrix_gateway_answers": "Whether the gateway answers for itself.",
    "sparkmatrix_gateway_connections": "Connections of the gateway, by state.",
    "sparkmatrix_gateway_requests_total": "Requests that the gateway has taken since it was started.",
    "sparkmatrix_gateway_held": "Requests that wait for their engine now.",
    "sparkmatrix_gateway_held_total": "Requests that have waited for their engine.",
    "sparkmatrix_gateway_held_lost_total": "Of requests that would wait, those never sent, and why.",
    "sparkmatrix_gateway_relay_answers": "Whether the relay behind the gateway answers for itself.",
    "sparkmatrix_gateway_broken_total": "Answers that had begun and ended with an error, since their engine had ended.",
    "sparkmatrix_verdicts": "Checks of the last run of verify, doctor or benchmark, by outcome.",
    "sparkmatrix_verdicts_seconds": "When that run began, seconds since 1970.",
    "sparkmatrix_metrics_part_ok": "Whether a part of these metrics could be read.",
    "sparkmatrix_metrics_took_seconds": "How long it took to read all of this.",
    "sparkmatrix_metrics_cpu_seconds_total": "Processor time of reading all of this, programs included.",
}
Samples = Iterator[Sample]


@dataclass
class Collector:
    """``gpu``, ``gateway`` and ``relay`` are replaced by tests."""

    machine: Machine = field(default_factory=Machine)
    gpu: Callable[[Machine], Clocks | None] = gpu.clocks
    gateway: Callable[[], Mapping[str, int] | None] = gateway_status.connections
    relay: Callable[[], gateway_status.Relayed | None] = gateway_status.relay
    said: dict[str, str] = field(default_factory=dict)  # what is wrong with a part
    nodes: dict[str, engine_rank.Node] = field(default_factory=dict)
    seldom: list[Sample] = field(default_factory=list)
    seldom_at: float | None = None

    def all(self) -> str:
        began = self.machine.clock()
        found: list[Sample] = []
        for name, part in (
            ("gpu", self.of_gpu),
            ("fabric", self.of_fabric),
            ("keeper", self.of_keepers),
            ("ranks", self.of_ranks),
            ("gateway", self.of_gateway),
        ):
            found += self.part(name, part)
        if self.seldom_at is None or began - self.seldom_at >= SELDOM_S:
            self.seldom = [*self.part("models", self.of_models), *self.part("verdicts", self.of_verdicts)]
            self.seldom_at = began
        used = os.times()
        spent = used.user + used.system + used.children_user + used.children_system
        found += [
            *self.seldom,
            Sample("sparkmatrix_metrics_took_seconds", self.machine.clock() - began),
            Sample("sparkmatrix_metrics_cpu_seconds_total", round(spent, 2)),
        ]
        return text(METRICS, found)

    def part(self, name: str, read: Callable[[], Samples]) -> list[Sample]:
        """What fails is said once, and the rest is looked at."""
        problem, made = "", []
        try:
            made = list(read())
        except (SparkError, OSError, ValueError, TypeError, LookupError) as exc:
            problem = f"{name}: {exc}"
        if problem != self.said.get(name, ""):
            sys.stderr.write(f"{problem or f'{name}: it can be read again'}\n")
        self.said[name] = problem
        return [*made, Sample("sparkmatrix_metrics_part_ok", not problem, {"part": name})]

    # -- the parts

    def of_gpu(self) -> Samples:
        """Nothing where there is no GPU; one that the driver has and nvidia-smi does not tell of is no GPU at rest."""
        found = self.gpu(self.machine)
        if found is None:
            if self.machine.names("/proc/driver/nvidia/gpus"):
                raise SparkError("nvidia-smi does not tell how fast the GPU runs", "", "Try it by hand: nvidia-smi")
            return
        for value, name, scale in (
            (found.busy, "utilization_ratio", 0.01),
            (found.celsius, "temperature_celsius", 1),
            (found.watts, "power_watts", 1),
            (found.mhz, "sm_clock_hertz", 1e6),
        ):
            if value is not None:
                yield Sample(f"sparkmatrix_gpu_{name}", value * scale)
        for why in gpu.FAULTS:
            yield Sample("sparkmatrix_gpu_slowed", why in found.slowed, {"reason": why})

    def of_fabric(self) -> Samples:
        """Nothing where the fabric was never set up."""
        fabric = fabric_status.read(self.machine, full=False)
        fact = fabric.fact
        if fabric.problem:
            raise SparkError(fabric.problem)
        if fact is None:
            return
        yield Sample("sparkmatrix_fabric_applied", fact.state == "applied")
        drifted = {(drift.rail.netdev, drift.kind) for drift in fabric.drifted}
        for rail in fact.rails:
            half = {"device": rail.rdma_device, "interface": rail.netdev, "cage": str(rail.cage)}
            state = fabric.now.get(rail.netdev, Effective())
            yield Sample("sparkmatrix_half_up", state.up and state.carrier, half)
            yield Sample("sparkmatrix_half_mtu_bytes", state.mtu, half)
            for kind in fabric_drift.KINDS:
                yield Sample("sparkmatrix_fabric_drift", (rail.netdev, kind) in drifted, {**half, "kind": kind})
            if fact.transport == "rdma":
                yield from self.of_rdma(rail, half)

    def of_rdma(self, rail: Rail, half: Mapping[str, str]) -> Samples:
        found = counters.read(self.machine, rail.rdma_device, rail.rdma_port, rail.netdev)
        moved = found.pop("bytes", None)
        if moved is not None:
            yield Sample("sparkmatrix_rdma_bytes_total", moved, half)
        found |= counters.hardware(self.machine, rail.rdma_device, rail.rdma_port)
        for name, count in found.items():
            yield Sample("sparkmatrix_rdma_events_total", count, {**half, "counter": name})

    def of_keepers(self) -> Samples:
        """On the head of a service."""
        root = self.machine.root
        for instance in keeper_status.kept(root):
            store = Store(root, instance)
            unit = self.machine.unit(Names(instance).keeper)
            if not (store.exists and unit.exists):
                continue
            service = {"service": _service(instance)}
            state, _damage = store.look()
            yield Sample("sparkmatrix_keeper_running", unit.running, service)
            for phase in PHASES:
                current = unit.running and state.phase == phase
                ended = not unit.running and phase == "gave_up" == state.end
                yield Sample("sparkmatrix_keeper_phase", current or ended, {**service, "phase": phase})
            yield Sample("sparkmatrix_keeper_failures", state.failures, service)
            sign = pulse.last(instance, root, self.machine.clock)
            if sign is not None and unit.running:
                yield Sample("sparkmatrix_keeper_silent_seconds", sign.age_s, service)
            yield from _history(state.history, service)
            if sign is not None and sign.probed is not None:
                yield Sample("sparkmatrix_probe_answered", sign.probed.answered, service)
                yield Sample("sparkmatrix_probe_seconds", sign.probed.seconds, service)
                yield Sample("sparkmatrix_probe_asked_seconds", sign.probed.at, service)

    def of_ranks(self) -> Samples:
        for instance, told in engine_json.here(self.machine.root).items():
            node = self.nodes.get(instance)
            if node is None or node.ranks != engine_rank.of(told):
                node = self.nodes[instance] = engine_rank.Node(engine_rank.of(told), self.machine)
            report = node.report()
            for unit, found in report.units.items():
                labels = {"service": _service(instance), "unit": unit}
                yield Sample("sparkmatrix_rank_unit_up", found.active == "active", labels)
                if found.looked:
                    yield Sample("sparkmatrix_rank_processes", len(found.ranks), labels)
            stopped = seconds(report.watchdog.time)
            if stopped is not None:
                yield Sample("sparkmatrix_watchdog_stopped_seconds", stopped, {"reason": report.watchdog.reason})

    def of_gateway(self) -> Samples:
        """Where there is one."""
        if not self.machine.exists(gateway_names.DESCRIPTION):
            return
        found = self.gateway()
        yield Sample("sparkmatrix_gateway_answers", found is not None)
        for state, count in (found or {}).items():
            if state == "requests":
                yield Sample("sparkmatrix_gateway_requests_total", count)
            else:
                yield Sample("sparkmatrix_gateway_connections", count, {"state": state})
        if not self.machine.exists(gateway_names.RELAY_CONFIG):  # one of an earlier release
            return
        relayed = self.relay()
        yield Sample("sparkmatrix_gateway_relay_answers", relayed is not None)
        if relayed is None:
            return
        yield Sample("sparkmatrix_gateway_held", relayed.held)
        yield Sample("sparkmatrix_gateway_held_total", relayed.held_total)
        for how, count in (("left", relayed.gave_up), ("late", relayed.late), ("full", relayed.refused)):
            yield Sample("sparkmatrix_gateway_held_lost_total", count, {"how": how})
        yield Sample("sparkmatrix_gateway_broken_total", relayed.broken)

    def of_models(self) -> Samples:
        """Those of the plan that this node serves by. Reads no file of a model."""
        kept = kept_plan.read(self.machine.root)
        if kept.refused:
            raise SparkError(f"the engine plan cannot be read: {kept.refused}")
        plan = kept.current
        for model in plan.models if plan else ():
            state = models.read(self.machine, model, plan.model_cache if plan else "").state
            if state != "unseen":
                labels = {"model": model.name, "revision": model.revision}
                yield Sample("sparkmatrix_model_present", state in ("whole", "foreign"), labels)

    def of_verdicts(self) -> Samples:
        """On the head."""
        for run in verdict_store.read(MAX_RUNS, self.machine.root)[0]:
            counts: dict[str, int] = {}
            for verdict in run.verdicts:
                counts[verdict.outcome] = counts.get(verdict.outcome, 0) + 1
            for outcome, count in counts.items():
                yield Sample("sparkmatrix_verdicts", count, {"playbook": run.playbook, "outcome": outcome})
            began = seconds(run.at.replace("Z", "+00:00"))
            if began is not None:
                yield Sample("sparkmatrix_verdicts_seconds", began, {"playbook": run.playbook})


def _service(instance: str) -> str:
    return instance or "engine"


def _history(history: Sequence[Entry], service: Mapping[str, str]) -> Samples:
    for event, count in Counter(entry.event for entry in history).items():
        yield Sample("sparkmatrix_keeper_restarts", count, {**service, "event": event})
    for entry in history[-1:]:
        at = seconds(entry.time)
        if at is not None:
            why = {"event": entry.event, "host": entry.host, "reason": entry.reason}
            yield Sample("sparkmatrix_keeper_last_restart_seconds", at, {**service, **why})


# -- sparkmatrix-node metrics -----------------------------------------------------------------------------------------


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--file", default=FILE, help=f"what is written ({FILE}); - is standard output")
    parser.add_argument("--every", type=float, default=0, metavar="SECONDS", help="go on, and write it so often")


def run(arguments: argparse.Namespace) -> int:
    collector = Collector()
    while True:
        began = time.monotonic()
        made = collector.all()
        if arguments.file == "-":
            sys.stdout.write(made)
        else:
            try:
                publish(arguments.file, made)
            except OSError as exc:
                sys.stderr.write(f"{arguments.file}: {exc.strerror}\n")
                return 1
        if arguments.every <= 0:
            return 0
        time.sleep(max(arguments.every - (time.monotonic() - began), 1.0))
