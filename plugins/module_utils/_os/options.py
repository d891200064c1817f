# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The options of the role ``os_stabilization``, typed. Names are those of the role's variables without its prefix."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding, SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.settings import parse_limit

_TRUE = frozenset({"y", "yes", "on", "1", "true", "t"})
_FALSE = frozenset({"n", "no", "off", "0", "false", "f"})
_UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]+\.(service|slice)")
_SYSCTL = re.compile(r"(kernel|vm)(\.[A-Za-z0-9_-]+)+")
_MINIMUM = re.compile(r"(>=)?\s*-?[0-9]{1,18}")
_PATTERN = re.compile(r"[a-z0-9*?\[\]+.:-]+")

# Several services on a node have names of their own; all of them are stopped together.
WATCHED = ("sparkmatrix-engine.service", "sparkmatrix-engine-*.service", "sparkmatrix-ray.service")
PROTECTED: Mapping[str, int] = {"ssh.service": 64, "systemd-journald.service": 64, "user.slice": 512}
KERNEL_AND_DRIVER = (
    "linux-image-*",
    "linux-headers-*",
    "linux-modules-*",
    "linux-nvidia*",
    "nvidia-*",
    "libnvidia-*",
    "xserver-xorg-video-nvidia*",
)


@dataclass(frozen=True)
class Options:
    """What the user wants. The defaults are those of ``roles/os_stabilization/defaults/main.yml``."""

    headless: bool = True
    headless_when: str = "boot"  # boot, idle, now
    swap_policy: str = "swappiness"  # keep, swappiness, off
    swappiness: int = 10
    limits: bool = True
    memlock: str = "unlimited"  # or KiB
    nofile: str = "65536:524288"
    docker_limits: bool = True
    docker_restart: str = "idle"  # never, idle, always
    memory_min: bool = True
    memory_min_mib: Mapping[str, int] = field(default_factory=lambda: dict(PROTECTED))
    earlyoom: str = "off"  # off, prefer_engine, avoid_engine
    earlyoom_install: bool = False
    earlyoom_percent: int = 3
    watchdog: bool = True
    watchdog_available_mib: int = 1024
    watchdog_seconds: int = 5
    watchdog_units: tuple[str, ...] = WATCHED
    hold: bool = False
    hold_packages: tuple[str, ...] = KERNEL_AND_DRIVER
    known_good: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    upgrades: str = "drivers"  # keep, drivers, off
    power: bool = True
    gpu_clock_max_mhz: int = 0  # 0: as it is
    sysctl: Mapping[str, str] = field(default_factory=lambda: {"vm.max_map_count": ">=262144"})
    logs: bool = True
    logs_journal_mib: int = 4096
    logs_docker_mib: int = 100
    logs_docker_files: int = 3
    time_sync: bool = True

    @property
    def nofile_pair(self) -> tuple[str, str]:
        soft, _colon, hard = self.nofile.partition(":")
        return soft, hard or soft

    @property
    def memlock_bytes(self) -> int | None:
        """``None``: unlimited."""
        return None if self.memlock == "unlimited" else int(self.memlock) * 1024


class _BadError(ValueError):
    """What is wrong with one value, as a sentence without its subject."""


def _bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise _BadError("is neither true nor false")


def _number(low: int, high: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        text = str(value).strip()
        if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,12}", text) or not low <= int(text) <= high:
            raise _BadError(f"is no number from {low} to {high}")
        return int(text)

    return check


def _clock(value: Any) -> int:
    found = _number(0, 5000)(value)
    if 0 < found < 300:
        raise _BadError("is below 300 MHz, at which nothing serves; 0 leaves the clock alone")
    return found


