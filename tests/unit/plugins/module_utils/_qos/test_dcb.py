# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._qos import dcb
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._qos.state import DEFAULT_DSCP2PRIO, QosState

FIXTURES = Path(__file__).parents[3] / "fixtures/dcb"
OFF = (0,) * 8
FACTORY = QosState(dcbx="os", trust="pcp", pfc=OFF)


def text(name: str) -> str:
    return (FIXTURES / name).read_text()


@pytest.mark.parametrize(
    ("name", "parser", "expected"),
    [
        ("dcbx-host.json", dcb.parse_dcbx, "os"),
        ("dcbx-firmware.json", dcb.parse_dcbx, "firmware"),
        ("pfc-off.json", dcb.parse_pfc, OFF),
        ("pfc-statistics.json", dcb.parse_pfc, (0, 0, 0, 1, 0, 0, 0, 1)),
        ("app-empty.txt", dcb.parse_app, {}),
        ("app-dscp.txt", dcb.parse_app, {26: 3, 48: 6}),
        ("app-all-selectors.txt", dcb.parse_app, {0: 0, 26: 3, 63: 7}),
    ],
)
def test_parsers(name: str, parser: Callable[..., Any], expected: Any) -> None:
    assert parser(text(name)) == expected


@pytest.mark.parametrize(
    ("parser", "output"),
    [
        (dcb.parse_dcbx, '{"host": "true"}'),
        (dcb.parse_pfc, ""),
        (dcb.parse_pfc, "[]"),
        (dcb.parse_pfc, "{}"),
        (dcb.parse_pfc, '{"prio_pfc": [true]}'),
        (dcb.parse_pfc, '{"prio_pfc": [1, 1, 1, 1, 1, 1, 1, 1]}'),
        (dcb.parse_pfc, '{"prio_pfc": [], "prio_pfc": [false]}'),
        (dcb.parse_app, text("app-names.txt")),
        (dcb.parse_app, "dscp-prio 64:3"),
        (dcb.parse_app, "dscp-prio 6:8"),
        (dcb.parse_app, "dscp-prio 6:3 6:4"),
        (dcb.parse_app, "pfc-cap 8"),
    ],
)
def test_refused_output(parser: Callable[..., Any], output: str) -> None:
    with pytest.raises(SparkError, match=r"^eth0: dcb ") as error:
        parser(output, "eth0")
    assert "dcb -V" in error.value.remedy


GOOD = [Completed(0, text(name)) for name in ("dcbx-host.json", "pfc-off.json", "app-empty.txt")]
NO_DCB = Completed(1, "", "Attribute read: Operation not supported\n")
NOT_THERE = Completed(1, "", "Attribute not found: No such file or directory\n")


def test_read() -> None:
    assert dcb.show("eth0") == [
        ["dcb", "-j", "dcbx", "show", "dev", "eth0"],
        ["dcb", "-j", "pfc", "show", "dev", "eth0"],
        ["dcb", "-N", "app", "show", "dev", "eth0"],
    ]
    assert dcb.read(GOOD, "eth0") == FACTORY


@pytest.mark.parametrize("answer", [NO_DCB, NOT_THERE])
@pytest.mark.parametrize(("at", "difference"), [(0, {"dcbx": None}), (2, {"trust": None})])
def test_optional_objects(at: int, difference: dict[str, Any], answer: Completed) -> None:
    assert dcb.read([*GOOD[:at], answer, *GOOD[at + 1 :]], "eth0") == replace(FACTORY, **difference)


@pytest.mark.parametrize(
    ("results", "found"),
    [
        ([NO_DCB, NOT_THERE, NO_DCB], "has no DCB support"),
        ([GOOD[0], NO_DCB, GOOD[2]], "has no DCB support"),
        ([GOOD[0], Completed(1, "", "Attribute read: No such device\n"), GOOD[2]], "cannot read pfc: Attribute read"),
        ([Completed(127, "", "dcb: No such file or directory")], "dcb is not installed"),
        ([Completed(139), *GOOD[1:]], "cannot read dcbx: exit code 139 without a message"),
    ],
)
def test_what_cannot_be_read(results: list[Completed], found: str) -> None:
    with pytest.raises(SparkError, match=found):
        dcb.read(results, "eth0")


IDENTITY = " ".join(f"{dscp}:{dscp >> 3}" for dscp in range(64))


@pytest.mark.parametrize(
    ("now", "then", "commands"),
    [
        ({}, {}, []),
        ({}, {"trust": "dscp", "dscp2prio": DEFAULT_DSCP2PRIO}, [(["trust"], "app add", f"dscp-prio {IDENTITY}")]),
        ({"trust": "dscp", "dscp2prio": {26: 3}}, {"trust": "pcp", "dscp2prio": {}},
         [(["trust"], "app flush", "dscp-prio")]),
        ({"trust": "dscp", "dscp2prio": {1: 1, 26: 3}}, {"dscp2prio": {26: 4}},
         [(["dscp2prio"], "app add", "dscp-prio 26:4"), (["dscp2prio"], "app del", "dscp-prio 1:1")]),
        ({}, {"trust": "dscp", "dscp2prio": {26: 3}, "pfc": (0, 0, 0, 1, 0, 0, 0, 0)},
         [(["trust", "dscp2prio"], "app add", "dscp-prio 26:3"), (["pfc"], "pfc set", "prio-pfc all:off 3:on")]),
    ],
)  # fmt: skip
def test_steps(now: dict[str, Any], then: dict[str, Any], commands: list[tuple[list[str], str, str]]) -> None:
    state = replace(FACTORY, **now)
    steps = dcb.steps("eth0", state, replace(state, **then))
    assert [(list(step.settings), list(step.argv)) for step in steps] == [
        (settings, ["dcb", *verb.split(), "dev", "eth0", *options.split()]) for settings, verb, options in commands
    ]
