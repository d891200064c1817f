# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What another machine prints, for the screen of this computer: as it comes, and it does nothing to the terminal."""

from __future__ import annotations

import codecs
import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import IO, TextIO, cast

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError

MAX_KEPT = 1024 * 1024  # bytes
_AT_ONCE = 65536
_PATIENCE_S = 1.0  # for the last words of a program that has ended


def run(words: Sequence[str], given: str = "", *, keep: bool = False) -> tuple[int, str]:
    """Exit code, and what it has printed where that is to be kept; else it is shown. ``given``: its input."""
    pipe = subprocess.PIPE
    with subprocess.Popen(list(words), stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0) as process:
        taken, said, told = (cast("IO[bytes]", one) for one in (process.stdin, process.stdout, process.stderr))
        giving = threading.Thread(target=_give, args=(taken, given.encode("utf-8", "replace")), daemon=True)
        telling = threading.Thread(target=_tell, args=(told,), daemon=True)
        giving.start()
        telling.start()
        try:
            kept = _kept(said, words[0]) if keep else _show(said, sys.stdout)
            code = process.wait()
        except BaseException:
            process.kill()
            raise
        finally:
            telling.join(_PATIENCE_S)
    return code, kept


def _give(stream: IO[bytes], text: bytes) -> None:
    with contextlib.suppress(OSError), stream:  # it need not want it
        while text:
            text = text[stream.write(text) :]


def _tell(stream: IO[bytes]) -> None:
    with contextlib.suppress(OSError, ValueError):  # closed at the end
        _show(stream, sys.stderr)


def _kept(stream: IO[bytes], program: str) -> str:
    said = b""
    while piece := stream.read(_AT_ONCE):
        said += piece
        if len(said) > MAX_KEPT:
            raise SparkError(f"it printed more than {MAX_KEPT} bytes, and was ended", program)
    return said.decode("utf-8", "replace")


def _show(stream: IO[bytes], screen: TextIO) -> str:
    for text in _texts(stream):
        encoding = getattr(screen, "encoding", None) or "utf-8"
        screen.write(strict.harmless(text).encode(encoding, "replace").decode(encoding))
        screen.flush()
    return ""


def _texts(stream: IO[bytes]) -> Iterator[str]:
    """The end of a line is never cut in two."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    held = ""
    while piece := stream.read(_AT_ONCE):
        text = held + decoder.decode(piece)
        held = "\r" if text.endswith("\r") else ""
        yield text.removesuffix("\r")
    yield held + decoder.decode(b"", final=True)
