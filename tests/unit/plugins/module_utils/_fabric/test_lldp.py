# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.lldp import (
    Announcement,
    parse_lldpcli,
)
from hypothesis import given
from hypothesis import strategies as st


def test_lldpcli_with_two_interfaces(fixtures: Path) -> None:
    assert parse_lldpcli((fixtures / "lldp/two-interfaces.json").read_text()) == [
        (
            "enp1s0f0np0",
            Announcement(
                "rack-switch",
                "qsfp56-dd-1-1",
                ("b8:69:f4:00:12:30",),
                ("192.168.88.2", "fe80::ba69:f4ff:fe00:1230"),
            ),
        ),
        ("enp1s0f1np1", Announcement("spark2", "48:21:0B:96:02:C0", ("48:21:0b:95:02:01", "48:21:0b:96:02:c0"))),
    ]


def test_lldpcli_with_one_interface_is_an_object(fixtures: Path) -> None:
    assert parse_lldpcli((fixtures / "lldp/one-interface-no-name.json").read_text()) == [
        ("enp1s0f0np0", Announcement("a4:8c:db:6a:09:00", "34", ("a4:8c:db:6a:09:00",)))
    ]


@pytest.mark.parametrize(
    "document",
    [
        "",
        "{}",
        "[]",
        '{"lldp": {}}',
        '{"lldp": {"interface": []}}',
        '{"lldp": {"interface": [{"a": 1}, 2]}}',
        '{"lldp": {"interface": {"a": {"chassis": {"b": 1}, "port": []}}}}',
    ],
)
def test_lldpcli_without_neighbours(document: str) -> None:
    assert parse_lldpcli(document) == []


def test_lldpcli_with_several_neighbours_of_one_port() -> None:
    one = {"chassis": {"id": {"type": "local", "value": "x"}, "name": "sw"}, "port": {}}
    text = json.dumps({"lldp": {"interface": {"eth0": [one, one]}}})
    assert parse_lldpcli(text) == [("eth0", Announcement("sw", "", ()))] * 2


def said(kind: str, value: str) -> dict[str, Any]:
    return {"id": {"type": kind, "value": value}}


@pytest.mark.parametrize(
    ("chassis", "port", "announcement"),
    [
        (1, said("ifname", "swp7"), Announcement("", "swp7")),
        ({"a": 1}, said("ifname", "swp7"), Announcement("", "swp7")),
        (said("local", "x"), {"id": {"type": "local"}}, Announcement("x", "")),
        ({**said("local", "x"), "name": 5}, {}, Announcement("x", "")),
        (said("mac", "x"), said("local", "48:21:0b:95:02:01"), Announcement("x", "48:21:0b:95:02:01")),
    ],
)
def test_lldpcli_with_a_part_that_is_missing_or_no_text(chassis: Any, port: Any, announcement: Announcement) -> None:
    text = json.dumps({"lldp": {"interface": {"eth0": {"chassis": chassis, "port": port}}}})
    assert parse_lldpcli(text) == [("eth0", announcement)]


@pytest.mark.parametrize("managed", ["10.0.0.11", ["10.0.0.11"], ["10.0.0.11", "x", None, 5, {}, "10.0.0.11"]])
def test_lldpcli_with_addresses(managed: Any) -> None:
    chassis = {**said("mac", "48:21:0B:95:02:01"), "mgmt-ip": managed}
    text = json.dumps({"lldp": {"interface": {"eth0": {"chassis": {"spark": chassis}, "port": {}}}}})
    assert parse_lldpcli(text) == [("eth0", Announcement("spark", "", ("48:21:0b:95:02:01",), ("10.0.0.11",)))]


JSON = st.recursive(
    st.none() | st.text(max_size=3) | st.integers(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["lldp", "interface", "chassis", "port", "id", "value", "a"]), inner)
    ),
)


@given(JSON)
def test_any_json_is_read(document: Any) -> None:
    assert isinstance(parse_lldpcli(json.dumps(document)), list)
    assert isinstance(parse_lldpcli(json.dumps({"lldp": {"interface": {"eth0": document}}})), list)


def test_what_acts_on_a_terminal_is_not_kept() -> None:
    chassis = {"id": {"type": "local", "value": "x"}, "name": "sw\x1b[2J\n1"}
    text = json.dumps({"lldp": {"interface": {"eth0": {"chassis": chassis, "port": {"id": {"value": "p\x071"}}}}}})
    assert parse_lldpcli(text) == [("eth0", Announcement("sw?[2J 1", "p?1", ()))]
