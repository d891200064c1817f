# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import shutil

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import cache as caches
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import (
    check,
    hashing,
    look,
    work,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.cache import Cache
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.manifest import File, Manifest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import calls
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine

NAME, COMMIT = "org/model", "a" * 40
CONTENT = {"config.json": b"{}", "model.safetensors": bytes(range(256)) * 64, "empty": b""}


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """``seed`` gives what is asked for: rsync is tried in test_pull."""
    given = []

    def pull(cache, of, lacking, way, *, tell, note):
        given.append((way.host, [one.path for one in lacking]))
        there = cache.partial(of.revision) / "blobs"
        there.mkdir(parents=True, exist_ok=True)
        for one in lacking:
            (there / one.blob).write_bytes(CONTENT[one.path])
            tell(one.size)
        return sum(one.size for one in lacking)

    monkeypatch.setattr(work, "alone", contextlib.nullcontext)
    monkeypatch.setattr(work.from_node, "pull", pull)
    return given


def seed(tmp_path):
    """A node that has the model."""
    cache = Cache(str(tmp_path / "seed"))
    whole = cache.partial(COMMIT) / "blobs"
    whole.mkdir(parents=True)
    files = []
    for path, content in CONTENT.items():
        place = whole / path
        place.write_bytes(content)
        with place.open("rb") as opened:
            made = hashing.measure(opened.fileno())
        files.append(File(path, len(content), made.sha256, made.sha256))
        place.rename(whole / made.sha256)
    of = Manifest(NAME, COMMIT, tuple(files), "test")
    caches.place(cache, of, ["main"])
    return cache, of


def copied(tmp_path, of):
    """What ``b`` gets."""
    made = work.Work(work.COPY, str(tmp_path / "b"), NAME, COMMIT, "main", "seed", of, ("127.0.0.1",))
    return work.perform(made, work.Teller(made, str(tmp_path / "b.json")))


def content(cache):
    snapshot = cache.snapshot(NAME, COMMIT)
    return {path: (snapshot / path).read_bytes() for path in CONTENT}


def test_a_model_comes_to_a_node_and_is_whole_there(tmp_path):
    _cache, of = seed(tmp_path)
    cache = Cache(str(tmp_path / "b"))
    os.makedirs(cache.home)
    assert look.held(cache, NAME, "").state == look.NONE
    ended = copied(tmp_path, of)
    assert (ended.digest, ended.changed, ended.sources) == (of.digest, True, {"seed": of.size})
    assert content(cache) == CONTENT
    seen = look.held(cache, NAME, "")
    assert (seen.state, seen.revision, seen.digest) == (look.WHOLE, COMMIT, of.digest)
    assert seen.size == seen.there == of.size
    assert not os.path.exists(os.path.dirname(cache.partial(COMMIT)))
    again = copied(tmp_path, of)
    assert (again.changed, again.sources) == (False, {})


def test_a_broken_file_alone_is_mended(tmp_path, _here):
    _cache, of = seed(tmp_path)
    cache = Cache(str(tmp_path / "b"))
    os.makedirs(cache.home)
    copied(tmp_path, of)
    breaks(cache, of)
    seen = look.held(cache, NAME, "")
    assert seen.state == look.BROKEN and "model.safetensors has changed since it was verified" in seen.found
    checked = work.perform(work.Work(work.CHECK, cache.home, NAME, COMMIT, full=True), teller(tmp_path))
    assert checked.broken == ("model.safetensors does not have the content that it should have",)
    blob = cache.blob(NAME, of.files[1].blob)
    before = blob.stat().st_ino
    copied(tmp_path, of)
    assert _here[-1] == ("seed", ["model.safetensors"])
    assert blob.stat().st_ino == before  # who has it open sees it whole again
    assert content(cache) == CONTENT and look.held(cache, NAME, "").state == look.WHOLE


def breaks(cache, of):
    with cache.blob(NAME, of.files[1].blob).open("r+b") as opened:
        opened.seek(4103)
        opened.write(b"\xff\x00")


@pytest.mark.parametrize("way", [("sparkmatrix",), ("sparkmatrix", "partial")])
def test_a_broken_file_is_not_taken_out_through_a_link(tmp_path, way):
    cache, of = seed(tmp_path)
    breaks(cache, of)
    elsewhere, at = tmp_path / "elsewhere", pathlib.Path(cache.home, *way)
    at.mkdir(exist_ok=True)
    at.rename(elsewhere)
    at.symlink_to(elsewhere)
    before = sorted(elsewhere.rglob("*"))
    made = work.Work(work.COPY, cache.home, NAME, COMMIT, manifest=of)
    with pytest.raises(SparkError, match="is no directory"):
        work.perform(made, teller(tmp_path))
    assert sorted(elsewhere.rglob("*")) == before


@pytest.mark.parametrize("part", ["hub", "models--org--model", "blobs"])
def test_a_broken_file_is_not_taken_out_of_another_directory(tmp_path, monkeypatch, part):
    cache, of = seed(tmp_path)
    breaks(cache, of)
    checks = check.check
    elsewhere = tmp_path / "elsewhere"

    def swapped(*arguments, **options):
        found = checks(*arguments, **options)
        blobs = cache.blob(NAME, "x").parent
        at = next(one for one in (blobs, *blobs.parents) if one.name == part)
        at.rename(elsewhere)
        at.symlink_to(elsewhere)
        return found

    monkeypatch.setattr(check, "check", swapped)
    made = work.Work(work.COPY, cache.home, NAME, COMMIT, manifest=of)
    with pytest.raises(SparkError, match="is no directory"):
        work.perform(made, teller(tmp_path))
    assert len([path for path in elsewhere.rglob(of.files[1].blob) if path.is_file()]) >= 1


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another account")
def test_a_broken_file_of_another_account_is_not_repaired_but_brought(tmp_path):
    """Who owns it may have it open, and write when all of it was read."""
    cache, of = seed(tmp_path)
    breaks(cache, of)
    os.chown(cache.blob(NAME, of.files[1].blob), 65534, 65534)
    work.lacking(cache, of, teller(tmp_path))
    assert not list(cache.partial(COMMIT).rglob(of.files[1].blob))


def test_a_seed_gives_no_pickle_that_the_user_has_not_allowed(tmp_path):
    cache, of = seed(tmp_path)
    first, *others = of.files
    odd = dataclasses.replace(of, files=(dataclasses.replace(first, path="pytorch_model.bin"), *others))
    made = work.Work(work.COPY, cache.home, NAME, COMMIT, host="b", manifest=odd)
    with pytest.raises(SparkError, match=r"pickle files.*artifacts_allow_pickle"):
        work.perform(made, teller(tmp_path))


def teller(tmp_path):
    return work.Teller(work.Work(work.CHECK, "/h", NAME), str(tmp_path / "progress.json"))


@pytest.mark.parametrize("change", [{"name": "org/other"}, {"revision": "b" * 40}])
def test_a_manifest_of_another_model_is_refused(tmp_path, change):
    _cache, of = seed(tmp_path)
    known = {"name": NAME, "revision": COMMIT, **change}
    made = work.Work(work.COPY, str(tmp_path / "b"), manifest=of, **known)
    with pytest.raises(SparkError, match="the manifest is of org/model aaaaaaaaaaaa"):
        work.perform(made, teller(tmp_path))


def test_what_is_told_meanwhile(tmp_path):
    now = [0.0]
    one = work.Teller(work.Work(work.COPY, "/h", NAME), str(tmp_path / "p.json"), lambda: now[0])
    one.phase("copying", 4 * 10**9)
    for _second in range(4):
        now[0] += 1.0
        one.add(5 * 10**8)
    told = work.progress(str(tmp_path / "p.json"))
    assert told.words == f"copying {NAME}: 2.0 of 4.0 GB, 500 MB/s, 4 s left"
    one.note("it was slow")
    one.end("it broke")
    assert work.words(work.progress(str(tmp_path / "p.json")))[-1] == "it was slow"


class Systemd:
    """systemctl and systemd-run of a node."""

    def __init__(self, *active):
        self.active = list(active)
        self.asked = []

    def __call__(self, argv):
        self.asked.append(list(argv))
        if argv[1] == "show":
            state = self.active.pop(0) if len(self.active) > 1 else self.active[0]
            return work_completed(f"LoadState=loaded\nActiveState={state}\n")
        return work_completed("")


def work_completed(out):
    from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed  # noqa: PLC0415

    return Completed(0, out)


def machine(tmp_path, *active):
    (tmp_path / "run/sparkmatrix").mkdir(parents=True, exist_ok=True)
    return Machine(root=str(tmp_path), runner=Systemd(*active), sleep=lambda _s: None)


def test_a_unit_is_started_with_a_file_that_only_root_reads(tmp_path):
    node = machine(tmp_path, "inactive")
    wanted = work.Work(work.COPY, "/h", NAME)
    work.start(node, wanted)
    path = tmp_path / "run/sparkmatrix/artifacts-work.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert work.read(str(path)) == wanted
    (started,) = [argv for argv in node.runner.asked if argv[0] == "systemd-run"]
    assert {"--property=Nice=15", "--property=CPUWeight=4", "--property=OOMScoreAdjust=500"} <= set(started)
    assert started[-3:] == [work.paths.NODE_PROGRAM, "artifacts", "work"]
    # It writes to the cache and to /run, for the service user to read.
    assert not [word for word in started if "ProtectSystem=strict" in word or "UMask" in word]
    other = machine(tmp_path, "active")
    with pytest.raises(SparkError, match="this node is preparing org/model"):
        work.start(other, work.Work(work.COPY, "/h", "org/other"))
    work.start(machine(tmp_path, "active"), wanted)  # the same model: what was on its way ends first


def test_who_waits_is_told_how_it_ended(tmp_path):
    wanted = work.Work(work.COPY, "/h", NAME)
    work.start(machine(tmp_path, "inactive"), wanted)
    one = work.Teller(wanted, str(tmp_path / "run/sparkmatrix/artifacts-progress.json"))
    assert not work.wait(machine(tmp_path, "active"), wanted.id, 0).ended
    with pytest.raises(SparkError, match="another run has taken over"):
        work.wait(machine(tmp_path, "active"), "0", 0)
    with pytest.raises(SparkError, match="it ended without a word while preparing org/model"):
        work.wait(machine(tmp_path, "inactive"), wanted.id, 0)
    one.end(result=work.Result(changed=True))
    assert work.wait(machine(tmp_path, "inactive"), wanted.id, 0).result.changed
    one.end("spark2 is silent")
    with pytest.raises(SparkError, match="spark2 is silent"):
        work.wait(machine(tmp_path, "inactive"), wanted.id, 0)


def test_a_run_begins_it_once_and_then_waits(tmp_path, monkeypatch):
    node = machine(tmp_path, "inactive", "active")
    monkeypatch.setattr(work, "Machine", lambda: node)
    told = {"kind": work.COPY, "home": "/h", "name": NAME, "part": 0}
    assert calls.run("model_work", told, True)["changed"] and not node.runner.asked
    first = calls.run("model_work", told, False)
    assert first["waiting"]["words"] == f"preparing {NAME}" and not first["changed"]
    assert calls.run("model_work", {**told, "part": 1e-9, "before": first["waiting"]}, False)["waiting"]
    assert len([argv for argv in node.runner.asked if argv[0] == "systemd-run"]) == 1


def test_a_fault_is_named(tmp_path, monkeypatch):
    def fail(*_given):
        raise KeyError("digest")

    task, told = tmp_path / "work.json", str(tmp_path / "progress.json")
    task.write_text(json.dumps({"kind": work.CHECK, "home": "/h", "name": NAME}))
    monkeypatch.setattr(work, "perform", fail)
    monkeypatch.setattr(work, "Teller", functools.partial(work.Teller, path=told))
    with pytest.raises(KeyError):
        work.run(str(task))
    assert "KeyError: 'digest'" in work.progress(told).problem


def test_what_an_engine_has_fetched_itself_is_read_and_not_fetched_again(tmp_path):
    cache, of = seed(tmp_path)
    own = Cache(str(tmp_path / "b"))
    os.makedirs(own.home)
    shutil.copytree(f"{cache.home}/hub", f"{own.home}/hub", symlinks=True)
    assert look.held(own, NAME, "").state == look.FOREIGN
    made = work.Work(work.COPY, own.home, NAME, COMMIT, manifest=of)
    assert work.perform(made, teller(tmp_path)).changed
    assert look.held(own, NAME, "").state == look.WHOLE


def test_what_an_interrupted_copy_has_left_does_not_replace_what_has_come_since(tmp_path):
    cache, of = seed(tmp_path)
    own = Cache(str(tmp_path / "b"))
    os.makedirs(own.home)
    # A copy that was interrupted had begun a file. Then the engine fetched the model itself, without another one.
    begun = own.partial(COMMIT) / "blobs" / of.files[1].blob
    begun.parent.mkdir(parents=True)
    begun.write_bytes(b"half")
    shutil.copytree(f"{cache.home}/hub", f"{own.home}/hub", symlinks=True)
    own.blob(NAME, of.files[0].blob).unlink()
    assert copied(tmp_path, of).sources == {"seed": of.files[0].size}
    assert content(own) == CONTENT and look.held(own, NAME, "").state == look.WHOLE
