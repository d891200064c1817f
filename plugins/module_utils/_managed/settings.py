# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Bring the running system into the state that files on disk already describe, and remember what was there before.

Files alone take effect at the next boot. What the running system had is kept in
``/var/lib/sparkmatrix/settings/<name>.json``, written before the first change::

    {"schema": 1, "sysctl": {"vm.swappiness": "60"}, "limits": {"DefaultLimitNOFILE": "1024:524288"},
     "holds": {"nvidia-modprobe": "no"}, "pending": ["daemon-reload"],
     "merged": {"/etc/docker/daemon.json": {"log-opts.max-file": "3"}}}

Kinds of settings, and the values that they take:

========== ================================= =============================================
sysctl     ``vm.swappiness``                 what ``/proc/sys`` shows
limits     ``DefaultLimitNOFILE``            ``soft:hard``
packages   a Debian package                  ``installed`` or ``absent``
holds      a Debian package                  ``hold`` or ``no``
swaps      a file or device of /proc/swaps   ``on``, ``on <priority>`` or ``off``
enabled    a unit                            UnitFileState: ``enabled``, ``disabled``, ...
units      a unit                            ``active`` or ``inactive``
========== ================================= =============================================

``pending`` holds what still has to be told to a daemon: a run that died between "file written" and "daemon told" leaves
it to the next one. ``merged`` holds what was added to files that belong to somebody else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text, paths, systemd
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import packages
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import drop_state, write_state

STORE = f"{paths.STATE}/settings"
SCHEMA_VERSION = 1
INFINITY = "infinity"
_SIZES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass
class Result:
    """``before`` and ``after`` hold what differs, ``actions`` what was done or, in check mode, would be."""

    before: dict[str, str] = field(default_factory=dict)
    after: dict[str, str] = field(default_factory=dict)
    actions: list[str] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        return bool(self.after)


@dataclass
class Record:
    """The values that the machine had before, by kind; what is still to be told; what was merged into foreign files."""

    values: dict[str, dict[str, str]] = field(default_factory=dict)
    pending: list[str] = field(default_factory=list)
    merged: dict[str, dict[str, Any]] = field(default_factory=dict)

    def of(self, kind: str) -> dict[str, str]:
        return self.values.get(kind, {})

    @property
    def empty(self) -> bool:
        return not any(self.values.values()) and not self.pending and not any(self.merged.values())

    def dump(self) -> bytes:
        values = {kind: values for kind, values in self.values.items() if values}
        document = {"schema": SCHEMA_VERSION, **values, "pending": self.pending, "merged": self.merged}
        return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()


def parse_limit(text: str) -> str:
    """``soft:hard`` in bytes or counts, from what systemd-system.conf(5) allows: ``64K``, ``1024:524288``, infinity.

    One value is both. Raises ValueError for anything else.
    """
    parts = str(text).split(":")
    if len(parts) > 2:
        raise ValueError(f"{text!r} is no limit")
    values = [_size(part.strip()) for part in parts]
    soft, hard = values[0], values[-1]
    if hard != INFINITY and (soft == INFINITY or int(soft) > int(hard)):
        raise ValueError(f"{text!r} has a soft limit above the hard one")
    return f"{soft}:{hard}"


def _size(text: str) -> str:
    match = re.fullmatch(r"([0-9]{1,19})([KMGT]?)", text)
    if text.lower() in (INFINITY, "unlimited") or text == "18446744073709551615":
        return INFINITY
    if not match:
        raise ValueError(f"{text!r} is no limit")
    return str(int(match.group(1)) * _SIZES[match.group(2)])


def record_path(name: str) -> str:
    return f"{STORE}/{name}.json"


@dataclass(frozen=True)
class Kind:
    """How values of a kind are read (what is not there is left out) and written, and where to look if that fails."""

    read: Callable[[Settings, set[str]], dict[str, str]]
    write: Callable[[Settings, Mapping[str, str]], None]
    remedy: str


