# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of ``sparkmatrix.cluster.ray_files``. Contacts no host."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import plan as documents
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render import ray_files

SPEC: dict[str, dict[str, Any]] = {
    "plan": {"type": "dict", "required": True},
    "user": {"type": "str", "default": "sparkmatrix"},
    "group": {"type": "str", "default": "sparkmatrix"},
    "memlock": {"type": "str", "default": "infinity"},
    "nofile": {"type": "str", "default": "65536"},
    "token_mark": {"type": "str", "default": "", "no_log": False},
    "image_mark": {"type": "str", "default": ""},
}


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _spec, args = self.validate_argument_spec(argument_spec=SPEC)
        result["changed"] = False
        settings = ray_files.Settings(args["user"], args["group"], args["memlock"], args["nofile"])
        try:
            made = ray_files.make(documents.load(args["plan"]), settings, args["token_mark"], args["image_mark"])
        except SparkError as exc:
            return {**result, "failed": True, "msg": str(exc)}
        files = [{"path": path, "content": content} for path, content in made.files.items()]
        return {**result, "files": files, "config_hash": made.config_hash}
