#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Run the project's tests, show progress, and say at the end what passed, failed, was too slow and could not run.

Usage: tests/run.py fast|test|full [STEP …]     run the steps of a level, or only those named
       tests/run.py status [STEP …]             what each step came to last, without running anything

`full` leaves out what is green for the files as they are, so that it goes on where it stopped; with FORCE=1 in the
environment it runs those, too.

Each step writes its output to ``.cache/logs/<step>.log``. On a machine that is calm when the run begins, a step that
takes half as long again as its budget fails the run; what runs beside the lab is held to its processor time, and time
that the host of a virtual machine takes is given back. A step that cannot run on this machine is named with the reason;
with ``CI=true`` that is a failure. A signal ends what runs, with its nodes. The steps stand in tests/suite/steps.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from suite.ledger import PASSED, SLOW, Keys, Ledger, cache
from suite.runner import LOGS, Run, commit, log_of, reasons
from suite.steps import ROOT, Step, steps


def chosen(level: str, names: Sequence[str]) -> list[Step]:
    """The steps of a level, or those named; ``status`` is about all of them."""
    found = [step for step in steps() if level in (*step.levels, "status")]
    unknown = set(names) - {step.name for step in found}
    if unknown:
        raise SystemExit(f"There is no step {', '.join(sorted(unknown))} in '{level}'.")
    return [step for step in found if not names or step.name in names]


def table(taken: Sequence[Step], ledger: Ledger, keys: Keys) -> str:
    """Step, result, commit, seconds and budget of each step's last run."""
    rows = [("step", "result", "commit", "seconds", "budget", "when")]
    for step in taken:
        last = ledger.last(step.name)
        if last is None:
            rows.append((step.name, "never run", "", "", str(step.budget_s), ""))
            continue
        result = last.outcome if last.key == keys.of(step) else f"{last.outcome}, changed since"
        where = f"{last.commit}{behind(last.commit)}"
        rows.append((step.name, result, where, f"{last.seconds:.0f}", str(step.budget_s), last.when))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def behind(past: str) -> str:
    """How many commits ago that was, for commits that this clone has."""
    words = ["git", "rev-list", "--count", f"{past}..HEAD"]
    count = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    return f" ({count} ago)" if count not in ("", "0") else ""


def main(argv: list[str]) -> int:
    if not argv or argv[0] not in ("fast", "test", "full", "status"):
        print(__doc__)
        return 2
    level = argv[0]
    taken = chosen(level, argv[1:])
    ledger, keys = Ledger(cache() / "results"), Keys()
    if level == "status":
        print(table(taken, ledger, keys))
        return 0

    load = os.getloadavg()[0]
    calm = load < (os.cpu_count() or 1)
    run = Run(ledger, keys, calm)
    if level == "full" and os.environ.get("FORCE") != "1":
        taken = not_green(taken, run)
    print(f"Commit {commit()}, load {load:.1f}: {'budgets are kept' if calm else 'too busy to hold steps to budgets'}")
    started = time.monotonic()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: run.end())
    run.go(taken)
    print(f"\n{level} in {time.monotonic() - started:.0f} s. Logs: {LOGS.relative_to(ROOT)}\n")
    print(table(taken, ledger, keys) + "\n")

    passed = [name for name, outcome in run.outcomes.items() if outcome == PASSED]
    failed = [name for name in run.outcomes if name not in passed]
    for name in failed:
        print(f"  {'too slow' if run.outcomes[name] == SLOW else 'failed'}:  {name}")
        for line in reasons(log_of(name)):
            print(f"           {line}")
    for name, reason in run.not_run.items():
        print(f"  not run: {name}: {reason}")
    if run.left:
        print(f"  ended before: {', '.join(run.left)}")
    if os.environ.get("CI") == "true":
        failed += run.not_run
        run.not_run.clear()
    print(f"{len(passed)} passed, {len(failed)} failed, {len(run.not_run)} skipped")
    return 1 if failed or run.ended else 0


def not_green(taken: list[Step], run: Run) -> list[Step]:
    """The steps that are not green for the files as they are."""
    green = [step.name for step in taken if run.ledger.green(step.name, run.keys.of(step))]
    if green:
        print(f"Green already (FORCE=1 runs them again): {', '.join(green)}")
    return [step for step in taken if step.name not in green]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
