# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What steps came to, in the cache, so that the next run and the next clone know it.

One file per step, a line of JSON per run. A result counts for as long as the step's key is the same: a hash of the
files that it depends on, of the locks, and of the step itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from suite.steps import ROOT, Step

LOCKS = ("requirements/**",)
PASSED, FAILED, SLOW = "passed", "failed", "too slow"


@dataclass(frozen=True)
class Result:
    step: str
    outcome: str
    key: str
    commit: str
    seconds: float
    budget_s: int
    cpu_s: float  # of the step's own processes; nodes of the lab are not among them
    load: float  # of the machine when the step began
    when: str
    stolen: float = 0.0  # the share of the processor time that the host of a virtual machine gave to others


def cache() -> pathlib.Path:
    """Where images and environments are kept between runs and checkouts."""
    base = os.environ.get("XDG_CACHE_HOME") or str(pathlib.Path.home() / ".cache")
    return pathlib.Path(os.environ.get("SPARKMATRIX_CACHE") or f"{base}/sparkmatrix")


class Ledger:
    def __init__(self, place: pathlib.Path) -> None:
        self.place = place

    def add(self, result: Result) -> None:
        self.place.mkdir(parents=True, exist_ok=True)
        with self._file(result.step).open("a") as stream:
            stream.write(json.dumps(asdict(result)) + "\n")

    def results(self, step: str) -> list[Result]:
        """The oldest first. A line that was cut off, or is of another version, is left out."""
        try:
            lines = self._file(step).read_text().splitlines()
        except FileNotFoundError:
            return []
        found = []
        for line in lines:
            try:
                found.append(Result(**json.loads(line)))
            except (ValueError, TypeError):
                continue
        return found

    def last(self, step: str) -> Result | None:
        return next(reversed(self.results(step)), None)

    def last_green(self, step: str) -> Result | None:
        return next((result for result in reversed(self.results(step)) if result.outcome == PASSED), None)

    def green(self, step: str, key: str) -> Result | None:
        """The last result for this key, if it is a green one."""
        last = next((result for result in reversed(self.results(step)) if result.key == key), None)
        return last if last and last.outcome == PASSED else None

    def _file(self, step: str) -> pathlib.Path:
        return self.place / f"{step}.jsonl"


class Keys:
    """The key of each step, by the files as they are in the working tree."""

    def __init__(self, root: pathlib.Path = ROOT) -> None:
        self.root = root
        self.digests: dict[str, str] = {}

    def of(self, step: Step) -> str:
        lines = [repr((step.name, step.commands))]
        lines += [f"{name} {self._digest(name)}" for name in self._files((*step.inputs, *LOCKS))]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]

    def _files(self, globs: Iterable[str]) -> list[str]:
        words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--"]
        words += [f":(glob){glob}" for glob in globs]
        listed = subprocess.run(words, cwd=self.root, capture_output=True, text=True, check=True).stdout
        return sorted(set(listed.split("\0")) - {""})

    def _digest(self, name: str) -> str:
        if name not in self.digests:
            path = self.root / name
            if path.is_symlink():
                content = str(path.readlink()).encode()
            else:
                content = path.read_bytes() if path.exists() else b"not there"
            self.digests[name] = hashlib.sha256(content).hexdigest()
        return self.digests[name]
