# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import manifest as m

HASH, GIT = "a" * 64, "b" * 40
LARGE = m.File("model-00001-of-00001.safetensors", 9000, HASH, HASH)
SMALL = m.File("tokenizer/config.json", 7, "e" * 64, GIT)
MADE = m.Manifest("org/model", GIT, (LARGE, SMALL), "https://huggingface.co")


def test_what_is_written_is_read() -> None:
    assert m.parse(json.loads(json.dumps(MADE.as_dict()))) == MADE
    assert replace(MADE, files=(*MADE.files, replace(SMALL, path="b.json"))).size == MADE.size == 9007


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
        ({"schema": 1}, "schema is 1, this release reads 2"),
        ({"name": "../x"}, "name is"),
        ({"name": "a--b"}, "name is"),
        ({"name": "a/b/c"}, "name is"),
        ({"revision": "main"}, "revision is 'main'"),
        ({"files": []}, "number of files is 0"),
        ({"files": [{**SMALL.__dict__, "size": -1}]}, "size of"),
        ({"files": [{**SMALL.__dict__, "sha256": "x"}]}, "sha256 of"),
        ({"files": [{**SMALL.__dict__, "blob": "../x"}]}, "blob of"),
        ({"files": [SMALL.__dict__, SMALL.__dict__]}, "there twice"),
        ({"files": [SMALL.__dict__, {**SMALL.__dict__, "path": "tokenizer"}]}, "file and directory"),
        ({"files": [SMALL.__dict__, {**LARGE.__dict__, "blob": GIT}]}, "blob of"),
        ({"more": 1}, "unknown keys: more"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises((ValueError, TypeError), match=says):
        m.parse({**MADE.as_dict(), **changes})
