# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What the demo and the interruption tests share: preparing the lab and running site.yml on it."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, TypeVar

import gpu
import labstate

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
STATE = ROOT / ".lab"
INVENTORY = "inventories/4spark"
OVERLAY = ".lab/overlay"
HEAD = "spark1"
NODES = 4
MAX_EXECUTIONS = 32  # module executions per node in a run of site.yml that changes nothing: each costs about a second
HEARTBEAT_S = 15
cache = labstate.cache_dir


class LabError(Exception):
    """A step of the lab failed; the text says which and where its log is."""


def say(text: str) -> None:
    print(text, flush=True)


def step(title: str, command: list[str], log: str) -> float:
    """Run one command with its output in ``.lab/<log>``, show a line every few seconds, return its seconds."""
    STATE.mkdir(exist_ok=True)
    path = STATE / log
    started = time.monotonic()
    say(f"-- {title}")
    done = threading.Event()

    def heartbeat() -> None:
        while not done.wait(HEARTBEAT_S):
            say(f"   {title}: {time.monotonic() - started:.0f} s  {last_line(path)}")

    threading.Thread(target=heartbeat, daemon=True).start()
    with path.open("w") as output:
        code = subprocess.run(command, cwd=ROOT, stdout=output, stderr=output, check=False).returncode
    done.set()
    seconds = time.monotonic() - started
    if code:
        tail = "".join(path.read_text(errors="replace").splitlines(keepends=True)[-25:])
        raise LabError(f"{title} failed with exit code {code}. The end of {path.relative_to(ROOT)}:\n{tail}")
    say(f"   {title}: {seconds:.0f} s")
    return seconds


def last_line(path: pathlib.Path) -> str:
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return lines[-1][:100] if lines else ""


def lab(*arguments: str) -> list[str]:
    return [sys.executable, "tests/lab/lab.py", *arguments]


def build(gpus: bool = False) -> None:
    """Install what the lab needs; build node image and engine environment side by side, with models for GPUs after."""
    step("Check the machine and install packages", lab("setup", *_gpus(gpus)), "setup.log")
    problems: list[Exception] = []

    def guarded(title: str, command: list[str], log: str) -> None:
        try:
            step(title, command, log)
        except LabError as exc:
            problems.append(exc)

    jobs = [
        threading.Thread(target=guarded, args=("Build the node image", lab("image"), "image.log")),
        threading.Thread(
            target=guarded,
            args=(
                f"Build the engine environment (vLLM for {'CUDA' if gpus else 'CPU'}, Ray, a tiny model)",
                [sys.executable, "tests/lab/engine_env.py", "--cache", str(cache()), *(["--cuda"] if gpus else [])],
                "engine_env.log",
            ),
        ),
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    if problems:
        raise LabError("\n".join(map(str, problems)))
    if gpus:
        place = cache() / "gpu"
        script = [str(place / "engine/bin/python3"), "tests/lab/make_gpu_models.py", str(place / "models")]
        script += gpu.served().models
        step("Write models with random weights", script, "models.log")


def boot(topology: str = "switch", nodes: int = NODES, gpus: bool = False) -> None:
    step(
        f"Boot {nodes} simulated Sparks ({topology})",
        lab("up", "--nodes", str(nodes), "--topology", topology, *_gpus(gpus)),
        "up.log",
    )


def _gpus(wanted: bool) -> list[str]:
    return ["--gpus"] if wanted else []


@dataclass
class Run:
    """One run of a playbook: exit code, seconds and what the test callback counted."""

    code: int
    seconds: float
    killed: bool = False
    stats: dict[str, Any] = field(default_factory=dict)

    @property
    def changed(self) -> int:
        return sum(host["changed"] for host in self.stats.get("hosts", {}).values())

    @property
    def failed(self) -> int:
        return sum(host["failures"] + host["unreachable"] for host in self.stats.get("hosts", {}).values())

    def unchanged(self) -> Run:
        """As a second run is."""
        if self.changed:
            raise LabError(f"the second run changed {self.stats.get('changed_tasks')}")
        return self

    def executions_per_node(self) -> int:
        """The largest number of module executions that one node saw."""
        calls = self.stats.get("module_executions", {})
        return max((count for host, count in calls.items() if host != "localhost"), default=0)


def play(
    name: str,
    *options: str,
    playbook: str = "site.yml",
    inventory: str = INVENTORY,
    overlay: str = OVERLAY,
    kill_at_change: int = 0,
    kill_delay_s: float = 0.0,
    show: bool = True,
) -> Run:
    """Run a playbook on the lab with the output in ``.lab/<name>.log``; ``show`` prints the tasks as they start.

    ``kill_at_change`` kills the whole run with SIGKILL once so many tasks have changed something, and a delay later.
    """
    log = STATE / f"{name}.log"
    stats = STATE / f"{name}.stats.json"
    stats.unlink(missing_ok=True)
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_CALLBACK_PLUGINS": str(ROOT / "tests/lab/callback"),
        "ANSIBLE_CALLBACKS_ENABLED": "spark_stats",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_STDOUT_CALLBACK": "default",  # every task by its name; tests read it
        "SPARK_STATS_FILE": str(stats),
        "SPARK_KILL_AT_CHANGE": str(kill_at_change),
        "SPARK_KILL_DELAY_S": str(kill_delay_s),
    }
    command = [
        str(pathlib.Path(sys.executable).parent / "ansible-playbook"),
        playbook,
        "-i",
        inventory,
        "-i",
        overlay,
        *options,
    ]
    started = time.monotonic()
    with log.open("w") as output:
        output.write(f"$ {' '.join(command)}\n")
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # so that a killed run takes its forks with it, and not us
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                output.write(line)
                if show and (title := shown_title(line)):
                    say(f"   {time.monotonic() - started:5.0f} s  {title}")
            code = process.wait()
        except BaseException:  # whoever ends the wait ends the run
            os.killpg(process.pid, signal.SIGKILL)
            raise
    run = Run(code, time.monotonic() - started, killed=code == -signal.SIGKILL)
    if stats.exists():
        run.stats = json.loads(stats.read_text())
    return run


