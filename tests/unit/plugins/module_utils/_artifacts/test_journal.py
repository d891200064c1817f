# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import journal
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.journal import Store
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.manifest import Manifest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from fan_out import PIECE, contents, manifest_of, sha256

FILES = contents({"a.bin": 5 * PIECE + 3, "b.bin": 3 * PIECE})
SEGMENTS = 9


@pytest.fixture
def model() -> Manifest:
    return manifest_of(FILES)


def opened(model: Manifest, tmp_path: Path, **options: object) -> Store:
    store = Store(model, str(tmp_path / "partial"), **options)  # type: ignore[arg-type]
    store.open()
    return store


def test_what_is_in_the_journal_is_there_again(model: Manifest, tmp_path: Path) -> None:
    store = opened(model, tmp_path)
    assert store.lacking == model.size and store.place(2) is None
    for number in (2, 7):
        store.verified(number)
    again = opened(model, tmp_path)
    assert list(journal.numbers(again.have)) == [2, 7]
    path, offset = again.place(2) or ("", -1)
    assert os.path.samefile(path, tmp_path / "partial" / sha256(FILES["a.bin"])) and offset == 2 * PIECE
    assert again.lacking == model.size - 2 * PIECE


@pytest.mark.parametrize("torn", [b"1", b"12\x00\x00\n", b"99\n", b"-1\n", b"\n", b"\xff\n", b"3"])
def test_a_torn_journal_counts_up_to_its_last_good_line(model: Manifest, tmp_path: Path, torn: bytes) -> None:
    store = opened(model, tmp_path)
    store.verified(4)
    store.close()
    with (tmp_path / "partial" / "journal").open("ab") as stream:
        stream.write(torn)
    store = opened(model, tmp_path)
    assert list(journal.numbers(store.have)) == [4]
    store.verified(6)  # a half line before it would make another number of it
    assert list(journal.numbers(opened(model, tmp_path).have)) == [4, 6]


def test_a_journal_of_another_manifest_counts_for_nothing(model: Manifest, tmp_path: Path) -> None:
    opened(model, tmp_path).verified(0)
    other = manifest_of({**FILES, "c.bin": b"c"})
    assert opened(other, tmp_path).have == 0


def test_a_file_that_is_gone_or_shorter_is_fetched_again(model: Manifest, tmp_path: Path) -> None:
    store = opened(model, tmp_path)
    for number in range(SEGMENTS):
        store.verified(number)
    os.truncate(tmp_path / "partial" / sha256(FILES["a.bin"]), 100)
    assert list(journal.numbers(opened(model, tmp_path).have)) == [6, 7, 8]


def test_a_whole_file_counts_with_its_size_only(model: Manifest, tmp_path: Path) -> None:
    blob = sha256(FILES["b.bin"])
    (tmp_path / "b").write_bytes(FILES["b.bin"])
    store = opened(model, tmp_path, whole={blob: str(tmp_path / "b")})
    assert store.place(6) == (str(tmp_path / "b"), 0) and not (tmp_path / "partial" / blob).exists()
    (tmp_path / "b").write_bytes(b"")
    assert opened(model, tmp_path, whole={blob: str(tmp_path / "b")}).place(6) is None


def test_a_link_in_the_place_of_a_file_is_not_followed(model: Manifest, tmp_path: Path) -> None:
    (tmp_path / "partial").mkdir()
    (tmp_path / "precious").write_bytes(bytes(10))
    (tmp_path / "partial" / sha256(FILES["b.bin"])).symlink_to(tmp_path / "precious")
    with pytest.raises(Exception, match="symbolic links"):
        opened(model, tmp_path)
    assert (tmp_path / "precious").read_bytes() == bytes(10)


