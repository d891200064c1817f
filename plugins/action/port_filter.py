# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of ``sparkmatrix.cluster.port_filter``: asks no node whose table is active and as it should be."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access import port_filter
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import fingerprint
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import settled


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        args = self._task.args
        name, rules = str(args.get("name")), args.get("rules")
        file_set = port_filter.file_set(name)
        known, users = settled.table(task_vars, "accounts"), args.get("users") or ()
        numbers = [known[user] for user in users if user in known]
        if (
            args.get("state", "present") == "present"
            and rules
            and len(numbers) == len(users)
            and settled.table(task_vars, "filters").get(name) is True
            and settled.entry(task_vars, settled.FILES, file_set)
            == fingerprint(port_filter.wanted(name, str(rules), numbers))
        ):
            return {**result, "changed": False, "changes": []}
        if args.get("state") == "in_force" and _in_force(task_vars):
            return {**result, "changed": False, "changes": []}
        call = {"module_args": dict(args)}
        return {**result, **settled.execute(self._execute_module, task_vars, settled.FILES, file_set, **call)}


def _in_force(task_vars: dict[str, Any] | None) -> bool:
    """Whether preflight of this run has found all tables in the kernel, and the run has loaded none since."""
    found = settled.table(task_vars, "filters")
    return all(
        found.get(name) is True and settled.entry(task_vars, settled.FILES, port_filter.file_set(name))
        for name in port_filter.NAMES
        if name in (port_filter.FABRIC, port_filter.SERVICES, *found)
    )
