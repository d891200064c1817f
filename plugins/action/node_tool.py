# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of ``sparkmatrix.cluster.node_tool``: packs the tool and hands it to ``managed_files``."""

from __future__ import annotations

import hashlib
from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.paths import NODE_PROGRAM
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils import _node_program, _placed

# A result registered under this name lasts as long as the run of the playbook, so one run asks a machine once.
REGISTERED = "spark_node_tool"


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _spec, args = self.validate_argument_spec(
            argument_spec={"state": {"type": "str", "choices": ["present", "absent"], "default": "present"}}
        )
        earlier = (task_vars or {}).get(REGISTERED) or {}
        if args["state"] == earlier.get("state") == "present":
            result.update({key: earlier[key] for key in ("path", "sha256", "state", "changed_paths")}, changed=False)
            return result
        try:
            content = _node_program.build()
        except SparkError as exc:
            raise AnsibleError(str(exc)) from exc
        digest = hashlib.sha256(content).hexdigest()
        options: dict[str, Any] = {"name": "node_tool", "state": args["state"]}
        if args["state"] == "present":
            options["files"] = _node_program.files(content)
        else:  # units of other layers call it
            options["only_when_last"] = True
        result.update(_placed.files(self._execute_module, task_vars, options))
        # The options would be shown with -v, a hundred kilobytes of base64.
        result.pop("invocation", None)
        result.update(path=NODE_PROGRAM, sha256=digest)
        if not result.get("failed"):
            result["state"] = args["state"]
        return result
