# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A model that comes from the controller: what is missing, what counts, and what stays of a part of it."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import cache as caches
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import (
    check,
    from_controller,
    importing,
    look,
    work,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.cache import Cache
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.from_controller import Piece
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.manifest import Manifest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, how_far
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from model_manifest import CONTENT, NAME


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "keep", lambda *_words: None)
    monkeypatch.setattr(work, "make_way", lambda *_words: None)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(str(tmp_path / "home"))


def directory(place: Path) -> Path:
    for path, content in CONTENT.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(content)
    (place / "model.gguf").write_bytes(b"GGUF")
    return place


def measured(place: Path) -> tuple[importing.Source, Manifest]:
    source = importing.find(NAME, str(place))
    return source, importing.measure(source, source.choose())


def begin(cache: Cache, of: Manifest) -> dict[str, int]:
    return dict(from_controller.begin(cache, of.as_dict(), Machine()).lacking)


def end(cache: Cache, of: Manifest) -> work.Result:
    ended = from_controller.end(cache, (NAME, of.revision), "").result
    assert ended
    return ended


def sent(source: importing.Source, of: Manifest, lacking: dict[str, int], most: int = 10**6) -> bytes:
    """Of each file what it lacks, or ``most`` bytes of that."""
    files = [file for file in of.contents if file.blob in lacking]
    pieces = [Piece(file.blob, at := lacking[file.blob], min(most, file.size - at)) for file in files]
    data = [importing.read(source, file.path, piece.offset, piece.size) for file, piece in zip(files, pieces)]
    return b"".join([json.dumps(document.plain(from_controller.Pieces(tuple(pieces)))).encode(), b"\n", *data])


def take(cache: Cache, of: Manifest, data: bytes) -> None:
    from_controller.take(cache, (NAME, of.revision), io.BytesIO(data))


def test_what_arrived_stays_and_the_rest_is_asked_for(tmp_path: Path, cache: Cache) -> None:
    source, of = measured(directory(tmp_path / "model"))
    assert {file.path for file in of.files} == set(CONTENT)  # and not what no engine needs
    lacking = begin(cache, of)
    assert set(lacking.values()) == {0} and len(lacking) == len([file for file in of.files if file.size])
    take(cache, of, sent(source, of, lacking, 4096))
    with pytest.raises(SparkError, match="has 4096 bytes of"):
        end(cache, of)
    rest = begin(cache, of)  # the controller was gone
    assert rest == {file.blob: 4096 for file in of.files if file.size > 4096}
    assert look.held(cache, NAME, "").there > 0  # not to be free once more
    take(cache, of, sent(source, of, rest))
    ended = end(cache, of)
    assert (ended.revision, ended.digest, ended.changed) == (of.revision, of.digest, True)
    assert check.check(cache, of, full=True).whole
    snapshot = cache.snapshot(NAME, of.revision)
    assert {path: (snapshot / path).read_bytes() for path in CONTENT} == CONTENT
    assert look.held(cache, NAME, "").state == look.WHOLE
    assert not (Path(cache.home) / "sparkmatrix/partial").exists()
    assert begin(cache, of) == {}
    assert not end(cache, of).changed