class Settings:
    """One named group of settings."""

    def __init__(self, name: str, machine: Machine, *, check_mode: bool = False) -> None:
        self.path = record_path(name)
        self.machine = machine
        self.check_mode = check_mode
        self.result = Result()

    def bring(self, wanted: Mapping[str, Mapping[str, str]], kinds: Sequence[str]) -> Result:
        """Apply these values; what left the group since the last time gets its old value back. Other kinds stay as they
        are, on the machine and in the record."""
        record = self.load()
        now: dict[str, dict[str, str]] = {}
        target: dict[str, dict[str, str]] = {}
        full = Record(dict(record.values), record.pending, record.merged)
        final = Record(dict(record.values), record.pending, record.merged)
        for kind in kinds:
            names = _normal(kind, wanted.get(kind, {}))
            now[kind] = self._read(kind, {*names, *record.of(kind)})
            missing = sorted(set(names) - set(now[kind]))
            if missing and self.check_mode:  # a package that the real run installs first brings it
                now[kind].update({name: names[name] for name in missing})
            elif missing:
                raise SparkError("there is no such thing on this node", f"{kind} {' '.join(missing)}", "Check its name")
            # What somebody removed since (a package, a swap file) cannot come back and is forgotten.
            leaving = {name: value for name, value in record.of(kind).items() if name in now[kind]}
            target[kind] = {**leaving, **names}
            full.values[kind] = {**{name: now[kind][name] for name in names}, **record.of(kind)}
            final.values[kind] = {name: full.values[kind][name] for name in names}
            self._note(now[kind], target[kind])
        if self.check_mode:
            return self.result
        self.store(full, record)
        for kind in kinds:
            differing = {name: value for name, value in target[kind].items() if now[kind][name] != value}
            if differing:
                KINDS[kind].write(self, differing)
                self._verify(kind, {name: differing[name] for name in differing if name in wanted.get(kind, {})})
        self.store(final, full)
        return self.result

    def remember(self, wanted: Mapping[str, Mapping[str, str]], kinds: Sequence[str]) -> None:
        """Record what :meth:`bring` would replace, and change nothing.

        Before files are written that count at the next boot: a machine that goes down after them comes back with our
        values, which are not the ones that it had.
        """
        if self.check_mode:
            return
        record = self.load()
        full = Record(dict(record.values), record.pending, record.merged)
        for kind in kinds:
            unknown = set(wanted.get(kind, {})) - set(record.of(kind))
            if unknown:
                full.values[kind] = {**self._read(kind, unknown), **record.of(kind)}
        self.store(full, record)

    def _note(self, now: Mapping[str, str], target: Mapping[str, str]) -> None:
        for key in sorted(target):
            if now[key] != target[key]:
                self.result.before[key] = now[key]
                self.result.after[key] = target[key]
                self.result.actions.append(f"{key}: {now[key]} -> {target[key]}")

    def _read(self, kind: str, names: set[str]) -> dict[str, str]:
        return KINDS[kind].read(self, names) if names else {}

    def _verify(self, kind: str, wanted: Mapping[str, str]) -> None:
        after = self._read(kind, set(wanted))
        for name, value in wanted.items():
            if after.get(name) != value:
                found = f"it was told to be {value} but is {after.get(name, 'gone')}"
                raise SparkError(found, f"{kind} {name}", KINDS[kind].remedy)

    # -- the record

    def load(self) -> Record:
        """What is known of the machine as it was."""
        text = self.machine.content(self.path)
        if text is None:
            return Record()
        with json_text.Reading(
            "the record of the earlier settings is damaged",
            self.path,
            "Restore it from a backup; or, if they do not matter, delete it and run again",
        ):
            document = json_text.mapping(text)
            if document["schema"] != SCHEMA_VERSION:
                raise ValueError(f"schema {document['schema']!r}")
            values = {kind: {str(k): str(v) for k, v in document.get(kind, {}).items()} for kind in KINDS}
            merged = {str(path): dict(keys) for path, keys in document.get("merged", {}).items()}
            pending = [str(action) for action in document.get("pending", [])]
            return Record({kind: found for kind, found in values.items() if found}, pending, merged)

    def store(self, record: Record, known: Record) -> None:
        """Write ``record`` where it differs from what is on disk; an empty one leaves no file."""
        if record.empty:
            if not known.empty:
                drop_state(self.path, root=self.machine.root)
        elif record.dump() != known.dump():
            write_state(self.path, record.dump(), root=self.machine.root)

    # -- sysctl

    def _file(self, key: str) -> Path:
        return Path(self.machine.real(f"/proc/sys/{key.replace('.', '/')}"))

    def read_sysctl(self, names: set[str]) -> dict[str, str]:
        found = {}
        for key in names:
            try:
                found[key] = " ".join(self._file(key).read_text(encoding="ascii", errors="replace").split())
            except FileNotFoundError as exc:
                raise SparkError("this kernel has no such setting", f"sysctl {key}", "Check its name") from exc
            except OSError as exc:
                raise SparkError(f"cannot read: {exc.strerror}", f"sysctl {key}", "Run with become: true") from exc
        return found

    def write_sysctl(self, values: Mapping[str, str]) -> None:
        for key in sorted(values):
            try:
                self._file(key).write_text(f"{values[key]}\n", encoding="ascii")
            except OSError as exc:
                raise SparkError(
                    f"cannot set it to {values[key]!r}: {exc.strerror}",
                    f"sysctl {key}",
                    "Run with become: true; inside a container the kernel's settings may belong to the host",
                ) from exc

    # -- systemd

    def read_limits(self, names: set[str]) -> dict[str, str]:
        values = systemd.manager(
            self.machine.runner, [part for name in sorted(names) for part in (name, f"{name}Soft")]
        )
        return {name: parse_limit(f"{values[f'{name}Soft']}:{values[name]}") for name in names}

    def write_limits(self, values: Mapping[str, str]) -> None:
        # A reload reads system.conf.d again on current systemd; only older ones need to be executed anew.
        for verb in ("daemon-reload", "daemon-reexec"):
            self._systemctl(verb)
            if self.read_limits(set(values)) == values:
                return

    def _systemctl(self, *words: str) -> None:
        self._tool("systemctl", *words)
        self.result.actions.append(f"systemctl {' '.join(words)}")

    def read_units(self, names: set[str]) -> dict[str, str]:
        units = self.machine.units(sorted(names)).values()
        return {unit.name: "inactive" if unit.stopped else "active" for unit in units if unit.load != "not-found"}

    def read_enabled(self, names: set[str]) -> dict[str, str]:
        units = self.machine.units(sorted(names)).values()
        return {unit.name: unit.enabled for unit in units if unit.load != "not-found"}

    def write_units(self, values: Mapping[str, str]) -> None:
        verbs = {"enabled": "enable", "active": "start", "inactive": "stop"}
        for name in sorted(values):
            self._systemctl(verbs.get(values[name], "disable"), name)

    # -- packages and swap

    def read_packages(self, names: set[str]) -> dict[str, str]:
        found = packages.installed(self.machine, sorted(names))
        return {name: "installed" if name in found else "absent" for name in names}

    def write_packages(self, values: Mapping[str, str]) -> None:
        for value, act in (("absent", packages.purge), ("installed", packages.install)):
            names = sorted(name for name, wanted in values.items() if wanted == value)
            if names:
                act(self.machine, names)

    def read_holds(self, names: set[str]) -> dict[str, str]:
        held = set(self._tool("apt-mark", "showhold").out.split())
        return {name: "hold" if name in held else "no" for name in names}

    def write_holds(self, values: Mapping[str, str]) -> None:
        for value, verb in (("no", "unhold"), ("hold", "hold")):
            names = sorted(name for name, wanted in values.items() if wanted == value)
            if names:
                self._tool("apt-mark", verb, *names)

    def read_swaps(self, names: set[str]) -> dict[str, str]:
        active = {swap.name: swap for swap in read_swaps(self.machine.root)}
        found = {}
        for name in names:
            if name in active:
                priority = active[name].priority
                found[name] = f"on {priority}" if priority >= 0 else "on"  # negative ones are the kernel's choice
            elif self.machine.exists(name):
                found[name] = "off"
        return found

    def write_swaps(self, values: Mapping[str, str]) -> None:
        for name in sorted(values):
            word, _blank, priority = values[name].partition(" ")
            option = ["-p", priority] if priority else []
            self._tool(*(["swapoff", name] if word == "off" else ["swapon", *option, name]))

    def _tool(self, *argv: str) -> Completed:
        done = self.machine.runner(argv)
        if done.rc != 0:
            raise SparkError(f"{' '.join(argv[:2])} failed ({done.complaint})", " ".join(argv[2:]), _TOOLS[argv[0]])
        return done


