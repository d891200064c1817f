# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A container image on its way from one node to the others: offered by one, fetched by Docker itself on the others.

To Docker the other node is a registry on loopback, which it takes without TLS and without a word in its configuration:
it checks every digest, has layers that it knows already, and goes on where a connection broke. Which image it is was
said by the node that gives, to the run of Ansible; of one that is named by its digest, the registry's own documents are
checked (:mod:`.image_pin`).
"""

from __future__ import annotations

import hashlib
import http.client
import itertools
import json
import os
import re
import socket
import socketserver
import stat
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import image_pin, image_source
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.image_blobs import Blob, Offer, Offered
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import (
    document,
    listening,
    meminfo,
    paths,
    unit_sandbox,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Runner, run
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Flag, Word
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.ports import IMAGES
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import image as engine_image
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._firewall.port_filter import SLICE
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import drop_state, write_state

LOOPBACK = "127.0.0.1"
UNIT = "sparkmatrix-images.service"
OFFER = f"{paths.RUN}/images.json"
_CONNECT_S = 10.0
_END_S = 0.05  # the most that its end is waited for
_CHUNK = 1 << 20
_COMPILER = 6 * 1024**3  # bytes that nvcc takes for a file of kernels; 3 to 8 GiB are reported
_SAID = 1500  # characters of what a build says last
_TOKEN = 32  # characters at least
_PATIENCE_S = 120.0  # with Docker's first byte
_TLS = b"\x16"
# What Go's own server says, by which a client of Go knows that it has to ask without TLS.
_NO_TLS = b"HTTP/1.0 400 Bad Request\r\nConnection: close\r\n\r\n"
# Files of images are anybody's, hence the capability; what is not named here is not there to be read.
_SANDBOX = (
    *unit_sandbox.ANY,
    "TemporaryFileSystem=/:ro",
    *unit_sandbox.WITHOUT_DEVICES,
    "RestrictAddressFamilies=AF_UNIX AF_INET",
    "CapabilityBoundingSet=CAP_DAC_READ_SEARCH",
)
_SEEN = ("/usr", "-/bin", "-/lib", "-/lib64", "-/etc/ld.so.cache", "/run/systemd/notify", paths.NODE_PROGRAM, OFFER)


def repository(name: str) -> str:
    """What an image is called on its way."""
    return f"sparkmatrix/{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def reference(name: str, root: str) -> str:
    return f"{LOOPBACK}:{IMAGES}/{repository(name)}@{root}"


# --- calls ---


@dataclass(frozen=True)
class Built:
    dockerfile: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)  # beside it: content by path


@dataclass(frozen=True)
class Offering:
    """``fetch``: images that have to be there, from their registries, from ``archive`` (a file of this node) or, those
    of ``builds``, from a Dockerfile. ``images``: to offer to other nodes, those of ``fetch`` among them, at
    ``addresses`` of this node to the ``allowed`` ones that know ``token``. ``login``: a directory as
    `docker --config` takes it. ``timeout``: seconds that one may take."""

    fetch: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    token: str = ""
    archive: str = ""
    builds: Mapping[str, Built] = field(default_factory=dict)
    login: str = ""
    timeout: float = 7200.0


@dataclass(frozen=True)
class Fetched:
    """``fetched``: what Docker has now and did not have; one of an OCI archive comes by the call image_receive.
    ``ids``: of all that were to be fetched. ``offered``: digests of what is offered."""

    changed: Flag
    fetched: list[Word]
    ids: Mapping[Word, Word]
    offered: Mapping[Word, Word] = field(default_factory=dict)


def fetch(wanted: Offering, check_mode: bool) -> Fetched:
    """The offer is open until it is withdrawn, or nobody has asked for a quarter of an hour."""
    if check_mode:
        there = _ids(wanted.fetch)
        fetched = [name for name in wanted.fetch if name not in there]
        return Fetched(bool(fetched), fetched, there)
    runner = partial(run, timeout_s=wanted.timeout)
    obtained = {
        name: obtain(name, wanted.archive, wanted.login, runner, wanted.builds.get(name)) for name in wanted.fetch
    }
    fetched = [name for name, (_offered, changed) in obtained.items() if changed]
    offers: dict[str, str] = {}
    if wanted.images:
        archived = {name: offered for name, (offered, _changed) in obtained.items() if offered}
        to = Offer(IMAGES, wanted.token, wanted.addresses, wanted.allowed)
        offers = offer(wanted.images, to, archived, runner, login=wanted.login)
    return Fetched(bool(fetched), fetched, _ids(wanted.fetch), offers)


def _ids(names: Sequence[str]) -> dict[str, str]:
    found = {name: engine_image.find(name).id for name in names}
    return {name: one for name, one in found.items() if one}


@dataclass(frozen=True)
class Nothing:
    """Neither asked for nor answered."""


def end_offer(_nothing: Nothing, check_mode: bool) -> Nothing:
    if not check_mode:
        withdraw()
    return Nothing()


@dataclass(frozen=True)
class Coming:
    """``source``: the node that offers it, at ``addresses``, over which connections are spread."""

    image: str
    source: str
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class Receiving:
    """``offered``: by node, the digests of what it has said that it offers. ``timeout``: seconds that one may take."""

    receipts: tuple[Coming, ...]
    token: str
    offered: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    timeout: float = 7200.0


@dataclass(frozen=True)
class Received:
    """``received``: images that were not there."""

    changed: Flag
    received: list[Word]


def get(wanted: Receiving, check_mode: bool) -> Received:
    runner = partial(run, timeout_s=wanted.timeout)
    received = []
    for receipt in wanted.receipts:
        digest = wanted.offered.get(receipt.source, {}).get(receipt.image, "")
        if check_mode or receive(receipt, digest, wanted.token, runner):
            received.append(receipt.image)
    return Received(bool(received), received)


# --- the node that has it --------------------------------------------------------------------------------------------


def obtain(
    name: str, archive: str, login: str, runner: Runner, build: Built | None = None
) -> tuple[Offered | None, bool]:
    """What can be offered of an image that may have to be fetched first, and whether Docker got it by that.

    ``archive``: a file instead of a registry. ``login``: a directory as `docker --config` takes it. ``build``:
    Dockerfile and arguments, from which it is made.
    """
    found = engine_image.find(name, runner)
    if found.id:
        return None, False
    if build:
        _build(name, build, runner, check_login(login) if login else ())
        return None, True
    if archive:
        offered = image_source.from_archive(name, archive)
        if offered is None:
            _load(name, archive, runner)
        return offered, offered is None
    engine_image.pull(name, runner, check_login(login) if login else ())
    return None, True


def _build(name: str, build: Built, runner: Runner, options: Sequence[str]) -> None:
    """From the Dockerfile and its files alone: the image's name says what is in them."""
    arguments = dict(build.arguments)
    if re.search(r"(?m)^\s*ARG\s+MAX_JOBS\b", build.dockerfile):
        arguments.setdefault("MAX_JOBS", str(compilers()))
    words = [f"--build-arg={key}={value}" for key, value in arguments.items()]
    with tempfile.TemporaryDirectory(prefix="sparkmatrix-build-") as context:
        for path, text in {**build.files, "Dockerfile": build.dockerfile}.items():
            file = Path(context, path)
            if ".." in file.parts or context not in map(str, file.parents):
                raise SparkError(f"{path} is no path beside a Dockerfile", f"image {name}")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        done = runner(["docker", *options, "build", "--tag", name, *words, context])
    if done.rc != 0:
        raise SparkError(
            f"it cannot be built (… {done.complaint[-_SAID:]})",
            f"image {name}",
            "Mend the Dockerfile or its arguments (engine_image_build) and run it again: what is done stays in Docker's"
            " cache. Where a compiler was killed, stop what uses the memory meanwhile, or set the argument MAX_JOBS",
        )


