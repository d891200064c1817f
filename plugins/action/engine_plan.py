# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of ``sparkmatrix.cluster.engine_plan``. Contacts no host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import (
    Finding,
    SparkError,
    errors,
    refusal,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fact as fabric_fact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.node import Node
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.node import read as read_node
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import early
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import plan as engine_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import report as engine_report
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import services as engine_services
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.registry import KINDS
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render import sbatch as render_sbatch
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import by_inventory, ownership
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import variables as preflight_variables

SPEC: dict[str, dict[str, Any]] = {
    "group": {"type": "str", "default": "sparks"},
    "variables": {"type": "dict", "default": {}},
}
NODE_VARIABLE = "spark_node_info"
OWN_COMMAND = "Of a recipe's own image and command no batch job is written: what it needs of Slurm nobody here knows"
KEPT = "A batch job leaves nothing on its nodes, and no computed prompts: write one with -e engine_prefix_cache_gb=0"
SEVERAL = "A batch job holds its machines alone: write one for each service, with -e '{\"engine_services\": []}'"


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _only_print = False  # a fabric that is not there is assumed

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _spec, args = self.validate_argument_spec(argument_spec=SPEC)
        task_vars = task_vars or {}
        hosts = list(task_vars["groups"].get(args["group"], []))

        def value(name: str) -> Any:
            return args["variables"].get(name, self._templar.template(task_vars.get(name)))

        options = early.asked_options(value)
        only_print = self._only_print = boolean(options["only_print"], strict=False)
        facts, findings = self._facts(hosts, task_vars["hostvars"])
        nodes = {host: _node(host, task_vars["hostvars"][host], findings) for host in hosts}
        memory = {host: (node.memory.total if node else None) or 0 for host, node in nodes.items()}
        assumed = [host for host in hosts if host not in facts] if only_print else []
        lacking: list[Finding] = []
        if assumed:
            # All or none: ranks and addresses of a mixture would not fit together.
            if len(hosts) > 1:
                facts, lacking = _by_inventory(hosts, task_vars["hostvars"])
            if lacking or len(hosts) < 2:
                facts = engine_plan.assumed_facts(hosts)
        taken = {host: node.taken for host, node in nodes.items() if node}
        services, problems = engine_services.wanted(options, hosts, _available(nodes), taken)
        models, wrong = engine_services.by_name(options, _available(nodes), taken)
        findings += [*problems, *wrong]
        several = options["services"]
        plans = None
        if services and len(facts) == len(hosts):
            firewall = early.kept_out(value)
            plans = engine_services.plan(services, facts, memory, firewall=firewall, given=len(several), models=models)
            findings += plans.findings
        result["changed"] = False
        if plans is None or not plans.plans or errors(findings):
            known = list(plans.summary) if plans else []
            first = [f"{known.pop(0)}."] if known and known[0].startswith(engine_report.FITS["does not fit"]) else []
            text = refusal("The engine plan was refused, and nothing was started:", findings)
            result.update(failed=True, msg="\n".join([*first, text, *(f"  {line}" for line in known)]))
            return result
        notes = [engine_report.ASSUMED] if assumed else []
        notes += [engine_report.MORE] if only_print and not boolean(options["details"], strict=False) else []
        plans = replace(plans, summary=[*plans.summary, *notes])
        if plans.warnings:
            result["warnings"] = plans.warnings
        if several:
            batch: dict[str, Any] = {"refused": SEVERAL}
        elif any(KINDS[plan.here[0].engine.name].opaque for plan in plans.plans.values()):
            batch = {"refused": OWN_COMMAND}
        elif any(plan.here[0].prefixes.base for plan in plans.plans.values()):
            batch = {"refused": KEPT}
        elif lacking:
            batch = {"refused": refusal("There is no batch script for these machines:", lacking)}
        else:
            told = by_inventory.told(facts) if assumed and len(hosts) > 1 else []
            batch = {"script": render_sbatch.script(plans.plans, told), "assumed": told}
        documents = {host: plan.as_dict() for host, plan in plans.plans.items()}
        return {**result, "plans": documents, "summary": plans.summary, "sbatch": batch}

    def _facts(
        self, hosts: list[str], hostvars: Mapping[str, Any]
    ) -> tuple[dict[str, fabric_fact.FabricFact], list[Finding]]:
        """Facts of all hosts; a host whose fact cannot be used is a finding."""
        facts: dict[str, fabric_fact.FabricFact] = {}
        findings: list[Finding] = []
        for host in hosts:
            try:
                facts[host] = self._fact(host, hostvars[host])
            except SparkError as exc:
                if not self._only_print:
                    findings.append(Finding(exc.where or host, exc.found, exc.remedy))
        findings += ownership.conflicts({host: ownership.of_fact(fact) for host, fact in facts.items()})
        return facts, findings

    def _fact(self, host: str, variables: Mapping[str, Any]) -> fabric_fact.FabricFact:
        """This run's fact, else the one that the node keeps. A planned one is good enough in check mode."""
        present = variables.get("spark_fabric")
        if present is None:
            present = (variables.get(NODE_VARIABLE) or {}).get("fact")
        fact = fabric_fact.load(present, host)
        if (self._task.check_mode or self._only_print) and fact.state == "planned":
            return fact
        return fabric_fact.require_applied(fact)


def _by_inventory(
    hosts: list[str], hostvars: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, fabric_fact.FabricFact], list[Finding]]:
    """The facts that follow from variables alone, or what is wrong or missing there."""
    documented = preflight_variables.load()
    given = {host: {name: hostvars[host].get(name) for name in by_inventory.READ} for host in hosts}
    wrong = [
        Finding(host, complaint, "Correct it in the inventory")
        for host in hosts
        for name, value in given[host].items()
        if (complaint := preflight_variables.complaint(documented[name], value))
    ]
    if wrong:
        return {}, wrong
    values = {
        host: {name: preflight_variables.typed(documented[name], value) for name, value in given[host].items()}
        for host in hosts
    }
    return by_inventory.facts(hosts, values)


def _node(host: str, variables: Mapping[str, Any], findings: list[Finding]) -> Node | None:
    """What preflight has read on a host in this run."""
    try:
        told = read_node(variables.get(NODE_VARIABLE), host)
    except SparkError as exc:
        findings.append(Finding(host, exc.found, exc.remedy))
        return None
    return told.node if told else None


def _available(nodes: Mapping[str, Node | None]) -> dict[str, int]:
    """Available memory in bytes, where it says what an engine may have: none of ours is installed on any node.

    Else it may run, also on a node without a unit of its own: as a worker of Ray.
    """
    known = {host: node for host, node in nodes.items() if node and not node.engine_units}
    return {host: node.memory.available or 0 for host, node in known.items()} if len(known) == len(nodes) else {}
