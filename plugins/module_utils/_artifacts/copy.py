# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""``sparkmatrix-node artifacts copy``: the program that copies a model between nodes, and how far it is.

One runs on each node that has the model or is to get it. It serves what it has and fetches what it lacks, nobody
directs it, and it ends when every receiver is whole or has failed, when nothing has moved anywhere for a while, or when
it takes longer than its bytes may, whatever the others say.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import ssl
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import manifest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.fetch import (
    CONNECTIONS,
    Link,
    Patience,
    Receiver,
    Source,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.journal import Store, count, first
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.serve import Server
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.talk import (
    COPYING,
    FAILED,
    WHOLE,
    Board,
    Bucket,
    NodeState,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, json_text, paths, ports, strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import open_lock

JOB = f"{paths.RUN}/artifacts-job.json"
STATUS = f"{paths.RUN}/artifacts-status.json"
LOCK = f"{paths.RUN}/artifacts.lock"
STALL_S = 60.0
SLOWEST = 10_000_000  # bytes per second: a copy on which somebody is slower ends
SPARE_S = 600.0  # for those who begin later
LINGER_S = 5.0  # after the end, for those who have not heard of it
TICK_S = 0.1
AGAIN = "Run the layer artifacts again, it goes on where this ended: ansible-playbook site.yml --tags artifacts"
_MOST_JOB = 256 * 1024 * 1024
_ANY_TIME = ssl.VerifyFlags(0x200000)  # X509_V_FLAG_NO_CHECK_TIME: clocks of new machines differ
_CERTIFICATE = "-----BEGIN CERTIFICATE-----"
_TOKEN = 32  # characters at least


@dataclass(frozen=True)
class Peer:
    """Another node of the copy that a cable of this one, or its switch, leads to."""

    host: str
    links: tuple[Link, ...]


@dataclass(frozen=True)
class Job:
    """What the program is told, in a file that only root can read.

    ``receivers``: hosts that must be whole in the end. ``peers``: in the order in which they are asked. ``manifest``:
    path of the model's manifest. ``partial``: directory for what arrives. ``home``: above it; no link below it is
    followed. ``whole``: files that are here and verified, by blob. ``rate``: bytes per second in each direction, 0
    without limit. ``certificate``: text of the key and the certificate that all nodes of this copy share, for TLS in
    both directions; empty without.
    """

    host: str
    token: str
    receivers: tuple[str, ...]
    peers: tuple[Peer, ...]
    manifest: str
    partial: str
    home: str = ""
    whole: Mapping[str, str] = field(default_factory=dict)
    port: int = ports.ARTIFACTS
    rate: int = 0
    stall_s: float = STALL_S
    certificate: str = ""


@dataclass(frozen=True)
class Status:
    """``phase``: of this node. ``complete``: every receiver is whole. ``size``, ``lacking``, ``sent``: bytes.
    ``nodes``: of all, as far as this one knows. ``sources``: bytes by host. ``problems``: sentences."""

    host: str
    model: str
    revision: str
    phase: str = COPYING
    ended: bool = False
    complete: bool = False
    segments: int = 0
    verified: int = 0
    size: int = 0
    lacking: int = 0
    sent: int = 0
    rate: float = 0.0
    eta_s: float = -1.0  # -1: not known
    sources: Mapping[str, int] = field(default_factory=dict)
    nodes: Mapping[str, NodeState] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    at: float = 0.0  # seconds since 1970


def read_job(path: str) -> Job:
    """Raises :class:`SparkError`."""
    text = _content(path, secret=True)
    with json_text.Reading("the description of the copy is damaged", path, AGAIN):
        read: Job = document.load(Job, json_text.read(text))
        for host in (read.host, *read.receivers, *(peer.host for peer in read.peers)):
            strict.host(host)
        for link in (link for peer in read.peers for link in peer.links):
            strict.ipv4(link.here)
            strict.ipv4(link.there)
        if len(strict.word(read.token)) < _TOKEN:
            raise ValueError(f"token has fewer than {_TOKEN} characters")
        strict.whole(1, 65535)(read.port)
        strict.whole(0)(read.rate)
        return read


def read_manifest(path: str) -> manifest.Manifest:
    text = _content(path)
    with json_text.Reading("the manifest is damaged", path, AGAIN):
        return manifest.parse(json_text.read(text))


def _content(path: str, secret: bool = False) -> bytes:
    try:
        with open(path, "rb") as stream:
            if secret and os.fstat(stream.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise SparkError("others can read it, and it has the copy's token", path, "Make it 0600 and root's")
            return stream.read(_MOST_JOB)
    except OSError as exc:
        raise SparkError(f"cannot be read ({exc.strerror})", path, AGAIN) from exc


def contexts(job: Job) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    """For serving and for fetching: both sides show the one certificate of the copy and take no other."""
    if not job.certificate:
        return None, None
    made = []
    for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # it names no host, it is known itself
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= _ANY_TIME
        try:
            context.load_verify_locations(cadata=job.certificate[job.certificate.find(_CERTIFICATE) :])
            _load(context, job.certificate)
        except (OSError, ValueError) as exc:
            raise SparkError(f"the certificate of the copy does not work ({exc})", job.host, AGAIN) from exc
        made.append(context)
    return made[0], made[1]


def _load(context: ssl.SSLContext, pem: str) -> None:
    """Python reads a key from files only; this one is in memory, so that none is left, however this ends."""
    with open(os.memfd_create("certificate", os.MFD_CLOEXEC), "w", encoding="ascii") as file:
        file.write(pem)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")


class Copy:
    """One copy on this node, from :meth:`begin` to :meth:`end`; :meth:`step` is called in between."""

    def __init__(
        self, job: Job, of: manifest.Manifest, patience: Patience | None = None, linger_s: float = LINGER_S
    ) -> None:
        self.job = job
        self.manifest = of
        self.store = Store(of, job.partial, job.whole, job.home)
        self.board = Board(job.host, {*job.receivers, *(peer.host for peer in job.peers)})
        self.failure = ""
        self._linger_s = linger_s
        self._began = 0.0
        self._ended_because = ""
        serving, fetching = contexts(job)
        links = [link for peer in job.peers for link in peer.links]
        self.server = Server(
            self.store,
            self.board,
            job.token,
            addresses=list(dict.fromkeys(link.here for link in links)),
            port=job.port,
            peers={link.there for link in links},
            limit=Bucket(job.rate),
            context=serving,
        )
        self.receiver = Receiver(
            self.store,
            self.board,
            [Source(peer.host, peer.links) for peer in job.peers],
            token=job.token,
            port=job.port,
            connections=CONNECTIONS,
            limit=Bucket(job.rate),
            patience=patience,
            context=fetching,
            arrived=self.server.arrived,
        )

    @property
    def most_s(self) -> float:
        """No node can draw it out by saying that it gets on."""
        return SPARE_S + self.store.bytes / (min(SLOWEST, self.job.rate / 8) if self.job.rate else SLOWEST)

    def begin(self) -> None:
        self._began = time.monotonic()
        if not self.store.in_cache:
            try:
                self.store.open()
            except SparkError as exc:
                self.failure = str(exc)
                self.receiver.failure = self.failure
        self._tell()
        self.server.begin()
        self.receiver.begin()

    def end(self) -> None:
        self.receiver.end()
        self.server.end()
        self.store.close()

    def step(self) -> bool:
        """Whether the copy goes on."""
        self._tell()
        now = time.monotonic()
        states = self.board.nodes()
        if not all(states[host].phase in (WHOLE, FAILED) for host in self.job.receivers):
            self.board.over_at = 0.0
            if now - self.board.moved_at >= self.job.stall_s:
                self._ended_because = f"nothing has moved for {self.job.stall_s:g} s"
            elif now - self._began >= self.most_s:
                self._ended_because = f"the copy has taken {self.most_s:.0f} s, more than its bytes may"
            return not self._ended_because
        self.board.over_at = self.board.over_at or now
        begun = self._began + 6 * self._linger_s  # until then some may not have, who would wait for this node
        sources = [one for one in self.receiver.sources if one.seen or now < begun]
        waiting = [one for one in sources if not one.over and not self._knows(one)]
        return bool(waiting) and now < max(self.board.over_at + self._linger_s, begun)

    def _knows(self, source: Source) -> bool:
        return any(self.server.told.get(link.there, 0.0) > self.board.over_at for link in source.links)

    def _tell(self) -> None:
        self.failure = self.failure or self.receiver.failure
        phase = WHOLE if self.store.is_whole else FAILED if self.failure else COPYING
        self.board.tell(phase, self.receiver.received, self.store.lacking, self.failure)

    def status(self, ended: bool = False) -> Status:
        states = self.board.nodes()
        own = states[self.job.host]
        lacking = self.store.lacking
        rate = self.receiver.rate if own.phase == COPYING and not ended else 0.0
        return Status(
            host=self.job.host,
            model=self.manifest.name,
            revision=self.manifest.revision,
            phase=own.phase,
            ended=ended,
            complete=all(states[host].phase == WHOLE for host in self.job.receivers),
            segments=count(self.store.wanted),
            verified=count(self.store.wanted & self.store.have),
            size=self.store.bytes,
            lacking=lacking,
            sent=self.server.sent,
            rate=rate,
            eta_s=lacking / rate if rate > 1 else -1.0,
            sources={one.host: one.received for one in self.receiver.sources if one.received},
            nodes=states,
            problems=tuple(self._problems(states, ended)),
            at=time.time(),
        )

    def _problems(self, states: Mapping[str, NodeState], ended: bool) -> list[str]:
        found = [self.failure] if self.failure else []
        found += self.server.problems
        found += self.receiver.problems() if states[self.job.host].phase != WHOLE else []
        found += [self._ended_because] if ended and self._ended_because else []
        for host in self.job.receivers if ended else ():
            state = states[host]
            if host != self.job.host and state.phase != WHOLE:
                lacks = f"{host} lacks {state.lacking} bytes" if state.beat else f"{host} has not been heard of"
                found.append(f"{lacks} ({state.said})" if state.said else lacks)
        if ended and states[self.job.host].phase == COPYING:
            missing = self.store.missing
            one = self.store.segments[first(missing)]
            found.append(
                f"{self.job.host} lacks {self.store.lacking} bytes in {count(missing)} segments, the first in"
                f" {one.file.path} at byte {one.offset}"
            )
        return found


def copy(job: Job, of: manifest.Manifest, tell: Callable[[Status], object]) -> Status:
    one = Copy(job, of)
    one.begin()
    told = 0.0
    try:
        while one.step():
            if time.monotonic() - told > 1.0:
                told = time.monotonic()
                tell(one.status())
            time.sleep(TICK_S)
        last = one.status(ended=True)
        tell(last)
    finally:
        one.end()
    return last


@contextlib.contextmanager
def alone(lock: str = LOCK) -> Iterator[None]:
    handle = open_lock(lock)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise SparkError(
            "another copy of a model runs on this node", lock, "Wait until it has ended: sparkmatrix artifacts status"
        ) from None
    finally:
        os.close(handle)


def is_running(lock: str = LOCK) -> bool:
    """Whether a copy holds the lock."""
    try:
        handle = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(handle)


def keep(status: object, path: str = STATUS) -> None:
    """Whole or not at all, for whoever reads it meanwhile."""
    fresh = f"{path}.{os.getpid()}"
    with open(fresh, "w", encoding="utf-8") as stream:
        json.dump(document.plain(status), stream)
    os.replace(fresh, path)


def last(path: str = STATUS, lock: str = LOCK) -> Status | None:
    """The last status on this node; None where nothing was copied since the boot."""
    if not os.path.exists(path):
        return None
    text = _content(path)
    with json_text.Reading("the status of the copy cannot be read", path, "Run as root"):
        read: Status = document.load(Status, json_text.read(text))
    if read.ended or is_running(lock):
        return read
    return replace(read, ended=True, problems=(*read.problems, f"the copy on {read.host} was killed. {AGAIN}"))


def words(status: Status) -> list[str]:
    """For people, first this node."""
    done = status.size - status.lacking
    line = f"{status.host}: {status.model} {status.revision[:12]}: {status.phase}, {_percent(done, status.size)}"
    line += f" ({done / 1e9:.1f} of {status.size / 1e9:.1f} GB)"
    if status.rate:
        line += f", {status.rate / 1e9:.2f} GB/s"
    if status.eta_s >= 0:
        line += f", {status.eta_s:.0f} s left"
    if status.sources:
        line += f", from {', '.join(sorted(status.sources, key=lambda host: -status.sources[host]))}"
    if status.ended:
        line += "; ended"
    others = [
        f"{host}: {state.phase}, {_percent(status.size - state.lacking, status.size)}"
        if state.beat
        else f"{host}: silent"
        for host, state in sorted(status.nodes.items())
        if host != status.host
    ]
    return [line, *others, *(f"problem: {one}" for one in status.problems)]


def _percent(part: int, whole: int) -> str:
    return f"{100 * part // whole if whole else 100} %"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--job", default=JOB, help="file with the job (default: %(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """0: every receiver is whole. 1: not, and standard error says why."""
    try:
        job = read_job(arguments.job)
        of = read_manifest(job.manifest)
        with alone():
            status = copy(job, of, keep)
    except SparkError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    (sys.stdout if status.complete else sys.stderr).write("".join(f"{line}\n" for line in words(status)))
    return 0 if status.complete else 1
