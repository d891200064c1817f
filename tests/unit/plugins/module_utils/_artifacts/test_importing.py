# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Models that are on a node already: the three layouts of their files, and what must not come in with them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import model_manifest
import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import cache as caches
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import check, importing, look
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.cache import Cache
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.manifest import Manifest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from model_manifest import NAME, REVISION

WEIGHTS = [f"model-{number:05}-of-00002.safetensors" for number in (1, 2)]
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer/vocab.txt": b"a\nb\n",
    "model.safetensors.index.json": json.dumps({"weight_map": dict(enumerate(WEIGHTS))}).encode(),
    WEIGHTS[0]: model_manifest.safetensors(b"a" * 9000),
    WEIGHTS[1]: model_manifest.safetensors(b"b" * 7000),
}
FOLDER = "models--org--model"


def plain(place: Path, files: Mapping[str, bytes] = FILES) -> Path:
    for path, content in files.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(content)
    return place


def classic(hub: Path, shared: bool = False) -> Path:
    """``shared``: large files in the store that newer clients keep for all models."""
    folder = hub / FOLDER
    for path, content in FILES.items():
        blob = folder / "blobs" / model_manifest.file(path, content).blob
        link = folder / "snapshots" / REVISION / path
        blob.parent.mkdir(parents=True, exist_ok=True)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
        real = blob
        if shared and path in WEIGHTS:
            xet = model_manifest.file("x", content[::-1]).sha256
            real = hub / "blobs" / xet[:2] / xet
            real.parent.mkdir(parents=True, exist_ok=True)
            blob.symlink_to(os.path.relpath(real, blob.parent))
        real.write_bytes(content)
        real.chmod(0o444)
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text(REVISION)
    return folder / "snapshots" / REVISION


def bring(cache: Cache, place: Path | str, revision: str = "", pickle: bool = False) -> Manifest:
    source = importing.find(NAME, str(place), revision)
    made = importing.bring(cache, source, source.choose(pickle))
    caches.place(cache, made, ["main"])
    return made


def is_whole(cache: Cache, made: Manifest) -> None:
    assert check.check(cache, made, full=True).whole
    snapshot = cache.snapshot(NAME, made.revision)
    assert {
        str(path.relative_to(snapshot)): path.read_bytes() for path in snapshot.rglob("*") if path.is_file()
    } == FILES
    blobs = list(cache.blob(NAME, "x").parent.iterdir())
    assert all(path.is_file() and not path.is_symlink() for path in blobs)
    assert not (Path(cache.home) / "sparkmatrix/partial").exists()


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(str(tmp_path / "home"))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("named", ["..", ".", FOLDER, f"{FOLDER}/snapshots/{REVISION}"])
def test_a_cache_by_any_of_its_directories(tmp_path: Path, cache: Cache, shared: bool, named: str) -> None:
    snapshot = classic(tmp_path / "other/hub", shared)
    made = bring(cache, tmp_path / "other/hub" / named)
    is_whole(cache, made)
    assert made.revision == REVISION
    assert {file.path: file.blob for file in made.files} == {
        path: model_manifest.file(path, content).blob for path, content in FILES.items()
    }
    for path in WEIGHTS:  # one content on the disk, two names
        assert os.path.samefile(snapshot / path, cache.snapshot(NAME, REVISION) / path)
    assert (snapshot / WEIGHTS[0]).stat().st_mode & 0o777 == 0o444  # it still is its owner's


@pytest.mark.parametrize("shared", [False, True])
def test_what_an_engine_downloaded_here_is_adopted(cache: Cache, shared: bool) -> None:
    classic(Path(cache.home, "hub"), shared)
    source = importing.find(NAME, cache.home, "main")
    made = importing.bring(cache, source, source.choose())
    inode = (cache.snapshot(NAME, REVISION) / WEIGHTS[0]).stat().st_ino
    caches.place(cache, made)
    is_whole(cache, made)
    assert (cache.snapshot(NAME, REVISION) / WEIGHTS[0]).stat().st_ino == inode
    assert check.warm(cache, made).whole


def test_a_directory(tmp_path: Path, cache: Cache) -> None:
    made = bring(cache, plain(tmp_path / "model"))
    is_whole(cache, made)
    assert len(made.revision) == 64
    shutil.copytree(tmp_path / "model", tmp_path / "copy")
    assert bring(Cache(str(tmp_path / "other")), tmp_path / "copy").digest == made.digest


def noted(place: Path, etag: str = "") -> None:
    for path, content in FILES.items():
        note = place / ".cache/huggingface/download" / f"{path}.metadata"
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(f"{REVISION}\n{etag or model_manifest.file(path, content).blob}\n1712656091.1\n")


def test_a_directory_that_the_hub_s_client_has_made(tmp_path: Path, cache: Cache) -> None:
    noted(plain(tmp_path / "model"))
    made = bring(cache, tmp_path / "model")
    assert made.revision == REVISION
    is_whole(cache, made)


