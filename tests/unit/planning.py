# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Run a planner through the action ``plan``, with the variables of a play.

result = plan("qos_before", gathered={"nodes": {"spark1": {...}}}, profile="roce", facts={})
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from unittest.mock import MagicMock

from ansible_collections.sparkmatrix.cluster.plugins.action.plan import ActionModule


def plan(planner: str, gathered: Mapping[str, Mapping[str, Any]] | None = None, **options: Any) -> dict[str, Any]:
    """``gathered``: per option that names a variable, its value by host."""
    gathered = gathered or {}
    hosts = list(dict.fromkeys(host for values in gathered.values() for host in values))
    variables: dict[str, dict[str, Any]] = {host: {} for host in hosts}
    for option, values in gathered.items():
        options[option] = f"__{option}"
        for host, value in values.items():
            variables[host][f"__{option}"] = value
    task = MagicMock(args={"planner": planner, "options": options}, async_val=0)
    action = ActionModule(task, MagicMock(), MagicMock(check_mode=False), MagicMock(), MagicMock(), MagicMock())
    result: dict[str, Any] = action.run(
        task_vars={"ansible_play_hosts_all": hosts, "ansible_play_hosts": hosts, "hostvars": variables}
    )
    json.dumps(result)  # what goes back to Ansible
    assert result["changed"] is False
    return result
