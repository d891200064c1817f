# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import pwd
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import trusted

ME = pwd.getpwuid(os.getuid()).pw_name
PYTHON = "/opt/engine/bin/python"


@pytest.fixture
def node(tmp_path: Path) -> Path:
    (tmp_path / "opt/engine/bin").mkdir(parents=True)
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/python3").touch(0o755)
    (tmp_path / PYTHON[1:]).symlink_to(tmp_path / "usr/bin/python3")
    for place in tmp_path.rglob("*"):
        if not place.is_symlink():
            place.chmod(0o755)
    return tmp_path


def judged(node: Path, *users: str) -> str:
    return trusted.distrusted(PYTHON, users or (ME,), str(node))


def test_roots_own_and_the_service_users(node: Path) -> None:
    assert judged(node) == ""
    assert judged(node, ME, "no-such-account") == ""


@pytest.mark.parametrize("place", ["opt", "opt/engine", "opt/engine/bin", "usr/bin"])
def test_who_may_write_on_the_way_may_change_it(node: Path, place: str) -> None:
    (node / place).chmod(0o757)
    assert judged(node) == f"everybody may write to /{place}"


def test_a_directory_where_each_has_only_his_own(node: Path) -> None:
    (node / "opt").chmod(0o1777)
    assert judged(node) == ""


@pytest.mark.parametrize(
    ("uid", "gid", "mode", "said"),
    [
        (4711, 0, 0o755, "/opt belongs to the account 4711"),
        (0, 4711, 0o775, "a group of users may write to /opt"),
        (0, 50, 0o775, ""),  # staff, as Debian has it
        (0, 4711, 0o755, ""),
    ],
)
def test_owners_and_groups(node: Path, uid: int, gid: int, mode: int, said: str) -> None:
    real, told = os.stat, SimpleNamespace(st_uid=uid, st_gid=gid, st_mode=0o040000 | mode)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trusted.os, "stat", lambda place: told if place == str(node / "opt") else real(place))
        assert judged(node) == said


def test_a_link_of_somebody_else_may_lead_elsewhere_tomorrow(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.lstat
    told = SimpleNamespace(st_uid=4711)
    monkeypatch.setattr(trusted.os, "lstat", lambda place: told if place.endswith(PYTHON) else real(place))
    monkeypatch.setattr(trusted.os.path, "realpath", lambda path: path)  # it asks for the same of each part
    assert judged(node) == f"{PYTHON} belongs to the account 4711"


def test_what_is_not_there(node: Path) -> None:
    assert trusted.distrusted("/opt/none/bin/python", (ME,), str(node)) == ""
