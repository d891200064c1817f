# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text, paths, systemd
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed, Runner, run
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import packages
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import drop_state, write_state

STORE = f"{paths.STATE}/settings"
SCHEMA_VERSION = 1
INFINITY = "infinity"

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_KEY = re.compile(r"[A-Za-z0-9_-]+([./][A-Za-z0-9_:@-]+)+")
_LIMIT = re.compile(r"DefaultLimit[A-Z]+")
_UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]+\.[a-z]+")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.:-]*")
KINDS = ("packages", "sysctl", "limits", "holds", "swaps", "enabled", "units")
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

    @property
    def diff(self) -> dict[str, Any]:
        return {"before": self.before, "after": self.after}


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
        document: dict[str, Any] = {"schema": SCHEMA_VERSION, "sysctl": self.of("sysctl"), "limits": self.of("limits")}
        document.update({kind: values for kind, values in self.values.items() if values})
        if self.pending:
            document["pending"] = self.pending
        if self.merged:
            document["merged"] = self.merged
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


class Settings:
    """One named group of settings. ``root`` and ``runner`` are replaced by tests."""

    def __init__(self, name: str, *, check_mode: bool = False, runner: Runner = run, root: str = "/") -> None:
        if not _NAME.fullmatch(name):
            raise SparkError(f"{name!r} is no name for settings", "", "Use lower-case letters, digits, '_' and '-'")
        self.path = record_path(name)
        self.check_mode = check_mode
        self.runner = runner
        self.root = root
        self.result = Result()

    def apply(self, sysctl: Mapping[str, Any], limits: Mapping[str, Any], **others: Mapping[str, str]) -> Result:
        """Apply these values; what left the group since the last time gets its old value back.

        ``others`` are values of the further kinds, see the module's text.
        """
        return self.bring({"sysctl": sysctl, "limits": limits, **others}, KINDS)

    def remove(self) -> Result:
        """Bring back what the machine had before. A group that does not exist is nothing to do."""
        return self.bring({}, KINDS)

    def bring(self, wanted: Mapping[str, Mapping[str, Any]], kinds: Sequence[str]) -> Result:
        """:meth:`apply` for the named kinds only; all others stay as they are, on the machine and in the record."""
        checked = {kind: _CHECKS[kind](wanted.get(kind, {})) for kind in kinds}
        record = self._load()
        now: dict[str, dict[str, str]] = {}
        target: dict[str, dict[str, str]] = {}
        full = Record(dict(record.values), record.pending, record.merged)
        final = Record(dict(record.values), record.pending, record.merged)
        for kind in kinds:
            names = checked[kind]
            now[kind] = self._read_kind(kind, {*names, *record.of(kind)})
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
            if kind == "limits":
                self._bring_limits(now[kind], target[kind], set(checked[kind]))
            elif differing:
                self._write_kind(kind, differing)
                self._verify(kind, differing, set(checked[kind]))
        self.store(final, full)
        return self.result

    def remember(self, wanted: Mapping[str, Mapping[str, Any]], kinds: Sequence[str]) -> None:
        """Record what :meth:`bring` would replace, and change nothing.

        Before files are written that count at the next boot: a machine that goes down after them comes back with our
        values, which are not the ones that it had.
        """
        if self.check_mode:
            return
        record = self._load()
        full = Record(dict(record.values), record.pending, record.merged)
        for kind in kinds:
            unknown = set(_CHECKS[kind](wanted.get(kind, {}))) - set(record.of(kind))
            if unknown:
                full.values[kind] = {**self._read_kind(kind, unknown), **record.of(kind)}
        self.store(full, record)

    def _note(self, now: Mapping[str, str], target: Mapping[str, str]) -> None:
        for key in sorted(target):
            if now[key] != target[key]:
                self.result.before[key] = now[key]
                self.result.after[key] = target[key]
                self.result.actions.append(f"{key}: {now[key]} -> {target[key]}")

    def _verify(self, kind: str, written: Mapping[str, str], wanted: set[str]) -> None:
        after = self._read_kind(kind, set(written))
        for name, value in written.items():
            if name in wanted and after.get(name) != value:
                raise SparkError(
                    f"it was told to be {value} but is {after.get(name, 'gone')}", f"{kind} {name}", _REMEDY[kind]
                )

    def _read_kind(self, kind: str, names: set[str]) -> dict[str, str]:
        if not names:
            return {}
        if kind == "sysctl":
            return {key: self._read(key) for key in names}
        if kind == "limits":
            return self._limits(names)
        if kind == "packages":
            done = self.runner(["dpkg-query", "-W", "-f", "${Package} ${db:Status-Abbrev}\\n", *sorted(names)])
            found = {line.split()[0] for line in done.out.splitlines() if line.split()[1:2] in (["ii"], ["hi"])}
            return {name: "installed" if name in found else "absent" for name in names}
        if kind == "holds":
            held = set(self._tool("apt-mark", "showhold").out.split())
            return {name: "hold" if name in held else "no" for name in names}
        if kind == "swaps":
            return self._swaps(names)
        return self._unit_states(kind, names)

    def _write_kind(self, kind: str, values: Mapping[str, str]) -> None:
        if kind == "sysctl":
            for key in sorted(values):
                self._write(key, values[key])
        elif kind == "packages":
            self._packages(values)
        elif kind == "holds":
            for value, verb in (("no", "unhold"), ("hold", "hold")):
                names = sorted(name for name, wanted in values.items() if wanted == value)
                if names:
                    self._tool("apt-mark", verb, *names)
        elif kind == "swaps":
            for name in sorted(values):
                word, _blank, priority = values[name].partition(" ")
                option = ["-p", priority] if priority else []
                self._tool(*(["swapoff", name] if word == "off" else ["swapon", *option, name]))
        elif kind == "enabled":
            for name in sorted(values):
                self._systemctl("enable" if values[name] == "enabled" else "disable", name)
        else:
            for name in sorted(values):
                self._systemctl("start" if values[name] == "active" else "stop", name)

    # -- the record

    def load(self) -> Record:
        """What is known of the machine as it was."""
        return self._load()

    def _load(self) -> Record:
        try:
            text = (Path(self.root) / self.path[1:]).read_bytes()
        except FileNotFoundError:
            return Record()
        except OSError as exc:
            raise SparkError(f"cannot read: {exc.strerror}", self.path, "Run with become: true") from exc
        with json_text.Reading(
            "the record of the earlier settings is damaged",
            self.path,
            "Restore it from a backup; or, if they do not matter, delete it and run again",
        ):
            document = json_text.mapping(text)
            if document["schema"] != SCHEMA_VERSION:
                raise ValueError(f"schema {document['schema']!r}")
            values = {kind: {str(k): str(v) for k, v in document.get(kind, {}).items()} for kind in KINDS[3:]}
            values["packages"] = {str(k): str(v) for k, v in document.get("packages", {}).items()}
            values["sysctl"] = {_key(key): str(value) for key, value in document["sysctl"].items()}
            values["limits"] = {str(name): parse_limit(value) for name, value in document["limits"].items()}
            merged = {str(path): dict(keys) for path, keys in document.get("merged", {}).items()}
            return Record(
                {kind: found for kind, found in values.items() if found},
                [str(action) for action in document.get("pending", [])],
                merged,
            )

    def store(self, record: Record, known: Record) -> None:
        """Write ``record`` where it differs from what is on disk; an empty one leaves no file."""
        if record.empty:
            if not known.empty:
                drop_state(self.path, root=self.root)
        elif record.dump() != known.dump():
            write_state(self.path, record.dump(), root=self.root)

    # -- sysctl

    def _file(self, key: str) -> Path:
        return Path(self.root) / "proc/sys" / key.replace(".", "/")

    def _read(self, key: str) -> str:
        try:
            return " ".join(self._file(key).read_text(encoding="ascii", errors="replace").split())
        except FileNotFoundError as exc:
            raise SparkError("this kernel has no such setting", f"sysctl {key}", "Check its name") from exc
        except OSError as exc:
            raise SparkError(f"cannot read: {exc.strerror}", f"sysctl {key}", "Run with become: true") from exc

    def _write(self, key: str, value: str) -> None:
        try:
            self._file(key).write_text(f"{value}\n", encoding="ascii")
        except OSError as exc:
            raise SparkError(
                f"cannot set it to {value!r}: {exc.strerror}",
                f"sysctl {key}",
                "Run with become: true; inside a container the kernel's settings may belong to the host",
            ) from exc
        if self._read(key) != value:
            raise SparkError(
                f"the kernel took {value!r} but shows {self._read(key)!r}",
                f"sysctl {key}",
                "Choose a value in its range",
            )

    # -- systemd

    def _limits(self, names: set[str]) -> dict[str, str]:
        if not names:
            return {}
        ordered = sorted(names)
        values = systemd.manager(self.runner, [part for name in ordered for part in (name, f"{name}Soft")])
        found = {}
        for name in ordered:
            try:
                found[name] = parse_limit(f"{values[f'{name}Soft']}:{values[name]}")
            except (KeyError, ValueError) as exc:
                raise SparkError(f"systemd does not know the limit ({exc})", name, "Check its name") from exc
        return found

    def _bring_limits(self, now: Mapping[str, str], target: Mapping[str, str], wanted: set[str]) -> None:
        current = dict(now)
        # A reload reads system.conf.d again on current systemd; only older ones need to be executed anew.
        for verb in ("daemon-reload", "daemon-reexec"):
            if current == target:
                return
            self._systemctl(verb)
            current = self._limits(set(target))
        for name in sorted(wanted):
            if current[name] != target[name]:
                raise SparkError(
                    f"systemd still has {current[name]}, expected {target[name]}",
                    name,
                    "Another file overrides ours: systemd-analyze cat-config systemd/system.conf",
                )

    def _systemctl(self, *words: str) -> Completed:
        done = self._tool("systemctl", *words)
        self.result.actions.append(f"systemctl {' '.join(words)}")
        return done

    def _unit_states(self, kind: str, names: set[str]) -> dict[str, str]:
        units = systemd.units(self.runner, sorted(names)).values()
        if kind == "enabled":
            return {unit.name: unit.enabled for unit in units if unit.load != "not-found"}
        return {unit.name: "inactive" if unit.stopped else "active" for unit in units if unit.load != "not-found"}

    def _packages(self, values: Mapping[str, str]) -> None:
        machine = Machine(self.root, self.runner)
        for value, act in (("absent", packages.purge), ("installed", packages.install)):
            names = sorted(name for name, wanted in values.items() if wanted == value)
            if names:
                act(machine, names)

    def _swaps(self, names: set[str]) -> dict[str, str]:
        active = {swap.name: swap for swap in read_swaps(self.root)}
        found = {}
        for name in names:
            if name in active:
                priority = active[name].priority
                found[name] = f"on {priority}" if priority >= 0 else "on"  # negative ones are the kernel's choice
            elif (Path(self.root) / name.lstrip("/")).exists():
                found[name] = "off"
        return found

    def _tool(self, *argv: str) -> Completed:
        done = self.runner(argv)
        if done.rc != 0:
            name = argv[0]
            where = "systemd" if name == "systemctl" else " ".join(argv[1:][-3:])
            verb = f" {argv[1]}" if name == "systemctl" else ""
            raise SparkError(
                f"{name}{verb} failed ({done.complaint})", where, _TOOLS.get(name, "Look at journalctl -b")
            )
        return done


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


