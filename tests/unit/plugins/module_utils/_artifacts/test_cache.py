# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The cache on a node: models are put there, found by the tools of others, checked, repaired and taken away."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import model_manifest
import model_tree
import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import cache as caches
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import check, folders, hashing
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.cache import Cache
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import model_files
from model_manifest import CONTENT, NAME, REVISION

MADE = model_manifest.manifest()
LARGE = "model-00001-of-00002.safetensors"
OTHER = "1e" * 20


def blob(path: str) -> str:
    return next(file.blob for file in MADE.files if file.path == path)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    there = Cache(str(tmp_path / "home"))
    arrived(there)
    assert caches.place(there, MADE, ["main"])
    return there


def arrived(cache: Cache) -> Path:
    return model_manifest.blobs(cache.partial(REVISION) / "blobs")


def content(cache: Cache, revision: str = REVISION) -> dict[str, bytes]:
    snapshot = cache.snapshot(NAME, revision)
    return {str(path.relative_to(snapshot)): path.read_bytes() for path in snapshot.rglob("*") if path.is_file()}


def test_it_is_there_as_the_hub_s_own_client_would_have_it(cache: Cache) -> None:
    assert content(cache) == CONTENT
    links = [path for path in cache.snapshot(NAME, REVISION).rglob("*") if not path.is_dir()]
    assert all(path.is_symlink() and os.readlink(path).startswith("../") for path in links)
    assert caches.revision(cache, NAME) == REVISION
    assert model_files.look(NAME, "", {"HF_HOME": cache.home, "HF_HUB_OFFLINE": "1"}).where == model_files.CACHE
    assert caches.read(cache, NAME, REVISION) == MADE
    assert not cache.partial(REVISION).parent.exists()


def test_a_second_time_changes_nothing(cache: Cache) -> None:
    assert not caches.place(cache, MADE, refs=["main"])


def test_everybody_may_read_it_whatever_the_umask(tmp_path: Path) -> None:
    there = Cache(str(tmp_path / "home"))
    before = os.umask(0o077)
    try:
        arrived(there)
        caches.place(there, MADE)
    finally:
        os.umask(before)
    for path in (tmp_path / "home/hub").rglob("*"):
        if not path.is_symlink():
            assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644)


@pytest.mark.parametrize("depth", range(4))
def test_a_directory_of_what_arrived_that_has_become_a_link_is_not_followed(tmp_path: Path, depth: int) -> None:
    there, way = Cache(str(tmp_path / "home")), ("sparkmatrix", "partial", REVISION, "blobs")
    arrived(there)
    at = Path(there.home, *way[: depth + 1])
    at.rename(tmp_path / "elsewhere")
    at.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SparkError, match="is no directory"):
        caches.place(there, MADE)
    assert len(list(tmp_path.joinpath("elsewhere", *way[depth + 1 :]).iterdir())) == len(
        [1 for file in MADE.files if file.size]
    )


def test_a_warm_check_reads_nothing(cache: Cache) -> None:
    read: list[int] = []
    assert check.warm(cache, MADE).whole and check.check(cache, MADE, tell=read.append).whole and not read
    assert check.check(cache, MADE, full=True, tell=read.append).whole and sum(read) == MADE.size


def test_one_byte_is_found_by_a_full_check(cache: Cache) -> None:
    path = cache.blob(NAME, blob(LARGE))
    seen = path.stat()
    with path.open("r+b") as opened:
        opened.seek(5000)
        opened.write(b"!")
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert check.warm(cache, MADE).whole  # the same size, time and inode: a full check is for this
    found = check.check(cache, MADE, full=True)
    assert found.broken[0].found == "does not have the content that it should have"
    assert not check.warm(cache, MADE).whole  # it is not believed again


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (Path.unlink, "is missing"),
        (lambda path: (path.unlink(), path.symlink_to("/dev/zero")), "is no file of its own"),
        (lambda path: (path.unlink(), path.symlink_to("gone")), "is no file of its own"),
        (lambda path: (path.unlink(), path.mkdir()), "is no file of its own"),
        (lambda path: (path.unlink(), os.mkfifo(path)), "is no file of its own"),
        (lambda path: os.truncate(path, 5000), "has 5000 bytes of"),
        (lambda path: path.open("ab").write(b"x"), "bytes of"),
    ],
)
def test_what_is_wrong_is_named(cache: Cache, damage, says: str) -> None:
    damage(cache.blob(NAME, blob(LARGE)))
    found = check.check(cache, MADE)
    assert [one.path for one in found.broken] == [LARGE]
    assert says in found.broken[0].found


def test_a_repaired_file_takes_the_place_of_the_broken_one(cache: Cache) -> None:
    path = cache.blob(NAME, blob(LARGE))
    with path.open("rb") as engine:
        path.open("ab").write(b"x")
        whole = cache.partial(REVISION) / "blobs"
        whole.mkdir(parents=True)
        (whole / path.name).write_bytes(CONTENT[LARGE])
        assert caches.place(cache, MADE)
        assert len(engine.read()) == len(CONTENT[LARGE]) + 1  # who has it open keeps what he had
    assert check.warm(cache, MADE).whole
    assert content(cache) == CONTENT


