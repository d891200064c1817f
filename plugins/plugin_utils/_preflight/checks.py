# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The checks before a run: one table of all, those that a run makes, and what ``node_info`` reads for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    ANY,
    LEVELS,
    SERVING,
    SEVERITIES,
    SKIP,
    WHOLE,
    Check,
    Context,
    Settings,
    environment_path,
)

__all__ = [
    "CHECKS",
    "HOST_CHECKS",
    "INVENTORY_CHECKS",
    "SERVING_OR_FABRIC",
    "Check",
    "Context",
    "Settings",
    "changeable",
    "listeners",
    "peers",
    "ready",
    "request",
    "run",
]


def check_severity(context: Context) -> Iterator[Finding]:
    known = {check.name: check for check in CHECKS}
    for name, level in context.settings.severity.items():
        check = known.get(str(name))
        if check is None:
            hint = spelling.did_you_mean(str(name), known)
            yield Finding(
                "preflight_severity",
                f"there is no check {str(name)!r}",
                f"{hint} docs/preflight.md lists the checks".strip(),
            )
        elif level not in LEVELS:
            # YAML reads off and no as false.
            yield Finding(
                "preflight_severity",
                f"{name} is {level!r}, expected one of {', '.join(LEVELS)}",
                f"Write for example {name}: {SKIP}",
            )
        elif check.fixed and level != check.level:
            yield Finding(
                "preflight_severity",
                f"{name} cannot be {level}: {check.fixed}",
                "Take it out and cure the cause",
            )


# Layers that take long enough to be announced.
SERVING_OR_FABRIC = SERVING | {"fabric"}

INVENTORY_CHECKS: tuple[Check, ...] = (
    Check(
        "severity",
        ANY,
        check_severity,
        "`preflight_severity` names a check that does not exist, or gives it a severity that it cannot have",
        "A misspelled name would change nothing, silently",
        fixed="nobody would learn of the mistake",
    ),
    *preflight_inventory.CHECKS,
)
HOST_CHECKS: tuple[Check, ...] = (*preflight_machines.CHECKS, *preflight_fabric.CHECKS)
CHECKS: tuple[Check, ...] = (*INVENTORY_CHECKS, *HOST_CHECKS)


def selected(checks: Sequence[Check], context: Context) -> list[Check]:
    """The checks that this run makes."""
    layers = context.layers | {"preflight"}
    return [check for check in checks if check.layers & layers and check.level_for(context.settings) != SKIP]


def run(checks: Sequence[Check], context: Context) -> list[tuple[Check, Finding]]:
    """Make the checks of the selected layers; every finding with its severity, its reason and its check."""
    made = []
    for check in selected(checks, context):
        severity = SEVERITIES[check.level_for(context.settings)]
        for finding in check.judge(context):
            told = finding.severity if finding.severity == "info" else severity
            made.append((check, replace(finding, severity=told, why=finding.why or check.why)))
    return made


def peers(context: Context) -> list[dict[str, str]]:
    """Which nodes have to reach each other, and where; none where this run does not look."""
    if not any(check.name == "management_reach" for check in selected(HOST_CHECKS, context)):
        return []
    at = {host: context.management(host).address for host in context.nodes}
    return [{"name": host, "address": address} for host, address in at.items() if address]


def listeners(context: Context, forks: int) -> dict[str, Any]:
    """Who listens for the others over the cables; nobody where this run does not look."""
    if not any(check.name == "cables" for check in selected(HOST_CHECKS, context)):
        return {"nodes": [], "cluster": "", "timeout": 0.0}
    return preflight_fabric.listeners(context, forks)


def changeable(made: Sequence[tuple[Check, Finding]]) -> list[str]:
    """Names of the checks that refuse and need not."""
    return sorted({check.name for check, finding in made if finding.severity == "error" and not check.fixed})


def request(context: Context) -> dict[str, Any]:
    """What ``node_info`` has to look for, so that one call per node is enough."""
    commands = {name for host in context.hosts for name in preflight_machines.wanted_commands(context, host)}
    commands |= {name for name, layers in preflight_machines.INSTALLED.items() if layers & context.layers}
    commands |= set(preflight_machines.NVCC) if "engine" in context.layers else set()
    parts = {part for check in selected(HOST_CHECKS, context) for part in check.needs}
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
