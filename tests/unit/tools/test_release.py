# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What is a release, that an archive has nothing of the moment and the machine that built it, and what is in its list
of contents."""

from __future__ import annotations

import io
import json
import pathlib
import tarfile

import pytest
import release
import yaml
from packaging.version import Version


@pytest.mark.parametrize(
    ("changed", "waiting", "released", "reason"),
    [
        (False, False, {"0.1.0"}, ""),
        (True, True, {"0.1.0"}, "commit them"),
        (False, True, {"0.1.0"}, "set the next version in galaxy.yml"),
        (False, True, set(), "wait in changelogs"),
        (False, False, set(), "does not know it"),
    ],
)
def test_what_is_no_release_says_why(changed: bool, waiting: bool, released: set[str], reason: str) -> None:
    said = release.not_ready("0.1.0", changed, waiting, released)
    assert reason in said and bool(said) == bool(reason)


def test_this_repository_has_a_state() -> None:
    changed, waiting, released = release.state_of(release.ROOT)
    assert isinstance(changed, bool) and isinstance(waiting, bool) and "0.1.0" in released


def test_the_version_is_released_and_shown_or_still_to_come() -> None:
    _changed, _waiting, released = release.state_of(release.ROOT)
    version = str(yaml.safe_load((release.ROOT / "galaxy.yml").read_text())["version"])
    newest = max(yaml.safe_load((release.ROOT / "changelogs/changelog.yaml").read_text())["releases"], key=Version)
    assert Version(version) >= Version(newest) and newest in released
    assert f'<a id="v{newest.replace(".", "-")}"></a>' in (release.ROOT / "CHANGELOG.md").read_text()


def built(names: list[str], time: int, user: str) -> bytes:
    files = {"files": [{"name": name} for name in names]}
    manifest = {"file_manifest_file": {"chksum_sha256": time}}
    content = {
        **dict.fromkeys(names, b"text"),
        release.FILES: json.dumps(files).encode(),
        release.MANIFEST: json.dumps(manifest).encode(),
    }
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name in [*names, release.FILES, release.MANIFEST]:
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.uname = len(content[name]), time, user
            archive.addfile(member, io.BytesIO(content[name]))
    return made.getvalue()


def test_archives_of_one_commit_are_the_same_to_the_byte() -> None:
    one = release.settled(built(["a", "b"], 1, "me"), 1700000000)
    assert one == release.settled(built(["b", "a"], 2, "you"), 1700000000)
    with tarfile.open(fileobj=io.BytesIO(one)) as archive:
        assert {member.mtime for member in archive} == {1700000000}
        assert archive.getnames() == sorted(archive.getnames())


def test_the_list_of_contents_has_ranges_for_the_controller_and_versions_for_the_nodes(tmp_path: pathlib.Path) -> None:
    files = {
        "galaxy.yml": "{version: 1.2.3, license: [GPL-3.0-or-later], dependencies: {some.thing: '>=1.0.0,<2.0.0'}}",
        "requirements.txt": "# Why.\nNetAddr>=1.3,<2\n",
        "roles/engine/files/locks/vllm-1.txt": "torch==2.9.0 \\\n    --hash=sha256:00\n# a comment==1\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    made = release.contents(tmp_path, b"archive", 1700000000)
    assert made["metadata"]["component"]["version"] == "1.2.3"
    assert made["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"
    assert made["dependencies"][0]["dependsOn"] == [component["bom-ref"] for component in made["components"]]
    collection, asked, locked = made["components"]
    assert collection["name"] == "some.thing" and "version" not in collection and "purl" not in collection
    assert collection["properties"][0]["value"] == ">=1.0.0,<2.0.0"
    assert asked["purl"] == "pkg:pypi/netaddr" and asked["properties"][0]["value"] in ("<2,>=1.3", ">=1.3,<2")
    assert locked["purl"] == "pkg:pypi/torch@2.9.0" and locked["version"] == "2.9.0" and "properties" not in locked


def test_what_this_repository_needs_is_in_the_list() -> None:
    listed = {component["name"] for component in release.contents(release.ROOT, b"", 0)["components"]}
    assert {"ansible.posix", "community.general", "jmespath", "netaddr", "vllm", "sglang"} <= listed


def test_a_guide_that_does_not_say_which_ansible_is_no_release(tmp_path: pathlib.Path) -> None:
    assert release.asked_for(release.ROOT).startswith("ansible>=")
    guide = tmp_path / release.GUIDE
    guide.parent.mkdir(parents=True)
    guide.write_text("pip install ansible\n")
    with pytest.raises(SystemExit, match="which ansible"):
        release.asked_for(tmp_path)
