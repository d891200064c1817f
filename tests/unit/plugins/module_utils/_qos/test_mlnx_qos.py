# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._qos import mlnx_qos
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._qos.mlnx_qos import parse
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._qos.state import DEFAULT_DSCP2PRIO, QosState
from hypothesis import given
from hypothesis import strategies as st

OFF = (0,) * 8
SWAPPED = (1, 0, 2, 3, 4, 5, 6, 7)  # the factory's classes
FACTORY = QosState(
    dcbx="os",
    trust="pcp",
    pfc=OFF,
    prio_tc=SWAPPED,
    tsa=("vendor",) * 8,
    tcbw=OFF,
    ratelimit=(0.0,) * 8,
    cable_len=7,
    prio2buffer=(1,) * 8,
    buffer_size=(0, 523296, 0, 0, 0, 0, 0, 0),
    buffer_total=2039616,
)
PCP_4_6 = replace(FACTORY, prio2buffer=OFF, buffer_size=(260096, 0, 0, 0, 0, 0, 0, 0), buffer_total=None)
SHOWN = {
    "4.6-pcp-unsorted": PCP_4_6,
    "pasted-blanks": PCP_4_6,
    "5.2-dscp-default-priority": replace(
        FACTORY,
        trust="dscp",
        dscp2prio=DEFAULT_DSCP2PRIO,
        default_priority=(2, 0),
        pfc=(0, 0, 0, 0, 1, 0, 0, 0),
        prio_tc=(0, 0, 0, 0, 4, 4, 0, 0),
        tsa=("ets", None, None, None, "ets", None, None, None),
        tcbw=(40, None, None, None, 60, None, None, None),
        ratelimit=(0.0, None, None, None, 0.0, None, None, None),
        cable_len=30,
        prio2buffer=(0, 0, 0, 0, 1, 0, 0, 0),
        buffer_size=(20016, 156096, 0, 0, 0, 0, 0, 0),
        buffer_total=176112,
    ),
    "5.9-lldpad-wrapped-map": replace(
        FACTORY,
        trust="dscp",
        dscp2prio={**DEFAULT_DSCP2PRIO, 26: 6, 30: 6, 46: 6},
        pfc=(0, 0, 0, 1, 0, 0, 0, 0),
        lldpad=True,
    ),
    "23.10-firmware-controlled": replace(
        FACTORY,
        dcbx="firmware",
        trust="dscp",
        dscp2prio=DEFAULT_DSCP2PRIO,
        pfc=(0, 0, 0, 1, 0, 0, 0, 0),
        prio_tc=(0, 0, 0, 3, 0, 0, 6, 0),
        tsa=("ets", None, None, "ets", None, None, "strict", None),
        tcbw=(35, None, None, 65, None, None, 0, None),
        ratelimit=(0.0, None, None, 0.0, None, None, 0.0, None),
        prio2buffer=(0, 0, 0, 1, 0, 0, 0, 0),
        buffer_size=(131072, 130944, 0, 0, 0, 0, 0, 0),
        buffer_total=262016,
    ),
    "24.10-factory-all-classes": FACTORY,
    "24.10-rates-empty-classes": replace(
        FACTORY,
        trust="dscp",
        dscp2prio={26: 3},
        pfc=(1, 0, 0, 1, 0, 0, 0, 1),
        prio_tc=(0, 0, 0, 3, 0, 0, 6, 0),
        tsa=("ets", "ets", "ets", "ets", "ets", "ets", "strict", "unknown"),
        tcbw=(50, 0, 0, 50, 0, 0, 0, 0),
        ratelimit=(10.0, 0.0, 0.0, 25.5, 0.0, 0.0, 255.0, 0.0),
        cable_len=100,
        prio2buffer=(0, 2, 5, 7, 1, 2, 3, 6),
        buffer_size=(99936, 0, 0, 0, 0, 0, 0, 0),
    ),
    "26.07-no-default-priority": replace(FACTORY, trust="dscp", dscp2prio=DEFAULT_DSCP2PRIO, tsa=("strict",) * 8),
    "no-buffers-no-trust": replace(
        FACTORY,
        trust=None,
        pfc=(0, 1, 0, 0, 0, 0, 0, 0),
        prio_tc=(7, 6, 5, 4, 3, 2, 1, 0),
        cable_len=0,
        prio2buffer=None,
        buffer_size=None,
        buffer_total=None,
    ),
    "no-rate-limit": replace(
        FACTORY,
        tsa=("vendor", "ets", "strict", "strict", "strict", "strict", "strict", "strict"),
        tcbw=(0, 100, 0, 0, 0, 0, 0, 0),
        ratelimit=None,
    ),
}


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    folder = Path(__file__).parents[3] / "fixtures/mlnx_qos"
    return {path.stem: path.read_text() for path in folder.glob("*.txt")}


