# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Run a program: an argv list, no shell, the C locale, a time limit. Tests pass another :data:`Runner`."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

NOT_FOUND = 127
TIMED_OUT = 124
# A tool that hangs is rare; one that is slow on a machine that swaps, or loads a model, is not.
PATIENCE_S = 90.0


@dataclass(frozen=True)
class Completed:
    """How a program ended. ``rc`` is 127 when it does not exist and 124 when it ran past its time limit."""

    rc: int
    out: str = ""
    err: str = ""

    @property
    def complaint(self) -> str:
        """What the program said about its failure, on one line."""
        text = self.err.strip() or self.out.strip() or "it printed nothing"
        return " ".join(text.split())


Runner = Callable[[Sequence[str]], Completed]

# Tools of the system live in sbin directories, which sudo and ssh shells may leave out of PATH.
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def run(argv: Sequence[str], timeout_s: float = PATIENCE_S) -> Completed:
    """Run ``argv`` and wait. Never raises for what the program does; see :class:`Completed`."""
    environment = {**os.environ, "LC_ALL": "C", "LANGUAGE": "C", "PATH": search_path()}
    try:
        # The node tool runs this without Ansible, so there is no module.run_command.
        process = subprocess.Popen(  # pylint: disable=consider-using-with,ansible-bad-function
            list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
        )
    except OSError as exc:
        return Completed(NOT_FOUND, "", f"{argv[0]}: {exc.strerror}")
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()  # and not waited for: it may hang in the kernel
        return Completed(TIMED_OUT, "", f"{argv[0]} gave no answer within {timeout_s:g} s")
    return Completed(process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))


def run_limited(argv: Sequence[str], timeout_s: float, most_bytes: int, told: str = "") -> Completed:
    """Like :func:`run`, for what another machine prints: beyond its limit it is killed. ``out`` has both streams.
    ``told``: a line on its standard input."""
    source = subprocess.PIPE if told else subprocess.DEVNULL
    try:
        process = subprocess.Popen(  # pylint: disable=ansible-bad-function
            list(argv), stdin=source, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except OSError as exc:
        return Completed(NOT_FOUND, "", f"{argv[0]}: {exc.strerror}")
    late = threading.Event()

    def end() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(timeout_s, end)
    timer.start()
    if process.stdin:
        with contextlib.suppress(OSError), process.stdin as stream:  # it has ended already
            stream.write(told.encode())
    with process:
        said = process.stdout.read(most_bytes + 1) if process.stdout else b""
        if len(said) > most_bytes:
            process.kill()
        process.wait()
    timer.cancel()
    if late.is_set():
        return Completed(TIMED_OUT, "", f"{argv[0]} gave no answer within {timeout_s:.0f} s")
    if len(said) > most_bytes:
        return Completed(1, "", f"it printed more than {most_bytes} bytes")
    return Completed(process.returncode, said.decode("utf-8", "replace"))


def search_path() -> str:
    """PATH with the system directories added at its end."""
    present = os.environ.get("PATH", "")
    missing = [item for item in _PATH.split(":") if item not in present.split(":")]
    return ":".join([present, *missing] if present else missing)
