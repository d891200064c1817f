#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""An engine that writes a token every so many milliseconds to each stream, and computes nothing.

    python3 paced_engine.py PORT MODEL KEY_FILE MILLISECONDS

For ``bench_gateway.py``: what a GPU computes does not wait for the processor on which the gateway runs. On a machine
without one, an engine and the gateway take the processor from each other, and the ratio of their rates says little
about the gateway.
"""

from __future__ import annotations

import asyncio
import json
import pathlib
import sys

PORT, MODEL, STEP_S = int(sys.argv[1]), sys.argv[2], float(sys.argv[4]) / 1000
KEY = pathlib.Path(sys.argv[3]).read_text(encoding="utf-8").split('"')[1]


def event(document: object) -> bytes:
    text = b"data: " + (document if isinstance(document, bytes) else json.dumps(document).encode()) + b"\n\n"
    return f"{len(text):x}\r\n".encode() + text + b"\r\n"


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
    body = json.loads(await reader.readexactly(int(fields.get("content-length", 0))) or b"{}")
    if fields.get("authorization") != f"Bearer {KEY}".lower():
        writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
    else:
        kind = "Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nConnection: close"
        writer.write(f"HTTP/1.1 200 OK\r\n{kind}\r\n\r\n".encode())
        clock = asyncio.get_running_loop()
        began, count = clock.time(), int(body.get("max_tokens", 16))
        for number in range(count):
            await asyncio.sleep(began + (number + 1) * STEP_S - clock.time())
            delta = {"index": 0, "delta": {"content": " token"}, "finish_reason": None}
            writer.write(
                event({"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": MODEL, "choices": [delta]})
            )
        writer.write(event({"model": MODEL, "choices": [], "usage": {"completion_tokens": count}}))
        writer.write(event(b"[DONE]") + b"0\r\n\r\n")
    await writer.drain()
    writer.close()


async def main() -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", PORT)
    await server.serve_forever()


asyncio.run(main())