def test_every_fixture_has_an_expectation(texts: dict[str, str]) -> None:
    assert sorted(texts) == sorted([*SHOWN, "unsupported"])


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_dialects(name: str, texts: dict[str, str]) -> None:
    assert parse(texts[name]) == SHOWN[name]
    assert parse(texts[name].replace("\n", "\r\n")) == SHOWN[name]


def test_unsupported_nic(texts: dict[str, str]) -> None:
    with pytest.raises(SparkError) as error:
        parse(texts["unsupported"], "eth0")
    assert str(error.value) == (
        "eth0: the NIC or its driver has no DCB support. Name a ConnectX netdev (driver mlx5_core, not a virtual "
        "function or a bond), see /sys/class/net/*/device/driver."
    )


# Each case changes one line of the factory text (1-based), or adds one after it.
LINES = (
    "DCBX mode: OS controlled",
    "Priority trust state: dscp",
    "dscp2prio mapping:",
    "\tprio:3 dscp:26,",
    "default priority:",
    "\tprio:0",
    "Receive buffer size (bytes): 1,2,3,4,5,6,7,8,max_buffer_size=36",
    "Cable len: 7",
    "PFC configuration:",
    "\tpriority    0   1   2   3   4   5   6   7",
    "\tenabled     0   0   0   1   0   0   0   0   ",
    "\tbuffer      0   1   2   3   4   5   6   7   ",
    "tc: 0 ratelimit: 2.5 Gbps, tsa: ets, bw: 100%",
    *(f"\t priority:  {priority}" for priority in range(8)),
)
BASE = QosState(
    dcbx="os",
    trust="dscp",
    dscp2prio={26: 3},
    default_priority=(0,),
    pfc=(0, 0, 0, 1, 0, 0, 0, 0),
    prio_tc=OFF,
    tsa=("ets", *[None] * 7),
    tcbw=(100, *[None] * 7),
    ratelimit=(2.5, *[None] * 7),
    cable_len=7,
    prio2buffer=(0, 1, 2, 3, 4, 5, 6, 7),
    buffer_size=(1, 2, 3, 4, 5, 6, 7, 8),
    buffer_total=36,
)


def changed(number: int, *lines: str) -> str:
    return "\n".join([*LINES[: number - 1], *lines, *LINES[number:]]) + "\n"


def test_base_of_the_line_cases() -> None:
    assert parse("\n".join(LINES)) == BASE


ACCEPTED = [
    (2, ["Priority trust state: none"], {"trust": None}),
    (4, ["prio:3 dscp:26"], {}),  # last comma lost in a copy
    (4, ["\tprio:3 dscp:26,5,", "\tprio:7 dscp:63,00,"], {"dscp2prio": {26: 3, 5: 3, 63: 7, 0: 7}}),
    (6, [], {"default_priority": ()}),
    (7, ["Receive buffer size (bytes): 1,2,3,4,5,6,7,8, total_size=9"], {"buffer_total": 9}),
    (
        7,
        ["Receive buffer size (bytes): 4294967295,2,3,4,5,6,7,8,"],
        {"buffer_total": None, "buffer_size": (2**32 - 1, 2, 3, 4, 5, 6, 7, 8)},
    ),
    (7, [], {"buffer_total": None, "buffer_size": None}),
    (8, ["Cable len: 65535"], {"cable_len": 65535}),
    (8, [], {"cable_len": None}),
    (10, [], {}),
    (12, [], {"prio2buffer": None}),
    (
        13,
        ["tc: 0 ratelimit: unlimited, tsa: strict"],
        {"tsa": ("strict", *[None] * 7), "tcbw": (0, *[None] * 7), "ratelimit": (0.0, *[None] * 7)},
    ),
    # Without a number and without all eight, nobody knows which class this is.
    (13, ["ets, bw: 100%"], {"prio_tc": None, "tsa": None, "tcbw": None, "ratelimit": None}),
]


