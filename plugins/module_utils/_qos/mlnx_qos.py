# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The backend ``mlnx_qos``: reads the tool's text in every dialect since 4.6 and builds its command lines.

Source of the format: ``python/mlnx_qos`` of Mellanox/mlnx-tools, tags 4.6 to 26.07, and public captures.
"""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._qos.state import (
    COUNT,
    DSCP_COUNT,
    QosState,
    Step,
    changes,
    command_error,
    dscp_entries,
)

NAME = "mlnx_qos"
CANNOT: tuple[str, ...] = ()
UNSUPPORTED = "ETS features are not supported on your system"
UNSUPPORTED_REMEDY = (
    "Name a ConnectX netdev (driver mlx5_core, not a virtual function or a bond), see /sys/class/net/*/device/driver"
)
REPORT = "Report it with the output of the command; backend: dcb may work meanwhile"
READ_REMEDY = "Run the module as root (become: true) and try the command by hand"
DCBX = {"OS": "os", "Firmware": "firmware"}
# Parts that may be missing on a working NIC; the tool says so on lines of their own.
_NOTICES = (
    "Priority trust state is not supported on your system",
    "Buffers commands are not supported on your system",
    "Rate limit is not supported on your system!",
)
_PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("lldpad", re.compile(r"\*+ WARNING: lldpad service is running\b.*")),
    ("dcbx", re.compile(r"DCBX mode: (OS|Firmware) controlled")),
    ("trust", re.compile(r"Priority trust state: (pcp|dscp|none)")),
    ("dscp_header", re.compile(r"dscp2prio mapping:")),
    ("dscp", re.compile(r"prio:([0-7]) dscp:([0-9]{1,2}(?:,[0-9]{1,2})*),?")),
    ("default_header", re.compile(r"default priority:")),
    ("default", re.compile(r"prio:([0-7])")),
    (
        "buffers",
        re.compile(
            r"Receive buffer size \(bytes\): ((?:[0-9]{1,10},){8})\s*(?:(?:total_size|max_buffer_size)=([0-9]{1,12}))?"
        ),
    ),
    ("cable", re.compile(r"Cable len: ([0-9]{1,5})")),
    ("pfc_header", re.compile(r"PFC configuration:")),
    ("row", re.compile(r"(priority|enabled|buffer)((?:\s+[0-7]){8})")),
    (
        "tc",
        re.compile(
            # Without rate limit support the tool drops everything before the algorithm, the class number included.
            r"(?:tc: ([0-7]) ratelimit: (?:unlimited|([0-9]{1,7}\.[0-9]) Gbps), tsa: )?"
            r"(?:(vendor|strict|unknown)|(ets), bw: ([0-9]{1,3})%)"
        ),
    ),
    ("tc_priority", re.compile(r"priority:\s+([0-7])")),
)


class _Reading:
    """What was found so far. Each method takes the groups of one kind of line; ``ValueError`` refuses the line."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self.section = ""
        self.dscp_map: dict[int, int] = {}
        self.defaults: list[int] = []
        self.classes: list[dict[str, Any]] = []

    def once(self, name: str, value: Any) -> None:
        if name in self.found:
            raise ValueError("this part occurs twice")
        self.found[name] = value

    def lldpad(self) -> None:
        self.once("lldpad", True)

    def dcbx(self, owner: str) -> None:
        self.once("dcbx", DCBX[owner])

    def trust(self, state: str) -> None:
        self.once("trust", None if state == "none" else state)

    def dscp_header(self) -> None:
        self.once("dscp_header", True)
        self.section = "dscp"

    def dscp(self, priority: str, codes: str) -> None:
        self.expect("dscp")
        for code in map(int, codes.split(",")):
            if code >= DSCP_COUNT:
                raise ValueError(f"DSCP {code} is above {DSCP_COUNT - 1}")
            if code in self.dscp_map:
                raise ValueError(f"DSCP {code} occurs twice")
            self.dscp_map[code] = int(priority)

    def default_header(self) -> None:
        self.once("default_header", True)
        self.section = "default"

    def default(self, priority: str) -> None:
        self.expect("default")
        self.defaults.append(int(priority))

    def buffers(self, sizes: str, total: str | None) -> None:
        self.once("buffer_size", tuple(int(size) for size in sizes.rstrip(",").split(",")))
        self.found["buffer_total"] = None if total is None else int(total)

    def cable(self, metres: str) -> None:
        self.once("cable_len", int(metres))

    def pfc_header(self) -> None:
        self.once("pfc_header", True)
        self.section = "pfc"

    def row(self, name: str, cells: str) -> None:
        self.expect("pfc")
        values = tuple(map(int, cells.split()))
        if name == "priority" and values != tuple(range(COUNT)):
            raise ValueError("the priorities are not 0 to 7")
        if name == "enabled" and max(values) > 1:
            raise ValueError("PFC is neither 0 nor 1")
        self.once(name, values)

    def tc(self, number: str | None, rate: str | None, algorithm: str | None, ets: str | None, bw: str | None) -> None:
        self.section = "tc"
        share = int(bw or 0)
        if share > 100:
            raise ValueError("the bandwidth is above 100%")
        self.classes.append(
            {
                "number": None if number is None else int(number),
                "rate": float(rate or 0),
                "tsa": algorithm or ets,
                "share": share,
                "priorities": [],
            }
        )

    def tc_priority(self, priority: str) -> None:
        self.expect("tc")
        self.classes[-1]["priorities"].append(int(priority))

    def expect(self, section: str) -> None:
        if self.section != section:
            raise ValueError("this line is out of place")


