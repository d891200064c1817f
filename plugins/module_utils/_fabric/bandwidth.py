# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""RDMA writes over one half of a cable with ``ib_write_bw`` of perftest, and what it prints.

A ConnectX-7 that initialised badly after its cable was plugged in answers every ping and shows a full link; only the
rate tells. Text is read, not JSON: it is the same in all versions, while the JSON of perftest before 24.01 is invalid
and none names its unit.
"""

from __future__ import annotations

import glob
import json
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import command, paths, sysfs
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import NOT_FOUND, TIMED_OUT, Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError

TOOL = "ib_write_bw"
PACKAGE = "perftest"
RECORD = paths.FABRIC_BANDWIDTH
VERBS = "/dev/infiniband/uverbs*"
SIZE = 65536  # bytes; on some GB10 larger writes fail (perftest issue 394)
QUEUE_PAIRS = 4  # one alone does not always fill a half
RETRY_S = 0.3
MARGIN_S = 30.0  # start, exchange of the connection data, end
UNCOUNTED_S = 4  # perftest counts neither the first nor the last 2 seconds

TimedRunner = Callable[[Sequence[str], float], Completed]


# --- what the tool prints --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One line of results. ``peak_gbps`` is 0 in runs for a time."""

    size: int  # bytes per write
    iterations: int
    peak_gbps: float  # Gb/s
    average_gbps: float  # Gb/s


@dataclass(frozen=True)
class Report:
    """What a run printed. None: it did not say."""

    rows: tuple[Row, ...]
    device: str | None = None
    rdma_mtu: int | None = None  # bytes
    gid_index: int | None = None


# "MB/sec" of older versions is 2^20 bytes too (perftest, src/perftest_parameters.c: format_factor 0x100000).
_UNITS = {"Gb": 1.0, "MB": 2**20 * 8 / 1e9, "MiB": 2**20 * 8 / 1e9}
_HEADER = re.compile(r"^\s*#bytes\s+#iterations\s+BW peak\s*\[(?P<unit>\w+)/sec\]\s+BW average\s*\[(?P=unit)/sec\]")
_NUMBER = r"[0-9]{1,12}(?:\.[0-9]{1,12})?"
_ROW = re.compile(
    rf"^\s*([0-9]{{1,12}})\s+([0-9]{{1,15}})\s+({_NUMBER})\s+({_NUMBER})\s+{_NUMBER}(?:\s+{_NUMBER})?\s*$"
)


def parse(text: str) -> Report:
    """What ``ib_write_bw`` printed, of any version, also with warnings between header and rows.

    Raises :class:`SparkError` when there is no result in it.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\xa0", " ")
    unit: float | None = None
    rows: list[Row] = []
    for line in text.split("\n"):
        header = _HEADER.match(line)
        if header:
            if header["unit"] not in _UNITS:
                raise SparkError(f"unknown unit {header['unit']}/sec", f"output of {TOOL}", "Use --report_gbits")
            unit = _UNITS[header["unit"]]
            continue
        match = _ROW.match(line)
        if match and unit is not None:
            peak, average = (round(float(match[group]) * unit, 3) for group in (3, 4))
            rows.append(Row(int(match[1]), int(match[2]), peak, average))
    if not rows:
        said = next((line.strip() for line in reversed(text.split("\n")) if line.strip(" -")), "nothing")
        raise SparkError(f"no result in the text; it ends with {said[:160]!r}", f"output of {TOOL}")
    device = re.search(r"\bDevice\s*:\s*(\S+)", text)
    return Report(
        tuple(rows),
        device[1] if device else None,
        _setting(r"\bMtu\s*:\s*([0-9]{1,6})\[B\]", text),
        _setting(r"\bGID index\s*:\s*([0-9]{1,6})\b", text),
    )


def _setting(pattern: str, text: str) -> int | None:
    match = re.search(pattern, text)
    return int(match[1]) if match else None


# --- what this node can do -------------------------------------------------------------------------------------------


def look(engine_units: Sequence[str], runner: TimedRunner = command.run) -> dict[str, Any]:
    """Whether this node can be measured now.

    ``tool`` is the path of ``ib_write_bw`` or None, ``verbs`` whether programs can reach RDMA devices, ``busy`` the
    units of ``engine_units`` that are running, ``software`` the soft RoCE devices, ``record`` the kept measurement.
    """
    busy = [unit for unit in engine_units if runner(["systemctl", "is-active", "--quiet", unit], 20.0).rc == 0]
    return {
        "tool": shutil.which(TOOL, path=command.search_path()),
        "verbs": bool(glob.glob(VERBS)),
        "busy": busy,
        "software": software_devices(),
        "record": read_record(),
    }


def software_devices() -> list[str]:
    """Devices without hardware: soft RoCE names the netdev it stands on."""
    base = sysfs.root() / "class/infiniband"
    return [name for name in sysfs.names(base) or [] if sysfs.exists(base / name / "parent")]


def read_record(path: str = RECORD) -> dict[str, Any] | None:
    """The kept measurement; None where there is none, or what is there cannot be read."""
    try:
        with open(path, encoding="utf-8") as stream:
            found = json.load(stream)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


# --- measuring -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """This node's part of one measurement. All nodes do theirs in the order of ``slot``, which pairs them."""

    slot: int
    role: str  # "server" or "client"
    rail: int
    device: str
    port: int  # of the RDMA device
    gid_index: int | None
    source: str  # own address
    peer: str  # name of the other node
    address: str  # of the other node
    tcp_port: int
    software: bool = False  # one of the two ends is soft RoCE


