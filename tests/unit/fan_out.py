# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Models of a few KiB, and nodes that copy them to each other: on loopback, each with an address per half."""

from __future__ import annotations

import hashlib
import json
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import manifest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.copy import Copy, Job, Peer, Status
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.fetch import Link, Patience
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.manifest import File, Manifest

TOKEN = "t" * 64
PIECE = 4096
HURRY = Patience(connect=1.0, silent=2.0, first_sign=0.3, nothing=0.2, probe=0.2, slow=0.5, floor=200_000.0, retry=0.02)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def contents(sizes: Mapping[str, int], seed: int = 1) -> dict[str, bytes]:
    return {path: random.Random(f"{seed}{path}").randbytes(size) for path, size in sizes.items()}


def manifest_of(files: Mapping[str, bytes], piece: int = PIECE) -> Manifest:
    made = [
        File(
            path,
            len(data),
            sha256(data),
            sha256(data),
            tuple(sha256(data[at : at + piece]) for at in range(0, len(data), piece)),
        )
        for path, data in files.items()
    ]
    return manifest.parse(Manifest("acme/tiny", "a" * 40, tuple(made), segment_bytes=piece).as_dict())


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def address(node: int, half: int) -> str:
    return f"127.{half + 1}.0.{node + 1}"


class Cluster:
    """``spark0`` has the model; ``cables`` are the pairs that reach each other, all of them where there is a switch."""

    def __init__(
        self,
        directory: Path,
        nodes: int,
        files: Mapping[str, bytes] | None = None,
        *,
        cables: Sequence[tuple[int, int]] | None = None,
        stall_s: float = 600.0,
        **options: Any,
    ) -> None:
        self.directory = directory
        self.files = dict(files or contents({"model.safetensors": 40 * PIECE + 17, "config.json": 300}))
        self.manifest = manifest_of(self.files, options.pop("piece", PIECE))
        self.port = free_port()
        self.nodes = nodes
        self.cables = cables
        self.options = {"stall_s": stall_s, **options}
        self.copies: dict[int, Copy] = {}
        self.ended: dict[int, Status] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._stopped: set[int] = set()
        cache = self.cache(0)
        cache.mkdir(parents=True)
        for data in self.files.values():
            (cache / sha256(data)).write_bytes(data)
        (directory / "manifest.json").write_text(json.dumps(self.manifest.as_dict()), encoding="utf-8")

    def cache(self, node: int) -> Path:
        return self.directory / f"cache{node}"

    def partial(self, node: int) -> Path:
        return self.directory / f"partial{node}"

    def job(self, node: int, **changes: Any) -> Job:
        def reach(other: int) -> bool:
            return self.cables is None or (node, other) in self.cables or (other, node) in self.cables

        # The one before it first, then those before that one, then those behind.
        order = [*range(node - 1, -1, -1), *range(node + 1, self.nodes)]
        cache = self.cache(node)
        return Job(
            **{
                "host": f"spark{node}",
                "token": TOKEN,
                "receivers": tuple(f"spark{one}" for one in range(1, self.nodes)),
                "peers": tuple(
                    Peer(
                        f"spark{other}",
                        tuple(Link(address(node, half), address(other, half)) for half in (0, 1)),
                    )
                    for other in order
                    if reach(other)
                ),
                "manifest": str(self.directory / "manifest.json"),
                "partial": str(self.partial(node)),
                "whole": {one.name: str(one) for one in cache.iterdir()} if cache.exists() else {},
                "port": self.port,
                **self.options,
                **changes,
            }
        )

    def start(self, node: int, patience: Patience = HURRY, **changes: Any) -> Copy:
        one = Copy(self.job(node, **changes), self.manifest, patience, linger_s=0.5)
        one.begin()
        self.copies[node] = one
        self._stopped.discard(node)
        self._threads[node] = threading.Thread(target=self._loop, args=(node, one), daemon=True)
        self._threads[node].start()
        return one

    def _loop(self, node: int, one: Copy) -> None:
        while node not in self._stopped and one.step():
            time.sleep(0.01)
        self.ended[node] = one.status(ended=True)
        one.end()

    def kill(self, node: int) -> None:
        """Without a word to the others."""
        self._stopped.add(node)
        self._threads[node].join(10)

    def stall(self, *nodes: int) -> None:
        """As if nothing had moved for long."""
        for node in nodes:
            self.copies[node].job = replace(self.copies[node].job, stall_s=0.05)

    def wait(self, *nodes: int, within_s: float = 60.0) -> list[Status]:
        deadline = time.monotonic() + within_s
        for node in nodes or tuple(self.copies):
            self._threads[node].join(max(deadline - time.monotonic(), 0))
            assert not self._threads[node].is_alive(), f"spark{node}: {self.copies[node].status()}"
        return [self.ended[node] for node in nodes or tuple(self.copies)]

    def until(self, happened: Callable[[], bool], within_s: float = 60.0) -> None:
        deadline = time.monotonic() + within_s
        while not happened():
            assert time.monotonic() < deadline, [one.status() for one in self.copies.values()]
            time.sleep(0.002)

    def is_right(self, node: int) -> bool:
        return all(
            (self.partial(node) / sha256(data)).exists() and (self.partial(node) / sha256(data)).read_bytes() == data
            for data in self.files.values()
        )

    def close(self) -> None:
        for node in self._threads:
            self._stopped.add(node)
        for thread in self._threads.values():
            thread.join(10)


def owner_only(path: Path, text: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as stream:
        stream.write(text)
