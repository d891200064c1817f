# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""QoS of one RoCE interface: what it is, what is wanted, and the difference.

``_qos.dcb`` turns a command's output into a :class:`QosState` and a pair of states into
:class:`Step`\\ s. Everything here is pure. Limits come from the mlx5 driver (Linux ``en_dcbnl.c``) and IEEE 802.1Qaz.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Optional

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Count, Word

COUNT = 8  # priorities
DSCP_COUNT = 64
TRUST = ("pcp", "dscp")
# The map that the firmware starts with.
DEFAULT_DSCP2PRIO: Mapping[int, int] = {dscp: dscp >> 3 for dscp in range(DSCP_COUNT)}
# In the order in which they are applied: what bounces the link comes last.
SETTINGS = ("trust", "dscp2prio", "pfc")
_INTERFACE = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.-]{0,14}")


def _dscp(value: Any) -> int:
    known = int(value) if isinstance(value, str) and value.isdecimal() else value
    return int(strict.whole(0, DSCP_COUNT - 1)(known))


@dataclass(frozen=True)
class QosState:
    """What an interface has. ``None`` means that the NIC does not report it."""

    dcbx: Optional[Word] = None  # "os" or "firmware": who owns the settings
    trust: Optional[Word] = None  # "pcp" or "dscp"
    dscp2prio: Mapping[Annotated[int, _dscp], Count] = field(default_factory=dict)  # empty unless trust is "dscp"
    pfc: tuple[Count, ...] = ()  # 0 or 1 per priority

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
    pfc: tuple[int, ...] | None = None


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
    if params.get("pfc") is not None:
        values["pfc"] = tuple(params["pfc"])
        if len(values["pfc"]) != COUNT or not set(values["pfc"]) <= {0, 1}:
            problems.append(f"pfc is {params['pfc']}, expected {COUNT} times 0 or 1, one per priority")
    if params.get("dscp2prio") is not None:
        values["dscp2prio"], bad = dscp_map(params["dscp2prio"])
        problems += bad
    if params.get("trust") is not None:
        values["trust"] = params["trust"]
        if params["trust"] not in TRUST:
            problems.append(f"trust is {params['trust']!r}, expected one of {', '.join(TRUST)}")
    values["dscp2prio_purge"] = bool(params.get("dscp2prio_purge"))
    if values["dscp2prio_purge"] and "dscp2prio" not in values:
        problems.append("dscp2prio_purge is set but dscp2prio is not: there is nothing to keep")
    if problems:
        raise SparkError("; ".join(problems), where, "Correct the options; nothing was changed")
    return Wanted(**values)


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
    if state.trust is None and (want.trust or want.dscp2prio is not None):
        raise SparkError(
            "the NIC or its driver does not report trust, so it cannot be set",
            where,
            "Leave out trust and dscp2prio for this interface",
        )
    trust = want.trust or state.trust
    pfc = state.pfc if want.pfc is None else want.pfc
    return replace(state, trust=trust, dscp2prio=dscp_target(state, want, trust, where), pfc=pfc)


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