def test_what_is_not_what_came_from_the_hub_is_refused(tmp_path: Path, cache: Cache) -> None:
    snapshot = classic(tmp_path / "hub")
    blob = (snapshot / WEIGHTS[1]).resolve()
    blob.chmod(0o644)
    blob.write_bytes(model_manifest.safetensors(b"c" * 7000))
    with pytest.raises(SparkError, match=f"{WEIGHTS[1]} is not what came from the hub"):
        bring(cache, tmp_path / "hub")
    noted(plain(tmp_path / "model"), etag="1" * 40)
    with pytest.raises(SparkError, match="is not what came from the hub"):
        bring(cache, tmp_path / "model")
    assert not caches.kept(cache)


@pytest.mark.parametrize("shared", [False, True])
def test_links_to_nothing_are_missing_files(tmp_path: Path, cache: Cache, shared: bool) -> None:
    snapshot = classic(tmp_path / "hub", shared)
    for path in WEIGHTS:
        (snapshot / path).resolve().unlink()
    says = rf"2 of its 5 files are links to nothing \({WEIGHTS[0]}, {WEIGHTS[1]}\).*rsync -aL"
    with pytest.raises(SparkError, match=says):
        bring(cache, tmp_path / "hub")
    assert not caches.kept(cache)


def test_links_that_lead_out_are_refused(tmp_path: Path, cache: Cache) -> None:
    secret = tmp_path / "secret"
    secret.write_text("root's")
    place = plain(tmp_path / "model")
    (place / "notes.txt").symlink_to(secret)
    with pytest.raises(SparkError, match=f"notes.txt is a link that leads out of it, to {secret}"):
        bring(cache, place)
    (place / "notes.txt").unlink()
    (place / "inner.txt").symlink_to("tokenizer/vocab.txt")
    (place / "folder").symlink_to(tmp_path)
    made = bring(cache, place)
    assert {file.path for file in made.files} == {*FILES, "inner.txt"}


def test_a_file_that_is_none_is_refused_and_not_even_opened(
    tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watchdog or a tape acts when it is opened."""
    place = plain(tmp_path / "model")
    os.mkfifo(place / "pipe.txt")
    opened, real = [], os.open
    monkeypatch.setattr(os, "open", lambda path, *more, **named: opened.append(path) or real(path, *more, **named))
    with pytest.raises(SparkError, match=r"pipe.txt is no regular file"):
        bring(cache, place)
    assert opened and not [one for one in opened if str(one).endswith("pipe.txt")]


def test_what_others_may_not_read_is_copied(tmp_path: Path, cache: Cache) -> None:
    place = plain(tmp_path / "model")
    told = look.listing(look.Asked(cache.home, NAME, path=str(place)), False)
    assert told.copied == 0
    (place / WEIGHTS[0]).chmod(0o600)
    told = look.listing(look.Asked(cache.home, NAME, path=str(place)), False)
    assert told.copied == (place / WEIGHTS[0]).stat().st_size < told.size
    made = bring(cache, place)
    is_whole(cache, made)
    arrived = cache.snapshot(NAME, made.revision) / WEIGHTS[0]
    assert not os.path.samefile(place / WEIGHTS[0], arrived)
    assert arrived.stat().st_mode & 0o777 == 0o644
    assert (place / WEIGHTS[0]).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda place: (place / WEIGHTS[0]).unlink(), "names .*, which it does not have"),
        (lambda place: os.truncate(place / WEIGHTS[0], 5000), "has 5000 bytes of"),
        (lambda place: (place / WEIGHTS[0]).write_bytes(b"version https://git-lfs.github.com/spec/v1"), "git-lfs"),
        (lambda place: (place / "config.json").unlink(), "it has no config.json"),
        (lambda place: (place / "pytorch_model.bin").write_bytes(b"x"), ""),
    ],
)
def test_a_directory_that_is_not_whole(tmp_path: Path, cache: Cache, damage, says: str) -> None:
    damage(plain(tmp_path / "model"))
    if says:
        with pytest.raises(SparkError, match=says):
            bring(cache, tmp_path / "model")
    else:
        is_whole(cache, bring(cache, tmp_path / "model"))


def test_where_there_is_no_model(tmp_path: Path, cache: Cache) -> None:
    with pytest.raises(SparkError, match="no such directory"):
        bring(cache, tmp_path / "none")
    classic(tmp_path / "hub")
    for revision in ("v2", "1e" * 20, "../../x", "/etc/passwd"):
        with pytest.raises(SparkError, match=f"only {REVISION}"):
            bring(cache, tmp_path / "hub", revision)
    assert bring(cache, tmp_path / "hub", REVISION).revision == REVISION


def test_what_an_earlier_attempt_left_is_not_believed(tmp_path: Path, cache: Cache) -> None:
    snapshot = classic(tmp_path / "hub")
    blobs = cache.partial(REVISION) / "blobs"
    blobs.mkdir(parents=True)
    (blobs / os.path.basename(os.readlink(snapshot / WEIGHTS[0]))).write_bytes(b"old")
    is_whole(cache, bring(cache, tmp_path / "hub"))
