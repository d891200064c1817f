# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the chat page keeps, as one archive, and back.

Databases are copied by SQLite itself, so the page goes on meanwhile. The archive has the page's own key as well: what
is encrypted with it could not be read without. A list in front names every file with its digest, and nothing that the
list does not name comes back.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, json_text, paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Count, Flag, Words
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine, alone
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import secret as managed_secret
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._web_ui import names

LOCK = f"{paths.RUN}/web-ui.lock"
VERSION = 1
LIST = "list.json"
DATABASE = "webui.db"  # without it there is nothing to bring back
MOST_FILES = 1_000_000
MOST_LIST = 256 << 20  # bytes
_MAGIC = b"SQLite format 3\0"
_BESIDE = ("-wal", "-shm", "-journal")  # of a database, and in it after the copy
_LEFT_OUT = ("cache",)  # made anew
_CHUNK = 1 << 20
_END, _FAILED = "end", "failed"  # of what the account has sent; its files are below data/


@dataclass(frozen=True)
class Archive:
    """What an archive is: ``program`` is the release of the page that wrote it."""

    path: str
    program: str
    files: int
    size: int  # bytes, unpacked
    key: str = ""


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
    files: Count = 0
    kept: Words = ""
    changed: Flag = True


def move(request: Request, check: bool) -> Answer:
    """Save or bring back. In check mode an archive to restore is read whole."""
    with alone(Machine(), "the chat page", LOCK):
        return (_saved if request.state == "saved" else _restored)(request, check)


def _saved(request: Request, check: bool) -> Answer:
    now = time.time()
    if check:
        return Answer(f"{request.folder}/{name(now)}", request.program)
    key = managed_secret.parse(Machine().read(paths.WEB_UI_KEY) or "")
    made = backup(request.data_dir, request.folder, request.program, key, now)
    return Answer(made.path, made.program, made.files)


def _restored(request: Request, check: bool) -> Answer:
    if check:
        with tempfile.TemporaryDirectory(prefix=".web-ui-", dir=Path(request.data_dir).parent) as scratch:
            found = unpack(request.archive, Path(scratch, "data"))
        return Answer(found.path, found.program, found.files)
    account = pwd.getpwnam(names.USER)
    found, kept = restore(request.archive, request.data_dir, account.pw_uid, account.pw_gid, time.time())
    if found.key:
        managed_secret.ensure(managed_secret.Wanted(names.OWN_KEY, paths.WEB_UI_KEY, value=found.key))
    return Answer(found.path, found.program, found.files, kept)


def name(now: float) -> str:
    return time.strftime("web-ui-%Y%m%dT%H%M%SZ.tar.gz", time.gmtime(now))


# -- making one


def backup(place: str, folder: str, program: str, key: str, now: float) -> Archive:
    """One archive of all below ``place``, in ``folder``, readable for root alone."""
    if not Path(place, DATABASE).is_file():
        raise SparkError("there is nothing to back up", place, "Run playbooks/web_ui.yml first")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    target = Path(folder, name(now))
    if target.exists():
        raise SparkError("an archive of this second is there already", str(target), "Run again")
    with tempfile.TemporaryDirectory(prefix=".web-ui-", dir=folder) as scratch:
        copy = Path(scratch, "data")
        _copy(place, copy)
        listed = {path: _told(copy / path) for path in sorted(_inside(copy))}
        document = {"version": VERSION, "program": program, "key": key, "files": listed}
        made = Path(scratch, "archive")
        handle = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as stream, tarfile.open(fileobj=stream, mode="w:gz", compresslevel=3) as archive:
            _add(archive, LIST, (json.dumps(document, indent=1, sort_keys=True) + "\n").encode(), now)
            for path in listed:
                archive.add(str(copy / path), f"data/{path}", recursive=False, filter=_plain)
            archive.close()
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(made, target)
    return Archive(str(target), program, len(listed), sum(one["size"] for one in listed.values()))


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o600
    return entry


def _add(archive: tarfile.TarFile, path: str, content: bytes, now: float) -> None:
    entry = tarfile.TarInfo(path)
    entry.size, entry.mode, entry.mtime = len(content), 0o600, int(now)
    archive.addfile(entry, io.BytesIO(content))


def _copy(place: str, copy: Path) -> None:
    """All regular files below ``place``, as the account that owns it reads them.

    Root would follow what that account puts there between a look and an opening, and SQLite opens by name. So a process
    with the rights of the account reads and sends, and root only writes what comes.
    """
    owner = os.stat(place, follow_symlinks=False)
    copy.mkdir(mode=0o700)
    scratch = tempfile.mkdtemp(prefix=".web-ui-", dir=os.path.dirname(place))
    try:
        os.chown(scratch, owner.st_uid, owner.st_gid)
        come, go = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(come)
            _as_account(owner, lambda: _send(place, scratch, go))
        os.close(go)
        try:
            with os.fdopen(come, "rb") as stream:
                _receive(stream, copy, place)
        finally:
            os.waitpid(child, 0)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _as_account(owner: os.stat_result, act: Callable[[], None]) -> NoReturn:
    """Without the rights of root, and without a way back into the module."""
    try:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(owner.st_gid, owner.st_gid, owner.st_gid)
            os.setresuid(owner.st_uid, owner.st_uid, owner.st_uid)
        act()
    finally:
        os._exit(0)  # what was said is in the stream, which ends too early otherwise