def test_a_file_that_is_touched_is_read_once(cache: Cache) -> None:
    os.utime(cache.blob(NAME, blob(LARGE)))
    assert check.warm(cache, MADE).broken[0].found == "has changed since it was verified"
    read: list[int] = []
    assert check.check(cache, MADE, tell=read.append).whole and sum(read) == len(CONTENT[LARGE])
    assert check.check(cache, MADE, tell=read.append).whole and sum(read) == len(CONTENT[LARGE])


def test_a_link_that_is_missing_is_made_again(cache: Cache) -> None:
    link = cache.snapshot(NAME, REVISION) / "tokenizer/vocab.txt"
    link.unlink()
    link.symlink_to("/etc/passwd")
    assert check.warm(cache, MADE).unlinked == ("tokenizer/vocab.txt",)
    assert caches.place(cache, MADE)
    assert check.warm(cache, MADE).whole


def test_nothing_is_placed_that_does_not_fit(tmp_path: Path) -> None:
    there = Cache(str(tmp_path / "home"))
    with pytest.raises(SparkError, match="is not there"):
        caches.place(there, MADE)
    whole = arrived(there)
    (whole / blob(LARGE)).write_bytes(b"short")
    with pytest.raises(SparkError, match=r"has 5 bytes of \d+\..*repaired"):
        caches.place(there, MADE)
    (whole / blob(LARGE)).unlink()
    there.blob(NAME, blob(LARGE)).write_bytes(b"x" * len(CONTENT[LARGE]))
    with pytest.raises(SparkError, match="is not what it should be"):
        caches.place(there, MADE)
    assert caches.read(there, NAME, REVISION) is None
    assert not check.check(there, MADE).whole


@pytest.mark.parametrize("part", ["hub", "hub/models--org--model", "hub/models--org--model/blobs"])
def test_a_directory_that_is_a_link_leads_root_nowhere(tmp_path: Path, part: str) -> None:
    there, trap = Cache(str(tmp_path / "home")), tmp_path / "trap"
    trap.mkdir()
    arrived(there)
    place = tmp_path / "home" / part
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(trap)
    with pytest.raises(SparkError, match="is no directory"):
        caches.place(there, MADE)
    assert not list(trap.iterdir())


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": 1}', "null"])
def test_a_damaged_manifest_is_as_none(cache: Cache, text: str) -> None:
    folder = Path(cache.home, "sparkmatrix/manifests/models--org--model")
    (folder / f"{REVISION}.state.json").write_text(text)
    assert not check.warm(cache, MADE).whole
    assert check.check(cache, MADE).whole
    (folder / f"{REVISION}.json").write_text(text)
    assert caches.read(cache, NAME, REVISION) is None


def test_what_is_there(cache: Cache) -> None:
    model_tree.cached(Path(cache.home), "other/thing", commit=OTHER)
    gone = Path(cache.home, "hub/models--other--thing/snapshots", OTHER, "gone.safetensors")
    gone.symlink_to("../../blobs/nothing")
    mine, theirs = caches.kept(cache)
    assert (mine.name, mine.revision, mine.refs, mine.manifest, mine.broken) == (NAME, REVISION, ("main",), True, ())
    assert (mine.size, mine.frees, mine.files) == (MADE.size, MADE.size, len(CONTENT))
    assert abs(mine.used_at - time.time()) < 600
    assert (theirs.name, theirs.manifest, theirs.broken) == ("other/thing", False, ("gone.safetensors",))


def test_a_model_that_is_a_link_is_left_out_of_the_list(cache: Cache, tmp_path: Path) -> None:
    (tmp_path / "elsewhere/snapshots" / OTHER).mkdir(parents=True)
    Path(cache.home, "hub/models--a--link").symlink_to(tmp_path / "elsewhere")
    Path(cache.home, "hub/models--a--gone").symlink_to("nowhere")
    Path(cache.home, "hub/models--a--file").touch()
    Path(cache.home, "hub/models--a--b--c").mkdir()
    assert [one.name for one in caches.kept(cache)] == [NAME]


def second(cache: Cache) -> None:
    """Another revision, with one more file."""
    more = model_manifest.manifest({**CONTENT, "more.safetensors": b"c" * 9}, revision=OTHER)
    extra = {"more.safetensors": b"c" * 9}
    model_manifest.blobs(cache.partial(OTHER) / "blobs", extra)
    caches.place(cache, more, ["next"])


def test_a_revision_goes_and_leaves_what_others_have(cache: Cache) -> None:
    second(cache)
    assert {one.revision: one.frees for one in caches.kept(cache)} == {REVISION: 0, OTHER: 9}
    caches.remove(cache, NAME, OTHER)
    assert [one.revision for one in caches.kept(cache)] == [REVISION]
    assert check.check(cache, MADE, full=True).whole
    assert caches.revision(cache, NAME, "next") == ""
    assert caches.manifests(cache, NAME) == [REVISION]
    caches.remove(cache, NAME, REVISION)
    assert not [path for path in Path(cache.home).rglob("*") if path.is_file()]


