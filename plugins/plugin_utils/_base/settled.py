# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What preflight has found settled on a node: an action whose part of it is as wanted does not ask the node again.

Preflight of site.yml reads it (``module_utils/_preflight/settled.py``), since that playbook brings each thing into its
state once. What this run has changed since counts no more. A machine that lies here is left as it is, no more: it could
as well lie to the module that is not run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

FILES, UNITS = "files", "units"
CHANGED = "sparkmatrix_changed"  # a fact of the host: what this run has changed
NODE_INFO, ACCESS, FABRIC = "spark_node_info", "spark_access_compared", "spark_fabric_compared"


def node(task_vars: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """What preflight of this run has read of the host; empty where it has not."""
    return _mapping(_mapping((task_vars or {}).get(NODE_INFO)).get("node"))


def part(task_vars: Mapping[str, Any] | None, name: str) -> Any:
    return _mapping(node(task_vars).get("settled")).get(name)


def table(task_vars: Mapping[str, Any] | None, name: str) -> Mapping[str, Any]:
    return _mapping(part(task_vars, name))


def entry(task_vars: Mapping[str, Any] | None, kind: str, name: str) -> Any:
    """What was found of one set of files or unit, unless this run has changed it: by that name, or with the fabric or
    sshd and firewall, whose changes write facts and bring back manifests."""
    if f"{kind} {name}" in _changed(task_vars) or not unchanged(task_vars, ACCESS, FABRIC):
        return None
    return table(task_vars, kind).get(name)


def execute(
    ask: Callable[..., dict[str, Any]], task_vars: Mapping[str, Any] | None, kind: str, name: str, **call: Any
) -> dict[str, Any]:
    """Run the module (``ActionBase._execute_module``), and remember for this run whether it has changed something."""
    result = ask(task_vars=task_vars, **call)
    if result.get("changed") and node(task_vars):
        everything = sorted({*_changed(task_vars), f"{kind} {name}"})
        result["ansible_facts"] = {CHANGED: {"at": node(task_vars).get("time"), "what": everything}}
    return result


def unchanged(task_vars: Mapping[str, Any] | None, *variables: str) -> bool:
    """Whether these comparisons of the run, as far as they were made, have found nothing to change."""
    return not any(_mapping((task_vars or {}).get(name)).get("changes") for name in variables)


def _changed(task_vars: Mapping[str, Any] | None) -> Sequence[str]:
    noted = _mapping(_mapping((task_vars or {}).get("ansible_facts")).get(CHANGED))
    # Facts may be kept from run to run, and preflight may have looked again since.
    return noted.get("what") or () if noted.get("at") == node(task_vars).get("time") else ()


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
