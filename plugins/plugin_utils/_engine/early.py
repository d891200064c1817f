# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The plan from variables alone: what services are asked for, and what is wrong with them, before any machine is asked.

Such a plan has assumed addresses and the memory of a GB10, and only its errors count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding, errors
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import plan as engine_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import services, user_settings

Value = Callable[[str], Any]  # of a variable by its name, None where it has none
ANY_MODEL = 2**50  # bytes: no model is refused for memory that is not known


def findings(value: Value, hosts: Sequence[str], *, gb10: bool) -> list[Finding]:
    """``hosts``: by rank."""
    _made, found = planned(value, hosts, None if gb10 else dict.fromkeys(hosts, ANY_MODEL))
    # Without a place: a wrong type, which the checks of variables name.
    return [finding for finding in errors(found) if finding.host]


def planned(
    value: Value, hosts: Sequence[str], memory: Mapping[str, int] | None
) -> tuple[engine_plan.Plans | None, list[Finding]]:
    """``memory``: bytes by host, where it is not that of a GB10."""
    options = asked_options(value)
    if memory and ANY_MODEL in memory.values():
        options["free_memory_gib"] = 0
    wanted, found = services.wanted(options, hosts)
    if not wanted:
        return None, found
    models, wrong = services.by_name(options, {})
    facts = engine_plan.assumed_facts(hosts)
    firewall, given = kept_out(value), len(options["services"])
    made = services.plan(wanted, facts, memory or {}, firewall=firewall, given=given, models=models)
    return made, [*found, *wrong, *made.findings]


def asked(value: Value, hosts: Sequence[str]) -> tuple[list[services.Service], list[Finding]]:
    """The services with their recipes, as far as these can be read, and what is wrong with the others."""
    return services.wanted(asked_options(value), hosts)


def by_name(value: Value) -> list[services.Service]:
    """The models that take the place of the one service, as far as they can be read."""
    return services.by_name(asked_options(value), {})[0]


def asked_options(value: Value) -> dict[str, Any]:
    """Options of a service, entries of several, models in place of each other, and where recipes are."""
    named = {"services": "engine_services", "models": "engine_models", "recipe_paths": "engine_recipe_paths"}
    lists = {name: value(variable) for name, variable in named.items()}
    given = {name: list(found) if isinstance(found, (list, tuple)) else [] for name, found in lists.items()}
    return {
        **user_settings.given(value),
        "services": given["services"],
        "models": given["models"],
        "recipe_paths": list(map(str, given["recipe_paths"])),
    }


def kept_out(value: Value) -> bool:
    """Strangers do not reach what listens on the nodes."""
    filtered = value("spark_port_filter")
    return any(
        boolean(one, strict=False)
        for one in (value("access_firewall") or False, True if filtered is None else filtered)
    )
