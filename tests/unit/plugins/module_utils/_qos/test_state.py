# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._qos import state as qos_state
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._qos.state import DEFAULT_DSCP2PRIO, QosState, Wanted
from hypothesis import given
from hypothesis import strategies as st

OFF = (0,) * 8
VENDOR = ("vendor",) * 8
FACTORY = QosState(
    dcbx="os",
    trust="pcp",
    pfc=OFF,
    prio_tc=(1, 0, 2, 3, 4, 5, 6, 7),
    tsa=VENDOR,
    tcbw=OFF,
    cable_len=7,
    prio2buffer=(1,) * 8,
    buffer_size=(0, 523296, 0, 0, 0, 0, 0, 0),
    buffer_total=2039616,
)
DSCP = replace(FACTORY, trust="dscp", dscp2prio=DEFAULT_DSCP2PRIO)


def target(state: QosState, **options: Any) -> QosState:
    return qos_state.target(state, qos_state.wanted(options, "eth0"), "eth0")


def refusal(call: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(SparkError) as error:
        call(*args, **kwargs)
    return str(error.value)


def test_constants() -> None:
    assert dict(DEFAULT_DSCP2PRIO) == {dscp: dscp // 8 for dscp in range(64)}
    assert list(qos_state.SETTINGS) == [
        "trust", "dscp2prio", "prio_tc", "tsa", "tcbw", "pfc", "cable_len", "prio2buffer", "buffer_size",
    ]  # fmt: skip


# --- names ---


@pytest.mark.parametrize("name", ["enp1s0f0np0", "eth0.100", "x", "a" * 15, "roce-0_1"])
def test_interface_names(name: str) -> None:
    assert qos_state.interface_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "-a", "a b", "a" * 16, "é", "eth0\n", "a:b"])
def test_what_is_no_interface_name(name: str) -> None:
    assert refusal(qos_state.interface_name, name) == (
        f"option interface: {name!r} is not an interface name. Give a netdev, for example enp1s0f0np0."
    )


# --- options ---


def test_no_options() -> None:
    assert qos_state.wanted({}, "eth0") == Wanted()
    assert qos_state.wanted({"pfc": None, "dscp2prio_purge": None}, "eth0").names() == []