def test_a_store_that_models_share_is_freed_with_its_last_one(cache: Cache) -> None:
    home = Path(cache.home)
    store = home / "hub/blobs/aa" / ("a" * 64)
    store.parent.mkdir(parents=True)
    store.write_bytes(b"shared")
    store.with_name(f"{store.name}.refs").write_text("")
    for name in ("one", "two"):
        folder = home / f"hub/models--org--{name}"
        snapshot = folder / "snapshots" / OTHER
        snapshot.mkdir(parents=True)
        (folder / "blobs").mkdir()
        (folder / "blobs/x").symlink_to(os.path.relpath(store, folder / "blobs"))
        (snapshot / "x.safetensors").symlink_to("../../blobs/x")
    caches.remove(cache, "org/one", OTHER)
    assert store.exists()
    caches.remove(cache, "org/two", OTHER)
    assert not list(store.parent.iterdir())


@pytest.mark.parametrize("revision", ["", "main", "../../..", "0f" * 19])
def test_only_a_revision_is_removed(cache: Cache, revision: str) -> None:
    with pytest.raises(ValueError, match="revision is"):
        caches.remove(cache, NAME, revision)


@pytest.mark.parametrize("ref", ["", "..", "a/../b", "/a", "a\n"])
def test_a_ref_is_no_way_out(cache: Cache, ref: str) -> None:
    with pytest.raises(ValueError, match="no name of a revision"):
        caches.point(cache, NAME, ref, REVISION)
    assert caches.revision(cache, NAME, ref) == ""


def test_a_link_is_removed_and_not_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "keep").mkdir()
    (tmp_path / "keep/file").touch()
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/link").symlink_to(tmp_path / "keep")
    folders.remove(str(tmp_path), (), "a")
    assert (tmp_path / "keep/file").exists()
    assert not (tmp_path / "a").exists()


SERVICE = 65534  # the account that the engine runs as, and that the cache belongs to


@pytest.fixture
def service(tmp_path: Path) -> Cache:
    """A cache of which the service user has written all that is ours."""
    if os.geteuid() != 0:
        pytest.skip("becomes another account")
    there = Cache(str(tmp_path / "home"))
    tmp_path.chmod(0o755)
    Path(there.home).mkdir()
    os.chown(there.home, SERVICE, SERVICE)
    return there


def written(cache: Cache, below: str, files: dict[str, bytes]) -> None:
    place = Path(cache.home, below)
    place.mkdir(parents=True)
    for name, data in files.items():
        (place / name).write_bytes(data)
    for path in (*Path(cache.home).rglob("*"), *place.iterdir()):
        os.chown(path, SERVICE, SERVICE)


def test_what_the_service_user_has_put_where_a_copy_arrives_is_gone(service: Cache) -> None:
    """It could have it open, and write when all of it was read."""
    parts = ("sparkmatrix", "partial", REVISION, "blobs")
    written(service, "/".join(parts), {file.blob: b"x" * file.size for file in MADE.files})
    with folders.inside(service.home, parts, make=True) as partial:
        assert (os.listdir(partial), os.fstat(partial).st_uid) == ([], 0)


def test_what_the_service_user_says_was_verified_is_read(service: Cache) -> None:
    arrived(service)
    caches.place(service, MADE, ["main"])
    own = Path(service.home, "sparkmatrix")
    assert {path.stat().st_uid for path in (own, *own.rglob("*"))} == {0}
    known = {path.relative_to(own): path.read_bytes() for path in own.rglob("*.json")}
    place = service.blob(NAME, blob(LARGE))
    place.unlink()
    place.write_bytes(b"y" * len(CONTENT[LARGE]))
    stamps = {**caches.state(service, MADE).stamps, blob(LARGE): hashing.stamp(place.stat())}
    own.rename(own.with_name("moved"))  # whose home it is can do that
    lies = json.dumps(document.plain(caches.State(stamps))).encode()
    files = {path.name: lies if path.name.endswith(".state.json") else data for path, data in known.items()}
    written(service, str("sparkmatrix" / next(iter(known)).parent), files)
    assert caches.read(service, NAME, REVISION) is None
    assert caches.state(service, MADE) == caches.State()
    assert [one.path for one in check.check(service, MADE).broken] == [LARGE]


def test_a_directory_of_ours_that_others_may_write_is_made_anew(service: Cache) -> None:
    own = Path(service.home, "sparkmatrix")
    own.mkdir()
    own.chmod(0o777)
    (own / "left").write_text("")
    with folders.inside(service.home, ("sparkmatrix", "partial"), make=True):
        pass
    assert (own.stat().st_uid, own.stat().st_mode & 0o777, list(own.iterdir())) == (0, 0o755, [own / "partial"])
