# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""``sparkmatrix status``: on the head, whether the cluster serves and how each part of it is, asked now.

What needs root and is asked without it is named, and counts as not known.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

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
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.report import MOST_CHARACTERS, Report, parse
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import status as fabric_status
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import names as gateway_names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import peers
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import status as keeper_status
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.store import Store, Verified
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._status import screen
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
    endpoints: Sequence[str] = ()

    @property
    def line(self) -> str:
        where = f"{', '.join(self.endpoints)}: " if self.endpoints else ""
        found = f"{where}{self.unit}, {'it answers' if self.answers else self.problem}"
        return f"{found}; certificate until {self.certificate_until}" if self.certificate_until else found


@dataclass(frozen=True)
class Asked:
    """How the parts are asked; all of it is replaced by tests."""

    machine: Machine = field(default_factory=Machine)
    peer: Callable[[str, str], Any] = lambda host, word: run_limited(peers.ssh(host, word), ASK_S, MOST_CHARACTERS)
    listed: Callable[[Described], None] = lambda told: probe.listed(probe.target_of(told))
    token: Callable[[Description], Any] = lambda told: probe.ask(
        probe.target_of(told), probe.Question(timeout_s=TOKEN_S)
    )
    keeper: Callable[..., dict[str, Any]] = keeper_status.collect
    root: bool = field(default_factory=lambda: os.geteuid() == 0)
    now: Callable[[], datetime] = lambda: datetime.now(timezone.utc)


def collect(asked: Asked, service: str = "", here: bool = False) -> dict[str, Any]:
    """The document of ``--json``. Raises :class:`SparkError` where nothing of the engine is on this node."""
    root = asked.machine.root
    if service:
        told = {service: engine_json.read(asked.machine.real(Names(service).description))}
    else:
        told = engine_json.here(root)
    services = {name: _service(asked, name) for name in ([service] if service else keeper_status.kept(root))}
    if not told and not any(one.get("unit") for one in services.values()):
        raise SparkError("no engine is set up on this node", paths.ETC, "Ask on the head (spark_rank 0)")
    fabric, word = _fabric(asked)
    nodes = _nodes(asked, told, here, word)
    services = _doubted(asked, told, services, nodes)
    gateway = _gateway(asked)
    first = next(iter(told.values()), None)
    return {
        "schema": SCHEMA_VERSION,
        "time": asked.now().isoformat(timespec="seconds"),
        "serving": bool(services) and all(one["serving"] for one in services.values()),
        "head": first.ordered[0].host if first else "",
        "is_head": any(one.get("unit") for one in services.values()),
        "services": services,
        "nodes": [document.plain(node) for node in nodes],
        "ray": _ray(nodes),
        "fabric": fabric,
        "gateway": document.plain(gateway) if gateway else None,
        "verdict": _verdict(asked),
    }


def _service(asked: Asked, name: str) -> dict[str, Any]:
    store, unit = Store(asked.machine.root, name), Names(name).keeper
    try:
        found = asked.keeper(store, asked.machine.runner, unit=unit)
    except SparkError as exc:
        state = asked.machine.unit(unit)
        if not state.exists:  # the keeper is on the head of the service
            return {"serving": False, "answers": None, "problem": str(exc), "history": []}
        return {
            "unit": unit,
            "running": state.running,
            "serving": False,
            "answers": None,
            "problem": ROOT,
            "history": [],
        }
    verified = store.verified()
    return {**found, "verified": document.plain(verified) if verified else None}


def _doubted(
    asked: Asked, told: Mapping[str, Description], services: Mapping[str, dict[str, Any]], nodes: Sequence[Node]
) -> dict[str, dict[str, Any]]:
    """A service of which a node is silent is believed with a token only: all its ranks have to work for one."""
    silent = {node.host for node in nodes if not node.answers and node.problem not in (ROOT, NOT_ASKED)}
    made = dict(services)
    for name, one in services.items():
        ranks = [member.host for member in told[name].ordered if member.ranks] if name in told else []
        lost = [host for host in ranks if host in silent]
        if not one["serving"] or not lost:
            continue
        try:
            asked.token(told[name])
        except SparkError as exc:
            problem = f"{', '.join(lost)} is silent, and no token came: {exc}"
            made[name] = {**one, "serving": False, "answers": False, "problem": problem}
    return made


# -- nodes ------------------------------------------------------------------------------------------------------------


def _nodes(asked: Asked, told: Mapping[str, Description], here: bool, fabric: str) -> list[Node]:
    own = {one.ordered[index].host for one in told.values() for index in _own(one)}
    members = {member.host: member for one in told.values() for member in one.ordered if member.ranks}
    others = [host for host in members if host not in own]
    with ThreadPoolExecutor(max_workers=16) as pool:
        answers = dict(zip(others, pool.map(lambda host: _other(asked, host, here), others)))
    mine = _this(asked, told, fabric)
    return [Node(host, **mine) if host in own else answers[host] for host in {**dict.fromkeys(own), **members}]


