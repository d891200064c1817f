# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The planners of the fabric: ``fabric_discovery`` (who takes part in finding the cables), ``fabric`` before a change,
``fabric_verify`` after it was measured, ``fabric_publish`` (which fact counts then), and of the bandwidth test its
schedule and its verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import ports
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.address import ipv4
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.document import load_known, plain
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import errors, refusal, warnings
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.network import Network
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.bandwidth import Part
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import (
    QOS,
    FabricFact,
    dump,
    load,
    require_applied,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.ibdev2netdev import Rdma
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.ping import Pinged
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.show_gids import Gid
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import FAIL, WARN
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base.planner import (
    Options,
    Planner,
    RefusedError,
    judged,
    ours,
    reader_of,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import bandwidth, ownership
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import firewall as fabric_firewall
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import hosts_names as fabric_names
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import plan as fabric_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import rdma_verdicts as verdicts
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.discovery import discovery
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.types import (
    Plan,
    Settings,
    missing_nodes,
    node_input,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.verify import Measured, paths
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.verify import verify as judge_pings
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._firewall import port_filter
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules import limits

REFUSED = "The fabric cannot be configured like this; nothing was changed:"
NOT_WORKING = "The fabric does not work like this:"
TOO_SLOW = "The fabric is configured, and RDMA over it is not as it should be:"
NODE = {
    **dict.fromkeys(("rank", "management_address", "login", "cages", "addresses", "environment"), ours),
    "network": reader_of(Network),
    "rdma": reader_of(Rdma),
}
TAKEN_BACK = "The configuration of before this run is active again."
NOTHING_CHANGED = "This run had changed no interface, so nothing was taken back."
PINGS = reader_of(Pinged)  # nothing where nobody has pinged
FACTS = {"type": "dict", "required": True}  # per host the fabric fact, as the planner fabric returns it


def load_facts(options: Options) -> dict[str, FabricFact]:
    return {host: load(document, host) for host, document in options["facts"].items()}


def discover(options: Options) -> dict[str, Any]:
    return discovery(
        *(options[name] for name in ("topology", "forks", "timeout")),
        found=[host for host, raw in options["nodes"].items() if raw["rdma"].devices],
        addresses={host: str(raw.get("login") or "") for host, raw in options["nodes"].items()},
    )


def plan(options: Options) -> dict[str, Any]:
    findings = missing_nodes(options["sparks"], options["nodes"])
    nodes = {
        host: node_input(host, {**raw, "neighbors": options["heard"][host]}, findings)
        for host, raw in options["nodes"].items()
    }
    managed = {host: {node.management_address: ownership.MANAGEMENT} for host, node in nodes.items()}
    findings += [] if findings else ownership.conflicts(managed, _given(options["nodes"]))
    settings = Settings(**{field.name: options[field.name] for field in fields(Settings)})
    made = Plan("", {}, findings, ()) if findings else fabric_plan.plan(nodes, settings)
    if made.refused:
        found = ["", "The cables:", *(f"  {line}" for line in made.cable_map)] if made.cable_map else []
        raise RefusedError("\n".join([refusal(REFUSED, made.findings), *found]))
    shown = _shown(made)
    logins = {host: str(raw.get("login") or "") for host, raw in options["nodes"].items()}
    return {
        **shown,
        "hosts_lines": [*fabric_names.local_lines(made.facts, logins), *shown["hosts_lines"]],
        "macs": _macs(options["nodes"], made.facts),
    }


def _macs(nodes: Options, facts: Mapping[str, FabricFact]) -> list[str]:
    """Of every interface that the fabric uses, and of the other ports of the cards."""
    found = set()
    for host, fact in facts.items():
        network = nodes[host].get("network") or Network()
        wanted = {*(rail.netdev for rail in fact.rails), *network.rdma_interfaces}
        known = {(interface.mac or "").lower() for interface in network.interfaces or () if interface.name in wanted}
        found |= known - {""}
    return sorted(found)


def _given(nodes: Options) -> dict[str, frozenset[str]]:
    """The addresses that the inventory has for each node."""
    return {
        host: frozenset(filter(None, map(ipv4, (raw.get("management_address"), raw.get("login")))))
        for host, raw in nodes.items()
    }


def verify(options: Options) -> dict[str, Any]:
    measured = {
        host: Measured(options["tables"][host].get("gids") or (), found.probes, found.holders)
        for host, found in options["pings"].items()
    }
    # Not refused here: the facts say applying, and the role takes the change back before it fails.
    return _judged(judge_pings(load_facts(options), measured, options["export_gid_index"], options["macs"]))


def publish(options: Options) -> dict[str, Any]:
    """Which fact counts at the end of a run: what later layers get (``facts``), what is written (``texts``, without
    hosts whose file stays as it is), whose interfaces were ``reconfigured``, and why the run is refused. Without
    ``verified`` the run is in check mode."""
    planned, compared, verified = options["plan"], options["compared"], options.get("verified")
    reconfigured = [host for host, result in options["applied"].items() if result.transaction]
    if verified is None:
        # A machine that is as planned has a fact with measured GIDs, which the plan cannot know.
        same = {host for host, result in compared.items() if result.fact_applied}
        kept = {host: was for host in same if not compared[host].changes for was in [compared[host].fact] if was}
        facts = {host: kept[host].as_dict() if host in kept else fact for host, fact in planned["facts"].items()}
        texts = {host: text for host, text in planned["texts"].items() if host not in same}
        return {"facts": facts, "texts": texts, "reconfigured": reconfigured, "refusal": ""}
    texts, refused = dict(verified["texts"]), verified["refusal"] or ""
    if refused:
        # A machine that took its change back has its previous fact again.
        texts = {host: text for host, text in texts.items() if host not in reconfigured}
        refused += (
            f"\nTaken back on {', '.join(reconfigured)}: {TAKEN_BACK}" if reconfigured else f"\n{NOTHING_CHANGED}"
        )
    return {"facts": dict(verified["facts"]), "texts": texts, "reconfigured": reconfigured, "refusal": refused}


def _judged(made: Plan) -> dict[str, Any]:
    return {
        "warnings": [str(finding) for finding in warnings(made.findings)],
        "refusal": refusal(NOT_WORKING, made.findings) if made.refused else None,
        "facts": {host: fact.as_dict() for host, fact in made.facts.items()},
        "texts": {host: dump(fact) for host, fact in made.facts.items()},
        "summary": list(made.summary),
    }


def _shown(made: Plan) -> dict[str, Any]:
    common, own = fabric_names.hosts_lines(made.facts)
    return {
        **_judged(made),
        "topology": made.topology,
        "paths": plain(paths(made.facts)),
        "hosts_lines": common,
        "own_hosts_lines": own,
        "firewall": fabric_firewall.rules(made.facts),
        "filters": {host: port_filter.fabric(fabric_firewall.netdevs(fact)) for host, fact in made.facts.items()},
        "cable_map": list(made.cable_map),
    }


def _gids(value: Any, _host: str) -> list[Gid] | None:
    return None if value is None else [load_known(Gid, gid) for gid in value]


def schedule(options: Options) -> dict[str, Any]:
    facts = {host: require_applied(fact) for host, fact in options["facts"].items()}
    claims = {host: ownership.of_fact(fact) for host, fact in facts.items()}
    judged("The fabric cannot be measured like this:", ownership.conflicts(claims))
    own = paths(facts)
    made = bandwidth.schedule(
        options["test"],
        facts,
        paths=own,
        ready=options["looks"],
        changed=options["changed"],
        forks=options["forks"],
        first_port=ports.FABRIC_BANDWIDTH,
        everything=options["test"] == "everything",
    )
    return dict(plain({**vars(made), "paths": own}))


def judge(options: Options) -> dict[str, Any]:
    facts, given = options["facts"], options["schedule"]
    rounds = [{host: [Part(**test) for test in tests] for host, tests in one.items()} for one in given["rounds"]]
    seen = verdicts.Seen(
        facts,
        options["looks"],
        options["measured"],
        limits.limits(options["limits"]),
        {host: told.probes for host, told in options["pings"].items()},
    )
    found = verdicts.judge(bandwidth.Schedule(rounds, given["reason"], given["gap"], given["no_infiniband"]), seen)
    findings = [verdicts.finding(verdict) for verdict in found.verdicts if verdict.outcome in (FAIL, WARN)]
    refused = bool(errors(findings))
    kept = {} if refused else verdicts.kept(found, facts)
    return {
        "summary": verdicts.lines(found),
        "warnings": [str(finding) for finding in warnings(findings)],
        "refusal": refusal(TOO_SLOW, findings) if refused else None,
        "records": {host: bandwidth.record(facts[host], halves) for host, halves in kept.items()},
        "part": {"verdicts": plain(list(found.verdicts)), "rdma": plain(list(found.rdma))},
    }


PLANNERS = {
    "fabric_discovery": Planner(
        discover,
        {
            "topology": {"type": "str", "required": True},
            "forks": {"type": "int", "default": 5},
            "timeout": {"type": "float", "default": 10},
        },
        gathered={"nodes": NODE},
    ),
    "fabric": Planner(
        plan,
        {
            "sparks": {"type": "list", "elements": "str", "default": []},
            "topology": {"type": "str", "default": "auto"},
            "subnets": {"type": "list", "elements": "str", "default": list(Settings.subnets)},
            "host_offset": {"type": "int", "default": Settings.host_offset},
            "mtu": {"type": "int", "default": Settings.mtu},
            "transport": {"type": "str", "default": "auto"},
            "cables": {"type": "list", "elements": "str", "default": []},
            "allow_large_ring": {"type": "bool", "default": False},
            "qos": {"type": "str", "choices": list(QOS), "default": "none"},
            "qos_force": {"type": "bool", "default": False},
        },
        gathered={"nodes": NODE, "heard": "neighbors"},
    ),
    "fabric_verify": Planner(
        verify,
        {
            "facts": FACTS,
            "export_gid_index": {"type": "bool", "default": False},
            "macs": {"type": "list", "elements": "str", "default": []},
        },
        gathered={"pings": PINGS, "tables": {"gids": _gids}},
    ),
    "fabric_publish": Planner(
        publish,
        {"plan": {"type": "dict", "required": True}, "verified": {"type": "dict"}},
        gathered={"compared": "fabric_change", "applied": "fabric_change"},
    ),
    "bandwidth": Planner(
        schedule,
        {
            "test": {"type": "str", "choices": list(bandwidth.SETTINGS), "default": "auto"},
            "changed": {"type": "bool", "default": False},
            "forks": {"type": "int", "default": 5},
        },
        gathered={"facts": load, "looks": "rdma_look"},
    ),
    "bandwidth_verdict": Planner(
        judge,
        {
            "schedule": {"type": "dict", "required": True},
            "limits": {"type": "dict", "default": {}},
        },
        gathered={
            "facts": load,
            "looks": "rdma_look",
            "measured": ["rdma_rates"],
            "pings": PINGS,
        },
    ),
}
