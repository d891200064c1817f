# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""QoS of one RoCE interface: what it is, what is wanted, and the difference.

``_qos.dcb`` turns a command's output into a :class:`QosState` and a pair of states into
:class:`Step`\\ s. Everything here is pure. Limits come from the mlx5 driver (Linux ``en_dcbnl.c``) and IEEE 802.1Qaz.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError

COUNT = 8  # priorities, traffic classes and receive buffers: eight each
DSCP_COUNT = 64
TSA = ("strict", "ets", "vendor")
TRUST = ("pcp", "dscp")
# The map that the firmware starts with.
DEFAULT_DSCP2PRIO: Mapping[int, int] = {dscp: dscp >> 3 for dscp in range(DSCP_COUNT)}
# In the order in which they are applied: what bounces the link or needs PFC comes last.
SETTINGS = (
    "trust",
    "dscp2prio",
    "prio_tc",
    "tsa",
    "tcbw",
    "pfc",
    "cable_len",
    "prio2buffer",
    "buffer_size",
)
# Lowest and highest value of each list.
LIST_RANGES: Mapping[str, tuple[int, int]] = {
    "pfc": (0, 1),
    "prio_tc": (0, COUNT - 1),
    "tcbw": (0, 100),
    "prio2buffer": (0, COUNT - 1),
    "buffer_size": (0, 2**32 - 1),
}
CABLE_RANGE = (1, 999)  # metres; mlx5 ignores 0 and everything from 1000 on without an error
BUFFER_CELLS = (144, 128)  # bytes; receive buffers are multiples of the NIC's cell, 144 on ConnectX-7
_INTERFACE = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.-]{0,14}")


@dataclass(frozen=True)
class QosState:
    """What an interface has. ``None`` means that the NIC does not report it."""

    dcbx: str | None = None  # "os" or "firmware": who owns the settings
    trust: str | None = None  # "pcp" or "dscp"
    dscp2prio: Mapping[int, int] = field(default_factory=dict)  # empty unless trust is "dscp"
    default_priority: tuple[int, ...] = ()
    pfc: tuple[int, ...] | None = None  # 0 or 1 per priority
    prio_tc: tuple[int, ...] | None = None  # traffic class per priority
    tsa: tuple[str, ...] | None = None  # per traffic class
    tcbw: tuple[int, ...] | None = None  # percent per traffic class, 0 unless its tsa is "ets"
    cable_len: int | None = None  # metres; 0 when the NIC has no buffer control
    prio2buffer: tuple[int, ...] | None = None
    buffer_size: tuple[int, ...] | None = None  # bytes per receive buffer
    buffer_total: int | None = None  # bytes

    def as_dict(self) -> dict[str, Any]:
        """Plain lists and mappings; DSCP codes become strings, as JSON has no other keys."""
        plain = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
        plain["dscp2prio"] = {str(dscp): self.dscp2prio[dscp] for dscp in sorted(self.dscp2prio)}
        return plain

    def for_diff(self) -> dict[str, Any]:
        """The settings with one line each, the DSCP map with one line per priority."""
        lines: dict[str, Any] = {name: readable(getattr(self, name)) for name in SETTINGS}
        codes: dict[str, list[int]] = {}
        for dscp in sorted(self.dscp2prio):
            codes.setdefault(f"priority {self.dscp2prio[dscp]}", []).append(dscp)
        lines["dscp2prio"] = {priority: readable(tuple(codes[priority])) for priority in sorted(codes)}
        return lines


@dataclass(frozen=True)
class Wanted:
    """What the user asked for. ``None`` means "leave as it is"."""

    trust: str | None = None
    dscp2prio: Mapping[int, int] | None = None
    dscp2prio_purge: bool = False
    prio_tc: tuple[int, ...] | None = None
    tsa: tuple[str, ...] | None = None
    tcbw: tuple[int, ...] | None = None
    pfc: tuple[int, ...] | None = None
    cable_len: int | None = None
    prio2buffer: tuple[int, ...] | None = None
    buffer_size: tuple[int, ...] | None = None

    def names(self) -> list[str]:
        return [name for name in SETTINGS if getattr(self, name) is not None]


@dataclass(frozen=True)
class Step:
    """One command and the settings that it changes."""

    settings: tuple[str, ...]
    argv: tuple[str, ...]


def interface_name(name: str) -> str:
    """Refuse what cannot be a netdev name (it ends up in a path and in an argument list)."""
    if not _INTERFACE.fullmatch(name) or name in (".", ".."):
        raise SparkError(
            f"{name!r} is not an interface name", "option interface", "Give a netdev, for example enp1s0f0np0"
        )
    return name