@pytest.mark.parametrize(("number", "lines", "difference"), ACCEPTED)
def test_accepted_lines(number: int, lines: list[str], difference: dict[str, object]) -> None:
    assert parse(changed(number, *lines)) == replace(BASE, **difference)  # type: ignore[arg-type]


SEVEN_BUFFERS = "Receive buffer size (bytes): 1,2,3,4,5,6,7,"
TC0 = "tc: 0 ratelimit: unlimited, tsa: "
TC8 = "tc: 8 ratelimit: unlimited, tsa: vendor"
REFUSED = [
    (1, ["DCBX mode: OS controlled", LINES[0]], 2, "this part occurs twice", LINES[0]),
    (1, ["DCBX mode: Switch controlled"], 1, "unknown line", "DCBX mode: Switch controlled"),
    (1, ["XXDCBX mode: OS controlledXX"], 1, "unknown line", "XXDCBX mode: OS controlledXX"),
    (2, ["Priority trust state: both"], 2, "unknown line", "Priority trust state: both"),
    (3, [], 3, "this line is out of place", "prio:3 dscp:26,"),
    (3, [LINES[2], LINES[2]], 4, "this part occurs twice", "dscp2prio mapping:"),
    (4, ["prio:3 dscp:64,"], 4, "DSCP 64 is above 63", "prio:3 dscp:64,"),
    (4, [LINES[3], "prio:4 dscp:26,"], 5, "DSCP 26 occurs twice", "prio:4 dscp:26,"),
    (4, ["prio:8 dscp:26,"], 4, "unknown line", "prio:8 dscp:26,"),
    (4, ["prio:3"], 4, "this line is out of place", "prio:3"),
    (5, [LINES[4], LINES[4]], 6, "this part occurs twice", "default priority:"),
    (6, ["prio:3 dscp:27,"], 6, "this line is out of place", "prio:3 dscp:27,"),
    (7, [SEVEN_BUFFERS], 7, "unknown line", SEVEN_BUFFERS),
    (7, [LINES[6], LINES[6]], 8, "this part occurs twice", LINES[6]),
    (8, [LINES[7], LINES[7]], 9, "this part occurs twice", LINES[7]),
    (8, ["Cable len: -1"], 8, "unknown line", "Cable len: -1"),
    (9, [], 9, "this line is out of place", "priority    0   1   2   3   4   5   6   7"),
    (9, [LINES[8], LINES[8]], 10, "this part occurs twice", LINES[8]),
    (10, ["priority 0 1 2 3 4 5 7 6"], 10, "the priorities are not 0 to 7", "priority 0 1 2 3 4 5 7 6"),
    (11, ["enabled 0 0 0 2 0 0 0 0"], 11, "PFC is neither 0 nor 1", "enabled 0 0 0 2 0 0 0 0"),
    (11, ["enabled 0 0 0 0 0 0 0"], 11, "unknown line", "enabled 0 0 0 0 0 0 0"),
    (11, [LINES[10], LINES[10]], 12, "this part occurs twice", LINES[10].strip()),
    (12, [LINES[11], LINES[11]], 13, "this part occurs twice", LINES[11].strip()),
    (13, [TC0 + "ets, bw: 101%"], 13, "the bandwidth is above 100%", TC0 + "ets, bw: 101%"),
    (13, [TC8], 13, "unknown line", TC8),
    (13, [TC0 + "ets"], 13, "unknown line", TC0 + "ets"),
    (13, [TC0 + "vendor, bw: 3%"], 13, "unknown line", TC0 + "vendor, bw: 3%"),
    (13, [], 13, "this line is out of place", "priority:  0"),
    (13, [LINES[12], "enabled 0 0 0 0 0 0 0 0"], 14, "this line is out of place", "enabled 0 0 0 0 0 0 0 0"),
    (14, ["priority:  8"], 14, "unknown line", "priority:  8"),
    (21, ["x" * 200], 21, "unknown line", "x" * 120),
]