def test_how_far_it_is_can_be_asked_on_the_node(tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[work.Progress] = []
    monkeypatch.setattr(work, "keep", lambda progress, _path: told.append(progress))
    source, of = measured(directory(tmp_path / "model"))
    take(cache, of, sent(source, of, begin(cache, of), 4096))
    assert told[-1].words.startswith(f"receiving {NAME}: ") and 0 < told[-1].done < of.size
    assert "the same run goes on where it was" in work.words(told[-1])[-1]
    take(cache, of, sent(source, of, begin(cache, of)))
    end(cache, of)
    assert told[-1].ended and told[-1].words.endswith(how_far.words(of.size, of.size))


def test_a_broken_file_alone_is_sent_again(tmp_path: Path, cache: Cache) -> None:
    source, of = measured(directory(tmp_path / "model"))
    take(cache, of, sent(source, of, begin(cache, of)))
    end(cache, of)
    largest = max(of.files, key=lambda file: file.size)
    blob = cache.blob(NAME, largest.blob)
    blob.write_bytes(b"X" + blob.read_bytes()[1:])
    lacking = begin(cache, of)
    assert lacking == {largest.blob: 0}
    take(cache, of, sent(source, of, lacking))
    end(cache, of)
    assert check.check(cache, of, full=True).whole


def test_other_bytes_than_were_announced_do_not_count(tmp_path: Path, cache: Cache) -> None:
    place = directory(tmp_path / "model")
    source, of = measured(place)
    weights = next(file for file in of.files if file.path == "model-00001-of-00002.safetensors")
    (place / weights.path).write_bytes(CONTENT[weights.path][:-1] + b"!")  # meanwhile
    take(cache, of, sent(source, of, begin(cache, of)))
    with pytest.raises(SparkError, match=rf"{weights.path}: what came is not what was announced"):
        end(cache, of)
    assert begin(cache, of) == {weights.blob: 0}


def test_a_connection_that_ends_in_the_middle(tmp_path: Path, cache: Cache) -> None:
    source, of = measured(directory(tmp_path / "model"))
    lacking = begin(cache, of)
    with pytest.raises(SparkError, match="the connection ended"):
        take(cache, of, sent(source, of, lacking)[:-1])
    last = [file for file in of.files if file.size][-1]
    assert begin(cache, of) == {last.blob: last.size - 1}


def test_what_came_of_files_that_were_changed_since_is_removed(tmp_path: Path, cache: Cache) -> None:
    place = directory(tmp_path / "model")
    source, of = measured(place)
    take(cache, of, sent(source, of, begin(cache, of), 1))
    (place / "config.json").write_text('{"model_type": "other"}')
    _source, newer = measured(place)
    begin(cache, newer)
    assert [path.name for path in (Path(cache.home) / "sparkmatrix/partial").iterdir()] == [newer.revision]
    with pytest.raises(SparkError, match="nobody has said what is to come"):
        end(cache, of)


@pytest.mark.parametrize("target", ["nothing", "../secret.safetensors"])
def test_links_to_nothing_or_out_of_the_directory_are_refused(tmp_path: Path, target: str) -> None:
    place = directory(tmp_path / "model")
    (tmp_path / "secret.safetensors").write_bytes(CONTENT["model-00001-of-00002.safetensors"])
    (place / "model-00001-of-00002.safetensors").unlink()
    (place / "model-00001-of-00002.safetensors").symlink_to(target)
    with pytest.raises(SparkError, match=r"links to nothing|a link that leads out of it"):
        measured(place)


def test_a_mac_sends_as_well(tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its Python lacks, on the side that reads."""
    place = directory(tmp_path / "model")
    (place / "config.json").rename(place / "other.json")
    (place / "config.json").symlink_to("other.json")
    with monkeypatch.context() as mac:
        mac.setattr(sys, "platform", "darwin")
        for name in ("posix_fadvise", "sendfile", "posix_fallocate", "memfd_create"):
            mac.delattr(os, name)
        source, of = measured(place)
        data = sent(source, of, {file.blob: 0 for file in of.files if file.size})
    begin(cache, of)
    take(cache, of, data)
    end(cache, of)
    assert check.check(cache, of, full=True).whole


@pytest.mark.parametrize("text", ["", "{}", '{"manifest": {"name": "org/model"}}', "[1]"])
def test_a_damaged_note_is_none(tmp_path: Path, cache: Cache, text: str) -> None:
    _source, of = measured(directory(tmp_path / "model"))
    begin(cache, of)
    (cache.partial(of.revision) / caches.COMING).write_text(text)
    assert caches.coming(cache, NAME) == {}
    with pytest.raises(SparkError, match="nobody has said"):
        take(cache, of, b"")


@pytest.mark.parametrize("piece", ["", "7", '{"blob": "../x", "offset": 0, "size": 1}', '{"blob": "x", "offset": "0"}'])
def test_pieces_of_no_file_are_refused(tmp_path: Path, cache: Cache, piece: str) -> None:
    _source, of = measured(directory(tmp_path / "model"))
    begin(cache, of)
    with pytest.raises((SparkError, LookupError, TypeError, ValueError)):
        take(cache, of, f'{{"pieces": [{piece or "["}]}}\nx'.encode())
    assert not [path for path in cache.partial(of.revision).rglob("*") if path.is_file() and path.name != "coming.json"]
