# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The planner that puts a run's document together: what the run knows, what its judges have found, and what verify has
asked, which is judged here."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Flag
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import plan_document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fact as fabric_fact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.node import Info
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.node import read as read_node
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import (
    PLAYBOOKS,
    UNKNOWN,
    Run,
    Verdict,
    load,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import yaml_text
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base.planner import Options, Planner, ours, reader_of
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules import limits
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.table import unknown
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._verdict import (
    closing_lines,
    doctor,
    engine,
    first_contact,
    gather,
    junit,
    settings,
)

JUDGES = ("doctor", "fabric", "first_contact", "nccl", "serving")  # each hands its part over in spark_found_<name>
LISTS = ("verdicts", "machines", "links", "services", "rdma", "nccl", "serving", "smoke")
ROOT = Path(__file__).resolve().parents[3]  # of the collection
LONGEST_S = 86400.0  # of a run


@dataclass(frozen=True)
class Changed:
    changed: Flag = False


def _plan(value: Any, host: str) -> plan_document.NodePlan | None:
    return plan_document.read(value, host) if value else None


def known_facts(info: Mapping[str, Info | None]) -> dict[str, FabricFact]:
    """Without those that cannot be used: preflight says so, and what else the run knows is shown."""
    found = {}
    for host, told in info.items():
        with contextlib.suppress(SparkError):
            if told is not None and told.fact:
                found[host] = fabric_fact.load(told.fact, host)
    return found


def part(**found: Sequence[Any]) -> dict[str, Any]:
    """What a judge hands over: fields of :class:`Run`. ``verdicts`` and what was measured, as plain data."""
    return {name: document.plain(list(values)) for name, values in found.items()}


def judge(options: Options) -> dict[str, Any]:
    nodes = {host: told.node for host, told in options["info"].items() if told}
    facts = known_facts(options["info"])
    plans = {host: plan for host, plan in options["plans"].items() if plan and host in options["info"]}
    began = _began(nodes)
    # A cluster is called by its head, also where that does not answer, or its fact cannot be read.
    known = Run(
        cluster=options["head"],
        playbook=options["playbook"],
        at=datetime.fromtimestamp(began, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        seconds=round(max(time.time() - began, 0.0), 1),
        release=release(),
        topology=_topology(facts),
        machines=tuple(gather.machines(nodes, facts, plans)),
        links=tuple(gather.links(nodes, facts)),
        services=tuple(gather.services(plans)),
    )
    run = _with(known, options["parts"])
    shown = closing_lines.lines(run)
    return {
        "run": run.as_dict(),
        "outcome": run.outcome,
        "lines": shown,
        "not_measured": sum(verdict.outcome == UNKNOWN for verdict in run.verdicts),
        "refusal": closing_lines.refusal(run),
        "json": json.dumps(run.as_dict(), indent=1, sort_keys=True) + "\n",
        "junit": junit.text(run),
    }


def _with(known: Run, parts: Sequence[Mapping[str, Any]]) -> Run:
    """What was measured replaces what the run knew before: services and links by name, machines field by field."""
    empty = replace(known, machines=(), links=(), services=()).as_dict()
    read = [load({**empty, **one}, "what a judge found") for one in parts if one]
    found: dict[str, list[Any]] = {name: [item for run in read for item in getattr(run, name)] for name in LISTS}
    return replace(
        known,
        machines=tuple(gather.merged(known.machines, found["machines"])),
        links=tuple({(one.host, one.device): one for one in (*known.links, *found["links"])}.values()),
        services=tuple({one.name: one for one in (*known.services, *found["services"])}.values()),
        verdicts=tuple(_once(found["verdicts"])),
        rdma=tuple(found["rdma"]),
        nccl=tuple(found["nccl"]),
        serving=tuple(found["serving"]),
        smoke=tuple(found["smoke"]),
    )


def _once(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Two judges may see the same fault of the same place; the first has said it."""
    found: dict[Any, Verdict] = {}
    for verdict in verdicts:
        found.setdefault(
            (verdict.check, verdict.outcome, verdict.hosts, verdict.device, verdict.cause, verdict.found), verdict
        )
    return list(found.values())


def _began(nodes: gather.Nodes) -> float:
    """When preflight asked, by the controller's clock. A machine that lies about it makes no run of the future."""
    now = time.time()
    times = (node.time - node.clock_offset for node in nodes.values() if node.time and node.clock_offset is not None)
    return max((began for began in times if now - LONGEST_S < began <= now), default=now)


def _topology(facts: Mapping[str, FabricFact]) -> str:
    return next((fact.topology for fact in facts.values()), "")


def release(root: Path = ROOT) -> str:
    """Of this collection: as it is installed, or as it is developed."""
    for name, read in (("MANIFEST.json", _installed), ("galaxy.yml", _developed)):
        path = root / name
        if path.exists():
            return str(read(path.read_text(encoding="utf-8")))
    raise SparkError("the release of the collection is not known", str(root), "Install it again")


def _installed(text: str) -> Any:
    return json_text.mapping(text)["collection_info"]["version"]


def _developed(text: str) -> Any:
    return yaml_text.read(text)["version"]


def make(options: Options) -> dict[str, Any]:
    """The run as :func:`judge` puts it together. ``keep``: whether it is shown, and kept on the head."""
    # A judge is asked once for all hosts, and each of them has its answer.
    parts = [found["part"] for name in JUDGES for found in options[name].values() if found.get("part")]
    asked = bool(options["asked"])
    if asked:
        parts.append(verify(options))
    made = judge({**options, "parts": parts})
    started = any(told.changed for told in options["keeper"].values())
    measured = any(one["test"] != "ping" for one in made["run"]["rdma"])
    first = not any(told.node.verdicts for told in options["info"].values() if told)
    # site.yml without a change asks an answer of each service, and measures nothing: nothing new to keep.
    return {**made, "keep": options["playbook"] != "site" or measured or (asked and (started or first))}


def verify(options: Options) -> dict[str, Any]:
    plans = {host: plan for host, plan in options["plans"].items() if plan}
    asked = engine.Asked(
        answers={host: told.results for host, told in options["asked"].items()},
        smoke=options["smoke"],
        golden=options["golden"],
        before={host: told.moved for host, told in options["before"].items()},
        after={host: told.moved for host, told in options["after"].items()},
        ray={**options["ray"], **{host: told.ray for host, told in options["asked"].items() if told.ray}},
        filters={host: told.filters for host, told in options["asked"].items() if told.filters},
        gateway={host: told.gateway for host, told in options["asked"].items()},
        neighbors={
            host: {rail.rdma_device: rail.neighbor for rail in fact.rails}
            for host, fact in known_facts(options["info"]).items()
        },
    )
    observed = {host: one[0] for host, one in options["observed"].items() if not isinstance(one, str)}
    unseen = [
        unknown("environment", "node", f"not looked at: {why}", [host])
        for host, why in options["observed"].items()
        if isinstance(why, str)
    ]
    found = [*engine.judge(plans, asked, limits.limits(options["limits"])), *settings.environment(observed), *unseen]
    return part(verdicts=found, smoke=engine.smoked(plans, asked), machines=doctor.machines(observed))


GATHERED: dict[str, Any] = {
    "info": read_node,
    "plans": _plan,
    "asked": "verify",
    "smoke": ["smoke"],
    "golden": ["golden"],
    "before": "rdma_traffic",
    "after": "rdma_traffic",
    "ray": "ray_cluster",
    "observed": doctor.read_observation,
    "keeper": reader_of(Changed),
    # Of our own planners; what they have put into it has been read there.
    **dict.fromkeys(JUDGES, ours),
}
PLANNERS = {
    **doctor.PLANNERS,
    **first_contact.PLANNERS,
    "verdicts": Planner(
        make,
        {
            "playbook": {"type": "str", "required": True, "choices": list(PLAYBOOKS)},
            "head": {"type": "str", "required": True},
            "limits": {"type": "dict", "default": {}},
        },
        gathered=GATHERED,
        alive=True,
        partly=tuple(name for name in GATHERED if name != "info"),
        same=JUDGES,
    ),
}
