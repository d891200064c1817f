# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""RDMA writes between two nodes, over one half or several at the same time, with the tools of perftest.

A ConnectX-7 that initialised badly after its cable was plugged in answers every ping and shows a full link; only the
rate tells.
"""

from __future__ import annotations

import glob
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Optional

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import (
    command,
    document,
    json_text,
    kinds,
    paths,
    sysfs,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import NOT_FOUND, TIMED_OUT, Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import (
    counters,
    ibdev2netdev,
    perftest,
    show_gids,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.ibdev2netdev import RdmaPort
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.show_gids import Gid

WRITE, BOTH_WAYS, LATENCY = TESTS = ("write", "write_both_directions", "latency")
TOOL, LATENCY_TOOL = "ib_write_bw", "ib_write_lat"
PACKAGE = "perftest"
# The kernel ends the tool with the thread that started it: a run that was killed leaves no server behind.
BOUND = ("setpriv", "--pdeathsig", "KILL", "--")
RECORD = paths.FABRIC_BANDWIDTH
ENGINE_UNITS = ("sparkmatrix-engine.service", "sparkmatrix-engine-*.service")
VERBS = "/dev/infiniband/uverbs*"
SIZE = 65536  # bytes; on some GB10 larger writes fail (perftest issue 394)
QUEUE_PAIRS = 4  # one alone does not always fill a half
ROUND_TRIPS = 1000  # of the latency; milliseconds
RETRY_S = 0.3
MARGIN_S = 30.0  # start, exchange of the connection data, end
UNCOUNTED_S = 4  # perftest counts neither the first nor the last 2 seconds
IDLE_S = 1.0  # in which nothing should move before a measurement

TimedRunner = Callable[[Sequence[str], float], Completed]


# --- what this node can do -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Nobody:
    """Nothing is asked for."""


@dataclass
class Look:
    """Whether this node can be measured now, and what its RDMA devices look like."""

    tool: Optional[kinds.Words] = None  # path of ib_write_bw
    verbs: kinds.Flag = False  # programs can reach RDMA devices
    busy: list[kinds.Words] = field(default_factory=list)  # units of the engine that run
    software: list[kinds.RdmaDevice] = field(default_factory=list)  # soft RoCE
    measured: kinds.WordOrEmpty = ""  # plan_hash of the fabric that was measured last
    ports: list[RdmaPort] = field(default_factory=list)
    gids: Optional[list[Gid]] = None


def look(_request: Nobody, _check: bool) -> Look:
    machine = Machine()
    ports, gids = ibdev2netdev.read(machine.sysfs), show_gids.read(machine.sysfs)
    return Look(**without_devices(machine), ports=ports, gids=gids)


def without_devices(machine: Machine, runner: TimedRunner = command.run) -> dict[str, Any]:
    """The part of :class:`Look` that ``node_info`` does not say of every node."""
    busy = [unit for unit in ENGINE_UNITS if runner(["systemctl", "is-active", "--quiet", unit], 20.0).rc == 0]
    return {
        "tool": shutil.which(TOOL, path=command.search_path()),
        "verbs": bool(glob.glob(VERBS)),
        "busy": busy,
        "software": software_devices(machine),
        "measured": str((read_record() or {}).get("plan_hash") or ""),
    }


def software_devices(machine: Machine) -> list[str]:
    """Devices without hardware: soft RoCE names the netdev it stands on."""
    base = machine.sysfs / "class/infiniband"
    return [name for name in sysfs.names(base) or [] if sysfs.exists(base / name / "parent")]


def read_record(path: str = RECORD) -> dict[str, Any] | None:
    """The kept measurement; None where there is none, or what is there cannot be read."""
    try:
        with open(path, "rb") as stream:
            return json_text.mapping(stream.read())
    except (OSError, SparkError):
        return None


# --- measuring -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """This node's part of one measurement with one other node. Both do theirs in the order of ``slot``; those of one
    slot at the same time, each over another half."""

    slot: int
    role: str = field(metadata=document.one_of("server", "client"))  # the client writes
    test: str = field(metadata=document.one_of(*TESTS))
    rail: int
    device: str
    port: int  # of the RDMA device
    netdev: str
    gid_index: Optional[int]
    source: str  # own address
    peer: str  # name of the other node
    address: str  # of the other node
    tcp_port: int
    software: bool = False  # one of the two ends is soft RoCE


@dataclass(frozen=True)
class Outcome:
    """How the part of this slot and rail went on this node. ``value`` is None when there is no result; ``reason`` and
    ``remedy`` then say why, and ``cause`` where it is one that has a name."""

    slot: kinds.Count
    rail: kinds.Octet
    value: Optional[kinds.Number] = None  # Gb/s; microseconds of the latency
    rdma_mtu: Optional[kinds.Count] = None
    cause: kinds.WordOrEmpty = ""
    reason: Optional[kinds.Words] = None
    remedy: Optional[kinds.Words] = None


@dataclass(frozen=True)
class Measured:
    """``idle``: bytes/s that RDMA moved over each device before; ``counted``: what was added meanwhile, by device and
    name of the counter."""

    outcomes: tuple[Outcome, ...] = ()
    idle: Mapping[kinds.RdmaDevice, kinds.Number] = field(default_factory=dict)
    counted: Mapping[kinds.RdmaDevice, Mapping[kinds.Word, kinds.Count]] = field(default_factory=dict)
    seconds: kinds.Number = 0.0


@dataclass(frozen=True)
class Request:
    """This node's parts of one round. ``duration_s``: of each; ``wait_s``: for the other end."""

    tests: tuple[Part, ...]
    duration_s: int
    wait_s: float


