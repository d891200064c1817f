# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._qos import state as qos_state
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._qos.state import DEFAULT_DSCP2PRIO, QosState, Wanted

OFF = (0,) * 8
FACTORY = QosState(dcbx="os", trust="pcp", pfc=OFF)
DSCP = replace(FACTORY, trust="dscp", dscp2prio=DEFAULT_DSCP2PRIO)


def target(state: QosState, **options: Any) -> QosState:
    return qos_state.target(state, qos_state.wanted(options, "eth0"), "eth0")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "-a", "a b", "a" * 16, "é", "eth0\n", "a:b"])
def test_what_is_no_interface_name(name: str) -> None:
    assert qos_state.interface_name("eth0.100") == "eth0.100"
    with pytest.raises(SparkError, match="is not an interface name"):
        qos_state.interface_name(name)


def test_options() -> None:
    assert qos_state.wanted({"pfc": None, "dscp2prio_purge": None}, "eth0") == Wanted()
    options = {"trust": "dscp", "dscp2prio": {"26": "3", 63: 7}, "dscp2prio_purge": True, "pfc": [0] * 7 + [1]}
    want = qos_state.wanted(options, "eth0")
    assert want == Wanted("dscp", {26: 3, 63: 7}, True, (0,) * 7 + (1,))


@pytest.mark.parametrize(
    "options",
    [
        {"pfc": [0, 0, 0, 1]},
        {"pfc": [0, 0, 0, 2, 0, 0, 0, 0]},
        {"trust": "both"},
        {"dscp2prio": {"64": 3}},
        {"dscp2prio": {"26": 8}},
        {"dscp2prio": {"af31": 3}},
        {"dscp2prio_purge": True},
    ],
)
def test_wrong_options(options: dict[str, Any]) -> None:
    with pytest.raises(SparkError, match=f"{next(iter(options))}.*nothing was changed"):
        qos_state.wanted(options, "eth0")


@pytest.mark.parametrize(
    ("state", "options", "difference", "names"),
    [
        (FACTORY, {}, {}, []),
        (FACTORY, {"pfc": [0, 0, 0, 1, 0, 0, 0, 0]}, {"pfc": (0, 0, 0, 1, 0, 0, 0, 0)}, ["pfc"]),
        (FACTORY, {"trust": "pcp", "dscp2prio": {}, "pfc": [0] * 8}, {}, []),
        (FACTORY, {"trust": "dscp"}, {"trust": "dscp", "dscp2prio": DEFAULT_DSCP2PRIO}, ["trust"]),
        (FACTORY, {"trust": "dscp", "dscp2prio": {26: 4}},
         {"trust": "dscp", "dscp2prio": {**DEFAULT_DSCP2PRIO, 26: 4}}, ["trust", "dscp2prio"]),
        (FACTORY, {"trust": "dscp", "dscp2prio": {26: 3}, "dscp2prio_purge": True},
         {"trust": "dscp", "dscp2prio": {26: 3}}, ["trust", "dscp2prio"]),
        (DSCP, {"dscp2prio": {26: 3}}, {}, []),
        (DSCP, {"dscp2prio": {26: 4}}, {"dscp2prio": {**DEFAULT_DSCP2PRIO, 26: 4}}, ["dscp2prio"]),
        (DSCP, {"trust": "pcp", "dscp2prio": {}, "dscp2prio_purge": True}, {"trust": "pcp", "dscp2prio": {}},
         ["trust"]),
    ],
)  # fmt: skip
def test_targets(state: QosState, options: dict[str, Any], difference: dict[str, Any], names: list[str]) -> None:
    goal = target(state, **options)
    assert goal == replace(state, **difference)
    assert qos_state.changes(state, goal) == names
    assert target(goal, **options) == goal, "a second run has nothing to do"


@pytest.mark.parametrize(
    ("state", "options", "found"),
    [
        (FACTORY, {"dscp2prio": {26: 3}}, "dscp2prio needs trust dscp, but trust is pcp"),
        (DSCP, {"trust": "pcp", "dscp2prio": {26: 3}}, "but trust should be pcp"),
        (DSCP, {"dscp2prio": {}, "dscp2prio_purge": True}, "would remove the whole map"),
        (replace(FACTORY, trust=None), {"trust": "dscp"}, "does not report trust"),
    ],
)
def test_refused_targets(state: QosState, options: dict[str, Any], found: str) -> None:
    with pytest.raises(SparkError, match=found):
        target(state, **options)


def test_dscp_entries() -> None:
    state = replace(DSCP, dscp2prio={1: 1, 5: 2, 26: 3})
    goal = replace(DSCP, dscp2prio={30: 6, 26: 4, 1: 1})
    assert qos_state.dscp_entries(state, goal) == ({26: 4, 30: 6}, {5: 2})
    assert qos_state.dscp_entries(DSCP, FACTORY) == ({}, {})


def test_texts() -> None:
    goal = replace(DSCP, dscp2prio={30: 6, 26: 6})
    assert qos_state.mismatch(replace(DSCP, dscp2prio={}), goal) == "dscp2prio should be 26:6,30:6 but is empty"
    assert goal.for_diff() == {"trust": "dscp", "dscp2prio": {"priority 6": "26,30"}, "pfc": "0,0,0,0,0,0,0,0"}
    assert document.load(QosState, document.plain(goal)) == goal
