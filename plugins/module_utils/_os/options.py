# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The options of the role ``os_stabilization``, typed. Names are those of the role's variables without its prefix."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.document import one_of
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.settings import parse_limit

PREFIX = "os_stabilization_"
PROTECTED: Mapping[str, int] = {"ssh.service": 64, "systemd-journald.service": 64, "user.slice": 512}


def _like(pattern: str, what: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        text = str(value).replace(" ", "")
        if isinstance(value, bool) or not re.fullmatch(pattern, text):
            raise ValueError(f"is {value!r:.60}, which is {what}")
        return text

    return parse


def _or_off(*choices: str) -> Callable[[Any], str]:
    """YAML reads off without quotes as false."""

    def parse(value: Any) -> str:
        word = "off" if str(value).lower() in ("false", "no") else str(value)
        if word not in (*choices, "off"):
            raise ValueError(f"is {value!r:.60}, which is none of {', '.join(choices)}, off")
        return word

    return parse


def _from_or_zero(least: int, most: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        found: int = strict.whole(0, most)(value)
        if 0 < found < least:
            raise ValueError(f"is {found}, below the least of {least}; 0 is off")
        return found

    return parse


def _nofile(value: Any) -> str:
    text = _like("[1-9][0-9]{0,9}(:[1-9][0-9]{0,9})?", "no number and no soft:hard")(value)
    parse_limit(text)
    return text


Package = Annotated[str, _like(r"[a-z0-9*?\[\]+.:-]+", "no name of packages")]
Version = Annotated[str, _like(r"[A-Za-z0-9*?\[\].+:~_-]+", "no version")]
Unit = Annotated[str, _like(r"[A-Za-z0-9:_.\\@-]+\.(service|slice)", "no service or slice")]
Sysctl = Annotated[str, _like(r"(kernel|vm)(\.[A-Za-z0-9_-]+)+", "no sysctl below kernel. or vm.")]
Minimum = Annotated[str, _like(r"(>=)?-?[0-9]{1,18}", 'neither a number nor ">=number"')]


@dataclass(frozen=True)
class Options:
    """What the user wants. The defaults are those of ``roles/os_stabilization/defaults/main.yml``."""

    headless: Annotated[str, _or_off("boot", "idle", "now")] = "boot"
    swap_policy: Annotated[str, _or_off("keep", "swappiness")] = "swappiness"
    limits: bool = True
    memlock: Annotated[str, _like("unlimited|[1-9][0-9]{0,14}", "neither unlimited nor KiB")] = "unlimited"
    nofile: Annotated[str, _nofile] = "65536:524288"
    docker_restart: str = field(default="idle", metadata=one_of("never", "idle", "always"))
    memory_min_mib: Mapping[Unit, Annotated[int, strict.whole(0, 1024 * 1024)]] = field(
        default_factory=lambda: dict(PROTECTED)
    )
    earlyoom: Annotated[str, _or_off("prefer_engine", "avoid_engine")] = "off"
    watchdog_available_mib: Annotated[int, _from_or_zero(64, 1024 * 1024)] = 1024  # 0: no watchdog
    hold: bool = False
    known_good: Mapping[Package, tuple[Version, ...]] = field(default_factory=dict)
    upgrades: Annotated[str, _or_off("keep", "drivers")] = "drivers"
    power: bool = True
    gpu_clock_max_mhz: Annotated[int, _from_or_zero(300, 5000)] = 0  # 0: as it is
    sysctl: Mapping[Sysctl, Minimum] = field(default_factory=lambda: {"vm.max_map_count": ">=262144"})
    logs: bool = True

    @property
    def nofile_pair(self) -> tuple[str, str]:
        soft, _colon, hard = self.nofile.partition(":")
        return soft, hard or soft

    @property
    def memlock_bytes(self) -> int | None:
        """``None``: unlimited."""
        return None if self.memlock == "unlimited" else int(self.memlock) * 1024


def parse(values: Mapping[str, Any]) -> Options:
    """What is not given has its default. Raises :class:`SparkError` that names every wrong value."""
    found: dict[str, Any] = {}
    wrong: list[str] = []
    for name, value in values.items():
        try:
            found[name] = getattr(document.load(Options, {name: value}, spoken=True), name)
        except (TypeError, ValueError) as exc:
            wrong.append(f"{PREFIX}{exc}" if name in NAMES else f"{PREFIX}{name} is no option")
    if wrong:
        raise SparkError("\n  ".join(["the options are wrong:", *wrong]), "", "See the role's README")
    return Options(**found)


NAMES = tuple(item.name for item in fields(Options))
