# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import stat
import threading
from pathlib import Path

from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._access import named_pipe


def test_one_reader_gets_it(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    named_pipe.hand_over(path, "s3crét")
    assert stat.S_ISFIFO(path.stat().st_mode) and path.stat().st_mode & 0o777 == 0o600
    assert path.read_text() == "s3crét"


def test_no_file_takes_the_place_of_a_pipe_that_is_gone(tmp_path: Path) -> None:
    named_pipe._write(tmp_path / "gone", "s3cret")
    assert list(tmp_path.iterdir()) == []


def test_who_never_reads_holds_up_nothing(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    named_pipe.hand_over(tmp_path / "secret", "s3cret")
    assert all(thread.daemon for thread in set(threading.enumerate()) - before)
    (tmp_path / "secret").read_text()
