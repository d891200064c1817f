# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Sets of files that can be taken back.

A set has a name and a manifest, ``/var/lib/sparkmatrix/managed/<name>.json`` (0600 in a 0700 directory), which holds
the original of every path the set ever replaced and the directories it made. The manifest is written *before* the first
change and shortened *after* the last one, so whatever interrupts a run, the next one finds every original.

Manifest, schema 1::

    {"schema": 1, "name": "ray",
     "files": {"/etc/x.conf": {"secret": false, "original": {"kind": "absent"}},
               "/etc/y.conf": {"secret": false, "original": {"kind": "file", "content": "<base64>",
                                                             "mode": "0644", "uid": 0, "gid": 0}},
               "/etc/z": {"secret": false, "original": {"kind": "link", "target": "../a", "uid": 0, "gid": 0}}},
     "directories": ["/etc/made", "/etc/made/too"]}
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import errno
import fcntl
import grp
import hashlib
import json
import os
import pwd
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text, paths, strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError

SCHEMA_VERSION = 1
HIDDEN = "(secret, not shown)"
TEMP_SUFFIX = ".sparkmatrix-new"
LOCK_TIMEOUT_S = 30.0

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_MODE = re.compile(r"0[0-7]{3,4}")
_SOURCES = ("content", "secret_content", "content_b64", "link_to")


@dataclass(frozen=True)
class State:
    """What a path is: ``absent``, ``file`` (content, mode) or ``link`` (target). ``uid``/``gid`` -1: not known yet."""

    kind: str = "absent"
    content: bytes = b""
    target: str = ""
    mode: int = 0
    uid: int = 0
    gid: int = 0

    def says_what(self, other: State) -> bool:
        return (self.kind, self.content, self.target) == (other.kind, other.content, other.target)

    def as_dict(self) -> dict[str, Any]:
        if self.kind == "file":
            text = base64.b64encode(self.content).decode("ascii")
            return {"kind": "file", "content": text, "mode": f"{self.mode:04o}", "uid": self.uid, "gid": self.gid}
        if self.kind == "link":
            return {"kind": "link", "target": self.target, "uid": self.uid, "gid": self.gid}
        return {"kind": "absent"}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> State:
        kind = values["kind"]
        if kind == "absent":
            return cls()
        if kind == "link":
            return cls("link", target=str(values["target"]), uid=int(values["uid"]), gid=int(values["gid"]))
        if kind != "file":
            raise ValueError(f"kind is {kind!r}")
        content = base64.b64decode(values["content"], validate=True)
        mode, uid, gid = int(values["mode"], 8), int(values["uid"]), int(values["gid"])
        return cls("file", content=content, mode=mode, uid=uid, gid=gid)


@dataclass(frozen=True)
class File:
    """One wanted path. Exactly one of ``content`` and ``link_to`` is set; owner and group are names or numbers."""

    path: str
    content: bytes | None = None
    link_to: str | None = None
    owner: str = "root"
    group: str = "root"
    mode: int = 0o644
    secret: bool = False
    refuse_foreign: bool = False  # instead of replacing what somebody else has put there

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> File:
        """Build from the module's option: ``path`` and one of content, secret_content, content_b64, link_to."""
        path = str(params.get("path") or "")
        check_path(path)
        given = [name for name in _SOURCES if params.get(name) is not None]
        if len(given) != 1:
            raise SparkError(
                f"{' and '.join(given) or 'no content'} given",
                path,
                f"Give exactly one of {', '.join(_SOURCES)}",
            )
        mode = str(params.get("mode") or "0644")
        if not _MODE.fullmatch(mode):
            raise SparkError(f"mode is {mode!r}", path, "Write it as a quoted octal string, for example '0644'")
        content: bytes | None = None
        if given[0] == "content_b64":
            try:
                content = base64.b64decode(str(params["content_b64"]), validate=True)
            except (binascii.Error, ValueError) as exc:
                raise SparkError(
                    f"content_b64 is not base64 ({exc})", path, "Encode it with the b64encode filter"
                ) from exc
        elif given[0] != "link_to":
            text = str(params[given[0]])
            if given[0] == "content" and text and not text.endswith("\n"):
                text += "\n"  # Jinja drops the last newline of a template
            if given[0] == "content" and strict.CONTROLS.search(text):
                raise SparkError("its text has control characters", path, "Correct the value that has them")
            content = text.encode("utf-8", "surrogateescape")
        link_to = None if params.get("link_to") is None else str(params["link_to"])
        if link_to == "":
            raise SparkError("link_to is empty", path, "Name the target of the link")
        return cls(
            path=path,
            content=content,
            link_to=link_to,
            owner=str(params.get("owner") or "root"),
            group=str(params.get("group") or "root"),
            mode=int(mode, 8),
            secret=given[0] == "secret_content",
            refuse_foreign=bool(params.get("refuse_foreign")),
        )


