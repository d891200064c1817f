# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Long work on the models of a node, as one transient unit that goes on without whoever started it.

``sparkmatrix-node artifacts work`` reads what to do (:class:`Work`), tells how far it is (:class:`Progress`) in a file,
and leaves its result there. A run of Ansible starts it and waits for it; the next one finds it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Optional

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import (
    archive,
    check,
    folders,
    from_node,
    hub,
    importing,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import cache as caches
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import manifest as manifests
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.cache import Cache
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.manifest import File, Manifest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import (
    document,
    how_far,
    json_text,
    kinds,
    paths,
    unit_sandbox,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine, open_lock
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import write_state

UNIT = "sparkmatrix-artifacts.service"
WORK = f"{paths.RUN}/artifacts-work.json"
PROGRESS = f"{paths.RUN}/artifacts-progress.json"
LOCK = f"{paths.RUN}/artifacts.lock"
COPY, CHECK, EXPORT = "copy", "check", "export"
DOWNLOAD, ADOPT, IMPORT = "download", "adopt", "import"  # by which a model comes to the first node
AGAIN = "Run it again: it goes on where this ended"
# Models and archives are where their owner wants them, and other users read them. So not unit_sandbox.ROOT,
# which writes to the state of services only, and with modes for root alone.
SANDBOX = (*unit_sandbox.ANY, "ProtectSystem=full", "ProtectHome=read-only")
# An engine that serves meanwhile keeps at least 90 % of its rate, also where it has all cores in use
# (tests/bench/beside_engine.py), and its memory. The weight is for machines on which units have cgroups of their own.
ASIDE = (f"Nice={from_node.NICE}", "CPUWeight=4", "OOMScoreAdjust=500")
_TELL_S = 1.0
_POLL_S = 0.5
_MAX_NOTES = 50
_MOST = 256 * 1024 * 1024


@dataclass(frozen=True)
class Work:
    """``home``: engine_model_cache. ``ref``: what the manifest is to be known as, beside its commit.
    ``manifest``, ``host``, ``addresses``, ``rate``: of a copy, from whom. ``full``: read every byte, also of what has
    not changed. ``source``: a path that it comes from, or goes to. ``environment``: by which the hub is asked;
    ``python``, ``user``: of its client; ``pickle``: weights that can run programs are let in."""

    kind: str = field(metadata=document.one_of(COPY, CHECK, EXPORT, DOWNLOAD, ADOPT, IMPORT))
    home: str
    name: str
    revision: str = ""
    ref: str = ""
    host: str = ""
    manifest: Optional[Annotated[Manifest, manifests.parse]] = None
    addresses: tuple[kinds.Ipv4, ...] = ()
    rate: int = 0
    full: bool = False
    source: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    python: str = ""
    user: str = ""
    pickle: bool = False

    @property
    def id(self) -> str:
        return hashlib.sha256(json.dumps(document.plain(self), sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Result:
    """``sources``: bytes that came, by host. ``broken``: what a check has found."""

    revision: kinds.CommitOrEmpty = ""
    digest: kinds.CommitOrEmpty = ""
    changed: kinds.Flag = False
    sources: Mapping[kinds.Host, kinds.Count] = field(default_factory=dict)
    broken: tuple[kinds.Words, ...] = ()


@dataclass(frozen=True)
class Progress:
    """``done``, ``total``: bytes. ``rate``: of the last seconds. ``problem``: a sentence, when it has ended badly."""

    id: str
    model: str
    phase: str
    done: int = 0
    total: int = 0
    rate: float = 0.0
    ended: bool = False
    problem: str = ""
    notes: tuple[str, ...] = ()  # what happened on the way
    result: Result = field(default_factory=Result)

    @property
    def words(self) -> str:
        said = f"{self.phase} {self.model}"
        return f"{said}: {how_far.words(self.done, self.total, self.rate)}" if self.total else said


class Teller:
    """Writes :class:`Progress` for whoever waits, at most once in a second."""

    def __init__(self, work: Work, path: str = PROGRESS, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self.now = Progress(work.id, work.name, "preparing")
        self._told = self._marked = 0.0
        self._mark = 0
        self.phase("preparing")

    def phase(self, name: str, total: int = 0) -> None:
        self.now = replace(self.now, phase=name, done=0, total=total, rate=0.0)
        self._mark, self._marked = 0, self._clock()
        self._write()

    def of(self, name: str, done: int, total: int) -> None:
        """``done`` bytes of a phase, which begins with the first word of it."""
        if self.now.phase != name:
            self.phase(name, total)
        self.at(done, total)

    def add(self, count: int) -> None:
        self.at(self.now.done + count)

    def at(self, done: int, total: int = 0) -> None:
        now = self._clock()
        self.now = replace(self.now, done=done, total=total or self.now.total)
        if now - self._told < _TELL_S:
            return
        if now - self._marked >= 2 * _TELL_S:
            rate = (done - self._mark) / (now - self._marked)
            self.now = replace(self.now, rate=max(0.0, rate))
            self._mark, self._marked = done, now
        self._write()

    def note(self, words: str) -> None:
        self.now = replace(self.now, notes=(*self.now.notes, words)[-_MAX_NOTES:])
        self._write()

    def end(self, problem: str = "", result: Result | None = None) -> None:
        self.now = replace(self.now, ended=True, problem=problem, result=result or Result(), rate=0.0)
        self._write()

    def _write(self) -> None:
        self._told = self._clock()
        keep(self.now, self._path)


def keep(now: Progress, path: str = PROGRESS) -> None:
    """Whole or not at all, for whoever reads it meanwhile."""
    fresh = f"{path}.{os.getpid()}"
    with open(fresh, "w", encoding="utf-8") as stream:
        json.dump(document.plain(now), stream)
    os.replace(fresh, path)


# --- what is done, in the unit ---


def perform(work: Work, teller: Teller) -> Result:
    ways = {COPY: _copy, CHECK: _check, EXPORT: _export, DOWNLOAD: _download, ADOPT: _import, IMPORT: _import}
    return ways[work.kind](work, Cache(work.home), teller)


def _manifest(work: Work) -> Manifest:
    """It comes from another node, and may be of no other model than the one that is copied."""
    of = work.manifest
    if of is None:
        raise SparkError("its manifest is missing", f"{work.name} {work.revision[:12]}", AGAIN)
    if (of.name, of.revision) != (work.name, work.revision or of.revision):
        raise SparkError(
            f"the manifest is of {of.name} {of.revision[:12]}",
            f"{work.name} {work.revision[:12]}",
            "Find out what runs on the machine that it comes from",
        )
    if not work.pickle:
        archive.refuse_pickle(of, work.host or "the node that has it")
    return of


def lacking(cache: Cache, of: Manifest, teller: Teller) -> list[File]:
    """What is missing or broken here, each content once; what is broken is taken out of the cache to be mended."""
    teller.phase("checking", of.size)
    broken = {found.path for found in check.check(cache, of, tell=teller.add).broken}
    for file in of.contents:
        if file.path in broken:
            _take_out(cache, of, file)
        else:
            # An interrupted copy has left a part of it, and somebody has brought all of it since.
            caches.drop_partial(cache, of.revision, file.blob)
    return [file for file in of.contents if file.path in broken and file.size]


def _copy(work: Work, cache: Cache, teller: Teller) -> Result:
    """Fetch from another node what is missing or broken here, then make the model visible as a whole."""
    of = _manifest(work)
    files = lacking(cache, of, teller)
    size = sum(file.size for file in files)
    teller.phase("copying", size)
    way = from_node.Way(work.host, work.addresses, work.rate)
    with alone():
        came = from_node.pull(cache, of, files, way, tell=lambda done: teller.at(done, size), note=teller.note)
    changed = caches.place(cache, of, refs_of(of, work.ref))
    return Result(of.revision, of.digest, changed, {work.host: came} if came else {})


def _take_out(cache: Cache, of: Manifest, file: File) -> None:
    """A file of root's that is broken in parts is mended: it stays the same file for whoever has it open."""
    with contextlib.suppress(OSError), contextlib.ExitStack() as held:
        blobs = held.enter_context(folders.inside(cache.home, (*cache.folder(of.name), "blobs")))
        with folders.opened(file.blob, blobs) as opened:
            owner = os.fstat(opened).st_uid
        if owner == os.geteuid():  # who else may have it open for writing would write after it was read
            target = held.enter_context(folders.inside(cache.home, cache.arriving(of.revision), make=True))
            os.replace(file.blob, file.blob, src_dir_fd=blobs, dst_dir_fd=target)


@contextlib.contextmanager
def alone(lock: str = LOCK) -> Iterator[None]:
    handle = open_lock(lock)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise SparkError(
            "another model comes to this node", lock, "Wait until it has ended: sparkmatrix artifacts status"
        ) from None
    finally:
        os.close(handle)


def _download(work: Work, cache: Cache, teller: Teller) -> Result:
    listing = hub.ask(work.name, work.revision or work.ref, work.environment)
    client = hub.client(work.python, work.environment, work.user)
    of = hub.obtain(cache, listing, listing.choose(work.pickle), client, tell=teller.of, say=teller.note)
    return _placed(work, cache, of)


def _import(work: Work, cache: Cache, teller: Teller) -> Result:
    if os.path.isfile(work.source):
        teller.phase("reading", os.path.getsize(work.source))
        read_ = archive.read(cache, work.source, work.pickle, teller.add)
        of = archive.pick(((one.manifest, one.refs) for one in read_), work.name, work.ref, work.source)
        changed = any(one.changed for one in read_)
        if work.ref != of.revision:
            changed |= caches.point(cache, of.name, work.ref or "main", of.revision)
        return Result(of.revision, of.digest, changed)
    there = importing.find(work.name, work.source or work.home, work.revision or work.ref)
    choice = there.choose(work.pickle)
    teller.phase("reading", sum(there.sizes[path] for path in choice.paths))
    return _placed(work, cache, importing.bring(cache, there, choice, tell=teller.add))


def _placed(work: Work, cache: Cache, of: Manifest) -> Result:
    return Result(of.revision, of.digest, caches.place(cache, of, refs_of(of, work.ref or "main")))


def _export(work: Work, cache: Cache, teller: Teller) -> Result:
    """``name``: several with their revisions, as org/name@commit, with blanks between them."""
    models = [(name, revision) for name, _at, revision in (word.partition("@") for word in work.name.split())]
    teller.phase("writing", sum(one.size for one in caches.kept(cache) if (one.name, one.revision) in models))
    archive.write(cache, models, work.source, teller.add)
    return Result(changed=True)


def refs_of(of: Manifest, ref: str) -> list[str]:
    """What it is to be known as, beside its commit."""
    return [ref] if ref and ref != of.revision else []


def _check(work: Work, cache: Cache, teller: Teller) -> Result:
    of = caches.read(cache, work.name, work.revision)
    if of is None:
        raise SparkError("there is no manifest of it", f"{work.name} {work.revision[:12]}", "Run the layer artifacts")
    teller.phase("checking", of.size)
    seen = check.check(cache, of, full=work.full, tell=teller.add)
    broken = [f"{one.path} {one.found}" for one in seen.broken]
    broken += [f"{path} has no link in the snapshot" for path in seen.unlinked]
    return Result(of.revision, of.digest, broken=tuple(broken))


def parse(values: object, where: str = "") -> Work:
    with json_text.Reading("what to do is damaged", where, AGAIN):
        made: Work = document.load(Work, values)
        return made


def read(path: str = WORK) -> Work:
    try:
        with open(path, "rb") as stream:
            return parse(json_text.read(stream.read(_MOST), path, AGAIN), path)
    except OSError as exc:
        raise SparkError(f"cannot be read ({exc.strerror})", path, AGAIN) from exc


def run(path: str = WORK) -> int:
    """The unit's program: 0 done, 1 not, and why."""
    work = read(path)
    os.unlink(path)
    teller = Teller(work)
    try:
        teller.end(result=perform(work, teller))
    except (SparkError, OSError, ValueError) as exc:
        teller.end(str(exc))
        return 1
    except Exception as exc:
        teller.end(
            f"a fault of this program, or no memory left ({type(exc).__name__}: {exc}); see journalctl -u {UNIT}"
        )
        raise
    return 0


# --- the call of a run of Ansible: started, and waited for ---


@dataclass(frozen=True)
class Request(Work):
    """``part``: seconds after which the answer says how far it is. ``before``: what it said last; the work is then
    waited for, and not begun."""

    part: float = 10.0
    before: Optional[how_far.Waiting] = None

    @property
    def work(self) -> Work:
        return Work(**{item.name: getattr(self, item.name) for item in fields(Work)})


@dataclass(frozen=True)
class Waited:
    changed: kinds.Flag = False
    result: Optional[Result] = None
    waiting: Optional[how_far.Waiting] = None
    notes: tuple[kinds.Words, ...] = ()


def ensure(request: Request, check_mode: bool) -> Waited:
    """It goes on when the computer that Ansible runs on is lost."""
    if check_mode:
        return Waited(True, Result())
    machine, work = Machine(), request.work
    if request.before is None:
        start(machine, work)
    now = wait(machine, work.id, request.part)
    if not now.ended:
        return Waited(waiting=how_far.Waiting(now.words, now.notes))
    return Waited(now.result.changed, now.result, notes=now.notes)


def progress(path: str = PROGRESS) -> Progress | None:
    try:
        with open(path, "rb") as stream:
            made: Progress = document.load(Progress, json_text.read(stream.read(_MOST)))
    except (OSError, TypeError, ValueError, SparkError):
        return None
    return made


def words(now: Progress) -> list[str]:
    end = f"ended: {now.problem}" if now.problem else "done" if now.ended else ""
    return [f"{now.words}{f'; {end}' if end else ''}", *now.notes]


def make_way(machine: Machine, name: str) -> None:
    """What is on its way to the same model ends; raises :class:`SparkError` where it is another one."""
    if not machine.unit(UNIT).alive:
        return
    now = progress(machine.real(PROGRESS))
    if now and now.model != name and not now.ended:
        raise SparkError(
            f"this node is {now.words}",
            UNIT,
            "Wait for it to end (sudo sparkmatrix artifacts status), or end it: sudo systemctl stop"
            f" {UNIT.removesuffix('.service')}",
        )
    machine.command("systemctl", "stop", "--", UNIT, step="ending what was on its way")


def start(machine: Machine, work: Work) -> None:
    """What is on its way to the same model ends first: it goes on where it was."""
    make_way(machine, work.name)
    os.makedirs(machine.real(paths.RUN), mode=0o755, exist_ok=True)
    write_state(WORK, json.dumps(document.plain(work)).encode(), root=machine.root)
    Teller(work, machine.real(PROGRESS))
    machine.command(
        "systemd-run",
        "--quiet",
        "--collect",
        f"--unit={UNIT}",
        f"--description={work.kind} {work.name} (sparkmatrix.cluster)",
        *(f"--property={line}" for line in ASIDE),
        *(f"--property={line}" for line in SANDBOX),
        paths.NODE_PROGRAM,
        "artifacts",
        "work",
        step="starting the work on the model",
        remedy="See systemctl status; nothing was changed",
    )


def wait(machine: Machine, wanted: str, part_s: float) -> Progress:
    """What there is to say after ``part_s`` seconds, or at its end. Raises :class:`SparkError` where it ended badly."""
    deadline = machine.clock() + part_s
    while True:
        alive = machine.unit(UNIT).alive  # before the file, which is written before it ends
        now = progress(machine.real(PROGRESS))
        if now is None or now.id != wanted:
            raise SparkError("another run has taken over the work on models here", UNIT, "Wait for it, then run again")
        if now.ended:
            if now.problem:
                raise SparkError(now.problem)
            return now
        if not alive:
            raise SparkError(
                f"it ended without a word while {now.words}; journalctl -u {UNIT} may say why", UNIT, AGAIN
            )
        if machine.clock() >= deadline:
            return now
        machine.sleep(_POLL_S)
