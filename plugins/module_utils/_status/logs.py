# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""``sparkmatrix logs``: on the head, the journals of keeper, engine, Ray and gateway of all nodes, by time; with
``--ray`` also the files that Ray writes beside its journal. Secrets are left out."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError, printable
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import rank as engine_rank
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._status import every_node, word_colours
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._support import capture
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._support.redaction import Redactor
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._support.secret_rules import (
    KEY_BEGINS,
    KEY_ENDS,
    LEFT_OUT,
)

HELP = "show the logs of keeper, engine, Ray and gateway of all nodes"
PARTS = ("keeper", "engine", "ray", "gateway")
MAX_LINES = 2000  # that one node gives of a part
RAY_LINES = 200  # of a file of Ray's
SPARE = 1000  # lines of a node before they are sorted
WIDTH = 2000  # characters of a line
ASK_S = 30.0
LATEST = 2**40  # seconds since 1970, of anything that is a time
LEAD_S = 60.0  # that the clock of another node may be ahead
ROOT = "This needs root: sudo sparkmatrix logs"
KEY = "-----BEGIN PRIVATE KEY-----\n"
KEY_LINES = 120
_JOURNAL = ("journalctl", "--no-pager", "-q", "-o", "json", "--output-fields=MESSAGE,_PID,_SYSTEMD_UNIT,UNIT")
_UNITS = "sparkmatrix-{}*"
_RAY_TIME = re.compile(r"^\[?(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)")
_COLOURS = ("\x1b[36m", "\x1b[35m", "\x1b[34m", "\x1b[32m")


@dataclass(frozen=True)
class Entry:
    at: float  # seconds since 1970
    unit: str  # keeper, engine-chat, ray/raylet.out
    text: str


# -- on the node ------------------------------------------------------------------------------------------------------


def parse(line: str) -> Entry | None:
    """A line of ``journalctl -o json``. A message that is no text is a list of bytes."""
    try:
        found = json_text.mapping(line)
        said = found.get("MESSAGE") or ""
        text = bytes(said).decode("utf-8", "replace") if isinstance(said, list) else str(said)
        # Of others than systemd, UNIT is what they claim.
        unit = str((found.get("UNIT") if found.get("_PID") == "1" else "") or found.get("_SYSTEMD_UNIT") or "")
        at = int(found["__REALTIME_TIMESTAMP"]) / 1e6
    except (*json_text.DAMAGE, SparkError):
        return None
    return Entry(at, unit.removeprefix("sparkmatrix-").removesuffix(".service"), text)


def journal(machine: Machine) -> list[Entry]:
    """Of each part by itself: an engine that talks much must not hide why its keeper has restarted it."""
    said = [machine.output(*_JOURNAL, "-n", str(MAX_LINES), "-u", _UNITS.format(part)) or "" for part in PARTS]
    return [entry for text in said for entry in map(parse, text.splitlines()) if entry]


def ray_files(machine: Machine) -> list[Entry]:
    """The last lines of each. One without a time of its own, as in a traceback, has that of the line before."""
    made = []
    for path, text in capture.ray_logs(machine).items():
        at = 0.0
        found = []
        for line in text.splitlines():
            match = _RAY_TIME.match(line)
            if match:
                with contextlib.suppress(ValueError, OverflowError):  # it only looks like a time
                    at = time.mktime(time.strptime(match.group(1).replace("T", " "), "%Y-%m-%d %H:%M:%S"))
            found.append(Entry(at, f"ray/{path.rpartition('/')[2]}", line))
        made += found[-RAY_LINES:]
    return made


def follow(popen: Callable[..., Any] = subprocess.Popen) -> Iterator[Entry]:
    argv = [*_JOURNAL, "-f", "-n", "0", *(word for part in PARTS for word in ("-u", _UNITS.format(part)))]
    with popen(  # pylint: disable=ansible-bad-function
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, encoding="utf-8", errors="replace"
    ) as process:
        every_node.when_nobody_listens(process.kill)
        try:
            for line in process.stdout:
                entry = parse(line)
                if entry:
                    yield entry
        finally:
            process.kill()


def tell(machine: Machine, entries: Iterable[Entry], say: Callable[[str], None] = engine_rank.say) -> None:
    redactor = Redactor(capture.secrets(machine))
    keys: dict[str, int] = {}  # units in the middle of a private key, and how many lines it may still have
    for entry in entries:
        left = keys.pop(entry.unit, 0)
        text = redactor.redact(f"{KEY}{entry.text}" if left else entry.text)
        inside = left > 0 and text == LEFT_OUT
        if left and not inside:  # what is no line of a key ends it
            text = text.removeprefix(LEFT_OUT).lstrip("\n")
        begun = KEY_LINES if KEY_BEGINS.search(entry.text) else left - 1 if inside else 0
        if begun > 0 and not KEY_ENDS.search(entry.text):
            keys[entry.unit] = begun
        say(json.dumps(document.plain(Entry(entry.at, entry.unit, text[:WIDTH]))))