def _send(place: str, scratch: str, go: int) -> None:
    with os.fdopen(go, "wb") as stream, tarfile.open(fileobj=stream, mode="w|") as out:
        try:
            for path, source in _regular(place):
                with source:
                    if source.read(len(_MAGIC)) == _MAGIC:
                        copied = Path(scratch, "copy.db")
                        _copy_database(os.path.join(place, path), copied)
                        out.add(str(copied), f"data/{path}", recursive=False)
                        copied.unlink()
                    else:
                        entry = _plain(out.gettarinfo(arcname=f"data/{path}", fileobj=source))
                        source.seek(0)
                        entry.type, entry.linkname = tarfile.REGTYPE, ""  # one with two names is sent twice
                        out.addfile(entry, source)
            _add(out, _END, b"", 0)
        except (SparkError, OSError) as exc:
            _add(out, _FAILED, str(exc).encode(errors="replace"), 0)


def _regular(place: str) -> Iterator[tuple[str, BinaryIO]]:
    """Path and open file. A link leads nowhere, and what cannot be read ends it: it would be missing later."""
    for folder, folders, files, handle in os.fwalk(place, follow_symlinks=False, onerror=_unless_gone):
        inside = os.path.relpath(folder, place)
        if inside == ".":
            folders[:] = [one for one in folders if one not in _LEFT_OUT]
        for one in files:
            if any(one.endswith(end) and one[: -len(end)] in files for end in _BESIDE):
                continue
            try:
                opened = os.open(one, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=handle)
            except OSError as exc:
                _unless_gone(exc)
                continue
            if stat.S_ISREG(os.fstat(opened).st_mode):
                yield os.path.normpath(os.path.join(inside, one)), os.fdopen(opened, "rb")
            else:
                os.close(opened)


def _unless_gone(exc: OSError) -> None:
    """A link, a socket, or gone meanwhile."""
    if exc.errno not in (errno.ELOOP, errno.ENXIO, errno.ENOENT):
        raise exc


def _receive(stream: BinaryIO, copy: Path, place: str) -> None:
    failed = "the reading ended early"
    remedy = f"Every file has to be one that the owner of {place} reads: chown it, or move it away. Then run again"
    with contextlib.suppress(tarfile.TarError, EOFError), tarfile.open(fileobj=stream, mode="r|") as archive:
        for entry in _entries(archive):
            source = archive.extractfile(entry) if entry.isreg() else None
            inside = entry.name[len("data/") :]
            if source and entry.name == _END:
                return
            if source and entry.name == _FAILED:
                failed = source.read(2000).decode(errors="replace")
                break
            if source is None or f"data/{inside}" != entry.name or not _safe(inside):
                failed = f"{entry.name!r:.200} is no file of it"
                break
            free = shutil.disk_usage(copy).free
            if entry.size > free:  # one may say that it is larger than any disk
                failed, remedy = f"{inside!r:.200} has {entry.size >> 20} MiB, and {free >> 20} are free", "Make room"
                break
            target = copy / inside
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(source, target)
    raise SparkError(f"the data cannot be copied: {failed}", place, remedy)


def _copy_database(source: str, target: Path) -> None:
    try:
        with (
            contextlib.closing(sqlite3.connect(f"file:{_quoted(source)}?mode=ro", uri=True, timeout=30)) as reader,
            contextlib.closing(sqlite3.connect(target)) as writer,
        ):
            reader.backup(writer)
    except sqlite3.Error as exc:
        raise SparkError(
            f"the database cannot be copied ({exc})", source, "Look at: journalctl -u sparkmatrix-web-ui"
        ) from exc
    _healthy(target, source, "Bring the last backup back: playbooks/web_ui_restore.yml")


def _quoted(path: str) -> str:
    return path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _healthy(path: Path, called: str, remedy: str) -> None:
    try:
        with contextlib.closing(sqlite3.connect(path)) as database:
            said = database.execute("pragma quick_check").fetchone()
    except sqlite3.Error as exc:
        said = (str(exc),)
    if said != ("ok",):
        raise SparkError(f"the database is damaged ({said[0] if said else 'nothing is said'})", called, remedy)


def _inside(copy: Path) -> Iterator[str]:
    for folder, _folders, files in os.walk(copy):
        for one in files:
            yield os.path.relpath(os.path.join(folder, one), copy)


def _told(path: Path) -> dict[str, Any]:
    digest, size = hashlib.sha256(), 0
    with open(path, "rb") as stream:
        while part := stream.read(_CHUNK):
            digest.update(part)
            size += len(part)
    return {"sha256": digest.hexdigest(), "size": size}


# -- bringing one back


