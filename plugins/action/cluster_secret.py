# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of ``sparkmatrix.cluster.cluster_secret``: carries nothing where all nodes have the same already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import settled


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        args = self._task.args
        mark = _shared(args, task_vars or {}) if args.get("state", "present") == "present" else ""
        if mark:
            return {**result, "changed": False, "secret": "", "replaced": False, "fingerprint": mark}
        return {**result, **self._execute_module(module_args=dict(args), task_vars=task_vars)}


def _shared(args: Mapping[str, Any], task_vars: Mapping[str, Any]) -> str:
    """The mark of the secret, where preflight has found the same on every node of the play. One that has another, or
    none, needs the secret itself, and so the head has to be asked."""
    found = settled.shared_secret(task_vars, str(args.get("name")))
    owner = f"{args.get('owner', 'root')}:{args.get('group', 'root')}"
    return str(found.get("mark") or "") if found.get("owner") == owner else ""