def parse(text: str, where: str = NAME) -> QosState:
    """Read the output of ``mlnx_qos -i IF`` or ``mlnx_qos -i IF -a`` (any dialect).

    Returns a :class:`QosState`. Raises :class:`SparkError` with line number and text for a line that is not understood,
    for one that contradicts an earlier one, and for output that ends too early.
    """
    reading = _Reading()
    number = 0
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.strip()
        if not line or line in _NOTICES:
            continue
        if line == UNSUPPORTED:
            raise SparkError("the NIC or its driver has no DCB support", where, UNSUPPORTED_REMEDY)
        try:
            _take(reading, line)
        except ValueError as exc:
            raise SparkError(f"line {number} is not understood ({exc}): {line[:120]!r}", where, REPORT) from None
    missing = [
        label
        for name, label in (("dcbx", "DCBX mode"), ("trust", "trust state"), ("enabled", "PFC table"))
        if name not in reading.found
    ]
    if missing:
        raise SparkError(f"the output ends at line {number} without {', '.join(missing)}", where, REPORT)
    try:
        classes = _classes(reading.classes)
    except ValueError as exc:
        raise SparkError(f"the traffic classes, up to line {number}, make no sense ({exc})", where, REPORT) from None
    return QosState(
        dcbx=reading.found["dcbx"],
        trust=reading.found["trust"],
        dscp2prio=reading.dscp_map,
        default_priority=tuple(reading.defaults),
        pfc=reading.found["enabled"],
        cable_len=reading.found.get("cable_len"),
        prio2buffer=reading.found.get("buffer"),
        buffer_size=reading.found.get("buffer_size"),
        buffer_total=reading.found.get("buffer_total"),
        lldpad=reading.found.get("lldpad", False),
        **classes,
    )


def _take(reading: _Reading, line: str) -> None:
    for name, pattern in _PATTERNS:
        match = pattern.fullmatch(line)
        if match:
            getattr(reading, name)(*match.groups())
            return
    raise ValueError("unknown line")


