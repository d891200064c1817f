# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Sets of files on a node, for the actions ``managed_files`` and ``node_tool``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import File, fingerprint
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import settled

MODULE = "sparkmatrix.cluster.managed_files"


def files(
    ask: Callable[..., dict[str, Any]], task_vars: Mapping[str, Any] | None, args: Mapping[str, Any]
) -> dict[str, Any]:
    """What the module returns; it is not run where preflight has found exactly these files."""
    name = str(args.get("name"))
    found = settled.entry(task_vars, settled.FILES, name)
    if found and args.get("state", "present") == "present" and found == _fingerprint(args.get("files")):
        return {"changed": False, "changed_paths": []}
    return settled.execute(ask, task_vars, settled.FILES, name, module_name=MODULE, module_args=dict(args))


def _fingerprint(wanted: Any) -> str:
    """Empty where it has a fault, which the module names."""
    try:
        return fingerprint([File.from_params(item) for item in wanted or ()])
    except (SparkError, AttributeError):
        return ""