def rates(request: Request, check: bool) -> Measured:
    """Measures with one other node, in the order of ``slot``."""
    tests = sorted(request.tests, key=lambda test: test.slot)
    return measure([] if check else tests, request.duration_s, request.wait_s, Machine())


def argv(test: Part, duration_s: int) -> list[str]:
    """The command line. Connection data goes over the half itself, and nothing listens on another address."""
    words = [LATENCY_TOOL if test.test == LATENCY else TOOL]
    words += ["-d", test.device, "-i", str(test.port), "-p", str(test.tcp_port), "-F", "--bind_source_ip", test.source]
    if test.gid_index is not None:
        words += ["-x", str(test.gid_index)]
    if test.test == LATENCY:
        words += ["-n", str(ROUND_TRIPS)]
    else:
        # Soft RoCE does not finish what four full queues hold before the other end leaves (status 9, remote error).
        words += ["-q", "1", "-t", "16"] if test.software else ["-q", str(QUEUE_PAIRS)]
        words += ["-s", str(SIZE), "-D", str(duration_s), "--report_gbits"]
        words += ["-b"] if test.test == BOTH_WAYS else []
    return [*words, test.address] if test.role == "client" else words


def measure(
    tests: Sequence[Part], duration_s: int, wait_s: float, machine: Machine, runner: TimedRunner = command.run
) -> Measured:
    """Do this node's tests with one other node, slot by slot.

    A client tries again until the server listens. It does not look with a connection of its own first: the server would
    take that for its client. A half that gave no result is not tried again, so a silent node costs one wait per half.
    """
    if not tests:
        return Measured()
    ends = {test.device: test for test in tests}
    idle, began = _idle(ends, machine), machine.clock()
    before = {name: _counters(end, machine) for name, end in ends.items()}
    outcomes: list[Outcome] = []
    broken: set[int] = set()
    for _slot, group in groupby(tests, key=lambda test: test.slot):
        together = list(group)
        if any(test.rail in broken for test in together):
            continue
        with ThreadPoolExecutor(len(together)) as pool:
            found = list(pool.map(lambda test: _one(test, duration_s, wait_s, machine, runner), together))
        broken |= {outcome.rail for outcome in found if outcome.reason is not None}
        outcomes += found
    counted = {name: counters.added(before[name], _counters(end, machine)) for name, end in ends.items()}
    return Measured(tuple(outcomes), idle, counted, round(machine.clock() - began, 1))


def _idle(ends: Mapping[str, Part], machine: Machine) -> dict[str, float]:
    def now() -> dict[str, int]:
        moved = {name: counters.moved(machine, end.device, end.port) for name, end in ends.items()}
        return {name: size for name, size in moved.items() if size is not None}

    first = now()
    machine.sleep(IDLE_S)
    return {name: size / IDLE_S for name, size in counters.added(first, now()).items()}


def _counters(end: Part, machine: Machine) -> dict[str, int]:
    return counters.read(machine, end.device, end.port, end.netdev)


def _one(test: Part, duration_s: int, wait_s: float, machine: Machine, runner: TimedRunner) -> Outcome:
    words, limit = [*BOUND, *argv(test, duration_s)], duration_s + MARGIN_S
    if test.role == "server":
        return _outcome(test, runner(words, wait_s + limit), duration_s)
    # The other end may still wait for a half that failed here at once, for as long as a server waits.
    deadline = machine.clock() + 2 * (wait_s + limit)
    done = runner(words, limit)
    while _refused(done) and machine.clock() < deadline:
        machine.sleep(RETRY_S)
        done = runner(words, limit)
    return _outcome(test, done, duration_s)


