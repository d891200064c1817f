# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""``dcb`` of iproute2: reads its JSON (and the text of ``app``) and builds its command lines.

Source of the format: iproute2 ``dcb/*.c``, 5.11 to 7.1. Two of its objects are left alone: ``maxrate`` mixes up bits
and bytes before 6.18 (fix e7d4c060), and ``apptrust`` is not implemented by mlx5, which trusts DSCP exactly as long as
a ``dscp-prio`` entry exists. ``app`` prints invalid JSON in 6.1, hence its text.
"""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import NOT_FOUND, Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._qos.state import (
    COUNT,
    DSCP_COUNT,
    QosState,
    Step,
    changes,
    dscp_entries,
)

NAME = "dcb"
OBJECTS = ("dcbx", "pfc", "app")
REPORT = "Report it with the output of the command and of: dcb -V"
READ_REMEDY = "Run the module as root (become: true) and try the command by hand"
_SELECTOR = re.compile(r"[a-z]+(?:-[a-z]+)*-prio")
_PAIR = re.compile(r"([0-9]{1,2}):([0-7])")


def parse_json(text: str, name: str, where: str) -> dict[str, Any]:
    """One JSON object, as ``dcb -j <name> show dev IF`` prints it."""
    with json_text.Reading(f"dcb {name} printed {text.strip()[:120]!r}", where, REPORT):
        return json_text.mapping(text, pairs=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of a key that comes twice nobody knows which one counts."""
    if len({name for name, _value in pairs}) != len(pairs):
        raise ValueError("a key comes twice")
    return dict(pairs)


def parse_dcbx(text: str, where: str = NAME) -> str:
    """``{"host": true, "ieee": true}`` gives ``os``; without the flag ``host`` the firmware owns the settings."""
    flags = parse_json(text, "dcbx", where)
    wrong = [name for name, value in flags.items() if not isinstance(value, bool)]
    if wrong:
        raise SparkError(f"dcb dcbx: {wrong[0][:40]!r} is {flags[wrong[0]]!r}, expected true or false", where, REPORT)
    return "os" if flags.get("host") else "firmware"


def parse_pfc(text: str, where: str = NAME) -> tuple[int, ...]:
    """0 or 1 per priority."""
    values = parse_json(text, "pfc", where).get("prio_pfc")
    if not isinstance(values, list) or len(values) != COUNT or not all(isinstance(value, bool) for value in values):
        raise SparkError(f"dcb pfc: prio_pfc is {values!r}, expected {COUNT} booleans", where, REPORT)
    return tuple(map(int, values))


def parse_app(text: str, where: str = NAME) -> dict[int, int]:
    """Priority by DSCP from the text of ``dcb -N app show dev IF``.

    One line per selector, for example ``dscp-prio 26:3 30:6`` or ``default-prio 0``; no line when there is no entry.
    """
    mapping: dict[int, int] = {}
    for lineno, raw in enumerate(text.split("\n"), start=1):
        words = raw.split()
        if not words:
            continue
        try:
            if words[0] == "dscp-prio":
                _add_pairs(mapping, words[1:])
            elif not _SELECTOR.fullmatch(words[0]):
                raise ValueError("unknown selector")
        except ValueError as exc:
            found = f"dcb app: line {lineno} is not understood ({exc}): {raw.strip()[:120]!r}"
            raise SparkError(found, where, REPORT) from None
    return mapping


def _add_pairs(mapping: dict[int, int], words: list[str]) -> None:
    for word in words:
        match = _PAIR.fullmatch(word)
        if not match or int(match.group(1)) >= DSCP_COUNT:
            raise ValueError(f"{word[:40]!r} is not DSCP:PRIORITY in numbers")
        dscp = int(match.group(1))
        if dscp in mapping:
            raise ValueError(f"DSCP {dscp} occurs twice")
        mapping[dscp] = int(match.group(2))


def show(interface: str) -> list[list[str]]:
    """The commands that read a state, in the order of :data:`OBJECTS`."""
    return [[NAME, "-N" if name == "app" else "-j", name, "show", "dev", interface] for name in OBJECTS]


def read(results: list[Completed], where: str) -> QosState:
    """A state from the results of :func:`show`. PFC is required, the rest may be missing."""
    values: dict[str, Any] = {}
    for name, done in zip(OBJECTS, results):
        if done.rc == NOT_FOUND:
            raise SparkError("the command dcb is not installed", where, "Install it: apt-get install iproute2")
        if done.rc != 0:
            _check_absent(name, complaint(done), where)
        elif name == "dcbx":
            values["dcbx"] = parse_dcbx(done.out, where)
        elif name == "pfc":
            values["pfc"] = parse_pfc(done.out, where)
        else:
            mapping = parse_app(done.out, where)
            values.update(trust="dscp" if mapping else "pcp", dscp2prio=mapping)
    return QosState(**values)


def _check_absent(name: str, error: str, where: str) -> None:
    """Accept that an optional object is not there; refuse everything else."""
    absent = "Operation not supported" in error or error.startswith("Attribute not found")
    if absent and name != "pfc":
        return
    if absent:
        raise SparkError(
            "the NIC or its driver has no DCB support",
            where,
            "Name a ConnectX netdev (driver mlx5_core, not a virtual function or a bond), see "
            "/sys/class/net/*/device/driver",
        )
    raise SparkError(f"dcb cannot read {name}: {error}", where, READ_REMEDY)


def complaint(done: Completed) -> str:
    """The line of a failed command that names the reason: its usage may follow."""
    lines = [line.strip() for line in (*done.err.splitlines(), *done.out.splitlines()) if line.strip()]
    return lines[0] if lines else f"exit code {done.rc} without a message"


def steps(interface: str, state: QosState, goal: QosState) -> list[Step]:
    """The commands that lead from ``state`` to ``goal``, one per dcb object."""
    different = changes(state, goal)
    plan: list[Step] = []

    def add(names: tuple[str, ...], name: str, verb: str, *options: str) -> None:
        settings = tuple(setting for setting in names if setting in different)
        plan.append(Step(settings, (NAME, name, verb, "dev", interface, *options)))

    if "trust" in different and goal.trust == "pcp":
        add(("trust", "dscp2prio"), "app", "flush", "dscp-prio")
    elif "trust" in different:
        add(("trust", "dscp2prio"), "app", "add", "dscp-prio", *_pairs(goal.dscp2prio.items()))
    elif "dscp2prio" in different:
        # "add" and not "replace": mlx5 drops the old entry of a DSCP itself, and "replace" then fails to delete it.
        to_set, to_delete = dscp_entries(state, goal)
        if to_set:
            add(("dscp2prio",), "app", "add", "dscp-prio", *_pairs(to_set.items()))
        if to_delete:
            add(("dscp2prio",), "app", "del", "dscp-prio", *_pairs(to_delete.items()))
    if "pfc" in different:
        add(("pfc",), "pfc", "set", "prio-pfc", "all:off", *(f"{prio}:on" for prio, on in enumerate(goal.pfc) if on))
    return plan


def _pairs(items: Any) -> list[str]:
    return [f"{key}:{value}" for key, value in items]
