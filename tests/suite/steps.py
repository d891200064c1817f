# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The steps of the tests: what each runs, how long it may take, and on which files its result depends.

Lanes run at the same time, the steps of one lane one after the other. Where the lab takes part, everything else is one
lane beside it.
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAB_ID = os.environ.get("SPARKMATRIX_LAB_ID", "test")  # a cluster that `make demo` left up is not ours
OVERDRAWN = 1.5  # times the budget: the step is too slow
LAB, CODE, UNITS = "lab", "code", "units"
PYTHON, PYTHON_312 = ".venv", ".venv-py312"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def nothing() -> str:
    return ""


@dataclass(frozen=True)
class Step:
    """``budget_s``: seconds on a calm machine with two cores; of processor time beside the lab. ``inputs``: globs of
    git; locks are always among them."""

    name: str
    commands: tuple[tuple[str, ...], ...]  # all are run, so that one that fails does not hide the next
    budget_s: int
    levels: tuple[str, ...]
    inputs: tuple[str, ...]
    lane: str = LAB
    cannot_run: Callable[[], str] = nothing  # the reason, or nothing
    undo: tuple[str, ...] = ()  # the command that removes its nodes when it was ended by force


# --- what a step needs -----------------------------------------------------------------------------------------------


def needs(environment: str, version: str) -> Callable[[], str]:
    def reason() -> str:
        program = "import sys; print('%d.%d' % sys.version_info[:2])"
        command = [f"{ROOT}/{environment}/bin/python", "-c", program]
        try:
            found = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        except OSError:
            found = ""
        return "" if found.strip() == version else f"Python {version} is not on this machine"

    return reason


def needs_browser() -> str:
    found = any(shutil.which(name) for name in BROWSERS)
    return "" if found else f"none of {', '.join(BROWSERS)} is on this machine (Debian: apt-get install chromium)"


def needs_card() -> str:
    """One that has room for gpu-dense (tests/lab/gpu.py)."""
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, check=False).stdout.split()
    except OSError:
        said = []
    found = any(word.isdigit() and int(word) >= 80_000 for word in said)
    return "" if found else "no NVIDIA card of 80 GB is on this machine (nvidia-smi)"


def needs_root() -> str:
    return "" if os.geteuid() == 0 else "the simulated Sparks need root; run it with sudo"