@dataclass
class Result:
    """What was done, or in check mode would be. ``diff`` is in the form that Ansible prints."""

    changed_paths: list[str] = field(default_factory=list)
    diff: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        return bool(self.changed_paths)


@dataclass
class _Entry:
    original: State
    secret: bool = False


@dataclass
class _Manifest:
    name: str
    files: dict[str, _Entry] = field(default_factory=dict)
    directories: set[str] = field(default_factory=set)

    def dump(self) -> bytes:
        document = {
            "schema": SCHEMA_VERSION,
            "name": self.name,
            "files": {
                path: {"secret": entry.secret, "original": entry.original.as_dict()}
                for path, entry in self.files.items()
            },
            "directories": sorted(self.directories),
        }
        return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode("utf-8")


def apply_set(
    name: str,
    files: Sequence[File],
    *,
    originals: Mapping[str, State] | None = None,
    check_mode: bool = False,
    root: str = "/",
) -> Result:
    """Make ``files`` the content of the set ``name``; what left the set gets its original back.

    ``originals`` corrects what counts as the original of a path that the set holds already: a file into which keys are
    merged belongs to others too, and what they changed since has to stay. ``root`` is a prefix for every path, for
    tests. Raises :class:`SparkError` for bad input, for a path that another set manages, and for anything that the
    system refuses; each single path then is either as before or as wanted.
    """
    _check_set(name, files)
    return _Set(name, root, check_mode, originals or {}).run(files)


def remove_set(name: str, *, check_mode: bool = False, root: str = "/") -> Result:
    """Bring back every original of the set and forget it. A set that does not exist is nothing to do."""
    return apply_set(name, (), check_mode=check_mode, root=root)


def write_state(path: str, content: bytes, *, root: str = "/") -> None:
    """Write a state file of ours, 0600 of the caller, in one step; missing directories are made, the last one 0700."""
    above = parents(path)
    for parent in above:
        _make_directory(root.rstrip("/") + parent, parent, 0o700 if parent == above[-1] else 0o755)
    _Disk(root).put(path, State("file", content=content, mode=0o600, uid=os.geteuid(), gid=os.getegid()))


def drop_state(path: str, *, root: str = "/") -> None:
    """Remove a state file, and its directories up to ``/var/lib/sparkmatrix`` where they are empty."""
    disk = _Disk(root)
    disk.put(path, State())
    for parent in reversed(parents(path)[2:]):
        disk.remove_directory(parent)


def read_state(path: str, *, root: str = "/") -> State:
    """What ``path`` is now, to come back to with :func:`put_state`."""
    return _Disk(root).read(path)


def put_state(path: str, state: State, *, root: str = "/") -> None:
    """Bring ``path`` into ``state``, whatever set it belongs to; nothing is done where it already is.

    For a snapshot that holds the manifests as well: files and manifests are then consistent again.
    """
    disk = _Disk(root)
    disk.forget_temp(path)
    if disk.read(path) == state:
        return
    for parent in parents(path) if state.kind != "absent" else ():
        _make_directory(disk.real(parent), parent, 0o700 if parent == paths.MANAGED else 0o755)
    disk.put(path, state)


