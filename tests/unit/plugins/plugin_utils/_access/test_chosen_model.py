# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._access import chosen_model

HOSTS = "all: {children: {sparks: {hosts: {spark1: {spark_rank: 0}}}}}\n"
NAMES = "hosts.yml", "group_vars/sparks.yml", "group_vars/all.yml", "group_vars/sparks/models.yml"


def inventory(place: Path, **files: str) -> Path:
    for name, text in {"hosts.yml": HOSTS, **files}.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    return place


@pytest.mark.parametrize(
    ("text", "after"),
    [
        # A remark behind the old one was about that; all the rest stays to the byte.
        ("# a\nengine_recipe: old # 16 GB\n# b: 1\nx:   'y'\n", "# a\nengine_recipe: new\n# b: 1\nx:   'y'\n"),
        ("engine_recipe:   'old'\r\nz: &a 1\r\n", "engine_recipe:   new\r\nz: &a 1\r\n"),
        ("engine_recipe: old # b\r\n", "engine_recipe: new\r\n"),
        ("\ufeffengine_recipe: old\n", "\ufeffengine_recipe: new\n"),
        ("---\nengine_recipe: old", "---\nengine_recipe: new"),
        ("{engine_recipe: old, x: 1}\n", "{engine_recipe: new, x: 1}\n"),
        (
            "secret: !vault |\n  $ANSIBLE_VAULT\nengine_recipe: old\n",
            "secret: !vault |\n  $ANSIBLE_VAULT\nengine_recipe: new\n",
        ),
    ],
)
@pytest.mark.parametrize("name", NAMES[1:])
def test_one_line_changes(tmp_path: Path, name: str, text: str, after: str) -> None:
    place = inventory(tmp_path)
    path = place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    path.chmod(0o640)
    found = chosen_model.find(place)
    assert (found.path, found.model) == (path, "old")
    lines = found.keep("new")
    assert path.read_bytes().decode() == after
    assert [line[0] for line in lines] == ["-", "+"] and path.stat().st_mode & 0o777 == 0o640
    assert list(path.parent.glob(".*")) == []


REMARK = "  # to the recipe above; kept by sparkmatrix run"


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("engine_recipe: old # b\nx: y\n", "engine_recipe: /a/b.yml\n{}\nx: y\n"),
        ("engine_recipe: old", "engine_recipe: /a/b.yml\n{}"),
        ("engine_recipe: old\r\nx: y\r\n", "engine_recipe: /a/b.yml\r\n{}\r\nx: y\r\n"),
        # Nothing can stand below it, or somebody says himself what is allowed.
        ("{engine_recipe: old, x: y}\n", "{engine_recipe: /a/b.yml, x: y}\n"),
        ("engine_allow: [a]\nengine_recipe: old\n", "engine_allow: [a]\nengine_recipe: /a/b.yml\n"),
        ("engine_recipe: old\nengine_allow: [a]\n", "engine_recipe: /a/b.yml\nengine_allow: [a]\n"),
    ],
)
def test_what_a_recipe_was_allowed_stands_below_it_and_goes_with_it(tmp_path: Path, text: str, after: str) -> None:
    place = inventory(tmp_path)
    path = place / "group_vars/sparks.yml"
    path.parent.mkdir()
    path.write_bytes(text.encode())
    first = chosen_model.find(place)
    first.keep("/a/b.yml", ["command", "moving-image"])
    kept = f"engine_allow: [command, moving-image]{REMARK}"
    assert path.read_bytes().decode() == after.replace("{}", kept)
    found = chosen_model.find(place)
    assert (found.model, found.owned) == ("/a/b.yml", first.owned)
    assert found.allowed == (["command", "moving-image"] if first.can_allow else [])
    found.keep("/a/b.yml", ["command"] if first.can_allow else [])
    assert chosen_model.find(place).allowed == ["command"] * first.can_allow
    chosen_model.find(place).keep("old")
    assert path.read_bytes().decode() == text.replace(" # b", "")


def test_it_stands_deep_in_the_file_of_the_hosts(tmp_path: Path) -> None:
    text = "all:\n  vars:\n    engine_recipe: old\n  children: {sparks: {hosts: {a: {}}}}\n"
    found = chosen_model.find(inventory(tmp_path, **{"hosts.yml": text}))
    assert f"\n    engine_recipe: new\n    engine_allow: [command]{REMARK}\n  child" in found.instead(
        "new", ["command"]
    )