def _refused(done: Completed) -> bool:
    text = f"{done.out}\n{done.err}"
    return done.rc not in (0, TIMED_OUT, NOT_FOUND) and ("Couldn't connect" in text or "Unable to init" in text)


def _outcome(test: Part, done: Completed, duration_s: int) -> Outcome:
    if done.rc == 0:
        try:
            report = perftest.parse(done.out)
            return Outcome(test.slot, test.rail, _value(test, report, duration_s), report.rdma_mtu)
        except SparkError as exc:
            if test.role == "server":  # some versions print the result on the client only
                return Outcome(test.slot, test.rail)
            cause, reason, remedy = _without_result(test, done.out, exc.found)
    else:
        cause, reason, remedy = _explain(test, done)
    return Outcome(test.slot, test.rail, cause=cause, reason=reason, remedy=remedy)


def _without_result(test: Part, text: str, found: str) -> tuple[str, str, str]:
    """As :func:`_explain`. With the index of another GID perftest prints its head only, and ends as if all was well."""
    if test.gid_index is None or "Data ex. method" not in text:
        return "", found, _by_hand(test)
    reason = f"{found}: most likely the GID with index {test.gid_index} of {test.device} does not fit"
    return "gid_mismatch", reason, f"Run the fabric layer again; it finds the GIDs anew. {_by_hand(test)}"


def _value(test: Part, row: perftest.Report, duration_s: int) -> float:
    """The tool divides by cycles of the processor, which tell no time in an emulated machine; its count is right."""
    if test.test == LATENCY:
        return row.microseconds
    if not test.software or duration_s <= UNCOUNTED_S:
        return row.average_gbps
    ways = 2 if test.test == BOTH_WAYS else 1  # it counts its own
    return round(ways * row.iterations * row.size * 8 / 1e9 / (duration_s - UNCOUNTED_S), 3)


def _by_hand(test: Part) -> str:
    return f"Try it by hand, first without the address on {test.peer}: {' '.join(argv(test, 5))}"


# What perftest and the verbs below it say, with the cause's name and what it means.
_COMPLAINTS = (
    (
        r"not found|Unable to find the Infiniband",
        "no_device",
        "there is no RDMA device of this name",
        "Look at rdma link; reboot with the cable attached",
    ),
    (
        r"transport retry counter|status 12\b",
        "firewall",
        "packets are sent and never acknowledged",
        "Check that RoCE (UDP port 4791) passes the firewall of both nodes, and compare the GIDs of both (show_gids)",
    ),
    (
        r"to RTR|to RTS|Unable to Connect the HCA",
        "gid_mismatch",
        "the queue pairs cannot be connected: the GID of one end does not fit",
        "Run the fabric layer again; it finds the GIDs anew",
    ),
    (
        r"[Mm]emory|memlock|Couldn't allocate|Couldn't create",
        "memlock",
        "the memory for RDMA could not be locked or a queue not be made",
        "Raise the limit of locked memory (ulimit -l) to unlimited",
    ),
)


def _explain(test: Part, done: Completed) -> tuple[str, str, str]:
    """Cause, reason and remedy."""
    text, tool = f"{done.out}\n{done.err}", argv(test, 0)[0]
    if done.rc == NOT_FOUND:
        return "", f"there is no program {tool!r}", f"Install {PACKAGE}"
    if done.rc == TIMED_OUT:
        if test.role == "server":  # the client says why
            return "", f"{tool} did not end: no client from {test.peer}", _by_hand(test)
        remedy = f"Check the firewall of {test.peer} (TCP port {test.tcp_port}, UDP port 4791). {_by_hand(test)}"
        return "firewall", f"{tool} did not end: no answer from {test.peer}", remedy
    if _refused(done):
        return (
            "firewall",
            f"no connection to {test.address} port {test.tcp_port}",
            f"Check the firewall of {test.peer} (TCP port {test.tcp_port} on the fabric). {_by_hand(test)}",
        )
    said = " ".join((done.err.strip() or done.out.strip() or "it printed nothing").split())[-300:]
    for pattern, cause, meaning, remedy in _COMPLAINTS:
        if re.search(pattern, text):
            return cause, f"{meaning} ({said})", remedy
    return "", f"{tool} failed with exit code {done.rc}: {said}", _by_hand(test)
