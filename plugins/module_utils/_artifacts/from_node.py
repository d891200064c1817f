# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A model from another node: rsync over the nodes' own ssh, several streams at once, and then each file's SHA-256.

The node that has it answers one word of its peers (``model``) while a run of Ansible has it offered: an rsync daemon on
the directory of that model's files, of an account that may do nothing, which sends and takes nothing. On the other side
root writes into a directory of its own. Below the cache neither side follows a link.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shlex
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import check, folders
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.cache import Cache
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.manifest import File, Manifest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, json_text, paths, strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Flag

OFFER, CONFIG = "model-offer.json", "model-rsyncd.conf"  # readable for everybody, also for the daemon
WORD = "model"  # of a peer, see _keeper/forced_command.py
NICE = 15  # see tests/bench/beside_engine.py
STREAMS = 4  # one core of each side encrypts a stream
_TOGETHER = 256 * 1024 * 1024  # bytes; files that are smaller come with others
_SILENT_S = 600  # with data, while a side reads what is there of a file; ssh notices in 10 s who is gone
_TRIES = 5  # that bring nothing
_PAUSE_S = 3.0
_MAX_SAID = 500
_RECEIVED = re.compile(rb"received (\d+) bytes")
# AES is in the processor, and faster there than what ssh prefers.
_SSH = (
    *("ssh", "-F", f"{paths.SSH}/config", "-T", "-o", "Ciphers=^aes128-gcm@openssh.com", "-o", "LogLevel=ERROR"),
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=2", "%H", WORD),
)
_DAEMON = """\
use chroot = no
reverse lookup = no
[model]
path = /proc/self/cwd
read only = yes
list = no
"""
AGAIN = "Run it again with the ssh between nodes, it goes on here: ansible-playbook site.yml --tags access,artifacts"
Tell = Callable[[int], object]  # bytes that are here
Note = Callable[[str], object]


# --- the node that has it ---


@dataclass(frozen=True)
class Offer:
    """``home``: engine_model_cache."""

    home: str
    name: str
    open: bool = True


@dataclass(frozen=True)
class Offered:
    changed: Flag = False


def offer(wanted: Offer, check_mode: bool) -> Offered:
    """Other nodes may read the files of this model, until the offer ends or the node restarts."""
    if not check_mode and wanted.open:
        publish(wanted)
    elif not check_mode:
        folders.remove(paths.RUN, (), OFFER)
    return Offered()


def publish(wanted: Offer, run: str = paths.RUN) -> None:
    folders.write(run, (), CONFIG, _DAEMON.encode())
    folders.write(run, (), OFFER, json.dumps(document.plain(wanted)).encode())


def serve(run: str = paths.RUN) -> None:
    """Becomes the daemon, on standard input and output."""
    with json_text.Reading("what is offered is damaged", OFFER, AGAIN):
        told = folders.read_json(run, (), OFFER)
        if told is None:
            raise SparkError("no model is offered here", OFFER, AGAIN)
        wanted: Offer = document.load(Offer, told)
    cache = Cache(wanted.home)
    with folders.inside(cache.home, (*cache.folder(wanted.name), "blobs")) as blobs:
        os.fchdir(blobs)
        owner = os.fstat(blobs)
    if os.geteuid() == 0:
        # Others may not get as far as its files where the cache belongs to an account of its own.
        nobody = pwd.getpwnam("nobody")
        os.setgroups([])
        os.setgid(owner.st_gid if owner.st_uid else nobody.pw_gid)
        os.setuid(owner.st_uid or nobody.pw_uid)
    os.execvp("rsync", ["rsync", "--server", "--daemon", f"--config={run}/{CONFIG}", "."])  # noqa: S606 - the account above


def give_way(root: str = "/proc") -> None:
    """To an engine that serves: this process and those above it, up to the one of sshd that encrypts."""
    pid = os.getpid()
    while True:
        told = Path(root, str(pid), "stat").read_text(encoding="ascii", errors="replace")
        above = int(told.rpartition(")")[2].split()[1])
        if above <= 1:  # sshd itself, which has to let others in
            return
        os.setpriority(os.PRIO_PROCESS, pid, NICE)
        pid = above


# --- the nodes that get it ---


