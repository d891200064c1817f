# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

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
from contextlib import closing
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._web_ui import data

NOW = 1_795_000_000.0
KEY = "k" * 40
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
    return data.backup(str(place), str(tmp_path / "backups"), "0.12.4", KEY, NOW)


def words(place):
    with closing(sqlite3.connect(place / data.DATABASE)) as database:
        return database.execute("select words from chat").fetchall()


def test_there_and_back(place, archive, tmp_path):
    assert stat.S_IMODE(os.stat(archive.path).st_mode) == 0o600
    assert (archive.files, archive.program) == (3, "0.12.4")
    (place / "uploads/letter.txt").unlink()
    found, kept = data.restore(archive.path, str(place), os.getuid(), os.getgid(), NOW)
    assert (found.program, found.key, found.files) == ("0.12.4", KEY, 3)
    assert words(place) == [("hello",)] and (place / "uploads/letter.txt").read_text() == "Dear"
    assert sorted(path.name for path in place.rglob("*")) == ["letter.txt", "notes-wal", "uploads", data.DATABASE]
    assert Path(kept).name == "web-ui.before-20261118T110640Z" and words(Path(kept)) == [("hello",)]
    assert os.listdir(tmp_path / "backups") == [Path(archive.path).name] and not Path(f"{place}.new").exists()


def test_without_data_there_is_nothing_to_back_up(tmp_path):
    with pytest.raises(SparkError, match="nothing to back up"):
        data.backup(str(tmp_path), str(tmp_path / "backups"), "", "", NOW)


def test_a_damaged_database_is_no_backup(place, tmp_path):
    (place / "broken.db").write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    with pytest.raises(SparkError, match=r"cannot be copied"):
        data.backup(str(place), str(tmp_path / "backups"), "", "", NOW)
    assert os.listdir(tmp_path / "backups") == []


def test_a_file_that_the_account_cannot_read_is_not_left_out_silently(place, tmp_path, monkeypatch):
    real = os.open

    def refusing(path, *arguments, **options):
        if path == "letter.txt":
            raise PermissionError(13, "Permission denied")
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refusing)
    with pytest.raises(SparkError, match=r"cannot be copied.*Permission denied.* chown it"):
        data.backup(str(place), str(tmp_path / "backups"), "", "", NOW)
    assert os.listdir(tmp_path / "backups") == []


def test_a_file_that_is_larger_than_the_disk_is_not_begun(place, tmp_path):
    with open(place / "uploads/endless", "wb") as sparse:
        sparse.truncate(1 << 43)
    with pytest.raises(SparkError, match=r"endless' has 8388608 MiB, and \d+ are free.* Make room"):
        data.backup(str(place), str(tmp_path / "backups"), "", "", NOW)
    assert os.listdir(tmp_path / "backups") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can read more than the account of the page")