_TOOLS = {
    "systemctl": "Look at journalctl -b",
    "apt-mark": "Wait until no other apt or dpkg runs, then run again",
    "swapoff": "Free some memory (stop the engine), then run again",
    "swapon": "Check the file or device (swapon --show, dmesg)",
}
_REMEDY = {
    "packages": "Look at /var/log/apt/term.log",
    "holds": "Look at apt-mark showhold",
    "swaps": "Look at swapon --show and dmesg",
    "enabled": "Look at systemctl status; a unit without [Install] cannot be enabled",
    "units": "Look at systemctl status and journalctl of the unit",
    "sysctl": "Choose a value in its range",
}


def _sysctls(values: Mapping[str, Any]) -> dict[str, str]:
    return {_key(key): _value(key, value) for key, value in values.items()}


def _manager_limits(values: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for name, value in values.items():
        if not _LIMIT.fullmatch(name):
            raise SparkError(f"{name!r} is no limit of systemd", "", "They are named DefaultLimitNOFILE and so on")
        try:
            found[name] = parse_limit(str(value))
        except ValueError as exc:
            raise SparkError(str(exc), name, "Write infinity, a number, or soft:hard") from exc
    return found


def _named(pattern: re.Pattern[str], choices: Iterable[str]) -> Any:
    allowed = frozenset(choices)

    def check(values: Mapping[str, Any]) -> dict[str, str]:
        for name, value in values.items():
            if not pattern.fullmatch(name) or value not in allowed:
                raise SparkError(f"{value!r} is no state for {name!r}", "", f"One of {', '.join(sorted(allowed))}")
        return dict(values)

    return check


_CHECKS: Mapping[str, Any] = {
    "sysctl": _sysctls,
    "limits": _manager_limits,
    "packages": _named(_PACKAGE, ("installed", "absent")),
    "holds": _named(_PACKAGE, ("hold", "no")),
    "swaps": _named(re.compile(r"/.*"), ("on", "off")),
    "enabled": _named(_UNIT, ("enabled", "disabled")),
    "units": _named(_UNIT, ("active", "inactive")),
}


def _key(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise SparkError(f"{key!r} is no sysctl", "", "Write it as vm.swappiness")
    return key.replace("/", ".")


def _value(key: str, value: Any) -> str:
    text = " ".join(str(value).split())
    if isinstance(value, (bool, Mapping, list)) or not text:
        raise SparkError(f"{value!r} is no value", f"sysctl {key}", "Write a number or a text")
    return text
