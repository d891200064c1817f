# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils import _node_program
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import copy as copies
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.copy import Status
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.fetch import Link, Patience
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.journal import Store
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.talk import NodeState
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from fan_out import PIECE, Cluster, address, contents, owner_only, sha256

Make = Callable[..., Cluster]
RING = [(0, 1), (1, 2), (2, 3), (3, 0)]
SLOW = 600_000  # bytes per second: a copy of BIG takes about a second
BIG = {"model.safetensors": 160 * PIECE}


@pytest.fixture(autouse=True)
def disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody pulls the plug here, and the disk has others to serve."""
    monkeypatch.setattr(os, "fdatasync", lambda handle: None)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Make]:
    made: list[Cluster] = []

    def make(nodes: int, **options: object) -> Cluster:
        made.append(Cluster(tmp_path, nodes, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def reaches(journal: Path, lines: int) -> bool:
    return journal.exists() and journal.read_text(encoding="utf-8").count("\n") > lines


def problems(one: Cluster, node: int) -> list[str]:
    return one.copies[node].receiver.problems()


def received(one: Cluster, node: int) -> int:
    return one.copies[node].receiver.received


@pytest.mark.parametrize("cables", [None, RING])
def test_all_receivers_get_the_model(cluster: Make, cables: list[tuple[int, int]] | None) -> None:
    one = cluster(4, cables=cables)
    for node in range(4):
        one.start(node)
    statuses = one.wait()
    assert all(status.complete and not status.problems for status in statuses)
    assert all(one.is_right(node) for node in (1, 2, 3))


def test_a_chain_sends_each_segment_about_once_from_each_node(cluster: Make) -> None:
    one = cluster(4, files=contents(BIG), rate=4 * SLOW)
    for node in range(4):
        one.start(node, Patience(first_sign=60.0, silent=60.0, nothing=60.0, probe=60.0))
    one.wait()
    assert all(one.copies[node].server.sent < 1.5 * 160 * PIECE for node in range(3))


def test_both_halves_carry(cluster: Make) -> None:
    one = cluster(2, files=contents(BIG), rate=SLOW)
    one.start(0), one.start(1)
    one.wait()
    assert all(one.copies[0].server.served_to[address(1, half)] for half in (0, 1))


def test_files_with_one_content_and_empty_ones(cluster: Make) -> None:
    one = cluster(2, files={"a.bin": b"x" * 9000, "copies/b.bin": b"x" * 9000, "empty.txt": b"", "c.bin": b"y" * PIECE})
    one.start(0), one.start(1)
    (status,) = one.wait(1)
    assert one.is_right(1) and status.lacking == 0
    assert received(one, 1) == 9000 + PIECE


def test_one_half_is_dead(cluster: Make) -> None:
    one = cluster(2)

    (peer,) = one.job(1).peers
    dead = Link("127.9.0.9", "127.9.0.8")
    one.start(0)
    one.start(1, peers=(replace(peer, links=(dead, peer.links[1])),))
    assert one.wait()[1].complete and one.is_right(1)


def test_who_is_whole_waits_for_those_who_begin_later(cluster: Make) -> None:
    one = cluster(2)
    shutil.copytree(one.cache(0), one.cache(1))
    one.start(1)
    time.sleep(0.7)
    one.start(0)
    assert all(status.complete for status in one.wait(within_s=10.0))


def test_no_word_of_another_node_draws_a_copy_out(cluster: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "SPARE_S", 0.5)
    one = cluster(2)
    said = itertools.count(1)
    seed = one.start(0)

    def claim() -> bool:
        beat = next(said)
        seed.board.hear("spark1", {"spark1": NodeState(beat=beat, received=beat, lacking=1)})
        return 0 in one.ended

    one.until(claim)
    assert "the copy has taken 1 s, more than its bytes may" in one.ended[0].problems


@pytest.mark.parametrize("rate", [0, 8_000_000, 800_000_000])
def test_how_long_a_copy_may_take(cluster: Make, rate: int) -> None:
    one = cluster(2, rate=rate).start(0)
    slowest = {0: 10_000_000, 8_000_000: 1_000_000, 800_000_000: 10_000_000}[rate]
    assert one.most_s == 600 + one.store.bytes / slowest


@pytest.mark.parametrize("whose", ["ours", "another"])
def test_encrypted_with_the_certificate_of_the_copy(cluster: Make, whose: str) -> None:
    made = {}
    for name in ("ours", "another"):
        argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        argv += ["-keyout", "-", "-out", "-", "-days", "1", "-subj", "/CN=copy"]
        made[name] = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    one = cluster(2, certificate=made["ours"])
    one.start(0)
    one.start(1, certificate=made[whose])
    one.until(lambda: one.copies[1].store.is_whole or "certificate" in one.copies[1].receiver.sources[0].problem)
    if whose == "another":
        one.stall(0, 1)
    _seed, status = one.wait()
    assert status.complete == (whose == "ours") == one.is_right(1)


# --- what dies ---


@pytest.mark.parametrize("seed", range(2))
def test_a_node_in_the_middle_dies(cluster: Make, seed: int) -> None:
    """Its successor steps over it, and everybody says that it is not whole."""
    one = cluster(4, files=contents(BIG), rate=SLOW)
    for node in range(4):
        one.start(node)
    point = random.Random(seed).uniform(0.1, 0.8) * 160 * PIECE
    one.until(lambda: received(one, 2) > point)
    one.kill(2)
    one.until(lambda: all(one.copies[0].board.nodes()[f"spark{node}"].phase == "whole" for node in (1, 3)))
    one.stall(0, 1, 3)
    statuses = one.wait(0, 1, 3)
    assert one.is_right(1) and one.is_right(3) and not one.is_right(2)
    assert not any(status.complete for status in statuses)
    assert all("spark2 lacks" in " ".join(status.problems) for status in statuses)


@pytest.mark.parametrize("seed", range(1))
def test_a_receiver_dies_and_comes_back(cluster: Make, seed: int) -> None:
    one = cluster(3, files=contents(BIG), rate=SLOW)
    for node in range(3):
        one.start(node)
    point = random.Random(seed).uniform(0.1, 0.8) * 160 * PIECE
    one.until(lambda: received(one, 1) > point)
    one.kill(1)
    before = received(one, 1)
    one.start(1)
    assert all(status.complete for status in one.wait())
    assert one.is_right(1) and one.is_right(2)
    assert received(one, 1) + before < 1.3 * 160 * PIECE  # what was there was not fetched again


def test_the_seed_dies_when_the_others_have_everything_between_them(cluster: Make) -> None:
    one = cluster(3)
    one.start(0), one.start(1)
    one.until(lambda: one.copies[1].store.is_whole)
    one.kill(0)
    one.start(2)
    assert [status.complete for status in one.wait(1, 2)] == [True, True]
    assert one.is_right(2)


def test_the_seed_dies_for_good(cluster: Make) -> None:
    one = cluster(3, files=contents(BIG), rate=SLOW)
    for node in range(3):
        one.start(node)
    one.until(lambda: received(one, 1) > 20 * PIECE)
    one.kill(0)
    one.until(lambda: one.copies[1].store.have == one.copies[2].store.have and "spark0" in "".join(problems(one, 1)))
    one.until(lambda: one.copies[1].board.nodes()["spark2"].lacking == one.copies[2].store.lacking)
    one.stall(1, 2)
    status, _other = one.wait(1, 2)
    told = " ".join(status.problems)
    assert "spark0 cannot be reached" in told and "model.safetensors at byte" in told and "spark2 lacks" in told
    assert status.phase == "copying" and status.ended and not status.complete


PROGRAM = """
import sys
from functools import partial
from pathlib import Path
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import copy
job = copy.read_job(sys.argv[1])
print(copy.copy(job, copy.read_manifest(job.manifest), lambda status: None).phase)
"""


def test_killed_at_any_point_it_goes_on(cluster: Make, tmp_path: Path) -> None:
    """A real program and a real SIGKILL, several times; afterwards nothing is fetched that was in the journal."""
    one = cluster(2, files=contents(BIG), rate=4 * SLOW)
    seed = one.start(0)
    owner_only(tmp_path / "job.json", json.dumps(document.plain(one.job(1, rate=SLOW))))
    argv = [sys.executable, "-c", PROGRAM, str(tmp_path / "job.json")]
    path = os.pathsep.join(sys.path)
    for round_ in range(2):
        process = subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": path})
        journal = one.partial(1) / "journal"
        lines = 20 * (round_ + 1)
        one.until(partial(reaches, journal, lines))
        time.sleep(random.Random(round_).random() / 20)
        process.kill()
        process.wait()
    before = seed.server.sent
    store = Store(one.manifest, str(one.partial(1)))
    store.open()
    lacking = store.lacking
    store.close()
    assert lacking <= 125 * PIECE
    one.start(1)
    assert one.wait()[1].complete and one.is_right(1)
    assert seed.server.sent - before <= lacking + 9 * PIECE


# --- what is wrong ---


def test_a_source_that_lies_is_named_and_the_next_one_is_asked(cluster: Make) -> None:
    one = cluster(3, files={"model.safetensors": bytes(40 * PIECE)})
    broken = one.cache(1)
    shutil.copytree(one.cache(0), broken)
    (blob,) = broken.iterdir()
    data = bytearray(blob.read_bytes())
    data[5 * PIECE + 7] ^= 1
    blob.write_bytes(data)
    one.start(0), one.start(1), one.start(2)
    one.until(lambda: one.copies[2].store.is_whole)
    problems = " ".join(one.copies[2].receiver.problems())
    one.wait()
    assert one.is_right(2)
    assert f"spark1 sent wrong bytes of model.safetensors at byte {5 * PIECE}" in problems
    assert "any more" not in problems  # one bad block of a disk; the rest of it is good


def test_a_source_that_lies_always_is_dropped(cluster: Make) -> None:
    one = cluster(3, files=contents(BIG))
    shutil.copytree(one.cache(0), one.cache(1))
    (blob,) = one.cache(1).iterdir()
    blob.write_bytes(bytes(160 * PIECE))
    one.start(0), one.start(1), one.start(2)
    one.until(lambda: one.copies[2].store.is_whole)
    assert "not asked any more" in " ".join(one.copies[2].receiver.problems())
    one.wait()
    assert one.is_right(2)
    assert received(one, 2) < 180 * PIECE


def test_a_slow_source_is_replaced(cluster: Make) -> None:
    """It trickles, and everything would go through it."""
    one = cluster(3, files=contents({"model.safetensors": 600 * PIECE}))
    shutil.copytree(one.cache(0), one.cache(1))
    one.start(0), one.start(1, rate=100_000), one.start(2)
    one.until(lambda: one.copies[2].store.is_whole)
    sources = {source.host: source.received for source in one.copies[2].receiver.sources}
    assert sources["spark0"] > sources["spark1"]


def test_a_source_whose_predecessor_is_slow_is_replaced(cluster: Make) -> None:
    """It has nothing new for long, and the seed has everything."""
    one = cluster(3, files=contents({"model.safetensors": 600 * PIECE}))
    one.start(0), one.start(1, rate=100_000), one.start(2)
    one.until(lambda: one.copies[2].store.is_whole)
    assert one.copies[1].store.lacking > 300 * PIECE


def test_another_revision_is_no_source(cluster: Make, tmp_path: Path) -> None:
    """The seed was told of a newer one, and the receiver not: its token is another one, too."""
    one = cluster(2)
    one.start(0, token="n" * 64)
    one.start(1)
    one.until(lambda: "spark0 cannot be reached (it does not know the token of this copy)" in problems(one, 1))


def test_the_same_token_for_other_files_is_refused(cluster: Make) -> None:
    one = cluster(2)
    one.start(0)
    one.manifest = replace(one.manifest, revision="b" * 40)
    one.start(1)
    one.until(lambda: "spark0 cannot be reached (it copies another model or revision)" in problems(one, 1))


def test_a_full_disk_at_the_start(cluster: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so at once, before a byte moves, and the others do not wait for it."""
    one = cluster(3)
    take = os.posix_fallocate

    def full(handle: int, offset: int, size: int) -> None:
        if "partial1" in os.readlink(f"/proc/self/fd/{handle}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        take(handle, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", full)
    for node in range(3):
        one.start(node)
    seed, bad, good = one.wait()
    assert good.phase == "whole" and one.is_right(2)
    assert bad.phase == "failed" and "No space left on device" in bad.problems[0]
    assert any("spark1 lacks" in text and "No space left on device" in text for text in seed.problems)
    assert list(one.partial(1).iterdir()) == [one.partial(1) / "journal"]


