# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the forge runs: whose code, by commit, and what it may."""

from __future__ import annotations

import pathlib
import re

import pytest
import yaml

FOLDER = pathlib.Path(__file__).resolve().parents[2] / ".github/workflows"
WORKFLOWS = sorted(FOLDER.glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_of_a_commit_and_may_as_little_as_they_need(path: pathlib.Path) -> None:
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


def test_what_is_attested_is_what_is_released() -> None:
    """By a run for a tag, and never for a branch or for what somebody asks to be merged."""
    workflow = yaml.safe_load((FOLDER / "release.yml").read_text())
    assert list(workflow[True]) == ["push"] and list(workflow[True]["push"]) == ["tags"]
    steps = workflow["jobs"]["archive"]["steps"]
    words = [step.get("run") or step["uses"].partition("@")[0] for step in steps]
    assert words.index("make release") < words.index("actions/attest-build-provenance")
