# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A run for programs, made of what the callback ``ansible.posix.json`` prints."""

from __future__ import annotations

import json
from typing import Any

SCHEMA_VERSION = 1
STATS = "sparkmatrix"  # what the playbooks give to set_stats


def document(playbook: str, code: int, said: str) -> dict[str, Any]:
    """``exit``: of the command; ``summary``: what AWX gets; ``lines``: what people read; ``failures``: why it ended."""
    try:
        run = json.loads(said[said.index("{") :])
    except ValueError:
        run = {}
    lines: list[str] = []
    failures = []
    for task in (task for play in run.get("plays", ()) for task in play["tasks"]):
        for host, result in task["hosts"].items():
            told = result.get("msg", "")
            text = "\n".join(map(str, told)) if isinstance(told, list) else str(told)
            if result.get("failed") or result.get("unreachable"):
                failures.append({"host": host, "task": task["task"]["name"], "message": text})
            elif str(result.get("action", "")).endswith("debug"):
                lines += text.splitlines()
    return {
        "schema_version": SCHEMA_VERSION,
        "playbook": playbook,
        "exit": code,
        "summary": (run.get("global_custom_stats") or {}).get(STATS),
        "lines": list(dict.fromkeys(lines)),
        "failures": failures,
    }
