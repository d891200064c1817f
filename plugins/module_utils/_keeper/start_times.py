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
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.engine_json import Description

# In their order. ``stop`` is missing where nothing ran. ``memory``: until it is free, and the port; ``ranks``: until
# their units run, with Ray where there is one. ``processes``: from there until it begins to load: one Python is
# started after the other, one of them to look at the model, and ranks find each other. ``other``: what the engine says
# nothing of: its API opens, the first token comes.
PARTS = {
    "stop": "stop",
    "memory": "memory",
    "ranks": "ranks",
    "processes": "processes",
    "weights": "weights",
    "compile": "compile",
    "warm_up": "warm-up",
    "other": "other",
}
LOAD = "load"  # from running units to the first token
SLACK_S = 1.0  # the keeper looks every two seconds, and asks for a token as often
JOURNAL_LINES = 20000

# What vLLM prints (0.26 to 0.33: default_loader.py, sharded_state_loader.py, model_runner.py, gpu_model_runner.py,
# core.py, kv_cache_utils.py). Before it stand the process, level, time and place:
# `(Worker_TP0 pid=7) INFO 11-23 22:01:54 [core.py:396] `, and before these what the journal adds, but not after a
# carriage return: `[   59.065748] spark1 vllm[608]: `.
_ADDED = re.compile(r"\[ *(\d{1,9}\.\d{6})\] \S+ \S+?: ?")
_LINE = re.compile(
    r"(?P<process>(?:\([A-Za-z][\w .,=:-]*\) )*)INFO \d\d-\d\d \d\d:\d\d:\d\d \[[\w./]+:\d+\] (?P<said>.*)"
)
_SECONDS = r"(\d{1,6}\.\d{1,6})"
_BEGUN = re.compile(r"Starting to load model .*|Loading model from scratch\.\.\.")
_WEIGHTS = re.compile(rf"Loading weights took {_SECONDS} seconds")
_MODEL = re.compile(rf"Model loading took [\d.]+ GiB(?: memory)? and {_SECONDS} seconds")
_COMPILE = rf"(?: \(compilation: {_SECONDS} s(?: — language_model: {_SECONDS} s, encoder: {_SECONDS} s)?\))?"
# By the engine's core, of all ranks: each has its weights then.
_CACHE = re.compile(r"[\w +]+ KV cache size: [\d,]+ tokens(?:, .*)?")
_INIT = re.compile(rf"init engine \(profile, create kv cache, warmup model\) took {_SECONDS} s{_COMPILE}")
_LOADERS = {
    "checkpoint shards": "",
    "using Fastsafetensor loader": "fastsafetensors",
    "using InstantTensor loader": "instanttensor",
    "using Runai Model Streamer": "runai_streamer",
}
_LOADING = re.compile(rf"(?:\([A-Za-z][\w .,=:-]*\) )*Loading safetensors ({'|'.join(_LOADERS)}): ")
# Of file systems that another machine keeps.
_AWAY = re.compile(r"nfs\d?|cifs|smb\w*|ceph|lustre|9p|glusterfs|beegfs|fuse\.(sshfs|glusterfs|s3fs|rclone|juicefs)")
_MOUNTS = "/proc/self/mountinfo"
SMALL = 4 * 2**30  # weights below it are read beside Python and CUDA, so their speed says nothing
LONG_S = 120.0
_SLOW = 0.5  # of what others have measured
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Told:
    """By the engine itself, seconds of its slowest rank; None where it says nothing.

    ``init``: with ``compile``, which an engine without compiled graphs does not name, nor vLLM on CPUs. ``began``: its
    load, by the clock of :func:`time.monotonic`. ``stage``: by its last telling line; empty, start, read, loaded (what
    prints into this journal) or warm (all ranks).
    """

    weights: float | None = None
    init: float | None = None
    compile: float | None = None
    loader: str | None = None  # as it names its progress; empty: files mapped into memory
    began: float | None = None
    stage: str = ""


