# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What an engine keeps of prompts on disk: whose it is, how much it may be, and what a killed one leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import prefixes
from module_runner import arguments

COLLECTIONS = Path(__file__).resolve().parents[5] / "collections"
BASE, MODEL = "/var/lib/sparkmatrix/prefixes/engine", "/models/m"
FULL = 16384  # of a file on the disk, in whole blocks


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / prefixes.BOOT[1:]).write_text("boot 1\n")
    for path in (BASE, MODEL):
        (tmp_path / path[1:]).mkdir(parents=True)
    (tmp_path / MODEL[1:] / "model.safetensors").write_bytes(b"weights")
    return tmp_path


def node(root: Path, active: str = "inactive") -> Machine:
    def runner(argv: Sequence[str]) -> Completed:
        return Completed(0, f"Id={argv[-1]}\nActiveState={active}\nLoadState=loaded\n", "")

    return Machine(root=str(root), runner=runner)


def kept(key: str = "abc", limit: int = 10 * FULL, models: Sequence[str] = (MODEL,)) -> prefixes.Kept:
    return prefixes.Kept(BASE, key, limit, "sparkmatrix-engine.service", models, "sha256:1")


def block(root: Path, name: str, at: float = 0.0, size: int = FULL, key: str = "abc") -> Path:
    path = root / BASE[1:] / key / "m_0123_r0" / name[:3] / f"{name}.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(size))
    os.utime(path, (at, at))
    return path


def test_a_restart_keeps_what_the_same_engine_has_computed(root):
    prefixes.prepare(kept(), node(root))
    mine = block(root, "aaa1", time.time())
    said = prefixes.prepare(kept(), node(root))
    assert mine.exists() and said == ["0.0 GB of computed prompts in 1 files, of at most 0 GB"]
    assert (root / BASE[1:] / "abc").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("what", ["image", "weights", "revision", "gone", "no mark", "broken mark"])
def test_what_was_computed_otherwise_is_never_read(root, what):
    model = root / MODEL[1:]
    (model / "snapshots").symlink_to("../blobs/1")
    prefixes.prepare(kept(), node(root))
    mine = block(root, "aaa1", time.time())
    mark = root / BASE[1:] / f"abc{prefixes.MARK}"
    if what == "weights":
        (model / "model.safetensors").write_bytes(b"WEIGHTS")
    elif what == "revision":
        (model / "snapshots").unlink()
        (model / "snapshots").symlink_to("../blobs/2")
    elif what == "gone":
        (model / "model.safetensors").unlink()
    elif what == "no mark":
        mark.unlink()
    elif what == "broken mark":
        mark.write_text("{")
    prefixes.prepare(replace(kept(), mark="sha256:2") if what == "image" else kept(), node(root))
    assert not mine.exists()
    assert sorted(path.name for path in (root / BASE[1:]).iterdir()) == ["abc", f"abc{prefixes.MARK}"]


@pytest.mark.parametrize(("ended", "stays"), [(True, True), (False, False)])
def test_models_that_take_turns_have_theirs_each_and_those_of_the_other_go_first(root, ended, stays):
    one, other = kept(), kept(key="def")
    prefixes.prepare(one, node(root))
    mine = [block(root, f"{number:03d}x", 1000.0 + number) for number in range(8)]
    if ended:
        prefixes.end(one, node(root))
    (root / prefixes.BOOT[1:]).write_text("boot 2\n")
    prefixes.prepare(other, node(root))
    for number in range(3):
        block(root, f"{number:03d}x", 5000.0 + number, key="def")
    assert prefixes.bound(other, node(root)) == (9 * FULL, 9)
    assert [path.exists() for path in mine] == [False, False, *[True] * 6]
    prefixes.prepare(one, node(root))
    assert mine[-1].exists() is stays, "who is another one is judged when it starts again"


@pytest.mark.parametrize(("ended", "stays"), [(True, True), (False, False)])
def test_after_a_boot_files_are_believed_where_the_last_one_had_an_end(root, ended, stays):
    prefixes.prepare(kept(), node(root))
    mine = block(root, "aaa1", time.time())
    if ended:
        prefixes.end(kept(), node(root))
    (root / prefixes.BOOT[1:]).write_text("boot 2\n")
    said = prefixes.prepare(kept(), node(root))
    assert mine.exists() is stays and ("went down without an end" in said[0]) is not stays


def test_an_engine_that_runs_keeps_its_files_whatever_has_become_of_the_model(root):
    prefixes.prepare(kept(), node(root))
    mine = block(root, "aaa1", time.time())
    (root / MODEL[1:] / "model.safetensors").write_bytes(b"WEIGHTS")
    prefixes.prepare(kept(), node(root, "active"))
    assert mine.exists()
    prefixes.prepare(kept(), node(root))
    assert not mine.exists()


def test_nothing_is_kept_for_a_model_that_is_not_found(root):
    for _start in range(2):
        prefixes.prepare(kept(models=["/models/elsewhere"]), node(root))
        assert not list((root / BASE[1:] / "abc").iterdir())
        block(root, "aaa1", time.time())


