# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A model that comes from the controller in segments: what is missing, what counts, and what stays of a part of it."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import cache as caches
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import (
    check,
    importing,
    look,
    receive,
    work,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.cache import Cache
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.manifest import Manifest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import how_far
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from model_manifest import CONTENT, NAME, SEGMENT


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
    return source, importing.measure(source, source.choose(), segment_bytes=SEGMENT)


def begin(cache: Cache, of: Manifest) -> list[int]:
    return receive.begin(cache, {"manifest": of.as_dict(), "ref": ""}, Machine())


def take(cache: Cache, source: importing.Source, of: Manifest, numbers: list[int]) -> int:
    segments = list(of.segments())
    data = b"".join(importing.read(source, segments[number]) for number in numbers)
    return receive.take(cache, (NAME, of.revision), numbers, io.BytesIO(data))


def test_what_arrived_stays_and_the_rest_is_asked_for(tmp_path: Path, cache: Cache) -> None:
    source, of = measured(directory(tmp_path / "model"))
    assert {one.path for one in of.files} == set(CONTENT)  # and not what no engine needs
    missing = begin(cache, of)
    assert len(missing) == len(list(of.segments()))
    lacking = of.size - take(cache, source, of, missing[:2])
    with pytest.raises(SparkError, match=f"{lacking} bytes have not come"):
        receive.end(cache, (NAME, of.revision))
    assert begin(cache, of) == missing[2:]  # the controller was gone
    assert look.held(cache, NAME, "").there > 0  # not to be free once more
    assert take(cache, source, of, missing[2:]) == lacking
    ended = receive.end(cache, (NAME, of.revision))
    assert (ended.revision, ended.digest, ended.changed) == (of.revision, of.digest, True)
    assert check.check(cache, of, full=True).whole
    snapshot = cache.snapshot(NAME, of.revision)
    assert {path: (snapshot / path).read_bytes() for path in CONTENT} == CONTENT
    assert look.held(cache, NAME, "").state == look.WHOLE
    assert not (Path(cache.home) / "sparkmatrix/partial").exists()
    assert begin(cache, of) == []
    assert not receive.end(cache, (NAME, of.revision)).changed


def test_how_far_it_is_can_be_asked_on_the_node(tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[work.Progress] = []
    monkeypatch.setattr(work, "keep", lambda progress, _path: told.append(progress))
    source, of = measured(directory(tmp_path / "model"))
    missing = begin(cache, of)
    take(cache, source, of, missing[:1])
    assert told[-1].words.startswith(f"receiving {NAME}: ") and told[-1].done > 0 and not told[-1].ended
    assert "the same run goes on where it was" in work.words(told[-1])[-1]
    take(cache, source, of, missing[1:])
    receive.end(cache, (NAME, of.revision))
    assert told[-1].ended and told[-1].words.endswith(how_far.words(of.size, of.size))


def test_a_broken_file_gets_its_segments_only(tmp_path: Path, cache: Cache) -> None:
    source, of = measured(directory(tmp_path / "model"))
    take(cache, source, of, begin(cache, of))
    receive.end(cache, (NAME, of.revision))
    one = max(of.files, key=lambda one: one.size)
    blob = cache.blob(NAME, one.blob)
    blob.write_bytes(b"X" + blob.read_bytes()[1:])
    (number,) = begin(cache, of)
    take(cache, source, of, [number])
    receive.end(cache, (NAME, of.revision))
    assert check.check(cache, of, full=True).whole


def test_other_bytes_than_were_announced_do_not_count(tmp_path: Path, cache: Cache) -> None:
    place = directory(tmp_path / "model")
    source, of = measured(place)
    missing = begin(cache, of)
    weights = "model-00001-of-00002.safetensors"
    (place / weights).write_bytes(CONTENT[weights][:-1] + b"!")  # meanwhile
    numbers = [one.number for one in of.segments() if one.file.path == weights]
    with pytest.raises(SparkError, match=rf"{weights}: byte \d+ to {len(CONTENT[weights])} are not what was announced"):
        take(cache, source, of, numbers)
    assert begin(cache, of) == [one for one in missing if one not in numbers[:-1]]


def test_a_connection_that_ends_in_the_middle(tmp_path: Path, cache: Cache) -> None:
    source, of = measured(directory(tmp_path / "model"))
    missing = begin(cache, of)
    first = next(iter(of.segments()))
    data = importing.read(source, first)
    with pytest.raises(SparkError, match="the connection ended"):
        receive.take(cache, (NAME, of.revision), [0], io.BytesIO(data[:-1]))
    assert begin(cache, of) == missing


def test_what_came_of_files_that_were_changed_since_is_removed(tmp_path: Path, cache: Cache) -> None:
    place = directory(tmp_path / "model")
    source, of = measured(place)
    take(cache, source, of, begin(cache, of)[:1])
    (place / "config.json").write_text('{"model_type": "other"}')
    _source, newer = measured(place)
    begin(cache, newer)
    assert [path.name for path in (Path(cache.home) / "sparkmatrix/partial").iterdir()] == [newer.revision]
    with pytest.raises(SparkError, match="nobody has said what is to come"):
        receive.end(cache, (NAME, of.revision))


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
        pieces = {one.number: importing.read(source, one) for one in of.segments()}
    numbers = begin(cache, of)
    data = b"".join(pieces[number] for number in numbers)
    assert receive.take(cache, (NAME, of.revision), numbers, io.BytesIO(data)) == len(data)
    receive.end(cache, (NAME, of.revision))
    assert check.check(cache, of, full=True).whole


@pytest.mark.parametrize("text", ["", "{}", '{"manifest": {"name": "org/model"}}', "[1]"])
def test_a_damaged_note_is_none(tmp_path: Path, cache: Cache, text: str) -> None:
    _source, of = measured(directory(tmp_path / "model"))
    begin(cache, of)
    (cache.partial(of.revision) / caches.COMING).write_text(text)
    assert caches.coming(cache, NAME) == {}
    with pytest.raises(SparkError, match="nobody has said"):
        receive.take(cache, (NAME, of.revision), [0], io.BytesIO(b""))