def _classes(found: list[dict[str, Any]]) -> dict[str, Any]:
    """``prio_tc``, ``tsa``, ``tcbw`` and ``ratelimit`` from the listed classes.

    Classes without a number (rate limit unsupported) can be told apart only when all eight are listed, in order.
    """
    if not found:
        raise ValueError("there is none")
    anonymous = [entry for entry in found if entry["number"] is None]
    if anonymous and len(anonymous) != len(found):
        raise ValueError("some have a number and some have not")
    if anonymous:
        if len(found) != COUNT:
            return {}
        found = [{**entry, "number": index} for index, entry in enumerate(found)]
    by_number = {entry["number"]: entry for entry in found}
    if len(by_number) != len(found):
        raise ValueError("a class occurs twice")
    pairs = [(priority, number) for number, entry in by_number.items() for priority in entry["priorities"]]
    prio_tc = dict(pairs)
    if len(pairs) != COUNT or len(prio_tc) != COUNT:
        raise ValueError(f"{len(pairs)} entries for {COUNT} priorities")
    result: dict[str, Any] = {"prio_tc": tuple(prio_tc[priority] for priority in range(COUNT))}
    for setting, key in (("tsa", "tsa"), ("tcbw", "share"), ("ratelimit", "rate")):
        result[setting] = tuple(by_number[n][key] if n in by_number else None for n in range(COUNT))
    if anonymous:
        result["ratelimit"] = None
    return result


def show(tool: str, interface: str) -> list[list[str]]:
    """The commands that read a state. ``-a`` shows traffic classes without a priority, too."""
    return [[tool, "-i", interface, "-a"]]


def read(results: list[tuple[int, str, str]], where: str) -> QosState:
    """A state from the result (rc, stdout, stderr) of :func:`show`."""
    rc, out, err = results[0]
    if rc == 0 or UNSUPPORTED in out:
        return parse(out, where)
    raise SparkError(f"mlnx_qos cannot read the settings: {command_error(rc, out, err)}", where, READ_REMEDY)


def steps(tool: str, interface: str, state: QosState, goal: QosState) -> list[Step]:
    """The commands that lead from ``state`` to ``goal``: one per setting, so that a failure tells what is in force."""
    different = changes(state, goal)
    plan: list[Step] = []

    def add(names: tuple[str, ...], *options: str) -> None:
        settings = tuple(name for name in names if name in different)
        plan.append(Step(settings, (tool, "-i", interface, *options)))

    if "trust" in different:
        add(("trust",), "--trust", str(goal.trust))
    if "dscp2prio" in different:
        # trust and dscp2prio are refused in one call. An entry is replaced by setting it: the driver drops the old one.
        to_set, to_delete = dscp_entries(state, goal)
        actions = [f"set,{dscp},{priority}" for dscp, priority in to_set.items()]
        actions += [f"del,{dscp},{priority}" for dscp, priority in to_delete.items()]
        add(("dscp2prio",), *(word for action in actions for word in ("--dscp2prio", action)))
    ets: list[str] = []
    if "prio_tc" in different:
        ets += ["--prio_tc", _join(goal.prio_tc)]
    if "tsa" in different or "tcbw" in different:
        ets += ["--tsa", _join(goal.tsa), "--tcbw", _join(goal.tcbw)]
    if ets:
        add(("prio_tc", "tsa", "tcbw"), *ets)
    if "ratelimit" in different:
        add(("ratelimit",), "--ratelimit", ",".join(f"{rate or 0:.0f}" for rate in goal.ratelimit or ()))
    if "pfc" in different or "cable_len" in different:
        # Always both: up to 24.10 --cable_len alone switches PFC off. A mask that stays the same bounces nothing.
        cable = ["--cable_len", str(goal.cable_len)] if goal.cable_len else []
        add(("pfc", "cable_len"), "--pfc", _join(goal.pfc), *cable)
    buffers: list[str] = []
    if "prio2buffer" in different:
        buffers += ["--prio2buffer", _join(goal.prio2buffer)]
    if "buffer_size" in different:
        buffers += ["--buffer_size", _join(goal.buffer_size)]
    if buffers:
        add(("prio2buffer", "buffer_size"), *buffers)
    return plan


def _join(values: tuple[Any, ...] | None) -> str:
    return ",".join(map(str, values or ()))
