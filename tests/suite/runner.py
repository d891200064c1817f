# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Run steps, lane beside lane, and note what each came to."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from suite.ledger import FAILED, PASSED, SLOW, Keys, Ledger, Result
from suite.steps import LAB, LAB_ID, OVERDRAWN, PYTHON, ROOT, Step

LOGS = ROOT / ".cache" / "logs"
HEARTBEAT_S = 30
LIMIT = 4  # times the budget: then the step hangs, and is ended
LOOK_S = 0.5  # whether it does
UNDO_S = 60
TAIL_LINES = 80
REASON = re.compile(r"^(FAILED |E  |fatal: |\[ERROR\])|: error: |Executed: Failed")
REASON_LINES = 3
TOLD = 0.05  # of the processor time: a machine that is not quite its own
REASON_CHARACTERS = 200
# What runs on nodes has promises to keep. Each step has a session of its own, and Linux shares processors among
# sessions first (sched_autogroup, on in Debian and Ubuntu): nice alone counts for nothing between two of them.
BESIDE_LAB = ("sh", "-c", '{ echo 15 > /proc/self/autogroup; } 2>/dev/null; exec nice -n 15 "$@"', "beside-lab")


def commit() -> str:
    words = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


@dataclass
class Run:
    """One run of several steps. ``calm``: whether steps are held to their budgets."""

    ledger: Ledger
    keys: Keys
    calm: bool
    outcomes: dict[str, str] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)  # not run to the end, since the run was ended
    running: set[int] = field(default_factory=set)  # processes
    ended: bool = False

    def end(self) -> None:
        """End what runs, and begin nothing more. What was ended this way has come to nothing."""
        self.ended = True
        for pid in list(self.running):
            end_tree(pid)

    def go(self, steps: Sequence[Step]) -> None:
        """The lab's steps in one lane, the others beside them in one; without the lab one lane of each kind."""
        lab = any(step.lane == LAB for step in steps)
        lanes: dict[str, list[Step]] = {}
        for step in steps:
            lanes.setdefault(step.lane if step.lane == LAB or not lab else "others", []).append(step)
        threads = [
            threading.Thread(target=self._lane, args=(lane, BESIDE_LAB if lab and name != LAB else ()))
            for name, lane in lanes.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _lane(self, steps: Sequence[Step], prefix: tuple[str, ...]) -> None:
        for step in steps:
            if self.ended:
                self.left.append(step.name)
                continue
            try:
                reason = step.cannot_run()
                outcome = "" if reason else self._step(step, prefix)
            except Exception as exc:  # a step that cannot even start has failed; the next ones still run
                print(f"   {step.name}: FAILED: {type(exc).__name__}: {exc}", flush=True)
                reason, outcome = "", FAILED
            if reason:
                self.not_run[step.name] = reason
                print(f"== {step.name}\n   {step.name}: NOT RUN: {reason}", flush=True)
            elif outcome:
                self.outcomes[step.name] = outcome
            else:
                self.left.append(step.name)

    def _step(self, step: Step, prefix: tuple[str, ...]) -> str:
        """What it came to; nothing, if it was ended with the whole run."""
        key, load, started = self.keys.of(step), os.getloadavg()[0], time.monotonic()
        print(f"== {step.name}", flush=True)
        before = processors()
        failed, cpu_s = self._execute(step, prefix)
        seconds, stolen = time.monotonic() - started, stolen_share(before, processors())
        if failed and self.ended:
            print(f"   {step.name}: ENDED after {seconds:.0f} s", flush=True)
            return ""
        # Beside the lab a step gets what the nodes leave: its own processor time says whether it has grown.
        slow = self.calm and overdrawn(step, cpu_s if prefix else seconds, stolen)
        outcome = FAILED if failed else SLOW if slow else PASSED
        self.ledger.add(
            Result(
                step.name,
                outcome,
                key,
                commit(),
                round(seconds, 1),
                step.budget_s,
                round(cpu_s, 1),
                round(load, 1),
                time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                round(stolen, 2),
            )
        )
        if failed:
            print("".join(tail(log_of(step.name), TAIL_LINES)))
        said = {FAILED: f"FAILED: {failed}", SLOW: "TOO SLOW", PASSED: "passed"}[outcome]
        taken = f", {stolen:.0%} of the processors' time taken by the host" if stolen >= TOLD else ""
        print(f"   {step.name}: {said} in {seconds:.0f} s of {step.budget_s}, load {load:.1f}{taken}", flush=True)
        return outcome

    def _execute(self, step: Step, prefix: tuple[str, ...]) -> tuple[str, float]:
        """Run all commands of a step: what failed, and the processor time of it."""
        log = log_of(step.name)
        log.parent.mkdir(parents=True, exist_ok=True)
        started, before, done = time.monotonic(), processors(), threading.Event()

        def hangs() -> bool:
            given = 1 - stolen_share(before, processors())
            return (time.monotonic() - started) * given >= LIMIT * step.budget_s

        def watch(pid: int, ended: threading.Event) -> None:
            while not ended.wait(LOOK_S):
                if hangs():
                    end_tree(pid)
                    return

        def heartbeat() -> None:
            while not done.wait(HEARTBEAT_S):
                last = tail(log, 1)
                print(f"   {step.name}: {time.monotonic() - started:.0f} s  {''.join(last)[:110]}", flush=True)

        threading.Thread(target=heartbeat, daemon=True).start()
        environment = surroundings()
        failed, cpu_s = [], 0.0
        with log.open("w") as output:
            for command in step.commands:
                output.write(f"$ {' '.join(command)}\n")
                output.flush()
                process = subprocess.Popen(
                    (*prefix, *command),
                    cwd=ROOT,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
                self.running.add(process.pid)
                ended = threading.Event()
                threading.Thread(target=watch, args=(process.pid, ended), daemon=True).start()
                if self.ended:  # between two commands
                    end_tree(process.pid)
                _pid, status, usage = os.wait4(process.pid, 0)
                ended.set()
                self.running.discard(process.pid)
                process.returncode = os.waitstatus_to_exitcode(status)
                cpu_s += usage.ru_utime + usage.ru_stime
                if process.returncode:
                    why = f"ended after {LIMIT} times its budget" if hangs() else "exit code"
                    failed.append(f"{why} {process.returncode} of {' '.join(command)[:100]}")
            if step.undo and (self.ended or hangs()):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    subprocess.run(
                        step.undo, cwd=ROOT, env=environment, stdout=output, stderr=output, check=False, timeout=UNDO_S
                    )
        done.set()
        return "; ".join(failed), cpu_s


def surroundings() -> dict[str, str]:
    """The environment of every command."""
    made = {**os.environ, "PATH": f"{ROOT / PYTHON}/bin:{os.environ['PATH']}", "PY_COLORS": "0", "NO_COLOR": "1"}
    made.pop("ANSIBLE_CONFIG", None)
    # Without it every worker and every program that a test starts compiles everything again.
    made.pop("PYTHONDONTWRITEBYTECODE", None)
    made["SPARKMATRIX_LAB_ID"] = LAB_ID
    return made


def overdrawn(step: Step, seconds: float, stolen: float = 0.0) -> bool:
    """``stolen``: which share of the processor time that it wanted the host of a virtual machine gave to others."""
    return seconds * (1 - stolen) > OVERDRAWN * step.budget_s


def processors(place: pathlib.Path = pathlib.Path("/proc/stat")) -> tuple[int, int]:
    """Since the boot: (what the processors did, what the host of this virtual machine did not give), in clock ticks.
    Nothing where the system does not tell."""
    try:
        user, nice, system, _idle, _wait, irq, softirq, steal = map(int, place.read_text().split("\n")[0].split()[1:9])
    except (OSError, ValueError):
        return 0, 0
    return user + nice + system + irq + softirq, steal


def stolen_share(before: tuple[int, int], after: tuple[int, int]) -> float:
    """The share of the wanted processor time that the host did not give, 0 to 1."""
    used, stolen = (late - early for late, early in zip(after, before))
    return stolen / (used + stolen) if stolen > 0 and used >= 0 else 0.0


def end_tree(pid: int) -> None:
    """End a process and all that it has started, also what has a session of its own, as Ansible's workers have."""
    listed = subprocess.run(("ps", "-e", "-o", "pid=,ppid="), capture_output=True, text=True, check=True).stdout
    children: dict[int, list[int]] = {}
    for line in listed.splitlines():
        child, parent = map(int, line.split())
        children.setdefault(parent, []).append(child)
    tree = [pid]
    for one in tree:
        tree += children.get(one, ())
    for one in tree:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


def log_of(step: str) -> pathlib.Path:
    return LOGS / f"{step}.log"


def tail(log: pathlib.Path, lines: int) -> list[str]:
    try:
        return log.read_text(errors="replace").splitlines(keepends=True)[-lines:]
    except OSError:
        return []


def reasons(log: pathlib.Path) -> list[str]:
    """The last lines of a log that tell why a step failed, or else its last lines, shortened."""
    lines = [line.strip() for line in tail(log, 2000) if line.strip()]
    telling = [line for line in lines if REASON.search(line)] or lines
    return [line[:REASON_CHARACTERS] for line in telling[-REASON_LINES:]]
