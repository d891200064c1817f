# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""``sparkmatrix drift``: what no longer is as it was set up and verified, without Ansible; for a timer, or cron.

Of each node: addresses, MTU and GIDs of the fabric, port filter, environment of the ranks, options of the engine, image
and weights; between nodes: kernel, driver and firmware. The head asks the others over the nodes' own ssh (``--peer``).
Each difference is a line on standard output, which systemd writes to the journal; ``--metrics`` writes a file for
Prometheus (textfile collector of node_exporter).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, json_text, systemd
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import run_limited
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.document import one_of
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.exposition import Sample, text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Word, Words
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine, publish
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import engine_json, kept_plan, names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.report import MAX_CHARACTERS
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fabric_drift
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fact as fabric_fact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import status as fabric_status
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.status import Fabric
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import peers
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._snapshot import full
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._snapshot.snapshot import (
    Difference,
    Service,
    Snapshot,
)

HELP = "show what is no longer as it was set up and verified, or cannot be looked at (exit code 1)"
METRICS = {
    "sparkmatrix_drift": "What no longer is as it was set up and verified.",
    "sparkmatrix_drift_checked_seconds": "When it was looked at, seconds since 1970.",
}
KINDS = (
    *fabric_drift.KINDS,
    "fabric_fact",
    "port_filter_off",
    "environment_differs",
    "option_ignored",
    "image_differs",
    "dangling_weights",
    "firmware_differs",
    "peers_unreachable",
    "not_looked_at",
)  # by the names of the rules
MAX_DRIFTS = 100  # of one node
ASK_S = 60.0
NOT_LOOKED = 2
NONE = "none"  # of a version that a node does not have
HERE = "this node"


@dataclass(frozen=True)
class Drift:
    """``device``: the unit that it is about, where it is one; ``later``: only the next start will meet it."""

    host: Words
    kind: Word = field(metadata=one_of(*KINDS))
    found: Words
    device: Words = ""
    later: bool = False

    def __str__(self) -> str:
        return f"drift {self.kind} {f'{self.host} {self.device}'.strip()}: {self.found}"


def of_node(seen: Snapshot) -> Iterator[Drift]:
    """For doctor, too: what is not as it was planned, by its rule."""
    host = seen.host or HERE
    for found in seen.filters:
        yield Drift(host, "port_filter_off", found)
    other = {rank.unit: rank.environment for rank in reversed(seen.ranks) if rank.environment}
    for unit, differences in other.items():
        yield Drift(host, "environment_differs", f"a running rank has {_shown(differences)}", unit)
    for unit in {rank.unit: None for rank in seen.ranks if not rank.environment_known}:
        yield Drift(host, "not_looked_at", "the environment of a running rank cannot be read", unit)
    for problem in seen.problems:
        yield Drift(host, "not_looked_at", problem)
    for service in seen.services:
        yield from _of_service(host, service)
    for model in seen.weights:
        if model.state in ("broken", "missing"):
            words = f"{model.name} is {'not whole' if model.state == 'broken' else 'missing'}: {model.found}"
            yield Drift(host, "dangling_weights", words)


def _of_service(host: str, service: Service) -> Iterator[Drift]:
    if service.other_settings:
        words = "it runs with other settings than those that were last written"
        yield Drift(host, "environment_differs", words, service.unit)
    if service.ignored:
        yield Drift(host, "option_ignored", f"the engine has {_shown(service.ignored)}", service.unit)
    planned = service.image_planned
    if service.image and planned and service.image_running not in ("", planned):
        words = (
            f"the container runs the image {_short(service.image_running)}, and {service.image} was {_short(planned)}"
        )
        yield Drift(host, "image_differs", words, service.unit)
    elif service.image and planned and service.image_named != planned:
        now = f"is {_short(service.image_named)} now" if service.image_named else "is gone"
        words = f"{service.image} {now}, and was {_short(planned)}: the next start takes another one"
        yield Drift(host, "image_differs", words, service.unit, later=True)


def _shown(differences: Sequence[Difference]) -> str:
    return ", ".join(
        f"{difference.name} {difference.found or 'unset'} and not {difference.planned or 'unset'}"
        for difference in differences[:5]
    )


def _short(ident: str) -> str:
    return ident.removeprefix("sha256:")[:12]


def of_fabric(host: str, fabric: Fabric, serves: bool) -> Iterator[Drift]:
    """Without an applied fact nothing of the fabric is compared."""
    if fabric.problem or (fabric.fact is None and serves):
        yield Drift(host, "fabric_fact", fabric.problem or f"the fabric fact is gone. {fabric_fact.REMEDY}")
    for item in fabric.drifted:
        yield Drift(host, item.kind, str(item))
    if fabric.fact is not None and fabric.fact.state != "applied":
        words = f"the fabric is {fabric.fact.state}: a run is at work there, or has to come again"
        yield Drift(host, "not_looked_at", f"{words}. {fabric_fact.REMEDY}")


@dataclass(frozen=True)
class Node:
    """What one node says of itself."""

    host: Words
    drifts: tuple[Drift, ...] = ()
    versions: Mapping[Words, Words] = field(default_factory=dict)

    def as_text(self) -> str:
        return json.dumps(document.plain(self)) + "\n"


def read(host: str, text: str) -> Node:
    """What ``drift --peer`` of another node has printed. It is not trusted, nor what it calls itself."""
    with json_text.Reading("it is no answer of this program", host, "Give all nodes the same release: run site.yml"):
        told: Node = document.load(Node, json_text.mapping(text))
    return Node(host, tuple(replace(drift, host=host) for drift in told.drifts[:MAX_DRIFTS]), told.versions)


