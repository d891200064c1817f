# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Bring kernel and systemd into the state that files on disk already describe, and remember what was there before.

Files alone take effect at the next boot. What the running system had is kept in
``/var/lib/sparkmatrix/settings/<name>.json``, written before the first change::

    {"schema": 1, "sysctl": {"vm.swappiness": "60"}, "limits": {"DefaultLimitNOFILE": "1024:524288"}}
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._command import Completed, Runner, run
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed_files import drop_state, write_state

STATE_DIR = "/var/lib/sparkmatrix/settings"
SCHEMA_VERSION = 1
INFINITY = "infinity"

_NAME = re.compile(r"^[a-z0-9][a-z0-9_-]{0,63}$")
_KEY = re.compile(r"^[A-Za-z0-9_-]+([./][A-Za-z0-9_:@-]+)+$")
_LIMIT = re.compile(r"^DefaultLimit[A-Z]+$")
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
    """The values that the machine had before."""

    sysctl: dict[str, str] = field(default_factory=dict)
    limits: dict[str, str] = field(default_factory=dict)

    def dump(self) -> bytes:
        document = {"schema": SCHEMA_VERSION, "sysctl": self.sysctl, "limits": self.limits}
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
    match = re.match(r"^([0-9]{1,19})([KMGT]?)$", text)
    if text.lower() in (INFINITY, "unlimited") or text == "18446744073709551615":
        return INFINITY
    if not match:
        raise ValueError(f"{text!r} is no limit")
    return str(int(match.group(1)) * _SIZES[match.group(2)])


class Settings:
    """One named group of settings. ``root`` and ``runner`` are replaced by tests."""

    def __init__(self, name: str, *, check_mode: bool = False, runner: Runner = run, root: str = "/") -> None:
        if not _NAME.match(name):
            raise SparkError(f"{name!r} is no name for settings", "", "Use lower-case letters, digits, '_' and '-'")
        self.path = f"{STATE_DIR}/{name}.json"
        self.check_mode = check_mode
        self.runner = runner
        self.root = root
        self.result = Result()

    def apply(self, sysctl: Mapping[str, Any], limits: Mapping[str, Any]) -> Result:
        """Bring these values into force; what left the group since the last time gets its old value back."""
        wanted_sysctl = {_key(key): _value(key, value) for key, value in sysctl.items()}
        wanted_limits = {}
        for name, value in limits.items():
            if not _LIMIT.match(name):
                raise SparkError(f"{name!r} is no limit of systemd", "", "They are named DefaultLimitNOFILE and so on")
            try:
                wanted_limits[name] = parse_limit(str(value))
            except ValueError as exc:
                raise SparkError(str(exc), name, "Write infinity, a number, or soft:hard") from exc
        record = self._load()
        now_sysctl = {key: self._read(key) for key in {*wanted_sysctl, *record.sysctl}}
        now_limits = self._limits({*wanted_limits, *record.limits})

        full = Record(
            {**{key: now_sysctl[key] for key in wanted_sysctl}, **record.sysctl},
            {**{name: now_limits[name] for name in wanted_limits}, **record.limits},
        )
        final = Record(
            {key: full.sysctl[key] for key in wanted_sysctl}, {name: full.limits[name] for name in wanted_limits}
        )
        target_sysctl = {**record.sysctl, **wanted_sysctl}
        target_limits = {**record.limits, **wanted_limits}
        self._note(now_sysctl, target_sysctl)
        self._note(now_limits, target_limits)
        if self.check_mode:
            return self.result
        self._store(full, record)
        for key in sorted(target_sysctl):
            if now_sysctl[key] != target_sysctl[key]:
                self._write(key, target_sysctl[key])
        self._bring_limits(now_limits, target_limits, set(wanted_limits))
        self._store(final, full)
        return self.result

    def remove(self) -> Result:
        """Bring back what the machine had before. A group that does not exist is nothing to do."""
        return self.apply({}, {})

    def _note(self, now: Mapping[str, str], target: Mapping[str, str]) -> None:
        for key in sorted(target):
            if now[key] != target[key]:
                self.result.before[key] = now[key]
                self.result.after[key] = target[key]
                self.result.actions.append(f"{key}: {now[key]} -> {target[key]}")

    # -- the record

    def _load(self) -> Record:
        try:
            text = (Path(self.root) / self.path[1:]).read_text(encoding="utf-8")
        except FileNotFoundError:
            return Record()
        except OSError as exc:
            raise SparkError(f"cannot read: {exc.strerror}", self.path, "Run with become: true") from exc
        try:
            document = json.loads(text)
            if document["schema"] != SCHEMA_VERSION:
                raise ValueError(f"schema {document['schema']!r}")
            return Record(
                {_key(key): str(value) for key, value in document["sysctl"].items()},
                {str(name): parse_limit(value) for name, value in document["limits"].items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError, SparkError) as exc:
            raise SparkError(
                f"the record of the earlier settings is damaged ({exc})",
                self.path,
                "Restore it from a backup; or, if they do not matter, delete it and run again",
            ) from exc

    def _store(self, record: Record, known: Record) -> None:
        if record == known:
            return
        if record == Record():
            drop_state(self.path, root=self.root)
        else:
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
        properties = ",".join(part for name in ordered for part in (name, f"{name}Soft"))
        done = self.runner(["systemctl", "show", f"--property={properties}"])
        values = dict(line.partition("=")[::2] for line in done.out.splitlines())
        if done.rc != 0:
            raise SparkError(
                f"systemctl show failed ({done.complaint})", "systemd", "This role needs systemd as the init system"
            )
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

    def _systemctl(self, verb: str) -> Completed:
        done = self.runner(["systemctl", verb])
        if done.rc != 0:
            raise SparkError(f"systemctl {verb} failed ({done.complaint})", "systemd", "Look at journalctl -b")
        self.result.actions.append(f"systemctl {verb}")
        return done


def _key(key: str) -> str:
    if not _KEY.match(key):
        raise SparkError(f"{key!r} is no sysctl", "", "Write it as vm.swappiness")
    return key.replace("/", ".")


def _value(key: str, value: Any) -> str:
    text = " ".join(str(value).split())
    if isinstance(value, (bool, Mapping, list)) or not text:
        raise SparkError(f"{value!r} is no value", f"sysctl {key}", "Write a number or a text")
    return text
