# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""How the keeper reaches the nodes: this one directly, the others over ssh with this node's own key.

A connection per node stays open and brings a report every two seconds (``rank-watch``), so a dead rank is seen at once
and the logs of the other nodes do not fill with logins.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import (
    TIMED_OUT,
    Completed,
    run,
    run_limited,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError, printable
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.engine_json import STOPPING_S
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.rank import WATCH_S, Node
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.report import (
    EMPTY,
    MAX_CHARACTERS,
    Report,
    parse,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.switch import CHECK, CHECK_S

SSH_CONFIG = f"{paths.SSH}/config"
FRESH_S = 3 * WATCH_S + 1.0  # three reports missed
RETRY_S = 2.0
SAID = 500  # characters of what ssh says
ACT_S = STOPPING_S  # stopping has to wait for a unit's own time limit
SILENT = (TIMED_OUT, 255)  # 255: ssh had no connection, or has none any more
REMEDY = "Let the layer access set up ssh between the nodes: ansible-playbook site.yml --tags access"
REFUSED = ("Permission denied", "Host key verification failed")  # what OpenSSH says
# A connection that is cut off without a word is noticed after ten seconds.
ALIVE = ("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=2")
OUTSIDE = ("systemd-run", "--quiet", "--wait", "--pipe", "--collect", "--")
QUIET = ("-o", "LogLevel=ERROR")  # no banner of the other side between its reports
Asked = TypeVar("Asked")
Said = TypeVar("Said")


def ssh(host: str, word: str) -> list[str]:
    return ["ssh", "-F", SSH_CONFIG, *ALIVE, *QUIET, "-T", host, word]


def ask(argv: Sequence[str], timeout_s: float, told: str = "") -> Completed:
    """What the other side prints is its own, and may have no end."""
    return run_limited(argv, timeout_s, MAX_CHARACTERS, told)


def at_once(asked: Sequence[Asked], ask: Callable[[Asked], Said]) -> list[Said]:
    """What each of them says, asked at the same time."""
    with ThreadPoolExecutor(max_workers=16) as pool:
        return list(pool.map(ask, asked))


def opened(argv: Sequence[str], popen: Callable[..., Any] = subprocess.Popen) -> Any:
    """A program whose lines are read as it prints them, with what it complains of."""
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "encoding": "utf-8", "errors": "replace"}
    return popen(list(argv), stdin=subprocess.DEVNULL, **output)  # pylint: disable=ansible-bad-function


def words(text: str) -> str:
    """For people, on one line."""
    return " ".join(printable(text).split())[:SAID]


def _problem(done: Completed, word: str, limit_s: float) -> str:
    if done.rc == 0:
        return ""
    return f"no answer to {word} within {limit_s:.0f} s" if done.rc == TIMED_OUT else words(done.complaint)


def _switched(host: str, argv: Sequence[str], action: str, told: str) -> str:
    """What this node says against it, or nothing. One that does not say whether it could serve says nothing about the
    model: :class:`SparkError`."""
    limit = CHECK_S if action == CHECK else ACT_S
    done = ask(argv, limit, told)
    problem = _problem(done, f"switch-{action}", limit)
    if action == CHECK and done.rc in SILENT:
        raise SparkError(problem, host)
    return f"{host}: {problem}" if problem else ""


class Here:
    """The node of the keeper."""

    def __init__(self, host: str, node: Node) -> None:
        self.host = host
        self.node = node

    def latest(self) -> tuple[bool, Report, str]:
        try:
            return True, self.node.report(), ""
        except SparkError as exc:
            return False, EMPTY, str(exc)

    def act(self, action: str) -> str:
        """What went wrong, or nothing."""
        try:
            {"start": self.node.start, "stop": self.node.stop, "kill": self.node.kill}[action]()
        except SparkError as exc:
            return str(exc)
        return ""

    def switch(self, action: str, told: str) -> str:
        """As a unit of its own: that of the keeper may write no file of the system, and has no need to."""
        return _switched(self.host, [*OUTSIDE, paths.NODE_PROGRAM, "switch", action], action, told)


class There:
    """Another node. ``popen``, ``runner`` and the clock are replaced by tests."""

    def __init__(
        self,
        host: str,
        *,
        popen: Callable[..., Any] = subprocess.Popen,
        runner: Callable[[Sequence[str], float], Completed] = ask,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.host = host
        self.popen = popen
        self.runner = runner
        self.clock = clock
        self.sleep = sleep
        self.report = EMPTY
        self.at: float | None = None
        self.problem = ""
        self.process: Any = None

    def begin(self) -> None:
        threading.Thread(target=self.follow, name=self.host, daemon=True).start()

    def follow(self, rounds: int | None = None) -> None:
        """Keep a connection open, for ever (or ``rounds`` times, for tests)."""
        done = 0
        while rounds is None or done < rounds:
            done += 1
            try:
                process = self.process = opened(ssh(self.host, "rank-watch"), self.popen)
            except OSError as exc:
                self.problem = f"ssh: {exc.strerror}"
            else:
                try:
                    self._read(process)
                except Exception as exc:  # whatever it sent: this thread is all that watches this node
                    self.problem = f"what it says is not understood ({words(str(exc))})"
                finally:
                    process.kill()
                    process.wait()
            self.sleep(RETRY_S)

    def _read(self, process: Any) -> None:
        said = ""
        for line in iter(lambda: process.stdout.readline(MAX_CHARACTERS + 1), ""):
            if len(line) > MAX_CHARACTERS:
                said = f"it printed a line of more than {MAX_CHARACTERS} characters"
                break
            if line.startswith("{"):
                try:
                    self.report, self.at, self.problem = parse(line), self.clock(), ""
                except SparkError as exc:
                    said = self.problem = str(exc)
            else:
                said = words(line) or said
        self.problem = said or "the connection ended"
        if any(refused in said for refused in REFUSED):
            self.problem = f"{self.problem.rstrip('.')}. {REMEDY}"

    def leave(self) -> None:
        """End the connection; this process may be about to be another program, which knows nothing of it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def latest(self) -> tuple[bool, Report, str]:
        fresh = self.at is not None and self.clock() - self.at <= FRESH_S
        silent = "" if fresh or self.at is None else "it has stopped reporting"  # None: it was just asked
        return fresh, self.report, "" if fresh else self.problem or silent

    def act(self, action: str) -> str:
        word = f"rank-{action}"
        problem = _problem(self.runner(ssh(self.host, word), ACT_S), word, ACT_S)
        return f"{self.host}: {problem}" if problem else ""

    def switch(self, action: str, told: str) -> str:
        problem = _switched(self.host, ssh(self.host, f"switch-{action}"), action, told)
        if action != CHECK:  # what has been read of its ranks is of the model before
            self.leave()
            self.at = None
        return problem


def check(hosts: Sequence[str], runner: Callable[[Sequence[str], float], Completed] = ask) -> None:
    """Raise :class:`SparkError` unless every other node lets this one ask for its ranks."""
    problems = []
    for host in hosts:
        done = runner(ssh(host, "rank-status"), 30.0)
        try:
            if done.rc != 0:
                problems.append(f"{host} ({words(done.complaint)})")
            else:
                parse(done.out)
        except SparkError as exc:
            problems.append(f"{host} ({exc.found})")
    if problems:
        raise SparkError(
            f"the keeper cannot look after the ranks on {', '.join(problems)}",
            "node-to-node ssh",
            REMEDY,
        )


def pings(address: str, runner: Callable[[Sequence[str], float], Completed] = run) -> bool | None:
    """Whether an address answers. None: this machine has no ``ping``."""
    done = runner(["ping", "-n", "-q", "-c", "1", "-W", "1", address], 5.0)
    return None if done.rc == 127 else done.rc == 0
