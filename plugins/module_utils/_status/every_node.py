# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Which nodes there are, and how each is asked for its logs or figures: this one by the node program, the others by the
same over the nodes' own ssh. Each answers lines of JSON, with or without an end."""

from __future__ import annotations

import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text, paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import engine_json
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import peers

HERE = "this node"
LONGEST = 20000  # characters of a line
Take = Callable[[str, Mapping[str, Any]], None]


def hosts(root: str = "/", wanted: Sequence[str] = ()) -> dict[str, bool]:
    """Nodes that serve, and whether each is this one. Raises :class:`SparkError` for a wanted one that is not there."""
    found: dict[str, bool] = {}
    for told in engine_json.here(root).values():
        for member in told.ordered:
            found[member.host] = found.get(member.host, False) or member.rank == told.rank
    found = found or {HERE: True}
    unknown = [host for host in wanted if host not in found]
    if unknown:
        raise SparkError(f"there is no node {', '.join(unknown)}", paths.ETC, f"There are: {', '.join(found)}")
    return {host: here for host, here in found.items() if not wanted or host in wanted}


@dataclass
class Stream:
    """What one node says, line by line, until it or somebody ends it. ``problem``: why there is no more."""

    host: str
    argv: Sequence[str]
    popen: Callable[..., Any] = subprocess.Popen
    problem: str = ""
    process: Any = None

    def read(self, take: Take) -> None:
        try:
            self.process = peers.opened(self.argv, self.popen)
        except OSError as exc:
            self.problem = f"{self.argv[0]}: {exc.strerror}"
            return
        said = ""
        for line in iter(lambda: self.process.stdout.readline(LONGEST + 1), ""):
            try:
                take(self.host, json_text.mapping(line))
            except (SparkError, TypeError, ValueError):
                said = peers.words(line)
        code = self.process.wait()
        self.problem = said or (f"it ended with {code}" if code else "")

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()


def when_nobody_listens(end: Callable[[], Any]) -> None:
    """Call ``end`` once whoever reads what this program prints has gone; by itself it would notice that with the next
    line."""
    try:
        output = sys.stdout.fileno()
    except (OSError, ValueError):  # it is no file
        return
    gone = select.poll()
    gone.register(output, 0)  # what cannot be asked for is told always: an error, the end

    def wait() -> None:
        gone.poll()
        end()

    threading.Thread(target=wait, daemon=True).start()


def streams(nodes: Mapping[str, bool], command: str, word: str, options: Sequence[str] = ()) -> list[Stream]:
    """``word`` is what another node lets this one say, ``options`` what the node program is told here for the same."""
    return [
        Stream(host, [paths.NODE_PROGRAM, command, *options] if here else peers.ssh(host, word))
        for host, here in nodes.items()
    ]


def all_of(asked: Sequence[Stream], take: Take, limit_s: float | None) -> dict[str, str]:
    """Until all have ended, or ``limit_s`` is over. What is wrong, by host."""
    lock = threading.Lock()

    def taken(host: str, found: Mapping[str, Any]) -> None:
        with lock:
            take(host, found)

    threads = [threading.Thread(target=stream.read, args=(taken,), daemon=True) for stream in asked]
    for thread in threads:
        thread.start()
    late = []
    deadline = None if limit_s is None else time.monotonic() + limit_s
    for stream, thread in zip(asked, threads):
        thread.join(None if deadline is None else max(deadline - time.monotonic(), 0.0))
        if thread.is_alive():
            late.append(stream.host)
            stream.end()
    return {
        **{stream.host: stream.problem for stream in asked if stream.problem and stream.host not in late},
        **{host: f"no answer within {limit_s:.0f} s" for host in late if limit_s},
    }
