#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A hub of models for tests, good enough for Hugging Face's own client: revisions, lists, LFS, ranges, licences.

``hub.py --address 192.0.2.1 --port 8000 DIRECTORY`` serves every ``org/name`` below a directory at one commit, until it
is ended; tests use :class:`Hub`. Large files come from a second address, as the real ones do. Standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import http.server
import json
import pathlib
import re
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

LFS = (".safetensors", ".bin", ".gguf", ".pt", ".h5")
PAGE = 50  # files of one answer: lists of files come in pages


@dataclass
class Repository:
    """``files``: of each commit. ``refs``: branches and tags. ``xet``: names of large files in Xet storage."""

    files: dict[str, dict[str, bytes]]
    refs: dict[str, str]
    gated: bool = False
    xet: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Hub:
    """``token``: who has it sees gated repositories. ``stall_after``: bytes of large files after which nothing comes
    any more, as often as ``stalls`` says. ``cut_after``: the connection ends there, once per file."""

    repositories: dict[str, Repository]
    token: str = ""
    stall_after: int = 0
    stalls: int = 0
    cut_after: int = 0
    cut: set[str] = field(default_factory=set)
    damaged: set[str] = field(default_factory=set)  # paths that arrive with another content, once
    xet_storage: str = ""  # address of the storage
    bytes_sent: int = 0
    asked: list[str] = field(default_factory=list)  # method, path and range
    leaked: list[str] = field(default_factory=list)  # where a token came to whom it does not belong
    url: str = ""
    large: str = ""

    @contextlib.contextmanager
    def serve(self, address: str = "127.0.0.1", port: int = 0, large: str = "127.0.0.2") -> Iterator[str]:
        with contextlib.ExitStack() as stack:
            for name, at, number in (("url", address, port), ("large", large, 0)):
                server = http.server.ThreadingHTTPServer((at, number), _handler(self))
                server.daemon_threads = True
                stack.callback(server.server_close)
                threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
                stack.callback(server.shutdown)
                setattr(self, name, f"http://{at}:{server.server_address[1]}")
            yield self.url


def commit(files: Mapping[str, bytes]) -> str:
    told = sorted((path, hashlib.sha256(content).hexdigest()) for path, content in files.items())
    return hashlib.sha1(json.dumps(told).encode(), usedforsecurity=False).hexdigest()


def repository(files: Mapping[str, bytes], gated: bool = False, **refs: str) -> Repository:
    one = commit(files)
    return Repository({one: dict(files)}, {"main": one, **refs}, gated)


def git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def is_large(path: str) -> bool:
    return path.endswith(LFS)


class _Refused(Exception):
    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status, self.code = status, code


