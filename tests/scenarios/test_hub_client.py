# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Hugging Face's own client, in the versions that the role installs, against a hub on this machine: what arrives, in
which layout, what is resumed, and that other programs find it without network.

Needs pip and an index of packages, and no lab: ``pytest -n 0 tests/scenarios/test_hub_client.py``.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT / "tests/lab")]

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import cache as caches
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import check, hub, importing
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.cache import Cache
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.manifest import Manifest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._node_program import build
from hub import Hub, commit, repository

NAME, GATED = "org/model", "org/gated"
WEIGHTS = [f"model-{number:05}-of-00002.safetensors" for number in (1, 2)]
LARGE = 3_000_000
OLDEST = (3, 10)  # what the client needs


def weights(size: int) -> bytes:
    header = json.dumps({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return len(header).to_bytes(8, "little") + header + os.urandom(size)


FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer/vocab.txt": b"a\nb\n" * 5000,
    "empty.txt": b"",
    "model.safetensors.index.json": json.dumps({"weight_map": dict(enumerate(WEIGHTS))}).encode(),
    WEIGHTS[0]: weights(LARGE),
    WEIGHTS[1]: weights(LARGE),
    "original/model.safetensors": weights(LARGE),
}
NEEDED = {path: content for path, content in FILES.items() if not path.startswith("original/")}
REVISION = commit(FILES)


class Place:
    """A directory for everybody, with the client of the role and the program of the nodes in it."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.python = str(path / "venv/bin/python")
        self.program = path / "sparkmatrix-node"
        self.user = "nobody" if os.geteuid() == 0 else ""
        self._made = 0
        path.chmod(0o755)
        self.program.write_bytes(build())
        lock = next((ROOT / "roles/artifacts/files/locks").glob("huggingface-hub-*.txt")).read_text()
        pinned = re.findall(r"^[a-z0-9-]+==[^ ]+", lock, re.MULTILINE)  # its hashes are those of another machine
        self.run(_python(), "-m", "venv", str(path / "venv"))
        self.run(str(path / "venv/bin/pip"), "install", "--quiet", "--disable-pip-version-check", *pinned)

    def run(self, *argv: str, **environment: str) -> str:
        clean = {name: text for name, text in os.environ.items() if not name.startswith("HF_")}
        done = subprocess.run(argv, env={**clean, **environment}, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    def cache(self) -> Cache:
        self._made += 1
        return Cache(str(self.path / f"home{self._made}"))

    def obtain(
        self,
        cache: Cache,
        name: str = NAME,
        stall_s: float = 60,
        listing: hub.Listing | None = None,
        **environment: str,
    ) -> tuple[Manifest, list[str]]:
        said: list[str] = []
        listing = listing or hub.ask(name, "main", environment)
        argv = (self.python, "-IB", str(self.program), "hub-download")
        client = hub.Client(argv, environment, self.user, stall_s, pause_s=0.1)
        made = hub.obtain(cache, listing, listing.choose(), client, say=said.append)
        caches.place(cache, made, ["main"])
        return made, said


def _python() -> str:
    """One that another user may run."""
    for one in ("/usr/bin/python3", sys.executable):
        with contextlib.suppress(OSError, ValueError):
            told = subprocess.run(
                [one, "-c", "import sys, ensurepip; print(*sys.version_info[:2])"],
                capture_output=True,
                text=True,
                check=False,
            )
            if tuple(map(int, told.stdout.split())) >= OLDEST:
                return one
    raise AssertionError("no Python of at least 3.10 with ensurepip is on this machine")


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="sparkmatrix-hub-") as made:
        yield Place(pathlib.Path(made))


@pytest.fixture
def served() -> Iterator[Hub]:
    there = Hub({NAME: repository(FILES), GATED: repository(FILES, gated=True)}, token="hf_secret")
    with there.serve():
        yield there


def is_whole(cache: Cache, made: Manifest, name: str = NAME) -> None:
    assert made.revision == REVISION
    assert check.check(cache, made, full=True).whole
    snapshot = cache.snapshot(name, made.revision)
    assert {
        str(path.relative_to(snapshot)): path.read_bytes() for path in snapshot.rglob("*") if path.is_file()
    } == NEEDED
    if os.geteuid() == 0:
        assert {path.stat().st_uid for path in cache.blob(name, "x").parent.iterdir()} == {0}
    assert not list(pathlib.Path(cache.home, "sparkmatrix/partial").iterdir())


def test_a_gated_model_with_a_token_that_nobody_sees(place: Place, served: Hub) -> None:
    cache, token = place.cache(), place.path / "token"
    with pytest.raises(SparkError, match=rf"there is no token.*Accept it at {served.url}/{GATED}"):
        place.obtain(cache, GATED, HF_ENDPOINT=served.url)
    token.write_text("hf_secret\n")
    token.chmod(0o600)
    made, said = place.obtain(cache, GATED, HF_ENDPOINT=served.url, HF_TOKEN_PATH=str(token))
    is_whole(cache, made, GATED)
    assert said == []
    assert served.leaked == []  # the storage of large files is none of the hub
    assert served.bytes_sent == sum(len(NEEDED[path]) for path in WEIGHTS)


FIND = "import huggingface_hub as h; print(h.snapshot_download(%r, **%r))"


def test_other_programs_find_it_without_network_and_take_it_for_their_own(place: Place, served: Hub) -> None:
    cache = place.cache()
    place.obtain(cache, HF_ENDPOINT=served.url)
    snapshot = str(cache.snapshot(NAME, REVISION))
    found = place.run(place.python, "-c", FIND % (NAME, {}), HF_HOME=cache.home, HF_HUB_OFFLINE="1")
    assert found.strip() == snapshot
    sent = served.bytes_sent
    options = {"ignore_patterns": ["original/*"]}
    found = place.run(place.python, "-c", FIND % (NAME, options), HF_HOME=cache.home, HF_ENDPOINT=served.url)
    assert found.strip() == snapshot
    assert served.bytes_sent == sent
    assert check.warm(cache, caches.read(cache, NAME, REVISION) or pytest.fail("no manifest")).whole


def test_a_download_that_stalls_or_is_cut_loses_little(place: Place, served: Hub) -> None:
    cache = place.cache()
    served.stall_after, served.stalls, served.cut_after = LARGE // 2, 2, LARGE // 3
    made, said = place.obtain(cache, stall_s=6, HF_ENDPOINT=served.url)
    is_whole(cache, made)
    assert any("it goes on at" in one for one in said)
    ranges = [int(found[1]) for one in served.asked for found in [re.search(r"bytes=(\d+)-", one)] if found]
    assert max(ranges) >= LARGE // 2 - 2**20
    assert served.bytes_sent < 2 * LARGE + LARGE


def test_a_file_that_arrives_damaged_is_downloaded_again(place: Place, served: Hub) -> None:
    cache = place.cache()
    served.damaged.add(WEIGHTS[0])
    made, said = place.obtain(cache, HF_ENDPOINT=served.url)
    is_whole(cache, made)
    assert f"{WEIGHTS[0]} is not what " in said[0]


def test_a_new_revision_downloads_what_is_new(place: Place, served: Hub) -> None:
    cache = place.cache()
    listing = hub.ask(NAME, "main", {"HF_ENDPOINT": served.url})
    again = {**FILES, "config.json": b'{"model_type": "mistral"}', WEIGHTS[1]: weights(LARGE)}
    served.repositories[NAME].files[commit(again)] = again
    served.repositories[NAME].refs["main"] = commit(again)
    first, _said = place.obtain(cache, listing=listing, HF_ENDPOINT=served.url)
    is_whole(cache, first)  # the branch has moved meanwhile: it is what was asked for, and no mixture
    sent = served.bytes_sent
    second, _said = place.obtain(cache, HF_ENDPOINT=served.url)
    assert served.bytes_sent - sent == len(again[WEIGHTS[1]])
    assert check.check(cache, first, full=True).whole
    assert check.check(cache, second, full=True).whole
    caches.remove(cache, NAME, first.revision)
    assert caches.read(cache, NAME, first.revision) is None
    assert check.check(cache, second, full=True).whole


UPLOAD = """
import hf_xet, sys
made = hf_xet.XetSession().new_upload_commit(endpoint=sys.argv[1])
tasks = [made.start_upload_file(path) for path in sys.argv[2:]]
made.wait_to_finish()
print(*(one.result().xet_info.hash for one in tasks))
"""


@pytest.fixture
def xet(place: Place, served: Hub) -> Iterator[Hub]:
    """Large files in Xet storage: a directory, which hf-xet knows how to read."""
    made = place.path / "xet"
    made.mkdir()
    try:
        paths = []
        for path in WEIGHTS:
            (made / path).write_bytes(FILES[path])
            paths.append(str(made / path))
        served.xet_storage = f"local://{made}/storage"
        hashes = place.run(place.python, "-c", UPLOAD, served.xet_storage, *paths, HOME=str(made)).split()
        served.repositories[NAME].xet = dict(zip(WEIGHTS, hashes))
        for above, folders, names in os.walk(made):
            for one in (*folders, *names):
                os.chmod(os.path.join(above, one), 0o777)
        made.chmod(0o777)
        yield served
    finally:
        shutil.rmtree(made)


def test_xet_storage(place: Place, xet: Hub) -> None:
    cache = place.cache()
    made, said = place.obtain(cache, HF_ENDPOINT=xet.url)
    is_whole(cache, made)
    assert said == []
    assert xet.bytes_sent == 0  # none of it by HTTP


def test_xet_storage_goes_on_where_it_was(place: Place, xet: Hub) -> None:
    cache = place.cache()
    listing = hub.ask(NAME, "", {"HF_ENDPOINT": xet.url})
    blobs = {remote.path: remote.blob for remote in listing.files}
    with hub._download_folder(cache, REVISION, place.user) as folder:
        for path in WEIGHTS:
            part = pathlib.Path(folder, f"{blobs[path]}.part")
            # Marked, so that it is seen who has read them.
            part.write_bytes(b"!" + FILES[path][1 : LARGE // 2])
            if place.user:
                os.chown(part, *hub._account(place.user))
    made, said = place.obtain(cache, HF_ENDPOINT=xet.url)
    assert len(said) == len(WEIGHTS)  # what was there was kept, and so its mark was found
    is_whole(cache, made)


def test_a_cache_with_shared_blobs_as_the_client_makes_it(place: Place, xet: Hub) -> None:
    home = place.path / "shared"
    options = {"ignore_patterns": ["original/*"]}
    place.run(place.python, "-c", FIND % (NAME, options), HF_HOME=str(home), HF_ENDPOINT=xet.url)
    blobs = [path for path in (home / "hub/models--org--model/blobs").iterdir() if path.is_symlink()]
    assert len(blobs) == len(WEIGHTS)  # else this client has no such layout any more
    cache = place.cache()
    source = importing.find(NAME, str(home))
    made = importing.bring(cache, source, source.choose())
    caches.place(cache, made, ["main"])
    assert check.check(cache, made, full=True).whole
    assert {file.path for file in made.files} == set(NEEDED)
    # A copy of the links alone, as rsync -a makes it, is no model.
    shutil.rmtree(home / "hub/blobs")
    with pytest.raises(SparkError, match="2 of its 6 files are links to nothing"):
        importing.find(NAME, str(home)).choose()


def test_a_directory_of_hf_download(place: Place, served: Hub) -> None:
    target = place.path / "directory"
    options = {"ignore_patterns": ["original/*"], "local_dir": str(target)}
    place.run(place.python, "-c", FIND % (NAME, options), HF_HOME=str(place.path / "x"), HF_ENDPOINT=served.url)
    cache = place.cache()
    source = importing.find(NAME, str(target))
    made = importing.bring(cache, source, source.choose())
    assert made.revision == REVISION
    caches.place(cache, made)
    assert check.check(cache, made, full=True).whole