def wanted(machine: Machine, fact: FabricFact | None) -> tuple[list[str], list[str]]:
    """Whom this node asks, and what it cannot read of that. The head of the cluster asks every node that it reaches by
    ssh, whatever runs there; any node those of the services whose keeper is here."""
    hosts: dict[str, None] = {}
    unread = []
    for instance in names.instances(machine.root):
        try:
            told = engine_json.read(machine.real(names.Names(instance).description))
        except SparkError as exc:
            unread.append(str(exc))
            continue
        if systemd.unit(machine.runner, names.Names(instance).keeper).exists:
            hosts.update({member.host: None for member in told.members if member.ranks and member.rank != told.rank})
    if fact is not None and fact.rank == 0:
        try:
            lines = (machine.read(peers.SSH_CONFIG) or "").split("\n")
        except SparkError as exc:
            lines = []
            unread.append(str(exc))
        # As the role peers writes it: short name, name in the inventory where that is another one, name of mDNS.
        for line, after in zip(lines, lines[1:]):
            called = line.split()[1:] if line.startswith("Host ") and after.strip().startswith("HostName ") else []
            if called and {fact.host, *hosts}.isdisjoint(called):
                hosts[called[1] if len(called) > 2 else called[0]] = None
    return list(hosts), unread


def others(hosts: Sequence[str], ask: Callable[[str], Any]) -> list[Node]:
    found = []
    for host, done in zip(hosts, peers.at_once(hosts, ask)):
        try:
            found.append(read(host, done.out))
        except SparkError:
            said = f"it does not tell what has drifted: {peers.words(done.complaint)}"
            found.append(Node(host, (Drift(host, "peers_unreachable", said),)))
    return found


def of_versions(nodes: Sequence[Node]) -> Iterator[Drift]:
    """Most of them have what was set up; the others differ. One that has none differs, too: its driver is gone."""
    for name in full.VERSIONS:
        seen: dict[str, list[str]] = defaultdict(list)
        for node in nodes:
            if node.versions:  # else it is silent
                seen[node.versions.get(name) or NONE].append(node.host)
        usual = max(seen, key=lambda version: len(seen[version]), default="")  # of as many, that of the head
        for version, hosts in seen.items():
            if version != usual:
                for host in hosts:
                    yield Drift(host, "firmware_differs", f"{name} {version}, and {usual} on {', '.join(seen[usual])}")


def metrics(found: Sequence[Drift], hosts: Sequence[str], now: float) -> str:
    """Prometheus' text format; a node without a drift has lines with 0, so that an alert can end."""
    counts: dict[tuple[str, str], int] = {(host, kind): 0 for host in hosts for kind in KINDS}
    for drift in found:
        counts[drift.host, drift.kind] = counts.get((drift.host, drift.kind), 0) + 1
    samples = [
        Sample("sparkmatrix_drift", count, {"host": name, "kind": kind}) for (name, kind), count in counts.items()
    ]
    return text(METRICS, [*samples, Sample("sparkmatrix_drift_checked_seconds", round(now))])


def look(machine: Machine) -> Snapshot:
    return full.read(machine, full.Request(days=0))


def collect(
    machine: Machine, ask: Callable[[str], Any], look: Callable[[Machine], Snapshot] = look
) -> tuple[list[Drift], tuple[str, ...]]:
    """What has drifted, and on which nodes was looked for it."""
    own, fact = this_node(machine, look)
    hosts, unread = wanted(machine, fact)
    told = " ".join(drift.found for drift in own.drifts)
    more = [Drift(own.host, "not_looked_at", problem) for problem in unread if problem not in told]
    own = replace(own, drifts=(*own.drifts, *more))
    nodes = [own, *others(hosts, ask)]
    found = [*(drift for node in nodes for drift in node.drifts), *of_versions(nodes)]
    return found, tuple(node.host for node in nodes)


def this_node(machine: Machine, look: Callable[[Machine], Snapshot] = look) -> tuple[Node, FabricFact | None]:
    """With the fabric fact, where there is one."""
    seen = look(machine)
    host = seen.host or HERE
    fabric = Fabric()
    try:
        fabric = fabric_status.read(machine, full=False)
        own = list(of_fabric(host, fabric, kept_plan.read(machine.root).current is not None))
    except (SparkError, OSError) as exc:
        own = [Drift(host, "fabric_fact", str(exc))]
    return Node(host, (*own, *of_node(seen)), seen.versions), fabric.fact


# -- sparkmatrix drift ------------------------------------------------------------------------------------------------


def configure(parser: argparse.ArgumentParser) -> None:
    words = "also write a file for node_exporter's textfile collector"
    parser.add_argument("--metrics", default="", metavar="FILE", help=words)
    parser.add_argument("--peer", action="store_true", help="of this node only, as the head reads it")


def run(arguments: argparse.Namespace) -> int:
    if os.geteuid() != 0:
        sys.stderr.write("this needs root: sudo sparkmatrix drift\n")
        return NOT_LOOKED
    if arguments.peer:
        sys.stdout.write(this_node(Machine())[0].as_text())
        return 0
    found, hosts = collect(Machine(), _ask)
    sys.stdout.write("".join(f"{drift}\n" for drift in found) or "nothing has drifted\n")
    if arguments.metrics:
        try:
            publish(arguments.metrics, metrics(found, hosts, time.time()))
        except OSError as exc:
            sys.stderr.write(f"{arguments.metrics}: {exc.strerror}\n")
            return NOT_LOOKED
    return int(bool(found))


def _ask(host: str) -> Any:
    return run_limited(peers.ssh(host, "drift"), ASK_S, MAX_CHARACTERS)