@dataclass(frozen=True)
class Way:
    """``host``: that has it, for messages. ``addresses``: of it, one per half; streams are spread over them.
    ``rate``: bytes per second at most, 0 without limit. ``connect``: what leads to its daemon."""

    host: str
    addresses: Sequence[str]
    rate: int = 0
    connect: Sequence[str] = _SSH
    pause_s: float = _PAUSE_S

    def argv(self, stream: int, streams: int, mend: bool) -> list[str]:
        limit = [f"--bwlimit={max(1, self.rate // streams // 1024)}"] if self.rate else []
        # What is here of a file is its beginning, and stays; or somebody has looked, and it is not.
        how = ["--inplace", "--ignore-times"] if mend else ["--append-verify"]
        address = self.addresses[stream % len(self.addresses)]
        return [
            "rsync",
            "--files-from=-",
            "--info=stats1",
            "--no-human-readable",
            f"--timeout={_SILENT_S}",
            *how,
            *limit,
            f"rsync://{address}/model/",
            ".",
        ]


def pull(cache: Cache, of: Manifest, lacking: Sequence[File], way: Way, *, tell: Tell, note: Note) -> int:
    """``lacking``: files, each content once. They lie in ``cache.partial`` afterwards, whole and verified; what is
    there of them already is used. The bytes that came. Raises :class:`SparkError`."""
    with folders.inside(cache.home, cache.arriving(of.revision), make=True) as directory:
        some = list(batches(lacking))
        work = _Pull(way, directory, note, min(STREAMS, len(some)))
        with ThreadPoolExecutor(STREAMS) as pool:
            running = [pool.submit(work.bring, batch, number) for number, batch in enumerate(some)]
            failed: set[Future[None]] = set()
            try:
                while not failed:
                    going = wait(running, 1.0, FIRST_EXCEPTION)
                    failed = {future for future in going.done if future.exception()}
                    tell(sum(there(file, directory) for file in lacking))
                    if not going.not_done:
                        break
            finally:
                for future in running:
                    future.cancel()
                work.end()
        for future in failed:
            future.result()
    return work.received


def batches(files: Sequence[File]) -> Iterator[list[File]]:
    """The large ones by themselves and first, the others together."""
    small: list[File] = []
    for file in sorted(files, key=lambda one: -one.size):
        if file.size >= _TOGETHER:
            yield [file]
        else:
            small.append(file)
            if sum(other.size for other in small) >= _TOGETHER:
                yield small
                small = []
    if small:
        yield small


@dataclass
class _Pull:
    way: Way
    directory: int
    note: Note
    streams: int
    stop: threading.Event = field(default_factory=threading.Event)
    running: set[subprocess.Popen[bytes]] = field(default_factory=set)
    received: int = 0

    def end(self) -> None:
        self.stop.set()
        for process in list(self.running):
            process.terminate()

    def bring(self, batch: Sequence[File], number: int) -> None:
        left, mend, fruitless, stream = list(batch), False, 0, number
        while left and not self.stop.is_set():
            before = sum(there(file, self.directory) for file in left)
            problem = self._rsync(left, stream, mend)
            if not problem:
                left = [file for file in left if not check.fits(file, self.directory)]
                if left and mend:
                    raise SparkError(
                        f"what {self.way.host} gives as {left[0].path} is not what its manifest says",
                        left[0].path,
                        f"Look at the disk of {self.way.host}: -e artifacts_action=verify",
                    )
                mend = True
                continue
            fruitless = 0 if sum(there(file, self.directory) for file in left) > before else fruitless + 1
            if fruitless == _TRIES or self.stop.is_set():
                raise SparkError(f"{self.way.host} does not give it: {problem}", left[0].path, AGAIN)
            self.note(f"{self.way.host}: {problem}; it goes on where it was")
            stream += 1  # the other half, where one is down
            self.stop.wait(self.way.pause_s)

    def _rsync(self, files: Sequence[File], stream: int, mend: bool) -> str:
        """What went wrong, or nothing."""
        with subprocess.Popen(  # pylint: disable=ansible-bad-function
            self.way.argv(stream, self.streams, mend),
            cwd=folders.path(self.directory),
            env={**os.environ, "RSYNC_CONNECT_PROG": shlex.join(self.way.connect).replace("'%H'", "%H")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as rsync:
            self.running.add(rsync)
            out, told = rsync.communicate("".join(f"{file.blob}\n" for file in files).encode())
            self.running.discard(rsync)
            self.received += sum(int(count) for count in _RECEIVED.findall(out))
        if not rsync.returncode:
            return ""
        said = told.decode(errors="replace").strip().splitlines()
        return strict.words("; ".join(said[:2])[:_MAX_SAID] or f"rsync ended with {rsync.returncode}")


def there(file: File, directory: int) -> int:
    """Bytes of it that a directory has."""
    try:
        return min(file.size, os.stat(file.blob, dir_fd=directory, follow_symlinks=False).st_size)
    except OSError:
        return 0