# -- on the head ------------------------------------------------------------------------------------------------------


def read(found: Mapping[str, Any]) -> Entry | None:
    """What another node says is not trusted: nothing is of later than now."""
    at, unit, text = found.get("at"), found.get("unit"), found.get("text")
    if not isinstance(at, (int, float)) or not isinstance(unit, str) or not isinstance(text, str):
        return None
    if not 0 <= at < LATEST:  # nor is what is no number
        return None
    return Entry(min(float(at), time.time() + LEAD_S), printable(unit)[:40].replace("\n", " "), printable(text)[:WIDTH])


def wanted(entry: Entry, parts: Sequence[str]) -> bool:
    return not parts or any(re.match(rf"{part}(?![^-/])", entry.unit) for part in parts)


def line(host: str, entry: Entry, colour: str = "") -> str:
    """One entry; further lines of a traceback stand below it."""
    at = time.strftime("%m-%d %H:%M:%S", time.localtime(entry.at)) if entry.at > 0 else "-"
    text = entry.text.rstrip().replace("\n", "\n    ")
    if not colour:
        return f"{at} {host} {entry.unit}: {text}"
    return f"{at} {colour}{host} {entry.unit}\x1b[0m: {word_colours.paint(text)}"


@dataclass
class Shown:
    """How entries are printed, and the colour of each node."""

    nodes: Sequence[str]
    as_json: bool = False
    coloured: bool = False

    def __call__(self, host: str, entry: Entry) -> str:
        if self.as_json:
            return json.dumps({"host": host, **document.plain(entry)})
        number = list(self.nodes).index(host)
        return line(host, entry, _COLOURS[number % len(_COLOURS)] if self.coloured else "")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--node", action="append", default=[], metavar="NAME", help="of this node only; several times")
    parser.add_argument("--part", action="append", default=[], choices=PARTS, help="of this part only; several times")
    parser.add_argument("--lines", type=int, default=100, metavar="N", help="so many of the last ones (100)")
    parser.add_argument("--follow", "-f", action="store_true", help="go on until Ctrl-C")
    parser.add_argument("--ray", action="store_true", help="also the files that Ray writes beside its journal")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.add_argument("--peer", choices=("last", "ray", "follow"), help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace, machine: Machine | None = None) -> int:
    machine = machine or Machine()
    try:
        if arguments.peer:
            tell(machine, {"last": journal, "ray": ray_files}.get(arguments.peer, lambda _machine: follow())(machine))
            return 0
        if os.geteuid() != 0:
            raise SparkError(ROOT)
        for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: nothing is left running on any node
            signal.signal(number, signal.default_int_handler)
        return show(arguments, every_node.hosts(machine.root, arguments.node))
    except SparkError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    except (BrokenPipeError, KeyboardInterrupt):  # who watched has gone
        return 0


def show(
    arguments: argparse.Namespace,
    nodes: Mapping[str, bool],
    streams: Callable[..., list[every_node.Stream]] = every_node.streams,
) -> int:
    shown = Shown(list(nodes), arguments.json, word_colours.coloured())
    most = max(arguments.lines, 0)
    found: dict[str, list[Entry]] = {host: [] for host in nodes}

    def newest(host: str) -> list[Entry]:
        return sorted(found[host], key=lambda entry: entry.at)[-most:] if most else []

    def keep(host: str, said: Mapping[str, Any]) -> None:
        entry = read(said)
        if entry and wanted(entry, arguments.part):
            found[host].append(entry)
            if (
                len(found[host]) > 2 * most + SPARE
            ):  # a node that talks without end must not fill the memory of this one
                found[host] = newest(host)

    def print_now(host: str, said: Mapping[str, Any]) -> None:
        entry = read(said)
        if entry and wanted(entry, arguments.part):
            engine_rank.say(shown(host, entry))

    words = ["last", *(["ray"] if arguments.ray else [])]
    asked = [stream for word in words for stream in streams(nodes, "logs", f"logs-{word}", ["--peer", word])]
    problems = every_node.all_of(asked, keep, ASK_S)
    kept = [(host, entry) for host in nodes for entry in newest(host)]
    for host, entry in sorted(kept, key=lambda one: one[1].at)[-most:] if most else []:
        engine_rank.say(shown(host, entry))
    if arguments.follow:
        followed = streams(nodes, "logs", "logs-follow", ["--peer", "follow"])

        def end() -> None:
            for stream in followed:
                stream.end()

        every_node.when_nobody_listens(end)
        try:
            problems |= every_node.all_of(followed, print_now, None)
        finally:
            end()
    for host, problem in problems.items():
        sys.stderr.write(f"{host}: its logs are not known: {problem}\n")
    return 1 if problems else 0
