# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Models in one file: written, read, and everything that somebody may have put into it."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import model_manifest
import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import archive, check, look, work
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import cache as caches
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.cache import Cache
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from model_manifest import CONTENT, NAME, REVISION

MADE = model_manifest.manifest()
NEXT = model_manifest.manifest({**CONTENT, "more.safetensors": b"c" * 9}, revision="1e" * 20)
COPY = replace(MADE, name="other/model", revision="2d" * 20)  # the same files under another name
LARGE = model_manifest.file("model-00001-of-00002.safetensors", CONTENT["model-00001-of-00002.safetensors"])


@pytest.fixture
def full(tmp_path: Path) -> Cache:
    there = Cache(str(tmp_path / "full"))
    more = {"more.safetensors": b"c" * 9}
    for manifest, came, refs in ((MADE, CONTENT, ["main"]), (NEXT, more, []), (COPY, CONTENT, ["main"])):
        model_manifest.blobs(there.partial(manifest.revision) / "blobs", came)
        caches.place(there, manifest, refs)
    return there


@pytest.fixture
def file(tmp_path: Path, full: Cache) -> str:
    path = f"{tmp_path}/models.tar"
    archive.write(full, [(manifest.name, manifest.revision) for manifest in (MADE, NEXT, COPY)], path)
    return path


@pytest.fixture
def empty(tmp_path: Path) -> Cache:
    return Cache(str(tmp_path / "empty"))


def test_models_travel_in_one_file_every_content_once(file: str, empty: Cache) -> None:
    with tarfile.open(file) as tar:
        names = tar.getnames()
    assert names[0] == "manifest.json"
    assert sorted(names[1:]) == sorted(f"blobs/{blob}" for blob in {one.blob for one in NEXT.files})
    came: list[int] = []
    found = archive.read(empty, file, tell=came.append)
    assert [(one.manifest, one.refs, one.changed) for one in found] == [
        (MADE, ("main",), True),
        (NEXT, (), True),
        (COPY, ("main",), True),
    ]
    assert sum(came) == NEXT.size
    for made in (MADE, NEXT, COPY):
        assert check.check(empty, made, full=True).whole
    assert caches.revision(empty, NAME) == REVISION
    assert not [path for path in Path(empty.home, "sparkmatrix/partial").rglob("*") if path.is_file()]


def test_a_second_time_nothing_is_read(file: str, empty: Cache) -> None:
    archive.read(empty, file)
    came: list[int] = []
    assert not any(one.changed for one in archive.read(empty, file, tell=came.append))
    assert came == []


def test_only_what_is_broken_is_taken(file: str, empty: Cache) -> None:
    archive.read(empty, file)
    empty.blob(NAME, LARGE.blob).write_bytes(b"x")
    came: list[int] = []
    archive.read(empty, file, tell=came.append)
    assert sum(came) == LARGE.size
    assert check.check(empty, MADE, full=True).whole


def test_what_is_not_whole_is_not_written(full: Cache, tmp_path: Path) -> None:
    target = tmp_path / "new.tar"
    with pytest.raises(SparkError, match="is not whole on this node"):
        archive.write(full, [(NAME, "3c" * 20)], str(target))
    path = full.blob(NAME, LARGE.blob)
    seen = path.stat()
    path.write_bytes(bytes(LARGE.size))
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))  # a warm check does not see it
    with pytest.raises(SparkError, match="gives another content than it has verified"):
        archive.write(full, [(NAME, REVISION)], str(target))
    assert not list(tmp_path.glob("new.tar*"))


def test_a_file_that_somebody_else_has_made_is_not_written_to(full: Cache, tmp_path: Path) -> None:
    target, aside = tmp_path / "new.tar", tmp_path / "new.tar.part"
    aside.write_text("theirs")
    theirs = tmp_path / "theirs"
    os.link(aside, theirs)
    archive.write(full, [(NAME, REVISION)], str(target))
    assert theirs.read_text() == "theirs" and not aside.exists() and target.exists()


