# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The model that a request names is the one that Python's own reader finds, and reading it holds nobody up."""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import relay_body as body

SIZE = 2 * 2**20


def read(text: bytes) -> tuple[Any, list[float]]:
    """The model, or why there is none; and how long each piece has taken."""
    turns = []
    began = time.thread_time()

    async def turn() -> None:
        nonlocal began
        turns.append(time.thread_time() - began)
        began = time.thread_time()

    async def main() -> Any:
        try:
            return await body.model(text, turn)
        except ValueError as exc:
            return exc
        finally:
            await turn()

    return asyncio.run(main()), turns


def some(chance: random.Random, deep: int = 0) -> Any:
    """Any JSON that is good at misleading."""
    kind = chance.randrange(7 if deep < 4 else 5)
    if kind == 5:
        return [some(chance, deep + 1) for _ in range(chance.randrange(4))]
    if kind == 6:
        return {word(chance): some(chance, deep + 1) for _ in range(chance.randrange(5))}
    return [word(chance), chance.random() * 1e9, None, True, -3][kind]


def word(chance: random.Random) -> str:
    signs = ["model", "models", '"', "\\", "\\\\", "{", "}", "[", "]", ":", ",", "\n", "\u00e9", "\u4e2d", "a" * 70]
    return "".join(chance.choices(signs, k=chance.randrange(4))) if chance.random() < 0.6 else chance.choice(signs[:2])


def test_the_model_is_the_one_that_an_engine_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(37)
    for number in range(3000):
        monkeypatch.setattr(body, "FIRST", chance.choice([1, 7, 512]))
        monkeypatch.setattr(body, "PIECE", chance.choice([1, 7, 16384]))
        pairs = [(word(chance), some(chance, 1)) for _ in range(chance.randrange(6))]
        gap = chance.choice(["", " ", "\r\n\t "])
        one = [
            f"{gap}{json.dumps(name, ensure_ascii=number % 2 == 0)}{gap}:{gap}{json.dumps(value)}{gap}"
            for name, value in pairs
        ]
        text = f"{gap}{{{','.join(one) or gap}}}{gap}"
        asked = json.loads(text)
        wanted = asked["model"] if isinstance(asked.get("model"), str) else None
        assert read(text.encode(chance.choice(["utf-8", "utf-8-sig"])))[0] == wanted, text


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b" ", b"null", b'["model"]', b'"model"', b"7", b"--boundary"),
        b"{",
        b'{"model": "tiny"',
        b'{"model": "tiny}',
        b'{"model": "tiny\\"}',
        b'{"model": "tiny"}}',
        b'{"model": "tiny"} {}',
        b'{"a": {"model": "tiny"}',
        b'{"model": "\xff"}',
        b'{"model": "a\tb"}',
        b'{"model": "' + b"x" * 5000 + b'"}',
        '{"model": "tiny"}'.encode("utf-16"),
        '{"model": "tiny"}'.encode("utf-32-le"),
        b'{"a": ' + b"[" * 500 + b"]" * 500 + b"}",
        b'{"a": ' + b"[" * 100_000 + b"}",
        b"{" + b'"model":"x",' * 10_000 + b'"a":0}',
    ],
    ids=lambda text: str(text[:30]),
)
def test_what_cannot_be_read_is_refused(text: bytes) -> None:
    assert isinstance(read(text)[0], ValueError)


PARTS = (
    b'"",',
    b'"a":0,',
    b'"\\\\\\"",',
    b'"' + b'\\"' * 1000 + b'",',
    b'"' + b"\\\\" * 1000 + b'",',
    b"[],",
    b"[" * 490 + b"]" * 490 + b",",
    b'{"model":"x"},',
    b'"a":[' + b'"",' * 5000 + b"0],",
    b"9" * 100_000,
    b" ",
    b"\\",
    b'"' + b"x" * SIZE,
)


@pytest.mark.parametrize("begin", [b'{"model":"tiny",', b'{"model":"tiny","b":['], ids=["outermost", "within"])
@pytest.mark.parametrize("part", PARTS, ids=lambda part: str(part[:12]))
def test_no_piece_takes_long(part: bytes, begin: bytes) -> None:
    text = begin + part * ((SIZE - 100) // len(part))
    turns = read(text + (b"0]}" if begin.endswith(b"[") else b'"a":0}'))[1]
    # Of processor time, on a machine that is busy otherwise.
    assert max(turns) < 0.15 and sum(turns) < 15
