# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._qos import dcb
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._qos.state import DEFAULT_DSCP2PRIO, QosState
from hypothesis import given
from hypothesis import strategies as st

FIXTURES = Path(__file__).parents[3] / "fixtures/dcb"
REPORT = "Report it with the output of the command and of: dcb -V"
OFF = (0,) * 8
FACTORY = QosState(
    dcbx="os",
    trust="pcp",
    pfc=OFF,
    prio_tc=(1, 0, 2, 3, 4, 5, 6, 7),
    tsa=("vendor",) * 8,
    tcbw=OFF,
    cable_len=7,
    prio2buffer=(1,) * 8,
    buffer_size=(0, 523296, 0, 0, 0, 0, 0, 0),
    buffer_total=2039616,
)


def text(name: str) -> str:
    return (FIXTURES / name).read_text()


# --- parsers ---

PARSED: list[tuple[str, Callable[..., Any], Any]] = [
    ("dcbx-host.json", dcb.parse_dcbx, "os"),
    ("dcbx-firmware.json", dcb.parse_dcbx, "firmware"),
    ("pfc-off.json", dcb.parse_pfc, {"pfc": OFF, "cable_len": 7}),
    ("pfc-statistics.json", dcb.parse_pfc, {"pfc": (0, 0, 0, 1, 0, 0, 0, 1), "cable_len": 30}),
    (
        "ets-vendor.json",
        dcb.parse_ets,
        {"prio_tc": (1, 0, 2, 3, 4, 5, 6, 7), "tsa": ("vendor",) * 8, "tcbw": OFF},
    ),
    (
        "ets-mixed.json",
        dcb.parse_ets,
        {
            "prio_tc": (0, 0, 0, 3, 0, 0, 6, 0),
            "tsa": ("ets", "ets", "ets", "ets", "cbs", "???", "strict", "vendor"),
            "tcbw": (35, 0, 0, 65, 0, 0, 0, 0),
        },
    ),
    (
        "buffer.json",
        dcb.parse_buffer,
        {"prio2buffer": (1,) * 8, "buffer_size": (0, 523296, 0, 0, 0, 0, 0, 0), "buffer_total": 2039616},
    ),
    ("app-empty.txt", dcb.parse_app, {"trust": "pcp", "dscp2prio": {}, "default_priority": ()}),
    ("app-dscp.txt", dcb.parse_app, {"trust": "dscp", "dscp2prio": {26: 3, 48: 6}, "default_priority": ()}),
    (
        "app-all-selectors.txt",
        dcb.parse_app,
        {"trust": "dscp", "dscp2prio": {0: 0, 26: 3, 63: 7}, "default_priority": (0, 2)},
    ),
]


@pytest.mark.parametrize(("name", "parser", "expected"), PARSED, ids=[case[0] for case in PARSED])
def test_parsers(name: str, parser: Callable[..., Any], expected: Any) -> None:
    assert parser(text(name)) == expected
    assert parser(text(name).replace("\n", "\r\n")) == expected


def test_every_fixture_is_used() -> None:
    assert sorted(path.name for path in FIXTURES.iterdir()) == sorted([*(case[0] for case in PARSED), "app-names.txt"])


def pfc(**difference: Any) -> str:
    return json.dumps({"prio_pfc": [False] * 8, "delay": 7, **difference})


def ets(**difference: Any) -> str:
    return json.dumps({"tc_tsa": ["ets"] * 8, "tc_bw": [0] * 8, "prio_tc": [0] * 8, **difference})


def buffer(**difference: Any) -> str:
    return json.dumps({"prio_buffer": [0] * 8, "buffer_size": [0] * 8, "total_size": 0, **difference})


def up_to(name: str, values: Any, high: int) -> str:
    return f"dcb {name} is {values!r}, expected 8 numbers up to {high}"


def app_line(number: int, reason: str, line: str) -> str:
    return f"dcb app: line {number} is not understood ({reason}): {line!r}"


