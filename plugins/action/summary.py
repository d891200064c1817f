# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of ``sparkmatrix.cluster.summary``: makes the last lines of a playbook. Contacts no host."""

from __future__ import annotations

from typing import Any

from ansible import context
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import (
    Finding,
    SparkError,
    errors,
    refusal,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.node import Node
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.node import read as read_node
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base.login import VARIABLES, configured, login
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base.planner import REFUSED
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._screen import commands
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._status import collect, summary

STATS = "sparkmatrix"  # under this name AWX has it, and gives it to the jobs that follow in a workflow
SPEC: dict[str, dict[str, Any]] = {
    "playbook": {"type": "str", "required": True},
    "leaving": {"type": "list", "elements": "str", "default": []},
}


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _spec, args = self.validate_argument_spec(argument_spec=SPEC)
        variables = task_vars or {}
        hosts, hostvars = list(variables["ansible_play_hosts_all"]), variables["hostvars"]
        well = [host for host in hosts if host in variables["ansible_play_hosts"]]
        findings: list[Finding] = []
        known: dict[str, collect.Node] = {}
        for host in well:
            try:
                known[host] = collect.read(hostvars[host], host)
            except SparkError as exc:
                findings.append(Finding(host, exc.found, exc.remedy))
        head = min(well, key=lambda host: int(hostvars[host].get("spark_rank", 0)))
        own = {name: hostvars[head][name] for name in collect.OWN if name in hostvars[head]}
        ways = {name: hostvars[head][name] for name in VARIABLES if name in hostvars[head]}
        seen = None
        try:
            seen = read_node(hostvars[head].get("spark_node_info"), head)
        except SparkError as exc:
            findings.append(Finding(head, exc.found, exc.remedy))
        if errors(findings):
            return {**result, "failed": True, "msg": refusal(REFUSED, findings)}
        tags = tuple(variables.get("ansible_run_tags") or ())
        run = summary.Run(
            playbook=args["playbook"],
            hosts=tuple(hosts),
            head=login(head, {**configured(), **ways}),
            commands=commands.typed(
                variables.get("ansible_inventory_sources") or (), ask_sudo=bool(context.CLIARGS.get("become_ask_pass"))
            ),
            failed=tuple(host for host in hosts if host not in well),
            check=bool(variables.get("ansible_check_mode")),
            tags=() if {"all", "tagged"} & set(tags) else tags,
            layers=collect.layers(known, own),
            services=collect.services(known),
            starts=collect.starts(known),
            way=collect.way(known, head, own, collect.interfaces(seen.node if seen else Node())),
            reboot=collect.reboot(known),
            leaving=tuple(args["leaving"]),
            filtered=boolean(own.get("spark_port_filter", True), strict=False),
        )
        said = {"changed": False, "lines": summary.lines(run)}
        # What ansible.builtin.set_stats returns.
        stats = {"data": {STATS: summary.artifacts(run)}, "per_host": False, "aggregate": False}
        drift = summary.drift(run) if variables.get("spark_drift") == "fail" else ""
        failure = {"failed": True, "msg": drift} if drift else {}
        return {**result, **said, "ansible_stats": stats, **failure}