def test_others_that_cannot_be_removed_are_an_error(root, monkeypatch):
    block(root, "aaa1", key="other")  # nothing says of what
    monkeypatch.setattr(machine, "run", lambda argv, _seconds: Completed(1, "", "Read-only file system"))
    with pytest.raises(SparkError, match=f"{BASE}/other.*cannot be removed"):
        prefixes.prepare(kept(), node(root))


def test_what_never_ends_is_not_read(root):
    """An engine that was taken over may make a pipe where a file is read; nobody writes into it."""
    prefixes.prepare(kept(), node(root))
    pipe, mark = root / BASE[1:] / "abc/pipe", root / BASE[1:] / f"abc{prefixes.MARK}"
    mark.unlink()
    for path in (pipe, mark):
        os.mkfifo(path)
        os.utime(path, (time.time() + 9999,) * 2)
    prefixes.end(kept(), node(root))
    prefixes.prepare(kept(), node(root))
    assert mark.is_file()


def test_a_link_in_its_place_leads_nowhere(root):
    other = root / "precious"
    other.mkdir()
    (other / "file").write_text("x")
    (root / BASE[1:] / "old").symlink_to(other)
    prefixes.prepare(kept(), node(root))
    (root / BASE[1:] / "abc" / "link").symlink_to(other)
    prefixes.bound(kept(limit=0), node(root))
    assert (other / "file").exists() and not (root / BASE[1:] / "old").exists()


def test_the_oldest_files_go_first_until_a_tenth_is_free(root):
    prefixes.prepare(kept(), node(root))
    paths = [block(root, f"{number:03d}x", 1000.0 + number) for number in range(12)]
    os.utime(paths[0], (5000.0, 1000.0))  # read since
    assert prefixes.bound(kept(), node(root)) == (9 * FULL, 9)
    assert [path.exists() for path in paths] == [True, False, False, False, *[True] * 8]
    assert not paths[1].parent.exists()
    assert prefixes.bound(kept(), node(root)) == (9 * FULL, 9)


def test_a_twentieth_of_the_disk_stays_free(root, monkeypatch):
    prefixes.prepare(kept(limit=10**15), node(root))
    for number in range(4):
        block(root, f"{number:03d}x", 1000.0 + number)
    disk = SimpleNamespace(f_frsize=FULL, f_blocks=100, f_bavail=3)
    monkeypatch.setattr(prefixes.os, "statvfs", lambda path: disk)
    assert prefixes.bound(kept(limit=10**15), node(root)) == (FULL, 1)


def test_a_full_disk_ends_no_start_and_what_has_no_mark_is_nobodys(root, monkeypatch):
    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    prefixes.prepare(kept(), node(root))
    prefixes.end(kept(), node(root))
    mine = block(root, "aaa1", time.time())
    with monkeypatch.context() as patched:
        patched.setattr(prefixes.json, "dump", full)
        prefixes.prepare(kept(), node(root))
    assert mine.exists(), "it is of the same files, so this engine reads it"
    prefixes.prepare(kept(), node(root))
    assert not mine.exists(), "nobody knows whether the machine went down since"


def test_files_are_looked_at_when_the_limit_may_be_reached(root, monkeypatch):
    free, looked = iter([100, 100, 99, 60, 40, 40, 40]), []

    class Enough(Exception):
        pass

    def sleep(_seconds: float) -> None:
        if len(looked) == 2:
            raise Enough

    monkeypatch.setattr(prefixes, "_free", lambda base: next(free))
    monkeypatch.setattr(prefixes, "bound", lambda kept, machine: looked.append(1) or (20, 1))
    machine = node(root)
    machine.sleep, machine.clock = sleep, lambda: 0.0
    with pytest.raises(Enough):
        prefixes.watch(kept(limit=100), machine)
    assert next(free) == 40  # asked five times, looked twice


@pytest.mark.parametrize("told", [True, False])
def test_the_program_is_ready_stays_and_ends_with_the_engine(tmp_path, told):
    """Also where systemd says nothing at its end; then nobody has seen that the engine has ended, too."""
    base, systemctl = tmp_path / "prefixes", tmp_path / "bin/systemctl"
    base.mkdir()
    systemctl.parent.mkdir()
    systemctl.write_text("#!/bin/sh\necho Id=x.service; echo LoadState=loaded; echo ActiveState=inactive\n")
    systemctl.chmod(0o755)
    argv = [str(base), "--key", "abc", "--limit-gb", "1", "--unit", "x.service", "--model", str(tmp_path)]
    assert arguments(prefixes, *argv).limit_gb == 1
    code = (
        "import sys\n"
        "from ansible_collections.sparkmatrix.cluster.plugins.module_utils._node_program import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    started = subprocess.Popen(
        [sys.executable, "-B", "-c", code, "prefixes", *argv],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(COLLECTIONS), "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
    )
    said = started.stdout.readline()
    if not told:
        systemctl.write_text("#!/bin/sh\nexit 1\n")
    started.send_signal(signal.SIGTERM)
    assert (said, started.wait(20)) == ("0.0 GB of computed prompts in 0 files, of at most 1 GB\n", 0)
    assert (json.loads((base / f"abc{prefixes.MARK}").read_text())["boot"] == prefixes.ENDED) is told