def compilers(root: str = "/") -> int:
    """So many as have room in the memory that is free now, beside one another."""
    free = meminfo.read(root).get("MemAvailable", 0)
    return max(1, min(os.cpu_count() or 1, free // _COMPILER))


def _load(name: str, archive: str, runner: Runner) -> None:
    done = runner(["docker", "load", "--quiet", "--input", archive])
    if done.rc != 0:
        raise SparkError(
            f"Docker cannot load it ({done.complaint})", archive, "Make it with docker save, or as an OCI archive"
        )
    if not engine_image.find(name, runner).id:
        raise SparkError(
            f"does not have {name}; Docker says: {done.complaint}",
            archive,
            "Name the image as it is called there (engine_image), or another archive (engine_image_archive)",
        )


def check_login(directory: str) -> tuple[str, ...]:
    """Options for Docker. Passwords stand there in the clear, so nobody else may read them."""
    try:
        modes = [Path(place).stat().st_mode for place in (directory, f"{directory}/config.json")]
    except OSError as exc:
        raise SparkError(
            f"there is no config.json that can be read ({exc.strerror})",
            directory,
            f"On this node: docker --config {directory} login REGISTRY; or correct engine_image_login",
        ) from exc
    if any(stat.S_IMODE(mode) & 0o077 for mode in modes):
        raise SparkError(
            "others may read the password in it",
            directory,
            f"chmod 700 {directory}; chmod 600 {directory}/config.json",
        )
    return ("--config", directory)


def offer(
    names: Sequence[str], to: Offer, found: Mapping[str, Offered], runner: Runner, *, login: str = "", root: str = "/"
) -> dict[str, str]:
    """``to``: whom, and where. ``found``: what is offered from an archive; the others from Docker. Returns when the
    unit can be asked, with the digest of each."""
    if len(to.token) < _TOKEN:
        raise SparkError(f"the token of the copy has fewer than {_TOKEN} characters", UNIT, "Give it another one")
    images = {name: found.get(name) or _from_docker(name, login, runner, root) for name in names}
    withdraw(runner)
    told = replace(to, images={repository(name): one for name, one in images.items()})
    write_state(OFFER, json.dumps(document.plain(told)).encode())
    try:
        _start(sorted({place for one in images.values() for place in one.places}), to.addresses, runner)
    finally:
        drop_state(OFFER)
    return {name: one.root for name, one in images.items()}


def _from_docker(name: str, login: str, runner: Runner, root: str) -> Offered:
    """With the documents by which those who get it know that it is what its name says."""
    image = engine_image.find(name, runner)
    made = image_source.from_docker(name, image.id, runner)
    pin = image_pin.pin(name)
    if not pin or pin in made.blobs:
        return made

    def ask() -> dict[str, Any]:
        return image_pin.from_registry(name, image, runner, check_login(login) if login else ())

    known = engine_image.remembered(image.id, pin, ask, root)
    more = {one: Blob(len(text.encode()), text=text, media=image_source.MANIFEST) for one, text in known.items()}
    return replace(made, blobs={**more, **made.blobs})


def _start(places: Sequence[str], addresses: Sequence[str], runner: Runner) -> None:
    options = ["--collect", "--quiet", "--service-type=notify", f"--slice={SLICE}", "--property=TimeoutStartSec=60"]
    options += [f"--property={word}" for word in _SANDBOX]
    options += [f"--property=BindReadOnlyPaths={path}" for path in (*_SEEN, *map(_bind, places))]
    program = [paths.NODE_PROGRAM, "offer-images", OFFER]
    done = runner(["systemd-run", f"--unit={UNIT}", *options, "--", *program])
    if done.rc != 0:
        said = runner(["journalctl", "--unit", UNIT, "--lines", "3", "--no-pager", "--output", "cat"])
        raise SparkError(
            f"other nodes cannot fetch images from this one ({done.complaint} {said.out.strip()})",
            f"{UNIT}, port {IMAGES} at {', '.join(addresses)}",
            image_source.EACH,
        )


def _bind(place: str) -> str:
    """In systemd's words, without what is mounted below: the roots of containers that run."""
    word = re.sub(r"([\\:\"' ])", r"\\\1", place)
    return f"{word}:{word}:norbind"


def withdraw(runner: Runner = run) -> None:
    runner(["systemctl", "stop", UNIT])
    drop_state(OFFER)


# --- the nodes that get it -------------------------------------------------------------------------------------------


def receive(wanted: Coming, digest: str, token: str, runner: Runner, *, root: str = "/") -> bool:
    """The image under its name; False where it was there. ``digest``: what the other node has said that it offers.
    ``runner`` has the time limit."""
    name, source = wanted.image, wanted.source
    if engine_image.find(name, runner).id:
        return False
    if not image_source.DIGEST.fullmatch(digest):
        raise SparkError(f"{source} does not say which image it offers", f"image {name}", image_source.EACH)
    coming = reference(name, digest)
    with _loopback(wanted.addresses, token) as way:

        def ask(which: str) -> bytes:
            try:
                return way.manifest(name, which)
            except (OSError, http.client.HTTPException) as exc:
                raise _lost(name, source, str(exc)) from exc

        known = image_pin.documents(name, ask) if image_pin.pin(name) else {}
        done = runner(["docker", "pull", "--quiet", coming])
        if done.rc != 0:
            # Without the name that an image has on its way.
            said = done.complaint.replace(coming, source).replace(f"{LOOPBACK}:{IMAGES}", source)
            raise _lost(name, source, "; ".join([*way.trouble[-1:], said]))
        try:
            image = engine_image.inspect(coming, runner).id
            if known and not image_pin.is_pinned(name, image, known, ask):
                raise SparkError(
                    f"what {source} offers by this name is another one ({image}), and it was not taken",
                    f"image {name}",
                    f"Find out where {source} has it from, and remove it there. {image_source.EACH}",
                )
            engine_image.give_back(name, coming, runner)
        finally:
            runner(["docker", "image", "rm", coming])
    if known:
        engine_image.keep(image, image_pin.pin(name), known, root)  # the next node may get it from this one
    return True


def _lost(name: str, source: str, said: str) -> SparkError:
    return SparkError(
        f"it did not arrive from {source} ({said})",
        f"image {name}",
        f"Run it again: layers that are here are not fetched again. {image_source.EACH}",
    )


class _Way(socketserver.ThreadingTCPServer):
    """Connections to loopback, each over the next one of the addresses. Docker's alone, which is root's: the other
    accounts of this node may not read images."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, addresses: Sequence[str], token: str) -> None:
        self.addresses = tuple(addresses)
        self.trouble: list[str] = []
        self._token = token.encode()
        self._turn = itertools.count()
        super().__init__((LOOPBACK, IMAGES), _Connection)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return listening.caller(Machine(), client_address[1], self.server_address[1]) == os.geteuid()

    def connect(self) -> socket.socket | None:
        """To the other node, as one that may."""
        first = next(self._turn)
        for number in range(len(self.addresses)):
            address = self.addresses[(first + number) % len(self.addresses)]
            try:
                there = socket.create_connection((address, IMAGES), timeout=_CONNECT_S)
                there.sendall(self._token)
                return there
            except OSError as exc:
                self.trouble.append(f"{address} port {IMAGES}: {exc.strerror or exc}")
        return None

    def manifest(self, name: str, digest: str) -> bytes:
        """Empty where that node has none of this digest."""
        there = self.connect()
        if there is None:
            raise OSError(self.trouble[-1] if self.trouble else "it has no address")
        with closing(http.client.HTTPConnection(LOOPBACK)) as asked:
            asked.sock = there
            asked.request("GET", f"/v2/{repository(name)}/manifests/{digest}")
            answer = asked.getresponse()
            return answer.read(image_source.MOST) if answer.status == http.HTTPStatus.OK else b""


def _without_tls(connection: socket.socket) -> bool:
    """False, with an answer, for the first bytes of TLS, which Docker tries first."""
    connection.settimeout(_PATIENCE_S)
    if connection.recv(1, socket.MSG_PEEK) != _TLS:
        return True
    connection.sendall(_NO_TLS)
    return False


class _Connection(socketserver.BaseRequestHandler):
    server: _Way

    def handle(self) -> None:
        with suppress(OSError):
            if not _without_tls(self.request):
                return
            there = self.server.connect()
            if there is None:
                return
            with closing(there):
                for one in (self.request, there):
                    one.settimeout(None)
                back = threading.Thread(target=_pump, args=(self.request, there), daemon=True)
                back.start()
                _pump(there, self.request)
                back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    buffer = memoryview(bytearray(_CHUNK))
    with suppress(OSError):
        while True:
            count = source.recv_into(buffer)
            if not count:
                break
            target.sendall(buffer[:count])
    for sock, how in ((target, socket.SHUT_WR), (source, socket.SHUT_RD)):
        with suppress(OSError):
            sock.shutdown(how)


@contextmanager
def _loopback(addresses: Sequence[str], token: str) -> Iterator[_Way]:
    try:
        way = _Way(addresses, token)
    except OSError as exc:
        raise SparkError(
            f"the port is taken ({exc.strerror})",
            f"{LOOPBACK}:{IMAGES}",
            f"Find who has it: ss -ltnp sport = :{IMAGES}",
        ) from exc
    with way:
        threading.Thread(target=way.serve_forever, args=(_END_S,), daemon=True).start()
        try:
            yield way
        finally:
            way.shutdown()
