#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""From start to the first token with empty caches and with those of the start before: ``bench_caches.py [ROUNDS]``.

vLLM's CPU build of the lab's engine environment, the tiny model, compiled graphs; no nodes take part. The caches are
those that a container keeps on its node (`_engine/plan.py`). One JSON line.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/lab"), str(ROOT / "collections")]

import cluster
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.plan import CACHES

LIMIT_S = 300


def token(port: int) -> bool:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "fox"}], "max_tokens": 1}
    address, headers = f"http://127.0.0.1:{port}/v1/chat/completions", {"Content-Type": "application/json"}
    request = urllib.request.Request(address, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return int(json.load(answer)["usage"]["completion_tokens"]) > 0
    except OSError:
        return False


def start(caches: pathlib.Path, home: pathlib.Path) -> float:
    """Seconds from start to the first token."""
    cache = cluster.cache()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        **{name: str(caches / directory) for name, directory in CACHES.items()},
        "VLLM_CACHE_ROOT": str(caches / "vllm"),
        "HOME": str(home),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "PATH": f"{cache}/engine/bin:{os.environ['PATH']}",
    }
    command = [f"{cache}/engine/bin/python3.11", "-m", "vllm.entrypoints.cli.main", "serve"]
    command += [f"{cache}/models/tiny-llama", "--served-model-name", "tiny"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", "256", "--max-num-seqs", "2"]
    command += ["--dtype", "bfloat16", "--kv-cache-memory-bytes", "67108864"]
    began = time.monotonic()
    log = home / "engine.log"
    with log.open("w") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
    try:
        while not token(port):
            if process.poll() is not None or time.monotonic() - began > LIMIT_S:
                raise SystemExit(log.read_text()[-2000:])
            time.sleep(0.2)
        return time.monotonic() - began
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def main(rounds: int) -> int:
    seconds: dict[str, list[float]] = {"empty": [], "kept": []}
    with tempfile.TemporaryDirectory() as directory:
        home = pathlib.Path(directory)
        start(home / "first", home)  # so that both find the programs in memory
        for number in range(rounds):
            for times in seconds.values():  # the second one finds what the first one has left
                times.append(round(start(home / str(number), home), 1))
    print(json.dumps({**seconds, "medians": {name: statistics.median(times) for name, times in seconds.items()}}))
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3))
