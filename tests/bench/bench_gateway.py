#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Throughput through the gateway against the bare engine. Runs on the head, as root, with the standard library alone.

    ssh spark1 sudo python3 - < tests/bench/bench_gateway.py

Both are asked in turns, so that what else the machine does meets both. A round is ``streams`` requests at once; its
figure is all their tokens over the time until the last of them has ended. The ratio is the median of those of all pairs
of neighbouring rounds, many and short: other programs that take the processor for a while spoil single pairs only. The
middle half of the pairs says how far they are apart. The processor time of both, during the rounds through the gateway,
does not depend on other programs. Where the engine computes on this processor too, ``paced_engine.py`` shows what the
gateway costs alone. A process for every four processors asks, so that one Python is not what is measured. The last line
is JSON.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import http.client
import json
import multiprocessing
import os
import ssl
import statistics
import subprocess
import threading
import time
import urllib.parse

ENGINE = "/etc/sparkmatrix/engine.json"
DESCRIPTION = "/etc/sparkmatrix/gateway.json"
GATEWAY = "sparkmatrix-gateway.service"
AUTHORITY = "/etc/sparkmatrix/gateway/tls/ca.crt"
ASKING = min(8, max(1, (os.cpu_count() or 1) // 4))  # processes
Way = tuple[str, str, str]  # address, key, model
Round = tuple[float, float]  # tokens per second of all streams together, median seconds to the first token


def connect(base: str) -> http.client.HTTPConnection:
    url = urllib.parse.urlsplit(base)
    if url.scheme == "https":
        context = ssl.create_default_context(cafile=AUTHORITY)
        return http.client.HTTPSConnection(url.hostname or "", url.port, timeout=600, context=context)
    return http.client.HTTPConnection(url.hostname or "", url.port, timeout=600)


def stream(base: str, key: str, model: str, tokens: int, result: list[tuple[int, float]]) -> None:
    """One streamed answer: (tokens, seconds until the first)."""
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": tokens, "stream": True}
    body |= {"ignore_eos": True, "stream_options": {"include_usage": True}, "temperature": 0}
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    connection, started, first, count = connect(base), time.monotonic(), 0.0, 0
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(f"{base}: HTTP {response.status}: {response.read(500)!r}")
    for line in response:
        if line.startswith(b"data: {"):
            if not first and json.loads(line[6:]).get("choices"):
                first = time.monotonic() - started
            if b'"completion_tokens"' in line:
                count = json.loads(line[6:])["usage"]["completion_tokens"]
    connection.close()
    result.append((count, first))


def together(base: str, key: str, model: str, streams: int, tokens: int) -> list[tuple[int, float]]:
    result: list[tuple[int, float]] = []
    threads = [threading.Thread(target=stream, args=(base, key, model, tokens, result)) for _ in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return result


def a_round(pool: concurrent.futures.Executor, way: Way, streams: int, tokens: int) -> Round:
    base, key, model = way
    started = time.monotonic()
    shares = [streams // ASKING + (number < streams % ASKING) for number in range(ASKING)]
    asked = [pool.submit(together, base, key, model, share, tokens) for share in shares if share]
    result = [answer for share in asked for answer in share.result()]
    seconds = time.monotonic() - started
    if len(result) != streams or any(count != tokens for count, _first in result):
        raise SystemExit(f"{base}: {len(result)} of {streams} answers, {sorted(count for count, _first in result)}")
    return streams * tokens / seconds, statistics.median(first for _count, first in result)


def processor(unit: str) -> float:
    """Seconds of processor time that a unit has used; waiting for a busy machine is not in it."""
    shown = subprocess.run(
        ["systemctl", "show", "-p", "CPUUsageNSec", "--value", unit], capture_output=True, text=True, check=True
    )
    return int(shown.stdout) / 1e9


def secret(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read().strip().rpartition('="')[2].strip('"')


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=25, help="pairs of them")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--endpoint", default="", help="of the gateway; its loopback port when not given")
    parser.add_argument("--unit", default="sparkmatrix-engine.service", help="the engine's")
    wanted = parser.parse_args()
    with open(ENGINE, encoding="utf-8") as file:
        engine = json.load(file)
    with open(DESCRIPTION, encoding="utf-8") as file:
        gateway = json.load(file)
    ways = {
        "engine": (f"http://{engine['host']}:{engine['port']}", secret(engine["key_file"]), engine["model"]),
        "gateway": (
            wanted.endpoint or f"http://{gateway['host']}:{gateway['port']}",
            secret(gateway["key_file"]),
            engine["model"],
        ),
    }
    pool = concurrent.futures.ProcessPoolExecutor(ASKING, multiprocessing.get_context("fork"))
    for way in ways.values():
        a_round(pool, way, max(wanted.streams), 8)  # warm
    figures: dict[int, dict[str, float]] = {}
    print("streams   engine, gateway tok/s  ratio (middle half)   first token ms   processor time per token, µs")
    for streams in wanted.streams:
        seen: dict[str, list[Round]] = {name: [] for name in ways}
        spent = dict.fromkeys((wanted.unit, GATEWAY), 0.0)
        for number in range(wanted.rounds):
            for name in sorted(ways, reverse=bool(number % 2)):
                before = {unit: processor(unit) for unit in spent}
                seen[name].append(a_round(pool, ways[name], streams, wanted.tokens))
                if name == "gateway":
                    spent = {unit: spent[unit] + processor(unit) - before[unit] for unit in spent}
        rate = {way: statistics.median(rate for rate, _first in rounds) for way, rounds in seen.items()}
        first = {way: 1000 * statistics.median(first for _rate, first in rounds) for way, rounds in seen.items()}
        pairs = zip(seen["engine"], seen["gateway"], strict=True)
        low, middle, high = statistics.quantiles((through / bare for (bare, _), (through, _) in pairs), n=4)
        per_token = {unit: 1e6 * seconds / (streams * wanted.tokens * wanted.rounds) for unit, seconds in spent.items()}
        print(
            f"{streams:>7} {rate['engine']:>10.1f}, {rate['gateway']:.1f}  {middle:.3f} ({low:.3f} to {high:.3f})"
            f"   {first['engine']:.1f}, {first['gateway']:.1f}"
            f"   engine {per_token[wanted.unit]:.0f}, gateway {per_token[GATEWAY]:.0f}",
            flush=True,
        )
        found = {**rate, "ratio": middle, "ratio_low": low, "ratio_high": high}
        found |= {f"{name}_first_ms": value for name, value in first.items()}
        figures[streams] = {name: round(value, 3) for name, value in found.items()}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
