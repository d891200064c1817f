# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import base64
import io
import json
import tarfile
import zlib

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._support.capture import MAX_BYTES, pack, unpacked
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._support import bundle
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._support.bundle import Bundle, Part

OUTPUTS = {"ip_link": "lo UP\n", "/etc/sparkmatrix/engine.json": "{}", **{f"/var/log/x{n}": "" for n in range(50)}}
PARTS = {
    "spark1": Part(OUTPUTS, {"tokens": 2, "addresses": 1}),
    "spark2": Part(problem="no answer"),
    "controller": Part({"logs/site.log": "x"}),
}
MADE = Bundle(PARTS, "0.1.0", "2026-11-23T10:00:00Z")


def test_the_list_of_contents_says_what_is_in_it_and_what_was_left_out():
    assert MADE.lines[:4] == [
        "spark1: 52 files, 0 kB",
        "  etc/sparkmatrix: engine.json",
        "  var/log: x0, x1, x10, x11, x12, and 45 more",
        "  tools: ip_link",
    ]
    assert MADE.lines[4:] == [
        "  left out: 1 addresses, 2 tokens",
        "spark2: nothing, no answer",
        "controller: 1 files, 0 kB",
        "  logs: site.log",
        "  left out: nothing was found that has to be",
        bundle.SHOWS,
    ]
    assert bundle.SHOWS not in Bundle(PARTS, "0.1.0", "", anonymous=True).lines


def test_the_archive_can_be_read_back_and_is_the_same_twice():
    packed = bundle.archive(MADE.files)
    assert packed == bundle.archive(MADE.files)
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        names = tar.getnames()
        contents = json.load(tar.extractfile("sparkmatrix-support/contents.json"))
        assert tar.extractfile("sparkmatrix-support/spark1/tools/ip_link.txt").read() == b"lo UP\n"
        assert {entry.mode for entry in tar} == {0o600}
    assert all(name.startswith("sparkmatrix-support/") for name in names)
    assert contents["machines"]["spark2"] == {"problem": "no answer", "left_out": {}, "files": {}}
    assert contents["machines"]["spark1"]["files"]["etc/sparkmatrix/engine.json"] == 2


def test_the_last_line_names_machines_that_are_missing():
    assert bundle.verdict(MADE, "/x.tar.gz", 12345) == (
        "/x.tar.gz: 12 kB, 1 of 2 machines; nothing of spark2. Read it before you send it"
    )


def packed(value):
    return base64.b64encode(zlib.compress(json.dumps(value).encode())).decode()


@pytest.mark.parametrize(
    "hostile",
    [
        *(None, 5, "", "no base64!", base64.b64encode(b"no zlib").decode(), packed([]), packed({"x": 5})),
        *(packed({name: ""}) for name in ("/etc/../../x", "a b", "x\ny", "", "x" * 300)),
        packed({"x": "y" * 1_000_000}),
        base64.b64encode(zlib.compress(b" " * (MAX_BYTES + 10))).decode(),
    ],
)
def test_a_machine_that_packs_something_else_is_refused(hostile):
    with pytest.raises(ValueError):
        unpacked(hostile)


def test_what_acts_on_a_terminal_is_not_taken_along():
    assert unpacked(pack({"x": "a\x1b[2Jb\n\tc\0"})) == {"x": "a [2Jb\n\tc "}