def test_a_disk_that_fails_in_the_middle_serves_what_it_has(cluster: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    one = cluster(3, files=contents(BIG), rate=SLOW)
    write = os.pwrite

    def broken(handle: int, data: bytes, offset: int) -> int:
        if offset > 80 * PIECE and "partial1" in os.readlink(f"/proc/self/fd/{handle}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return write(handle, data, offset)

    monkeypatch.setattr(os, "pwrite", broken)
    for node in range(3):
        one.start(node)
    _seed, bad, good = one.wait()
    assert bad.phase == "failed" and "Input/output error" in bad.problems[0]
    assert good.phase == "whole" and good.sources["spark1"] > 0


# --- repair, limits, the program ---


def test_repair_fetches_the_broken_segments_only(cluster: Make) -> None:
    one = cluster(2, files=contents(BIG))
    shutil.copytree(one.cache(0), one.cache(1))
    (blob,) = one.cache(1).iterdir()
    data = bytearray(blob.read_bytes())
    data[7 * PIECE + 1] ^= 1
    blob.write_bytes(data)
    with blob.open("rb") as opened:  # by a running engine
        store = Store(one.manifest, str(one.partial(1)))
        store.adopt(blob.name, str(blob), [number for number in range(160) if number != 7])
        one.start(0), one.start(1)
        assert one.wait()[1].complete and one.is_right(1)
        assert received(one, 1) == PIECE
        assert sha256(opened.read()) == blob.name


def test_the_rate_is_kept(cluster: Make) -> None:
    one = cluster(2, files=contents(BIG), rate=SLOW)
    began = time.monotonic()
    one.start(0), one.start(1)
    one.until(lambda: one.copies[1].store.is_whole)
    assert time.monotonic() - began > 0.9 * 160 * PIECE / SLOW


def test_a_second_copy_is_refused(tmp_path: Path) -> None:
    lock = str(tmp_path / "lock")
    with copies.alone(lock):
        assert copies.is_running(lock)
        with pytest.raises(SparkError, match="another copy of a model runs"), copies.alone(lock):
            pass
    assert not copies.is_running(lock)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(copies.keep, "__defaults__", (str(tmp_path / "status.json"),))
    lock = str(tmp_path / "lock")
    monkeypatch.setattr(copies.alone.__wrapped__, "__defaults__", (lock,))  # type: ignore[attr-defined]
    monkeypatch.setattr(copies.last, "__defaults__", (str(tmp_path / "status.json"), lock))
    return tmp_path


def test_the_program(cluster: Make, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _node_program.main(["artifacts", "status"]) == 0
    assert capsys.readouterr().out == "no model is being fetched, copied or checked\n"
    one = cluster(2)
    one.start(0)
    owner_only(place / "job.json", json.dumps(document.plain(one.job(1))))
    assert _node_program.main(["artifacts", "copy", "--job", str(place / "job.json")]) == 0
    assert capsys.readouterr().out.startswith("spark1: acme/tiny aaaaaaaaaaaa: whole, 100 %")
    assert _node_program.main(["artifacts", "status", "--json"]) == 0
    told: Status = document.load(Status, json.loads(capsys.readouterr().out)["copy"])
    assert told.ended and told.complete and told.sources["spark0"]


def test_a_copy_that_was_killed_is_told(place: Path) -> None:
    copies.keep(Status("spark1", "acme/tiny", "a" * 40))
    told = copies.last()
    assert told and told.ended and "was killed" in told.problems[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"token": "short"}, "fewer than 32 characters"),
        ({"token": "x" * 40 + "\r\n"}, "control characters"),
        ({"receivers": ["../x"]}, "no host name"),
        ({"port": 0}, "expected 1 to 65535"),
        ({"rate": -1}, "expected 0 to"),
        ({"peers": [{"host": "spark2", "links": [{"here": "::1", "there": "::1"}]}]}, "expected an IPv4 address"),
        ({"nonsense": 1}, "unknown keys"),
    ],
)
def test_a_damaged_job_is_refused(cluster: Make, tmp_path: Path, change: dict[str, object], words: str) -> None:
    job = {**document.plain(cluster(2).job(1)), **change}
    owner_only(tmp_path / "job.json", json.dumps(job))
    with pytest.raises(SparkError, match=words):
        copies.read_job(str(tmp_path / "job.json"))


def test_a_job_that_others_can_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text("{}")
    (tmp_path / "job.json").chmod(0o644)
    with pytest.raises(SparkError, match="others can read it"):
        copies.read_job(str(tmp_path / "job.json"))
