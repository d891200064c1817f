# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A container image on its way from one node to the others: offered by one, fetched by Docker itself on the others.

To Docker the other node is a registry on loopback, which it takes without TLS and without a word in its configuration:
it checks every digest, has layers that it knows already, and goes on where a connection broke.
"""

from __future__ import annotations

import hashlib
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
from pathlib import Path
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access.port_filter import SLICE
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import image_source
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.image_blobs import Offer, Offered
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.image_server import TAG, without_tls
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, meminfo, paths, unit_sandbox
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed, Runner, run
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.ports import IMAGES
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import image as engine_image
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import drop_state, write_state

LOOPBACK = "127.0.0.1"
UNIT = "sparkmatrix-images.service"
OFFER = f"{paths.RUN}/images.json"
_CONNECT_S = 10.0
_CHUNK = 1 << 20
_COMPILER = 6 * 1024**3  # bytes that nvcc takes for a file of kernels; 3 to 8 GiB are reported
_SAID = 1500  # characters of what a build says last
_SANDBOX = (
    *unit_sandbox.ANY,
    "ProtectSystem=strict",
    f"ReadWritePaths={paths.RUN}",
    "ProtectHome=read-only",
    "RestrictAddressFamilies=AF_UNIX AF_INET",
    "CapabilityBoundingSet=CAP_DAC_READ_SEARCH",
)


def repository(name: str) -> str:
    """What an image is called on its way."""
    return f"sparkmatrix/{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def reference(name: str) -> str:
    return f"{LOOPBACK}:{IMAGES}/{repository(name)}:{TAG}"


# --- the node that has it --------------------------------------------------------------------------------------------


def obtain(
    name: str, archive: str, login: str, runner: Runner, build: Mapping[str, Any] | None = None
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


def _build(name: str, build: Mapping[str, Any], runner: Runner, options: Sequence[str]) -> None:
    """From the Dockerfile alone: there are no files beside it that could differ between two builds."""
    arguments = dict(build.get("arguments") or {})
    if re.search(r"(?m)^\s*ARG\s+MAX_JOBS\b", build["dockerfile"]):
        arguments.setdefault("MAX_JOBS", str(compilers()))
    words = [f"--build-arg={key}={value}" for key, value in arguments.items()]
    with tempfile.TemporaryDirectory(prefix="sparkmatrix-build-") as context:
        Path(context, "Dockerfile").write_text(build["dockerfile"], encoding="utf-8")
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
    names: Sequence[str], addresses: Sequence[str], allowed: Sequence[str], found: dict[str, Offered], runner: Runner
) -> None:
    """``found``: what is offered from an archive; the others from Docker. Returns when the unit can be asked."""
    images = {}
    for name in names:
        here = found.get(name)
        images[repository(name)] = here or image_source.from_docker(name, engine_image.find(name, runner).id, runner)
    withdraw(runner)
    told = document.plain(Offer(IMAGES, tuple(addresses), tuple(allowed), images))
    write_state(OFFER, json.dumps(told).encode())
    options = ["--collect", "--quiet", "--service-type=notify", f"--slice={SLICE}", "--property=TimeoutStartSec=60"]
    options += [f"--property={word}" for word in _SANDBOX]
    program = [paths.NODE_PROGRAM, "offer-images", OFFER]
    done = runner(["systemd-run", f"--unit={UNIT}", *options, "--", *program])
    if done.rc != 0:
        said = runner(["journalctl", "--unit", UNIT, "--lines", "3", "--no-pager", "--output", "cat"])
        raise SparkError(
            f"other nodes cannot fetch images from this one ({done.complaint} {said.out.strip()})",
            f"{UNIT}, port {IMAGES} at {', '.join(addresses)}",
            image_source.EACH,
        )


def withdraw(runner: Runner = run) -> None:
    runner(["systemctl", "stop", UNIT])
    drop_state(OFFER)


# --- the nodes that get it -------------------------------------------------------------------------------------------


def receive(name: str, source: str, addresses: Sequence[str], runner: Runner) -> bool:
    """The image from the node ``source``, under its name; False where it was there. ``runner`` has the time limit."""
    if engine_image.find(name, runner).id:
        return False
    with _loopback(addresses) as trouble:
        done = runner(["docker", "pull", "--quiet", reference(name)])
    if done.rc != 0:
        raise SparkError(
            f"it did not arrive from {source} ({'; '.join([*trouble[-1:], _unnamed(done, name, source)])})",
            f"image {name}",
            f"Run it again: layers that are here are not fetched again. {image_source.EACH}",
        )
    try:
        engine_image.give_back(name, reference(name), runner)
    finally:
        runner(["docker", "image", "rm", reference(name)])
    return True


def _unnamed(done: Completed, name: str, source: str) -> str:
    """What Docker said, without the name that an image has on its way."""
    return done.complaint.replace(reference(name), source).replace(f"{LOOPBACK}:{IMAGES}", source)


class _Way(socketserver.ThreadingTCPServer):
    """Connections to loopback, each over the next one of the addresses."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, addresses: Sequence[str]) -> None:
        self.addresses = tuple(addresses)
        self.trouble: list[str] = []
        self._turn = itertools.count()
        super().__init__((LOOPBACK, IMAGES), _Connection)

    def connect(self) -> socket.socket | None:
        first = next(self._turn)
        for number in range(len(self.addresses)):
            address = self.addresses[(first + number) % len(self.addresses)]
            try:
                return socket.create_connection((address, IMAGES), timeout=_CONNECT_S)
            except OSError as exc:
                self.trouble.append(f"{address} port {IMAGES}: {exc.strerror or exc}")
        return None


class _Connection(socketserver.BaseRequestHandler):
    server: _Way

    def handle(self) -> None:
        with suppress(OSError):
            if not without_tls(self.request):
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
    for one, how in ((target, socket.SHUT_WR), (source, socket.SHUT_RD)):
        with suppress(OSError):
            one.shutdown(how)


@contextmanager
def _loopback(addresses: Sequence[str]) -> Iterator[list[str]]:
    """What went wrong on the way."""
    try:
        way = _Way(addresses)
    except OSError as exc:
        raise SparkError(
            f"the port is taken ({exc.strerror})",
            f"{LOOPBACK}:{IMAGES}",
            f"Find who has it: ss -ltnp sport = :{IMAGES}",
        ) from exc
    with way:
        threading.Thread(target=way.serve_forever, daemon=True).start()
        try:
            yield way.trouble
        finally:
            way.shutdown()
