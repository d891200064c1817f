# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What CI runs: `make test`. And the workflow of the public repository: the same commands, where they find what they
need."""

from __future__ import annotations

import os
import re
import subprocess

import pytest
import yaml
from suite.steps import ROOT


@pytest.mark.parametrize("code", [0, 2])
def test_ci_is_the_test_command(tmp_path, code):
    make = tmp_path / "make"
    make.write_text(f'#!/bin/sh\necho "make $*"; exit {code}\n')
    make.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([ROOT / ".ci/run"], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, "make test\n")


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


@pytest.mark.parametrize("path", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=lambda path: path.stem)
def test_actions_are_of_a_commit_and_may_as_little_as_they_need(path):
    text = path.read_text()
    used = re.findall(r"uses: (.*)$", text, re.MULTILINE)
    # A tag can be moved; the comment is what the bot reads.
    assert [one for one in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one)] == []
    workflow = yaml.safe_load(text)
    rights = [workflow["permissions"], *(job.get("permissions", {}) for job in workflow["jobs"].values())]
    written = {name for one in rights for name, right in one.items() if right == "write"}
    assert written == ({"id-token", "attestations"} if path.stem == "release" else set())
    for job in workflow["jobs"].values():
        for step in job["steps"]:
            if "checkout" in step.get("uses", ""):
                assert step["with"]["persist-credentials"] is False


def test_what_is_attested_is_what_is_released():
    """By a run for a tag, and never for a branch or for what somebody asks to be merged."""
    workflow = yaml.safe_load((ROOT / ".github/workflows" / "release.yml").read_text())
    assert list(workflow[True]) == ["push"] and list(workflow[True]["push"]) == ["tags"]
    steps = workflow["jobs"]["archive"]["steps"]
    words = [step.get("run") or step["uses"].partition("@")[0] for step in steps]
    assert words.index("make release") < words.index("actions/attest-build-provenance")