@pytest.mark.parametrize(("number", "lines", "at", "reason", "shown"), REFUSED)
def test_refused_lines(number: int, lines: list[str], at: int, reason: str, shown: str) -> None:
    with pytest.raises(SparkError) as error:
        parse(changed(number, *lines), "enp1s0f0np0")
    assert str(error.value) == (
        f"enp1s0f0np0: line {at} is not understood ({reason}): {shown!r}. "
        "Report it with the output of the command; backend: dcb may work meanwhile."
    )


SENSELESS = [
    (14, [], "7 entries for 8 priorities"),
    (21, [LINES[20], LINES[20]], "9 entries for 8 priorities"),
    (21, ["\t priority:  6"], "8 entries for 8 priorities"),
    (21, [LINES[12], LINES[20]], "a class occurs twice"),
    (21, ["vendor", LINES[20]], "some have a number and some have not"),
]


@pytest.mark.parametrize(("number", "lines", "reason"), SENSELESS)
def test_classes_that_make_no_sense(number: int, lines: list[str], reason: str) -> None:
    text = changed(number, *lines)
    with pytest.raises(SparkError) as error:
        parse(text, "eth0")
    end = text.count("\n") + 1
    assert error.value.found == f"the traffic classes, up to line {end}, make no sense ({reason})"
    assert error.value.where == "eth0"
    assert error.value.remedy == "Report it with the output of the command; backend: dcb may work meanwhile"


INCOMPLETE = [
    ("", 1, "DCBX mode, trust state, PFC table"),
    (LINES[0], 1, "trust state, PFC table"),
    ("\n".join(LINES[:10]), 10, "PFC table"),
    ("\n".join(LINES[1:]), 20, "DCBX mode"),
]


@pytest.mark.parametrize(("text", "end", "parts"), INCOMPLETE)
def test_output_that_ends_too_early(text: str, end: int, parts: str) -> None:
    with pytest.raises(SparkError) as error:
        parse(text)
    assert str(error.value) == (
        f"mlnx_qos: the output ends at line {end} without {parts}. "
        "Report it with the output of the command; backend: dcb may work meanwhile."
    )


def test_no_classes_at_all() -> None:
    with pytest.raises(SparkError, match=r"the traffic classes, up to line 12, make no sense \(there is none\)"):
        parse("\n".join(LINES[:12]))


# --- round trips: any state in any dialect ---


def render(state: QosState, dialect: str, blanks: bool, everything: bool) -> str:
    """Print a state as the tool of one release does (our own words, not the tool's code)."""
    release = tuple(map(int, dialect.split(".")))
    out = []
    if state.lldpad:
        out += ["****** WARNING: lldpad service is running and may overwrite your settings ******", ""]
    if state.buffer_size is None:
        out.append("Buffers commands are not supported on your system")
    if state.ratelimit is None:
        out.append("Rate limit is not supported on your system!")
    out.append(f"DCBX mode: {'OS' if state.dcbx == 'os' else 'Firmware'} controlled")
    out.append(f"Priority trust state: {state.trust or 'none'}")
    if state.trust == "dscp":
        out.append("dscp2prio mapping:")
        for priority in range(8):
            codes = [f"{code:02d}," for code, wanted in state.dscp2prio.items() if wanted == priority]
            out += [f"\tprio:{priority} dscp:{''.join(codes[at : at + 8])}" for at in range(0, len(codes), 8)]
    if (5, 2) <= release < (25,):
        out += ["default priority:", *(f"\tprio:{priority}" for priority in state.default_priority)]
    if state.buffer_size is not None:
        total = {True: f"total_size={state.buffer_total}", False: f"max_buffer_size={state.buffer_total}"}
        end = "" if state.buffer_total is None else total[release < (23,)]
        out.append("Receive buffer size (bytes): " + "".join(f"{size}," for size in state.buffer_size) + end)
    assert state.pfc and state.prio_tc and state.tsa and state.tcbw
    out += [f"Cable len: {state.cable_len}", "PFC configuration:", "\tpriority    0   1   2   3   4   5   6   7"]
    out.append("\tenabled     " + "".join(f"{bit}   " for bit in state.pfc))
    if state.prio2buffer is not None:
        out.append("\tbuffer      " + "".join(f"{buffer}   " for buffer in state.prio2buffer))
    order = range(8) if release >= (5, 9) or everything else list(dict.fromkeys(state.prio_tc))
    for tc in order:
        members = [priority for priority in range(8) if state.prio_tc[priority] == tc]
        if not members and not everything:
            continue
        share = f", bw: {state.tcbw[tc]}%" if state.tsa[tc] == "ets" else ""
        if state.ratelimit is None:
            out.append(f"{state.tsa[tc]}{share}")
        else:
            rate = f"{state.ratelimit[tc]:.1f} Gbps" if state.ratelimit[tc] else "unlimited"
            out.append(f"tc: {tc} ratelimit: {rate}, tsa: {state.tsa[tc]}{share}")
        out += [f"\t priority:  {priority}" for priority in members]
    text = "\n".join(out) + "\n"
    return text.replace("\t", "        ") if blanks else text


