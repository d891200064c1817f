# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of ``sparkmatrix.cluster.node_membership``. Contacts no host."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import (
    Finding,
    errors,
    refusal,
    warnings,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._access import membership
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import answers, border
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import layers as preflight_layers
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import variables as preflight_variables

SPEC: dict[str, dict[str, Any]] = {
    "phase": {"type": "str", "required": True, "choices": ["request", "compare"]},
    "change": {"type": "str", "required": True, "choices": list(membership.CHANGES)},
    "look_variable": {"type": "str", "default": "spark_peer"},
}
REFUSED = "The change of the cluster was refused, and nothing has been changed:"


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _spec, args = self.validate_argument_spec(argument_spec=SPEC)
        task_vars = task_vars or {}
        result["changed"] = False
        hostvars = task_vars["hostvars"]
        members = list(task_vars["groups"].get("sparks", []))
        leaving = list(task_vars["groups"].get("sparks_leaving", []))
        if args["phase"] == "request":
            return {**result, **_request(members, leaving, hostvars)}
        looks = {host: hostvars[host].get(args["look_variable"]) or {} for host in members}
        refused: list[Finding] = []
        known = {host: border.read(answers.MEMBER, look, host, refused) for host, look in looks.items()}
        if refused:
            return {**result, "failed": True, "msg": refusal(border.REFUSED, refused)}
        read = {host: membership.member(hostvars[host]["spark_rank"], look) for host, look in known.items()}
        found = membership.compare(args["change"], read, leaving)
        if errors(found.findings):
            return {**result, "failed": True, "msg": refusal(REFUSED, found.findings)}
        if warnings(found.findings):
            result["warnings"] = [str(finding) for finding in warnings(found.findings)]
        return {
            **result,
            "joins": list(found.joins),
            "replaced": list(found.replaced),
            "departed": list(found.departed),
            "summary": list(found.summary),
        }


def _request(members: list[str], leaving: list[str], hostvars: Any) -> dict[str, Any]:
    ranks = [{host: hostvars[host].get("spark_rank") for host in hosts} for hosts in (members, leaving)]
    findings = membership.check_request(*ranks)
    if errors(findings):
        return {"failed": True, "msg": refusal(REFUSED, findings)}
    variables: dict[str, Any] = {}
    if members and leaving:
        example = hostvars[members[0]]
        prefixes = preflight_variables.prefixes(frozenset(preflight_layers.LAYERS))
        names = membership.inherited(dict.fromkeys(example), {}, prefixes)
        variables = {name: example[name] for name in names}
    departing = [
        {
            "name": host,
            "variables": {name: value for name, value in variables.items() if name not in own},
        }
        for host, own in ((host, hostvars[host]) for host in leaving)
    ]
    return {"departing": departing}
