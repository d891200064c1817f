#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Engine and relay are killed at random under streams that come through nginx: what do clients see?

    .venv/bin/python tests/bench/relay_faults.py --nginx /usr/sbin/nginx [--faults 200] [--streams 32]
    .venv/bin/python tests/bench/relay_faults.py --nginx /usr/sbin/nginx --hold 500   # what waiting takes of the memory

Every process is a real one and dies by SIGKILL, at any time after both have come back from the fault before. A stream
that had begun may end with an error or with its connection, never as whole; a request that has had no token must be
answered, and no request twice. tests/scenarios/test_unnoticed.py has the same clients before simulated Sparks.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import gateway_here
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import relay_http as http
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.names import HELD

TOKENS = 20
LOST_S = 700.0  # longer than a request may wait
ENGINE = (
    sys.executable,
    str(Path(__file__).resolve().parents[1] / "lab/standin/anything.py"),
    "serve",
    "--name",
    "tiny",
)
# What may come of a request.
WHOLE, BROKE = "whole", "had begun, ended with the API's error"
CUT = "had begun, its connection ended"  # the gateway itself was killed
NOTHING = "its connection ended before an answer"
WRONG = (ERROR, TWICE, SHORT, LOST) = ("ERROR WITHOUT A TOKEN", "ANSWERED TWICE", "SHORT AS WHOLE", "NO END")
# After NOTHING, as OpenAI's and Anthropic's clients do by themselves.
AGAIN_S = (0.5, 1.0)


@dataclass(frozen=True)
class Way:
    """To whom requests go. ``prompt``: of a request, at most so many bytes."""

    host: str
    port: int
    key: str = gateway_here.KEY
    model: str = "tiny"
    prompt: int = 20_000


@dataclass
class Answer:
    """Times are seconds since 1970."""

    kind: str = LOST
    said: str = ""
    began: float = field(default_factory=time.time)
    first: float = 0.0
    ended: float = 0.0
    waited: bool = False

    def judge(self, text: bytes, name: str) -> None:
        top, end, rest = text.partition(http.END)
        if not end:
            self.kind = NOTHING
            return
        head = http.answer_head(top)
        body = http.Body(head, b"POST")
        payload = body.feed(rest)
        self.waited = bool(head.get(HELD.lower().encode()))
        lines = [part.removeprefix(b"data: ") for part in payload.split(b"\n\n")[:-1] if part.startswith(b"data: ")]
        events = [json.loads(line) for line in lines if line != b"[DONE]"]
        tokens = [event for event in events if "error" not in event]
        counts = [event["usage"]["completion_tokens"] for event in tokens]
        self.said = f"{head.status} {payload[:200]!r} … {payload[-200:]!r}"
        # By its one id and time of creation, all is of one answer; by its count, nothing is there twice.
        answers = {(event["id"], event["created"]) for event in tokens}
        if len(answers) > 1 or any(name != one.partition("-")[2] for one, _at in answers) or counts != sorted(counts):
            self.kind = TWICE
        elif head.status != 200 or not (tokens or body.done):
            self.kind = ERROR if head.status != 200 or events else NOTHING
        elif len(tokens) < len(events):
            self.kind = BROKE
        elif body.done:
            self.kind = WHOLE if lines[-1:] == [b"[DONE]"] and counts[-1:] == [TOKENS] else SHORT
        else:
            self.kind = CUT