def no_pair(word: str) -> str:
    return f"{word!r} is not DSCP:PRIORITY in numbers"


REFUSED: list[tuple[Callable[..., Any], str, str]] = [
    (dcb.parse_dcbx, '{"host": "true"}', "dcb dcbx: 'host' is 'true', expected true or false"),
    (dcb.parse_pfc, "{}", "dcb pfc: prio_pfc is None, expected 8 booleans"),
    (dcb.parse_pfc, pfc(prio_pfc=True), "dcb pfc: prio_pfc is True, expected 8 booleans"),
    (dcb.parse_pfc, pfc(prio_pfc=[True] * 7), f"dcb pfc: prio_pfc is {[True] * 7}, expected 8 booleans"),
    (dcb.parse_pfc, pfc(prio_pfc=[1] * 8), f"dcb pfc: prio_pfc is {[1] * 8}, expected 8 booleans"),
    (dcb.parse_pfc, pfc(delay=None), "dcb pfc: delay is None, expected a number up to 65535"),
    (dcb.parse_pfc, pfc(delay=True), "dcb pfc: delay is True, expected a number up to 65535"),
    (dcb.parse_pfc, pfc(delay=-1), "dcb pfc: delay is -1, expected a number up to 65535"),
    (dcb.parse_pfc, pfc(delay=65536), "dcb pfc: delay is 65536, expected a number up to 65535"),
    (dcb.parse_pfc, pfc(delay=7.0), "dcb pfc: delay is 7.0, expected a number up to 65535"),
    (dcb.parse_ets, "{}", "dcb ets: tc_tsa is None, expected 8 names"),
    (dcb.parse_ets, ets(tc_tsa=[1] * 8), f"dcb ets: tc_tsa is {[1] * 8}, expected 8 names"),
    (dcb.parse_ets, ets(tc_tsa=["ets"]), "dcb ets: tc_tsa is ['ets'], expected 8 names"),
    (dcb.parse_ets, ets(tc_tsa="etsetsxx"), "dcb ets: tc_tsa is 'etsetsxx', expected 8 names"),
    (dcb.parse_ets, ets(tc_bw=[101] + [0] * 7), f"dcb ets: tc_bw is {[101] + [0] * 7}, expected 8 numbers up to 100"),
    (dcb.parse_ets, ets(tc_bw=[0] * 9), f"dcb ets: tc_bw is {[0] * 9}, expected 8 numbers up to 100"),
    (dcb.parse_ets, ets(prio_tc=[8] + [0] * 7), f"dcb ets: prio_tc is {[8] + [0] * 7}, expected 8 numbers up to 7"),
    (dcb.parse_ets, ets(prio_tc=None), "dcb ets: prio_tc is None, expected 8 numbers up to 7"),
    (dcb.parse_buffer, "{}", "dcb buffer: prio_buffer is None, expected 8 numbers up to 7"),
    (dcb.parse_buffer, buffer(prio_buffer=[8] * 8), up_to("buffer: prio_buffer", [8] * 8, 7)),
    (dcb.parse_buffer, buffer(buffer_size=[2**32] * 8), up_to("buffer: buffer_size", [2**32] * 8, 2**32 - 1)),
    (
        dcb.parse_buffer,
        buffer(total_size=2**32),
        "dcb buffer: total_size is 4294967296, expected a number up to 4294967295",
    ),
    (dcb.parse_app, text("app-names.txt"), app_line(1, no_pair("AF31:3"), "dscp-prio AF31:3")),
    (dcb.parse_app, "\ndscp-prio 64:3", app_line(2, no_pair("64:3"), "dscp-prio 64:3")),
    (dcb.parse_app, "dscp-prio 6:8", app_line(1, no_pair("6:8"), "dscp-prio 6:8")),
    (dcb.parse_app, "dscp-prio " + "8" * 200, app_line(1, no_pair("8" * 40), "dscp-prio " + "8" * 110)),
    (dcb.parse_app, "dscp-prio 6:3 6:4", app_line(1, "DSCP 6 occurs twice", "dscp-prio 6:3 6:4")),
    (dcb.parse_app, "dscp-prio 6:3\ndscp-prio 6:3", app_line(2, "DSCP 6 occurs twice", "dscp-prio 6:3")),
    (dcb.parse_app, "default-prio 8", app_line(1, "'8' is not a priority", "default-prio 8")),
    (
        dcb.parse_app,
        "default-prio " + "8" * 200,
        app_line(1, f"{'8' * 40!r} is not a priority", "default-prio " + "8" * 107),
    ),
    (dcb.parse_app, "pfc-cap 8", app_line(1, "unknown selector", "pfc-cap 8")),
]


