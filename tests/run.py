#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run the project's tests in order, show progress, and say at the end what passed, failed and could not run.

Usage: tests/run.py fast|test|full [STEP …]

Every step writes its whole output to ``.cache/logs/<step>.log``; a failing step shows the end of it, and the summary
repeats the lines that tell why, for those who see only its end. A step that cannot run on this machine is named with
the reason; with ``CI=true`` that is a failure.
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parent.parent
LOGS = ROOT / ".cache" / "logs"
VENV = ROOT / ".venv" / "bin"
VENV_312 = ROOT / ".venv-py312" / "bin"
CI = os.environ.get("CI") == "true"
LAB_ID = os.environ.get("SPARKMATRIX_LAB_ID", "test")  # a cluster that `make demo` left up is not ours
HEARTBEAT_S = 30
TAIL_LINES = 80
REASON = re.compile(r"^(FAILED |E  |fatal: |\[ERROR\])|: error: |Executed: Failed")
REASON_LINES = 3
REASON_CHARACTERS = 200
MODULES_AND_UTILS = ["plugins", "tests", "tools"]
SHELL_SCRIPTS = [
    "tests/tools/find_python",
    "tests/tools/make_env",
    "tests/tools/make_envs",
    "tests/tools/sanity",
    "tests/mutation.sh",
    "tools/make_locks",
]


@dataclass(frozen=True)
class Step:
    name: str
    commands: tuple[tuple[str, ...], ...]
    levels: tuple[str, ...] = ("fast", "test", "full")
    cannot_run: Callable[[], str] = lambda: ""  # the reason, or nothing
    on_lab: bool = False


def needs(venv: pathlib.Path, version: str) -> Callable[[], str]:
    def reason() -> str:
        program = "import sys; print('%d.%d' % sys.version_info[:2])"
        try:
            found = subprocess.run([venv / "python", "-c", program], capture_output=True, text=True, check=False).stdout
        except OSError:
            found = ""
        return "" if found.strip() == version else f"Python {version} is not on this machine"

    return reason


def needs_root() -> str:
    return "" if os.geteuid() == 0 else "the simulated Sparks need root; run it with sudo"


