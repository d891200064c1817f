# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What CI runs: `make test` decides, and what it leaves of the time goes to steps of `make test-full`."""

from __future__ import annotations

import os
import subprocess

import pytest
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
