# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is a release, and that an archive has nothing of the moment and the machine that built it."""

from __future__ import annotations

import io
import json
import tarfile

import pytest
import release


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