@dataclass(frozen=True)
class Outcome:
    """How it went on this node. ``gbps`` is None when there is no result; ``reason`` and ``remedy`` then say why."""

    slot: int
    role: str
    rail: int
    peer: str
    device: str
    gbps: float | None = None  # Gb/s
    rdma_mtu: int | None = None
    reason: str | None = None
    remedy: str | None = None


def parse_tests(entries: Sequence[Mapping[str, Any]]) -> list[Part]:
    """The module's option, in the order of ``slot``."""
    return sorted((Part(**entry) for entry in entries), key=lambda test: test.slot)


def argv(test: Part, duration_s: int) -> list[str]:
    """The command line. Connection data goes over the half itself, and nothing listens on another address."""
    words = [TOOL, "-d", test.device, "-i", str(test.port), "-p", str(test.tcp_port), "-s", str(SIZE)]
    # Soft RoCE does not finish what four full queues hold before the other end leaves (status 9, remote error).
    words += ["-q", "1", "-t", "16"] if test.software else ["-q", str(QUEUE_PAIRS)]
    words += ["-D", str(duration_s), "-F", "--report_gbits", "--bind_source_ip", test.source]
    if test.gid_index is not None:
        words += ["-x", str(test.gid_index)]
    return [*words, test.address] if test.role == "client" else words


def measure(
    tests: Sequence[Part],
    duration_s: int,
    wait_s: float,
    *,
    runner: TimedRunner = command.run,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Outcome]:
    """Do this node's tests one after the other.

    A client tries again until the server listens, at most ``wait_s``. It does not look with a connection of its own
    first: the server would take that for its client. A server waits as long for its client.
    """
    outcomes = []
    for test in tests:
        words, deadline = argv(test, duration_s), clock() + wait_s
        if test.role == "server":
            done = runner(words, wait_s + duration_s + MARGIN_S)
        else:
            done = runner(words, duration_s + MARGIN_S)
            while _refused(done) and clock() < deadline:
                sleep(RETRY_S)
                done = runner(words, duration_s + MARGIN_S)
        outcomes.append(_outcome(test, done, duration_s))
    return outcomes


def _refused(done: Completed) -> bool:
    text = f"{done.out}\n{done.err}"
    return done.rc not in (0, TIMED_OUT, NOT_FOUND) and ("Couldn't connect" in text or "Unable to init" in text)


def _outcome(test: Part, done: Completed, duration_s: int) -> Outcome:
    common = (test.slot, test.role, test.rail, test.peer, test.device)
    if done.rc == 0:
        try:
            report = parse(done.out)
            return Outcome(*common, _gbps(test, report.rows[-1], duration_s), report.rdma_mtu)
        except SparkError as exc:
            if test.role == "server":  # some versions print the result on the client only
                return Outcome(*common)
            return Outcome(*common, reason=exc.found, remedy=_by_hand(test))
    reason, remedy = _explain(test, done)
    return Outcome(*common, reason=reason, remedy=remedy)


def _gbps(test: Part, row: Row, duration_s: int) -> float:
    """The tool divides by cycles of the processor, which tell no time in an emulated machine; its count is right."""
    if not test.software or duration_s <= UNCOUNTED_S:
        return row.average_gbps
    return round(row.iterations * row.size * 8 / 1e9 / (duration_s - UNCOUNTED_S), 3)


def _by_hand(test: Part) -> str:
    return f"Try it by hand, first without the address on {test.peer}: {' '.join(argv(test, 5))}"


# What perftest and the verbs below it say, with what it means.
_COMPLAINTS = (
    (
        r"not found|Unable to find the Infiniband",
        "there is no RDMA device of this name",
        "Look at rdma link; reboot with the cable attached",
    ),
    (
        r"transport retry counter|status 12\b",
        "packets are sent and never acknowledged",
        "Check that RoCE (UDP port 4791) passes the firewall of both nodes, and compare the GIDs of both (show_gids)",
    ),
    (
        r"to RTR|to RTS|Unable to Connect the HCA",
        "the queue pairs cannot be connected: the GID of one end does not fit",
        "Run the fabric layer again; it finds the GIDs anew",
    ),
    (
        r"[Mm]emory|memlock|Couldn't allocate|Couldn't create",
        "the memory for RDMA could not be locked or a queue not be made",
        "Raise the limit of locked memory (ulimit -l) to unlimited",
    ),
)


def _explain(test: Part, done: Completed) -> tuple[str, str]:
    text = f"{done.out}\n{done.err}"
    if done.rc == NOT_FOUND:
        return f"there is no program {TOOL!r}", f"Install {PACKAGE}"
    if done.rc == TIMED_OUT:
        return f"{TOOL} did not end: no {'client' if test.role == 'server' else 'answer'} from {test.peer}", _by_hand(
            test
        )
    if _refused(done):
        return (
            f"no connection to {test.address} port {test.tcp_port}",
            f"Check the firewall of {test.peer} (TCP port {test.tcp_port} on the fabric). {_by_hand(test)}",
        )
    said = " ".join((done.err.strip() or done.out.strip() or "it printed nothing").split())[-300:]
    for pattern, meaning, remedy in _COMPLAINTS:
        if re.search(pattern, text):
            return f"{meaning} ({said})", remedy
    return f"{TOOL} failed with exit code {done.rc}: {said}", _by_hand(test)


def as_dicts(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    return [asdict(outcome) for outcome in outcomes]