def _handler(hub: Hub) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def log_message(self, *_words: object) -> None:
            pass

        def _answer(self) -> None:
            hub.asked.append(f"{self.command} {self.path} {self.headers.get('Range', '')}".strip())
            path, _mark, question = self.path.partition("?")
            try:
                if path.startswith("/cdn/"):
                    self._large(path[len("/cdn/") :])
                elif path.startswith("/api/models/"):
                    self._api(path[len("/api/models/") :], urllib.parse.parse_qs(question))
                else:
                    self._resolve(path)
            except _Refused as exc:
                page = f"Access to it is restricted ({exc.code})".encode()
                self._send(exc.status, page, {"X-Error-Code": exc.code, "X-Error-Message": page.decode()})
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
            self.send_response(status)
            for name, text in headers.items():
                self.send_header(name, text)
            self.send_header("Content-Length", headers.get("Content-Length", str(len(body))))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def _json(self, told: object, **headers: str) -> None:
            self._send(200, json.dumps(told).encode(), {"Content-Type": "application/json", **headers})

        def _known(self, name: str, revision: str, listed: bool = False) -> tuple[Repository, str]:
            one = hub.repositories.get(name)
            if one is None:
                raise _Refused(401, "RepoNotFound")
            if one.gated and not listed and self.headers.get("Authorization") != f"Bearer {hub.token}":
                raise _Refused(403 if self.headers.get("Authorization") else 401, "GatedRepo")
            revision = urllib.parse.unquote(revision)
            found = one.refs.get(revision, revision)
            if found not in one.files:
                raise _Refused(404, "RevisionNotFound")
            return one, found

        def _api(self, path: str, question: Mapping[str, list[str]]) -> None:
            match = re.fullmatch(r"([^/]+/[^/]+)(?:/(revision|tree|xet-read-token)/([^/]+))?", path)
            if not match:
                raise _Refused(404, "RepoNotFound")
            name, what, revision = match[1], match[2] or "revision", match[3] or "main"
            one, found = self._known(name, revision, listed=what != "xet-read-token")
            files = one.files[found]
            if what == "revision":
                self._json({"id": name, "sha": found, "siblings": [{"rfilename": path} for path in files]})
            elif what == "tree":
                start = int(question.get("cursor", ["0"])[0])
                page = sorted(files)[start : start + PAGE]
                more = f'<{hub.url}/api/models/{name}/tree/{revision}?recursive=true&cursor={start + PAGE}>; rel="next"'
                self._json(
                    [self._entry(one, path, files[path]) for path in page],
                    **({"Link": more} if start + PAGE < len(files) else {}),
                )
            else:
                self._send(
                    200,
                    b"{}",
                    {
                        "X-Xet-Cas-Url": hub.xet_storage,
                        "X-Xet-Access-Token": "xet",
                        "X-Xet-Token-Expiration": str(int(time.time()) + 3600),
                    },
                )

        @staticmethod
        def _entry(one: Repository, path: str, content: bytes) -> dict[str, object]:
            entry: dict[str, object] = {"type": "file", "path": path, "size": len(content), "oid": git_hash(content)}
            if is_large(path):
                sha256 = hashlib.sha256(content).hexdigest()
                entry["oid"] = git_hash(b"version https://git-lfs.github.com/spec/v1\n" + sha256.encode())
                entry["lfs"] = {"oid": sha256, "size": len(content), "pointerSize": 134}
            if path in one.xet:
                entry["xetHash"] = one.xet[path]
            return entry

        def _resolve(self, path: str) -> None:
            match = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
            if not match:
                raise _Refused(404, "RepoNotFound")
            one, found = self._known(match[1], match[2])
            file = urllib.parse.unquote(match[3])
            if file not in one.files[found]:
                raise _Refused(404, "EntryNotFound")
            content = one.files[found][file]
            headers = {"X-Repo-Commit": found, "Accept-Ranges": "bytes"}
            if is_large(file):
                sha256 = hashlib.sha256(content).hexdigest()
                headers |= {"X-Linked-Etag": f'"{sha256}"', "X-Linked-Size": str(len(content))}
                place = f"{hub.large}/cdn/{match[1]}/{found}/{urllib.parse.quote(file)}?signature=secret"
                self._send(302, b"", {**headers, "ETag": f'"{sha256}"', "Location": place})
            else:
                self._part(content, {**headers, "ETag": f'"{git_hash(content)}"'})

        def _large(self, path: str) -> None:
            if self.headers.get("Authorization"):
                hub.leaked.append(self.path)
            owner, name, found, file = path.split("/", 3)
            file = urllib.parse.unquote(file)
            content = hub.repositories[f"{owner}/{name}"].files[found][file]
            if file in hub.damaged:
                hub.damaged.discard(file)
                content = bytes(len(content))
            self._part(content, {"Accept-Ranges": "bytes"}, slow=True)

        def _part(self, content: bytes, headers: Mapping[str, str], slow: bool = False) -> None:
            match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
            status, part, more = 200, content, {}
            if match:
                last = min(int(match[2]) if match[2] else len(content) - 1, len(content) - 1)
                if int(match[1]) > last:
                    self._send(416, b"", {"Content-Range": f"bytes */{len(content)}"})
                    return
                status, part = 206, content[int(match[1]) : last + 1]
                more = {"Content-Range": f"bytes {match[1]}-{last}/{len(content)}"}
            self.send_response(status)
            for key, text in {**headers, **more, "Content-Length": str(len(part))}.items():
                self.send_header(key, text)
            self.end_headers()
            if self.command == "HEAD":
                return
            stalls = slow and hub.stalls > 0 and len(part) > hub.stall_after
            cut = slow and 0 < hub.cut_after < len(part) and self.path not in hub.cut
            hub.cut |= {self.path} if cut else set()
            if stalls or cut:
                sent = part[: hub.stall_after if stalls else hub.cut_after]
                hub.stalls -= stalls
                hub.bytes_sent += len(sent)
                self.wfile.write(sent)
                self.wfile.flush()
                if stalls:
                    self._hang()
                self.close_connection = True
                return
            hub.bytes_sent += len(part) if slow else 0
            self.wfile.write(part)

        def _hang(self) -> None:
            """Until who asked is gone; a byte every so often would be no stall."""
            self.connection.settimeout(600)
            with contextlib.suppress(OSError):
                self.connection.recv(1)

    return Handler


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--address", default="127.0.0.1")
    parser.add_argument("--large", default="", help="another address for large files; without it the same")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--gated", action="append", default=[], metavar="ORG/NAME")
    parser.add_argument("--token", default="")
    options = parser.parse_args(argv)
    made = {}
    for place in sorted(options.directory.glob("*/*")):
        files = {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}
        name = f"{place.parent.name}/{place.name}"
        made[name] = repository(files, gated=name in options.gated)
    with Hub(made, options.token).serve(options.address, options.port, options.large or options.address) as url:
        print(f"{url} serves {', '.join(made)}", flush=True)
        threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
