# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.template import trust_as_template
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import yaml_text


def test_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.yml"
    path.write_text("a: [1, x]\n", encoding="utf-8")
    assert yaml_text.file(path, "") == yaml_text.read("a: [1, x]") == {"a": [1, "x"]}
    assert yaml_text.read(trust_as_template("a: [1, x]")) == {"a": [1, "x"]}, "as a lookup gives it"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"a: [", "it is no valid YAML (while parsing"),
        (b"\xff", "it is no valid YAML ('utf-8' codec can't decode"),
        (b"{[]: 1}", "it is no valid YAML (while constructing"),
        (b"2026-13-41", "it is no valid YAML (month must be in 1..12"),
        (b"!!bool x", "it is no valid YAML ('x')"),
        (b"\x07", "it is no valid YAML ("),
    ],
)
def test_what_is_refused(tmp_path: Path, text: bytes, found: str) -> None:
    path = tmp_path / "a.yml"
    path.write_bytes(text)
    with pytest.raises(SparkError) as refused:
        yaml_text.file(path, "Check the option")
    assert refused.value.found.startswith(found)
    assert (refused.value.where, refused.value.remedy) == (str(path), "Correct it")


BOMB = "a0: &a0 [x]\n" + "".join(f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 10)}]\n" for n in range(8))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (BOMB, "it has the alias or anchor &a0 in line 1"),
        ("x: 1\nb: *no", "it has the alias or anchor *no in line 2"),
        ("base: &base {a: 1}\nmine: {<<: *base}", "it has the alias or anchor &base in line 1"),
        ("[" * 3000, "it is too large or too deep in line 1"),
        ("a:\n" + "- 1\n" * 20_000, "it is too large or too deep in line 19999"),
        ("x: " + "1:" * 40_000 + "1", "it is too large or too deep in line 1"),
        ("a: {b: [1, 0x" + "f" * 5000 + "]}", "its a.b has a number that is none to count with"),
        ("weights_gb: .inf", "its weights_gb has a number"),
        ("weights_gb: .nan", "its weights_gb has a number"),
        ("weights_gb: 1.0e+308", "its weights_gb has a number"),
        ("#" * 1024 * 1024 + "##", "it has more than 1048576 characters"),
    ],
)
def test_what_would_become_larger_than_it_looks_is_refused_unread(tmp_path: Path, text: str, found: str) -> None:
    path = tmp_path / "a.yml"
    path.write_text(text)
    with pytest.raises(SparkError) as refused:
        yaml_text.file(path, "")
    assert refused.value.found.startswith(found) and refused.value.where == str(path) and refused.value.remedy


def test_aliases_count_as_what_they_stand_for(tmp_path: Path) -> None:
    path = tmp_path / "a.yml"
    path.write_text("base: &base {a: 1}\nmine: {<<: *base, b: 2}\n")
    assert yaml_text.file(path, "", aliases=True)["mine"] == {"a": 1, "b": 2}
    for endless in (BOMB, "a: &a [*a]"):
        path.write_text(endless)
        with pytest.raises(SparkError, match="too large or too deep"):
            yaml_text.file(path, "", aliases=True)


def test_a_value_in_a_message_costs_what_is_read_of_it() -> None:
    value: Any = "x"
    for _level in range(40):
        value = {"a": [value] * 10}
    assert len(strict.quoted(value)) == strict.MAX_QUOTED + 1
    assert strict.quoted({"a": [1, None, ("b", {})]}) == "{'a': [1, None, ('b', {})]}"


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(SparkError, match=r"it cannot be read \(No such file or directory\)\. Check"):
        yaml_text.file(tmp_path / "a.yml", "Check the option")


@pytest.mark.parametrize(
    ("value", "found"), [("x", "its a is a text, expected a mapping"), (["k=s"], "its a is a list, expected a mapping")]
)
def test_another_type_is_refused(value: Any, found: str) -> None:
    yaml_text.check({"a": {}}, {"a": dict, "b": int}, "/a/file")
    yaml_text.check({"a": None}, {"a": dict}, "/a/file")
    with pytest.raises(SparkError) as refused:
        yaml_text.check({"a": value}, {"a": dict}, "/a/file")
    assert (refused.value.found, refused.value.where) == (found, "/a/file")
