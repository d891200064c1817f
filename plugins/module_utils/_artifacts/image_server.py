# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A registry that can only be read, on the addresses of the fabric, for as long as images are copied.

As much of the OCI distribution protocol as `docker pull` asks for. It runs as a transient unit and is told by a file
what it has (:mod:`.image_blobs`); a process per connection, so that several nodes do not wait for one core. Nothing can
be written here, and only the nodes that are to have these images may read: known by their addresses on the fabric, and
by the token of this copy, which a connection begins with (Docker itself could not be told one).
"""

from __future__ import annotations

import argparse
import hmac
import re
import select
import socketserver
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.image_blobs import Blob, Offer, send
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.systemd import notify

HELP = "offer images of this node to others, while they are copied"
_IDLE_S = 900.0  # without a connection; the run that started it removes it, and this is for one that died
_PATIENCE_S = 120.0  # with a receiver that takes nothing
_PATH = re.compile(r"/v2/([a-z0-9/]{1,100})/(manifests|blobs)/([A-Za-z0-9:]{1,80})")
_RANGE = re.compile(r"bytes=([0-9]{1,18})-")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server
    timeout = _PATIENCE_S

    def handle(self) -> None:
        try:
            token = self.server.offer.token.encode()
            if hmac.compare_digest(self.rfile.read(len(token)), token):
                super().handle()
        except (OSError, SparkError) as exc:  # the receiver has gone, or a file has
            self.close_connection = True
            self.log_message("%s", exc)

    def do_GET(self) -> None:
        self._answer(True)

    def do_HEAD(self) -> None:
        self._answer(False)

    def _answer(self, with_body: bool) -> None:
        if self.path.rstrip("/") == "/v2":
            return self._headers(200, 0)
        found = _PATH.fullmatch(self.path)
        image = self.server.offer.images.get(found[1]) if found else None
        if not found or image is None:
            return self._headers(404, 0)
        blob = image.blobs.get(found[3])
        if blob is None or (found[2] == "manifests" and not blob.media):
            return self._headers(404, 0)
        self._send(found[3], blob, with_body)
        return None

    def _send(self, digest: str, blob: Blob, with_body: bool) -> None:
        asked = _RANGE.fullmatch(self.headers.get("Range") or "")
        start = int(asked[1]) if asked else 0
        if start >= blob.size > 0:
            return self._headers(416, 0)
        more = {"Docker-Content-Digest": digest, "Accept-Ranges": "bytes"}
        more["Content-Type"] = blob.media or "application/octet-stream"
        if asked:
            more["Content-Range"] = f"bytes {start}-{blob.size - 1}/{blob.size}"
        self._headers(206 if asked else 200, blob.size - start, **more)
        if with_body:
            send(self.connection, blob, start)
        return None

    def _headers(self, code: int, length: int, **more: str) -> None:
        self.send_response(code)
        self.send_header("Docker-Distribution-API-Version", "registry/2.0")
        for name, value in {**more, "Content-Length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.flush()

    def log_request(self, code: Any = "-", size: Any = "-") -> None:
        """The journal gets what went wrong, not every layer."""


class Server(socketserver.ForkingTCPServer):
    allow_reuse_address = True
    max_children = 200
    request_queue_size = 64

    def __init__(self, address: str, offer: Offer) -> None:
        self.offer = offer
        super().__init__((address, offer.port), Handler)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return client_address[0] in self.offer.allowed

    @property
    def busy(self) -> bool:
        return bool(self.active_children)


def serve(offer: Offer, ready: Callable[[], None]) -> None:
    """Returns when nobody has asked for a quarter of an hour."""
    servers = [Server(address, offer) for address in offer.addresses]
    try:
        ready()
        last = time.monotonic()
        while time.monotonic() - last < _IDLE_S:
            asked, _none, _nothing = select.select(servers, [], [], min(5.0, _IDLE_S))
            for server in servers:
                if server in asked:
                    server.handle_request()
                server.service_actions()  # collects the children that are done
            if asked or any(server.busy for server in servers):
                last = time.monotonic()
    finally:
        for server in servers:
            server.socket.close()


AGAIN = "Run the layer that copies the image again"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="what to offer, as a run of Ansible has written it")


def run(arguments: argparse.Namespace) -> int:
    with open(arguments.file, "rb") as stream, json_text.Reading("what to offer is damaged", arguments.file, AGAIN):
        offer = document.load(Offer, json_text.read(stream.read()))
    serve(offer, lambda: notify("READY=1"))
    return 0
