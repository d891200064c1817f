# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A model from node to node: rsync itself, with the daemon in place of the ssh that leads to it."""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import from_node
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.cache import Cache
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.manifest import File, Manifest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import calls
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from model_manifest import manifest

pytestmark = pytest.mark.skipif(not shutil.which("rsync"), reason="no rsync here")
CONTENT = {
    path: random.Random(path).randbytes(size)
    for path, size in {"model-1.safetensors": 300_000, "model-2.safetensors": 200_001, "config.json": 300}.items()
}
SERVE = f"import sys; from {from_node.__name__.rpartition('.')[0]} import from_node; from_node.serve(sys.argv[1])"


class Node:
    """``home`` of the node that has it is offered; the other one pulls."""

    def __init__(self, directory: Path) -> None:
        self.source, self.cache = Cache(str(directory / "a")), Cache(str(directory / "b"))
        self.of: Manifest = manifest(CONTENT)
        self.blobs = self.source.blob(self.of.name, "x").parent
        self.blobs.mkdir(parents=True)
        for file in self.of.files:
            (self.blobs / file.blob).write_bytes(CONTENT[file.path])
        self.run = directory / "run"
        from_node.publish(from_node.Offer(self.source.home, self.of.name), str(self.run))
        self.notes: list[str] = []
        self.told: list[int] = []

    @property
    def partial(self) -> Path:
        return self.cache.partial(self.of.revision) / "blobs"

    def pull(self, *connect: str, lacking: list[File] | None = None) -> int:
        Path(self.cache.home).mkdir(exist_ok=True)
        way = from_node.Way("spark1", ("127.0.0.1", "127.0.0.2"), connect=connect or self.serve, pause_s=0)
        return from_node.pull(
            self.cache, self.of, lacking or list(self.of.files), way, tell=self.told.append, note=self.notes.append
        )

    @property
    def serve(self) -> tuple[str, ...]:
        path = os.pathsep.join(sys.path)
        return ("env", f"PYTHONPATH={path}", sys.executable, "-c", SERVE, str(self.run))

    def is_whole(self) -> bool:
        return {file.path: (self.partial / file.blob).read_bytes() for file in self.of.files} == CONTENT


@pytest.fixture
def node() -> Iterator[Node]:
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)  # as root the daemon is somebody else
        yield Node(Path(place))


def test_a_model_comes_from_the_node_that_offers_it(node: Node) -> None:
    node.pull()
    assert node.is_whole() and node.told[-1] == sum(map(len, CONTENT.values())) and not node.notes


def test_what_is_there_of_a_file_stays(node: Node) -> None:
    node.partial.mkdir(parents=True)
    first, second, _small = node.of.files
    (node.partial / first.blob).write_bytes(CONTENT[first.path][:100_000])
    wrong = bytearray(CONTENT[second.path])
    wrong[7] ^= 1
    (node.partial / second.blob).write_bytes(wrong)
    before = (node.partial / second.blob).stat().st_ino
    assert 200_000 < node.pull() < 250_000  # the rest of the one, and a block of the other
    assert node.is_whole()
    assert (node.partial / second.blob).stat().st_ino == before  # whoever has it open sees it whole again


def test_a_node_that_gives_something_else_is_named(node: Node) -> None:
    (node.blobs / node.of.files[0].blob).write_bytes(b"x" * node.of.files[0].size)
    with pytest.raises(SparkError, match="spark1") as found:
        node.pull()
    assert "verify" in found.value.remedy


def test_a_node_that_does_not_answer_is_asked_again_and_then_named(node: Node) -> None:
    with pytest.raises(SparkError, match="spark1 does not give it"):
        node.pull("false")
    assert len(node.notes) >= 4


def test_nothing_but_the_files_of_the_model_is_read(node: Node) -> None:
    secret = Path(node.source.home, "secret")
    secret.write_text("s", encoding="utf-8")
    file = node.of.files[0]
    (node.blobs / file.blob).unlink()
    (node.blobs / file.blob).symlink_to(secret)
    for name in (file.blob, "../../../secret"):
        with pytest.raises(SparkError):
            node.pull(lacking=[File(file.path, 1, file.sha256, name)])
    assert "s" not in [path.read_text(errors="replace") for path in node.partial.rglob("*")]


def test_nothing_is_read_where_nothing_is_offered(node: Node) -> None:
    models = Path(node.source.home, "hub")
    models.rename(models.with_name("elsewhere"))
    models.symlink_to("elsewhere")
    with pytest.raises(SparkError, match="is no directory"):
        from_node.serve(str(node.run))
    (node.run / from_node.OFFER).unlink()
    with pytest.raises(SparkError, match="no model is offered"):
        from_node.serve(str(node.run))


def test_a_rate_is_shared_by_the_streams() -> None:
    argv = from_node.Way("spark1", ("10.0.0.1", "10.0.1.1"), rate=1200 * 1024).argv(1, 3, mend=False)
    assert {"--bwlimit=400", "rsync://10.0.1.1/model/"} <= set(argv)


def test_a_check_offers_nothing() -> None:
    assert calls.run("model_offer", {"home": "/h", "name": "org/m"}, True) == {"changed": False}
