# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What fakes of a node have in common: files below a temporary root, and a method for each program."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed


class Killed(BaseException):
    """The run ends here, as if the power had gone."""


class Printed:
    """A process that has printed this and ended."""

    def __init__(self, text: str, code: int = 0) -> None:
        self.stdout, self.code = io.StringIO(text), code

    def wait(self) -> int:
        return self.code

    def kill(self) -> None:
        pass


class FakeFiles:
    """Files by the names that they have on the node, with or without the first slash."""

    root: Path

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def write(self, name: str, text: str) -> None:
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).write_text(text)

    def read(self, name: str) -> str:
        return self.path(name).read_text()


class FakeMachine(FakeFiles):
    """``fail``: what a command complains about, by its beginning. ``kill_at``: the number of the changing command that
    is the last. ``looks``: words of commands that change nothing."""

    looks: frozenset[str]

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log: list[str] = []
        self.fail: dict[str, str] = {}
        self.kill_at: int | None = None
        self.changing = 0
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def clock(self) -> float:
        self.now += 0.001
        return self.now

    def failed(self, argv: Sequence[str]) -> Completed | None:
        command = " ".join(argv)
        found = [complaint for beginning, complaint in self.fail.items() if command.startswith(beginning)]
        return Completed(1, "", found[0]) if found else None

    def run(self, argv: Sequence[str]) -> Completed:
        failed = self.failed(argv)
        if failed:
            return failed
        self.log.append(" ".join(argv))
        if not self.looks & set(argv):
            self.changing += 1
            if self.kill_at is not None and self.changing > self.kill_at:
                raise Killed
        done: Completed = getattr(self, "_" + argv[0].replace("-", "_"))(list(argv)) or Completed(0)
        return done
