# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of ``sparkmatrix.cluster.preflight``. Contacts no host; it judges what others have read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ansible import constants
from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import calls
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import (
    Finding,
    SparkError,
    errors,
    infos,
    refusal,
    warnings,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.node import Node
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.node import read as read_node
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import awx_job, settled
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base.login import VARIABLES, configured
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base.planner import REFUSED
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import checks as preflight_checks
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import layers as preflight_layers
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import ready
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import variables as preflight_variables
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight.base import Context, Settings
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight.reached import reason

SPEC: dict[str, dict[str, Any]] = {
    "phase": {"type": "str", "required": True, "choices": ["request", "inventory", "peers", "hosts"]},
    "layers": {"type": "list", "elements": "str"},
    "playbook_layers": {"type": "list", "elements": "str", "default": []},
    "playbook_parts": {"type": "dict", "default": {}},
    "followed_layers": {"type": "list", "elements": "str", "default": []},
    "run_tags": {"type": "list", "elements": "str", "default": []},
    "skip_tags": {"type": "list", "elements": "str", "default": []},
    "group": {"type": "str", "default": "sparks"},
    "play_hosts": {"type": "list", "elements": "str", "default": []},
    "result_variable": {"type": "str", "default": "spark_node_info"},
    "answer_variable": {"type": "str", "default": "__preflight_answer"},
    "reach_variable": {"type": "str", "default": "spark_reached"},
    "forks": {"type": "int", "default": 5},
    "require_gb10": {"type": "bool", "default": True},
    "severity": {"type": "dict", "default": {}},
    "settled": {"type": "dict", "default": {}},
    "report": {"type": "bool", "default": False},
    "inventory_sources": {"type": "list", "elements": "str", "default": []},
    "config_file": {"type": "str", "default": ""},
    "playbook_dir": {"type": "str", "default": ""},
}
# Read for every host beside the variables with the prefixes of the run's layers.
ALSO = (*VARIABLES, "fabric_management_address", awx_job.JOB)


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _spec, args = self.validate_argument_spec(argument_spec=SPEC)
        try:
            return {**result, **self._judge(args, task_vars or {})}
        except SparkError as exc:
            raise AnsibleError(str(exc)) from exc

    def _judge(self, args: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        layers: list[str] | None = args["layers"]
        findings: list[Finding] = []
        if layers is None:
            tags = (args["run_tags"], args["skip_tags"], args["playbook_parts"])
            layers, findings = preflight_layers.select(args["playbook_layers"], *tags)
        sparks = list(task_vars["groups"].get(args["group"], []))
        findings += preflight_layers.missing_sparks(sparks, args["inventory_sources"])
        if args["phase"] == "request":
            findings += awx_job.findings(task_vars, os.environ)
            if findings:
                text = refusal("This run was refused before any machine was contacted:", findings)
                return {"changed": False, "layers": layers, "failed": True, "msg": text}
            found = preflight_layers.unread_configuration(args["config_file"], args["playbook_dir"], os.getcwd())
            found += preflight_layers.injected_facts(constants.config.get_config_value("INJECT_FACTS_AS_VARS"))
            found += awx_job.unchecked_host_keys(task_vars, {host: task_vars["hostvars"][host] for host in sparks})
            told = [str(finding) for finding in found]
            return {"changed": False, "layers": layers, **({"warnings": told} if told else {})}
        refused: list[Finding] = []
        context = self._context(args, task_vars, frozenset(layers), sparks, refused)
        if refused:
            return {"changed": False, "failed": True, "msg": refusal(REFUSED, refused)}
        if args["phase"] == "peers":
            listen = preflight_checks.listeners(context, args["forks"])
            return {"changed": False, "peers": preflight_checks.peers(context), "listen": listen}
        checks = preflight_checks.INVENTORY if args["phase"] == "inventory" else preflight_checks.HOSTS
        made = preflight_checks.run(checks, context)
        if args["report"]:
            shown = [{**finding.as_dict(), "rule": finding.rule} for finding in made]
            return {"changed": False, "findings": shown, "checks": len(preflight_checks.selected(checks, context))}
        findings += made
        result: dict[str, Any] = {"changed": False}
        if warnings(findings):
            result["warnings"] = [str(finding) for finding in warnings(findings)]
        if errors(findings):
            may = preflight_checks.changeable(made)
            text = refusal("Preflight refused this run, and nothing has been changed:", findings)
            if may:
                wanted = ", ".join(f"{name}: warn" for name in sorted({finding.rule for finding in may}))
                rest = len(may) < len(errors(findings))
                which = (
                    "Some of this must be mended; to run in spite of the others" if rest else "To run in spite of this"
                )
                text += (
                    f"\n{which}, add this line to group_vars/sparks.yml of your inventory:"
                    f"\n  preflight_severity: {{{wanted}}}"
                )
            noted = infos(findings)
            if noted:
                text += "\n".join(["\nNoted besides:", *(f"  - {finding}" for finding in noted)])
            # No more than the message: Ansible prints everything that a failure returns.
            return {**result, "failed": True, "msg": text}
        shown = [finding.as_dict() for finding in findings]
        told = [str(finding) for finding in infos(findings)]
        if args["phase"] == "hosts" and preflight_checks.SERVING_OR_FABRIC & context.layers:
            told.append(ready.sentence(context))
        asked = preflight_checks.request(context)
        if not args["playbook_layers"]:  # site.yml brings each thing into its state once; others stop and start
            asked["parts"] = sorted({*asked["parts"], "settled"})
        tagged = preflight_layers.tagged(args["run_tags"], args["skip_tags"], args["playbook_parts"])
        if args["phase"] == "hosts":
            result["listened"] = preflight_checks.listened(context, args["forks"])
            result["alike"] = settled.alike(context.node(host).settled for host in args["play_hosts"])
        return {**result, "layers": layers, "tagged_layers": tagged, "findings": shown, "infos": told, "request": asked}

    def _context(
        self,
        args: Mapping[str, Any],
        task_vars: Mapping[str, Any],
        layers: frozenset[str],
        sparks: list[str],
        refused: list[Finding],
    ) -> Context:
        hostvars = task_vars["hostvars"]
        prefixes = preflight_variables.prefixes(layers)
        documented = preflight_variables.load()
        slips = preflight_variables.slips((name for host in sparks for name in hostvars[host]), documented)
        hosts: dict[str, dict[str, Any]] = {}
        broken: dict[str, dict[str, str]] = {}
        nodes: dict[str, Node] = {}
        failures: dict[str, str] = {}
        earlier: dict[str, Any] = {}
        reach: dict[str, Any] = {}
        neighbors: dict[str, Any] = {}
        for host in sparks:
            variables = hostvars[host]
            hosts[host] = {}
            for name in variables:
                if not name.startswith(prefixes) and name not in ALSO and name not in slips:
                    continue
                try:
                    hosts[host][name] = variables[name]
                except Exception as exc:  # a template can fail in any way; the finding says which variable
                    broken.setdefault(host, {})[name] = " ".join(str(exc).split())
            if args["phase"] in ("peers", "hosts") and host in args["play_hosts"]:
                read = variables.get(args["result_variable"]) or {}
                answer = variables.get(args["answer_variable"]) or {}
                if answer.get("unreachable"):
                    read = answer
                try:
                    told = read_node(read, host)
                    if told:
                        nodes[host], earlier[host] = told.node, told.fact
                    reached = calls.read("reach", variables.get(args["reach_variable"]) or {}, host)
                    reach[host] = reached.unreached
                    if reached.heard:
                        neighbors[host] = reached.heard
                except SparkError as exc:
                    refused.append(Finding(host, exc.found, exc.remedy))
                if not read.get("node"):
                    failures[host] = reason(read)
                    hosts[host] = {**configured(), **hosts[host]}
        settings = Settings(
            require_gb10=args["require_gb10"],
            severity=args["severity"],
            settled=args["settled"],
        )
        return Context(
            layers=layers,
            hosts=hosts,
            play_hosts=args["play_hosts"],
            settings=settings,
            variables=documented,
            broken=broken,
            nodes=nodes,
            failures=failures,
            earlier=earlier,
            reach=reach,
            neighbors=neighbors,
            followed=frozenset(args["followed_layers"]),
        )
