# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Models of the hub: what a revision consists of is asked before a byte moves; then Hugging Face's client downloads it,
watched, and its files become a manifest.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import stat
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import cache as caches
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import (
    folders,
    hashing,
    hub_client,
    selection,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.cache import Cache
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.manifest import (
    File,
    Manifest,
    check_name,
    check_revision,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text, paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import model_files
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.model_files import Reply

_LARGEST_ANSWER = 64 * 1024 * 1024
_REDIRECTS = 5
_MAX_PAGES = 200
_NEXT = re.compile(r'<([^>]+)>\s*;\s*rel="next"')
_GIT = re.compile(r"[0-9a-f]{40}")
_HASH = re.compile(r"[0-9a-f]{64}")
DOWNLOADED, VERIFIED = "downloaded", "verified"
Tell = Callable[[str, int, int], None]  # phase, bytes so far, bytes of all
Say = Callable[[str], None]  # what happened, for people
_STALLS_WITH_XET = 2
_APART = "block_suspend"
_FRUITLESS = 4  # attempts that brought nothing
# Of the engine's environment, for the client. The token travels by itself.
_PASSED = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy")


@dataclass(frozen=True)
class Remote:
    """A file at the hub. ``blob``: its name in caches; ``xet``: its name in Xet storage, if it is there."""

    path: str
    size: int
    blob: str
    xet: str = ""


@dataclass(frozen=True)
class Listing:
    """A revision as it is at the hub. ``revision``: the commit. ``indexes``: what names the weights."""

    name: str
    revision: str
    hub: str
    files: tuple[Remote, ...]
    indexes: Mapping[str, str] = field(default_factory=dict)

    def choose(self, pickle: bool = False) -> selection.Choice:
        sizes = {remote.path: remote.size for remote in self.files}
        return selection.choose(self.name, sizes, self.indexes, pickle)


@dataclass(frozen=True)
class Client:
    """How the client is started. ``argv``: its Python and the program; ``environment``: of the engine; ``user``: who
    may do nothing else, empty for the present one. ``stall_s``: after so long without a byte it is ended, and goes on
    where it was."""

    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    stall_s: float = 180.0  # Xet writes up to 64 MB at once
    pause_s: float = 5.0


def client(python: str, environment: Mapping[str, str], user: str) -> Client:
    """``python``: of the environment that has Hugging Face's client."""
    return Client((python, "-IB", paths.NODE_PROGRAM, "hub-download"), environment, user)


# --- what there is ---


def ask(name: str, revision: str, environment: Mapping[str, str]) -> Listing:
    """What a revision consists of; two questions and the small files that name the weights."""
    check_name(name)
    where = _Hub(name, revision or "main", environment)
    quoted = urllib.parse.quote(revision or "main", safe="")
    told = where.json(f"/api/models/{name}/revision/{quoted}")
    commit = str(told.get("sha", "")) if isinstance(told, dict) else ""
    try:
        check_revision(commit)
    except ValueError as exc:
        raise where.odd(f"its revision {quoted} has no commit") from exc
    files = tuple(sorted(where.tree(commit), key=lambda remote: remote.path))
    present = {remote.path for remote in files}
    # Everybody may list the files of a gated repository; who may not read its configuration gets no weights either.
    asked = [one for one in (*selection.INDEXES, "config.json", "params.json") if one in present]
    texts = {one: where.get(f"/{name}/resolve/{commit}/{one}").body.decode("utf-8", "replace") for one in asked}
    indexes = {one: text for one, text in texts.items() if one in selection.INDEXES}
    return Listing(name, commit, where.hub, files, indexes)


class _Hub:
    def __init__(self, name: str, revision: str, environment: Mapping[str, str]) -> None:
        self.name, self.revision, self.environment = name, revision, environment
        self.hub = model_files.endpoint(environment)
        self.token = model_files.token(environment)
        if not self.hub.startswith(("https://", "http://")):
            raise SparkError(
                f"HF_ENDPOINT is {self.hub}, which is no address of a hub", name, "Write it like https://huggingface.co"
            )

    def odd(self, found: str) -> SparkError:
        return SparkError(
            f"{self.hub} does not answer as a hub does: {found}",
            self.name,
            "Look at HF_ENDPOINT, and at what stands between this node and the hub (a proxy, a login page)",
        )

    def json(self, path: str) -> Any:
        return self._read(self.get(path))

    def _read(self, reply: Reply) -> Any:
        try:
            return json_text.read(reply.body)
        except SparkError as exc:
            raise self.odd("no JSON") from exc

    def get(self, path: str) -> Reply:
        url = path if path.startswith(("https://", "http://")) else self.hub + path
        for _hop in range(_REDIRECTS):
            asked = urllib.request.Request(url)  # noqa: S310  # the scheme is looked at
            # It is for the hub alone, and not for where that leads.
            if self.token and _origin(url) == _origin(self.hub):
                asked.add_header("Authorization", f"Bearer {self.token}")
            try:
                reply = model_files.request(asked, self.environment, _LARGEST_ANSWER)
            except OSError as exc:
                raise SparkError(*_by(self.name, model_files.unreached(self.hub, exc))) from exc
            if reply.status not in (301, 302, 303, 307, 308):
                break
            url = urllib.parse.urljoin(url, reply.location)
            if not url.startswith(("https://", "http://")):
                raise self.odd("it leads elsewhere")
        problem = model_files.refusal(reply, self.name, self.revision, self.hub, bool(self.token))
        if problem[0]:
            raise SparkError(*_by(self.name, problem))
        if reply.status != 200:
            raise self.odd(f"HTTP {reply.status} for {urllib.parse.urlsplit(url).path}")
        return reply

    def tree(self, commit: str) -> Iterator[Remote]:
        path = f"/api/models/{self.name}/tree/{commit}?recursive=true"
        for _page in range(_MAX_PAGES):
            reply = self.get(path)
            entries = self._read(reply)
            if not isinstance(entries, list):
                raise self.odd("its list of files is none")
            for entry in entries:
                if not isinstance(entry, dict) or entry.get("type") != "file":
                    continue
                yield self._file(entry)
            more = _NEXT.search(reply.link)
            if not more:
                return
            path = more[1]
        raise self.odd("its list of files has no end")

    def _file(self, entry: Mapping[str, Any]) -> Remote:
        large = entry.get("lfs") if isinstance(entry.get("lfs"), dict) else {}
        blob = (large or {}).get("oid") or entry.get("oid")
        size = (large or {}).get("size", entry.get("size"))
        path, xet = entry.get("path"), entry.get("xetHash") or ""
        known = isinstance(blob, str) and (_HASH.fullmatch(blob) or _GIT.fullmatch(blob))
        if not (known and isinstance(path, str) and isinstance(size, int) and 0 <= size < 2**60):
            raise self.odd(f"a file without size or hash ({ascii(path)[:80]})")
        return Remote(path, size, str(blob), xet if isinstance(xet, str) and _HASH.fullmatch(xet) else "")


def _origin(url: str) -> tuple[str, str]:
    """A hub must not lead from https:// to http:// with it either."""
    return urllib.parse.urlsplit(url)[:2]


def _by(name: str, problem: tuple[str, str]) -> tuple[str, str, str]:
    return problem[0], name, problem[1]


# --- bringing it ---


def obtain(
    cache: Cache,
    listing: Listing,
    choice: selection.Choice,
    by: Client,
    *,
    tell: Tell = lambda _phase, _done, _all: None,
    say: Say = lambda _words: None,
) -> Manifest:
    """Downloads what is not here, and verifies all of it. Blobs lie in ``blobs`` below ``cache.partial`` afterwards,
    for :func:`cache.place`; those that other revisions have stay where they are."""
    files = {remote.path: remote for remote in listing.files if remote.path in choice.paths}
    with folders.inside(cache.home, cache.arriving(listing.revision), make=True):
        pass
    work = _Bringing(cache, listing, {remote.blob: remote for remote in files.values()}, tell, say)
    work.measure(work.lacking)
    for _again in range(2):
        if work.lacking:
            work.download(by)
    if work.lacking:
        raise SparkError(
            f"{len(work.lacking)} files that arrive are not what the hub says they are,"
            f" {min(remote.path for remote in work.lacking)} the first",
            listing.name,
            f"Look at what stands between this node and {listing.hub}; a mirror may hold another file under this name",
        )
    folders.remove(cache.home, cache.arriving(listing.revision)[:-1], folders.DOWNLOAD)
    made = [(remote, work.made[remote.blob]) for _path, remote in sorted(files.items())]
    return Manifest(
        listing.name,
        listing.revision,
        tuple(File(remote.path, remote.size, found.sha256, remote.blob) for remote, found in made),
        listing.hub,
    )


@dataclass
class _Bringing:
    """``brings``: the contents that are wanted, by blob. ``made``: those of them that are here and verified."""

    cache: Cache
    listing: Listing
    brings: Mapping[str, Remote]
    tell: Tell
    say: Say
    made: dict[str, hashing.Measured] = field(default_factory=dict)
    _read: int = 0

    @property
    def lacking(self) -> list[Remote]:
        return [remote for blob, remote in self.brings.items() if blob not in self.made]

    def measure(self, some: Sequence[Remote]) -> None:
        counter = hashing.Counter(self._count)
        hashing.at_once(lambda remote: self._measure(remote, counter), some)

    def _count(self, count: int) -> None:
        self._read += count
        size = sum(remote.size for remote in self.brings.values())
        self.tell(VERIFIED, min(self._read, size), size)

    def _measure(self, remote: Remote, counter: hashing.Tell) -> None:
        cache, listing, whole = self.cache, self.listing, self.cache.arriving(self.listing.revision)
        _borrow(cache, listing, remote)
        for place in ((*cache.folder(listing.name), "blobs"), whole):
            found = _measure(cache, place, remote, counter)
            if found:
                self.made[remote.blob] = found
                if place != whole:  # what an interrupted copy has left of it
                    caches.drop_partial(cache, listing.revision, remote.blob)
                return

    def download(self, by: Client) -> None:
        """What lacks; what arrives and is something else is removed."""
        cache, listing, some = self.cache, self.listing, self.lacking
        with _download_folder(cache, listing.revision, by.user) as place:
            download(listing, some, place, by, tell=self.tell, say=self.say)
            for remote in some:
                _take(cache, listing.revision, remote)
        self.measure(some)
        for remote in self.lacking:
            caches.drop_partial(cache, listing.revision, remote.blob)
            self.say(f"{remote.path} is not what {listing.hub} says it is; it is downloaded again")


def _borrow(cache: Cache, listing: Listing, remote: Remote) -> None:
    """What newer clients keep in a store that models share gets a second name; it is read like all others."""
    shared = caches.shared_blob(cache, cache.blob(listing.name, remote.blob))
    if shared:
        *above, name = os.path.relpath(shared, os.path.realpath(cache.home)).split("/")
        with contextlib.ExitStack() as held:
            held.enter_context(contextlib.suppress(OSError))
            source = held.enter_context(folders.inside(cache.home, above))
            target = held.enter_context(folders.inside(cache.home, cache.arriving(listing.revision)))
            os.link(name, remote.blob, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)


def _measure(cache: Cache, place: Sequence[str], remote: Remote, tell: hashing.Tell) -> hashing.Measured | None:
    """Of a file that is what the hub says it is."""
    try:
        with folders.inside(cache.home, place) as directory, folders.opened(remote.blob, directory) as file:
            found = hashing.measure(file, tell) if os.fstat(file).st_size == remote.size else None
    except OSError:
        return None
    return found if found and remote.blob in (found.sha256, found.git) else None


@contextlib.contextmanager
def _download_folder(cache: Cache, revision: str, user: str) -> Iterator[str]:
    with folders.inside(cache.home, (folders.OWN, "partial", revision, folders.DOWNLOAD), make=True) as directory:
        if user and os.geteuid() == 0:
            uid, gid = _account(user)
            os.fchown(directory, uid, gid)
    yield str(cache.partial(revision) / folders.DOWNLOAD)


def _as(user: str) -> list[str]:
    """How a command becomes the account's: not alike to the account's other processes, Ray and the engine among them.

    A process with a capability is opened to none that lacks it, from its first instruction on: neither what /proc shows
    of it (files, memory, environment) nor ptrace (capabilities(7)). This one lets it do nothing that matters. Another
    real group would do the same and make the loader ignore $ORIGIN, by which some Pythons find their libraries.
    """
    if not user or os.geteuid() != 0:
        return []
    uid, gid = _account(user)
    ids = [f"--reuid={uid}", f"--regid={gid}", "--clear-groups"]
    return ["setpriv", *ids, f"--inh-caps=+{_APART}", f"--ambient-caps=+{_APART}", "--"]


def _account(user: str) -> tuple[int, int]:
    import pwd  # noqa: PLC0415  # not on the controllers of other systems

    try:
        found = pwd.getpwnam(user)
    except KeyError as exc:
        raise SparkError(f"there is no user {user}", "hub client", "Name one that there is") from exc
    return found.pw_uid, found.pw_gid


def _take(cache: Cache, revision: str, remote: Remote) -> None:
    """Out of the reach of who downloaded it, and only then read."""
    whole = cache.arriving(revision)
    from_ = (*whole[:-1], folders.DOWNLOAD)
    place = os.path.join(cache.home, *from_)
    with folders.inside(cache.home, from_) as source, folders.inside(cache.home, whole) as target:
        try:
            opened = folders.open_file(remote.blob, source)
        except FileNotFoundError:
            return  # it came by another name already
        except OSError as exc:
            raise SparkError(f"{remote.blob} is no file", place, "Remove this directory and run this again") from exc
        os.rename(remote.blob, remote.blob, src_dir_fd=source, dst_dir_fd=target)
        try:
            now = os.stat(remote.blob, dir_fd=target, follow_symlinks=False)
            if (now.st_ino, now.st_nlink) != (os.fstat(opened).st_ino, 1) or not stat.S_ISREG(now.st_mode):
                os.unlink(remote.blob, dir_fd=target)
                raise SparkError(f"{remote.blob} was exchanged", place, "Look at who works as the user of the download")
            caches.settle(opened)
        finally:
            os.close(opened)


# --- the client ---


def download(
    listing: Listing,
    files: Sequence[Remote],
    place: str,
    by: Client,
    *,
    tell: Tell = lambda _phase, _done, _all: None,
    say: Say = lambda _words: None,
) -> None:
    """Until all files are there, by as many runs of the client as it takes; each begins where the last one ended."""
    asked = json.dumps(
        {
            "name": listing.name,
            "revision": listing.revision,
            "hub": listing.hub,
            "place": place,
            "files": [
                {"path": remote.path, "size": remote.size, "blob": remote.blob, "xet": remote.xet} for remote in files
            ],
        }
    )
    size = sum(remote.size for remote in files)
    stalls = fruitless = 0
    while True:
        before = _arrived(place)
        xet = stalls < _STALLS_WITH_XET
        ended = _attempt(
            asked,
            place,
            _environment(listing, by.environment, xet),
            by,
            lambda now: tell(DOWNLOADED, now, size),
        )
        if not ended:
            return
        kind, says = ended
        ends = {
            hub_client.REFUSED: (
                f"{listing.hub} refuses it ({says})",
                listing.name,
                f"Look at {listing.hub}/{listing.name} with the account that the token is of: its licence may have to"
                " be accepted there",
            ),
            hub_client.DISK: (
                f"the disk is full ({says})",
                place,
                "Remove models that nobody needs (the playbook artifacts.yml lists them)",
            ),
            hub_client.CLIENT: (
                f"the client of Hugging Face is not the one that this release knows ({says})",
                by.argv[0],
                "Remove its Python environment and run the layer artifacts again",
            ),
        }
        if kind in ends:
            raise SparkError(*ends[kind])
        stalls += kind == _STALLED
        fruitless = 0 if _arrived(place) > before else fruitless + 1
        if fruitless >= _FRUITLESS:
            raise SparkError(
                f"{listing.hub} sends nothing any more ({says})",
                listing.name,
                "Look at the network of this node and at https://status.huggingface.co, and run this again: it goes on"
                f" where it was, with {_arrived(place)} bytes of {size}",
            )
        without = ", without Xet" if xet and stalls >= _STALLS_WITH_XET else ""
        say(
            f"The download of {listing.name} stopped ({says}); it goes on at {_arrived(place)} bytes of {size}{without}"
        )
        time.sleep(by.pause_s * (1 + fruitless))


_STALLED = "stalled"


def _attempt(
    asked: str, place: str, environment: Mapping[str, str], by: Client, tell: Callable[[int], None]
) -> tuple[str, str] | None:
    """One run of the client: nothing where it has brought everything, else why not."""
    token = model_files.token(environment)
    with contextlib.ExitStack() as stack:
        named = {one: text for one, text in environment.items() if one not in ("HF_HOME", "HF_TOKEN_PATH")}
        fds = []
        if token:
            # In memory only: no other user may read the file, and no disk has to keep it.
            fds.append(os.memfd_create("token", 0))
            stack.callback(os.close, fds[0])
            os.write(fds[0], token.encode())
            named["HF_TOKEN_PATH"] = f"/proc/self/fd/{fds[0]}"
        given, out, err = (stack.enter_context(tempfile.TemporaryFile()) for _each in range(3))
        given.write(asked.encode())
        given.seek(0)
        try:
            process = subprocess.Popen(  # pylint: disable=ansible-bad-function,consider-using-with
                [*_as(by.user), *by.argv],
                stdin=given,
                stdout=out,
                stderr=err,
                cwd="/",
                env=named,
                pass_fds=fds,
                start_new_session=True,
                umask=0o077,
            )
        except OSError as exc:
            raise SparkError(
                f"the client of Hugging Face does not start ({exc.strerror})",
                by.argv[0],
                "Run the layer artifacts again",
            ) from exc
        try:
            stalled = _watch(process, place, by.stall_s, tell)
        finally:
            _end(process)
        if process.returncode == 0 and not stalled:
            return None
        if stalled:
            return _STALLED, f"no byte for {by.stall_s:.0f} s"
        return _why(_last(out), _last(err), process.returncode)


def _environment(listing: Listing, environment: Mapping[str, str], xet: bool) -> dict[str, str]:
    """Of the client: nothing of the one that this runs in."""
    authorities = environment.get("SSL_CERT_FILE") or environment.get("REQUESTS_CA_BUNDLE")
    named = {
        **{one: environment[one] for one in (*_PASSED, "HF_HOME", "HF_TOKEN_PATH") if environment.get(one)},
        "HF_ENDPOINT": listing.hub,
        "HOME": "/nonexistent",
        "LC_ALL": "C.UTF-8",
        "PATH": "/usr/bin:/bin",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HF_XET_CACHE": "/nonexistent",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_UPDATE_CHECK": "1",
    }
    if authorities:
        named["SSL_CERT_DIR" if os.path.isdir(authorities) else "SSL_CERT_FILE"] = authorities
    if not xet:
        named["HF_HUB_DISABLE_XET"] = "1"
    return named


def _watch(process: subprocess.Popen[bytes], place: str, stall_s: float, tell: Callable[[int], None]) -> bool:
    """Until it ends; true where nothing arrives any more."""
    arrived, since = _arrived(place), time.monotonic()
    while True:
        try:
            process.wait(min(1.0, stall_s / 10))
            break
        except subprocess.TimeoutExpired:
            pass
        now = _arrived(place)
        if now != arrived:
            arrived, since = now, time.monotonic()
            tell(now)
        elif time.monotonic() - since > stall_s:
            return True
    tell(_arrived(place))
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """And whatever it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _arrived(place: str) -> int:
    total = 0
    with contextlib.suppress(OSError), os.scandir(place) as found:
        for entry in found:
            with contextlib.suppress(OSError):
                total += entry.stat(follow_symlinks=False).st_size
    return total


def _last(file: Any) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
    text: str = file.read().decode("utf-8", "replace").strip()
    return text.rpartition("\n")[2]


def _why(out: str, err: str, code: int) -> tuple[str, str]:
    try:
        told = json_text.mapping(out)
        return str(told["kind"]), str(told["says"])
    except (LookupError, SparkError):
        return hub_client.NETWORK, err[:500] or f"it ended with {code}"
