# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of ``sparkmatrix.cluster.layers``. Contacts no host."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._findings import refusal
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils import _layers


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _spec, args = self.validate_argument_spec(
            argument_spec={
                "playbook_layers": {"type": "list", "elements": "str", "default": []},
                "run_tags": {"type": "list", "elements": "str", "default": []},
                "skip_tags": {"type": "list", "elements": "str", "default": []},
                "sparks": {"type": "list", "elements": "str", "default": []},
                "inventory_sources": {"type": "list", "elements": "str", "default": []},
            }
        )
        layers, findings = _layers.select(args["playbook_layers"], args["run_tags"], args["skip_tags"])
        findings += _layers.missing_sparks(args["sparks"], args["inventory_sources"])
        result.update(changed=False, layers=layers)
        if findings:
            result.update(failed=True, msg=refusal("This run was refused before any machine was contacted:", findings))
        return result