def unpack(path: str, target: Path, free: int | None = None) -> Archive:
    """All of an archive below ``target``, which is new. Raises where it is anything but what :func:`backup` writes."""
    with _opened(path) as stream, _read(path, stream) as archive:
        document = _list(path, archive)
        files: Mapping[str, Mapping[str, Any]] = document["files"]
        size = sum(one["size"] for one in files.values())
        free = shutil.disk_usage(target.parent).free if free is None else free
        if size > free:
            raise SparkError(
                f"it unpacks to {size >> 20} MiB, and {free >> 20} are free",
                path,
                f"Make room where {target.parent} is",
            )
        target.mkdir(mode=0o700)
        missing = dict(files)
        for entry in _entries(archive):
            inside = entry.name[len("data/") :] if entry.name.startswith("data/") else ""
            wanted = missing.pop(inside, None)
            if wanted is None or not entry.isreg() or entry.size != wanted["size"]:
                raise _wrong(path, f"it has {entry.name!r:.200}, which its list does not name like that")
            place = target / inside
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            source = archive.extractfile(entry)
            if source is None or _write(source, place) != wanted["sha256"]:
                raise _wrong(path, f"{inside!r:.200} is not what its list says")
        if missing:
            raise _wrong(path, f"it lacks {min(missing)!r:.200}")
    for one in files:
        with open(target / one, "rb") as head:
            if head.read(len(_MAGIC)) == _MAGIC:
                _healthy(target / one, f"{path}: {one}", "Take another archive")
    return Archive(path, document["program"], len(files), size, document["key"])


def _opened(path: str) -> BinaryIO:
    """Who may write it decides who may log in here afterwards."""
    try:
        stream = open(path, "rb")  # noqa: SIM115 - the caller closes it
    except OSError as exc:
        raise SparkError(
            f"the archive cannot be read ({exc.strerror})", path, "Name a file of the head by its full path"
        ) from exc
    about = os.fstat(stream.fileno())
    if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) & 0o077:
        stream.close()
        raise SparkError(
            "the archive is not a file that only root reads and writes",
            path,
            f"Copy it to the head as it was made: sudo install -m 0600 -o root -g root … {path}",
        )
    return stream


@contextlib.contextmanager
def _read(path: str, stream: BinaryIO) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(fileobj=stream, mode="r|gz") as archive:
            yield archive
    except (tarfile.TarError, EOFError, OSError, ValueError) as exc:
        raise _wrong(path, f"it cannot be read ({exc})") from exc


def _entries(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Those after the list."""
    while entry := archive.next():
        yield entry


def _list(path: str, archive: tarfile.TarFile) -> dict[str, Any]:
    entry = archive.next()
    source = archive.extractfile(entry) if entry and entry.name == LIST and entry.size <= MOST_LIST else None
    try:
        document = json_text.mapping(source.read()) if source else {}
    except SparkError:
        document = {}
    if not _fits(document):
        raise _wrong(path, "it does not begin with a list of its files")
    if document.get("version") != VERSION:
        raise _wrong(path, f"it is of version {document.get('version')!r:.20}, and this release reads {VERSION}")
    return document


def _fits(document: Mapping[str, Any]) -> bool:
    files = document.get("files")
    key, program = document.get("key"), document.get("program")
    return (
        isinstance(files, dict)
        and DATABASE in files
        and len(files) <= MOST_FILES
        and isinstance(program, str)
        and isinstance(key, str)
        and (not key or managed_secret.usable(key))
        and all(_fine(name, told) for name, told in files.items())
    )


def _fine(name: str, told: Any) -> bool:
    return (
        isinstance(told, dict)
        and _safe(name)
        and isinstance(told.get("size"), int)
        and not isinstance(told["size"], bool)
        and told["size"] >= 0
        and isinstance(told.get("sha256"), str)
    )


def _safe(name: str) -> bool:
    return all(part not in ("", ".", "..") and "\0" not in part for part in name.split("/"))


def _wrong(path: str, found: str) -> SparkError:
    return SparkError(
        f"the archive is refused: {found}", path, "Take another one; what is there now has not been changed"
    )


def _write(source: Any, place: Path) -> str:
    digest = hashlib.sha256()
    handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "wb") as stream:
        while part := source.read(_CHUNK):
            digest.update(part)
            stream.write(part)
    return digest.hexdigest()


def restore(path: str, place: str, owner: int, group: int, now: float) -> tuple[Archive, str]:
    """An archive in place of the data, and where those of before are kept; the page does not run."""
    new = Path(f"{place}.new")
    shutil.rmtree(new, ignore_errors=True)  # of a run that was cut off
    try:
        found = unpack(path, new)
        return found, put(new, place, owner, group, now)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def put(new: Path, place: str, owner: int, group: int, now: float) -> str:
    """Have ``new`` be the data, and return where those of before are kept; the page does not run."""
    for folder, folders, files in os.walk(new):
        for one in (*folders, *files):
            os.chown(os.path.join(folder, one), owner, group, follow_symlinks=False)
    os.chown(new, owner, group)
    kept = ""
    if os.path.lexists(place):
        kept = f"{place}.before-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}"
        if os.path.lexists(kept):
            raise SparkError("data of this second are kept already", kept, "Run again")
        os.rename(place, kept)
    os.rename(new, place)
    return kept
