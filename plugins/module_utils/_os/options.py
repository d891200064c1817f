# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

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


def _clock(value: Any) -> int:
    found: int = strict.whole(0, 5000)(value)
    if 0 < found < 300:
        raise ValueError(f"is {found}, and below 300 MHz nothing serves; 0 leaves the clock alone")
    return found


def _nofile(value: Any) -> str:
    text = _like("[1-9][0-9]{0,9}(:[1-9][0-9]{0,9})?", "no number and no soft:hard")(value)
    parse_limit(text)
    return text


Mib = Annotated[int, strict.whole(64, 1024 * 1024)]
Package = Annotated[str, _like(r"[a-z0-9*?\[\]+.:-]+", "no name of packages")]
Version = Annotated[str, _like(r"[A-Za-z0-9*?\[\].+:~_-]+", "no version")]
Unit = Annotated[str, _like(r"[A-Za-z0-9:_.\\@-]+\.(service|slice)", "no service or slice")]
Service = Annotated[str, _like(r"[A-Za-z0-9:_.\\@*-]+\.service", "no service")]
Sysctl = Annotated[str, _like(r"(?!vm\.swappiness$)(kernel|vm)(\.[A-Za-z0-9_-]+)+", "no sysctl below kernel. or vm.")]
Minimum = Annotated[str, _like(r"(>=)?-?[0-9]{1,18}", 'neither a number nor ">=number"')]


@dataclass(frozen=True)
class Options:
    """What the user wants. The defaults are those of ``roles/os_stabilization/defaults/main.yml``."""

    headless: bool = True
    headless_when: str = field(default="boot", metadata=one_of("boot", "idle", "now"))
    swap_policy: Annotated[str, _or_off("keep", "swappiness")] = "swappiness"
    swappiness: Annotated[int, strict.whole(0, 200)] = 10
    limits: bool = True
    memlock: Annotated[str, _like("unlimited|[1-9][0-9]{0,14}", "neither unlimited nor KiB")] = "unlimited"
    nofile: Annotated[str, _nofile] = "65536:524288"
    docker_limits: bool = True
    docker_restart: str = field(default="idle", metadata=one_of("never", "idle", "always"))
    memory_min: bool = True
    memory_min_mib: Mapping[Unit, Annotated[int, strict.whole(0, 1024 * 1024)]] = field(
        default_factory=lambda: dict(PROTECTED)
    )
    earlyoom: Annotated[str, _or_off("prefer_engine", "avoid_engine")] = "off"
    earlyoom_install: bool = False
    earlyoom_percent: Annotated[int, strict.whole(1, 50)] = 3
    watchdog: bool = True
    watchdog_available_mib: Mib = 1024
    watchdog_seconds: Annotated[int, strict.whole(1, 600)] = 5
    watchdog_units: tuple[Service, ...] = WATCHED
    hold: bool = False
    hold_packages: tuple[Package, ...] = KERNEL_AND_DRIVER
    known_good: Mapping[Package, tuple[Version, ...]] = field(default_factory=dict)
    upgrades: Annotated[str, _or_off("keep", "drivers")] = "drivers"
    power: bool = True
    gpu_clock_max_mhz: Annotated[int, _clock] = 0  # 0: as it is
    sysctl: Mapping[Sysctl, Minimum] = field(default_factory=lambda: {"vm.max_map_count": ">=262144"})
    logs: bool = True
    logs_journal_mib: Mib = 4096
    logs_docker_mib: Annotated[int, strict.whole(1, 1024 * 1024)] = 100
    logs_docker_files: Annotated[int, strict.whole(1, 1000)] = 3
    time_sync: bool = True

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
    if found.get("watchdog", True) and found.get("watchdog_units") == ():
        wrong.append(f"{PREFIX}watchdog_units is empty: name a service, or set {PREFIX}watchdog: false")
    if wrong:
        raise SparkError("\n  ".join(["the options are wrong:", *wrong]), "", "See the role's README")
    return Options(**found)


NAMES = tuple(item.name for item in fields(Options))
