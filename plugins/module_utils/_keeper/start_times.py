# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Where the time of a start went: what the keeper has seen itself, and what the engine prints of its load.

An engine that prints none of it is no error: those parts are missing, and are shown as not told.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Runner
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import run as run_command

# In their order. ``stop`` is missing where nothing ran. ``memory``: until it is free, and the port; ``ranks``: until
# their units run, with Ray where there is one. ``other``: of the load, what the engine says nothing of: its programs
# begin, its ranks find each other, its API opens, the first token comes.
PARTS = {
    "stop": "stop",
    "memory": "memory",
    "ranks": "ranks",
    "weights": "weights",
    "compile": "compile",
    "warm_up": "warm-up",
    "other": "other",
}
LOAD = "load"  # from running units to the first token
SLACK_S = 1.0  # the keeper looks every two seconds, and asks for a token as often
JOURNAL_LINES = 20000

# What vLLM prints (0.32: default_loader.py, sharded_state_loader.py, gpu_model_runner.py, core.py). Before it stand the
# process, level, time and place: `(Worker_TP0 pid=7) INFO 11-23 22:01:54 [core.py:396] `.
_LINE = re.compile(
    r"(?P<process>(?:\([A-Za-z][\w .,=:-]*\) )*)INFO \d\d-\d\d \d\d:\d\d:\d\d \[[\w./]+:\d+\] (?P<said>.*)"
)
_SECONDS = r"(\d{1,6}\.\d{1,6})"
_WEIGHTS = re.compile(rf"Loading weights took {_SECONDS} seconds")
_MODEL = re.compile(rf"Model loading took [\d.]+ GiB(?: memory)? and {_SECONDS} seconds")
_COMPILE = rf"(?: \(compilation: {_SECONDS} s(?: — language_model: {_SECONDS} s, encoder: {_SECONDS} s)?\))?"
_INIT = re.compile(rf"init engine \(profile, create kv cache, warmup model\) took {_SECONDS} s{_COMPILE}")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Told:
    """Seconds by the engine itself, of its slowest rank; None where it says nothing.

    ``init``: with ``compile``, which an engine without compiled graphs does not name, nor vLLM on CPUs.
    """

    weights: float | None = None
    init: float | None = None
    compile: float | None = None


def parse(lines: Iterable[str]) -> Told:
    """From the journal of one start."""
    weights: dict[str, float] = {}  # by process: a drafter's come after the model's
    whole: dict[str, float] = {}  # the same with all that belongs to it, which vLLM tells on GPUs
    init: list[float] = []
    compiled: list[float] = []
    for line in lines:
        match = _LINE.fullmatch(_COLOUR.sub("", line.rstrip()))
        if not match:
            continue
        process, said = match["process"], match["said"]
        if found := _WEIGHTS.fullmatch(said):
            weights[process] = weights.get(process, 0.0) + float(found[1])
        elif found := _MODEL.fullmatch(said):
            whole[process] = float(found[1])
        elif found := _INIT.fullmatch(said):
            init.append(float(found[1]))
            compiled += [float(found[2])] if found[2] else []
    loaded = {**weights, **whole}
    return Told(
        max(loaded.values()) if loaded else None,
        max(init) if init else None,
        max(compiled) if compiled else None,
    )


def read(unit: str, invocation: str, runner: Runner = run_command) -> Told:
    """What the journal of this start of a unit says; nothing where it cannot be read."""
    if not unit or not invocation:
        return Told()
    which = [f"_SYSTEMD_INVOCATION_ID={invocation}", f"_SYSTEMD_UNIT={unit}"]
    done = runner(["journalctl", *which, "-n", str(JOURNAL_LINES), "--no-pager", "-o", "cat"])
    return parse(done.out.splitlines()) if done.rc == 0 else Told()


def divided(seen: Mapping[str, float], told: Told) -> dict[str, float]:
    """Seconds by part. ``seen``: by the keeper, :data:`LOAD` among them, which the engine's own figures divide.

    Figures that take longer than the load itself are of something else.
    """
    parts = {name: seconds for name, seconds in seen.items() if name != LOAD}
    left = seen.get(LOAD, 0.0)
    if (told.weights or 0.0) + (told.init or 0.0) <= left + SLACK_S:
        if told.weights is not None:
            parts["weights"] = told.weights
        if told.init is not None:
            parts["warm_up"] = told.init
            if told.compile is not None and told.compile <= told.init:
                parts["compile"], parts["warm_up"] = told.compile, told.init - told.compile
        left -= (told.weights or 0.0) + (told.init or 0.0)
    parts["other"] = max(left, 0.0)
    return {name: round(parts[name], 1) for name in PARTS if name in parts}


def words(parts: Mapping[str, float]) -> str:
    """One line; empty where nothing is known of a start."""
    if not parts:
        return ""
    shown: list[str] = []
    for name, word in PARTS.items():
        if name == "warm_up" and name in parts and "compile" not in parts:
            shown[-1] = f"compile and warm-up {parts[name]:.0f} s"
        elif name in parts:
            shown.append(f"{word} {parts[name]:.0f} s")
        elif name != "stop":
            shown.append(f"{word} not told")
    return f"{sum(parts.values()):.0f} s: {', '.join(shown)}"
