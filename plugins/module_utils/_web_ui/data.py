# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What the chat page keeps, as one archive, and back.

Databases are copied by SQLite itself, so the page goes on meanwhile. The archive has the page's own key as well: what
is encrypted with it could not be read without. Whoever reads the data or unpacks an archive is a process with the
rights of the page's account: root would follow what that account, or who made the archive, puts there.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pwd
import shutil
import sqlite3
import stat
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, json_text, paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Flag, Words
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine, alone
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import secret as managed_secret
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._web_ui import names

LOCK = f"{paths.RUN}/web-ui.lock"
VERSION = 1
LIST = "list.json"  # the first file of an archive: its version, the release of the page, the page's key
DATABASE = "webui.db"  # without it there is nothing to bring back
MAX_LIST = 256 << 20  # bytes; archives of earlier releases name all files there
_MAGIC = b"SQLite format 3\0"
_BESIDE = ("-wal", "-shm", "-journal")  # of a database, and in it after the copy
_LEFT_OUT = "cache"  # made anew
_SCRATCH = ".web-ui-backup-"
_CHANGED_NOTHING = "Take another one; what is there now has not been changed"


@dataclass(frozen=True)
class Request:
    """``saved``: one archive of ``data_dir`` in ``folder``, and the page may run. ``restored``: ``archive`` in place of
    the data, which stay beside it; the page must not run."""

    state: str = field(metadata=document.one_of("saved", "restored"))
    data_dir: str
    folder: str = ""
    archive: str = ""
    program: str = ""  # release of the page, noted in the archive


@dataclass
class Answer:
    """``kept``: where the data of before are now."""

    archive: Words
    program: Words
    kept: Words = ""
    changed: Flag = True


def move(request: Request, check: bool) -> Answer:
    """Save or bring back. In check mode an archive to restore is read whole."""
    with alone(Machine(), "the chat page", LOCK):
        return (_saved if request.state == "saved" else _restored)(request, check)


def _saved(request: Request, check: bool) -> Answer:
    target = Path(request.folder, time.strftime("web-ui-%Y%m%dT%H%M%SZ.tar.gz", time.gmtime()))
    if not check:
        key = managed_secret.parse(Machine().read(paths.WEB_UI_KEY) or "")
        backup(request.data_dir, target, {"version": VERSION, "program": request.program, "key": key})
    return Answer(str(target), request.program)


def _restored(request: Request, check: bool) -> Answer:
    place, account = Path(request.data_dir), pwd.getpwnam(names.USER)
    with tempfile.TemporaryDirectory(prefix=".web-ui-", dir=place.parent) as scratch:
        os.chmod(scratch, 0o711)  # noqa: S103 - the account has to come in, to the folder that is its own
        new = Path(scratch, "data")
        program, key = unpack(request.archive, new, account.pw_uid, account.pw_gid)
        if check:
            return Answer(request.archive, program)
        kept = put(new, request.data_dir, time.time())
    if key:
        managed_secret.ensure(managed_secret.Wanted(names.OWN_KEY, paths.WEB_UI_KEY, value=key))
    return Answer(request.archive, program, kept)


def as_account(user: int, group: int, act: Callable[[], bytes]) -> bytes:
    """What ``act`` returns, run without the rights of root and without a way back into this process.

    Raises:
        SparkError: It raised one, or failed.
    """
    come, go = os.pipe()
    child = os.fork()
    if child == 0:
        said = b"!it ended early"
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setresgid(group, group, group)
                os.setresuid(user, user, user)
            said = b"=" + act()
        except (SparkError, OSError, sqlite3.Error, tarfile.TarError, EOFError, ValueError) as exc:
            said = b"!" + str(getattr(exc, "found", exc)).encode(errors="replace")
        finally:
            with os.fdopen(go, "wb") as stream:
                stream.write(said)
            os._exit(0)
    os.close(go)
    with os.fdopen(come, "rb") as stream:
        said = stream.read()
    os.waitpid(child, 0)
    if said[:1] != b"=":
        raise SparkError(said[1:].decode(errors="replace") or "it ended early")
    return said[1:]


# -- making one


def backup(place: str, target: Path, about: dict[str, object]) -> None:
    """One archive of all regular files below ``place``, readable for root alone."""
    if not Path(place, DATABASE).is_file():
        raise SparkError("there is nothing to back up", place, "Run playbooks/web_ui.yml first")
    os.makedirs(target.parent, mode=0o700, exist_ok=True)
    owner = os.stat(place, follow_symlinks=False)
    made = Path(f"{target}.part")
    with contextlib.suppress(FileNotFoundError):
        made.unlink()  # of a run that was cut off
    handle = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as stream:
            as_account(owner.st_uid, owner.st_gid, lambda: _pack(Path(place), stream, about))
            os.fsync(handle)
        os.replace(made, target)
    except SparkError as exc:
        made.unlink()
        remedy = f"Every file has to be one that the owner of {place} reads: chown it, or move it away. Then run again"
        raise SparkError(f"the data cannot be copied: {exc.found}", place, remedy) from exc


