# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""``sparkmatrix status``: on the head, whether the cluster serves and how each part of it is, asked now.

What needs root and is asked without it is named, and counts as not known.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any, Optional

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import run_limited
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import engine_json, probe
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import names as engine_names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import rank as engine_rank
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.engine_json import Description
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import Names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.probe import Described
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.report import MAX_CHARACTERS, Report, parse
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import status as fabric_status
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import names as gateway_names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import status as gateway_status
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import peers
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import status as keeper_status
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.status import Served
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.store import Store
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._status import word_colours
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict import store as verdict_store
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import FAIL, together

HELP = "show whether the cluster serves, and how its nodes, fabric, ranks and gateway are"
SCHEMA_VERSION = 1
ASK_S = 8.0  # for a node
ROOT = "this needs root: sudo sparkmatrix status"
NOT_ASKED = "not asked (--here)"
TOKEN_S = 15.0
GIB = 2**30
SHOWN = 3  # failed checks of the last verdicts


@dataclass(frozen=True)
class Node:
    """``fabric``: verified, drifted or empty where it is not known."""

    host: str
    answers: bool = False
    problem: str = ""
    units: Mapping[str, str] = field(default_factory=dict)  # unit: active, failed, ...
    available_gib: float = 0.0
    fabric: str = ""

    @property
    def line(self) -> str:
        if not self.answers:
            return f"{self.host:<12} not known: {self.problem}"
        units = ", ".join(f"{_short(name)} {active}" for name, active in self.units.items()) or "no ranks"
        fabric = f", fabric {self.fabric}" if self.fabric else ""
        look = " (there: sudo sparkmatrix fabric-status)" if self.fabric == "drifted" else ""
        return f"{self.host:<12} {units}, {self.available_gib:.1f} GiB free{fabric}{look}"


def _short(unit: str) -> str:
    return unit.removeprefix("sparkmatrix-").removesuffix(".service")


@dataclass(frozen=True)
class Gateway:
    unit: str  # active, failed, ...
    answers: bool = False
    problem: str = ""
    certificate_until: str = ""  # empty without TLS
    endpoints: tuple[str, ...] = ()
    held: int = 0  # requests that wait for their engine

    @property
    def line(self) -> str:
        where = f"{', '.join(self.endpoints)}: " if self.endpoints else ""
        found = f"{where}{self.unit}, {'it answers' if self.answers else self.problem}"
        if self.held:
            found += f"; {self.held} request{'s wait' if self.held > 1 else ' waits'} for the engine"
        return f"{found}; certificate until {self.certificate_until}" if self.certificate_until else found


@dataclass(frozen=True)
class Asked:
    """How the parts are asked; all of it is replaced by tests."""

    machine: Machine = field(default_factory=Machine)
    peer: Callable[[str, str], Any] = lambda host, word: run_limited(peers.ssh(host, word), ASK_S, MAX_CHARACTERS)
    listed: Callable[[Described], None] = lambda told: probe.listed(probe.target_of(told))
    token: Callable[[Description], Any] = lambda told: probe.ask(
        probe.target_of(told), probe.Question(timeout_s=TOKEN_S)
    )
    keeper: Callable[..., Served] = keeper_status.collect
    root: bool = field(default_factory=lambda: os.geteuid() == 0)
    now: Callable[[], datetime] = lambda: datetime.now(timezone.utc)
    relay: Callable[[], gateway_status.Relayed | None] = gateway_status.relay


@dataclass(frozen=True)
class Ray:
    nodes: int
    running: int


@dataclass(frozen=True)
class Fabric:
    """Of the node that is asked, in lines for people."""

    wrong: bool = False
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class LastRun:
    """The last verdicts that the node keeps. ``failed``: the first failed checks."""

    time: str = ""
    playbook: str = ""
    outcome: str = ""
    counted: str = ""
    failed: tuple[str, ...] = ()
    problem: str = ""

    @property
    def lines(self) -> list[str]:
        return [self.problem or f"{self.time}, {self.playbook}.yml: {self.counted}", *self.failed]


@dataclass(frozen=True)
class Status:
    """The document of ``--json``, which also goes to the controller. ``problem``: why there is none.

    ``is_head``: whether a keeper is here. ``ray``: None where no node should run one, or not every node was asked.
    """

    schema: int = SCHEMA_VERSION
    time: str = ""
    serving: bool = False
    head: str = ""
    is_head: bool = False
    services: Mapping[str, Served] = field(default_factory=dict)
    nodes: tuple[Node, ...] = ()
    ray: Optional[Ray] = None
    fabric: Fabric = Fabric()
    gateway: Optional[Gateway] = None
    verdict: Optional[LastRun] = None
    problem: str = ""

    @property
    def own(self) -> dict[str, Served]:
        """Services whose keeper is here."""
        return {name: service for name, service in self.services.items() if service.unit}