def test_all_options() -> None:
    want = qos_state.wanted(
        {
            "trust": "dscp",
            "dscp2prio": {"26": "3", 63: 7, "0": 0},
            "dscp2prio_purge": True,
            "prio_tc": [7, 0, 0, 3, 0, 0, 6, 0],
            "tsa": ["strict", "ets", "vendor", "ets", "ets", "ets", "ets", "ets"],
            "tcbw": [0, 100, 0, 0, 0, 0, 0, 0],
            "pfc": [0, 0, 0, 1, 0, 0, 0, 0],
            "cable_len": 999,
            "prio2buffer": [0, 7, 0, 0, 0, 0, 0, 0],
            "buffer_size": [2**32 - 1, 0, 0, 0, 0, 0, 0, 0],
            "interface": "eth0",
        },
        "eth0",
    )
    assert want == Wanted(
        trust="dscp",
        dscp2prio={26: 3, 63: 7, 0: 0},
        dscp2prio_purge=True,
        prio_tc=(7, 0, 0, 3, 0, 0, 6, 0),
        tsa=("strict", "ets", "vendor", "ets", "ets", "ets", "ets", "ets"),
        tcbw=(0, 100, 0, 0, 0, 0, 0, 0),
        pfc=(0, 0, 0, 1, 0, 0, 0, 0),
        cable_len=999,
        prio2buffer=(0, 7, 0, 0, 0, 0, 0, 0),
        buffer_size=(2**32 - 1, 0, 0, 0, 0, 0, 0, 0),
    )
    assert want.names() == list(qos_state.SETTINGS)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"pfc": [0, 0, 0, 1]}, "pfc has 4 items, expected 8, one per priority from 0 to 7"),
    ({"pfc": []}, "pfc has 0 items, expected 8, one per priority from 0 to 7"),
    ({"prio_tc": [0] * 9}, "prio_tc has 9 items, expected 8, one per priority from 0 to 7"),
    ({"prio2buffer": [0]}, "prio2buffer has 1 items, expected 8, one per priority from 0 to 7"),
    ({"buffer_size": [0]}, "buffer_size has 1 items, expected 8, one per buffer from 0 to 7"),
    ({"tsa": ["ets"]}, "tsa has 1 items, expected 8, one per class from 0 to 7"),
    ({"tcbw": [100]}, "tcbw has 1 items, expected 8, one per class from 0 to 7"),
    ({"pfc": [0, 0, 0, 2, 0, 0, 0, 0]}, "pfc[3] is 2, expected 0 to 1"),
    ({"pfc": [0, 0, 0, 0, 0, 0, 0, -1]}, "pfc[7] is -1, expected 0 to 1"),
    ({"prio_tc": [8] + [0] * 7}, "prio_tc[0] is 8, expected 0 to 7"),
    ({"tcbw": [101] + [0] * 7}, "tcbw[0] is 101, expected 0 to 100"),
    ({"prio2buffer": [8] + [0] * 7}, "prio2buffer[0] is 8, expected 0 to 7"),
    ({"buffer_size": [2**32] + [0] * 7}, "buffer_size[0] is 4294967296, expected 0 to 4294967295"),
    ({"buffer_size": [-1] + [0] * 7}, "buffer_size[0] is -1, expected 0 to 4294967295"),
    ({"tsa": ["ets"] * 7 + ["cbs"]}, "tsa[7] is 'cbs', expected one of strict, ets, vendor"),
    ({"trust": "both"}, "trust is 'both', expected one of pcp, dscp"),
    ({"cable_len": 0}, "cable_len is 0, expected 1 to 999"),
    ({"cable_len": 1000}, "cable_len is 1000, expected 1 to 999"),
    ({"dscp2prio": {"64": 3}}, "dscp2prio entry 64: 3 is outside DSCP 0 to 63 and priority 0 to 7"),
    ({"dscp2prio": {"-1": 3}}, "dscp2prio entry -1: 3 is outside DSCP 0 to 63 and priority 0 to 7"),
    ({"dscp2prio": {"26": 8}}, "dscp2prio entry 26: 8 is outside DSCP 0 to 63 and priority 0 to 7"),
    ({"dscp2prio": {"26": -1}}, "dscp2prio entry 26: -1 is outside DSCP 0 to 63 and priority 0 to 7"),
    ({"dscp2prio": {"af31": 3, "26": 3}}, "dscp2prio entry af31: 3 is not a pair of whole numbers"),
    ({"dscp2prio": {"26": 3.5}}, "dscp2prio entry 26: 3.5 is not a pair of whole numbers"),
    (
        {"dscp2prio": {"26": None, "0x1": 1}},
        "dscp2prio entry 26: None is not a pair of whole numbers; "
        "dscp2prio entry 0x1: 1 is not a pair of whole numbers",
    ),
    ({"dscp2prio_purge": True}, "dscp2prio_purge is set but dscp2prio is not: there is nothing to keep"),
    (
        {
            "cable_len": 0,
            "dscp2prio": {"26": 9},
            "pfc": [0] * 7 + [2],
            "prio_tc": [0] * 7 + [8],
            "trust": "x",
            "tsa": ["ets"],
        },
        "pfc[7] is 2, expected 0 to 1; prio_tc[7] is 8, expected 0 to 7; tsa has 1 items, expected 8, one per class "
        "from 0 to 7; dscp2prio entry 26: 9 is outside DSCP 0 to 63 and priority 0 to 7; trust is 'x', expected one of "
        "pcp, dscp; cable_len is 0, expected 1 to 999",
    ),
    (
        {"pfc": [2], "cable_len": -5},
        "pfc has 1 items, expected 8, one per priority from 0 to 7; pfc[0] is 2, expected 0 to 1; "
        "cable_len is -5, expected 1 to 999",
    ),
]


@pytest.mark.parametrize(("options", "found"), WRONG)
def test_wrong_options(options: dict[str, Any], found: str) -> None:
    assert refusal(qos_state.wanted, options, "eth0") == f"eth0: {found}. Correct the options; nothing was changed."


# --- target ---


def test_nothing_wanted_changes_nothing() -> None:
    for state in (FACTORY, DSCP, QosState(), replace(FACTORY, tsa=("???",) * 8)):
        assert target(state) == state
        assert qos_state.changes(state, target(state)) == []


