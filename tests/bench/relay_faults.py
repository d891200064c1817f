#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Engine and relay are killed at random under streams that come through nginx: what do clients see?

    .venv/bin/python tests/bench/relay_faults.py --nginx /usr/sbin/nginx [--faults 200] [--streams 32]
    .venv/bin/python tests/bench/relay_faults.py --nginx /usr/sbin/nginx --hold 500   # what waiting takes of the memory

Every process is a real one and dies by SIGKILL, at any time after both have come back from the fault before. A stream
that had begun may end with an error or with its connection, never as whole; a request that has had no token must be
answered, and no request twice.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import gateway_here

TOKENS = 20


async def engine(port: int) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
            asked = json.loads(await reader.readexactly(length) or b"{}")
            await asyncio.sleep(random.random() * 0.2)  # the prompt is read
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            for number in range(TOKENS):
                event = f'data: {{"name": "{asked.get("name")}", "token": {number}}}\n\n'.encode()
                writer.write(b"%x\r\n%b\r\n" % (len(event), event))
                await writer.drain()
                await asyncio.sleep(random.random() * 0.02)
            writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port, backlog=1000)
    await server.serve_forever()


async def ask(port: int, name: str, prompt: str = "") -> tuple[str, float]:
    """What came of one request, and how long it took."""
    began = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    prompt = prompt or "x" * random.randrange(20_000)
    body = json.dumps({"model": "tiny", "stream": True, "name": name, "prompt": prompt}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {gateway_here.KEY}\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
    try:
        text = await reader.read(-1)
    finally:
        writer.close()
    head_text, _, rest = text.partition(b"\r\n\r\n")
    tokens = [number for number in range(TOKENS) for _ in range(rest.count(b'"token": %d}' % number))]
    if tokens != list(range(len(tokens))) or rest.count(name.encode()) != len(tokens):
        return f"ANSWERED TWICE {tokens}", time.monotonic() - began
    if b" 200 " not in head_text.partition(b"\r\n")[0]:
        return f"ERROR WITHOUT A TOKEN {head_text[:40]!r} {rest[:200]!r}", time.monotonic() - began
    if not tokens:
        return f"NO TOKEN, NO ERROR {rest[:100]!r}", time.monotonic() - began
    whole = rest.endswith(b"0\r\n\r\n")
    if (whole or b"[DONE]" in rest) and len(tokens) != TOKENS:
        return f"SHORT AS WHOLE {tokens}", time.monotonic() - began
    kind = "whole" if whole else "broken, with an error" if b"engine_died" in rest else "broken, without an error"
    return f"{kind}{', had waited' if b'X-Sparkmatrix-Held' in head_text else ''}", time.monotonic() - began


async def measure(here: gateway_here.Here, faults: int, streams: int) -> None:
    found: Counter[str] = Counter()
    over, longest = False, 0.0

    async def client(number: int) -> None:
        nonlocal longest
        count = 0
        while not over:
            count += 1
            how, took = await ask(here.port, f"r{number}-{count}")
            found[how] += 1
            longest = max(longest, took)

    clients = [asyncio.create_task(client(number)) for number in range(streams)]
    kills: Counter[str] = Counter()
    for _ in range(faults):
        await asyncio.to_thread(here.serves)
        await asyncio.sleep(random.random() * 0.5)
        who = random.choice(("engine", "engine", "relay"))
        kills[who] += 1
        getattr(here, who).kill()
    await asyncio.sleep(3)
    over = True
    await asyncio.gather(*clients)
    print(f"kills: {dict(kills)}; the longest answer took {longest:.1f} s")
    for how, count in found.most_common():
        print(f"{count:>7} {how}")
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
        asked = [asyncio.create_task(ask(here.port, f"h{number}", "x" * size)) for number in range(count)]
        while await held() < count:
            await asyncio.sleep(0.2)
        after = resident(here)
        cost = ", ".join(f"{name} {(after[name] - before[name]) * 1024 / count:.1f} KiB" for name in before)
        print(f"{count} requests of {size} bytes wait; each takes: {cost}")
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
    parser.add_argument("--engine", type=int, default=0)
    asked = parser.parse_args()
    if asked.engine:
        asyncio.run(engine(asked.engine))
        return
    with tempfile.TemporaryDirectory() as at:
        stand_in = [sys.executable, __file__, "--engine"]
        port = 18730 if asked.hold else 18710
        with gateway_here.gateway(at, asked.nginx, stand_in, port + 1, port) as here:
            here.engine.pause_s = 0.5
            asyncio.run(hold(here, asked.hold) if asked.hold else measure(here, asked.faults, asked.streams))


if __name__ == "__main__":
    main()