def _pack(place: Path, stream: BinaryIO, about: dict[str, object]) -> bytes:
    with (
        tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=place) as scratch,
        tarfile.open(fileobj=stream, mode="w:gz", compresslevel=3) as archive,
    ):
        text = (json.dumps(about, indent=1, sort_keys=True) + "\n").encode()
        entry = tarfile.TarInfo(LIST)
        entry.size, entry.mtime = len(text), int(time.time())
        archive.addfile(entry, io.BytesIO(text))
        for path in _regular(place):
            with open(path, "rb") as head:
                is_database = head.read(len(_MAGIC)) == _MAGIC
            source = _copied(path, Path(scratch, "copy.db")) if is_database else path
            archive.add(str(source), f"data/{path.relative_to(place)}", recursive=False, filter=_plain)
    stream.flush()
    return b""


def _regular(place: Path) -> Iterator[Path]:
    def refuse(exc: OSError) -> None:
        raise exc

    for folder, folders, files in os.walk(place, onerror=refuse):
        if folder == str(place):
            folders[:] = [one for one in folders if one != _LEFT_OUT and not one.startswith(_SCRATCH)]
        for file in files:
            beside = any(file.endswith(end) and file[: -len(end)] in files for end in _BESIDE)
            if not beside and stat.S_ISREG(os.lstat(os.path.join(folder, file)).st_mode):
                yield Path(folder, file)


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = entry.linkname = ""
    entry.mode, entry.type = 0o600, tarfile.REGTYPE  # one with two names is there twice
    return entry


def _copied(source: Path, target: Path) -> Path:
    target.unlink(missing_ok=True)
    quoted = str(source).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    try:
        with (
            contextlib.closing(sqlite3.connect(f"file:{quoted}?mode=ro", uri=True, timeout=30)) as reader,
            contextlib.closing(sqlite3.connect(target)) as writer,
        ):
            reader.backup(writer)
    except sqlite3.Error as exc:
        raise SparkError(f"the database {source}: {exc}") from exc
    _refuse_damaged(target, source)
    return target


def _refuse_damaged(path: Path, called: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database:
        said = database.execute("pragma quick_check").fetchone()
    if said != ("ok",):
        raise SparkError(f"the database {called} is damaged ({said[0] if said else 'nothing is said'})")


# -- bringing one back


def unpack(path: str, target: Path, user: int, group: int) -> tuple[str, str]:
    """All of an archive below ``target``, which is new.

    Returns:
        The release of the page that wrote it, and the page's key.
    """
    target.mkdir(mode=0o700)
    os.chown(target, user, group)
    with _opened(path) as stream:
        try:
            about = json_text.mapping(as_account(user, group, lambda: _unpack(stream, target)))
        except SparkError as exc:
            raise SparkError(f"the archive is refused: {exc.found}", path, _CHANGED_NOTHING) from exc
    version, program, key = (about.get(name) for name in ("version", "program", "key"))
    if version != VERSION or not isinstance(program, str) or not isinstance(key, str):
        found = f"it is of version {version!r:.20}, and this release reads {VERSION}"
        raise SparkError(f"the archive is refused: {found}", path, _CHANGED_NOTHING)
    if key and not managed_secret.usable(key):
        raise SparkError("the archive is refused: its key is none", path, _CHANGED_NOTHING)
    return program, key


def _opened(path: str) -> BinaryIO:
    """Who may write it decides who may log in here afterwards."""
    try:
        stream = open(path, "rb")  # noqa: SIM115 - the caller closes it
    except OSError as exc:
        remedy = "Name a file of the head by its full path"
        raise SparkError(f"the archive cannot be read ({exc.strerror})", path, remedy) from exc
    about = os.fstat(stream.fileno())
    if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) & 0o077:
        stream.close()
        raise SparkError(
            "the archive is not a file that only root reads and writes",
            path,
            f"Copy it to the head as it was made: sudo install -m 0600 -o root -g root … {path}",
        )
    return stream


def _unpack(stream: BinaryIO, target: Path) -> bytes:
    with tarfile.open(fileobj=stream, mode="r|gz") as archive:
        first = archive.next()
        source = archive.extractfile(first) if first and first.name == LIST and first.size <= MAX_LIST else None
        if source is None:
            raise SparkError("it does not begin with a list of its files")
        about = source.read()
        while entry := archive.next():
            inside = Path(entry.name).parts
            source = archive.extractfile(entry) if entry.isreg() else None
            if source is None or len(inside) < 2 or inside[0] != "data" or ".." in inside:
                raise SparkError(f"it has {entry.name!r:.200}, which is no file of the page")
            place = target.joinpath(*inside[1:])
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(place, "xb") as out:
                shutil.copyfileobj(source, out)
    if not (target / DATABASE).is_file():
        raise SparkError("it has no database")
    for path in _regular(target):
        with open(path, "rb") as head:
            is_database = head.read(len(_MAGIC)) == _MAGIC
        if is_database:
            _refuse_damaged(path, path.relative_to(target))
    return about


def put(new: Path, place: str, now: float) -> str:
    """Have ``new`` be the data, and return where those of before are kept; the page does not run."""
    kept = ""
    if os.path.lexists(place):
        kept = f"{place}.before-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}"
        if os.path.lexists(kept):
            raise SparkError("data of this second are kept already", kept, "Run again")
        os.rename(place, kept)
    os.rename(new, place)
    return kept
