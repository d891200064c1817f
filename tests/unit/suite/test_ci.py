# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What CI runs: `make test` decides, and what it leaves of the time goes to steps of `make test-full`. And the workflow
of the public repository: the same commands, where they find what they need."""

from __future__ import annotations

import os
import re
import subprocess

import pytest
import yaml
from suite.steps import ROOT

MAKE = """#!/bin/sh
echo "$1 ${MINUTES:-}" >> "$CALLS"
echo "$1: 3 passed, 0 failed, 0 skipped"
case $1 in test) exit "$TEST" ;; *) exit "$FULL" ;; esac
"""


@pytest.mark.parametrize(
    ("ci", "test", "full", "calls"),
    [
        ("", 0, 0, ["test "]),
        ("true", 0, 0, ["test ", "test-full 35"]),
        ("true", 0, 1, ["test ", "test-full 35"]),
        ("true", 2, 0, ["test "]),
    ],
)
def test_ci_is_held_to_make_test_alone(tmp_path, ci, test, full, calls):
    make = tmp_path / "make"
    make.write_text(MAKE)
    make.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "CALLS": str(tmp_path / "calls"),
        "CI": ci,
        "TEST": str(test),
        "FULL": str(full),
    }
    environment.pop("MINUTES", None)
    done = subprocess.run([ROOT / ".ci/run"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == test, done.stderr
    assert (tmp_path / "calls").read_text().splitlines() == calls
    assert done.stdout.splitlines()[-1] == "test: 3 passed, 0 failed, 0 skipped"
    assert ("!!! make test-full" in done.stdout) == bool(full)


WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
PYTHONS = re.findall(r"\b(3\.\d+):\.venv", (ROOT / "tests/tools/make_envs").read_text())


@pytest.mark.parametrize("job", WORKFLOW["jobs"])
def test_a_job_of_the_workflow_runs_a_target_where_both_pythons_are(job):
    steps = WORKFLOW["jobs"][job]["steps"]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    made = [(number, step["run"]) for number, step in enumerate(steps) if "make " in step.get("run", "")]
    assert made and all(run.partition("make ")[2].split()[0] in targets for _number, run in made)
    (place,) = [number for number, step in enumerate(steps) if "actions/setup-python@" in step.get("uses", "")]
    assert place < made[0][0] and steps[place]["with"]["python-version"].split() == PYTHONS and len(PYTHONS) == 2
    for _number, run in made:
        # sudo alone would lose the Pythons, and that a missing one is a failure.
        assert "sudo" not in run or run.startswith('sudo env "PATH=$PATH" CI=true make '), run


def test_the_actions_of_the_workflow_have_versions():
    used = [step["uses"] for job in WORKFLOW["jobs"].values() for step in job["steps"] if "uses" in step]
    assert used and [name for name in used if not re.fullmatch(r"actions/[a-z-]+@v\d+\.\d+\.\d+", name)] == []
