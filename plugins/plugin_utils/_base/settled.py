# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What preflight has found settled on a node: an action whose part of it is as wanted does not ask the node again.

Preflight of site.yml reads it (``module_utils/_settled.py``), since that playbook brings each thing into its
state once. What this run has changed since counts no more. A machine that lies here is left as it is, no more: it could
as well lie to the module that is not run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

FILES, UNITS, FIREWALL = "files", "units", "firewall"
RULES = "rules"  # of all layers: the firewall has a rule once
# Facts of the host: that this run has changed something, and by this name and more, what.
CHANGED = "sparkmatrix_changed"
NODE_INFO, ACCESS, FABRIC = "spark_node_info", "spark_access_compared", "spark_fabric_compared"
PREFLIGHT, REACHED = "spark_preflight", "spark_reached"


def node(task_vars: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """What preflight of this run has read of the host; empty where it has not."""
    return _mapping(_mapping((task_vars or {}).get(NODE_INFO)).get("node"))


def part(task_vars: Mapping[str, Any] | None, name: str) -> Any:
    return _mapping(node(task_vars).get("settled")).get(name)


def table(task_vars: Mapping[str, Any] | None, name: str) -> Mapping[str, Any]:
    return _mapping(part(task_vars, name))


def alike(nodes: Iterable[Any]) -> dict[str, Any]:
    """``nodes``: what is settled on each. What is the same on all is found out once: each node that asked all others
    would make this grow with their square. ``qos``: none has anything left of a QoS profile."""
    found = [_mapping(settled) for settled in nodes]
    secrets = [_mapping(one.get("secrets")) for one in found] or [{}]
    return {
        "qos": all(one.get("qos") is True for one in found),
        "secrets": {
            name: mark
            for name, mark in secrets[0].items()
            if mark and all(secret.get(name) == mark for secret in secrets)
        },
    }


def shared_secret(task_vars: Mapping[str, Any] | None, name: str) -> Mapping[str, Any]:
    """Mark and owner, where preflight has found the same on every node of the play."""
    known = _mapping(_mapping((task_vars or {}).get(PREFLIGHT)).get("alike"))
    return _mapping(_mapping(known.get("secrets")).get(name))


def entry(task_vars: Mapping[str, Any] | None, kind: str, name: str) -> Any:
    """What was found of one set of files or unit, unless this run has changed it: by that name, or with the fabric or
    sshd and firewall, whose changes write facts and bring back manifests."""
    if _changed(task_vars, kind, name) or not unchanged(task_vars, ACCESS, FABRIC):
        return None
    return table(task_vars, kind).get(name)


def firewall_layer(task_vars: Mapping[str, Any] | None, layer: str) -> Any:
    """The mark of a layer's rules that the role access has found in this run (call ``access``), unless the run has
    changed rules since: two layers may want the same one, which the firewall has once. Preflight does not read rules,
    so a change still counts when it has looked again."""
    if not node(task_vars) or _fact(FIREWALL, RULES) in _mapping((task_vars or {}).get("ansible_facts")):
        return None
    return _mapping(_mapping((task_vars or {}).get(ACCESS)).get("settled")).get(layer)


def execute(
    ask: Callable[..., dict[str, Any]], task_vars: Mapping[str, Any] | None, kind: str, name: str, **call: Any
) -> dict[str, Any]:
    """Run the module (``ActionBase._execute_module``), and remember for this run whether it has changed something."""
    result = ask(task_vars=task_vars, **call)
    if result.get("changed") and node(task_vars):
        # One fact for each: of a loop, Ansible keeps those of the last entry that have the same name.
        when = {"at": node(task_vars).get("time")}
        result["ansible_facts"] = {CHANGED: when, _fact(kind, name): when}
    return result


def unchanged(task_vars: Mapping[str, Any] | None, *variables: str) -> bool:
    """Whether these comparisons of the run, as far as they were made, have found nothing to change."""
    return not any(_mapping((task_vars or {}).get(name)).get("changes") for name in variables)


def _fact(kind: str, name: str) -> str:
    return f"{CHANGED}_{kind}_{re.sub('[^a-zA-Z0-9]', '_', name)}"


def _changed(task_vars: Mapping[str, Any] | None, kind: str, name: str) -> bool:
    noted = _mapping(_mapping((task_vars or {}).get("ansible_facts")).get(_fact(kind, name)))
    # Facts may be kept from run to run, and preflight may have looked again since.
    return bool(noted) and noted.get("at") == node(task_vars).get("time")


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