@pytest.mark.parametrize(("parser", "output", "found"), REFUSED)
def test_refused_output(parser: Callable[..., Any], output: str, found: str) -> None:
    with pytest.raises(SparkError) as error:
        parser(output, "eth0")
    assert (error.value.found, error.value.where, error.value.remedy) == (found, "eth0", REPORT)


def test_the_limits_themselves_are_fine() -> None:
    assert dcb.parse_pfc(pfc(delay=65535))["cable_len"] == 65535
    assert dcb.parse_pfc(pfc(delay=0))["cable_len"] == 0
    assert dcb.parse_ets(ets(tc_bw=[100] * 8, prio_tc=[7] * 8))["tcbw"] == (100,) * 8
    big = dcb.parse_buffer(buffer(buffer_size=[2**32 - 1] * 8, total_size=2**32 - 1, prio_buffer=[7] * 8))
    assert big == {"prio2buffer": (7,) * 8, "buffer_size": (2**32 - 1,) * 8, "buffer_total": 2**32 - 1}


@pytest.mark.parametrize("parser", [dcb.parse_dcbx, dcb.parse_pfc, dcb.parse_ets, dcb.parse_buffer, dcb.parse_app])
def test_errors_name_the_tool_when_nothing_else_is_known(parser: Callable[..., Any]) -> None:
    with pytest.raises(SparkError, match=r"^dcb: dcb "):
        parser("?")


PARSERS = st.sampled_from([dcb.parse_dcbx, dcb.parse_pfc, dcb.parse_ets, dcb.parse_buffer, dcb.parse_app])
VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda leaf: st.lists(leaf, max_size=9))
KEYS = st.sampled_from(
    ["prio_pfc", "delay", "tc_tsa", "tc_bw", "prio_tc", "prio_buffer", "buffer_size", "total_size", "host"]
)


@given(PARSERS, st.text() | st.binary().map(lambda data: data.decode("utf-8", "surrogateescape")))
def test_garbage_gives_a_result_or_one_clear_error(parser: Callable[..., Any], output: str) -> None:
    try:
        parser(output)
    except SparkError as error:
        assert error.found.startswith("dcb ")


@given(PARSERS, st.dictionaries(KEYS, VALUES))
def test_wrong_json_gives_a_result_or_one_clear_error(parser: Callable[..., Any], document: dict[str, Any]) -> None:
    try:
        parser(json.dumps(document))
    except SparkError as error:
        assert error.found.startswith("dcb ")


@pytest.mark.parametrize(
    ("output", "printed", "why"),
    [
        ("", "", "this is no JSON (Expecting value: line 1"),
        ("\n\nprio-pfc 0:off", "prio-pfc 0:off", "this is no JSON (Expecting value: line 3"),
        ("[]\n", "[]", "this is JSON, but no object: []"),
        ('{"a": ' + "1" * 5000 + "}", '{"a": ' + "1" * 114, "this is no JSON"),
        ('["' + "x" * 300, '["' + "x" * 118, "this is no JSON"),
        ('"' + "x" * 300 + '"', '"' + "x" * 119, "this is JSON, but no object: 'xxx"),
        ('{"host": true, "host": true}', '{"host": true, "host": true}', "this is no JSON (a key comes twice)"),
        ("[" * 100000, "[" * 120, "this JSON is more than 100 levels deep"),
    ],
)
@pytest.mark.parametrize("name", ["dcbx", "pfc", "ets", "buffer"])
def test_what_is_no_object(name: str, output: str, printed: str, why: str) -> None:
    with pytest.raises(SparkError) as error:
        getattr(dcb, f"parse_{name}")(output, "eth0")
    assert error.value.found.startswith(f"dcb {name} printed {printed!r} ({why}")
    assert (error.value.where, error.value.remedy) == ("eth0", REPORT)


