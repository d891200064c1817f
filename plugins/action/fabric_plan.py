# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of ``sparkmatrix.cluster.fabric_plan``. Contacts no host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError, refusal, warnings
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import QOS, dump, load
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import firewall as fabric_firewall
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import names as fabric_names
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import plan as fabric_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.plan import Measured, Plan, Wishes

REFUSED = "The fabric cannot be configured like this; nothing was changed:"
NOT_PROVED = "The fabric does not work like this:"


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _spec, args = self.validate_argument_spec(
            argument_spec={
                "phase": {"type": "str", "choices": ["plan", "seal"], "default": "plan"},
                "nodes": {"type": "dict", "default": {}},
                "sparks": {"type": "list", "elements": "str", "default": []},
                "topology": {"type": "str", "default": "auto"},
                "subnets": {"type": "list", "elements": "str", "default": list(Wishes.subnets)},
                "host_offset": {"type": "int", "default": Wishes.host_offset},
                "mtu": {"type": "int", "default": Wishes.mtu},
                "transport": {"type": "str", "default": "auto"},
                "cables": {"type": "list", "elements": "str", "default": []},
                "allow_large_ring": {"type": "bool", "default": False},
                "qos": {"type": "str", "choices": list(QOS), "default": "none"},
                "qos_force": {"type": "bool", "default": False},
                "export_gid_index": {"type": "bool", "default": False},
                "facts": {"type": "dict", "default": {}},
                "measured": {"type": "dict", "default": {}},
            }
        )
        try:
            made = _plan(args) if args["phase"] == "plan" else _seal(args)
        except (SparkError, KeyError, TypeError, ValueError) as exc:
            # A result that is not what our modules return: named, not shown as a traceback.
            where = "" if isinstance(exc, SparkError) else "fabric_plan was given something unexpected: "
            return {**result, "changed": False, "failed": True, "msg": f"{where}{exc}"}
        result.update(changed=False, warnings=[str(finding) for finding in warnings(made.findings)])
        if made.refused and args["phase"] == "plan":
            found = ["", "The cables:", *(f"  {line}" for line in made.cable_map)] if made.cable_map else []
            return {**result, "failed": True, "msg": "\n".join([refusal(REFUSED, made.findings), *found])}
        common, own = fabric_names.hosts_lines(made.facts)
        result.update(
            refusal=refusal(NOT_PROVED, made.findings) if made.refused else None,
            topology=made.topology,
            facts={host: fact.as_dict() for host, fact in made.facts.items()},
            texts={host: dump(fact) for host, fact in made.facts.items()},
            paths=fabric_plan.paths(made.facts),
            hosts_lines=common,
            own_hosts_lines=own,
            firewall=fabric_firewall.rules(made.facts),
            summary=list(made.summary),
            cable_map=list(made.cable_map),
        )
        return result


def _plan(args: Mapping[str, Any]) -> Plan:
    findings = fabric_plan.missing_nodes(args["sparks"], args["nodes"])
    nodes = {host: fabric_plan.node_input(host, raw, findings) for host, raw in args["nodes"].items()}
    wishes = Wishes(**{wish.name: args[wish.name] for wish in fields(Wishes)})
    if findings:
        return Plan("", {}, findings, ())
    return fabric_plan.plan(nodes, wishes)


def _seal(args: Mapping[str, Any]) -> Plan:
    facts = {host: load(document, host) for host, document in args["facts"].items()}
    measured = {
        host: Measured(gids=found.get("gids") or (), probes=found.get("probes") or ())
        for host, found in args["measured"].items()
    }
    return fabric_plan.seal(facts, measured, args["export_gid_index"])
