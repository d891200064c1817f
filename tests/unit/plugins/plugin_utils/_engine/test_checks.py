# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

"""The table of checks; what each of them finds is in test_plan.py."""

import inspect

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import checks
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.checks import Asked, Check
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.job import Job
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.user_settings import UserSettings


def test_every_check_is_made():
    judges = {
        judge
        for name, judge in inspect.getmembers(checks, inspect.isgeneratorfunction)
        if list(inspect.signature(judge).parameters) in (["asked"], ["job"])
    }
    assert judges <= {check.judge for check in checks.CHECKS}
    assert {check.level for check in checks.CHECKS} == {"error", "warning", ""}
    stages = {"asked": Asked, "numbers": Asked, "job": Job, "ray": Job, "ports": Job, "sizes": Job}
    assert {check.stage for check in checks.CHECKS} == set(stages)


@pytest.mark.parametrize(
    ("check", "only_print", "expected"),
    [
        (Check("x", lambda _asked: [Finding("a", "b", "c", severity="info")]), False, "error"),
        (Check("x", lambda _asked: [Finding("a", "b", "c")], "warning"), False, "warning"),
        (Check("x", lambda _asked: [Finding("a", "b", "c", severity="info")], ""), False, "info"),
        (Check("x", lambda _asked: [Finding("a", "b", "c")], to_print="warning"), True, "warning"),
        (Check("x", lambda _asked: [Finding("a", "b", "c")], to_print="warning"), False, "error"),
    ],
)
def test_the_table_says_how_findings_count(monkeypatch, check, only_print, expected):
    monkeypatch.setattr(checks, "CHECKS", (check,))
    (found,) = checks.run("x", Asked(None, {}, UserSettings(only_print=only_print)))
    assert found.severity == expected
    assert not checks.run("y", Asked(None, {}, UserSettings()))