def shown_title(line: str) -> str:
    """Plays, and of the tasks those that do something: ``role : topic | Do it``."""
    title = re.match(r"(PLAY|TASK) \[(?:[\w.]+ : )?(.*?)\] \**$", line)
    if not title or (title[1] == "TASK" and " | " not in title[2]) or title[2].startswith(("remove | ", "absent | ")):
        return ""
    return title[2] if title[1] == "PLAY" else f"  {title[2]}"


def log_tail(name: str, lines: int = 40) -> str:
    return "".join((STATE / f"{name}.log").read_text(errors="replace").splitlines(keepends=True)[-lines:])


def parts_of_start(kept: Mapping[str, Any], began: float) -> dict[str, float]:
    """Seconds of a start that was asked for at ``began``, by the keeper's state: until the keeper began, its parts, and
    all of it to the first token. Nodes of the lab have the clock of this machine."""
    parts = kept["start_parts"]
    token = datetime.fromisoformat(kept["since"]).timestamp() - began
    return {"before": round(token - sum(parts.values()), 1), **parts, "token": round(token, 1)}


def inside(host: str, command: str, stdin: str = "") -> str:
    """What root's shell on a node prints, by the lab and not by ssh."""
    run = lab("exec", host, "--", "sh", "-c", command)
    done = subprocess.run(run, cwd=ROOT, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"{host}: {command}: {done.stdout}{done.stderr}")
    return done.stdout


def ssh(host: str, command: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    """Run a shell command on a node as the ordinary user, over ssh as a person would."""
    return subprocess.run(
        ["ssh", "-F", str(STATE / "ssh_config"), host, command],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
        check=False,
    )


class Lab(Protocol):
    """Simulated machines that steps are run on."""

    def boot(self) -> None: ...
    def down(self) -> None: ...


Here = TypeVar("Here", bound=Lab)


def options(about: str | None = None, steps: Iterable[str] = ()) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", default="", metavar="ID", help="a lab of this id beside another")

    def known(text: str) -> list[str]:
        names = text.split(",")
        if unknown := set(names) - set(steps):
            raise argparse.ArgumentTypeError(f"no such step: {', '.join(sorted(unknown))}")
        return names

    if steps:
        parser.add_argument("--only", type=known, metavar="STEP[,STEP]", help=", ".join(steps))
        parser.add_argument("--keep", action="store_true", help="use the lab that is up, and leave it")
    return parser


def run_steps(
    title: str, here: Here, steps: Mapping[str, Callable[[Here], dict[str, Any]]], chosen: argparse.Namespace
) -> int:
    """The steps of a scenario in turn, or those of ``--only``, and one JSON line with what they returned."""
    results: dict[str, Any] = {}
    problem = ""
    try:
        if not chosen.keep:
            build()
            here.boot()
        for name in chosen.only or steps:
            say(f"-- {name}: {steps[name].__doc__}")
            results[name] = steps[name](here)
            say(f"   {json.dumps(results[name])}")
    except LabError as exc:
        problem = str(exc)
        say(problem)
    finally:
        if not chosen.keep:
            here.down()
    print(json.dumps({title: results, "problem": problem}))
    return 1 if problem else 0