KINDS: Mapping[str, Kind] = {
    "packages": Kind(Settings.read_packages, Settings.write_packages, "Look at /var/log/apt/term.log"),
    "sysctl": Kind(Settings.read_sysctl, Settings.write_sysctl, "Choose a value in its range"),
    "limits": Kind(
        Settings.read_limits,
        Settings.write_limits,
        "Another file overrides ours: systemd-analyze cat-config systemd/system.conf",
    ),
    "holds": Kind(Settings.read_holds, Settings.write_holds, "Look at apt-mark showhold"),
    "swaps": Kind(Settings.read_swaps, Settings.write_swaps, "Look at swapon --show and dmesg"),
    "enabled": Kind(
        Settings.read_enabled,
        Settings.write_units,
        "Look at systemctl status; a unit without [Install] cannot be enabled",
    ),
    "units": Kind(Settings.read_units, Settings.write_units, "Look at systemctl status and journalctl of the unit"),
}
_TOOLS = {
    "systemctl": "Look at journalctl -b",
    "apt-mark": "Wait until no other apt or dpkg runs, then run again",
    "swapoff": "Free some memory (stop the engine), then run again",
    "swapon": "Check the file or device (swapon --show, dmesg)",
}


def _normal(kind: str, values: Mapping[str, str]) -> dict[str, str]:
    return {name: parse_limit(value) for name, value in values.items()} if kind == "limits" else dict(values)


@dataclass(frozen=True)
class Swap:
    """One line of /proc/swaps; sizes in bytes."""

    name: str
    size: int
    used: int
    priority: int


def parse_swaps(text: str) -> list[Swap]:
    """``/proc/swaps``: a heading, then ``name type size used priority``, sizes in KiB, blanks in names as ``\\040``."""
    found = []
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) == 5 and all(re.fullmatch(r"-?[0-9]{1,18}", word) for word in words[2:]):
            name = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), words[0])
            found.append(Swap(name, int(words[2]) * 1024, int(words[3]) * 1024, int(words[4])))
    return found


def read_swaps(root: str = "/") -> list[Swap]:
    try:
        return parse_swaps((Path(root) / "proc/swaps").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return []