def test_the_page_cache_behind_a_copy_is_bounded(
    model: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped: list[int] = []
    monkeypatch.setattr(journal, "WARM", 2 * PIECE)
    monkeypatch.setattr(journal, "_drop", lambda handle, segment: dropped.append(segment.number))
    store = opened(model, tmp_path)
    for number in range(5):
        store.verified(number)
    assert dropped == [0, 1, 2]
    store.close()
    assert dropped == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("members", [set(), {0}, {63, 64, 300}, set(range(130))])
def test_sets_of_numbers(members: set[int]) -> None:
    bits = sum(1 << number for number in members)
    assert list(journal.numbers(bits)) == sorted(members)
    assert journal.count(bits) == len(members)


def test_what_was_written_of_another_file_counts_for_nothing_when_one_is_taken_out(
    model: Manifest, tmp_path: Path
) -> None:
    store = opened(model, tmp_path)
    for number in (0, 1, 7):
        store.verified(number)
    store.close()
    (tmp_path / "a").write_bytes(FILES["a.bin"])
    Store(model, str(tmp_path / "partial")).adopt(sha256(FILES["a.bin"]), str(tmp_path / "a"), [2, 3])
    assert list(journal.numbers(opened(model, tmp_path).have)) == [2, 3, 7]


REVISION_PARTS = ("sparkmatrix", "partial", "0f" * 20, "blobs")


@pytest.mark.parametrize("depth", range(len(REVISION_PARTS)))
@pytest.mark.parametrize("adopts", [False, True])
def test_no_directory_below_the_cache_may_be_a_link(model: Manifest, tmp_path: Path, depth: int, adopts: bool) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    elsewhere.mkdir()
    home.joinpath(*REVISION_PARTS[:depth]).mkdir(parents=True)
    home.joinpath(*REVISION_PARTS[: depth + 1]).symlink_to(elsewhere)
    (tmp_path / "a").write_bytes(FILES["a.bin"])
    store = Store(model, str(home.joinpath(*REVISION_PARTS)), home=str(home))
    with pytest.raises(SparkError, match="is no directory"):
        if adopts:
            store.adopt(sha256(FILES["a.bin"]), str(tmp_path / "a"), [0])
        else:
            store.open()
    assert not list(elsewhere.iterdir()) and (tmp_path / "a").exists()


@pytest.mark.parametrize("depth", range(len(REVISION_PARTS)))
def test_a_directory_that_becomes_a_link_during_a_copy_leads_nowhere(
    model: Manifest, tmp_path: Path, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, elsewhere, blob = tmp_path / "home", tmp_path / "elsewhere", sha256(FILES["a.bin"])
    there = elsewhere.joinpath(*REVISION_PARTS[depth + 1 :])
    there.mkdir(parents=True)
    (there / blob).write_bytes(b"precious")
    store = Store(model, str(home.joinpath(*REVISION_PARTS)), home=str(home))
    reads = Store._open_journal

    def swapped(self: Store) -> set[int]:
        found = reads(self)
        at = home.joinpath(*REVISION_PARTS[: depth + 1])
        at.rename(tmp_path / "moved")
        at.symlink_to(elsewhere)
        return found

    monkeypatch.setattr(Store, "_open_journal", swapped)
    store.open()
    store.verified(0)
    path, _offset = store.place(0) or ("", 0)
    assert os.path.getsize(path) == len(FILES["a.bin"])
    assert [one.name for one in there.iterdir()] == [blob] and (there / blob).read_bytes() == b"precious"


@pytest.mark.parametrize("name", ["journal", sha256(FILES["a.bin"])])
@pytest.mark.parametrize("is_link", [False, True])
def test_neither_link_nor_pipe_is_written(model: Manifest, tmp_path: Path, name: str, is_link: bool) -> None:
    partial, precious = tmp_path / "partial", tmp_path / "precious"
    partial.mkdir()
    precious.write_bytes(bytes(10))
    if is_link:
        (partial / name).symlink_to(precious)
    else:
        os.mkfifo(partial / name)
    with pytest.raises(SparkError, match="symbolic links" if is_link else "regular file"):
        opened(model, tmp_path)
    assert precious.read_bytes() == bytes(10)


def test_a_file_that_becomes_a_link_while_it_is_taken_out_is_not_cut(
    model: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(bytes(10))
    (tmp_path / "a").write_bytes(FILES["a.bin"])

    def swapped(_path: str, here: str) -> None:
        os.symlink(precious, here)

    monkeypatch.setattr(journal.os, "replace", swapped)
    with pytest.raises(OSError, match="symbolic links"):
        Store(model, str(tmp_path / "partial")).adopt(sha256(FILES["a.bin"]), str(tmp_path / "a"), [0])
    assert precious.read_bytes() == bytes(10)


def test_what_fails_is_told_by_its_path(model: Manifest, tmp_path: Path) -> None:
    (tmp_path / "partial" / sha256(FILES["a.bin"])).mkdir(parents=True)
    with pytest.raises(SparkError, match=re.escape(f"{tmp_path}/partial/{sha256(FILES['a.bin'])}")):
        opened(model, tmp_path)