def _choice(*choices: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        # YAML reads off without quotes as false.
        word = "off" if "off" in choices and str(value).strip().lower() in _FALSE else str(value).strip()
        if word not in choices:
            raise _BadError(f"is none of {', '.join(choices)}")
        return word

    return check


def _memlock(value: Any) -> str:
    word = str(value).strip()
    if word != "unlimited" and not re.fullmatch(r"[1-9][0-9]{0,14}", word):
        raise _BadError("is neither unlimited nor a number of KiB")
    return word


def _nofile(value: Any) -> str:
    text = str(value).replace(" ", "")
    if not re.fullmatch(r"[1-9][0-9]{0,9}(:[1-9][0-9]{0,9})?", text):
        raise _BadError("is no number and no soft:hard")
    try:
        parse_limit(text)
    except ValueError as exc:
        raise _BadError("has a soft limit above the hard one") from exc
    return text


def _mapping(key: re.Pattern[str], what: str, convert: Callable[[Any], Any]) -> Callable[[Any], Mapping[str, Any]]:
    def check(value: Any) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise _BadError("is no mapping")
        found = {}
        for name, item in value.items():
            if not key.fullmatch(str(name)):
                raise _BadError(f"has the key {name!r}, which is no {what}")
            try:
                found[str(name)] = convert(item)
            except _BadError as exc:
                raise _BadError(f"has {item!r} for {name}, which {exc}") from exc
        return found

    return check


def _list(pattern: re.Pattern[str], what: str) -> Callable[[Any], tuple[str, ...]]:
    def check(value: Any) -> tuple[str, ...]:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)):
            raise _BadError("is no list")
        for item in items:
            if not pattern.fullmatch(str(item)):
                raise _BadError(f"has {item!r}, which is no {what}")
        return tuple(str(item) for item in items)

    return check


def _minimum(value: Any) -> str:
    text = str(value).replace(" ", "")
    if isinstance(value, bool) or not _MINIMUM.fullmatch(text):
        raise _BadError('is neither a number nor ">=number"')
    return text


_VERSION = re.compile(r"[A-Za-z0-9*?\[\].+:~_-]+")

CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "headless": _bool,
    "headless_when": _choice("boot", "idle", "now"),
    "swap_policy": _choice("keep", "swappiness", "off"),
    "swappiness": _number(0, 200),
    "limits": _bool,
    "memlock": _memlock,
    "nofile": _nofile,
    "docker_limits": _bool,
    "docker_restart": _choice("never", "idle", "always"),
    "memory_min": _bool,
    "memory_min_mib": _mapping(_UNIT, "service or slice", _number(0, 1024 * 1024)),
    "earlyoom": _choice("off", "prefer_engine", "avoid_engine"),
    "earlyoom_install": _bool,
    "earlyoom_percent": _number(1, 50),
    "watchdog": _bool,
    "watchdog_available_mib": _number(64, 1024 * 1024),
    "watchdog_seconds": _number(1, 600),
    "watchdog_units": _list(re.compile(r"[A-Za-z0-9:_.\\@*-]+\.service"), "service"),
    "hold": _bool,
    "hold_packages": _list(_PATTERN, "name of packages"),
    "known_good": _mapping(_PATTERN, "name of packages", _list(_VERSION, "version")),
    "upgrades": _choice("keep", "drivers", "off"),
    "power": _bool,
    "gpu_clock_max_mhz": _clock,
    "sysctl": _mapping(_SYSCTL, "sysctl below kernel. or vm.", _minimum),
    "logs": _bool,
    "logs_journal_mib": _number(64, 1024 * 1024),
    "logs_docker_mib": _number(1, 1024 * 1024),
    "logs_docker_files": _number(1, 1000),
    "time_sync": _bool,
}


def parse(values: Mapping[str, Any], prefix: str = "os_stabilization_") -> Options:
    """Check and convert all values; what is not given has its default.

    Raises :class:`SparkError` that names every wrong value, not only the first.
    """
    found: dict[str, Any] = {}
    findings: list[Finding] = []
    for name, value in values.items():
        if name not in CHECKS:
            findings.append(Finding("", f"{prefix}{name} is no option", f"Known are: {', '.join(CHECKS)}"))
            continue
        try:
            found[name] = CHECKS[name](value)
        except _BadError as exc:
            findings.append(Finding("", f"{prefix}{name} is {value!r}, which {exc}", "See the role's README"))
    if "vm.swappiness" in found.get("sysctl", {}):
        findings.append(
            Finding(
                "", f"{prefix}sysctl sets vm.swappiness", f"Set {prefix}swappiness instead, which has its own switch"
            )
        )
    if found.get("watchdog", True) and found.get("watchdog_units") == ():
        findings.append(
            Finding("", f"{prefix}watchdog_units is empty", f"Name a service, or set {prefix}watchdog: false")
        )
    if findings:
        raise SparkError("\n  ".join(["the options are wrong:", *(str(finding) for finding in findings)]))
    return Options(**found)


NAMES = tuple(item.name for item in fields(Options))