def eight(values: st.SearchStrategy[int]) -> st.SearchStrategy[tuple[int, ...]]:
    return st.tuples(*[values] * 8)


@st.composite
def states(draw: st.DrawFn, **fixed: object) -> QosState:
    trust = draw(st.sampled_from(["pcp", "dscp", None]))
    tsa = draw(st.tuples(*[st.sampled_from(["strict", "ets", "vendor", "unknown"])] * 8))
    shares = draw(eight(st.integers(0, 100)))
    buffers = draw(st.booleans())
    codes = draw(st.permutations(range(64)))[: draw(st.integers(1, 64))]
    values: dict[str, object] = {
        "dcbx": draw(st.sampled_from(["os", "firmware"])),
        "trust": trust,
        "dscp2prio": {code: draw(st.integers(0, 7)) for code in codes} if trust == "dscp" else {},
        "default_priority": tuple(draw(st.lists(st.integers(0, 7), max_size=3))),
        "pfc": draw(eight(st.integers(0, 1))),
        "prio_tc": draw(eight(st.integers(0, 7))),
        "tsa": tsa,
        "tcbw": tuple(share if name == "ets" else 0 for share, name in zip(shares, tsa)),
        "ratelimit": tuple(rate / 10 for rate in draw(eight(st.integers(0, 2550)))),
        "cable_len": draw(st.integers(0, 65535)),
        "prio2buffer": draw(eight(st.integers(0, 7))) if buffers else None,
        "buffer_size": draw(eight(st.integers(0, 2**32 - 1))) if buffers else None,
        "buffer_total": draw(st.none() | st.integers(0, 2**32 - 1)) if buffers else None,
        "lldpad": draw(st.booleans()),
    }
    return QosState(**{**values, **fixed})  # type: ignore[arg-type]


def without_hidden(state: QosState, hidden_default: bool, everything: bool) -> QosState:
    """What of ``state`` a dialect shows."""
    if hidden_default:
        state = replace(state, default_priority=())
    if everything:
        return state
    assert state.prio_tc and state.tsa and state.tcbw and state.ratelimit
    used = [tc in state.prio_tc for tc in range(8)]
    return replace(
        state,
        tsa=tuple(value if used[tc] else None for tc, value in enumerate(state.tsa)),
        tcbw=tuple(value if used[tc] else None for tc, value in enumerate(state.tcbw)),
        ratelimit=tuple(value if used[tc] else None for tc, value in enumerate(state.ratelimit)),
    )


@given(states(), st.sampled_from(["4.6", "5.2", "5.9", "23.10", "24.10", "25.1", "26.7"]), st.booleans(), st.booleans())
def test_round_trip(state: QosState, dialect: str, blanks: bool, everything: bool) -> None:
    shown = without_hidden(state, dialect in ("4.6", "25.1", "26.7"), everything)
    assert parse(render(state, dialect, blanks, everything)) == shown


