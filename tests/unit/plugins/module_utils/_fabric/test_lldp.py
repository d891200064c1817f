# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.lldp import (
    Announcement,
    decode,
    parse_lldpcli,
)
from hypothesis import example, given
from hypothesis import strategies as st

MAC = bytes.fromhex("b869f4001230")


def tlv(kind: int, value: bytes) -> bytes:
    return bytes([kind << 1 | len(value) >> 8, len(value) & 0xFF]) + value


def frame(*fields: tuple[int, bytes]) -> bytes:
    return b"".join(tlv(kind, value) for kind, value in fields) + b"\0\0"


SWITCH = frame((1, b"\x04" + MAC), (2, b"\x05swp7"), (3, b"\0\x78"), (5, b"rack-switch"), (6, b"Cumulus Linux" * 30))


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (SWITCH, Announcement("rack-switch", "swp7", ("b8:69:f4:00:12:30",))),
        (SWITCH + bytes(20), Announcement("rack-switch", "swp7", ("b8:69:f4:00:12:30",))),  # padded
        (
            frame((1, b"\x04" + MAC), (2, b"\x03" + MAC)),
            Announcement("b8:69:f4:00:12:30", "b8:69:f4:00:12:30", ("b8:69:f4:00:12:30",) * 2),
        ),
        (frame((1, b"\x07J3008H7M"), (2, b"\x0734")), Announcement("J3008H7M", "34")),
        (
            frame((1, b"\x05\x01\x0a\x00\x00\x02"), (2, b"\x04\x02\xfe\x80")),
            Announcement("10.0.0.2", "fe80", (), ("10.0.0.2",)),
        ),
        # Where it is managed; of other families, and of another length, nothing is kept.
        (
            frame(
                (1, b"\x071"),
                (2, b"\x072"),
                (8, b"\x05\x01\x0a\0\0\x0b\x02\0\0\0\x01\0"),
                (8, b"\x07\x06abcdef"),
                (8, b"\x11\x02\xfe\x80" + bytes(13) + b"\1"),
                (8, b"\x02\x01\x0a"),
                (8, b""),
            ),
            Announcement("1", "2", (), ("10.0.0.11", "fe80::1")),
        ),
        (frame((1, b"\x07\xff\xfe"), (2, b"\x07a\0")), Announcement("\ufffd\ufffd", "a")),
        (frame((1, b"\x071"), (2, b"\x072"), (5, b"\0 X\xff \0")), Announcement("X\ufffd", "2")),
        (frame((1, b"\x071"), (2, b"\x05X1 \0")), Announcement("1", "X1")),
        # Six letters are no MAC address, and what is called one may have another length.
        (frame((1, b"\x07switch"), (2, b"\x05swp107")), Announcement("switch", "swp107")),
        (frame((1, b"\x04switch-1"), (2, b"\x03swp1")), Announcement("switch-1", "swp1")),
    ],
)
def test_frames(payload: bytes, said: Announcement) -> None:
    assert decode(payload) == said


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"", "the frame ends without the end mark of LLDP"),
        (SWITCH[:-2], "the frame ends without the end mark of LLDP"),
        (b"\x02\xff\x04", "a field is longer than the frame"),
        (frame((1, b"\x04" + MAC)), "chassis or port identifier is missing"),
        (frame((1, b"\x04"), (2, b"\x05swp7")), "chassis or port identifier is missing"),
    ],
)
def test_what_is_no_lldp_frame(payload: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        decode(payload)


@given(st.binary(max_size=300))
@example(frame((1, b"\x05\x01"), (2, b"\x04\x01")))
def test_any_bytes_are_an_announcement_or_a_value_error(payload: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(decode(payload), Announcement)


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


def test_text_that_is_no_json() -> None:
    with pytest.raises(SparkError, match="this is no JSON") as raised:
        parse_lldpcli("plain text")
    assert raised.value.where == "lldpcli"
    assert raised.value.remedy == "Look at: sudo lldpcli -f json show neighbors"


def test_what_acts_on_a_terminal_is_not_kept() -> None:
    chassis = {"id": {"type": "local", "value": "x"}, "name": "sw\x1b[2J\n1"}
    text = json.dumps({"lldp": {"interface": {"eth0": {"chassis": chassis, "port": {"id": {"value": "p\x071"}}}}}})
    assert parse_lldpcli(text) == [("eth0", Announcement("sw?[2J 1", "p?1", ()))]
    frame = decode(b"\x02\x04\x07a\x9bc" + b"\x04\x04\x07p\x071" + b"\x0a\x05s\x1b[2J" + b"\x00\x00")
    assert frame == Announcement("s?[2J", "p?1", ())
