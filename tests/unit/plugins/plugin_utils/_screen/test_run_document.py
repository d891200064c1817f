# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._screen import run_document


def task(name: str, **hosts: dict[str, object]) -> dict[str, object]:
    return {"task": {"name": name}, "hosts": hosts}


def test_a_run_for_programs() -> None:
    said = ["a", "b"]
    run = {
        "plays": [
            {
                "tasks": [
                    task(
                        "Show",
                        one={"action": "ansible.builtin.debug", "msg": said},
                        two={"action": "debug", "msg": "a"},
                    ),
                    task("Do", one={"action": "copy", "msg": "x"}, two={"action": "copy", "failed": True, "msg": said}),
                    task("Reach", two={"action": "ping", "unreachable": True, "msg": "gone"}),
                ]
            }
        ],
        "global_custom_stats": {"sparkmatrix": {"url": "u"}},
    }
    made = run_document.document("site", 1, f"[WARNING]: x\n{json.dumps(run)}")
    assert made == {
        "schema_version": 1,
        "playbook": "site",
        "exit": 1,
        "summary": {"url": "u"},
        "lines": ["a", "b"],
        "failures": [
            {"host": "two", "task": "Do", "message": "a\nb"},
            {"host": "two", "task": "Reach", "message": "gone"},
        ],
    }


def test_a_run_that_never_began() -> None:
    made = run_document.document("site", 1, "ERROR! nothing\n")
    assert (made["exit"], made["summary"], made["lines"], made["failures"]) == (1, None, [], [])


def test_what_a_program_is_told_to_run_is_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKMATRIX_COMMAND", "uvx sparkmatrix")
    failed = task("Plan", one={"failed": True, "msg": "playbooks/recipes.yml says which fit"})
    made = run_document.document("plan", 1, json.dumps({"plays": [{"tasks": [failed]}]}))
    assert made["failures"][0]["message"] == "'uvx sparkmatrix models' says which fit"
