# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The runner of the tests: what a green result depends on, and what a run that fails or is ended leaves."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from suite import runner
from suite.ledger import FAILED, PASSED, SLOW, Keys, Ledger, Result
from suite.steps import CODE, LAB, ROOT, UNITS, Step, steps

MINUTE = 60
LONGEST_S = 15 * MINUTE


def step(name="one", program="pass", **more):
    command = (sys.executable, "-c", program)
    return Step(
        **{"budget_s": 10, "lane": CODE, **more}, name=name, commands=(command,), levels=("full",), inputs=("*.py",)
    )


def result(name="one", outcome=PASSED, key="key", when="2026-01-01T00:00:00Z", seconds=5.0):
    return Result(name, outcome, key, "abc1234", seconds, 10, 1.0, 0.5, when)


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "results")


@pytest.fixture(autouse=True)
def _processors_of_its_own(monkeypatch):
    monkeypatch.setattr(runner, "processors", lambda: (0, 0))


@pytest.fixture
def logs(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "LOGS", tmp_path / "logs")


@pytest.fixture
def tree(tmp_path):
    """A checkout with one file of each kind."""
    root = tmp_path / "tree"
    (root / "requirements").mkdir(parents=True)
    for name in ("code.py", "text.md", "requirements/lock.txt"):
        (root / name).write_text(name)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    subprocess.run(["git", "add", "code.py", "text.md"], cwd=root, check=True)
    return root


# --- the table -------------------------------------------------------------------------------------------------------


def test_every_step_has_a_name_of_its_own_and_ends_within_a_quarter_of_an_hour():
    names = [one.name for one in steps()]
    assert len(set(names)) == len(names)
    assert max(one.budget_s for one in steps()) <= LONGEST_S


def test_every_scenario_of_molecule_is_told_and_a_step_and_found_by_its_name():
    """By Molecule's own pattern, so `molecule test -s NAME` needs nothing else."""
    there = {path.parent.name for path in (ROOT / "molecule").rglob("molecule.yml")}
    page = (ROOT / "tests/lab/README.md").read_text().partition("## Scenarios of Molecule\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*) \|", page, re.MULTILINE)
    assert sorted(name for row in rows for name in re.findall(r"`([^`]+)`", row)) == sorted(there)
    assert there == {path.parent.name for path in (ROOT / "molecule").glob("*/molecule.yml")}
    assert there <= {one.name for one in steps()}


def test_the_steps_of_make_test_fit_in_25_minutes():
    everywhere = [one for one in steps() if "test" in one.levels and one.name != "lab"]  # which is built once
    for lane in (LAB, CODE):
        assert sum(one.budget_s for one in everywhere if one.lane == lane) <= 22 * MINUTE  # and the environments


def test_make_test_fast_needs_no_lab_and_no_root():
    fast = [one for one in steps() if "fast" in one.levels]
    assert {one.lane for one in fast} == {CODE, UNITS}
    for lane in (CODE, UNITS):
        assert sum(one.budget_s for one in fast if one.lane == lane) <= 3 * MINUTE


# --- keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "counts"),
    [("code.py", True), ("text.md", False), ("requirements/lock.txt", True), ("new.py", True), ("new.md", False)],
)
def test_a_key_changes_with_its_inputs_and_the_locks(tree, name, counts):
    before = Keys(tree).of(step())
    (tree / name).write_text("other")
    assert (Keys(tree).of(step()) != before) == counts


# --- the ledger ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", [FAILED, SLOW])
def test_the_last_result_for_a_key_counts(ledger, outcome):
    ledger.add(result())
    ledger.add(result(outcome=outcome))
    assert ledger.green("one", "key") is None
    ledger.add(result())
    assert ledger.green("one", "key") == result()


def test_what_failed_with_other_files_does_not_take_a_green_result_away(ledger):
    ledger.add(result())
    ledger.add(result(outcome=FAILED, key="other"))
    assert ledger.green("one", "key") == result()
    assert ledger.last("one").outcome == FAILED
    assert ledger.last_green("one") == result()


# --- which steps -----------------------------------------------------------------------------------------------------


# --- a run -----------------------------------------------------------------------------------------------------------


def run_steps(ledger, tree, *taken, calm=True, **more):
    run = runner.Run(ledger, Keys(tree), calm, **more)
    run.go(taken)
    return run


def test_a_failure_hides_neither_the_next_step_nor_the_next_command(ledger, tree, logs, tmp_path):
    mark = tmp_path / "mark"
    red = step("red", program="raise SystemExit(3)")
    red = replace(red, commands=(*red.commands, (sys.executable, "-c", f"open({str(mark)!r}, 'w')")))
    run = run_steps(ledger, tree, red, step("green"), step("absent", cannot_run=lambda: "no such machine"))
    assert run.outcomes == {"red": FAILED, "green": PASSED}
    assert run.not_run == {"absent": "no such machine"}
    assert mark.exists()
    assert ledger.last("red").outcome == FAILED
    assert ledger.green("green", Keys(tree).of(step("green")))
    assert ledger.last("absent") is None


def is_over(pid):
    """A process that nobody has waited for yet is a zombie."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


# A child in a session of its own, as Ansible's workers are.
BUSY = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
pathlib.Path({mark!r}).write_text(str(child.pid))
time.sleep(60)
"""


def test_a_run_that_is_ended_leaves_no_process_and_no_nodes_and_no_result(ledger, tree, logs, tmp_path):
    mark, undone = tmp_path / "mark", tmp_path / "undone"
    busy = step("busy", program=BUSY.format(mark=str(mark)), undo=(sys.executable, "-c", f"open({str(undone)!r}, 'w')"))
    run = runner.Run(ledger, Keys(tree), calm=True)
    going = threading.Thread(target=run.go, args=([busy, step("next")],))
    going.start()
    while not (mark.exists() and mark.read_text()):
        time.sleep(0.05)
    run.end()
    going.join(30)
    assert not going.is_alive()
    assert is_over(int(mark.read_text()))
    assert undone.exists()
    assert (run.outcomes, run.left) == ({}, ["busy", "next"])
    assert ledger.last("busy") is None


def test_everything_that_boots_nodes_says_how_to_remove_them():
    without = [one.name for one in steps() if one.lane == LAB and not one.undo]
    assert without == ["lab", "families"]  # images alone, and the engine on this machine itself


# --- the table that is printed ---------------------------------------------------------------------------------------
