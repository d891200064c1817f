#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Tokens through nginx alone and through nginx and the relay: speed, delay, and processor time of each.

    .venv/bin/python tests/bench/relay_speed.py --nginx /usr/sbin/nginx [--tokens 10000] [--seconds 10] 1 8 32 128

A stand-in for an engine writes so many tokens a second, one chunk of 250 bytes each, over all streams; a process reads
them. Everything is on this machine, so a rate that is not reached says what the machine is, not what the relay is.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[2] / "collections"))

from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils import _node_program

PORT, ALONE, RELAYED = 18700, 18701, 18702
EVENT = (
    b'data: {"id": "chatcmpl-0123456789abcdef", "object": "chat.completion.chunk", "created": 1790000000, "model":'
    b' "tiny", "choices": [{"index": 0, "delta": {"content": " token"}, "logprobs": null, "finish_reason": null}],'
    b' "at": %f}\n\n'
)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
CONF = """user root; daemon off; master_process on; worker_processes 4; pid {at}/nginx.pid; error_log {at}/error.log;
events {{ worker_connections 2048; }}
http {{
  access_log off; client_body_temp_path {at}/body; proxy_temp_path {at}/proxy; fastcgi_temp_path {at}/f;
  uwsgi_temp_path {at}/u; scgi_temp_path {at}/s; client_max_body_size 8m; client_body_buffer_size 8m;
  proxy_http_version 1.1; proxy_buffering off; proxy_buffer_size 16k; proxy_buffers 8 16k;
  upstream relay {{ server unix:{at}/relay.sock max_fails=0; }}
  server {{ listen 127.0.0.1:{alone}; location / {{ proxy_pass http://127.0.0.1:{port}; }} }}
  server {{ listen 127.0.0.1:{relayed}; location / {{ proxy_pass http://relay; }} }}
}}
"""


async def engine(rate: float) -> None:
    """Each step writes a token to each stream, as an engine does; late, it writes several at once."""
    streams: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD)
        streams.add(writer)
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    await asyncio.start_server(serve, "127.0.0.1", PORT, backlog=1000)
    due = time.monotonic()
    while True:
        count = len(streams)
        if not count:
            due = time.monotonic()
            await asyncio.sleep(0.01)
            continue
        event = EVENT % time.monotonic()
        data = b"%x\r\n%b\r\n" % (len(event), event)
        for writer in list(streams):
            if writer.transport.is_closing():
                streams.discard(writer)
            elif writer.transport.get_write_buffer_size() < 1 << 20:
                writer.write(data)
        due += count / rate
        await asyncio.sleep(max(due - time.monotonic(), 0))


async def clients(port: int, count: int, seconds: float) -> None:
    tokens = 0
    delays: list[float] = []

    async def one() -> None:
        nonlocal tokens
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        writer.write(b'POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 17\r\n\r\n{"model": "tiny"}')
        while time.monotonic() < until:
            data = await reader.read(65536)
            assert data, "the stream ended"
            tokens += data.count(b'"choices"')
            at = data.rfind(b'"at": ')
            if at >= 0 and (end := data.find(b"}", at)) > 0:
                delays.append(time.monotonic() - float(data[at + 6 : end]))
        writer.transport.abort()

    began = time.monotonic()
    until = began + seconds
    await asyncio.gather(*(one() for _ in range(count)))
    took = time.monotonic() - began
    delays.sort()
    told = {"tokens_per_s": tokens / took, "tokens": tokens, "median_ms": 1000 * statistics.median(delays)}
    print(json.dumps({**told, "p99_ms": 1000 * delays[int(len(delays) * 0.99)]}))


def spent(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("streams", type=int, nargs="*", default=[1, 8, 32, 128])
    parser.add_argument("--nginx", default="/usr/sbin/nginx")
    parser.add_argument("--tokens", type=float, default=10000)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--as", dest="role", default="")
    parser.add_argument("--port", type=int, default=0)
    asked = parser.parse_args()
    if asked.role == "engine":
        asyncio.run(engine(asked.tokens))
    elif asked.role == "clients":
        asyncio.run(clients(asked.port, asked.streams[0], asked.seconds))
    else:
        measure(asked)


def wait_for(*places: str) -> None:
    deadline = time.monotonic() + 30
    while not all(map(os.path.exists, places)) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1)


def measure(asked: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as at:
        started = []
        try:
            program = Path(at, "sparkmatrix-node")
            program.write_bytes(_node_program.build())
            config = {"engines": [{"name": "chat", "model": "tiny", "host": "127.0.0.1", "port": PORT}]}
            Path(at, "relay.json").write_text(json.dumps(config))
            Path(at, "nginx.conf").write_text(CONF.format(at=at, port=PORT, alone=ALONE, relayed=RELAYED))
            me = [sys.executable, str(HERE), "--tokens", str(asked.tokens), "--seconds", str(asked.seconds)]
            started.append(subprocess.Popen([*me, "--as", "engine"]))
            own = ["--config", f"{at}/relay.json", "--socket", f"{at}/relay.sock"]
            relay = [sys.executable, str(program), "relay", *own]
            started.append(subprocess.Popen(relay))
            started.append(subprocess.Popen([asked.nginx, "-p", at, "-c", f"{at}/nginx.conf", "-e", f"{at}/error.log"]))
            wait_for(f"{at}/relay.sock", f"{at}/nginx.pid")
            master = started[2].pid
            children = Path(f"/proc/{master}/task/{master}/children").read_text().split()
            workers = [int(pid) for pid in children]
            print("streams way       tokens/s  median ms   p99 ms  CPU s per 100k tokens")
            for count in asked.streams:
                for way, port in (("nginx", ALONE), ("relay", RELAYED)):
                    before = spent(workers), spent([started[1].pid])
                    asks = [*me, "--as", "clients", "--port", str(port), str(count)]
                    found = json.loads(subprocess.run(asks, capture_output=True, text=True, check=True).stdout)
                    per = 100_000 / found["tokens"]
                    nginx, relayed = spent(workers) - before[0], spent([started[1].pid]) - before[1]
                    cost = f"nginx {nginx * per:.2f}" + (f", relay {relayed * per:.2f}" if way == "relay" else "")
                    print(
                        f"{count:>7} {way:<8} {found['tokens_per_s']:>9.0f} {found['median_ms']:>10.2f}"
                        f" {found['p99_ms']:>8.2f} {cost:>22}"
                    )
                    time.sleep(1)
            used = Path(f"/proc/{started[1].pid}/status").read_text()
            print("relay:", " ".join(next(line for line in used.splitlines() if line.startswith("VmHWM")).split()))
        finally:
            for process in reversed(started):
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(5)
                except subprocess.TimeoutExpired:
                    process.kill()


if __name__ == "__main__":
    main()
