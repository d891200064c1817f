# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Apply all topics of ``os_stabilization``, or restore everything: read, decide, act, read again.

Files go through ``_managed.files``, running values through ``_managed.settings``, units of our own through
``_managed.service``; each of them remembers what was there before it acts. What a daemon still has to be told is kept
in the record until it has been told, so a run that was cut off is finished by the next one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import run as run_command
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import (
    Finding,
    SparkError,
    errors,
    refusal,
    warnings,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Count, Diff, Flag, Word, Words
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import files as managed_files
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import json_merge
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import File, State
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.service import Service, Wanted
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.settings import KINDS, Record, Settings
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._os import machine_state, memory_watchdog, topics
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._os import options as os_options
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._os.machine_state import Reading
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._os.options import Options
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._os.topics import (
    DOCKER_CONFIG,
    RELOAD,
    RESTARTS,
    Part,
)

NAME = "os_stabilization"
RUNNING_KINDS = tuple(kind for kind in KINDS if kind != "packages")
TIMEOUT_S = 900.0  # installing a package behind another apt, or bringing gigabytes back from swap
PROTECTION_WAIT_S = 3.0
_RESTART = "restart"


def patient(argv: Any) -> Completed:
    """Like ``run``, with time for a package."""
    return run_command(argv, timeout_s=TIMEOUT_S)


@dataclass(frozen=True)
class Request:
    """``options``: the variables of the role without their prefix. ``absent`` restores what was there before."""

    options: Annotated[Mapping[str, Any], dict] = field(default_factory=dict)
    state: str = field(default="present", metadata=document.one_of("present", "absent"))


@dataclass
class Outcome:
    """``reboot`` holds reasons for one; ``memory_min`` bytes in effect, by unit."""

    changed: Flag = False
    diff: Diff = field(default_factory=list)
    actions: list[Words] = field(default_factory=list)
    warnings: list[Words] = field(default_factory=list)
    reboot: list[Words] = field(default_factory=list)
    memory_min: Mapping[Word, Count] = field(default_factory=dict)


def ensure(request: Request, check: bool) -> Outcome:
    stabilization = Stabilization(check_mode=check)
    return stabilization.absent() if request.state == "absent" else stabilization.present(request.options)


class Stabilization:
    """One node."""

    def __init__(self, node: Machine | None = None, *, check_mode: bool = False) -> None:
        self.check_mode = check_mode
        self.host = os.uname().nodename
        self.node = node or Machine(runner=patient)
        self.settings = Settings(NAME, self.node, check_mode=check_mode)
        self.outcome = Outcome()

    def present(self, values: Mapping[str, Any]) -> Outcome:
        """Apply the options. Raises :class:`SparkError`; nothing is changed when an option is refused."""
        options = os_options.parse(values)
        before = self.settings.load()
        machine = machine_state.read(
            self.node,
            sysctl=tuple(options.sysctl),
            more_units=tuple(options.memory_min_mib),
            packages=options.hold or bool(options.known_good),
            known_swaps=tuple(before.of("swaps")),
        )
        part = topics.plan(options, machine, before)
        if errors(part.findings):
            refused = [replace(finding, host=self.host) for finding in part.findings]
            raise SparkError(refusal("os_stabilization was refused, nothing was changed:", refused).rstrip("."))
        self._bring(part, machine, before, options)
        self.outcome.memory_min = self._protected(part)
        self.outcome.reboot = part.reboot
        return self._finish(part)

    def absent(self) -> Outcome:
        """Give everything back that :meth:`present` took."""
        before = self.settings.load()
        part = Part()
        self._bring(part, machine_state.read(self.node), before, Options(watchdog_available_mib=0), forget=True)
        if not self.check_mode:
            self._drop_reason()
        return self._finish(part)

    def _finish(self, part: Part) -> Outcome:
        settings = self.settings.result
        outcome = self.outcome
        if settings.changed:
            shown = {
                "before": _shown(settings.before),
                "after": _shown(settings.after),
                "before_header": "running values",
                "after_header": "running values",
            }
            outcome.diff.append(shown)
        outcome.actions = [*settings.actions, *outcome.actions]
        outcome.changed = outcome.changed or settings.changed
        outcome.warnings += [str(replace(finding, host=self.host)) for finding in warnings(part.findings)]
        return outcome

    # -- the order of things

    def _bring(self, part: Part, machine: Reading, before: Record, options: Options, forget: bool = False) -> None:
        packages = part.values.get("packages", {})
        # Packages first, since they bring files and units; those that leave go last, after their files were given back.
        staying = {**dict.fromkeys(before.of("packages"), "installed"), **packages}
        if not self.check_mode:  # the last step tells the same
            self.settings.bring({"packages": staying}, ["packages"])
        for name in topics.OUR_UNITS:
            if name not in part.services:
                self._service(Wanted(name, "absent"))
        self.settings.remember(part.values, RUNNING_KINDS)
        self._files(part, machine)
        self.settings.bring(part.values, RUNNING_KINDS)
        self._tell(part, machine, options, forget)
        self.settings.bring({"packages": packages}, ["packages"])
        for name, made in part.services.items():
            self._service(Wanted(name, "started", enabled=True, config_hash=made, start_timeout_s=20))

    def _service(self, wanted: Wanted) -> None:
        result = Service(wanted, self.node, check_mode=self.check_mode).run()
        if result.changed:
            self.outcome.changed = True
            self.outcome.actions.append(f"{wanted.name}: {result.action}")
            self.outcome.diff.append(
                {
                    "before": _shown(result.before),
                    "after": _shown(result.after),
                    "before_header": wanted.name,
                    "after_header": wanted.name,
                }
            )

    # -- files

    def _files(self, part: Part, machine: Reading) -> None:
        record = self.settings.load()
        files, originals, added = self._merge(part, machine, record)
        wanted = [*part.files, *files]
        preview = managed_files.apply_set(NAME, wanted, originals=originals, check_mode=True, root=self.node.root)
        self.outcome.diff += preview.diff
        self.outcome.changed = self.outcome.changed or preview.changed
        self.outcome.actions += [f"file {path}" for path in preview.changed_paths]
        self.outcome.warnings += preview.warnings
        if self.check_mode:
            return
        pending = list(record.pending)
        if any(path.startswith(paths.UNITS) for path in preview.changed_paths):
            pending.append(RELOAD)
        for path in preview.changed_paths:
            unit = RESTARTS.get(path, "")
            if unit:
                # The invocation tells whether somebody has restarted it meanwhile.
                pending.append(f"{_RESTART} {unit} {self._invocation(unit)}")
        # Old and new keys until the file is written, so that an interruption leaves no key that nobody knows.
        known = record.merged.get(DOCKER_CONFIG, {})
        both = {DOCKER_CONFIG: {**known, **added}} if known or added else {}
        told = replace(record, pending=list(dict.fromkeys(pending)), merged=both)
        self.settings.store(told, record)
        managed_files.apply_set(NAME, wanted, originals=originals, root=self.node.root)
        self.settings.store(replace(told, merged={DOCKER_CONFIG: added} if added else {}), told)

    def _merge(
        self, part: Part, machine: Reading, record: Record
    ) -> tuple[list[File], dict[str, State], dict[str, Any]]:
        """Docker's configuration with our keys: (the file, corrected originals, keys that are ours)."""
        ours = record.merged.get(DOCKER_CONFIG, {})
        if not part.merged and not ours:
            return [], {}, {}
        now = managed_files.read_state(DOCKER_CONFIG, root=self.node.root)
        if now.kind == "link":
            part.warn(
                "it is a link, so it is left alone",
                "Set default-ulimits and log-opts where it points to",
                DOCKER_CONFIG,
            )
            return [], {}, {}
        current = json_merge.load(machine.docker_config, DOCKER_CONFIG)
        base = json_merge.take(current, ours)
        originals: dict[str, State] = {}
        original = managed_files.originals(NAME, root=self.node.root).get(DOCKER_CONFIG)
        if original is not None and json_merge.load(original.content or None, DOCKER_CONFIG) != base:
            # Somebody else has edited the file since.
            state = replace(now, content=json_merge.dump(base))
            originals[DOCKER_CONFIG] = state if base else State()
        wanted, added, others = json_merge.add(base, part.merged)
        for key, value in others.items():
            part.warn(
                f"{key} is set to {value!r} already, so it was left alone",
                "Remove it from the file to get the role's value",
                DOCKER_CONFIG,
            )
        if not added:
            return [], originals, {}
        content = now.content if wanted == current else json_merge.dump(wanted)
        file = File(DOCKER_CONFIG, content=content)
        if now.kind == "file":
            file = replace(file, mode=now.mode, owner=str(now.uid), group=str(now.gid))
        return [file], originals, added

    # -- daemons

    def _invocation(self, unit: str) -> str:
        return self.node.unit(unit).invocation or "-"

    def _tell(self, part: Part, machine: Reading, options: Options, forget: bool) -> None:
        """Do what is pending; what must not be done now stays so (or, with ``forget``, is only said)."""
        record = self.settings.load()
        left: list[str] = []
        for action in sorted(record.pending, key=lambda item: item != RELOAD):
            words = action.split()
            if words[0] == RELOAD:
                self._systemctl(RELOAD)
                continue
            unit, invocation = words[1], words[2]
            if self._invocation(unit) != invocation or invocation == "-":
                continue  # it does not run, or was started since
            refused = self._docker_busy(machine, options) if unit == "docker.service" else ""
            if refused:
                part.warn(
                    f"its new configuration is not active: {refused}",
                    "sudo systemctl restart docker when no container is needed, or set"
                    " os_stabilization_docker_restart: always",
                    unit,
                )
                left.append(action)
            else:
                self._systemctl("try-restart", unit)
        if not self.check_mode:
            self.settings.store(replace(record, pending=[] if forget else left), record)

    def _docker_busy(self, machine: Reading, options: Options) -> str:
        if options.docker_restart == "never":
            return "os_stabilization_docker_restart is never"
        if options.docker_restart == "idle" and machine.containers:
            return f"containers run ({', '.join(machine.containers)})"
        return ""

    def _systemctl(self, *words: str) -> None:
        if self.check_mode:
            self.outcome.changed = True
            self.outcome.actions.append(f"systemctl {' '.join(words)}")
            return
        done = self.node.runner(["systemctl", *words])
        if done.rc != 0:
            raise SparkError(
                f"systemctl {' '.join(words)} failed ({done.complaint})", words[-1], "Look at journalctl -b, run again"
            )
        self.outcome.changed = True
        self.outcome.actions.append(f"systemctl {' '.join(words)}")

    # -- what is active

    def _protected(self, part: Part) -> dict[str, int]:
        """Read memory.min back. What is not as wanted is a finding: a file that has no effect protects nothing."""
        if not part.protect or "memory" not in (self.node.text("/sys/fs/cgroup/cgroup.controllers") or "").split():
            return {}
        units = self.node.units(sorted(part.protect))
        running = {name: unit.cgroup for name, unit in units.items() if unit.alive and unit.cgroup}
        deadline = self.node.clock() + PROTECTION_WAIT_S
        while True:
            found = {
                name: int(self.node.text(f"/sys/fs/cgroup{cgroup}/memory.min") or 0) for name, cgroup in running.items()
            }
            wrong = {name: size for name, size in found.items() if size < part.protect[name]}
            if not wrong or self.check_mode or self.node.clock() > deadline:
                break
            self.node.sleep(0.1)  # systemd applies it after it has answered the reload
        for name, size in sorted(wrong.items() if not self.check_mode else ()):
            part.findings.append(
                Finding(
                    "",
                    f"{size} bytes are protected, {part.protect[name]} were asked for",
                    f"Another drop-in overrides ours: systemctl cat {name}",
                    f"memory.min of {name}",
                    "warning",
                )
            )
        return found

    def _drop_reason(self) -> None:
        path = Path(self.node.real(memory_watchdog.REASON))
        with contextlib.suppress(OSError):
            path.unlink()
            for parent in (path.parent, path.parent.parent):
                parent.rmdir()


def _shown(values: Mapping[str, Any]) -> str:
    return "".join(f"{name}: {values[name]}\n" for name in sorted(values))
