# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Archives of the chat page: what comes back is what was there, and nothing else ever does."""

from __future__ import annotations

import io
import json
import os
import shutil
import sqlite3
import stat
import tarfile
import tempfile
from contextlib import closing, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import calls
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._web_ui import data

KEY = "k" * 40
ABOUT = {"version": 1, "program": "0.12.4", "key": KEY}
NOBODY = 65534


@pytest.fixture
def place(tmp_path):
    """A page that runs: its database has what is in no file but the log of changes."""
    here = tmp_path / "web-ui"
    (here / "uploads").mkdir(parents=True)
    (here / "cache").mkdir()
    (here / "cache/model.bin").write_text("big")
    (here / "uploads/letter.txt").write_text("Dear")
    (here / "uploads/notes-wal").write_text("no log of a database")
    (here / "uploads/link").symlink_to("/etc/passwd")
    os.mkfifo(here / "uploads/pipe")
    database = sqlite3.connect(here / data.DATABASE)
    database.execute("pragma journal_mode=wal")
    database.execute("create table chat (words text)")
    database.execute("insert into chat values ('hello')")
    database.commit()
    yield here
    database.close()


@pytest.fixture
def archive(place, tmp_path):
    made = tmp_path / "backups/one.tar.gz"
    data.backup(str(place), made, ABOUT)
    return made


def unpack(archive, target):
    return data.unpack(str(archive), target, os.getuid(), os.getgid())


def words(place):
    with closing(sqlite3.connect(place / data.DATABASE)) as database:
        return database.execute("select words from chat").fetchall()


def test_there_and_back(place, archive, tmp_path):
    assert stat.S_IMODE(os.stat(archive).st_mode) == 0o600
    assert unpack(archive, tmp_path / "new") == ("0.12.4", KEY)
    kept = data.put(tmp_path / "new", str(place), 1_795_000_000.0)
    assert words(place) == [("hello",)] and (place / "uploads/letter.txt").read_text() == "Dear"
    assert sorted(path.name for path in place.rglob("*")) == ["letter.txt", "notes-wal", "uploads", data.DATABASE]
    assert Path(kept).name == "web-ui.before-20261118T110640Z" and words(Path(kept)) == [("hello",)]
    assert os.listdir(tmp_path / "backups") == [archive.name]


def test_the_call(place, tmp_path, monkeypatch):
    account = SimpleNamespace(pw_uid=os.getuid(), pw_gid=os.getgid())
    monkeypatch.setattr(data.pwd, "getpwnam", lambda _name: account)
    monkeypatch.setattr(data, "LOCK", str(tmp_path / "lock"))
    monkeypatch.setattr(data.managed_secret, "parse", lambda _text: "")
    asked = {"state": "saved", "data_dir": str(place), "folder": str(tmp_path / "backups"), "program": "0.12.4"}
    calls.run("web_ui_data", asked, check=True)
    assert not (tmp_path / "backups").exists()
    made = calls.run("web_ui_data", asked, check=False)["archive"]
    asked = {"state": "restored", "data_dir": str(place), "archive": made}
    assert calls.run("web_ui_data", asked, check=True)["kept"] == ""
    done = calls.run("web_ui_data", asked, check=False)
    assert words(Path(done["kept"])) == words(place) and done["program"] == "0.12.4"


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda place: (place / data.DATABASE).unlink(), "nothing to back up"),
        (lambda place: (place / "broken.db").write_bytes(b"SQLite format 3\0" + b"x" * 5000), "broken.db"),
    ],
)
def test_what_cannot_be_copied_is_no_backup(place, tmp_path, damage, says):
    damage(place)
    with pytest.raises(SparkError, match=says):
        data.backup(str(place), tmp_path / "backups/one", ABOUT)
    assert not list(tmp_path.glob("backups/*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can read more than the account of the page")
def test_root_reads_nothing_for_the_account(place, tmp_path):
    with tempfile.TemporaryDirectory() as open_to_all:
        os.chmod(open_to_all, 0o755)
        here = Path(
            shutil.copytree(place, Path(open_to_all, "web-ui"), ignore=shutil.ignore_patterns("pipe"), symlinks=True)
        )
        for path in (here, *here.rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        data.backup(str(here), tmp_path / "first", ABOUT)
        secret = here / "secret"
        secret.write_text("of root")
        secret.chmod(0o600)
        with pytest.raises(SparkError, match=r"Permission denied.* chown it"):
            data.backup(str(here), tmp_path / "second", ABOUT)
        assert not list(tmp_path.glob("second*")) and os.listdir(open_to_all) == ["web-ui"]


def regular(name):
    return tarfile.TarInfo(name)


def link(name):
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return entry


def about(**changes):
    return (regular(data.LIST), json.dumps({**ABOUT, **changes}).encode())


TRICKS = {
    "a file outside": lambda m: [*m, (regular("data/../../evil"), b"x")],
    "a file of the root": lambda m: [*m, (regular("/etc/cron.d/evil"), b"x")],
    "a file twice": lambda m: [*m, m[1]],
    "a link": lambda m: [*m, (link("data/evil"), b"")],
    "no list": lambda m: m[1:],
    "a list that is none": lambda m: [(m[0][0], b"[]"), *m[1:]],
    "another version": lambda m: [about(version=2), *m[1:]],
    "no database": lambda m: [one for one in m if one[0].name != f"data/{data.DATABASE}"],
    "a database that is none": lambda m: [*m, (regular("data/x.db"), b"SQLite format 3\0" + b"x" * 5000)],
    "a key with lines": lambda m: [about(key="a" * 20 + "\nb"), *m[1:]],
    # As releases before this one wrote it.
    "": lambda m: [about(files={"webui.db": {"size": 1, "sha256": ""}}), *m[1:]],
}


@pytest.mark.parametrize("trick", TRICKS)
def test_any_other_archive_is_refused(archive, tmp_path, trick):
    with tarfile.open(archive) as opened:
        members = [(entry, opened.extractfile(entry).read()) for entry in opened]
    bad = tmp_path / "bad.tar.gz"
    with tarfile.open(bad, "w:gz") as made:
        for entry, content in TRICKS[trick](members):
            entry.size = len(content) if entry.isreg() else 0
            made.addfile(entry, io.BytesIO(content))
    bad.chmod(0o600)
    with pytest.raises(SparkError, match="refused") if trick else nullcontext():
        unpack(bad, tmp_path / "new")
    assert not list(tmp_path.glob("**/evil"))


def test_what_others_may_write_or_what_is_cut_off_is_refused(archive, tmp_path):
    archive.chmod(0o640)
    with pytest.raises(SparkError, match="only root"):
        unpack(archive, tmp_path / "new")
    archive.chmod(0o600)
    archive.write_bytes(archive.read_bytes()[:-400])
    with pytest.raises(SparkError, match="refused"):
        unpack(archive, tmp_path / "new2")
    with pytest.raises(SparkError, match="cannot be read"):
        unpack(tmp_path / "none", tmp_path / "new3")