SIMPLE: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    ({"pfc": [0, 0, 0, 1, 0, 0, 0, 0]}, {"pfc": (0, 0, 0, 1, 0, 0, 0, 0)}, ["pfc"]),
    ({"pfc": [0] * 8}, {}, []),
    ({"prio_tc": list(range(8))}, {"prio_tc": tuple(range(8))}, ["prio_tc"]),
    ({"cable_len": 30}, {"cable_len": 30}, ["cable_len"]),
    ({"cable_len": 7}, {}, []),
    ({"prio2buffer": [0] * 8}, {"prio2buffer": OFF}, ["prio2buffer"]),
    ({"trust": "pcp"}, {}, []),
    ({"trust": "pcp", "dscp2prio": {}}, {}, []),
    ({"trust": "dscp"}, {"trust": "dscp", "dscp2prio": DEFAULT_DSCP2PRIO}, ["trust"]),
    (
        {"trust": "dscp", "dscp2prio": {26: 4}},
        {"trust": "dscp", "dscp2prio": {**DEFAULT_DSCP2PRIO, 26: 4}},
        ["trust", "dscp2prio"],
    ),
    ({"trust": "dscp", "dscp2prio": {26: 3}}, {"trust": "dscp", "dscp2prio": DEFAULT_DSCP2PRIO}, ["trust"]),
    (
        {"trust": "dscp", "dscp2prio": {26: 3}, "dscp2prio_purge": True},
        {"trust": "dscp", "dscp2prio": {26: 3}},
        ["trust", "dscp2prio"],
    ),
    (
        {"tsa": ["ets"] * 8, "tcbw": [50, 50, 0, 0, 0, 0, 0, 0]},
        {"tsa": ("ets",) * 8, "tcbw": (50, 50, 0, 0, 0, 0, 0, 0)},
        ["tsa", "tcbw"],
    ),
    ({"tsa": ["strict"] * 8}, {"tsa": ("strict",) * 8}, ["tsa"]),
    ({"tcbw": [0] * 8}, {}, []),
    (
        {"cable_len": 8, "pfc": [1] * 8, "trust": "dscp", "prio_tc": [0] * 8},
        {"cable_len": 8, "pfc": (1,) * 8, "trust": "dscp", "dscp2prio": DEFAULT_DSCP2PRIO, "prio_tc": OFF},
        ["trust", "prio_tc", "pfc", "cable_len"],
    ),
]


@pytest.mark.parametrize(("options", "difference", "names"), SIMPLE)
def test_target_from_the_factory_state(options: dict[str, Any], difference: dict[str, Any], names: list[str]) -> None:
    goal = target(FACTORY, **options)
    assert goal == replace(FACTORY, **difference)
    assert qos_state.changes(FACTORY, goal) == names
    assert target(goal, **options) == goal, "a second run has nothing to do"


FROM_DSCP: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    ({"dscp2prio": {26: 3}}, {}, []),
    ({"dscp2prio": {26: 4}}, {"dscp2prio": {**DEFAULT_DSCP2PRIO, 26: 4}}, ["dscp2prio"]),
    ({"dscp2prio": {26: 3}, "dscp2prio_purge": True}, {"dscp2prio": {26: 3}}, ["dscp2prio"]),
    ({"dscp2prio": {}}, {}, []),
    ({"trust": "dscp"}, {}, []),
    ({"trust": "pcp"}, {"trust": "pcp", "dscp2prio": {}}, ["trust"]),
    ({"trust": "pcp", "dscp2prio": {}, "dscp2prio_purge": True}, {"trust": "pcp", "dscp2prio": {}}, ["trust"]),
]


@pytest.mark.parametrize(("options", "difference", "names"), FROM_DSCP)
def test_target_from_trust_dscp(options: dict[str, Any], difference: dict[str, Any], names: list[str]) -> None:
    goal = target(DSCP, **options)
    assert goal == replace(DSCP, **difference)
    assert qos_state.changes(DSCP, goal) == names


