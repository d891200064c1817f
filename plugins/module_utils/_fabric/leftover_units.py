# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What somebody has made by hand that changes the fabric at every boot: guides switch off "unused" ports, set an MTU,
or load nvidia-peermem, in a unit with a script of its own, or in a file that something else starts.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Flag, Interface, WordOrEmpty, Words
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.paths import UNITS

DIRECTORIES = (UNITS, "/usr/local/lib/systemd/system")  # not those of packages
PEERMEM = re.compile(r"\b(nvidia[-_]peermem|nv_peer_mem)\b")  # the second until driver 470
LIMIT = 64 * 1024  # bytes that are read of a unit or a script
_SCRIPTS = 4  # of one command: an interpreter, its script, and what that is given
# Files that are run, or obeyed, without a unit of their own: drop-ins of units, scripts, crontabs, rules of udev.
_FILES = (
    *(f"{UNITS}/*.d/*.conf", "/etc/rc.local", "/etc/crontab", "/etc/cron.d/*", "/var/spool/cron/crontabs/*"),
    *("/etc/NetworkManager/dispatcher.d/**/*", "/etc/networkd-dispatcher/*/*", "/etc/udev/rules.d/*.rules"),
)
_EXEC = re.compile(
    r"^\s*(?:Exec(?:Start|StartPre|StartPost|Condition)|Environment|EnvironmentFile)\s*=\s*[-@:+!|]*(.*)$", re.MULTILINE
)
_CHANGES = re.compile(
    r"\b(?:ip\s(?:-\S+\s+)*(?:(?:l|link)\s+s|(?:l|link|a|addr|address|r|route)"
    r"\s+(?:set|a|add|d|del|delete|f|flush|c|change|r|replace))\b"
    r"|ethtool\s+(?:-[ACEGKLNUWXs]\b|--(?:set|change|config|pause|features|offload|coalesce))"
    r"|nmcli\s(?:[^;|&]*\s)?(?:set|up|down|mod|modify|add|del|delete|connect|disconnect|reapply|off|on)\b"
    r"|networkctl\s+(?:up|down|re|delete|force)|ifconfig\s+[\w.]+\s+\w|if(?:up|down|enslave)\s|mlnx_qos\s"
    r"|cma_roce_\w+\s|dcb\s(?:-\S+\s+)*\w+\s+(?:set|add|del|replace)\b)"
    r"|>\s*/sys/class/net/|\bATTR\{[\w/]+\}\s*=[^=]"
)
_ELSEWHERE = re.compile(r"[$`]|\{\}|%k")  # the name of the interface stands in another line, or is made
_LIST = re.compile(r"[\"',()\[\]\s]+")  # a command in Python is a list of words
_ALL = re.compile(r"\bibdev2netdev\b|class/infiniband|\bmlx5_core\b")  # a loop over the whole card
_WORD = re.compile(r"[\w.*?\[\]-]+")


@dataclass(frozen=True)
class Leftover:
    """What a unit does to the fabric: ``netdevs`` that it changes, ``peermem``: it loads the module; ``line`` is the
    first that shows it, in ``file``. Without a unit something else starts that file."""

    unit: WordOrEmpty
    file: Words
    line: Words
    netdevs: tuple[Interface, ...] = ()
    peermem: Flag = False


def leftovers(machine: Machine, netdevs: Iterable[str]) -> list[Leftover]:
    """Of the enabled units. ``netdevs``: the interfaces of the fabric."""
    wanted, found = sorted(set(netdevs)), list[Leftover]()
    for enabled, service in _enabled(machine):
        path, text = _unit(machine, service)
        ours = service.startswith("sparkmatrix") or "sparkmatrix.cluster" in text
        if not text or ours or not re.fullmatch(r"[\w.:@-]+", enabled, re.ASCII):
            continue
        commands = [command.strip() for command in _EXEC.findall(re.sub(r"\\\n", " ", text))]
        instance = service.partition("@")[2].rpartition(".")[0]
        parts = [(path, command.replace("%i", instance).replace("%I", instance)) for command in commands]
        parts += [part for command in commands for part in _scripts(machine, command)]
        found += _of(enabled, parts, wanted)
    for path in _paths(machine):
        text = _text(machine, path)
        if "\0" not in text and "sparkmatrix.cluster" not in text:
            lines = [line for line in text.splitlines() if not line.strip().startswith("#")]
            found += _of("", [(path, text), *(part for line in lines for part in _scripts(machine, line))], wanted)
    return found