def collect(asked: Asked, service: str = "", here: bool = False) -> Status:
    """Raises :class:`SparkError` where nothing of the engine is on this node."""
    root = asked.machine.root
    if service:
        told = {service: engine_json.read(asked.machine.real(Names(service).description))}
    else:
        told = engine_json.here(root)
    services = {name: _service(asked, name) for name in ([service] if service else keeper_status.kept(root))}
    if not told and not any(service.unit for service in services.values()):
        raise SparkError("no engine is set up on this node", paths.ETC, "Ask on the head (spark_rank 0)")
    fabric, word = _fabric(asked)
    nodes = _nodes(asked, told, here, word)
    services = {name: _doubted(asked, told.get(name), service, nodes) for name, service in services.items()}
    first = next(iter(told.values()), None)
    return Status(
        time=asked.now().isoformat(timespec="seconds"),
        serving=bool(services) and all(service.serving for service in services.values()),
        head=first.ordered[0].host if first else "",
        is_head=any(service.unit for service in services.values()),
        services=services,
        nodes=tuple(nodes),
        ray=_ray(nodes),
        fabric=fabric,
        gateway=_gateway(asked),
        verdict=_last_run(asked),
    )


def _service(asked: Asked, name: str) -> Served:
    unit = Names(name).keeper
    try:
        return asked.keeper(Store(asked.machine.root, name), asked.machine, unit=unit)
    except SparkError as exc:
        state = asked.machine.unit(unit)
        if not state.exists:  # the keeper is on the head of the service
            return Served(problem=str(exc))
        return Served(unit=unit, running=state.running, problem=ROOT)


def _doubted(asked: Asked, told: Description | None, service: Served, nodes: Sequence[Node]) -> Served:
    """A service of which a node is silent is believed with a token only: all its ranks have to work for one."""
    silent = {node.host for node in nodes if not node.answers and node.problem not in (ROOT, NOT_ASKED)}
    lost = [member.host for member in (told.ordered if told else ()) if member.ranks and member.host in silent]
    if not service.serving or not told or not lost:
        return service
    try:
        asked.token(told)
    except SparkError as exc:
        problem = f"{', '.join(lost)} is silent, and no token came: {exc}"
        return replace(service, serving=False, answers=False, problem=problem)
    return service


# -- nodes ------------------------------------------------------------------------------------------------------------


def _nodes(asked: Asked, told: Mapping[str, Description], here: bool, fabric: str) -> list[Node]:
    own = {member.host for service in told.values() for member in service.ordered if member.rank == service.rank}
    members = [member.host for service in told.values() for member in service.ordered if member.ranks]
    others = [host for host in dict.fromkeys(members) if host not in own]
    answers = dict(zip(others, peers.at_once(others, lambda host: _other(asked, host, here))))
    return [answers.get(host) or _this(asked, host, told, fabric) for host in dict.fromkeys([*own, *members])]


def _this(asked: Asked, host: str, told: Mapping[str, Description], fabric: str) -> Node:
    try:
        reports = [engine_rank.Node(engine_rank.of(service), asked.machine).report() for service in told.values()]
    except SparkError as exc:
        return Node(host, problem=str(exc) if asked.root else ROOT)
    return _reported(host, reports, fabric)


def _other(asked: Asked, host: str, here: bool) -> Node:
    if here or not asked.root:
        return Node(host, problem=NOT_ASKED if here else ROOT)
    done = asked.peer(host, "rank-status")
    if done.rc != 0:
        return Node(host, problem=peers.words(done.complaint))
    try:
        report: Report = parse(done.out)
    except SparkError as exc:
        return Node(host, problem=peers.words(str(exc)))
    fabric = asked.peer(host, "fabric-status")
    known = fabric.rc in (0, 1) and fabric.out.startswith("fabric:") and "not configured" not in fabric.out
    return _reported(host, [report], ("verified", "drifted")[fabric.rc] if known else "")


def _reported(host: str, reports: Sequence[Report], fabric: str) -> Node:
    units = {name: unit.active for report in reports for name, unit in report.units.items()}
    available = reports[-1].available if reports else 0
    return Node(host, True, "", units, round(available / GIB, 1), fabric)


def _fabric(asked: Asked) -> tuple[Fabric, str]:
    """Of this node, and in a word. Changes that wait and the port filter are shown to root alone."""
    if not asked.root:
        return Fabric(True, (ROOT,)), ""
    try:
        found = fabric_status.read(asked.machine)
    except (SparkError, OSError) as exc:
        return Fabric(True, (str(exc),)), "drifted"
    return Fabric(found.wrong, tuple(found.lines)), found.word