REFUSED: list[tuple[QosState, dict[str, Any], str]] = [
    (
        FACTORY,
        {"dscp2prio": {26: 3}},
        "dscp2prio needs trust dscp, but trust is pcp. Set trust: dscp as well, or leave out dscp2prio.",
    ),
    (
        DSCP,
        {"trust": "pcp", "dscp2prio": {26: 3}},
        "dscp2prio needs trust dscp, but trust should be pcp. Set trust: dscp as well, or leave out dscp2prio.",
    ),
    (
        DSCP,
        {"dscp2prio": {}, "dscp2prio_purge": True},
        "dscp2prio without an entry would remove the whole map, and with it trust dscp. "
        "Set trust: pcp if that is what you want, or name at least one entry.",
    ),
    (
        replace(FACTORY, trust=None),
        {"trust": "dscp", "dscp2prio": {26: 3}, "pfc": [0] * 8},
        "the NIC or its driver does not report trust, dscp2prio, so it cannot be set. "
        "Leave out trust, dscp2prio for this interface.",
    ),
    (
        replace(FACTORY, cable_len=0, prio2buffer=None, buffer_size=None),
        {"cable_len": 7, "prio2buffer": [0] * 8, "buffer_size": [0] * 8},
        "the NIC or its driver does not report cable_len, prio2buffer, buffer_size, so it cannot be set. "
        "Leave out cable_len, prio2buffer, buffer_size for this interface.",
    ),
    (
        replace(FACTORY, cable_len=None, prio_tc=None, tsa=None, tcbw=None, pfc=None),
        {
            "cable_len": 7,
            "prio_tc": [0] * 8,
            "tsa": ["ets"] * 8,
            "tcbw": [100] + [0] * 7,
            "pfc": [0] * 8,
        },
        "the NIC or its driver does not report prio_tc, tsa, tcbw, pfc, cable_len, so it cannot be set. "
        "Leave out prio_tc, tsa, tcbw, pfc, cable_len for this interface.",
    ),
    (
        FACTORY,
        {"buffer_size": [2039616, 144, 0, 0, 0, 0, 0, 0]},
        "buffer_size adds up to 2039760 bytes, the port has 2039616. Lower the sizes.",
    ),
    (
        FACTORY,
        {"tcbw": [50, 0, 0, 50, 0, 0, 0, 0]},
        "tcbw[0] is 50 but class 0 has tsa vendor; tcbw[3] is 50 but class 3 has tsa vendor. "
        "Give a share to ets classes only, 0 to all others.",
    ),
    (
        FACTORY,
        {"tsa": ["ets"] * 7 + ["strict"], "tcbw": [50, 0, 0, 0, 0, 0, 0, 50]},
        "tcbw[7] is 50 but class 7 has tsa strict. Give a share to ets classes only, 0 to all others.",
    ),
    (
        FACTORY,
        {"tsa": ["ets"] * 8, "tcbw": [50, 49, 0, 0, 0, 0, 0, 0]},
        "tcbw adds up to 99 over the ets classes, expected 100. Give tcbw with shares of 100.",
    ),
    (
        FACTORY,
        {"tsa": ["ets"] * 8, "tcbw": [50, 51, 0, 0, 0, 0, 0, 0]},
        "tcbw adds up to 101 over the ets classes, expected 100. Give tcbw with shares of 100.",
    ),
    (
        FACTORY,
        {"tsa": ["ets"] + ["strict"] * 7},
        "the present tcbw adds up to 0 over the ets classes, expected 100. Give tcbw with shares of 100.",
    ),
    (
        replace(FACTORY, tsa=("ets",) * 8, tcbw=(50, 50, 0, 0, 0, 0, 0, 0)),
        {"tsa": ["ets"] + ["strict"] * 7},
        "the present tcbw adds up to 50 over the ets classes, expected 100. Give tcbw with shares of 100.",
    ),
    (
        replace(FACTORY, tsa=("ets",) * 8),
        {"tsa": ["ets"] * 8},
        "the present tcbw adds up to 0 over the ets classes, expected 100. Give tcbw with shares of 100.",
    ),
    (
        replace(FACTORY, tsa=("ets",) * 8, tcbw=None),
        {"tsa": ["ets"] * 8},
        "the present tcbw adds up to 0 over the ets classes, expected 100. Give tcbw with shares of 100.",
    ),
    (
        replace(FACTORY, tsa=("vendor", "???", "cbs", "ets", "ets", "ets", "ets", "ets")),
        {"tcbw": [0] * 8},
        "tcbw cannot be set: the algorithm of class 1, 2 is not known. Give tsa as well.",
    ),
]


@pytest.mark.parametrize(("state", "options", "message"), REFUSED)
def test_refused_targets(state: QosState, options: dict[str, Any], message: str) -> None:
    assert refusal(target, state, **options) == f"eth0: {message}"


