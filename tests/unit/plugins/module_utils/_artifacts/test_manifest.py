# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import manifest as m

HASH, GIT = "a" * 64, "b" * 40
LARGE = m.File("model-00001-of-00001.safetensors", 9000, HASH, HASH, (HASH, "c" * 64, "d" * 64))
SMALL = m.File("tokenizer/config.json", 7, "e" * 64, GIT, ("e" * 64,))
MADE = m.Manifest("org/model", GIT, (LARGE, SMALL), "https://huggingface.co", 4096)


def test_what_is_written_is_read() -> None:
    assert m.parse(json.loads(json.dumps(MADE.as_dict()))) == MADE
    assert MADE.size == 9007


def test_segments_cover_every_byte_once() -> None:
    assert [(one.number, one.file.path, one.offset, one.size) for one in MADE.segments()] == [
        (0, LARGE.path, 0, 4096),
        (1, LARGE.path, 4096, 4096),
        (2, LARGE.path, 8192, 808),
        (3, SMALL.path, 0, 7),
    ]


def test_an_empty_file_has_no_segment() -> None:
    empty = m.File("empty", 0, "f" * 64, "f" * 64)
    assert list(m.parse(replace(MADE, files=(empty,)).as_dict()).segments()) == []


def test_the_digest_is_that_of_the_content() -> None:
    assert MADE.digest == replace(MADE, source="a copy", files=(SMALL, LARGE)).digest
    assert MADE.digest != replace(MADE, files=(replace(LARGE, sha256="0" * 64), SMALL)).digest


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "../x",
        "a/../x",
        "a//b",
        "a/",
        ".",
        "a\\b/..",
        "a\x00",
        "a\nb",
        "-x",
        "x/ y",
        "ä",
        "a" * 300,
        "a/b" * 400,
    ],
)
def test_a_path_stays_below_the_model(path: str) -> None:
    with pytest.raises(ValueError, match=r"path is|control"):
        m.parse(replace(MADE, files=(replace(SMALL, path=path),)).as_dict())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"schema": 2}, "schema is 2, this release reads 1"),
        ({"name": "../x"}, "name is"),
        ({"name": "a--b"}, "name is"),
        ({"name": "a/b/c"}, "name is"),
        ({"revision": "main"}, "revision is 'main'"),
        ({"segment_bytes": 0}, "segment_bytes is 0"),
        ({"files": []}, "number of files is 0"),
        ({"files": [{**SMALL.__dict__, "size": -1}]}, "size of"),
        ({"files": [{**SMALL.__dict__, "sha256": "x"}]}, "sha256 of"),
        ({"files": [{**SMALL.__dict__, "blob": "../x"}]}, "blob of"),
        ({"files": [{**SMALL.__dict__, "segments": []}]}, "number of segments"),
        ({"files": [{**SMALL.__dict__, "segments": ["x"]}]}, "segments of"),
        ({"files": [SMALL.__dict__, SMALL.__dict__]}, "there twice"),
        ({"files": [SMALL.__dict__, {**SMALL.__dict__, "path": "tokenizer"}]}, "file and directory"),
        ({"files": [SMALL.__dict__, {**LARGE.__dict__, "blob": GIT}]}, "blob of"),
        ({"more": 1}, "unknown keys: more"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises((ValueError, TypeError), match=says):
        m.parse({**MADE.as_dict(), **changes})
