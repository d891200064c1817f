# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""``sparkmatrix drift``: what no longer is as it was set up and verified, without Ansible; for a timer, or cron.

Of each node: addresses, MTU and GIDs of the fabric, port filter, environment of the ranks, options of the engine, image
and weights; between nodes: kernel, driver and firmware. The head asks the others over the nodes' own ssh (``--peer``).
Each difference is a line on standard output, which systemd writes to the journal; ``--metrics`` writes a file for
Prometheus (textfile collector of node_exporter).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text, systemd
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import run_limited
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import engine_json, kept_plan, names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fact as fabric_fact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import status as fabric_status
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import peers
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.report import MOST_CHARACTERS
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._metrics.exposition import Sample, text, write
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.observation import Observation
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.observe import Asked, observe

HELP = "show what is no longer as it was set up and verified, or cannot be looked at (exit code 1)"
METRICS = {
    "sparkmatrix_drift": "What no longer is as it was set up and verified.",
    "sparkmatrix_drift_checked_seconds": "When it was looked at, seconds since 1970.",
}
KINDS = ("fabric", "port_filter", "environment", "options", "image", "weights", "versions", "silent", "unseen")
MOST_DRIFTS = 100  # of one node
ASK_S = 60.0
NOT_LOOKED = 2
NONE = "none"  # of a version that a node does not have
# What has to be the same on all nodes, and the file where it stands; of a pattern all of them.
VERSIONS: Mapping[str, str] = {
    "kernel": "/proc/sys/kernel/osrelease",
    "driver": "/proc/driver/nvidia/version",
    "UEFI firmware": "/sys/class/dmi/id/bios_version",
    "ConnectX firmware": "/sys/class/infiniband/*/fw_ver",
}
HERE = "this node"
DRIFTED = "  "  # fabric-status indents what has drifted below its interface


@dataclass(frozen=True)
class Drift:
    host: str
    kind: str  # of KINDS
    found: str

    def __str__(self) -> str:
        return f"drift {self.kind} {self.host}: {self.found}"


def of_node(seen: Observation) -> Iterator[Drift]:
    host = seen.host or HERE
    for found in seen.filters:
        yield Drift(host, "port_filter", found)
    for rank in seen.ranks:
        for one in rank.environment:
            words = f"{rank.title} has {one.name}={one.found or '(unset)'}, planned is {one.planned or '(unset)'}"
            yield Drift(host, "environment", words)
        if not rank.environment_known:
            yield Drift(host, "unseen", f"the environment of {rank.title} cannot be read")
    for problem in seen.problems:
        yield Drift(host, "unseen", problem)
    for service in seen.services:
        if service.other_settings:
            yield Drift(host, "environment", f"{service.unit} runs with other settings than those last written")
        for one in service.ignored:
            yield Drift(host, "options", f"{service.unit} has {one.name} {one.found}, planned is {one.planned}")
        for name, ident in (("runs", service.image_running), ("is called", service.image_named)):
            if service.image_planned and ident != service.image_planned and (ident or name == "is called"):
                words = f"{service.image}: {ident or 'nothing'} {name} so, planned is {service.image_planned}"
                yield Drift(host, "image", words)
    for model in seen.weights:
        if model.state in ("broken", "missing"):
            yield Drift(host, "weights", f"{model.name}: {model.found}")


def of_fabric(host: str, lines: Sequence[str], wrong: bool) -> list[Drift]:
    """What ``fabric-status`` prints."""
    found = [Drift(host, "fabric", line.strip()) for line in lines if line.startswith(DRIFTED)]
    return found or ([Drift(host, "fabric", "; ".join(lines)[:500])] if wrong else [])


@dataclass(frozen=True)
class Node:
    """What one node says of itself."""

    host: str
    drifts: tuple[Drift, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)

    def as_text(self) -> str:
        found = [[one.kind, one.found] for one in self.drifts]
        return json.dumps({"drifts": found, "versions": dict(self.versions)}) + "\n"


def read(host: str, text: str) -> Node:
    """What ``drift --peer`` of another node has printed. It is not trusted."""
    with json_text.Reading("it is no answer of this program", host, "Give all nodes the same release: run site.yml"):
        told = json_text.mapping(text)
        drifts = []
        for kind, found in list(told["drifts"])[:MOST_DRIFTS]:
            if kind not in KINDS:
                raise ValueError(f"it names {peers.words(str(kind))[:40]}")
            drifts.append(Drift(host, kind, peers.words(str(found))))
        versions = {name: peers.words(str(told["versions"].get(name) or "")) for name in VERSIONS}
        return Node(host, tuple(drifts), versions)


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
            hosts.update({one.host: None for one in told.members if one.ranks and one.rank != told.rank})
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
    with ThreadPoolExecutor(max_workers=16) as pool:
        answers = dict(zip(hosts, pool.map(ask, hosts)))
    found = []
    for host, done in answers.items():
        try:
            found.append(read(host, done.out))
        except SparkError:
            said = peers.words(done.complaint)
            found.append(Node(host, (Drift(host, "silent", f"it does not tell what has drifted: {said}"),)))
    return found