def _ray(nodes: Sequence[Node]) -> Ray | None:
    states = [node.units.get(engine_names.RAY_UNIT, "") for node in nodes]
    if any(node.problem in (ROOT, NOT_ASKED) for node in nodes) or not any(states):
        return None
    return Ray(len(nodes), states.count("active"))


# -- gateway ----------------------------------------------------------------------------------------------------------


def _gateway(asked: Asked) -> Gateway | None:
    """None where there is none on this node."""
    path = asked.machine.real(gateway_names.DESCRIPTION)
    if not os.path.exists(path):
        return None
    state = asked.machine.unit(gateway_names.UNIT)
    if not asked.root:
        return Gateway(state.active, problem=ROOT)
    problem = ""
    endpoints: tuple[str, ...] = ()
    try:
        config = probe.read_config(path)
        endpoints = config.endpoints
        asked.listed(config)
    except SparkError as exc:
        problem = str(exc)
    relayed = asked.relay()
    held = relayed.held if relayed else 0
    return Gateway(state.active, not problem, problem, _until(asked), endpoints, held)


def _until(asked: Asked) -> str:
    path = asked.machine.real(gateway_names.LOADED)
    if not os.path.exists(path):
        return ""
    found = asked.machine.output("openssl", "x509", "-noout", "-enddate", "-in", path) or ""
    try:
        end = datetime.strptime(found.strip().partition("=")[2], "%b %d %H:%M:%S %Y GMT").replace(tzinfo=timezone.utc)
    except ValueError:
        return "an unknown day: openssl cannot read it"
    days = (end - asked.now()).days
    return f"{end.date().isoformat()} ({days} days{', renew it: run the gateway layer' if days < 30 else ''})"


def _last_run(asked: Asked) -> LastRun | None:
    """None where there is none, or without root."""
    runs, refused = verdict_store.read(1, asked.machine.root) if asked.root else ([], [])
    if refused:
        return LastRun(problem=refused[0])
    for run in runs:
        failed = together(verdict for verdict in run.verdicts if verdict.outcome == FAIL)
        shown = tuple(f"{where}: {verdict.found}" for where, verdict in failed[:SHOWN])
        return LastRun(run.at, run.playbook, run.outcome, run.counted, shown)
    return None


# -- for people -------------------------------------------------------------------------------------------------------


def text(found: Status) -> str:
    lines: list[str] = []
    for name, service in found.services.items():
        lines += service_lines(name, service, found)
    lines += _block("nodes", [node.line for node in found.nodes])
    if found.ray:
        lines += _block("ray", [f"{found.ray.running} of {found.ray.nodes} nodes"])
    lines += _block("fabric", [line.removeprefix("fabric: ") for line in found.fabric.lines])
    if found.gateway:
        lines += _block("gateway", [found.gateway.line])
    for service in found.own.values():
        lines += _block("verified", [verified(service)]) if service.problem != ROOT else []
    if found.verdict:
        lines += _block("verdict", found.verdict.lines)
    return "\n".join(lines)


def verified(service: Served) -> str:
    note = service.verified
    if not note:
        return "never: ansible-playbook verify.yml"
    expected = f"; the plan expects {note.low:.0f} to {note.high:.0f}" if note.high else ""
    return f"{note.time}, {note.model}: {note.measured}{expected}"


def service_lines(name: str, service: Served, found: Status) -> list[str]:
    label = name or "engine"
    if not service.unit:
        return _block(label, [f"its keeper is on the head, {found.head}: ask there"])
    if service.problem == ROOT:
        return _block(label, [f"{service.unit} {'runs' if service.running else 'does not run'}; {ROOT}"])
    return _block(label, keeper_status.text(service).splitlines())


def _block(label: str, lines: Sequence[str]) -> list[str]:
    return [f"{label if not number else '':<10}{line}" for number, line in enumerate(lines)]


# -- sparkmatrix status -----------------------------------------------------------------------------------------------


def code(found: Status) -> int:
    """For monitoring: that of the worst service (:attr:`Served.code`)."""
    codes = {service.code for service in found.services.values()}
    return 1 if 1 in codes else max(codes)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object (docs/operations.md)")
    parser.add_argument("--here", action="store_true", help="ask this node only: for monitoring every few seconds")
    engine_names.choose(parser)


def run(arguments: argparse.Namespace) -> int:
    try:
        found = collect(Asked(), arguments.service, arguments.here)
    except SparkError as exc:
        engine_rank.say(json.dumps({"schema": SCHEMA_VERSION, "problem": str(exc)}) if arguments.json else str(exc))
        return 1
    said = text(found)
    engine_rank.say(
        json.dumps(document.plain(found))
        if arguments.json
        else word_colours.paint(said)
        if word_colours.coloured()
        else said
    )
    return code(found)