def test_classes_keep_their_shares() -> None:
    state = replace(FACTORY, tsa=("ets", "ets", *["vendor"] * 6), tcbw=(60, 40, *[0] * 6))
    goal = target(state, tsa=["ets", "ets", "ets", *["strict"] * 5])
    assert goal.tcbw == (60, 40, 0, 0, 0, 0, 0, 0)
    assert goal.tsa == ("ets", "ets", "ets", *["strict"] * 5)
    assert qos_state.changes(state, goal) == ["tsa"]


def test_a_class_that_leaves_ets_gives_its_share_back() -> None:
    state = replace(FACTORY, tsa=("ets", "ets", *["vendor"] * 6), tcbw=(100, 0, *[0] * 6))
    assert target(state, tsa=["ets"] + ["strict"] * 7).tcbw == (100, *[0] * 7)
    assert target(replace(state, tcbw=(60, 40, *[0] * 6)), tsa=["vendor"] * 8).tcbw == OFF


def test_a_stale_share_of_a_class_that_was_not_ets_does_not_count() -> None:
    state = replace(FACTORY, tcbw=(100,) * 8)
    assert target(state, tsa=["strict"] * 8).tcbw == OFF


def test_unknown_shares_count_as_zero() -> None:
    state = replace(FACTORY, tsa=("ets", "ets", *["strict"] * 6), tcbw=None)
    assert target(state, tsa=["strict"] * 8).tcbw == OFF


def test_unknown_algorithms_do_not_matter_when_all_are_given() -> None:
    state = replace(FACTORY, tsa=("???", *["cbs"] * 7))
    assert target(state, tsa=["strict"] * 8).tsa == ("strict",) * 8


# --- buffers ---

CELLS: list[tuple[dict[str, Any], int]] = [
    ({}, 144),
    ({"buffer_size": (262016, 0, 0, 0, 0, 0, 0, 0), "buffer_total": 262016}, 128),
    ({"buffer_size": (262016, 0, 0, 0, 0, 0, 0, 0), "buffer_total": None}, 128),
    ({"buffer_size": OFF, "buffer_total": 2039616}, 144),
    ({"buffer_size": None, "buffer_total": 2039616}, 144),
    ({"buffer_size": (1152,) * 8, "buffer_total": 11520}, 1),  # both fit
    ({"buffer_size": (100,) * 8, "buffer_total": 1000}, 1),  # none fits
    ({"buffer_size": (144,) * 7 + (145,), "buffer_total": None}, 1),
    ({"buffer_size": OFF, "buffer_total": None}, 1),
    ({"buffer_size": None, "buffer_total": None}, 1),
]


@pytest.mark.parametrize(("difference", "cell"), CELLS)
def test_buffer_cell(difference: dict[str, Any], cell: int) -> None:
    assert qos_state.buffer_cell(replace(FACTORY, **difference)) == cell


def test_sizes_are_rounded_down_to_cells() -> None:
    goal = target(FACTORY, buffer_size=[100000, 144, 143, 287, 288, 0, 0, 0])
    assert goal.buffer_size == (99936, 144, 0, 144, 288, 0, 0, 0)
    assert target(goal, buffer_size=[100000, 144, 143, 287, 288, 0, 0, 0]) == goal


def test_the_whole_buffer_may_be_used() -> None:
    assert target(FACTORY, buffer_size=[2039616 + 143, 0, 0, 0, 0, 0, 0, 0]).buffer_size == (2039616, *[0] * 7)
    big = [2**32 - 1] * 8
    assert target(replace(FACTORY, buffer_total=None, buffer_size=OFF), buffer_size=big).buffer_size == tuple(big)


# --- entries, text ---


def test_dscp_entries() -> None:
    state = replace(DSCP, dscp2prio={1: 1, 5: 2, 26: 3})
    goal = replace(DSCP, dscp2prio={30: 6, 26: 4, 1: 1})
    assert qos_state.dscp_entries(state, goal) == ({26: 4, 30: 6}, {5: 2})
    assert qos_state.dscp_entries(FACTORY, replace(DSCP, dscp2prio={**DEFAULT_DSCP2PRIO, 0: 1})) == ({0: 1}, {})
    assert qos_state.dscp_entries(DSCP, FACTORY) == ({}, {})
    to_set, to_delete = qos_state.dscp_entries(
        replace(DSCP, dscp2prio={9: 1, 2: 1}), replace(DSCP, dscp2prio={8: 1, 3: 1})
    )
    assert (list(to_set), list(to_delete)) == ([3, 8], [2, 9])


