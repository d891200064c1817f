# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of ``sparkmatrix.cluster.summary``: makes the last lines of a playbook. Contacts no host."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

from ansible import context
from ansible.plugins.action import ActionBase
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding, errors, refusal
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import border
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._status import collect, summary

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
        known = {
            host: {
                name: border.read(shape, hostvars[host][name], host, findings)
                for name, shape in collect.READ.items()
                if name in hostvars[host]
            }
            for host in well
        }
        head = min(well, key=lambda host: int(hostvars[host].get("spark_rank", 0)))
        own = {name: hostvars[head][name] for name in collect.OWN if name in hostvars[head]}
        seen = border.read(collect.ADDRESSES, hostvars[head].get("spark_node_info") or {}, head, findings)
        if errors(findings):
            return {**result, "failed": True, "msg": refusal(border.REFUSED, findings)}
        tags = tuple(variables.get("ansible_run_tags") or ())
        run = summary.Run(
            playbook=args["playbook"],
            hosts=tuple(hosts),
            head=collect.login(head, own),
            commands=commands(variables),
            failed=tuple(host for host in hosts if host not in well),
            check=bool(variables.get("ansible_check_mode")),
            tags=() if {"all", "tagged"} & set(tags) else tags,
            layers=collect.layers(known, own),
            services=collect.services(known),
            way=collect.way(known, head, own, collect.interfaces(seen)),
            reboot=collect.reboot(known),
            leaving=tuple(args["leaving"]),
        )
        return {**result, "changed": False, "lines": summary.lines(run)}


def commands(variables: dict[str, Any]) -> summary.Commands:
    """As this run was called. Where nobody has typed it (AWX), the plain names."""
    root = Path(__file__).resolve().parents[2]
    inventories = [_seen_from_here(one) for one in variables.get("ansible_inventory_sources") or ()]
    options = [word for one in inventories for word in ("-i", one)]
    if context.CLIARGS.get("become_ask_pass"):
        options.append("-K")
    folder = _seen_from_here(str(root))
    return summary.Commands(
        program=_seen_from_here(sys.argv[0]) if "/" in sys.argv[0] else "ansible-playbook",
        folder="" if folder == "." else f"{folder}/",
        options=shlex.join(options),
        top=tuple(path.stem for path in root.glob("*.yml")),
    )


def _seen_from_here(path: str) -> str:
    """Relative where it is below the current directory; a list of hosts (``-i host,``) as it is."""
    if "," in path or not os.path.isabs(path):
        return path
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