def _own(told: Description) -> list[int]:
    return [index for index, member in enumerate(told.ordered) if member.rank == told.rank]


def _this(asked: Asked, told: Mapping[str, Description], fabric: str) -> dict[str, Any]:
    units: dict[str, str] = {}
    available = 0
    for one in told.values():
        try:
            report = engine_rank.of_service(one, asked.machine).report()
        except SparkError as exc:
            return {"problem": str(exc) if asked.root else ROOT}
        units.update({name: unit.active for name, unit in report.units.items()})
        available = report.available
    return {"answers": True, "units": units, "available_gib": round(available / GIB, 1), "fabric": fabric}


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
    units = {name: unit.active for name, unit in report.units.items()}
    fabric = asked.peer(host, "fabric-status")
    known = fabric.rc in (0, 1) and fabric.out.startswith("fabric:") and "not configured" not in fabric.out
    word = ("verified", "drifted")[fabric.rc] if known else ""
    return Node(host, True, "", units, round(report.available / GIB, 1), word)


def _fabric(asked: Asked) -> tuple[dict[str, Any], str]:
    """Of this node, and in a word. Changes that wait and the port filter are shown to root alone."""
    if not asked.root:
        return {"wrong": True, "lines": [ROOT]}, ""
    try:
        found = fabric_status.read(asked.machine)
    except (SparkError, OSError) as exc:
        return {"wrong": True, "lines": [str(exc)]}, "drifted"
    return {"wrong": found.wrong, "lines": found.lines}, found.word


def _ray(nodes: Sequence[Node]) -> dict[str, int] | None:
    """None where no node should run one, or not every node was asked."""
    if any(node.problem in (ROOT, NOT_ASKED) for node in nodes):
        return None
    states = [node.units.get(engine_names.RAY_UNIT, "") for node in nodes]
    if not any(states):
        return None
    return {"nodes": len(nodes), "running": states.count("active")}


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
    return Gateway(state.active, not problem, problem, _until(asked), endpoints)


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


def _verdict(asked: Asked) -> dict[str, Any] | None:
    """Of the last run that is kept here, which is on the cluster's head; None where there is none, or without root."""
    runs, refused = verdict_store.read(1, asked.machine.root) if asked.root else ([], [])
    if refused:
        return {"problem": refused[0]}
    return (
        {
            "time": runs[0].at,
            "playbook": runs[0].playbook,
            "outcome": runs[0].outcome,
            "counted": runs[0].counted,
            "failed": [
                f"{where}: {one.found}" for where, one in together(v for v in runs[0].verdicts if v.outcome == FAIL)
            ][:SHOWN],
        }
        if runs
        else None
    )


# -- for people -------------------------------------------------------------------------------------------------------


def text(found: Mapping[str, Any]) -> str:
    lines: list[str] = []
    for name, one in found["services"].items():
        lines += service_lines(name or "engine", one, found)
    lines += _block("nodes", [Node(**node).line for node in found["nodes"]])
    if found["ray"]:
        lines += _block("ray", [f"{found['ray']['running']} of {found['ray']['nodes']} nodes"])
    lines += _block("fabric", [line.removeprefix("fabric: ") for line in found["fabric"]["lines"]])
    if found["gateway"]:
        lines += _block("gateway", [Gateway(**found["gateway"]).line])
    for one in found["services"].values():
        lines += _block("verified", [verified(one)]) if one.get("unit") and "verified" in one else []
    if found.get("verdict"):
        lines += _block("verdict", verdict(found["verdict"]))
    return "\n".join(lines)


def verdict(last: Mapping[str, Any]) -> list[str]:
    if "problem" in last:
        return [last["problem"]]
    first = f"{last['time']}, {last['playbook']}.yml: {last['counted']}"
    return [first, *last["failed"]]


def verified(service: Mapping[str, Any]) -> str:
    note = service.get("verified")
    if not note:
        return "never: ansible-playbook verify.yml"
    known = Verified(**note)
    expected = f"; the plan expects {known.low:.0f} to {known.high:.0f}" if known.high else ""
    return f"{known.time}, {known.model}: {known.measured}{expected}"


def service_lines(label: str, one: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    if not one.get("unit"):
        return _block(label, [f"its keeper is on the head, {found['head']}: ask there"])
    if "phase" not in one and "returns" not in one:
        return _block(label, [f"{one['unit']} {'runs' if one['running'] else 'does not run'}; {one['problem']}"])
    return _block(label, keeper_status.text(one).splitlines())


def _block(label: str, lines: Sequence[str]) -> list[str]:
    return [f"{label if not number else '':<10}{line}" for number, line in enumerate(lines)]


# -- sparkmatrix status -----------------------------------------------------------------------------------------------


def code(found: Mapping[str, Any]) -> int:
    """For monitoring: 0 it serves, 1 it does not, 3 it answers and nobody looks after it. 2 is a wrong option."""
    codes = {keeper_status.code(one) for one in found["services"].values()}
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
    engine_rank.say(json.dumps(found) if arguments.json else screen.paint(said) if screen.coloured() else said)
    return code(found)