def manifest_path(name: str) -> str:
    """Where the manifest of a set is; for those who snapshot it. What is in it is read here only."""
    return f"{paths.MANAGED}/{name}.json"


def known(name: str, *, root: str = "/") -> bool:
    """Whether the set holds anything on this node."""
    return _Disk(root).read(manifest_path(name)).kind != "absent"


def originals(name: str, *, root: str = "/") -> dict[str, State]:
    """What was at each path of the set before the set replaced it."""
    held = _Set(name, root, True)._load(name).files
    return {path: entry.original for path, entry in held.items()}


def names(*, root: str = "/") -> list[str]:
    """The sets on this node."""
    return _Set("", root, True)._other_names()


def fingerprint(files: Iterable[File]) -> str:
    """The same for a set on a node (:func:`fingerprints`) and for the files that it should have, where none differs."""
    rows = [
        [
            item.path,
            item.link_to if item.content is None else hashlib.sha256(item.content).hexdigest(),
            "link" if item.content is None else f"{item.mode:04o}",
            item.owner,
            item.group,
        ]
        for item in sorted(files, key=lambda item: item.path)
    ]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def fingerprints(*, root: str = "/") -> dict[str, str]:
    """Of every set on this node. Left out: one with a secret, and one with a file that is gone or half written."""
    found = {}
    for name in names(root=root):
        one = _Set(name, root, True)
        entries = one._load(name).files
        files = [_as_file(one.disk, path) for path in entries if not os.path.lexists(temp_path(one.disk.real(path)))]
        whole = [item for item in files if item is not None]
        if len(whole) == len(entries) and not any(entry.secret for entry in entries.values()):
            found[name] = fingerprint(whole)
    return found


def held(name: str, *, root: str = "/") -> list[File]:
    """What is at the paths of a set now."""
    one = _Set(name, root, True)
    found = [_as_file(one.disk, path) for path in sorted(one._load(name).files)]
    return [item for item in found if item is not None]


def _as_file(disk: _Disk, path: str) -> File | None:
    """What is at the path, as somebody would have to ask for it; None where nothing is."""
    state = disk.read(path)
    if state.kind == "absent":
        return None
    content, target = (None, state.target) if state.kind == "link" else (state.content, None)
    owner, group = _attributes(state).split()[0].split(":")
    return File(path, content, target, owner, group, state.mode)


def check_path(path: str) -> None:
    """Refuse a path that is not absolute and plain: two spellings of one path would have two originals."""
    if not path.startswith("/") or "\0" in path:
        raise SparkError(f"path {path!r} is not absolute", "", "Write the whole path, from /")
    if path.startswith("//") or os.path.normpath(path) != path or path == "/":
        raise SparkError(
            f"path {path!r} is not a plain file path", "", "Write it without '..', '.', doubled or trailing slashes"
        )


def _check_set(name: str, files: Sequence[File]) -> None:
    if not _NAME.fullmatch(name):
        raise SparkError(
            f"{name!r} is no name for a set of files", "", "Use lower-case letters, digits, '_', '-' and '.', up to 64"
        )
    seen: set[str] = set()
    for wanted in files:
        check_path(wanted.path)
        if wanted.path in seen:
            raise SparkError("the path is listed twice", wanted.path, f"List it once in the set {name}")
        seen.add(wanted.path)
    for path in sorted(seen):
        for parent in parents(path):
            if parent in seen:
                raise SparkError(
                    f"the path is listed as a file, and {path} needs it as a directory", parent, "Remove one of them"
                )


def parents(path: str) -> list[str]:
    """Directories above ``path``, the topmost first, without ``/``."""
    parts = path.split("/")[1:-1]
    return ["/" + "/".join(parts[: count + 1]) for count in range(len(parts))]


