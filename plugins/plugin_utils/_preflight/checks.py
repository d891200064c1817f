# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The checks before a run: one table of all, those that a run makes, and what ``node_info`` reads for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import spelling
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import fabric as preflight_fabric
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import inventory as preflight_inventory
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import machines as preflight_machines
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import ready
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight.base import (
    LEVELS,
    SEVERITIES,
    SKIP,
    Context,
    Judge,
    Settings,
    environment_path,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.rule import ANY, SERVING, WHOLE, Rule
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.table import RULES

# Names that checks had before.
RENAMED: Mapping[str, str] = {
    "mtu_drift": "wrong_mtu",
    "half_address": "one_half_only",
    "half_off": "one_half_only",
    "gid_drift": "gid_mismatch",
    "pcie": "pcie_downtrained",
    "link_speed": "link_100g",
    "versions": "firmware_differs",
    "aer": "pcie_error",
}


def check_severity(context: Context) -> Iterator[Finding]:
    for name, level in context.settings.severity.items():
        rule = RULES.get(str(name))
        if name in RENAMED:
            found, remedy = f"the check {name} is called {RENAMED[name]}", f"Write {RENAMED[name]}: {level}"
        elif rule is None or not rule.layers:
            hint = spelling.did_you_mean(str(name), JUDGES)
            found, remedy = f"there is no check {str(name)!r}", f"{hint} docs/preflight.md lists the checks".strip()
        elif level not in LEVELS:
            # YAML reads off and no as false.
            found, remedy = (
                f"{name} is {level!r}, expected one of {', '.join(LEVELS)}",
                f"Write for example {name}: {SKIP}",
            )
        elif rule.fixed and level != rule.severity:
            found, remedy = f"{name} cannot be {level}: {rule.fixed}", "Take it out and cure the cause"
        else:
            continue
        yield Finding("preflight_severity", found, remedy)


# Layers that take long enough to be announced.
SERVING_OR_FABRIC = SERVING | {"fabric"}

INVENTORY: Mapping[str, Judge] = {"severity": check_severity, **preflight_inventory.JUDGES}
HOSTS: Mapping[str, Judge] = {**preflight_machines.JUDGES, **preflight_fabric.JUDGES}
JUDGES: Mapping[str, Judge] = {**INVENTORY, **HOSTS}


def level(rule: Rule, settings: Settings) -> str:
    wanted = settings.severity.get(rule.id)
    own = wanted if wanted in LEVELS and not rule.fixed else rule.severity
    return settings.settled.get(rule.id, own)


def selected(judges: Mapping[str, Judge], context: Context) -> list[Rule]:
    """The checks that this run makes."""
    layers = context.layers | ANY
    rules = [RULES[name] for name in judges]
    return [rule for rule in rules if rule.layers & layers and level(rule, context.settings) != SKIP]


def run(judges: Mapping[str, Judge], context: Context) -> list[Finding]:
    """Make the checks of the selected layers; every finding with its rule, and from there what it does not say itself.

    Findings have the severity of the rule, except those that a check makes ``info`` itself: what could not be checked,
    or what this very run puts right.
    """
    made = []
    for rule in selected(judges, context):
        severity = SEVERITIES[level(rule, context.settings)]
        for finding in judges[rule.id](context):
            told = finding.severity if finding.severity == "info" else severity
            remedy, why = finding.remedy or rule.help, finding.why or rule.why
            made.append(replace(finding, severity=told, remedy=remedy, why=why, rule=rule.id))
    return made


def peers(context: Context) -> list[dict[str, str]]:
    """Which nodes have to reach each other, and where; none where this run does not look."""
    if RULES["management_reach"] not in selected(HOSTS, context):
        return []
    at = {host: context.management(host).address for host in context.nodes}
    return [{"name": host, "address": address} for host, address in at.items() if address]


def listeners(context: Context, forks: int) -> dict[str, Any]:
    """Who listens for the others over the cables; nobody where this run does not look."""
    if RULES["cables"] not in selected(HOSTS, context):
        return {"nodes": [], "cluster": "", "timeout_s": 0.0}
    return preflight_fabric.listeners(context, forks)


def listened(context: Context, forks: int) -> dict[str, Any]:
    """What :func:`listeners` says, where each of them has heard all and nothing was odd; else nothing. All have to
    listen again, or nobody: who listens alone hears nobody."""
    made = listeners(context, forks)
    heard = [context.neighbors.get(host) for host in made["nodes"]]
    return made if all(one and one.complete and not one.notes for one in heard) else {}


def changeable(made: Sequence[Finding]) -> list[Finding]:
    """Those that refuse and need not."""
    return [one for one in made if one.severity == "error" and one.rule and not RULES[one.rule].fixed]


def request(context: Context) -> dict[str, Any]:
    """What ``node_info`` has to look for, so that one call per node is enough."""
    commands = {name for host in context.hosts for name in preflight_machines.wanted_commands(context, host)}
    commands |= {name for name, layers in preflight_machines.INSTALLED.items() if layers & context.layers}
    commands |= set(preflight_machines.NVCC) if "engine" in context.layers else set()
    parts = {part for rule in selected(HOSTS, context) for part in rule.needs}
    places = {path for host in context.hosts if (path := environment_path(context, host))}
    serving = bool(context.layers & SERVING)
    pythons = {str(context.value(host, "engine_python", "python3")) for host in context.hosts}
    users = {str(context.value(host, "spark_service_user", "sparkmatrix")) for host in context.hosts}
    return {
        "paths": sorted({paths.STATE, *(places if serving else ()), *ready.paths(context)}),
        "commands": sorted(commands),
        "ports": sorted({port for _node, port in preflight_machines.wanted_ports(context)}),
        "parts": sorted(parts),
        "units": ["lldpad.service"] if "fabric" in context.layers else [],
        "environments": sorted(places) if context.layers & WHOLE else [],
        "interpreters": sorted({*pythons, *(f"{path}/bin/python" for path in places)}) if serving else [],
        "users": sorted(users) if context.layers & WHOLE else [],
    }