def parse(lines: Iterable[str]) -> Told:
    """From the journal of one start."""
    weights: dict[str, float] = {}  # by process: a drafter's come after the model's
    whole: dict[str, float] = {}  # the same with all that belongs to it, which vLLM tells on GPUs
    init: list[float] = []
    compiled: list[float] = []
    loader = at = began = None
    stage = ""
    for line in lines:
        plain = _COLOUR.sub("", line.rstrip())
        if added := _ADDED.match(plain):
            plain, at = plain[added.end() :], float(added[1])
        shown = _LOADING.match(plain.lstrip("\r"))
        match = _LINE.fullmatch(plain)
        process, said = (match["process"], match["said"]) if match else ("", "")
        if shown:
            loader = _LOADERS[shown[1]] if loader is None else loader  # the first is the model's
        if shown or _BEGUN.fullmatch(said):
            began, stage = at if began is None else began, "read"
        elif found := _WEIGHTS.fullmatch(said):
            weights[process] = weights.get(process, 0.0) + float(found[1])
            stage = "loaded"
        elif found := _MODEL.fullmatch(said):
            whole[process] = float(found[1])
            stage = "loaded"
        elif _CACHE.fullmatch(said):
            stage = "warm"
        elif found := _INIT.fullmatch(said):
            init.append(float(found[1]))
            compiled += [float(found[2])] if found[2] else []
        elif match:
            stage = stage or "start"
    loaded = {**weights, **whole}
    return Told(
        max(loaded.values()) if loaded else None,
        max(init) if init else None,
        max(compiled) if compiled else None,
        loader,
        began,
        stage,
    )


def read(unit: str, invocation: str, runner: Runner = run_command) -> Told:
    """What the journal of this start of a unit says; nothing where it cannot be read."""
    if not unit or not invocation:
        return Told()
    which = [f"_SYSTEMD_INVOCATION_ID={invocation}", f"_SYSTEMD_UNIT={unit}"]
    done = runner(["journalctl", *which, "-n", str(JOURNAL_LINES), "--no-pager", "-a", "-o", "short-monotonic"])
    return parse(done.out.splitlines()) if done.rc == 0 else Told()


def divided(seen: Mapping[str, float], told: Told, since: float) -> dict[str, float]:
    """Seconds by part. ``seen``: by the keeper, :data:`LOAD` among them, which the engine's own figures divide.
    ``since``: when that began.

    Figures that take longer than the load itself are of something else.
    """
    parts = {name: seconds for name, seconds in seen.items() if name != LOAD}
    left = seen.get(LOAD, 0.0)
    processes = max(0.0, (told.began or since) - since)
    named = processes + (told.weights or 0.0) + (told.init or 0.0)
    if named <= left + SLACK_S:
        if told.began is not None:
            parts["processes"] = processes
        if told.weights is not None:
            parts["weights"] = told.weights
        if told.init is not None:
            parts["warm_up"] = told.init
            if told.compile is not None and told.compile <= told.init:
                parts["compile"], parts["warm_up"] = told.compile, told.init - told.compile
        left -= named
    parts["other"] = max(left, 0.0)
    return {name: round(parts[name], 1) for name in PARTS if name in parts}


def loaded(seconds: float, used: str | None, read: int, plan: Description, machine: Machine) -> str:
    """How fast the weights of one machine were read, and what was wrong with it. ``used``: the loader by the engine's
    journal. ``read``: bytes from the disk, 0 where nobody has seen it."""
    if not seconds or plan.weights_bytes < SMALL:
        return ""
    rate, asked = plan.weights_bytes / 1e9 / seconds, plan.load_format
    text = f"weights at {rate:.2f} GB/s"
    if used is not None and asked in _LOADERS.values() and used != asked:
        return f"{text}: the loader {asked} was asked for, and {used or 'the usual one'} was used"
    if not plan.load_gb_per_s or rate >= _SLOW * plan.load_gb_per_s:
        sooner = used == "" and seconds >= LONG_S
        return f"{text}; a fast loader reads sooner (docs/tasks/change-model.md)" if sooner else text
    text += f", where others have {plan.load_gb_per_s:.2f}"
    away = _away(plan.model_directory, machine)
    if away:
        return f"{text}: the model is on another machine's disk ({away}); copy it to this one's (docs/artifacts.md)"
    if 0 < read < plan.weights_bytes / 2:
        return f"{text}, though most came from memory (page cache): processors or the memory were busy"
    return f"{text}: the disk was slow or busy (iostat -x 2 while it loads shows it)"


def _away(directory: str, machine: Machine) -> str:
    """Type of the file system with a directory, where another machine keeps it."""
    found = ("", "")
    for line in (machine.content(_MOUNTS) or b"").decode("utf-8", "surrogateescape").splitlines():
        mount, _dash, kind = line.partition(" - ")
        point = mount.split()[4]
        inside = directory == point or directory.startswith(f"{point.rstrip('/')}/")
        if directory and inside and len(point) >= len(found[0]):
            found = (point, kind.split()[0])
    return found[1] if _AWAY.fullmatch(found[1]) else ""


def words(parts: Mapping[str, float], load: str = "") -> str:
    """One line; empty where nothing is known of a start. ``load``: from :func:`loaded`."""
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
    return f"{sum(parts.values()):.0f} s: {', '.join(shown)}{f'; {load}' if load else ''}"