def of_versions(nodes: Sequence[Node]) -> Iterator[Drift]:
    """Most of them have what was set up; the others differ. One that has none differs, too: its driver is gone."""
    for name in VERSIONS:
        seen: dict[str, list[str]] = defaultdict(list)
        for node in nodes:
            if node.versions:  # else it is silent
                seen[node.versions.get(name) or NONE].append(node.host)
        usual = max(seen, key=lambda version: len(seen[version]), default="")  # of as many, that of the head
        for version, hosts in seen.items():
            if version != usual:
                for host in hosts:
                    yield Drift(host, "versions", f"{name} {version}, and {usual} on {', '.join(seen[usual])}")


def versions(machine: Machine) -> dict[str, str]:
    found = {}
    for name, place in VERSIONS.items():
        above, star, below = place.partition("/*")
        files = [f"{above}/{one}{below}" for one in machine.names(above)] if star else [place]
        texts = sorted({(machine.text(file) or "").partition("\n")[0].strip() for file in files} - {""})
        found[name] = ", ".join(texts)
    return found


def metrics(found: Sequence[Drift], hosts: Sequence[str], now: float) -> str:
    """Prometheus' text format; a node without a drift has lines with 0, so that an alert can end."""
    counts: dict[tuple[str, str], int] = {(host, kind): 0 for host in hosts for kind in KINDS}
    for one in found:
        counts[one.host, one.kind] = counts.get((one.host, one.kind), 0) + 1
    samples = [
        Sample("sparkmatrix_drift", count, {"host": name, "kind": kind}) for (name, kind), count in counts.items()
    ]
    return text(METRICS, [*samples, Sample("sparkmatrix_drift_checked_seconds", round(now))])


def this_node(machine: Machine, asked: Asked | None = None) -> Node:
    seen = observe(machine, asked or Asked(days=0))
    host = seen.host or HERE
    found = list(of_node(seen))
    try:
        lines, wrong = fabric_status.lines(machine)
        own = [drift for drift in of_fabric(host, lines, wrong) if drift.found not in {one.found for one in found}]
        own += _not_verified(machine, host)
    except (SparkError, OSError) as exc:
        own = [Drift(host, "fabric", str(exc))]
    return Node(host, (*own, *found), versions(machine))


def _fact(machine: Machine) -> FabricFact | None:
    """None where there is none that can be read; :func:`this_node` says so."""
    with contextlib.suppress(SparkError):
        return fabric_fact.load(fabric_fact.on_disk(machine), HERE)
    return None


def _not_verified(machine: Machine, host: str) -> list[Drift]:
    """Without an applied fact nothing of the fabric is compared."""
    if fabric_fact.on_disk(machine) is None:
        serves = kept_plan.read(machine.root).current is not None
        return [Drift(host, "fabric", f"the fabric fact is gone. {fabric_fact.REMEDY}")] if serves else []
    fact = _fact(machine)
    if fact is None or fact.state == "applied":
        return []
    words = f"the fabric is {fact.state}: a run is at work there, or has to come again. {fabric_fact.REMEDY}"
    return [Drift(host, "unseen", words)]


def collect(
    machine: Machine, ask: Callable[[str], Any], asked: Asked | None = None
) -> tuple[list[Drift], tuple[str, ...]]:
    """What has drifted, and on which nodes was looked for it."""
    own = this_node(machine, asked)
    hosts, unread = wanted(machine, _fact(machine))
    told = " ".join(one.found for one in own.drifts)
    more = [Drift(own.host, "unseen", one) for one in unread if one not in told]
    own = replace(own, drifts=(*own.drifts, *more))
    nodes = [own, *others(hosts, ask)]
    found = [*(drift for node in nodes for drift in node.drifts), *of_versions(nodes)]
    return found, tuple(node.host for node in nodes)


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
        sys.stdout.write(this_node(Machine()).as_text())
        return 0
    found, hosts = collect(Machine(), _ask)
    sys.stdout.write("".join(f"{one}\n" for one in found) or "nothing has drifted\n")
    if arguments.metrics:
        try:
            write(arguments.metrics, metrics(found, hosts, time.time()))
        except OSError as exc:
            sys.stderr.write(f"{arguments.metrics}: {exc.strerror}\n")
            return NOT_LOOKED
    return int(bool(found))


def _ask(host: str) -> Any:
    return run_limited(peers.ssh(host, "drift"), ASK_S, MOST_CHARACTERS)
