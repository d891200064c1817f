# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Bring a systemd unit into a state, judged by the process that runs and not by what a file says.

A unit file carries ``Environment=SPARKMATRIX_CONFIG_HASH=<hash>``. What runs is compared through
``/proc/<MainPID>/environ``, so a run that died between "file written" and "service restarted" heals on the next one.
A oneshot unit has no process to ask; for it the hash is noted under ``/run/sparkmatrix`` with the invocation it is for.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text, paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.systemd import Unit

HASH_VARIABLE = "SPARKMATRIX_CONFIG_HASH"
NOTE_DIR = f"{paths.RUN}/services"
POLL_S = 0.1
# Between fork and exec a Type=simple process still shows the environment of systemd's own helper.
SETTLE_S = 2.0
JOURNAL_LINES = 20

_UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]+\.(service|socket|timer|target|mount|path)")


@dataclass(frozen=True)
class Wanted:
    name: str
    state: str = "started"  # started, stopped, absent
    enabled: bool | None = None
    config_hash: str = ""
    start_timeout_s: float = 90.0
    return_s: float = (
        0.0  # stopped: systemd starts it again after this time, unless a call comes before; 0: it does not
    )


@dataclass
class Result:
    action: str = "none"  # none, started, restarted, stopped
    changed: bool = False
    before: dict[str, Any] = field(default_factory=dict)
    after: dict[str, Any] = field(default_factory=dict)

    @property
    def diff(self) -> dict[str, Any]:
        return {"before": self.before, "after": self.after}


def _shown(unit: Unit) -> dict[str, Any]:
    """The part of a unit that a diff shows."""
    state = "started" if unit.running else "stopped" if unit.stopped else unit.active
    return {"state": state, "enabled": unit.is_enabled, "config_hash": unit.running_hash or ""}


def parse_environ(content: bytes) -> str | None:
    """The hash in ``/proc/<pid>/environ``: entries end with a zero byte (proc(5))."""
    wanted = f"{HASH_VARIABLE}=".encode()
    for entry in content.split(b"\0"):
        if entry.startswith(wanted):
            return entry[len(wanted) :].decode("utf-8", "replace")
    return None


def hash_of(unit: str) -> str:
    """The one that a unit file sets, its last line; empty where it sets none."""
    _before, found, text = unit.rpartition(f"{HASH_VARIABLE}=")
    return text.strip() if found else ""


def _timer(name: str) -> str:
    return f"{name.rpartition('.')[0]}-return.timer"


def returning(name: str, root: str = "/") -> bool:
    """Whether systemd starts this unit again soon, because a run has stopped it."""
    return Path(root, "run/systemd/transient", _timer(name)).exists()


