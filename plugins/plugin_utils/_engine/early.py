# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is wrong with the engine that was asked for, as far as that can be told without any machine.

The plan is made with assumed addresses and the memory of a GB10, and only its errors count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding, errors
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import VARIABLES
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import plan as engine_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import services
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.user_settings import ENTRY, SPEC

ANY_MODEL = 2**50  # bytes: no model is refused for memory that is not known


def findings(value: Callable[[str], Any], hosts: Sequence[str], *, gb10: bool) -> list[Finding]:
    """``value``: of a variable by its name, ``None`` where it has none. ``hosts``: by rank."""
    _made, found = planned(value, hosts, None if gb10 else dict.fromkeys(hosts, ANY_MODEL))
    # Without a place: a wrong type, which the checks of variables name.
    return [finding for finding in errors(found) if finding.host]


def planned(
    value: Callable[[str], Any], hosts: Sequence[str], memory: Mapping[str, int] | None
) -> tuple[engine_plan.Plans | None, list[Finding]]:
    """``memory``: bytes by host, where it is not that of a GB10."""
    args = _arguments(value)
    if memory and ANY_MODEL in memory.values():
        args["free_memory_gib"] = 0
    wanted, found = _services(args, hosts)
    if not wanted:
        return None, found
    facts = engine_plan.assumed_facts(hosts)
    switches = [value(name) or False for name in ("access_firewall", "spark_port_filter")]
    kept_out = any(boolean(switch, strict=False) for switch in switches)
    made = services.plan(wanted, facts, memory or {}, firewall=kept_out, given=len(args["services"]))
    return made, [*found, *made.findings]


def asked(value: Callable[[str], Any], hosts: Sequence[str]) -> tuple[list[services.Service], list[Finding]]:
    """The services with their recipes, as far as these can be read, and what is wrong with the others."""
    return _services(_arguments(value), hosts)


def _services(args: Mapping[str, Any], hosts: Sequence[str]) -> tuple[list[services.Service], list[Finding]]:
    entries, found = services.read(args["services"], hosts)
    wanted = []
    for entry in entries:
        service, problems = services.service(entry, args, {})
        found += services.said(entry, problems) if args["services"] else problems
        wanted += [service] if service else []
    return wanted, found


def _arguments(value: Callable[[str], Any]) -> dict[str, Any]:
    """Options of engine_plan, as ``roles/engine/tasks/plan.yml`` gives them."""
    given: dict[str, Any] = {name: spec.get("default") for name, spec in SPEC.items()}
    named = {VARIABLES[key]: option for key, option in ENTRY.items()}
    named |= {"engine_free_memory_gib": "free_memory_gib", "engine_model_cache": "hf_home"}
    named["engine_mount_directories"] = "mount_directories"
    given |= {option: value(name) for name, option in named.items() if value(name) is not None}
    given["expert_parallel"] = str(given["expert_parallel"]).lower()
    gpus = value("engine_container_gpus")
    given["container"] = {} if gpus is None else {"gpus": gpus}
    ray = {name: value(f"ray_{name}") for name in ("port", "dashboard_port", "num_cpus")}
    given["ray"] = {name: number for name, number in ray.items() if number is not None}
    entries, paths = value("engine_services"), value("engine_recipe_paths")
    given["services"] = list(entries) if isinstance(entries, (list, tuple)) else []
    given["recipe_paths"] = list(map(str, paths)) if isinstance(paths, (list, tuple)) else []
    for name in services.MERGED:
        given[name] = dict(given[name]) if isinstance(given[name], Mapping) else {}
    return given