def needs_lab() -> str:
    lab = [f"{ROOT}/{PYTHON}/bin/python", "tests/lab/lab.py"]
    check = subprocess.run([*lab, "check"], cwd=ROOT, capture_output=True, text=True, check=False)
    if check.returncode != 0:
        return " ".join((check.stdout + check.stderr).split())[-400:]
    status = subprocess.run([*lab, "status"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    held = re.search(r"held by lab (\S+)", status)
    if held and held[1] != LAB_ID:
        return f"the lab {held[1]!r} is up on this machine; remove it first: make demo-down"
    return ""


def needs_newest() -> str:
    return needs(PYTHON_312, "3.12")() or needs_lab()


# --- kinds of steps --------------------------------------------------------------------------------------------------

FAST, TEST, FULL = ("fast", "test", "full"), ("test", "full"), ("full",)
SHIPPED = ("plugins/**", "roles/**", "playbooks/**", "inventories/**", "meta/**", "*.yml", "ansible.cfg")
TESTED = (*SHIPPED, "cli/**", "tests/**", "tools/**", "docs/**", "pyproject.toml")
ON_NODES = (*SHIPPED, "cli/**", "tests/lab/**", "tests/scenarios/**")
SHELL_SCRIPTS = (
    "tests/tools/find_python tests/tools/make_env tests/tools/make_envs tests/tools/sanity tests/mutation.sh"
    " tools/make_locks docs/examples/chat.sh"
)


def program(words: str, environment: str = PYTHON) -> tuple[str, ...]:
    """A command whose first word is a program of an environment."""
    name, *arguments = words.split()
    return (f"{environment}/bin/{name}", *arguments)


NO_LAB = program(f"python tests/lab/lab.py down --id {LAB_ID}")


def scenario(name: str, words: str, budget_s: int, levels: tuple[str, ...] = FULL, *, newest: bool = False) -> Step:
    """A program of tests/scenarios, which boots nodes of its own. ``newest``: see :func:`molecule`."""
    command = program(f"python tests/scenarios/test_{words}", PYTHON_312 if newest else PYTHON)
    cannot_run = needs_newest if newest else needs_lab
    return Step(name, (command,), budget_s, levels, ON_NODES, cannot_run=cannot_run, undo=NO_LAB)


def molecule(
    scenario: str,
    budget_s: int,
    levels: tuple[str, ...] = FULL,
    *,
    newest: bool = False,
) -> Step:
    """A Molecule scenario, which boots nodes of its own. ``newest``: with the ansible-core of the other environment."""
    environment = PYTHON_312 if newest else PYTHON
    commands = (
        # What an interrupted run left in Molecule's own notes would make it skip what it has done.
        program(f"molecule reset --scenario-name {scenario}", environment),
        program(f"molecule test --report --scenario-name {scenario}", environment),
    )
    name = f"{scenario}-py3.12" if newest else scenario
    inputs = (*ON_NODES, "molecule/**", ".config/**")
    cannot_run = needs_newest if newest else needs_lab
    return Step(name, commands, budget_s, levels, inputs, cannot_run=cannot_run, undo=NO_LAB)


def on_machines(name: str, command: tuple[str, ...], budget_s: int) -> Step:
    """Virtual machines. Emulated, two of them take under ten minutes, so these are in `test-full` only."""
    setup = program("python tests/lab/vm/vm.py setup")
    inputs = (*ON_NODES, "molecule/vm/**", "molecule/fabric-vm*/**", ".config/**")
    undo = program("python tests/lab/vm/vm.py down")
    return Step(name, (setup, command), budget_s, FULL, inputs, cannot_run=needs_root, undo=undo)


def fabric_machines(name: str, budget_s: int) -> Step:
    variables = ("env", "SPARKMATRIX_VM_ID=vm")
    return on_machines(name, (*variables, *program(f"molecule test --report --scenario-name {name}")), budget_s)


def unit(
    name: str, words: str, budget_s: int, levels: tuple[str, ...], cannot_run: Callable[[], str] = nothing
) -> Step:
    return Step(name, (program(f"pytest -n 2 --dist loadfile {words}"),), budget_s, levels, TESTED, UNITS, cannot_run)


def sanity(
    environment: str, version: str, budget_s: int, levels: tuple[str, ...], *, words: str = "", name: str = "sanity"
) -> Step:
    command = ("tests/tools/sanity", environment, *words.split())
    inputs = (*SHIPPED, "tests/sanity/**", "tests/config.yml", "tests/tools/sanity", "changelogs/**")
    return Step(f"{name}-py{version}", (command,), budget_s, levels, inputs, CODE, needs(environment, version))


# --- the steps -------------------------------------------------------------------------------------------------------

LINTED = "playbooks roles inventories site.yml reset.yml status.yml verify.yml"
COVERAGE = "--cov=plugins/module_utils --cov=plugins/plugin_utils --cov-report=term-missing:skip-covered"
# The tests that run parts of ansible-core itself; the others run with both versions in `test-full`. Whole playbooks are
# run on this version by every scenario of the lab.
ON_ANSIBLE = "tests/unit/plugins/action tests/unit/plugins/modules tests/unit/test_awx.py"
INTERRUPTED_PARTS = 4


def checks() -> list[Step]:
    return [
        Step(
            "lint",
            (
                program("ruff check cli plugins tests tools molecule docs"),
                program("ruff format --check cli plugins tests tools molecule docs"),
                program("yamllint --strict ."),
                program("antsibull-docs lint-collection-docs --plugin-docs --skip-rstcheck ."),
                program("antsibull-changelog lint"),
                program(f"shellcheck .ci/run {SHELL_SCRIPTS}"),
            ),
            30,
            FAST,
            ("**",),
            CODE,
        ),
        Step(
            "types",
            (
                # Module code has to stay within Python 3.9, the oldest interpreter that a node may have: ruff looks
                # after the syntax; mypy knows nothing older than 3.10.
                program("mypy --python-version 3.10 plugins/module_utils"),
                program(
                    "mypy cli plugins/plugin_utils plugins/action plugins/callback plugins/modules"
                    " tests/bench tests/lab tests/scenarios tests/suite tests/run.py tools"
                ),
            ),
            45,
            FAST,
            TESTED,
            CODE,
        ),
        Step(
            "ansible-lint",
            # Each file and folder that is shipped; the whole tree is checked in `test-full`. Too long for `test-fast`.
            (program(f"ansible-lint --offline --strict -q {LINTED}"),),
            180,  # three seconds for each playbook, which ansible-core reads once more
            TEST,
            (*SHIPPED, ".ansible-lint*", ".config/**"),
            CODE,
        ),
        Step(
            "ansible-lint-all",
            (program("ansible-lint --offline --strict -q"),),
            240,
            FULL,
            (*TESTED, "molecule/**", ".ansible-lint*", ".config/**"),
            CODE,
        ),
        # `slow`: starts Ansible or another program for every case.
        unit("unit-fast", "-m not(slow)", 120, ("fast",)),
        # 3.12 can count lines without slowing the tests down.
        Step(
            "unit-py3.12",
            (
                (
                    "env",
                    "COVERAGE_CORE=sysmon",
                    # One process: each further one reads all tests first, and the lab leaves one processor.
                    *program(f"pytest -n 0 -m not(full) {COVERAGE} --cov-fail-under=95", PYTHON_312),
                ),
            ),
            300,
            TEST,
            TESTED,
            UNITS,
            needs(PYTHON_312, "3.12"),
        ),
        unit("unit-ansible-py3.11", ON_ANSIBLE, 90, ("test",), needs(PYTHON, "3.11")),
        unit("unit-py3.11", "", 400, FULL, needs(PYTHON, "3.11")),
        # Ten times the examples, and other ones each time.
        Step(
            "unit-explore",
            (("env", "HYPOTHESIS_PROFILE=explore", *program("pytest -n 2 --dist loadfile -m not(slow)")),),
            600,
            FULL,
            TESTED,
            UNITS,
        ),
        # Hugging Face's client from an index of packages, and a hub on this machine.
        Step(
            "hub-client",
            (program("pytest -n 0 tests/scenarios/test_hub_client.py"),),
            200,
            FULL,
            ON_NODES,
            CODE,
        ),
        # The archive twice alike, and installed in new environments: two of half a gigabyte, from an index of packages.
        Step(
            "release",
            (program("python tools/release.py .cache/release --trial"),),
            180,
            FULL,
            (*TESTED, "README.md", "requirements.txt", "changelogs/**"),
            CODE,
        ),
        # What the roles install, against what its packages ask for in their index today.
        Step(
            "locks", (("tools/make_locks", "--check"),), 120, FULL, ("roles/*/files/locks/**", "requirements/**"), CODE
        ),
        # Every page of the documentation with its links, and the reference from argument specifications.
        Step("site-of-docs", (program("python tools/make_site.py .cache/site"),), 90, FULL, (*TESTED, "*.md"), CODE),
        # The page in a browser; its driver comes from an index of packages.
        Step(
            "report",
            (program("pytest -n 0 tests/scenarios/test_report_page.py"),),
            300,
            FULL,
            TESTED,
            CODE,
            needs_browser,
        ),
        Step("awx", (program("python tests/scenarios/test_awx.py"),), 600, FULL, TESTED, UNITS, needs(PYTHON, "3.11")),
        # In `make test` ruff looks after what these two judge; the rest is Ansible's own.
        sanity(PYTHON_312, "3.12", 240, TEST, words="--skip-test pylint --skip-test pep8"),
        sanity(PYTHON_312, "3.12", 240, FULL, words="--test pylint --test pep8", name="pylint"),
        sanity(PYTHON, "3.11", 300, FULL),
    ]


def on_nodes() -> list[Step]:
    build = (program("python tests/lab/demo.py build"),)
    return [
        Step("lab", build, 150, TEST, ("tests/lab/**",), cannot_run=needs_root),
        molecule("layers", 400, TEST),
        molecule("gateway", 150, TEST),
        molecule("site", 450, TEST),
        # With the newest ansible-core; all others have the oldest.
        scenario("lifecycle", "lifecycle.py", 180, TEST, newest=True),
        scenario("one-line", "one_line.py", 140, TEST),
        molecule("site", 450, newest=True),
        *(molecule(name, 400) for name in ("access", "fabric", "modules", "os_stabilization")),
        *(molecule(name, 400) for name in ("1spark", "3spark_ring", "4spark", "8spark")),
        molecule("launch", 500),
        *(
            scenario(f"interruptions-{part}", f"interruptions.py --all --part {part}/{INTERRUPTED_PARTS}", 700)
            for part in range(1, INTERRUPTED_PARTS + 1)
        ),
        *(
            scenario(f"staying-up-{part}", f"staying_up.py --only {faults}", 800)
            for part, faults in enumerate(
                (
                    "rank,head,watcher,unnoticed,stopped",
                    "hang,power,headless",
                    "cable,disk,busy,prompt",
                    "cold,operators",
                    "frozen,abandoned,stranger",
                    "upgrade",
                ),
                start=1,
            )
        ),
        *(
            scenario(f"staying-up-{launch}", f"staying_up.py --launch {launch} --only {faults}", 600)
            for launch, faults in (
                *((launch, "rank,head") for launch in ("pipeline", "pipeline-native", "native", "native4", "replicas")),
                ("containers", "rank,unnoticed,head"),
                ("sglang", "rank,head,image"),
                ("mpi", "rank,head,hang"),  # its counters are of another kind
            )
        ),
        Step(
            "families",
            (
                program("python tests/scenarios/test_families.py"),
                program("python tests/scenarios/test_examples.py"),
            ),
            400,
            FULL,
            (
                *("tests/lab/families.py", "tests/lab/engine_env.py", "requirements/**"),
                *("tests/scenarios/test_families.py", "tests/scenarios/test_examples.py", "docs/examples/**"),
            ),
        ),
        scenario("launches", "launches.py", 600),
        scenario("benchmark", "benchmark.py", 600),
        scenario("nccl", "nccl.py", 500),
        scenario("services", "services.py", 600),
        scenario("services-pairs", "services.py --pairs --only pairs,pairs_again,pairs_killed", 800),
        scenario(
            "services-pairs-upgraded",
            "services.py --pairs --only pairs,pairs_upgraded,pairs_stopped,pairs_gone",
            800,
        ),
        scenario("services-containers", "services.py --containers", 400),
        scenario("by-name", "by_name.py --only site,again,switched,third,killed,back,gone", 900),
        scenario("by-name-mixed", "by_name.py --only site,mixed,gone", 900),
        scenario("prefix-cache", "prefix_cache.py", 600),
        scenario("trial-runs", "trial.py --only site,weights,revision,template,slow", 900),
        scenario("trial-dies", "trial.py --only site,dies", 800),
        scenario("trial-hangs", "trial.py --only site,hangs,closes", 800),
        scenario("trial-leaks", "trial.py --only site,leaks,late", 700),
        scenario("trial-good", "trial.py --only site,good", 900),
        scenario("trial-good-again", "trial.py --only site,good_again", 900),
        scenario("own-command", "own_command.py", 900),
        scenario("unnoticed", "unnoticed.py --faults 80", 900),
        scenario("unnoticed-vllm", "unnoticed.py --engine vllm --faults 10", 900),
        scenario("peer-recipes", "peer_recipes.py", 900),
        scenario("images", "images.py --only spread,back,figures,strangers", 600),
        scenario("images-built", "images.py --only built", 400),
        replace(scenario("gpu", "gpu.py", 900), cannot_run=lambda: needs_card() or needs_lab()),
        scenario("doctor", "doctor.py", 500),
        scenario("support", "support.py", 400),
        scenario("observability", "observability.py", 600),
        replace(scenario("web-ui", "web_ui.py", 900), cannot_run=lambda: needs_browser() or needs_lab()),
        scenario("artifacts", "artifacts.py", 600),
        scenario("artifacts-ring", "artifacts.py --ring", 600),
        scenario("head-controller", "head_controller.py", 400),
        scenario("management", "management.py", 200),
        scenario("awx-job", "awx.py --lab", 400),
        scenario("lifecycle-all", "lifecycle.py --all", 800),
        scenario("os-update", "os_update.py", 600),
        scenario("networkmanager", "networkmanager.py", 240),
        scenario("reboots", "reboots.py", 600),
        scenario("reboots-engine", "reboots.py --engine", 400),
        scenario("first-login", "first_login.py", 300),
        scenario("one-line-all", "one_line.py --all", 900),
        fabric_machines("fabric-vm", 600),
        fabric_machines("fabric-vm4", 900),
        on_machines("pressure", program("python tests/scenarios/test_memory_pressure.py"), 500),
    ]


def steps() -> list[Step]:
    return [*checks(), *on_nodes()]