class _Disk:
    """Every change to the disk goes through here, under ``root``. ``step`` is where tests cut a run short."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/")

    def real(self, path: str) -> str:
        return self.root + path

    def step(self, what: str, path: str) -> None:
        """Called before each single change."""

    def read(self, path: str) -> State:
        real = self.real(path)
        with _refusals("read", path):
            try:
                status = os.lstat(real)
            except (FileNotFoundError, NotADirectoryError):
                return State()
            if stat.S_ISLNK(status.st_mode):
                return State("link", target=os.readlink(real), uid=status.st_uid, gid=status.st_gid)
            if not stat.S_ISREG(status.st_mode):
                what = "a directory" if stat.S_ISDIR(status.st_mode) else "neither a file nor a link"
                raise SparkError(f"the path is {what}", path, "Move it away, or choose another path")
            with open(real, "rb") as stream:
                content = stream.read()
            return State(
                "file", content=content, mode=stat.S_IMODE(status.st_mode), uid=status.st_uid, gid=status.st_gid
            )

    def put(self, path: str, state: State) -> None:
        """Bring ``path`` into ``state`` in one atomic rename (or one unlink)."""
        real = self.real(path)
        with _refusals("write", path):
            if state.kind == "absent":
                self.step("unlink", path)
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    os.unlink(real)
                _sync_directory(os.path.dirname(real))
                return
            temp = temp_path(real)
            self._unlink(temp)
            try:
                self.step("create", path)
                if state.kind == "link":
                    os.symlink(state.target, temp)
                    os.chown(temp, state.uid, state.gid, follow_symlinks=False)
                else:
                    self._write(temp, path, state)
                self.step("rename", path)
                os.rename(temp, real)
            except Exception:
                self._unlink(temp)
                raise
            _sync_directory(os.path.dirname(real))

    def _write(self, temp: str, path: str, state: State) -> None:
        # A fixed name, so that what an interruption leaves is found again; O_EXCL, so that nobody can plant a link.
        handle = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as stream:
            self.step("fill", path)
            stream.write(state.content)
            stream.flush()
            os.fchown(stream.fileno(), state.uid, state.gid)
            os.fchmod(stream.fileno(), state.mode)
            os.fsync(stream.fileno())

    def make_directory(self, path: str) -> None:
        self.step("mkdir", path)
        _make_directory(self.real(path), path, 0o755)

    def remove_directory(self, path: str) -> None:
        """Remove it if it is there and empty; whatever else lives in it keeps it."""
        self.step("rmdir", path)
        with contextlib.suppress(OSError):
            os.rmdir(self.real(path))

    def forget_temp(self, path: str) -> None:
        with _refusals("clean up", path):
            self._unlink(temp_path(self.real(path)))

    @staticmethod
    def _unlink(real: str) -> None:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(real)


def temp_path(path: str) -> str:
    """Where the new content of ``path`` is prepared: beside it, hidden, with an ending that no ``*.d`` reader takes."""
    directory, name = os.path.split(path)
    # 255 bytes is the limit for one name on ext4, xfs and overlayfs.
    if len(os.fsencode(name)) > 200:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return f"{directory}/.{name}{TEMP_SUFFIX}"


class _Set:
    disk_class: type[_Disk] = _Disk

    def __init__(self, name: str, root: str, check_mode: bool, originals: Mapping[str, State] | None = None) -> None:
        self.name = name
        self.originals = originals or {}
        self.check_mode = check_mode
        self.disk = self.disk_class(root)
        self.result = Result()

    # -- reading

    def run(self, files: Sequence[File]) -> Result:
        if not files and not os.path.lexists(self.disk.real(paths.MANAGED)):
            if not self.check_mode:
                with contextlib.suppress(OSError):  # a removal that was cut off between the two directories
                    os.rmdir(os.path.dirname(self.disk.real(paths.MANAGED)))
            return self.result
        with self._lock():
            return self._run(files)

    def _run(self, files: Sequence[File]) -> Result:
        manifest = self._load(self.name)
        stored = manifest.dump()
        for path, state in self.originals.items():
            if path in manifest.files:
                manifest.files[path].original = state
        others = [self._load(other) for other in self._other_names()]
        self._check_strangers(files, others)
        self._check_parents(files)
        wanted = {item.path: self._wanted(item) for item in files}
        secret = {item.path for item in files if item.secret} | {p for p, e in manifest.files.items() if e.secret}
        exclusive = {item.path for item in files if item.refuse_foreign}
        leaving = [path for path in sorted(manifest.files) if path not in wanted]
        current = {path: self.disk.read(path) for path in [*wanted, *leaving]}
        for item in files:
            there = current[item.path]
            if not item.refuse_foreign or item.path in manifest.files:
                continue
            if there.kind != "absent" and not there.says_what(wanted[item.path]):
                raise SparkError("it is there already, and not ours", item.path, "Move it away, and run again")
        target = {**wanted, **{path: manifest.files[path].original for path in leaving}}

        changing = [path for path in sorted(target) if current[path] != target[path]]
        for path in changing:
            self.result.changed_paths.append(path)
            self.result.diff.extend(_diff(path, current[path], target[path], path in secret))
        if self.check_mode:
            return self.result

        # 1. Remember. From here on nothing can be lost.
        full = _Manifest(self.name, dict(manifest.files), set(manifest.directories))
        for path in wanted:
            known = full.files.get(path)
            found = State() if path in exclusive else current[path]  # left by an installation that nobody took back
            full.files[path] = _Entry(known.original if known else found, path in secret)
        full.directories |= self._directories(wanted, manifest, others)
        if full.files and full.dump() != stored:
            self._store(full)
        # 2. Act.
        for path in target:
            self.disk.forget_temp(path)
        present = [path for path in target if target[path].kind != "absent"]
        for directory in sorted({parent for path in present for parent in parents(path)}):
            if not os.path.isdir(self.disk.real(directory)):
                self.disk.make_directory(directory)
        for path in changing:
            self.disk.put(path, target[path])
        needed = {parent for path in wanted for parent in parents(path)}
        for directory in sorted(full.directories - needed, key=len, reverse=True):
            self.disk.remove_directory(directory)
        # 3. Forget what left.
        kept = {path: _Entry(full.files[path].original, path in {f.path for f in files if f.secret}) for path in wanted}
        final = _Manifest(self.name, kept, full.directories & needed)
        if not final.files:
            self._drop_manifest()
        elif final.dump() != full.dump():
            self._store(final)
        return self.result

    def _other_names(self) -> list[str]:
        try:
            with _refusals("read", paths.MANAGED):
                names = os.listdir(self.disk.real(paths.MANAGED))
        except FileNotFoundError:
            return []
        found = sorted(name[:-5] for name in names if name.endswith(".json") and not name.startswith("."))
        return [name for name in found if name != self.name]

    def _load(self, name: str) -> _Manifest:
        path = manifest_path(name)
        state = self.disk.read(path)
        if state.kind != "file":
            return _Manifest(name)
        with json_text.Reading(
            f"the manifest of the file set {name!r} is damaged, so the originals are not known",
            path,
            "Restore it from a backup; or, if the originals do not matter, delete it and run again",
        ):
            document = json_text.mapping(state.content)
            if document["schema"] != SCHEMA_VERSION:
                raise ValueError(f"schema {document['schema']!r}, this release reads {SCHEMA_VERSION}")
            files = {
                str(key): _Entry(State.from_dict(value["original"]), bool(value["secret"]))
                for key, value in document["files"].items()
            }
            return _Manifest(name, files, {str(directory) for directory in document["directories"]})

    def _check_strangers(self, files: Sequence[File], others: Sequence[_Manifest]) -> None:
        owner = {self._identity(path): other.name for other in others for path in other.files}
        mine: dict[str, str] = {}
        for item in files:
            identity = self._identity(item.path)
            if identity in owner:
                raise SparkError(
                    f"the path is already managed by the file set {owner[identity]!r}, not {self.name!r}",
                    item.path,
                    f"Remove it from one of the two; the set {owner[identity]!r} still holds its original",
                )
            if identity in mine:
                raise SparkError(f"this is the same file as {mine[identity]}", item.path, "List it once")
            mine[identity] = item.path

    def _identity(self, path: str) -> str:
        """The path with links in its directories resolved, so that /lib/x and /usr/lib/x are one file."""
        directory, name = os.path.split(self.disk.real(path))
        return os.path.join(os.path.realpath(directory), name)

    def _check_parents(self, files: Sequence[File]) -> None:
        for item in files:
            for parent in parents(item.path):
                real = self.disk.real(parent)
                if os.path.lexists(real) and not os.path.isdir(real):
                    raise SparkError(
                        f"the path is not a directory, and {item.path} has to be in it", parent, "Move it away"
                    )

    def _wanted(self, item: File) -> State:
        uid = self._identifier(item, "owner", item.owner)
        gid = self._identifier(item, "group", item.group)
        if item.link_to is not None:
            return State("link", target=item.link_to, uid=uid, gid=gid)
        return State("file", content=item.content or b"", mode=item.mode, uid=uid, gid=gid)

    def _identifier(self, item: File, what: str, name: str) -> int:
        if name.isascii() and name.isdigit():
            return int(name)
        try:
            return pwd.getpwnam(name).pw_uid if what == "owner" else grp.getgrnam(name).gr_gid
        except KeyError:
            if self.check_mode:
                # On a pristine node an earlier task would have made the account.
                warning = f"{item.path}: {what} {name!r} does not exist yet"
                if warning not in self.result.warnings:
                    self.result.warnings.append(warning)
                return -1
            raise SparkError(f"{what} {name!r} does not exist on this node", item.path, "Create it first") from None

    def _directories(self, wanted: Iterable[str], mine: _Manifest, others: Sequence[_Manifest]) -> set[str]:
        """Directories that this set makes, and those another set made that it needs too: the last one out removes."""
        made = set(mine.directories).union(*(other.directories for other in others))
        return {
            parent
            for path in wanted
            for parent in parents(path)
            if parent in made or not os.path.isdir(self.disk.real(parent))
        }

    # -- the state directory

    def _store(self, manifest: _Manifest) -> None:
        state = State("file", content=manifest.dump(), mode=0o600, uid=os.geteuid(), gid=os.getegid())
        self.disk.put(manifest_path(manifest.name), state)

    def _drop_manifest(self) -> None:
        path = manifest_path(self.name)
        self.disk.forget_temp(path)
        if os.path.lexists(self.disk.real(path)):
            self.disk.put(path, State())
        # Of ETC it may be that no set has made it: the key of the node is older.
        for directory in (paths.MANAGED, os.path.dirname(paths.MANAGED), paths.ETC):
            self.disk.remove_directory(directory)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """Two runs at once could take each other's content for an original. The directory itself carries the lock."""
        if self.check_mode:
            yield
            return
        real = self.disk.real(paths.MANAGED)
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            for parent in parents(paths.MANAGED):
                _make_directory(self.disk.real(parent), parent, 0o755)
            _make_directory(real, paths.MANAGED, 0o700)
            try:
                handle = os.open(real, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:  # another run removed it just now
                continue
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.exists(real) and os.path.samestat(os.fstat(handle), os.stat(real)):
                    break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    os.close(handle)
                    raise SparkError(
                        f"another run has been changing files on this node for {LOCK_TIMEOUT_S:.0f} s",
                        paths.MANAGED,
                        "Wait for it to end, then run again",
                    ) from None
                time.sleep(0.1)
            os.close(handle)
        try:
            yield
        finally:
            os.close(handle)
            with contextlib.suppress(OSError):  # empty when the set holds nothing
                os.rmdir(real)
                os.rmdir(os.path.dirname(real))


def _make_directory(real: str, path: str, mode: int) -> None:
    """Make one directory with exactly this mode, whatever the caller's umask is; one that exists stays as it is."""
    if os.path.isdir(real):
        return
    before = os.umask(0)
    try:
        with _refusals("make the directory", path), contextlib.suppress(FileExistsError):
            os.mkdir(real, mode)
    finally:
        os.umask(before)


def _sync_directory(real: str) -> None:
    """Make a rename survive a power cut."""
    try:
        handle = os.open(real, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        with contextlib.suppress(OSError):  # some file systems cannot sync a directory
            os.fsync(handle)
    finally:
        os.close(handle)


_REMEDIES = {
    errno.ENOSPC: ("the disk is full", "Free some space (df -h), then run again"),
    errno.EDQUOT: ("the disk quota is used up", "Free some space, then run again"),
    errno.EROFS: ("the file system is read-only", "Remount it writable; if the kernel did it, check the disk (dmesg)"),
    errno.EACCES: ("permission denied", "Run with become: true"),
    errno.EPERM: ("the operation is not permitted", "Run with become: true; check lsattr for an immutable flag"),
    errno.ENAMETOOLONG: ("the name is too long", "Choose a shorter path"),
    errno.ELOOP: ("too many symbolic links", "Remove the loop of links"),
}


@contextlib.contextmanager
def _refusals(what: str, path: str) -> Iterator[None]:
    """Turn what the system refuses into one message; a missing path stays FileNotFoundError only when reading."""
    try:
        yield
    except FileNotFoundError as exc:
        if what == "read":
            raise
        raise SparkError(f"cannot {what}: {exc.strerror}", path, "Its directory went away; run again") from exc
    except OSError as exc:
        found, remedy = _REMEDIES.get(exc.errno or 0, (exc.strerror or str(exc), "Look at the path on the node"))
        raise SparkError(f"cannot {what}: {found}", path, remedy) from exc


# -- diff


def _diff(path: str, before: State, after: State, secret: bool) -> list[dict[str, Any]]:
    shown = []
    if (before.kind, before.content, before.target) != (after.kind, after.content, after.target):
        shown.append(
            {
                "before_header": path,
                "after_header": path,
                "before": _text(before, secret, ""),
                "after": _text(after, secret, " (new)"),
            }
        )
    attributes = (_attributes(before), _attributes(after))
    if before.kind != "absent" and after.kind != "absent" and attributes[0] != attributes[1]:
        header = f"{path} (attributes)"
        shown.append({"before_header": header, "after_header": header, "before": attributes[0], "after": attributes[1]})
    return shown


def _text(state: State, secret: bool, suffix: str) -> str:
    if state.kind == "absent":
        return ""
    if state.kind == "link":
        return f"link to {state.target}\n"
    if secret:
        return f"{HIDDEN}{suffix}\n"
    try:
        text = state.content.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        digest = hashlib.sha256(state.content).hexdigest()
        return f"(binary, {len(state.content)} bytes, sha256 {digest})\n"
    return text


def _attributes(state: State) -> str:
    """``owner:group mode`` by name where the names exist."""
    owner = group = "(not there yet)"
    if state.uid >= 0:
        try:
            owner = pwd.getpwuid(state.uid).pw_name
        except KeyError:
            owner = str(state.uid)
    if state.gid >= 0:
        try:
            group = grp.getgrgid(state.gid).gr_name
        except KeyError:
            group = str(state.gid)
    mode = f" {state.mode:04o}" if state.kind == "file" else ""
    return f"{owner}:{group}{mode}\n"