class Service:
    """One unit."""

    def __init__(self, wanted: Wanted, machine: Machine, *, check_mode: bool = False) -> None:
        if not _UNIT.fullmatch(wanted.name):
            raise SparkError(
                f"{wanted.name!r} is no unit name", "", "Write it with its ending, for example sparkmatrix-ray.service"
            )
        self.wanted = wanted
        self.name = wanted.name
        self.machine = machine
        self.check_mode = check_mode
        self.since: int | None = None  # seconds since 1970: what the journal held before is not about this start

    # -- reading

    def read(self) -> Unit:
        unit = self.machine.unit(self.name)
        return replace(unit, running_hash=self._running_hash(unit)) if unit.alive else unit

    def _running_hash(self, state: Unit) -> str | None:
        if state.main_pid <= 0:
            return self._noted_hash(state)
        path = Path(self.machine.real(f"/proc/{state.main_pid}/environ"))
        try:
            return parse_environ(path.read_bytes())
        except PermissionError as exc:
            raise SparkError(
                "the environment of the running process cannot be read", f"{self.name} {path}", "Run with become: true"
            ) from exc
        except OSError:  # it ended just now
            return None

    @property
    def _note(self) -> Path:
        return Path(self.machine.real(f"{NOTE_DIR}/{self.name}.json"))

    def _noted_hash(self, state: Unit) -> str | None:
        try:
            note = json_text.mapping(self._note.read_bytes())
        except (OSError, SparkError):
            return None
        return str(note.get("config_hash")) if note.get("invocation") == state.invocation else None

    # -- acting

    def run(self) -> Result:
        before = self.read()
        result = Result(before=_shown(before))
        if self.wanted.state == "started":
            self._start(before, result)
            if not self.check_mode:
                self._stay()
        else:
            self._stop(before, result)
        if not self.check_mode and result.changed:
            result.after = _shown(self.read())
        return result

    def _start(self, before: Unit, result: Result) -> None:
        wanted = self.wanted
        if before.load == "masked":
            raise SparkError(
                "the unit is masked, so it cannot be started", self.name, f"On this node: systemctl unmask {self.name}"
            )
        fitting = not wanted.config_hash or before.running_hash == wanted.config_hash
        waiting = before.starting and before.sub != "auto-restart" and fitting and not before.needs_reload
        if before.running and fitting:
            result.action = "none"
        elif before.stopped or waiting:
            result.action = "started"
        else:
            result.action = "restarted"
        switch = None if wanted.enabled is None or wanted.enabled == before.is_enabled else wanted.enabled
        result.changed = result.action != "none" or switch is not None or before.needs_reload
        result.after = {
            "state": "started",
            "enabled": before.is_enabled if switch is None else switch,
            "config_hash": wanted.config_hash or before.running_hash or "",
        }
        if self.check_mode or not result.changed:
            return
        if before.needs_reload or before.load == "not-found":
            self._check(self._systemctl("daemon-reload"), "systemctl daemon-reload failed")
        loaded = self.read()
        if loaded.load != "loaded":
            detail = f": {loaded.load_error}" if loaded.load_error else ""
            remedy = f"Run systemd-analyze verify {self.name} on this node"
            if loaded.load == "not-found":
                remedy = "Run the layer again that installs it"
            raise SparkError(f"the unit cannot be loaded ({loaded.load}{detail})", self.name, remedy)
        if switch is False:
            self._check(self._systemctl("disable", "--", self.name), "systemctl disable failed")
        if result.action != "none":
            baseline = loaded
            if not waiting:
                if loaded.active == "failed":
                    self._systemctl("reset-failed", "--", self.name)  # or an exhausted start limit refuses the start
                self.since = int(self.machine.now())
                verb = "start" if result.action == "started" else "restart"
                self._check(self._systemctl("--no-block", verb, "--", self.name), f"systemctl {verb} was refused")
                baseline = replace(loaded, restarts=0)
            self._wait_started(baseline, fresh=not waiting)
        # Enabled last: a service that cannot start must not come back at every boot.
        if switch is True:
            self._enable()

    def _enable(self) -> None:
        done = self._systemctl("enable", "--", self.name)
        self._check(done, "systemctl enable failed")
        if not self.read().is_enabled:
            raise SparkError(
                f"the unit is still not enabled ({done.complaint})", self.name, "It needs WantedBy= in [Install]"
            )

    def _wait_started(self, baseline: Unit, fresh: bool) -> None:
        """Wait until the unit is up with the wanted configuration. ``fresh``: the old invocation does not count."""
        deadline = self.machine.clock() + self.wanted.start_timeout_s
        settle: float | None = None
        while True:
            state = self.read()
            new = not fresh or state.invocation != baseline.invocation or not state.invocation
            if state.running and new and not state.job:
                if state.main_pid == 0 and self.wanted.config_hash:
                    self._take_note(state)
                    return
                if not self.wanted.config_hash or state.running_hash == self.wanted.config_hash:
                    return
                settle = settle or self.machine.clock() + SETTLE_S
                if self.machine.clock() > settle:
                    raise SparkError(
                        f"the started process has {HASH_VARIABLE}={state.running_hash or '(unset)'},"
                        f" expected {self.wanted.config_hash}",
                        self.name,
                        "The unit file on this node and the run disagree, as when two runs change it at the same time:"
                        f" run again when the other one has ended; systemctl cat {self.name}",
                    )
            # While the old invocation ends, it still shows its own count of restarts.
            elif (state.stopped and not state.job) or (
                new and (state.restarts > baseline.restarts or state.sub == "auto-restart")
            ):
                self._fail(state)
            if self.machine.clock() > deadline:
                self._fail(state, f"the unit is not up after {self.wanted.start_timeout_s:g} s")
            self.machine.sleep(POLL_S)

    def _fail(self, state: Unit, found: str = "the unit did not start") -> None:
        if not state.condition and state.stopped:
            found = f"{found}: a Condition= of the unit is not met"
        details = [f"{state.active}/{state.sub}", f"Result={state.result}"]
        if state.exit_status and state.result != "success":
            details.append(f"{'killed by signal' if state.exit_code > 1 else 'exit status'} {state.exit_status}")
        if state.status_text:
            details.append(state.status_text)
        argv = ["journalctl", "-u", self.name, "-n", str(JOURNAL_LINES), "--no-pager", "-o", "cat", "-q"]
        journal = self.machine.runner(argv if self.since is None else [*argv, f"--since=@{self.since}"])
        lines = journal.out.strip().splitlines()[-JOURNAL_LINES:]
        tail = "\n".join(f"    {line}" for line in lines) if lines else "    (nothing)"
        raise SparkError(
            f"{found} ({', '.join(details)})",
            self.name,
            f"The last lines of its journal (all of it: journalctl -u {self.name}):\n{tail}",
        )

    def _take_note(self, state: Unit) -> None:
        with contextlib.suppress(OSError):  # without the note the next run restarts, no more
            self._note.parent.mkdir(parents=True, exist_ok=True)
            temp = self._note.with_suffix(".new")
            note = {"invocation": state.invocation, "config_hash": self.wanted.config_hash}
            temp.write_text(json.dumps(note))
            os.replace(temp, self._note)

    def _stop(self, before: Unit, result: Result) -> None:
        absent = self.wanted.state == "absent"
        enabled = False if absent else self.wanted.enabled
        disable = enabled is False and before.enabled in ("enabled", "enabled-runtime")
        enable = enabled is True and not before.is_enabled
        stop = not before.stopped
        forget = absent and before.active == "failed"
        result.action = "stopped" if stop else "none"
        result.changed = stop or disable or enable
        result.after = {
            "state": "stopped",
            "enabled": enable or (before.is_enabled and not disable),
            "config_hash": "",
        }
        if self.check_mode:
            return
        if self.wanted.return_s and (stop or returning(self.name, self.machine.root)):
            self._return()
        else:
            self._stay()
        # Disabled first: an interruption must not leave a unit that comes back at the next boot.
        if disable:
            self._check(self._systemctl("disable", "--", self.name), "systemctl disable failed")
        if stop:
            self._check(self._systemctl("--no-block", "stop", "--", self.name), "systemctl stop was refused")
            self._wait_stopped()
        if enable:
            self._enable()
        if absent:
            if forget or self.read().active == "failed":
                self._systemctl("reset-failed", "--", self.name)
            with contextlib.suppress(OSError):
                self._note.unlink()

    def _wait_stopped(self) -> None:
        deadline = self.machine.clock() + self.wanted.start_timeout_s
        while not (state := self.read()).stopped:
            if self.machine.clock() > deadline:
                self._fail(state, f"the unit has not stopped within {self.wanted.start_timeout_s:g} s")
            self.machine.sleep(POLL_S)

    # -- a stop that ends by itself

    def _return(self) -> None:
        """The run that stops it may die before it starts it again: then systemd does. Its clock begins anew here."""
        self._stay()
        seconds = f"{self.wanted.return_s:g}"
        timer = [
            "systemd-run",
            "--quiet",
            "--collect",
            f"--unit={_timer(self.name)}",
            f"--description=Start {self.name} again, which a run has stopped, unless that run does within {seconds} s",
            f"--on-active={seconds}s",
            "--timer-property=AccuracySec=1s",
        ]
        done = self.machine.runner([*timer, "systemctl", "--no-block", "start", "--", self.name])
        self._check(done, "the timer that starts it again cannot be armed; it was not stopped")

    def _stay(self) -> None:
        """In the state that it has now: whoever calls has taken it over."""
        if returning(self.name, self.machine.root):
            self._systemctl("stop", "--", _timer(self.name))

    # -- systemctl

    def _systemctl(self, *arguments: str) -> Completed:
        return self.machine.runner(["systemctl", *arguments])

    def _check(self, done: Completed, found: str) -> None:
        if done.rc != 0:
            raise SparkError(f"{found} ({done.complaint})", self.name, f"On this node: systemctl status {self.name}")
