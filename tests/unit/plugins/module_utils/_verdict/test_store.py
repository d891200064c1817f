# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict import store
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import Run

RUN = Run("desk", "verify", "2026-11-23T07:30:00Z", 12.5, "0.1.0")


def later(number: int) -> Run:
    return replace(RUN, at=f"2026-11-23T08:{number:02}:00Z")


def test_the_newest_runs_are_kept_and_read_first(tmp_path):
    root = str(tmp_path)
    assert store.keep(RUN, root) == f"{paths.VERDICTS}/20261123T073000Z-verify.json"
    for number in range(store.KEPT):
        store.keep(later(number), root)
    runs, refused = store.read(root=root)
    assert [len(runs), runs[0], refused] == [store.KEPT, later(store.KEPT - 1), []]
    assert RUN not in runs
    assert store.read(1, root)[0] == runs[:1]


def test_only_root_reads_them(tmp_path):
    file = tmp_path / store.keep(RUN, str(tmp_path)).lstrip("/")
    assert [file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777] == [0o600, 0o700]


def test_one_that_is_damaged_does_not_hide_the_others(tmp_path):
    root = str(tmp_path)
    path = store.keep(later(1), root)
    (tmp_path / path.lstrip("/")).write_text('{"schema": 9}')
    store.keep(RUN, root)
    runs, refused = store.read(root=root)
    assert runs == [RUN]
    assert "verdicts of schema '9'" in refused[0] and path in refused[0]


def test_a_time_of_no_sense_is_refused(tmp_path):
    with pytest.raises(SparkError, match="expected a time like"):
        store.keep(replace(RUN, at="../../etc"), str(tmp_path))


def test_all_can_be_forgotten(tmp_path):
    root = str(tmp_path)
    store.keep(RUN, root)
    assert store.forget(root, check_mode=True) and store.read(root=root)[0]
    assert store.forget(root) and not store.forget(root)
    assert not (tmp_path / paths.VERDICTS.lstrip("/")).exists()


def test_a_playbook_keeps_reads_and_forgets(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(store, "keep", kept.append)
    monkeypatch.setattr(store, "read", lambda: ([RUN], ["damaged"]))
    monkeypatch.setattr(store, "forget", lambda check_mode: check_mode)
    assert store.verdicts(store.Request(run=RUN), True) == store.Kept() and not kept
    assert store.verdicts(store.Request(run=RUN), False) == store.Kept() and kept == [RUN]
    assert store.verdicts(store.Request("read"), False) == store.Kept(runs=(RUN,), refused=("damaged",))
    assert store.verdicts(store.Request("absent"), True).changed