@pytest.mark.parametrize("name", ["/a b/ä: #1.yml", "../mine.yaml", "~/x.yml"])
def test_a_file_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("HOME", "/h")
    found = chosen_model.find(inventory(tmp_path, **{NAMES[1]: "engine_recipe: old\n"}))
    whole = chosen_model.whole(name)
    assert whole.startswith("/") and "~" not in whole and ".." not in whole
    found.keep(whole)
    assert chosen_model.find(tmp_path).model == whole
    assert chosen_model.whole("qwen3-8b") == "qwen3-8b"


@pytest.mark.parametrize("name", ["/a/{{ x }}.yml", '/a/"x.yml', "/a\n/x.yml"])
def test_what_would_be_more_than_a_name_is_not_written(tmp_path: Path, name: str) -> None:
    found = chosen_model.find(inventory(tmp_path, **{NAMES[1]: "engine_recipe: old\n"}))
    with pytest.raises(SparkError):
        found.keep(name)


def test_the_file_stays_its_owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root changes it for somebody; who is not root may not give it away, and it is his already."""
    given: list[tuple[int, int]] = []
    found = chosen_model.find(inventory(tmp_path, **{"group_vars/all.yml": "engine_recipe: old\n"}))
    monkeypatch.setattr(chosen_model.os, "chown", lambda _path, *ids: given.append(ids))
    found.keep("new")
    assert given == [(found.path.stat().st_uid, found.path.stat().st_gid)]


def test_it_stands_in_the_file_of_the_hosts_too(tmp_path: Path) -> None:
    text = "all:\n  children:\n    sparks:\n      vars:\n        engine_recipe: old\n      hosts: {a: {}}\n"
    place = inventory(tmp_path, **{"hosts.yml": text})
    for where in (place, place / "hosts.yml"):
        assert chosen_model.find(where).instead("new") == text.replace("old", "new")


@pytest.mark.parametrize(
    ("files", "after"),
    [
        ({NAMES[1]: "engine_services: []\nengine_recipe: old\n"}, "engine_services: []\nengine_recipe: new\n"),
        ({NAMES[1]: "engine_services:\nengine_recipe: old\n"}, "engine_services:\nengine_recipe: new\n"),
        ({NAMES[1]: "engine_recipe: a\nengine_recipe: old\n"}, "engine_recipe: a\nengine_recipe: new\n"),
        ({NAMES[1]: "engine_recipe: old\n", NAMES[2]: "engine_recipe: '{{ x }}'\n"}, "engine_recipe: new\n"),
        ({"group_vars/sparks": "engine_recipe: old\n"}, "engine_recipe: new\n"),
    ],
)
def test_the_line_that_counts_is_changed(tmp_path: Path, files: dict[str, str], after: str) -> None:
    found = chosen_model.find(inventory(tmp_path, **files))
    assert found.model == "old" and found.instead("new") == after


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, ("no file", "group_vars/sparks.yml: engine_recipe: MODEL")),
        ({NAMES[1]: "engine_recipe: a\n", NAMES[2]: "engine_services: [{name: x}]\n"}, ("several", "all.yml")),
        ({NAMES[1]: "engine_recipe: a\nengine_services: [{name: x}]\n"}, ("several models",)),
        ({"group_vars/sparks.yml": "engine_services: {a: {}}\n"}, ("several models", "group_vars/sparks.yml")),
        ({"group_vars/sparks.yml": "engine_recipe: '{{ mine }}'\n"}, ("no plain name", "group_vars/sparks.yml")),
        ({"group_vars/sparks.yml": "engine_recipe: !x 'a'\n"}, ("more than the plain name",)),
        ({"group_vars/sparks.yml": "engine_recipe: [a]\n"}, ("no plain name",)),
        ({"group_vars/sparks.yml": "a: [\n"}, ("cannot be read", "line 2")),
    ],
)
def test_what_is_no_line_of_its_own_is_left_to_its_owner(
    tmp_path: Path, files: dict[str, str], says: tuple[str]
) -> None:
    with pytest.raises(SparkError) as refused:
        chosen_model.find(inventory(tmp_path, **files))
    assert [part for part in says if part not in str(refused.value)] == []


def test_what_somebody_else_has_written_meanwhile_stays(tmp_path: Path) -> None:
    place = inventory(tmp_path, **{NAMES[1]: "engine_recipe: old\n"})
    found = chosen_model.find(place)
    (place / NAMES[1]).write_text("engine_recipe: other\n")
    with pytest.raises(SparkError):
        found.keep("new")
    assert (place / NAMES[1]).read_text() == "engine_recipe: other\n"