def test_mismatch() -> None:
    goal = replace(DSCP, dscp2prio={30: 6, 26: 4}, cable_len=9)
    assert qos_state.mismatch(replace(DSCP, dscp2prio={}), goal) == (
        "dscp2prio should be 26:4,30:6 but is empty; cable_len should be 9 but is 7"
    )
    assert qos_state.mismatch(FACTORY, FACTORY) == ""


def test_as_dict_is_plain_json() -> None:
    state = replace(FACTORY, trust="dscp", dscp2prio={30: 6, 4: 0}, default_priority=(2,))
    plain = state.as_dict()
    assert plain == {
        "dcbx": "os",
        "trust": "dscp",
        "dscp2prio": {"4": 0, "30": 6},
        "default_priority": [2],
        "pfc": [0] * 8,
        "prio_tc": [1, 0, 2, 3, 4, 5, 6, 7],
        "tsa": ["vendor"] * 8,
        "tcbw": [0] * 8,
        "cable_len": 7,
        "prio2buffer": [1] * 8,
        "buffer_size": [0, 523296, 0, 0, 0, 0, 0, 0],
        "buffer_total": 2039616,
    }
    assert json.loads(json.dumps(plain)) == plain
    assert list(plain["dscp2prio"]) == ["4", "30"]


def test_for_diff() -> None:
    state = replace(FACTORY, dscp2prio={30: 6, 4: 0, 26: 6}, prio2buffer=None)
    assert state.for_diff() == {
        "trust": "pcp",
        "dscp2prio": {"priority 0": "4", "priority 6": "26,30"},
        "prio_tc": "1,0,2,3,4,5,6,7",
        "tsa": "vendor,vendor,vendor,vendor,vendor,vendor,vendor,vendor",
        "tcbw": "0,0,0,0,0,0,0,0",
        "pfc": "0,0,0,0,0,0,0,0",
        "cable_len": "7",
        "prio2buffer": "None",
        "buffer_size": "0,523296,0,0,0,0,0,0",
    }


def test_back_to_an_earlier_state() -> None:
    mixed = replace(DSCP, dscp2prio={26: 5}, tsa=("ets", *["strict"] * 7), tcbw=(100, *[0] * 7))
    for before, after in ((FACTORY, mixed), (mixed, FACTORY), (mixed, DSCP), (DSCP, mixed)):
        want = qos_state.as_wanted(before, qos_state.changes(after, before))
        assert qos_state.target(after, want, "eth0") == before
    assert qos_state.as_wanted(mixed, ["pfc"]) == Wanted(pfc=OFF)


# --- properties ---


def eight(low: int, high: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(low, high), min_size=8, max_size=8)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "trust": st.just("dscp"),
            "prio_tc": eight(0, 7),
            "pfc": eight(0, 1),
            "cable_len": st.integers(1, 999),
            "prio2buffer": eight(0, 7),
            "buffer_size": eight(0, 200000),
            "dscp2prio": st.dictionaries(st.integers(0, 63), st.integers(0, 7), min_size=1),
        },
    ),
    st.booleans(),
)
def test_targets_are_stable_and_change_only_what_is_wanted(options: dict[str, Any], purge: bool) -> None:
    goal = target(DSCP, **options, dscp2prio_purge=purge and "dscp2prio" in options)
    assert target(goal, **options, dscp2prio_purge=purge and "dscp2prio" in options) == goal
    assert set(qos_state.changes(DSCP, goal)) <= set(options)
    assert qos_state.changes(goal, goal) == []


@given(st.dictionaries(st.text() | st.integers(), st.text() | st.integers() | st.none() | st.lists(st.none())))
def test_any_dscp_map_gives_a_result_or_one_clear_error(values: dict[Any, Any]) -> None:
    try:
        want = qos_state.wanted({"dscp2prio": values}, "eth0")
    except SparkError as error:
        assert error.found.startswith("dscp2prio entry ")
    else:
        assert want.dscp2prio is not None
        assert all(0 <= dscp <= 63 and 0 <= priority <= 7 for dscp, priority in want.dscp2prio.items())
