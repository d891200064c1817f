#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What an engine keeps of its rate, and what memory is left, while a model is copied to its machine. As root:

    .venv/bin/python tests/bench/beside_engine.py --base /var/tmp/fanbench

Sender and receiver are network namespaces of this machine (``fan_out.py``) with a cable without limit, so both take
from the cores of the one engine: twice of what a machine of its own would see. Two engines that compute nothing useful:
``paced`` is like one whose work is on a GPU (every 20 ms it needs a core for 5 ms, and is late where it does not get
it), ``busy`` like one on the processor (every core, all the time). Windows with and without a copy take turns, so that
what else runs here falls on both; the rate is the median of the rounds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import fan_out

ENGINE = """
import sys, time
step, busy, seconds = map(float, sys.argv[1:])
def compute(until):
    count = 0
    while time.thread_time() < until:
        count += 1
    return count
began, tokens, work = time.monotonic(), 0, 0
while time.monotonic() - began < seconds:
    work += compute(time.thread_time() + busy)
    tokens += 1
    time.sleep(max(0.0, step - (time.monotonic() - began) % step) if step else 0)
print(tokens / (time.monotonic() - began))
"""
KINDS = {"paced": (0.02, 0.005, 1), "busy": (0.0, 0.005, os.cpu_count() or 1)}  # step, compute, processes


def rate(kind: str, seconds: float) -> float:
    """Tokens per second of all its processes."""
    step, busy, count = KINDS[kind]
    argv = [sys.executable, "-c", ENGINE, str(step), str(busy), str(seconds)]
    running = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _each in range(count)]
    return sum(float(process.communicate()[0]) for process in running)


def memory() -> dict[str, int]:
    """MB."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines())
    return {name.rstrip(":"): int(count) // 1000 for name, count, *_unit in lines}


class Copy:
    """From the first node to the second, with ``nice`` of the unit, until it is ended."""

    def __init__(self, bench: fan_out.Bench, how: list[str], limit: int) -> None:
        self.bench = bench
        bench.to(1).mkdir()
        self.running = []
        for node, argv in fan_out.pulls(bench, limit * 10**6).items():
            self.running.append(bench.start(node, *how, *argv))
        self.begun, self.at = self.arrived(), time.monotonic()
        while not self.arrived():
            time.sleep(0.1)
            self._look("did not begin")

    def arrived(self) -> int:
        """Bytes."""
        return sum(path.stat().st_size for path in (self.bench.base / "home1").rglob("*") if path.is_file())

    def _look(self, how: str) -> None:
        if any(process.poll() is not None for process in self.running):
            raise SystemExit(f"the copy {how}: {(self.bench.base / 'output').read_text(encoding='utf-8')[-500:]}")

    def end(self) -> float:
        """MB/s so far; it has to be on its way still."""
        found = self.arrived() / (time.monotonic() - self.at) / 10**6
        self._look("ended before the engine, so a larger --size is needed")
        for process in self.running:
            process.send_signal(signal.SIGKILL)
            process.wait()
        self.bench.stop()
        shutil.rmtree(self.bench.base / "home1")
        shutil.rmtree(self.bench.to(1))
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--size", type=int, default=3000, help="MB of the model")
    parser.add_argument("--seconds", type=float, default=8, help="of a window")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limits", default="0", help="artifacts_rate_mb_s, with commas; 0: none")
    parser.add_argument("--nice", default="5,19", help="of the copy, with commas")
    parser.add_argument("--base", type=Path, default=Path("/var/tmp/fanbench"), help="emptied before and after")
    options = parser.parse_args()
    shutil.rmtree(options.base, ignore_errors=True)
    try:
        files, manifest = fan_out.make_model(options.base, options.size * 10**6, 4)
        with fan_out.Network(2, 1, 0) as network:
            bench = fan_out.Bench(network, options.base, files, manifest, "")
            for kind in KINDS:
                for nice in options.nice.split(","):
                    for limit in options.limits.split(","):
                        kept, copied, cached, free = [], [], [], []
                        for _round in range(options.rounds):
                            alone, before = rate(kind, options.seconds), memory()
                            copy = Copy(bench, ["nice", "-n", nice], int(limit))
                            kept.append(rate(kind, options.seconds) / alone)
                            after = memory()
                            copied.append(copy.end())
                            cached.append(after["Cached"] - before["Cached"])
                            free.append(before["MemAvailable"] - after["MemAvailable"])
                        print(
                            f"{kind:6} nice {nice:>2} limit {limit:>4} MB/s: keeps {statistics.median(kept):.0%}"
                            f" ({', '.join(f'{one:.0%}' for one in kept)}); copied at"
                            f" {statistics.median(copied):.0f} MB/s; page cache {max(cached):+d} MB, memory that"
                            f" can be had {-max(free):+d} MB",
                            flush=True,
                        )
    finally:
        shutil.rmtree(options.base, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