async def ask(way: Way, name: str, prompt: str = "") -> Answer:
    """One request, as a client that never tries again."""
    answer, text = Answer(), b""
    asked = {
        "model": way.model,
        "messages": [{"role": "user", "content": prompt or "x" * random.randrange(1, way.prompt)}],
        **{"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        **{"max_tokens": TOKENS, "ignore_eos": True, "temperature": 0},
    }
    body = json.dumps(asked).encode()
    fields = (("Host", "x"), ("Authorization", f"Bearer {way.key}"), ("X-Request-Id", name), ("Connection", "close"))
    own = (*fields, ("Content-Type", "application/json"), ("Content-Length", str(len(body))))
    lines = tuple((field.encode(), value.encode()) for field, value in own)
    with contextlib.suppress(OSError, asyncio.TimeoutError):
        async with asyncio.timeout(LOST_S):
            reader, writer = await asyncio.open_connection(way.host, way.port)
            try:
                writer.write(http.written(b"POST /v1/chat/completions HTTP/1.1", lines) + body)
                while data := await reader.read(65536):
                    text += data
                    answer.first = answer.first or (time.time() if b"completion_tokens" in text else 0.0)
            finally:
                writer.close()
    answer.ended = time.time()
    if text or answer.ended - answer.began < LOST_S:
        answer.judge(text, name)
    return answer


class Clients:
    """So many streams, each of which asks for the next as soon as its last one has ended."""

    def __init__(self, way: Way, streams: int) -> None:
        self.way, self.streams, self.over = way, streams, False
        self.answers: list[Answer] = []

    async def __aenter__(self) -> Clients:
        self.tasks = [asyncio.create_task(self._ask(number)) for number in range(self.streams)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, _: TracebackType | None
    ) -> None:
        self.over = True
        for task in self.tasks if kind else ():  # whoever failed waits for nobody
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=kind is not None)

    async def _ask(self, number: int) -> None:
        count = 0
        while not self.over:
            count += 1
            for pause in (*AGAIN_S, 0.0):
                answer = await ask(self.way, f"r{number}.{count}")
                if answer.kind == NOTHING and not pause:
                    answer.kind = ERROR
                self.answers.append(answer)
                if answer.kind != NOTHING:
                    break
                await asyncio.sleep(pause)

    def answered_since(self, when: float) -> bool:
        """Whether the first token of an answer has come later."""
        return any(answer.first > when for answer in self.answers[-4 * self.streams :])


def counted(answers: Iterable[Answer]) -> dict[str, int]:
    found = Counter(f"{answer.kind}{', had waited' if answer.waited else ''}" for answer in answers)
    return dict(found.most_common())


async def measure(here: gateway_here.Here, faults: int, streams: int) -> None:
    kills: Counter[str] = Counter()
    async with Clients(Way("127.0.0.1", here.port), streams) as clients:
        for _ in range(faults):
            await asyncio.to_thread(here.serves)
            await asyncio.sleep(random.random() * 0.5)
            who = random.choice(("engine", "engine", "relay"))
            kills[who] += 1
            getattr(here, who).kill()
        await asyncio.sleep(3)
    longest = max(answer.ended - answer.began for answer in clients.answers)
    print(f"kills: {dict(kills)}; the longest answer took {longest:.1f} s")
    for how, count in counted(clients.answers).items():
        print(f"{count:>7} {how}")
    for answer in [answer for answer in clients.answers if answer.kind in WRONG][:9]:
        print(f"{answer.kind}: {answer.said}")
    print("relay, since it was started last:", here.counts())


def resident(here: gateway_here.Here) -> dict[str, float]:
    """MiB."""
    master = here.nginx.pid
    workers = Path(f"/proc/{master}/task/{master}/children").read_text().split()
    found = {}
    for name, pids in (("relay", [str(here.relay.process.pid)]), ("nginx", workers)):
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
        found[name] = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    return found


async def hold(here: gateway_here.Here, count: int) -> None:
    async def held() -> int:
        told = await asyncio.to_thread(here.counts)
        return told.held if told else 0

    here.engine.over = True
    here.engine.kill()
    await asyncio.sleep(1)
    for size in (1000, 100_000, 400_000):
        before = resident(here)
        way = Way("127.0.0.1", here.port)
        asked = [asyncio.create_task(ask(way, f"h{number}", "x" * size)) for number in range(count)]
        while await held() < count:
            await asyncio.sleep(0.2)
        after = resident(here)
        cost = ", ".join(f"{name} {(after[name] - before[name]) * 1024 / count:.1f} KiB" for name in before)
        print(f"{count} requests of {size} bytes wait; each takes: {cost}; MiB without: {before}, with: {after}")
        for one in asked:
            one.cancel()
        await asyncio.sleep(1)
        print("  when they have left:", here.counts())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nginx", default="/usr/sbin/nginx")
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--hold", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as at:
        port = 18730 if asked.hold else 18710
        with gateway_here.gateway(at, asked.nginx, (*ENGINE, "--port"), port + 1, port) as here:
            here.engine.pause_s = 0.5
            asyncio.run(hold(here, asked.hold) if asked.hold else measure(here, asked.faults, asked.streams))


if __name__ == "__main__":
    main()
