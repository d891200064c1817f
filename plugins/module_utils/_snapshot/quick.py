# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A snapshot of what moves every second: memory, GPU, halves of the fabric, work of the engines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import gpu, hardware
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import engine_json, metrics, probe
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import names as engine_names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import Names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import counters
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fact as fabric_fact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._snapshot.snapshot import Service, Snapshot

Ask = Callable[[probe.Target], str]  # its page of metrics


def read(machine: Machine, ask: Ask = probe.metrics) -> Snapshot:
    """Without a fabric fact there are no halves."""
    fact = None
    with contextlib.suppress(SparkError):
        fact = fabric_fact.load(fabric_fact.on_disk(machine), "this node")
    return Snapshot(
        host=fact.host if fact else "",
        at=machine.clock(),
        memory=hardware.memory(machine),
        load=_load(machine),
        clocks=gpu.clocks(machine),
        moved={rail.netdev: counters.both_ways(machine, rail) for rail in fact.rails} if fact else {},
        services=tuple(_services(machine, ask)),
    )


def _load(machine: Machine) -> float:
    try:
        return float((machine.text("/proc/loadavg") or "").split()[0])
    except (ValueError, IndexError):
        return 0.0


def _services(machine: Machine, ask: Ask) -> Iterator[Service]:
    """Of the engines whose API is on this node; one that does not answer is left out."""
    for instance in engine_names.instances(machine.root):
        path = machine.real(Names(instance).description)
        try:
            told = engine_json.read(path)
            if told.rank != 0 or not told.unit:
                continue
            work = metrics.work(ask(probe.target_of(told)))
        except SparkError:
            continue
        if work != metrics.Work():
            yield Service(instance, told.unit, told.model, work=work)
