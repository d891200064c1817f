# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A run for programs, made of what the callback ``ansible.posix.json`` prints."""

from __future__ import annotations

from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError

SCHEMA_VERSION = 1
STATS = "sparkmatrix"  # what the playbooks give to set_stats


def document(playbook: str, code: int, said: str) -> dict[str, Any]:
    """``exit``: of the command; ``summary``: what AWX gets; ``lines``: what people read; ``failures``: why it ended.
    Of a run that never began, and printed none of it, there is only how it ended."""
    from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._screen import commands  # noqa: PLC0415  # Ansible

    called = commands.typed(())
    summary, lines, failures = None, [], []
    try:
        with json_text.Reading("Ansible printed no run", playbook):
            run = json_text.mapping(said[said.find("{") :])
            summary = (run.get("global_custom_stats") or {}).get(STATS)
            for task in (task for play in run["plays"] for task in play["tasks"]):
                for host, result in task["hosts"].items():
                    told = result.get("msg", "")
                    text = "\n".join(map(str, told)) if isinstance(told, list) else str(told)
                    text = called.whole(text) if called.by_verbs else text
                    if result.get("failed") or result.get("unreachable"):
                        failures.append({"host": host, "task": task["task"]["name"], "message": text})
                    elif str(result.get("action", "")).endswith("debug"):
                        lines += text.splitlines()
    except SparkError:
        pass
    return {
        "schema_version": SCHEMA_VERSION,
        "playbook": playbook,
        "exit": code,
        "summary": summary,
        "lines": list(dict.fromkeys(lines)),
        "failures": failures,
    }