def needs_lab() -> str:
    lab = subprocess.run(
        [VENV / "python", "tests/lab/lab.py", "check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if lab.returncode != 0:
        return " ".join((lab.stdout + lab.stderr).split())[-400:]
    status = subprocess.run(
        [VENV / "python", "tests/lab/lab.py", "status"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout
    held = re.search(r"held by lab (\S+)", status)
    if held and held[1] != LAB_ID:
        return f"the lab {held[1]!r} is up on this machine; remove it first: make demo-down"
    return ""


def lint() -> Step:
    return Step(
        "lint",
        (
            (f"{VENV}/ruff", "check", *MODULES_AND_UTILS),
            (f"{VENV}/ruff", "format", "--check", *MODULES_AND_UTILS),
            (f"{VENV}/yamllint", "--strict", "."),
            (f"{VENV}/ansible-lint", "--offline", "--strict", "-q"),
            (f"{VENV}/antsibull-docs", "lint-collection-docs", "--plugin-docs", "--skip-rstcheck", "."),
            (f"{VENV}/antsibull-changelog", "lint"),
            (f"{VENV}/shellcheck", ".ci/run", *SHELL_SCRIPTS),
        ),
    )


def types() -> Step:
    return Step(
        "types",
        (
            # Module code has to stay within Python 3.9, the oldest interpreter that a node may have: ruff looks after
            # the syntax; mypy knows nothing older than 3.10.
            (f"{VENV}/mypy", "--python-version", "3.10", "plugins/module_utils"),
            (
                f"{VENV}/mypy",
                "plugins/plugin_utils",
                "plugins/action",
                "plugins/modules",
                "tests/lab",
                "tests/run.py",
                "tools",
            ),
        ),
    )


def unit(venv: pathlib.Path, version: str, levels: tuple[str, ...], *options: str) -> Step:
    return Step(
        f"unit-py{version}",
        ((f"{venv}/pytest", "-n", "2", *options),),
        levels,
        needs(venv, version),
    )


def sanity(venv: pathlib.Path, version: str) -> Step:
    return Step(
        f"sanity-py{version}",
        (("tests/tools/sanity", str(venv.parent.relative_to(ROOT))),),
        ("test", "full"),
        needs(venv, version),
    )


def molecule(levels: tuple[str, ...], *scenarios: str) -> Step:
    chosen = [word for scenario in scenarios for word in ("--scenario-name", scenario)] or ["--all"]
    # What an interrupted run left in Molecule's own notes would make it skip creating the nodes.
    commands = ((f"{VENV}/molecule", "reset"), (f"{VENV}/molecule", "test", "--report", *chosen))
    return Step("molecule", commands, levels, needs_lab, on_lab=True)


def inventories() -> Step:
    """Every inventory in its own topology, and launching in containers; each begins by destroying what is there."""
    command = ("env", "MOLECULE_GLOB=molecule/inventories/*/molecule.yml", f"{VENV}/molecule", "test", "--report")
    return Step("inventories", ((*command, "--all"),), ("full",), needs_lab, on_lab=True)


def virtual_machines(name: str, levels: tuple[str, ...]) -> Step:
    """The fabric on kernels of its own. Not among the scenarios that `--all` finds: they have other nodes.

    Emulated, two machines take under ten minutes; four belong to `test-full`.
    """
    vm = (f"{VENV}/python", "tests/lab/vm/vm.py")
    test = (f"{VENV}/molecule", "test", "--report", "--scenario-name", name)
    return Step(
        name,
        ((*vm, "setup"), ("env", "MOLECULE_GLOB=molecule/vm/*/molecule.yml", "SPARKMATRIX_VM_ID=vm", *test)),
        levels,
        needs_root,
        on_lab=True,
    )


def steps() -> list[Step]:
    coverage = (
        "--cov=plugins/module_utils",
        "--cov=plugins/plugin_utils",
        "--cov-report=term-missing:skip-covered",
        "--cov-fail-under=95",
    )
    return [
        lint(),
        types(),
        unit(VENV, "3.11", ("fast", "test", "full"), *coverage),
        unit(VENV_312, "3.12", ("test", "full")),
        sanity(VENV, "3.11"),
        sanity(VENV_312, "3.12"),
        Step("lab", ((f"{VENV}/python", "tests/lab/demo.py", "build"),), ("test", "full"), needs_root, on_lab=True),
        molecule(("test", "full")),
        virtual_machines("fabric-vm", ("test", "full")),
        virtual_machines("fabric-vm4", ("full",)),
        Step(
            "interruptions",
            ((f"{VENV}/python", "tests/lab/interruptions.py", "--sample", "4"),),
            ("test",),
            needs_lab,
            on_lab=True,
        ),
        Step(
            "staying-up",
            ((f"{VENV}/python", "tests/lab/staying_up.py", "--only", "rank,unnoticed,busy"),),
            ("test",),
            needs_lab,
            on_lab=True,
        ),
        Step(
            "staying-up-all",
            ((f"{VENV}/python", "tests/lab/staying_up.py"),),
            ("full",),
            needs_lab,
            on_lab=True,
        ),
        Step(
            "staying-up-launches",
            tuple(
                (f"{VENV}/python", "tests/lab/staying_up.py", "--launch", launch, "--only", faults)
                for launch, faults in (
                    *((launch, "rank,head") for launch in ("pipeline", "native", "native4", "replicas")),
                    ("containers", "rank,unnoticed,head"),
                    ("sglang", "rank,head,image"),
                    ("mpi", "rank,head,hang"),  # its counters are of another kind
                )
            ),
            ("full",),
            needs_lab,
            on_lab=True,
        ),
        Step(
            "services",
            (
                (f"{VENV}/python", "tests/lab/services.py"),
                (f"{VENV}/python", "tests/lab/services.py", "--pairs"),
                (f"{VENV}/python", "tests/lab/services.py", "--containers"),
            ),
            ("full",),
            needs_lab,
            on_lab=True,
        ),
        Step(
            "head-controller",
            ((f"{VENV}/python", "tests/lab/head_controller.py"),),
            ("full",),
            needs_lab,
            on_lab=True,
        ),
        Step("lifecycle", ((f"{VENV}/python", "tests/lab/lifecycle.py"),), ("test",), needs_lab, on_lab=True),
        Step(
            "lifecycle-all",
            (
                (f"{VENV}/python", "tests/lab/lifecycle.py", "--all"),
                (f"{VENV}/python", "tests/lab/os_update.py"),
                (f"{VENV}/python", "tests/lab/reboots.py"),
                (f"{VENV}/python", "tests/lab/reboots.py", "--engine"),
                (f"{VENV}/python", "tests/lab/first_login.py"),
            ),
            ("full",),
            needs_lab,
            on_lab=True,
        ),
        Step(
            "pressure",
            (
                (f"{VENV}/python", "tests/lab/vm/vm.py", "setup"),
                (f"{VENV}/python", "tests/lab/vm/pressure.py"),
            ),
            ("full",),
            needs_root,
            on_lab=True,
        ),
        inventories(),
        Step(
            "interruptions-all",
            ((f"{VENV}/python", "tests/lab/interruptions.py", "--all"),),
            ("full",),
            needs_lab,
            on_lab=True,
        ),
    ]


def run(step: Step) -> bool:
    log = LOGS / f"{step.name}.log"
    started = time.monotonic()
    done = threading.Event()

    def heartbeat() -> None:
        while not done.wait(HEARTBEAT_S):
            last = tail(log, 1)
            print(f"   {step.name}: {time.monotonic() - started:.0f} s  {''.join(last)[:110]}", flush=True)

    print(f"== {step.name}", flush=True)
    threading.Thread(target=heartbeat, daemon=True).start()
    environment = {**os.environ, "PATH": f"{VENV}:{os.environ['PATH']}", "PY_COLORS": "0", "NO_COLOR": "1"}
    environment.pop("ANSIBLE_CONFIG", None)
    environment["SPARKMATRIX_LAB_ID"] = LAB_ID
    code = 0
    with log.open("w") as output:
        for command in step.commands:
            output.write(f"$ {' '.join(command)}\n")
            output.flush()
            code = subprocess.run(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False
            ).returncode
            if code:
                break
    done.set()
    seconds = time.monotonic() - started
    if code:
        print("".join(tail(log, TAIL_LINES)))
    print(
        f"   {step.name}: {'passed' if code == 0 else f'FAILED with exit code {code}'} in {seconds:.0f} s", flush=True
    )
    return code == 0


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


def main(argv: list[str]) -> int:
    if not argv or argv[0] not in ("fast", "test", "full"):
        print(__doc__)
        return 2
    level, only = argv[0], set(argv[1:])
    chosen = [step for step in steps() if level in step.levels and (not only or step.name in only)]
    unknown = only - {step.name for step in chosen}
    if unknown:
        print(f"There is no step {', '.join(sorted(unknown))} in '{level}'.")
        return 2
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir(parents=True)
    passed: list[str] = []
    failed: list[str] = []
    not_run: dict[str, str] = {}
    started = time.monotonic()

    def go(lane: list[Step]) -> None:
        for step in lane:
            try:
                reason = step.cannot_run()
                outcome = not reason and run(step)
            except Exception as exc:  # a step that cannot even start has failed; the next ones still run
                print(f"   {step.name}: FAILED: {type(exc).__name__}: {exc}", flush=True)
                reason, outcome = "", False
            if reason:
                not_run[step.name] = reason
                print(f"== {step.name}\n   {step.name}: NOT RUN: {reason}", flush=True)
            elif outcome:
                passed.append(step.name)
            else:
                failed.append(step.name)

    # What runs on lab nodes mostly waits for them; the rest fills the cores meanwhile.
    lanes = [threading.Thread(target=go, args=([s for s in chosen if s.on_lab == on_lab],)) for on_lab in (True, False)]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    print(f"\n{level} in {time.monotonic() - started:.0f} s. Logs: {LOGS.relative_to(ROOT)}")
    for name in failed:
        print(f"  failed:  {name}")
        for line in reasons(LOGS / f"{name}.log"):
            print(f"           {line}")
    for name, reason in not_run.items():
        print(f"  not run: {name}: {reason}")
    if CI and not_run:
        failed += not_run
        not_run = {}
    print(f"{len(passed)} passed, {len(failed)} failed, {len(not_run)} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