def wanted(params: Mapping[str, Any], where: str) -> Wanted:
    """Check options and return them typed. All problems are reported at once."""
    problems: list[str] = []
    values: dict[str, Any] = {}
    for name, limits in LIST_RANGES.items():
        if params.get(name) is not None:
            problems += list_problems(name, params[name], limits)
            values[name] = tuple(params[name])
    if params.get("tsa") is not None:
        values["tsa"] = tuple(params["tsa"])
        problems += length_problems("tsa", params["tsa"])
        problems += [
            f"tsa[{index}] is {value!r}, expected one of {', '.join(TSA)}"
            for index, value in enumerate(params["tsa"])
            if value not in TSA
        ]
    if params.get("dscp2prio") is not None:
        values["dscp2prio"], bad = dscp_map(params["dscp2prio"])
        problems += bad
    if params.get("trust") is not None:
        values["trust"] = params["trust"]
        if params["trust"] not in TRUST:
            problems.append(f"trust is {params['trust']!r}, expected one of {', '.join(TRUST)}")
    if params.get("cable_len") is not None:
        values["cable_len"] = params["cable_len"]
        problems += range_problems("cable_len", params["cable_len"], CABLE_RANGE)
    values["dscp2prio_purge"] = bool(params.get("dscp2prio_purge"))
    if values["dscp2prio_purge"] and "dscp2prio" not in values:
        problems.append("dscp2prio_purge is set but dscp2prio is not: there is nothing to keep")
    if problems:
        raise SparkError("; ".join(problems), where, "Correct the options; nothing was changed")
    return Wanted(**values)


def length_problems(name: str, values: Sequence[Any]) -> list[str]:
    if len(values) == COUNT:
        return []
    per = "priority" if name in ("pfc", "prio_tc", "prio2buffer") else "buffer" if name == "buffer_size" else "class"
    return [f"{name} has {len(values)} items, expected {COUNT}, one per {per} from 0 to {COUNT - 1}"]


def range_problems(name: str, value: int, limits: tuple[int, int]) -> list[str]:
    low, high = limits
    return [] if low <= value <= high else [f"{name} is {value}, expected {low} to {high}"]


def list_problems(name: str, values: Sequence[int], limits: tuple[int, int]) -> list[str]:
    problems = length_problems(name, values)
    for index, value in enumerate(values):
        problems += range_problems(f"{name}[{index}]", value, limits)
    return problems


def dscp_map(values: Mapping[Any, Any]) -> tuple[dict[int, int], list[str]]:
    """The option ``dscp2prio`` with whole numbers, and what is wrong with it."""
    mapping: dict[int, int] = {}
    problems: list[str] = []
    for key, value in values.items():
        entry = f"dscp2prio entry {key}: {value}"
        try:
            dscp, priority = int(str(key)), int(str(value))
        except ValueError:
            problems.append(f"{entry} is not a pair of whole numbers")
            continue
        if not (0 <= dscp < DSCP_COUNT and 0 <= priority < COUNT):
            problems.append(f"{entry} is outside DSCP 0 to {DSCP_COUNT - 1} and priority 0 to {COUNT - 1}")
        mapping[dscp] = priority
    return mapping, problems


def target(state: QosState, want: Wanted, where: str) -> QosState:
    """The state after ``want`` is applied to ``state``. Refuses what the NIC cannot do or what contradicts itself."""
    unsupported = [name for name in want.names() if not supported(state, name)]
    if unsupported:
        raise SparkError(
            f"the NIC or its driver does not report {', '.join(unsupported)}, so it cannot be set",
            where,
            f"Leave out {', '.join(unsupported)} for this interface",
        )
    trust = want.trust or state.trust
    buffers = state.buffer_size
    if want.buffer_size is not None:
        buffers = whole_cells(state, want.buffer_size)
        if state.buffer_total is not None and sum(buffers) > state.buffer_total:
            raise SparkError(
                f"buffer_size adds up to {sum(buffers)} bytes, the port has {state.buffer_total}",
                where,
                "Lower the sizes",
            )
    tsa, tcbw = bandwidth(state, want, where)
    return replace(
        state,
        trust=trust,
        dscp2prio=dscp_target(state, want, trust, where),
        pfc=state.pfc if want.pfc is None else want.pfc,
        prio_tc=state.prio_tc if want.prio_tc is None else want.prio_tc,
        tsa=tsa,
        tcbw=tcbw,
        cable_len=state.cable_len if want.cable_len is None else want.cable_len,
        prio2buffer=state.prio2buffer if want.prio2buffer is None else want.prio2buffer,
        buffer_size=buffers,
    )


def supported(state: QosState, name: str) -> bool:
    if name == "dscp2prio":
        return state.trust is not None
    if name == "cable_len":
        return bool(state.cable_len)  # mlx5 starts with 7 and reports 0 only without buffer control
    return getattr(state, name) is not None


def dscp_base(state: QosState, trust: str | None) -> Mapping[int, int]:
    """The map that the NIC has once it has ``trust``, before single entries are set."""
    if trust != "dscp":
        return {}
    return state.dscp2prio if state.trust == "dscp" else DEFAULT_DSCP2PRIO