@given(states(ratelimit=None))
def test_round_trip_without_rate_limits(state: QosState) -> None:
    assert parse(render(state, "24.10", False, True)) == state


@given(st.text() | st.binary().map(lambda data: data.decode("utf-8", "surrogateescape")))
def test_garbage_gives_one_clear_error(text: str) -> None:
    with pytest.raises(SparkError, match=r"line [0-9]+ "):
        parse(text)


@given(states(), st.data())
def test_damaged_output_never_gives_a_traceback(state: QosState, data: st.DataObject) -> None:
    lines = render(state, "24.10", False, True).splitlines()
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(lines) - 1))
        action = data.draw(st.sampled_from(["drop", "repeat", "cut", "digits", "insert"]))
        if action == "drop" and len(lines) > 1:
            del lines[at]
        elif action == "repeat":
            lines.insert(at, lines[at])
        elif action == "cut":
            lines[at] = lines[at][: data.draw(st.integers(0, len(lines[at])))]
        elif action == "digits":
            lines[at] = lines[at].replace("0", data.draw(st.sampled_from(["9" * 5000, "٣", "-1", "64", ""])), 1)
        else:
            lines.insert(at, data.draw(st.text(max_size=30)))
    try:
        result = parse("\n".join(lines))
    except SparkError as error:
        assert "line " in error.found
    else:
        assert isinstance(result, QosState)


# --- reading ---


def test_show() -> None:
    assert mlnx_qos.show("/usr/bin/mlnx_qos", "eth0") == [["/usr/bin/mlnx_qos", "-i", "eth0", "-a"]]


def test_read(texts: dict[str, str]) -> None:
    assert mlnx_qos.read([(0, texts["24.10-factory-all-classes"], "")], "eth0") == FACTORY


def test_read_names_the_interface_in_an_error() -> None:
    with pytest.raises(SparkError, match=r"^eth0: line 1 is not understood"):
        mlnx_qos.read([(0, "nonsense", "")], "eth0")


def test_read_of_an_unsupported_nic(texts: dict[str, str]) -> None:
    with pytest.raises(SparkError, match=r"^eth0: the NIC or its driver has no DCB support"):
        mlnx_qos.read([(1, texts["unsupported"], "")], "eth0")


def test_read_without_permission() -> None:
    with pytest.raises(SparkError) as error:
        mlnx_qos.read([(1, "[Errno 1] Netlink error: Operation not permitted (1)\n", "")], "eth0")
    assert str(error.value) == (
        "eth0: mlnx_qos cannot read the settings: [Errno 1] Netlink error: Operation not permitted (1). "
        "Run the module as root (become: true) and try the command by hand."
    )


def test_read_of_a_failure_without_a_message() -> None:
    with pytest.raises(
        SparkError, match=r"^eth0: mlnx_qos cannot read the settings: exit code 139 without a message\."
    ):
        mlnx_qos.read([(139, "", "")], "eth0")


# --- command lines ---

