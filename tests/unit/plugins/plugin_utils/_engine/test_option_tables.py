# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import option_tables as tables

TABLE = tables.Table(
    engine="some",
    version="1.0",
    options={
        "--count": "int",
        "--share": "float",
        "--length": "size",
        "--config": "json",
        "--names": "list",
        "--mode": ["a", "b"],
        "--method": "str",
        "--enable-x": "flag",
        "--tensor-size": "int",
    },
    aliases={"-c": "--count", "--number": "--count"},
    opposites={"--enable-x": "--disable-x"},
    values={"--method": ["One", "two"]},
    environment=["SOME_A"],
)
REMOVED = {"--old": "Use --count", "--method=fp4": "Leave it out", "SOME_OLD": "Use --mode"}


def found(line):
    return [f"{what}. {remedy}" for what, remedy in tables.check(line.split(), TABLE, REMOVED, "Some 1", True)]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "--count 3 --share .5 --length 128k --length auto --config {} --names a b --mode a --method ONE --enable-x",
        "-c 3 --number=4 --disable-x --no-enable-x --config.key.other value --tensor_size -1",
    ],
)
def test_right(line):
    assert found(line) == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--old 3", "Some 1 has no option --old any more. Use --count"),
        ("--cuont 3", "Some 1 has no option --cuont. Did you mean --count?"),
        ("--tensor 3", "abbreviation at best. Write --tensor-size in full"),
        ("--qqqqqq", "Leave it out"),
        ("--method one two", "--method takes one value, and 'one two' was given"),
        ("--count x", "--count is 'x'. It has to be a whole number"),
        ("--count 1.5", "whole number"),
        ("--share x", "It has to be a number"),
        ("--length 12q", "128k"),
        ("--mode c", "--mode c is no value of this version. Known: a, b"),
        ("--method fp4", "Leave it out"),
        ("--method tow", "Did you mean two?"),
        ("--count", "needs a value"),
        ("--enable-x 1", "takes no value"),
    ],
)
def test_wrong(line, expected):
    (text,) = found(line)
    assert expected in text


def test_environment():
    made = list(tables.check_environment(["SOME_A", "SOME_AB", "SOME_OLD", "OTHER"], "SOME_", TABLE, REMOVED, "Some 1"))
    assert made == [
        ("Some 1 has no variable SOME_AB", "Did you mean SOME_A?"),
        ("Some 1 has no variable SOME_OLD", "Use --mode"),
    ]


@pytest.mark.parametrize(
    ("engine", "version", "table"),
    [
        ("vllm", "0.33.0", "0.33.0"),
        ("vllm", "0.33.1+cu130", "0.33.0"),
        ("vllm", "0.33", "0.33.0"),
        ("vllm", "0.99.0", None),
        ("vllm", "", None),
        ("sglang", "0.5.23", "0.5.23"),
        ("sglang", "0.5.22", None),
        ("tensorrt-llm", "1.4.0rc1", "1.4.0"),
        ("ray", "2.60.0", "2.60.0"),
    ],
)
def test_which_table_is_right(engine, version, table):
    made = tables.load(engine, version)
    assert (made.version if made else None) == table


def test_versions_are_in_order():
    assert tables.versions("vllm") == ("0.20.1", "0.31.0", "0.32.0", "0.33.0")


@pytest.mark.parametrize("path", sorted(tables.DIRECTORY.glob("*.json")), ids=lambda path: path.stem)
def test_every_table_is_whole(path):
    engine, _, version = path.stem.rpartition("-")
    table = tables.load(engine, version)
    assert (table.engine, table.version) == (engine, version)
    assert set(table.aliases.values()) <= set(table.options)
    assert set(table.opposites) <= set(table.options)
    assert set(table.values) <= set(table.options)
    assert all(isinstance(kind, list) or kind in {"flag", "int", "float", "size", "str", "json", "list"}
               for kind in table.options.values())  # fmt: skip


def test_the_same_option_in_two_versions():
    # Off is the default; the spelling was an error from 0.17 to 0.32.
    assert not tables.load("vllm", "0.32.0").long_name("--disable-log-requests")
    assert tables.load("vllm", "0.33.0").long_name("--disable-log-requests") == "--enable-log-requests"


def test_what_all_names_begin_with_says_nothing():
    assert tables.close("VLLM_FOO", ["VLLM_PORT", "VLLM_HOST_IP"], "VLLM_") == ""
    assert tables.close("VLLM_PROT", ["VLLM_PORT", "VLLM_HOST_IP"], "VLLM_") == "Did you mean VLLM_PORT?"
    assert tables.close("--cuont", ["--count", "--method"]) == "Did you mean --count?"