def dscp_target(state: QosState, want: Wanted, trust: str | None, where: str) -> Mapping[int, int]:
    base = dscp_base(state, trust)
    if want.dscp2prio is None:
        return base
    if want.dscp2prio and trust != "dscp":
        raise SparkError(
            f"dscp2prio needs trust dscp, but trust {'is' if want.trust is None else 'should be'} {trust}",
            where,
            "Set trust: dscp as well, or leave out dscp2prio",
        )
    mapping = dict(want.dscp2prio) if want.dscp2prio_purge else {**base, **want.dscp2prio}
    if trust == "dscp" and not mapping:
        raise SparkError(
            "dscp2prio without an entry would remove the whole map, and with it trust dscp",
            where,
            "Set trust: pcp if that is what you want, or name at least one entry",
        )
    return mapping


def bandwidth(state: QosState, want: Wanted, where: str) -> tuple[tuple[str, ...] | None, tuple[int, ...] | None]:
    """Transmission algorithm and bandwidth per class. The shares of all ``ets`` classes have to add up to 100."""
    tsa = state.tsa if want.tsa is None else want.tsa
    if want.tsa is None and want.tcbw is None:
        return tsa, state.tcbw
    known = tsa or ()
    unknown = [str(index) for index, name in enumerate(known) if name not in TSA]
    if unknown:
        raise SparkError(
            f"tcbw cannot be set: the algorithm of class {', '.join(unknown)} is not known", where, "Give tsa as well"
        )
    if want.tcbw is None:
        current = state.tcbw or (0,) * COUNT
        # A class that becomes ets has no share yet; a class that stops being ets gives its share back.
        shares = tuple(
            current[index] if known[index] == "ets" and state.tsa and state.tsa[index] == "ets" else 0
            for index in range(COUNT)
        )
    else:
        shares = want.tcbw
    idle = [index for index in range(COUNT) if shares[index] and known[index] != "ets"]
    if idle:
        raise SparkError(
            "; ".join(f"tcbw[{index}] is {shares[index]} but class {index} has tsa {known[index]}" for index in idle),
            where,
            "Give a share to ets classes only, 0 to all others",
        )
    total = sum(shares)
    if "ets" in known and total != 100:
        origin = "tcbw" if want.tcbw is not None else "the present tcbw"
        raise SparkError(
            f"{origin} adds up to {total} over the ets classes, expected 100", where, "Give tcbw with shares of 100"
        )
    return tsa, shares


def buffer_cell(state: QosState) -> int:
    """Bytes of one buffer cell, told from the present sizes; 1 when they do not tell."""
    sizes = [*(state.buffer_size or ()), state.buffer_total or 0]
    fitting = [cell for cell in BUFFER_CELLS if any(sizes) and all(size % cell == 0 for size in sizes)]
    return fitting[0] if len(fitting) == 1 else 1


def whole_cells(state: QosState, sizes: Sequence[int]) -> tuple[int, ...]:
    """Sizes as the NIC will keep them: mlx5 rounds down to whole cells."""
    cell = buffer_cell(state)
    return tuple(size - size % cell for size in sizes)


def changes(state: QosState, goal: QosState) -> list[str]:
    """Names of the settings that differ, in the order of :data:`SETTINGS`.

    A DSCP map that comes or goes with the trust state by itself is not a change of its own.
    """
    before = replace(state, dscp2prio=dscp_base(state, goal.trust))
    different = {name for name in SETTINGS if getattr(before, name) != getattr(goal, name)}
    return [name for name in SETTINGS if name in different]


def dscp_entries(state: QosState, goal: QosState) -> tuple[dict[int, int], dict[int, int]]:
    """DSCP entries to set and to delete, once the trust state is right."""
    base = dscp_base(state, goal.trust)
    to_set = {dscp: goal.dscp2prio[dscp] for dscp in sorted(goal.dscp2prio) if base.get(dscp) != goal.dscp2prio[dscp]}
    to_delete = {dscp: base[dscp] for dscp in sorted(base) if dscp not in goal.dscp2prio}
    return to_set, to_delete


def mismatch(state: QosState, goal: QosState) -> str:
    """One clause per setting that the NIC did not take over."""
    return "; ".join(
        f"{name} should be {readable(getattr(goal, name))} but is {readable(getattr(state, name))}"
        for name in changes(state, goal)
    )


def readable(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if isinstance(value, Mapping):
        return ",".join(f"{key}:{value[key]}" for key in sorted(value)) or "empty"
    return str(value)


def as_wanted(state: QosState, names: Sequence[str]) -> Wanted:
    """The options that lead back to ``state`` in the named settings. Without trust dscp there is no map to restore."""
    values = {name: getattr(state, name) for name in names if name not in ("trust", "dscp2prio")}
    if {"trust", "dscp2prio"} & set(names):
        values["trust"] = state.trust
        if state.trust == "dscp" and state.dscp2prio:
            values.update(dscp2prio=dict(state.dscp2prio), dscp2prio_purge=True)
    if {"tsa", "tcbw"} & set(names):
        values.update(tsa=state.tsa, tcbw=state.tcbw)
    return Wanted(**values)
