# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of ``sparkmatrix.cluster.gateway``: checks the settings and renders the files for the module."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access.port_filter import GATEWAY
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import errors, refusal
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._access import port_filter
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._gateway import checks, render


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        args = dict(self._task.args)
        settings = None
        if args.get("state", "present") != "absent":
            settings, findings = checks.read({name: value for name, value in args.items() if name != "state"})
            if settings is None or errors(findings):
                text = refusal("These settings of the gateway cannot work:", findings)
                return {**result, "failed": True, "changed": False, "msg": text}
            args["rendered"] = render.files(settings)
        result.update(self._execute_module(module_args=args, task_vars=task_vars))
        ports = result.pop("ports", None)
        if settings and not result.get("failed"):
            try:
                own = [(strict.address(address), strict.whole(1, 65535)(port)) for address, port in ports or ()]
            except (TypeError, ValueError) as exc:
                return {**result, "failed": True, "msg": f"what this machine answered cannot be used: a port {exc}"}
            result["filter"] = port_filter.layer(GATEWAY, own, settings.port, settings.connections)
        # The options would be shown with -v, ten kilobytes of rendered text.
        result.pop("invocation", None)
        return result
