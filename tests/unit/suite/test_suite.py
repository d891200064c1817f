# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The runner of the tests: what a green result depends on, which steps a run takes, and when a step is too slow."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import run as command_line
from suite import runner
from suite.ledger import FAILED, PASSED, SLOW, Keys, Ledger, Result
from suite.steps import CODE, LAB, ROOT, UNITS, Step, steps

MINUTE = 60
LONGEST_S = 15 * MINUTE
PROCESSORS = runner.processors


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


def test_a_key_changes_with_the_commands_and_not_with_the_budget(tree):
    keys = Keys(tree)
    assert keys.of(step(program="print()")) != keys.of(step())
    assert keys.of(step(budget_s=99)) == keys.of(step())


def test_a_file_that_is_gone_and_a_link_that_leads_elsewhere_change_a_key(tree):
    seen = {Keys(tree).of(step())}
    (tree / "link.py").symlink_to("text.md")
    seen.add(Keys(tree).of(step()))
    (tree / "link.py").unlink()
    (tree / "link.py").symlink_to("code.py")
    seen.add(Keys(tree).of(step()))
    (tree / "link.py").unlink()
    (tree / "code.py").unlink()
    seen.add(Keys(tree).of(step()))
    assert len(seen) == 4


# --- the ledger ------------------------------------------------------------------------------------------------------


def test_a_result_is_kept_and_counts_for_its_key_only(ledger):
    ledger.add(result())
    again = Ledger(ledger.place)
    assert again.green("one", "key") == result()
    assert again.green("one", "other") is None
    assert again.green("two", "key") is None


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


def test_a_line_that_was_cut_off_is_left_out(ledger):
    ledger.add(result())
    (ledger.place / "one.jsonl").open("a").write('{"step": "one", "outc')
    assert ledger.results("one") == [result()]


# --- which steps -----------------------------------------------------------------------------------------------------


@pytest.fixture
def full(ledger, tree, monkeypatch):
    run = runner.Run(ledger, Keys(tree), calm=True)
    taken = [step("one"), step("two")]
    ledger.add(replace(result("one"), key=run.keys.of(taken[0])))
    return lambda: [one.name for one in command_line.not_green(taken, run)]


def test_a_full_run_goes_on_where_it_stopped(full, tree):
    assert full() == ["two"]


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


@pytest.mark.parametrize(("calm", "outcome"), [(True, SLOW), (False, PASSED)])
def test_a_step_that_overdraws_its_budget_by_half_fails_a_calm_run(ledger, tree, logs, calm, outcome):
    # Far from the limit at which a step is ended, on a busy machine as well.
    sleeps = step(budget_s=1, program="import time; time.sleep(1.6)")
    assert run_steps(ledger, tree, sleeps, calm=calm).outcomes == {"one": outcome}


def test_what_the_host_took_is_in_the_result_and_no_fault_of_the_step(ledger, tree, logs, monkeypatch):
    ticks = iter([(100, 10)])
    monkeypatch.setattr(runner, "processors", lambda: next(ticks, (200, 110)))
    sleeps = step(budget_s=1, program="import time; time.sleep(1.6)")
    assert run_steps(ledger, tree, sleeps).outcomes == {"one": PASSED}
    assert ledger.last("one").stolen == 0.5


def test_beside_the_lab_a_step_is_held_to_its_processor_time(ledger, tree, monkeypatch):
    monkeypatch.setattr(runner.Run, "_execute", lambda *_: ("", 16.0))
    assert run_steps(ledger, tree, step(), calm=True).outcomes == {"one": PASSED}
    both = run_steps(ledger, tree, step("nodes", lane=LAB), step(), calm=True).outcomes
    assert both == {"nodes": PASSED, "one": SLOW}


def test_half_as_much_again_is_within_the_budget():
    assert not runner.overdrawn(step(budget_s=10), 15)
    assert runner.overdrawn(step(budget_s=10), 15.1)


def test_a_step_that_hangs_is_ended(ledger, tree, logs):
    hangs = step(budget_s=0.2, program="import time; time.sleep(60)")
    assert run_steps(ledger, tree, hangs).outcomes == {"one": FAILED}


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


def test_nodes_of_a_step_that_hangs_are_removed(ledger, tree, logs, tmp_path):
    undone = tmp_path / "undone"
    undo = (sys.executable, "-c", f"open({str(undone)!r}, 'w')")
    run_steps(ledger, tree, step(budget_s=0.2, program="import time; time.sleep(60)", undo=undo))
    run_steps(ledger, tree, step("two", undo=("false",)))
    assert undone.exists()


def test_everything_that_boots_nodes_says_how_to_remove_them():
    without = [one.name for one in steps() if one.lane == LAB and not one.undo]
    assert without == ["lab", "families"]  # images alone, and the engine on this machine itself


def test_what_runs_beside_the_lab_gives_way_to_it(ledger, tree, logs, tmp_path):
    # Linux shares processors among sessions first, where it has autogroups, and each step has a session of its own.
    group = Path("/proc/self/autogroup")
    program = (
        "import os, pathlib; group = pathlib.Path('/proc/self/autogroup');"
        "own = group.read_text().split()[-1] if group.exists() else '';"
        f"open('{tmp_path}/%s', 'w').write(f'{{os.nice(0)}} {{own}}')"
    )
    taken = [step(lane, lane=lane, program=program % lane) for lane in (LAB, CODE, UNITS)]
    run_steps(ledger, tree, *taken)
    nice, groups = zip(*((tmp_path / lane).read_text().split(" ") for lane in (LAB, CODE, UNITS)))
    assert int(nice[0]) == os.nice(0) < int(nice[1]) == int(nice[2])
    assert groups == (("0", "15", "15") if group.exists() else ("", "", ""))


def test_a_machine_whose_host_takes_its_processors_is_given_the_time_back(tmp_path):
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 20 30 400 5 1 2 50 0 0\ncpu0 1 2 3\n")
    assert PROCESSORS(stat) == (153, 50)
    assert PROCESSORS(tmp_path / "none") == (0, 0)
    assert runner.stolen_share((53, 10), (113, 50)) == 0.4
    assert runner.stolen_share((53, 10), (113, 10)) == runner.stolen_share((9, 9), (0, 0)) == 0
    one = step(budget_s=10)
    assert runner.overdrawn(one, 16) and not runner.overdrawn(one, 15)
    assert not runner.overdrawn(one, 24, 0.4) and runner.overdrawn(one, 26, 0.4)


def test_the_processor_time_of_a_step_is_noted(ledger, tree, logs):
    run_steps(ledger, tree, step(program="import time\nwhile time.process_time() < 0.3: pass"))
    assert 0.3 <= ledger.last("one").cpu_s < 5


# --- the table that is printed ---------------------------------------------------------------------------------------


def test_the_table_says_what_is_green_what_changed_since_and_what_never_ran(ledger, tree):
    taken = [step("green"), step("stale"), step("never")]
    ledger.add(replace(result("green"), key=Keys(tree).of(taken[0])))
    ledger.add(result("stale", outcome=FAILED))
    rows = command_line.table(taken, ledger, Keys(tree)).splitlines()
    assert [" ".join(row.split()[:4]) for row in rows[1:]] == [
        "green passed abc1234 5",
        "stale failed, changed since",
        "never never run 10",
    ]
