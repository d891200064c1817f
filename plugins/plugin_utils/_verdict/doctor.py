# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The parts of doctor put together: what preflight found, what the nodes observed, and what the head says of the
cluster, as verdicts. Pure; the planner ``doctor`` hands them to the one that makes the document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import calls, strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document as documents
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.status import Served
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._snapshot.snapshot import Snapshot
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._status import node as status_node
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._status.node import Status
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import (
    FAIL,
    UNKNOWN,
    WARN,
    Machine,
    Verdict,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base.planner import Options, Planner
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules import limits
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.table import passed, unknown, verdict
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._status import cluster
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._verdict import node, settings

GIB = 2**30
# Rules about one half of a cable; of the others a check speaks of the machine.
HALVES = frozenset(
    {"wrong_mtu", "one_half_only", "foreign_address", "gid_missing", "gid_mismatch", "pcie_downtrained", "link_100g"}
)
OUTCOMES = {"error": FAIL, "warning": WARN}
NOT_CHECKED = "not checked"
LABEL = 10  # characters before each line of a status
NOT_SET_UP = "no engine is set up"  # of _status.node


def checked(findings: Sequence[Mapping[str, Any]], hosts: Sequence[str], count: int) -> list[Verdict]:
    """Findings of preflight, each with the ``rule`` that it is of; ``count``: of the checks that were made."""
    found = [one for finding in findings for one in _finding(finding, hosts)]
    good = max(count - len({one.check for one in found}), 0)
    if good:
        words = f"{good} of {count} checks before a run find nothing"
        found.append(passed("preflight", "cluster", words, hosts))
    return found


def _finding(finding: Mapping[str, Any], hosts: Sequence[str]) -> Iterator[Verdict]:
    check, said, where = str(finding["rule"]), str(finding["found"]), str(finding["host"])
    outcome = OUTCOMES.get(str(finding["severity"]))
    if outcome is None and not said.startswith(NOT_CHECKED):
        return  # a remark
    named = [host for host in hosts if host in where.split(", ")]
    if not named and where.startswith("all "):
        named = list(hosts)
    device = str(finding.get("device") or "")
    yield verdict(
        check,
        "half" if check in HALVES else "node" if named else "cluster",
        said if named else f"{where}: {said}",
        check if outcome else "",
        named,
        device=device,
        outcome=outcome or UNKNOWN,
        remedy=str(finding["remedy"]),
    )


# --- what the head says of the cluster


def serving(answers: Mapping[str, Status], head: str) -> Iterator[Verdict]:
    status = answers.get(head)
    if status is None:
        words = f"the head ({head}) was left out of this run (--limit), and nobody else tells of the cluster"
        yield unknown("status", "cluster", words, remedy="Run it without --limit")
        return
    if status.problem:
        words = NOT_SET_UP if NOT_SET_UP in status.problem else f"the head does not tell: {status.problem}"
        yield unknown("status", "cluster", words, [head])
        return
    for host, told in answers.items():
        for name, service in told.own.items():
            yield _service(host, name, service, told)
    for seen in status.nodes:
        if not seen.answers and seen.problem not in ("", status_node.ROOT, status_node.NOT_ASKED):
            words = f"the head does not reach it over the nodes' own ssh: {seen.problem}"
            yield verdict("peers", "node", words, "peers_unreachable", [seen.host])
    ray, gateway = status.ray, status.gateway
    if ray and ray.running < ray.nodes:
        words = f"Ray runs on {ray.running} of {ray.nodes} nodes"
        yield verdict("ray", "cluster", words, "ray_incomplete", [head], device="sparkmatrix-ray.service")
    if gateway and not gateway.answers:
        unit = "sparkmatrix-gateway.service"
        yield verdict("gateway", "service", gateway.line, "gateway_silent", [head], device=unit)


def _service(host: str, name: str, service: Served, status: Status) -> Verdict:
    lines = [strict.words(line[LABEL:]) for line in status_node.service_lines(name, service, status)]
    first = lines[0] if lines else ""
    if service.serving:
        speed = strict.words(f"; last verified {status_node.verified(service)}" if service.verified else "")
        return passed("serving", "service", first.removeprefix("serving: ") + speed, [host], service.unit)
    words = first or "it does not serve"
    return verdict("serving", "service", words, "not_serving", [host], device=service.unit, evidence=lines)


# --- the planner


Read = tuple[Snapshot, Status]


def read_observation(result: Any, host: str) -> Read | str:
    """What the call returned; a text says why there is nothing."""
    if not isinstance(result, Mapping) or not result.get("snapshot"):
        said = result.get("msg") if isinstance(result, Mapping) else ""
        if isinstance(result, Mapping) and result.get("timedout"):
            said = "it took too long, so something on the machine hangs"
        return strict.words(str(said or "it was not asked")[: strict.MAX_WORDS])
    try:
        answer = calls.read("observation", result, host)
    except SparkError as exc:
        return strict.words(str(exc)[: strict.MAX_WORDS])
    return answer.snapshot, cluster.understood(answer.status)


def machines(observed: Mapping[str, Snapshot]) -> list[Machine]:
    return [
        Machine(
            host,
            0,
            {"bios_version": snapshot.versions[settings.UEFI]} if snapshot.versions.get(settings.UEFI) else {},
            used_gib=round(((snapshot.memory.total or 0) - (snapshot.memory.available or 0)) / GIB, 1),
            total_gib=round((snapshot.memory.total or 0) / GIB, 1),
        )
        for host, snapshot in observed.items()
    ]


def make(options: Options) -> dict[str, Any]:
    read: Mapping[str, Read | str] = options["observed"]
    observed = {host: one[0] for host, one in read.items() if not isinstance(one, str)}
    answers = {host: Status(problem=one) if isinstance(one, str) else one[1] for host, one in read.items()}
    unreached = {
        host
        for finding in options["findings"]
        if finding["rule"] == "not_answering"
        for host in finding["host"].split(", ")
    }
    verdicts = [
        *checked(options["findings"], list(read), options["checks"]),
        *(
            unknown("observed", "node", f"not looked at: {why}", [host])
            for host, why in read.items()
            if isinstance(why, str) and host not in unreached
        ),
        *node.judge(observed, limits.limits(options["limits"])),
        *settings.judge(observed),
        *serving(answers, options["head"]),
    ]
    found = {"verdicts": verdicts, "machines": machines(observed), "services": settings.services(observed)}
    return {"part": {name: documents.plain(values) for name, values in found.items()}}


PLANNERS = {
    "doctor": Planner(
        make,
        {
            "head": {"type": "str", "required": True},
            "findings": {"type": "list", "elements": "dict", "required": True},
            "checks": {"type": "int", "required": True},
            "limits": {"type": "dict", "default": {}},
        },
        gathered={"observed": read_observation},
    ),
}