def _paths(machine: Machine) -> Iterator[str]:
    root = machine.real("/")
    for pattern in _FILES:
        for path in sorted(glob.glob(glob.escape(root) + pattern[1:], recursive=True)):
            yield path[len(root) - 1 :]


def _of(unit: str, parts: list[tuple[str, str]], netdevs: Iterable[str]) -> Iterator[Leftover]:
    lines = [
        (file, line.strip())
        for file, text in parts
        for line in text.splitlines()
        if line.strip() and not line.strip().startswith("#")
    ]
    changes = [one for one in lines if _CHANGES.search(one[1]) or _CHANGES.search(_LIST.sub(" ", one[1]))]
    touched = {netdev: change for change in reversed(changes) for netdev in _touched(change[1], lines, netdevs)}
    if touched:
        first = next(change for change in changes if change in touched.values())
        yield Leftover(unit, *first, tuple(netdev for netdev in netdevs if netdev in touched))
    load = next((one for one in lines if re.search(r"\b(modprobe|insmod)\b", one[1]) and PEERMEM.search(one[1])), None)
    if load:
        yield Leftover(unit, *load, peermem=True)


def _touched(change: str, lines: Iterable[tuple[str, str]], netdevs: Iterable[str]) -> list[str]:
    """A loop over names has them in another line than the command; a pattern has to say more than "all"."""
    loop = bool(_ELSEWHERE.search(change))
    said = [line for _file, line in lines] if loop else [change]
    words = {word.strip(".-") for line in said for word in _WORD.findall(line)}
    patterns = [word for word in words if re.match(r"\w{2}", word)]
    # What grep is given is the beginning of a name.
    patterns += [f"{word}*" for word in patterns if loop and re.fullmatch(r"en\w*\d\w*", word)]
    everything = loop and any(_ALL.search(line) for line in said)
    return [
        netdev for netdev in netdevs if everything or any(fnmatch.fnmatchcase(netdev, pattern) for pattern in patterns)
    ]


def _enabled(machine: Machine) -> Iterator[tuple[str, str]]:
    """Each enabled unit, and the service that it starts: its own name, or that of a timer."""
    names = {
        name
        for directory in machine.names(UNITS)
        if directory.endswith((".wants", ".requires"))
        for name in machine.names(f"{UNITS}/{directory}")
    }
    for name in sorted(names):
        if name.endswith(".service"):
            yield name, name
        elif name.endswith(".timer"):
            said = re.search(r"^\s*Unit\s*=\s*(\S+)$", _unit(machine, name)[1], re.MULTILINE)
            yield name, said[1] if said else name.replace(".timer", ".service")


def _unit(machine: Machine, name: str) -> tuple[str, str]:
    """Path and text; nothing of a unit that a package has brought."""
    template = re.sub(r"@[^.]*\.", "@.", name)
    for path in (f"{directory}/{one}" for directory in DIRECTORIES for one in (name, template)):
        text = _text(machine, path)
        if text:
            return path, text
    return "", ""


def _scripts(machine: Machine, command: str) -> Iterator[tuple[str, str]]:
    """The scripts that a command names by their path."""
    paths = re.findall(r"(?<![\w./-])/[\w./@+-]+", command)[:_SCRIPTS]
    for path in paths:
        text = _text(machine, path)
        if text and "\0" not in text:
            yield path, text


def _text(machine: Machine, path: str) -> str:
    """The beginning of a plain file."""
    real = machine.real(path)
    if not os.path.isfile(real):
        return ""
    try:
        with open(real, "rb") as stream:
            return stream.read(LIMIT).decode("utf-8", "replace")
    except OSError:
        return ""