def test_root_reads_nothing_for_the_account(place, tmp_path):
    """Whatever is swapped in between: the reading itself has the rights of the account."""
    with tempfile.TemporaryDirectory() as open_to_all:
        os.chmod(open_to_all, 0o755)
        here = Path(
            shutil.copytree(place, Path(open_to_all, "web-ui"), ignore=shutil.ignore_patterns("pipe"), symlinks=True)
        )
        for path in (here, *here.rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        assert data.backup(str(here), str(tmp_path / "first"), "", "", NOW).files == 3
        with closing(sqlite3.connect(tmp_path / "secret.db")) as secret:
            secret.execute("create table key (words text)")
            secret.commit()
        os.replace(tmp_path / "secret.db", here / "secret.db")  # root's, 0644
        os.chmod(here / "secret.db", 0o600)
        with pytest.raises(SparkError, match="Permission denied"):
            data.backup(str(here), str(tmp_path / "second"), "", "", NOW)
        assert os.listdir(open_to_all) == ["web-ui"]


@pytest.mark.parametrize("entry", [tarfile.TarInfo("data/../x"), tarfile.TarInfo("list.json"), None])
def test_what_the_account_sends_is_read_strictly(tmp_path, entry):
    sent = io.BytesIO()
    with tarfile.open(fileobj=sent, mode="w|") as out:
        if entry:
            out.addfile(entry)
    sent.seek(0)
    (tmp_path / "copy").mkdir()
    with pytest.raises(SparkError, match="no file of it" if entry else "ended early"):
        data._receive(sent, tmp_path / "copy", "/data")
    assert os.listdir(tmp_path) == ["copy"] and os.listdir(tmp_path / "copy") == []


def entries(path):
    with tarfile.open(path) as opened:
        return [(entry, opened.extractfile(entry).read()) for entry in opened]


def packed(path, members):
    with tarfile.open(path, "w:gz") as made:
        for entry, content in members:
            entry.size = len(content) if entry.isreg() else 0
            made.addfile(entry, io.BytesIO(content))
    os.chmod(path, 0o600)


def regular(name):
    return tarfile.TarInfo(name)


def link(name):
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return entry


def listed(members, **changes):
    document = json.loads(members[0][1])
    document.update(changes)
    return [(members[0][0], json.dumps(document).encode()), *members[1:]]


def files_of(members):
    return json.loads(members[0][1])["files"]


NOTHING = {"size": 0, "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}
TRICKS = {
    "a further file": lambda m: [*m, (regular("data/more"), b"x")],
    "a file outside": lambda m: [*m, (regular("../../etc/cron.d/x"), b"x")],
    "a file of the root": lambda m: [*m, (regular("/etc/cron.d/x"), b"x")],
    "a file twice": lambda m: [*m, m[1]],
    "a link of a listed name": lambda m: [
        *listed(m, files={**files_of(m), "evil": NOTHING}),
        (link("data/evil"), b""),
    ],
    "a listed way out": lambda m: [
        *listed(m, files={**files_of(m), "../evil": NOTHING}),
        (regular("data/../evil"), b""),
    ],
    "another content": lambda m: [*m[:-1], (m[-1][0], m[-1][1][:-1] + b"?")],
    "one that is missing": lambda m: m[:-1],
    "no list": lambda m: m[1:],
    "a list that is none": lambda m: [(m[0][0], b"[]"), *m[1:]],
    "no text of one": lambda m: [(m[0][0], b"{"), *m[1:]],
    "another version": lambda m: listed(m, version=2),
    "no database": lambda m: listed(m, files={"x": NOTHING}),
    "a size below nothing": lambda m: listed(m, files={**files_of(m), data.DATABASE: {"size": -1, "sha256": ""}}),
    "a key with lines": lambda m: listed(m, key="a" * 20 + "\nb"),
}


def test_what_the_tricks_are_made_of_is_fine(place, archive, tmp_path):
    good = tmp_path / "good.tar.gz"
    packed(good, entries(archive.path))
    assert data.unpack(str(good), tmp_path / "new").files == 3


@pytest.mark.parametrize("trick", TRICKS)
def test_any_other_archive_is_refused_and_nothing_changes(place, archive, tmp_path, trick):
    bad = tmp_path / "bad.tar.gz"
    packed(bad, TRICKS[trick](entries(archive.path)))
    before = sorted(place.rglob("*"))
    with pytest.raises(SparkError, match="refused"):
        data.restore(str(bad), str(place), os.getuid(), os.getgid(), NOW)
    assert sorted(place.rglob("*")) == before and not Path(f"{place}.new").exists()
    assert not list(tmp_path.glob("**/evil"))


def test_what_others_may_write_or_what_is_cut_off_is_refused(place, archive, tmp_path):
    os.chmod(archive.path, 0o640)
    with pytest.raises(SparkError, match="only root"):
        data.unpack(archive.path, tmp_path / "new")
    os.chmod(archive.path, 0o600)
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes(Path(archive.path).read_bytes()[:-400])
    os.chmod(cut, 0o600)
    with pytest.raises(SparkError, match="refused"):
        data.unpack(str(cut), tmp_path / "new")
    with pytest.raises(SparkError, match="cannot be read"):
        data.unpack(str(tmp_path / "none"), tmp_path / "new")


def test_it_is_not_unpacked_into_a_full_disk(archive, tmp_path):
    with pytest.raises(SparkError, match="are free"):
        data.unpack(archive.path, tmp_path / "new", free=10)
    assert not (tmp_path / "new").exists()
