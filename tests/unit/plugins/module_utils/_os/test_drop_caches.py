# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils import _node_program
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._os import drop_caches

MEMINFO = "MemFree: 1048576 kB\nMemAvailable: 2097152 kB\nCached: 3145728 kB\n"


def test_drop(tmp_path):
    (tmp_path / "proc/sys/vm").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(MEMINFO)
    order = []

    def sync():
        order.append((tmp_path / "proc/sys/vm/drop_caches").exists())
        (tmp_path / "proc/meminfo").write_text(MEMINFO.replace("3145728", "0"))

    dropped = drop_caches.drop(str(tmp_path), sync)
    assert order == [False]  # synced before the write
    assert (tmp_path / "proc/sys/vm/drop_caches").read_text() == "3\n"
    assert str(dropped) == "Caches dropped: MemAvailable 2.0 -> 2.0 GiB, MemFree 1.0 -> 1.0 GiB, Cached 3.0 -> 0.0 GiB"


def test_not_permitted(tmp_path):
    with pytest.raises(SparkError, match=r"drop_caches: cannot drop the caches: .*Run as root"):
        drop_caches.drop(str(tmp_path), lambda: None)


def test_subcommand(monkeypatch, capsys):
    done = drop_caches.Dropped({"MemFree": 0}, {"MemFree": 2**30})
    monkeypatch.setattr(drop_caches, "drop", lambda: done)
    assert _node_program.main(["drop-caches"]) == 0
    assert "MemFree 0.0 -> 1.0 GiB" in capsys.readouterr().out
    assert _node_program.main(["drop-caches", "--quiet"]) == 0
    assert capsys.readouterr().out == ""

    def refuse():
        raise SparkError("cannot", "/proc")

    monkeypatch.setattr(drop_caches, "drop", refuse)
    assert _node_program.main(["drop-caches"]) == 1
    assert capsys.readouterr().err == "/proc: cannot.\n"


@pytest.mark.parametrize("argv", [["--version"], ["--help"], ["drop-caches", "--help"]])
def test_help_and_version(argv, capsys):
    with pytest.raises(SystemExit) as caught:
        _node_program.main(argv)
    assert caught.value.code == 0
    assert "sparkmatrix-node" in capsys.readouterr().out


@pytest.mark.parametrize("argv", [[], ["odd"], ["drop-caches", "--odd"]])
def test_wrong_usage(argv, capsys):
    with pytest.raises(SystemExit) as caught:
        _node_program.main(argv)
    assert caught.value.code == 2


def test_version_is_that_of_the_collection():
    galaxy = Path(_node_program.__file__).resolve().parents[2] / "galaxy.yml"
    assert re.search(r"^version: (\S+)$", galaxy.read_text(), re.M).group(1) == _node_program.VERSION
