# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Which model a request means, read without making objects of what else it says.

A body is split at its quotation marks, a piece at a time: what a client sends takes time in proportion to its length,
and answers of others go on between two pieces. What is no JSON in other ways the engine says itself.
"""

from __future__ import annotations

import array
import itertools
import json
import re
from collections.abc import Awaitable, Callable

PIECE = 16384  # bytes
FIRST = 512  # of a piece with names that may be meant, each of which is looked at
DEEP = 500  # engines read somewhat more
MOST = 2000  # texts beside those within lists and objects
MAX_NAME = 4096  # bytes of a model's name
KEY = len(r"\u006d\u006f\u0064\u0065\u006c") + 2  # bytes of "model" at most
_SPACE = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*")
_COLON = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*")
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # what each adds to the depth: 1 or -1
_OTHERS = bytes(set(range(256)).difference(b"[{]}"))


async def model(body: bytes, turn: Callable[[], Awaitable[None]]) -> str | None:
    """The last one of several, as for engines; None where ``body`` names none. ``turn`` lets others go on. Raises
    :class:`ValueError`."""
    if not json.detect_encoding(body).startswith("utf-8"):
        raise ValueError("it is not in UTF-8")
    space = _SPACE.match(body)
    at = space.end() if space else 0
    if body[at : at + 1] != b"{":
        raise ValueError("it is no object of JSON")
    end = len(body.rstrip(b" \t\r\n")) - 1
    if body[end : end + 1] != b"}":
        raise ValueError("it does not end")
    at, depth, inside = at + 1, 1, False  # inside: of a text
    since, texts = at, 0
    size = FIRST
    first, value = 0, -1  # where the last text begins, and where the value of the last "model" does
    found = (0, 0)
    while at < end:
        if at - since >= PIECE:
            since = at
            await turn()
        piece = body[at : min(at + size, end)]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece = body[at : min(at + len(piece) + 1, end)]
        parts = piece.replace(b"\\\\", b"__").replace(b'\\"', b"__").split(b'"')  # as long as before
        lowest, then = _depths(depth, b"".join(parts[inside::2]))
        size = min(2 * size, PIECE) if lowest > 1 or len(parts) < FIRST // 8 else FIRST
        if lowest > 1:
            depth, at, inside = then, at + len(piece), inside == len(parts) % 2
            continue
        for mark, part in enumerate(parts):
            if mark:
                at, inside = at + 1, not inside
                if inside:
                    first, texts = at - 1, texts + (depth == 1)
                    if texts > MOST:
                        raise ValueError("it has too many names")
                elif depth == 1 and first == value:
                    found = first, at
                elif depth == 1 and at - first <= KEY and _text(body, first, at) == "model":
                    colon = _COLON.match(body, at)
                    if colon:
                        value, found = colon.end(), (0, 0)
            if not inside:
                depth = _depths(depth, part)[1]
            at += len(part)
    if depth != 1 or inside:
        raise ValueError("it does not end")
    if found[1] - found[0] > MAX_NAME:
        raise ValueError(f"its model is a name of more than {MAX_NAME} bytes")
    return _text(body, *found) if found[1] else None


def _text(body: bytes, first: int, end: int) -> str:
    return str(json.loads(body[first:end].decode()))


def _depths(depth: int, text: bytes) -> tuple[int, int]:
    """The lowest and the last depth of ``text``, in which no quoted text is."""
    steps = text.translate(_STEPS, _OTHERS)
    if not steps:
        return depth, depth
    depths = list(itertools.accumulate(array.array("b", steps), initial=depth))
    lowest = min(depths)
    if lowest < 1 or max(depths) > DEEP:
        raise ValueError("it goes on behind its end" if lowest < 1 else "it is too deep")
    return lowest, depths[-1]