# --- round trips ---


def eight(low: int, high: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.tuples(*[st.integers(low, high)] * 8)


@st.composite
def states(draw: st.DrawFn) -> QosState:
    mapping = draw(st.dictionaries(st.integers(0, 63), st.integers(0, 7)))
    tsa = draw(st.tuples(*[st.sampled_from(["strict", "cbs", "ets", "vendor", "???"])] * 8))
    shares = draw(eight(0, 100))
    return QosState(
        dcbx=draw(st.sampled_from(["os", "firmware"])),
        trust="dscp" if mapping else "pcp",
        dscp2prio=mapping,
        default_priority=tuple(draw(st.lists(st.integers(0, 7), max_size=3))),
        pfc=draw(eight(0, 1)),
        prio_tc=draw(eight(0, 7)),
        tsa=tsa,
        tcbw=tuple(share if name == "ets" else 0 for share, name in zip(shares, tsa)),
        cable_len=draw(st.integers(0, 65535)),
        prio2buffer=draw(eight(0, 7)),
        buffer_size=draw(eight(0, 2**32 - 1)),
        buffer_total=draw(st.integers(0, 2**32 - 1)),
    )


def render(state: QosState) -> list[str]:
    assert state.pfc and state.tsa and state.tcbw
    app = []
    if state.default_priority:
        app.append("default-prio " + "".join(f"{priority} " for priority in state.default_priority))
    if state.dscp2prio:
        app.append("dscp-prio " + "".join(f"{dscp}:{priority} " for dscp, priority in sorted(state.dscp2prio.items())))
    return [
        json.dumps({"host": True, "ieee": True} if state.dcbx == "os" else {"cee": True, "ieee": True}),
        json.dumps({"pfc_cap": 8, "delay": state.cable_len, "prio_pfc": [bool(bit) for bit in state.pfc]}),
        # The kernel has 100 for classes that are not ets.
        ets(
            tc_tsa=state.tsa,
            tc_bw=[share if name == "ets" else 100 for share, name in zip(state.tcbw, state.tsa)],
            prio_tc=state.prio_tc,
        ),
        buffer(prio_buffer=state.prio2buffer, buffer_size=state.buffer_size, total_size=state.buffer_total),
        "\n".join(app),
    ]


@given(states())
def test_round_trip(state: QosState) -> None:
    assert dcb.read([Completed(0, output + "\n") for output in render(state)], "eth0") == state


# --- reading ---

NAMES = ["dcbx-host.json", "pfc-off.json", "ets-vendor.json", "buffer.json", "app-empty.txt"]
GOOD = [Completed(0, text(name)) for name in NAMES]
NO_DCB = Completed(1, "", "Attribute read: Operation not supported\n")
NOT_THERE = Completed(1, "", "Attribute not found: No such file or directory\n")


def test_show() -> None:
    assert dcb.show("eth0") == [
        ["dcb", "-j", "dcbx", "show", "dev", "eth0"],
        ["dcb", "-j", "pfc", "show", "dev", "eth0"],
        ["dcb", "-j", "ets", "show", "dev", "eth0"],
        ["dcb", "-j", "buffer", "show", "dev", "eth0"],
        ["dcb", "-N", "app", "show", "dev", "eth0"],
    ]


def test_read() -> None:
    assert dcb.read(GOOD, "eth0") == FACTORY


MISSING = [
    (0, {"dcbx": None}),
    (2, {"prio_tc": None, "tsa": None, "tcbw": None}),
    (3, {"prio2buffer": None, "buffer_size": None, "buffer_total": None}),
    (4, {"trust": None}),
]


@pytest.mark.parametrize("answer", [NO_DCB, NOT_THERE])
@pytest.mark.parametrize(("at", "difference"), MISSING)
def test_optional_objects(at: int, difference: dict[str, Any], answer: Completed) -> None:
    results = [*GOOD[:at], answer, *GOOD[at + 1 :]]
    assert dcb.read(results, "eth0") == replace(FACTORY, **difference)


@pytest.mark.parametrize("answer", [NO_DCB, NOT_THERE])
def test_unsupported_nic(answer: Completed) -> None:
    with pytest.raises(SparkError) as error:
        dcb.read([NO_DCB, answer, NO_DCB, NO_DCB, NO_DCB], "eth0")
    assert str(error.value) == (
        "eth0: the NIC or its driver has no DCB support. Name a ConnectX netdev (driver mlx5_core, not a virtual "
        "function or a bond), see /sys/class/net/*/device/driver."
    )


@pytest.mark.parametrize(("at", "name"), list(enumerate(dcb.OBJECTS)))
def test_other_errors(at: int, name: str) -> None:
    results = [*GOOD[:at], Completed(1, "", "Attribute read: No such device\n"), *GOOD[at + 1 :]]
    with pytest.raises(SparkError) as error:
        dcb.read(results, "eth0")
    assert str(error.value) == (
        f"eth0: dcb cannot read {name}: Attribute read: No such device. "
        "Run the module as root (become: true) and try the command by hand."
    )


def test_the_command_is_missing() -> None:
    with pytest.raises(
        SparkError, match=r"^eth0: the command dcb is not installed\. Install it: apt-get install iproute2"
    ):
        dcb.read([Completed(127, "", "dcb: No such file or directory")], "eth0")


def test_a_failure_without_a_message() -> None:
    with pytest.raises(SparkError, match=r"^eth0: dcb cannot read dcbx: exit code 139 without a message\."):
        dcb.read([Completed(139), *GOOD[1:]], "eth0")


@pytest.mark.parametrize("at", range(5))
def test_read_names_the_interface_in_an_error(at: int) -> None:
    with pytest.raises(SparkError, match=r"^eth0: dcb "):
        dcb.read([*GOOD[:at], Completed(0, "?"), *GOOD[at + 1 :]], "eth0")


# --- command lines ---

IDENTITY = " ".join(f"{dscp}:{dscp >> 3}" for dscp in range(64))
VENDOR = "0:vendor 1:vendor 2:vendor 3:vendor 4:vendor 5:vendor 6:vendor 7:vendor"
NO_SHARE = "0:0 1:0 2:0 3:0 4:0 5:0 6:0 7:0"
STEPS = [
    ({}, {}, []),
    ({}, {"trust": "dscp", "dscp2prio": DEFAULT_DSCP2PRIO}, [(["trust"], "app add", f"dscp-prio {IDENTITY}")]),
    (
        {},
        {"trust": "dscp", "dscp2prio": {26: 3, 48: 6}},
        [(["trust", "dscp2prio"], "app add", "dscp-prio 26:3 48:6")],
    ),
    (
        {"trust": "dscp", "dscp2prio": {26: 3}},
        {"trust": "pcp", "dscp2prio": {}},
        [(["trust"], "app flush", "dscp-prio")],
    ),
    (
        {"trust": "dscp", "dscp2prio": {1: 1, 26: 3}},
        {"dscp2prio": {26: 5, 30: 5}},
        [(["dscp2prio"], "app add", "dscp-prio 26:5 30:5"), (["dscp2prio"], "app del", "dscp-prio 1:1")],
    ),
    (
        {"trust": "dscp", "dscp2prio": {1: 1, 26: 3}},
        {"dscp2prio": {26: 3}},
        [(["dscp2prio"], "app del", "dscp-prio 1:1")],
    ),
    (
        {"trust": "dscp", "dscp2prio": {1: 1}},
        {"dscp2prio": {1: 2}},
        [(["dscp2prio"], "app add", "dscp-prio 1:2")],
    ),
    (
        {},
        {"prio_tc": (0, 0, 0, 3, 0, 0, 6, 0)},
        [(["prio_tc"], "ets set", f"prio-tc 0:0 1:0 2:0 3:3 4:0 5:0 6:6 7:0 tc-bw {NO_SHARE}")],
    ),
    (
        {"tsa": ("strict",) * 8},
        {"tsa": ("vendor",) * 8},
        [(["tsa"], "ets set", f"tc-tsa {VENDOR} tc-bw {NO_SHARE}")],
    ),
    (
        {"tsa": ("ets",) * 8, "tcbw": (100, *[0] * 7)},
        {"tcbw": (60, 40, *[0] * 6)},
        [
            (
                ["tcbw"],
                "ets set",
                "tc-tsa 0:ets 1:ets 2:ets 3:ets 4:ets 5:ets 6:ets 7:ets tc-bw 0:60 1:40 2:0 3:0 4:0 5:0 6:0 7:0",
            )
        ],
    ),
    ({}, {"pfc": (1, 0, 0, 1, 0, 0, 0, 1)}, [(["pfc"], "pfc set", "prio-pfc all:off 0:on 3:on 7:on")]),
    ({"pfc": (1,) * 8}, {"pfc": OFF}, [(["pfc"], "pfc set", "prio-pfc all:off")]),
    ({}, {"cable_len": 30}, [(["cable_len"], "pfc set", "delay 30")]),
    ({}, {"prio2buffer": OFF}, [(["prio2buffer"], "buffer set", f"prio-buffer {NO_SHARE}")]),
    (
        {},
        {"buffer_size": (144, *[0] * 7)},
        [(["buffer_size"], "buffer set", "buffer-size 0:144 1:0 2:0 3:0 4:0 5:0 6:0 7:0")],
    ),
    (
        {},
        {
            "trust": "dscp",
            "dscp2prio": {26: 3},
            "prio_tc": OFF,
            "tsa": ("vendor",) * 7 + ("strict",),
            "pfc": (0, 0, 0, 1, 0, 0, 0, 0),
            "cable_len": 9,
            "prio2buffer": OFF,
            "buffer_size": OFF,
        },
        [
            (["trust", "dscp2prio"], "app add", "dscp-prio 26:3"),
            (
                ["prio_tc", "tsa"],
                "ets set",
                f"prio-tc {NO_SHARE} tc-tsa {VENDOR[:-8]}7:strict tc-bw {NO_SHARE}",
            ),
            (["pfc", "cable_len"], "pfc set", "prio-pfc all:off 3:on delay 9"),
            (["prio2buffer", "buffer_size"], "buffer set", f"prio-buffer {NO_SHARE} buffer-size {NO_SHARE}"),
        ],
    ),
]


@pytest.mark.parametrize(("now", "then", "commands"), STEPS)
def test_steps(now: dict[str, Any], then: dict[str, Any], commands: list[tuple[list[str], str, str]]) -> None:
    state = replace(FACTORY, **now)
    steps = dcb.steps("eth0", state, replace(state, **then))
    assert [(list(step.settings), list(step.argv)) for step in steps] == [
        (settings, ["dcb", *verb.split(), "dev", "eth0", *options.split()]) for settings, verb, options in commands
    ]


@pytest.mark.parametrize(
    ("rc", "out", "err", "line"),
    [
        (1, "\n", "Attribute read: No such device\n", "Attribute read: No such device"),
        (1, "", 'What is "x"?\nUsage: dcb app\n', 'What is "x"?'),
        (1, "only here\n", "  \n", "only here"),
        (137, "", "", "exit code 137 without a message"),
    ],
)
def test_complaint(rc: int, out: str, err: str, line: str) -> None:
    assert dcb.complaint(Completed(rc, out, err)) == line