TOOL = "mlnx_qos"
HALF = (0, 0, 0, 3, 0, 0, 6, 0)
ETS = ("ets", "ets", "ets", "ets", "ets", "ets", "strict", "ets")
STEPS = [
    ({}, {}, []),
    ({}, {"trust": "dscp", "dscp2prio": DEFAULT_DSCP2PRIO}, [(["trust"], "--trust dscp")]),
    (
        {},
        {"trust": "dscp", "dscp2prio": {**DEFAULT_DSCP2PRIO, 26: 4, 7: 1}},
        [(["trust"], "--trust dscp"), (["dscp2prio"], "--dscp2prio set,7,1 --dscp2prio set,26,4")],
    ),
    ({"trust": "dscp", "dscp2prio": {26: 3}}, {"trust": "pcp", "dscp2prio": {}}, [(["trust"], "--trust pcp")]),
    (
        {"trust": "dscp", "dscp2prio": {1: 1, 2: 2, 26: 3}},
        {"dscp2prio": {26: 5, 2: 2, 30: 5}},
        [(["dscp2prio"], "--dscp2prio set,26,5 --dscp2prio set,30,5 --dscp2prio del,1,1")],
    ),
    ({}, {"prio_tc": HALF}, [(["prio_tc"], "--prio_tc 0,0,0,3,0,0,6,0")]),
    (
        {},
        {"tsa": ETS, "tcbw": (50, 0, 0, 50, 0, 0, 0, 0)},
        [(["tsa", "tcbw"], "--tsa ets,ets,ets,ets,ets,ets,strict,ets --tcbw 50,0,0,50,0,0,0,0")],
    ),
    (
        {"tsa": ETS, "tcbw": (50, 0, 0, 50, 0, 0, 0, 0)},
        {"tcbw": (60, 0, 0, 40, 0, 0, 0, 0)},
        [(["tcbw"], "--tsa ets,ets,ets,ets,ets,ets,strict,ets --tcbw 60,0,0,40,0,0,0,0")],
    ),
    (
        {},
        {"prio_tc": HALF, "tsa": ("strict",) * 8},
        [
            (
                ["prio_tc", "tsa"],
                "--prio_tc 0,0,0,3,0,0,6,0 --tsa strict,strict,strict,strict,strict,strict,strict,strict "
                "--tcbw 0,0,0,0,0,0,0,0",
            )
        ],
    ),
    (
        {},
        {"ratelimit": (10.0, 0.0, 0.0, 25.0, 0.0, 0.0, 0.0, 255.0)},
        [(["ratelimit"], "--ratelimit 10,0,0,25,0,0,0,255")],
    ),
    ({}, {"pfc": (0, 0, 0, 1, 0, 0, 0, 0)}, [(["pfc"], "--pfc 0,0,0,1,0,0,0,0 --cable_len 7")]),
    ({"cable_len": 0}, {"pfc": (1, 0, 0, 0, 0, 0, 0, 0)}, [(["pfc"], "--pfc 1,0,0,0,0,0,0,0")]),
    ({"pfc": (0, 0, 0, 1, 0, 0, 0, 0)}, {"cable_len": 30}, [(["cable_len"], "--pfc 0,0,0,1,0,0,0,0 --cable_len 30")]),
    ({}, {"prio2buffer": OFF}, [(["prio2buffer"], "--prio2buffer 0,0,0,0,0,0,0,0")]),
    ({}, {"buffer_size": (144, 0, 0, 0, 0, 0, 0, 0)}, [(["buffer_size"], "--buffer_size 144,0,0,0,0,0,0,0")]),
    (
        {},
        {
            "trust": "dscp",
            "dscp2prio": {**DEFAULT_DSCP2PRIO, 0: 7},
            "prio_tc": HALF,
            "ratelimit": (1.0, *[0.0] * 7),
            "pfc": (1,) * 8,
            "cable_len": 9,
            "prio2buffer": OFF,
            "buffer_size": (144, 288, 0, 0, 0, 0, 0, 0),
        },
        [
            (["trust"], "--trust dscp"),
            (["dscp2prio"], "--dscp2prio set,0,7"),
            (["prio_tc"], "--prio_tc 0,0,0,3,0,0,6,0"),
            (["ratelimit"], "--ratelimit 1,0,0,0,0,0,0,0"),
            (["pfc", "cable_len"], "--pfc 1,1,1,1,1,1,1,1 --cable_len 9"),
            (
                ["prio2buffer", "buffer_size"],
                "--prio2buffer 0,0,0,0,0,0,0,0 --buffer_size 144,288,0,0,0,0,0,0",
            ),
        ],
    ),
]


@pytest.mark.parametrize(("now", "then", "commands"), STEPS)
def test_steps(now: dict[str, object], then: dict[str, object], commands: list[tuple[list[str], str]]) -> None:
    state = replace(FACTORY, **now)  # type: ignore[arg-type]
    steps = mlnx_qos.steps(TOOL, "eth0", state, replace(state, **then))  # type: ignore[arg-type]
    assert [(list(step.settings), list(step.argv)) for step in steps] == [
        (settings, ["mlnx_qos", "-i", "eth0", *options.split()]) for settings, options in commands
    ]
