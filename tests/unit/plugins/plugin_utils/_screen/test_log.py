# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pathlib

from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._screen import log


def test_a_log_is_its_users_alone_and_the_oldest_go(tmp_path):
    folder = tmp_path / "a/b"
    folder.mkdir(parents=True)
    for day in range(25):
        (folder / f"202601{day + 1:02}-000000-1-site.log").write_text("")
    (folder / "mine.log").write_text("")
    with log.create(folder, "/x/playbooks/plan.yml") as stream:
        stream.write("one\n")
        path = pathlib.Path(stream.name)
        assert path.read_text() == "one\n"  # at once: a run may be killed
    assert path.stat().st_mode & 0o777 == 0o600 and path.name.endswith("-plan.log")
    kept = sorted(found.name for found in folder.glob("2*.log"))
    assert len(kept) == log.KEPT and path.name in kept and "20260106-000000-1-site.log" not in kept
    assert (folder / "mine.log").exists()


def test_the_folder_is_the_users(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert log.default_folder() == tmp_path / "sparkmatrix/logs"
    monkeypatch.setenv("XDG_STATE_HOME", "")
    monkeypatch.setenv("HOME", "/home/me")
    assert log.default_folder() == pathlib.Path("/home/me/.local/state/sparkmatrix/logs")


def test_colours_stay_out():
    assert log.plain("\x1b[0;31mred\x1b[0m\n+\x1b[K") == "red\n+"


def test_what_a_machine_says_acts_on_no_terminal():
    assert "\x07" not in log.plain("\x07\x1b[0m")