def test_a_disk_for_small_files(full: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_words: Any) -> None:
        raise OSError(27, "File too large")

    monkeypatch.setattr(archive, "_add", fail)
    with pytest.raises(SparkError, match="exFAT"):
        archive.write(full, [(NAME, REVISION)], str(tmp_path / "new.tar"))
    assert not list(tmp_path.glob("new.tar*"))


def test_a_full_disk_is_known_before_a_byte_moves(file: str, empty: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    class Room:
        f_bavail, f_frsize = 7, 10**6

    monkeypatch.setattr(archive.os, "statvfs", lambda _path: Room)
    with pytest.raises(SparkError, match=r"has 0.0 GB free, and 1.1 GB are needed"):
        archive.read(empty, file)


# --- archives of somebody else ---


def info(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, target: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.size, made.linkname = kind, size, target
    return made


def write(path: str, *members: tuple[tarfile.TarInfo, bytes], first: Any = None) -> str:
    told = first if first is not None else {"schema": 1, "models": [{"manifest": MADE.as_dict(), "refs": []}]}
    text = told if isinstance(told, bytes) else json.dumps(told).encode()
    with tarfile.open(path, "w") as tar:
        tar.addfile(info("manifest.json", size=len(text)), io.BytesIO(text))
        for member, data in members:
            tar.addfile(member, io.BytesIO(data))
    return path


GOOD = [(info(f"blobs/{model_manifest.file(*one).blob}", size=len(one[1])), one[1]) for one in CONTENT.items()]
BLOB = f"blobs/{LARGE.blob}"


@pytest.mark.parametrize(
    "member",
    [
        (info("/etc/cron.d/x", size=1), b"x"),
        (info("../../etc/x", size=1), b"x"),
        (info("blobs/../../x", size=1), b"x"),
        (info("blobs/", size=0), b""),
        (info("blobs/unknown", size=1), b"x"),
        (info("unknown", size=1), b"x"),
        (info(BLOB, tarfile.SYMTYPE, target="/etc/passwd"), b""),
        (info(BLOB, tarfile.LNKTYPE, target="manifest.json"), b""),
        (info(BLOB, tarfile.CHRTYPE), b""),
        (info(BLOB, tarfile.BLKTYPE), b""),
        (info(BLOB, tarfile.FIFOTYPE), b""),
        (info(BLOB, tarfile.DIRTYPE), b""),
        (info(BLOB, tarfile.GNUTYPE_SPARSE), b""),
        (info(BLOB, size=5), b"short"),
        (info("blobs", tarfile.SYMTYPE, target="/etc"), b""),
        GOOD[0],  # twice
    ],
)
def test_what_is_none_of_its_files_is_refused(tmp_path: Path, empty: Cache, member: Any) -> None:
    path = write(str(tmp_path / "x.tar"), GOOD[0], member)
    with pytest.raises(SparkError, match=r"none of its files|bytes of|damaged or cut off"):
        archive.read(empty, path)
    assert not caches.kept(empty)
    assert not (tmp_path / "x").exists()


def test_another_content_is_refused(tmp_path: Path, empty: Cache) -> None:
    members = [(member, bytes(member.size)) if member.name == BLOB else (member, data) for member, data in GOOD]
    with pytest.raises(SparkError, match="another content than its manifest says"):
        archive.read(empty, write(str(tmp_path / "x.tar"), *members))
    assert not caches.kept(empty)
    assert not list(Path(empty.home).rglob(LARGE.blob))


def test_a_missing_file_is_named(tmp_path: Path, empty: Cache) -> None:
    members = [(member, data) for member, data in GOOD if member.name != BLOB]
    with pytest.raises(SparkError, match=f"1 files are missing in it, {LARGE.path}"):
        archive.read(empty, write(str(tmp_path / "x.tar"), *members))


@pytest.mark.parametrize("damage", [lambda size: size // 2, lambda _size: 700, lambda _size: 0])
def test_an_archive_that_is_cut_off(file: str, empty: Cache, damage: Callable[[int], int]) -> None:
    os.truncate(file, damage(os.path.getsize(file)))
    with pytest.raises(SparkError):
        archive.read(empty, file)
    assert not caches.kept(empty)


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"[]",
        b"{",
        {"schema": 2, "models": []},
        {"schema": 1, "models": []},
        {"schema": 1, "models": [{"manifest": {}, "refs": []}]},
        {"schema": 1, "models": [{"manifest": {**MADE.as_dict(), "name": "../x"}, "refs": []}]},
    ],
)
def test_a_manifest_that_is_none(tmp_path: Path, empty: Cache, first: Any) -> None:
    with pytest.raises(SparkError, match=r"manifest.json cannot be used|no model"):
        archive.read(empty, write(str(tmp_path / "x.tar"), *GOOD, first=first))


def test_a_ref_is_no_way_out(tmp_path: Path, empty: Cache) -> None:
    first = {"schema": 1, "models": [{"manifest": MADE.as_dict(), "refs": ["../../../x"]}]}
    with pytest.raises((SparkError, ValueError), match=r"manifest.json cannot be used"):
        archive.read(empty, write(str(tmp_path / "x.tar"), *GOOD, first=first))


def test_no_archive_at_all(tmp_path: Path, empty: Cache) -> None:
    with pytest.raises(SparkError, match="cannot be read"):
        archive.read(empty, str(tmp_path / "none"))
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        tar.addfile(info("readme", size=1), io.BytesIO(b"x"))
    with pytest.raises(SparkError, match=r"does not begin with manifest.json"):
        archive.read(empty, str(tmp_path / "x.tar"))


def test_pickle_is_refused_until_it_is_allowed(tmp_path: Path, empty: Cache) -> None:
    content = {"config.json": b"{}", "pytorch_model.bin": b"x"}
    made = model_manifest.manifest(content)
    members = [(info(f"blobs/{model_manifest.file(*one).blob}", size=len(one[1])), one[1]) for one in content.items()]
    first = {"schema": 1, "models": [{"manifest": made.as_dict(), "refs": []}]}
    path = write(str(tmp_path / "x.tar"), *members, first=first)
    with pytest.raises(SparkError, match="artifacts_allow_pickle"):
        archive.read(empty, path)
    assert archive.read(empty, path, pickle=True)[0].changed


def test_what_an_interrupted_copy_has_left_is_not_taken_for_whole(file: str, empty: Cache) -> None:
    archive.read(empty, file)
    stale = empty.partial(REVISION) / "blobs"
    stale.mkdir(parents=True)
    (stale / LARGE.blob).write_bytes(bytes(LARGE.size))
    archive.read(empty, file)
    assert check.check(empty, MADE, full=True).whole


@pytest.mark.parametrize(
    ("ref", "revision"), [("", REVISION), ("main", REVISION), (REVISION, REVISION), (NEXT.revision, NEXT.revision)]
)
def test_the_revision_that_is_wanted_is_found_and_brought(
    file: str, empty: Cache, tmp_path: Path, ref: str, revision: str
) -> None:
    told = look.listing(look.Asked(empty.home, NAME, ref, file), False)
    assert (told.revision, told.size) == (revision, (NEXT if revision == NEXT.revision else MADE).size)
    wanted = work.Work(work.IMPORT, empty.home, NAME, ref=ref, source=file)
    made = work.perform(wanted, work.Teller(wanted, f"{tmp_path}/progress"))
    assert (made.revision, made.changed) == (revision, True)
    assert sorted(os.listdir(f"{empty.home}/hub/models--org--model/refs")) == ["main"]


@pytest.mark.parametrize(("name", "ref"), [("org/none", ""), (NAME, "3c" * 20), (NAME, "v2")])
def test_what_is_not_in_it_is_named_before_a_byte_moves(file: str, empty: Cache, name: str, ref: str) -> None:
    with pytest.raises(SparkError, match=f"it does not have {name} {ref or 'main'}"):
        look.listing(look.Asked(empty.home, name, ref, file), False)
