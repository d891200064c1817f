#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""``playbooks/benchmark.yml --tags serving`` on real vLLM: figures like the generator's by hand, the key in no command,
the same again is no regression, a busy machine is one, and a stopped engine is refused.

Usage: test_benchmark.py [--beside ID]

Prints one JSON line; ``overhead_percent`` is by how much the rate differs from that of the generator run by hand.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import threading
from statistics import median
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))

import cluster
import test_staying_up as staying_up
from cluster import LabError, say

HEAD = cluster.HEAD
PLAYBOOK = "playbooks/benchmark.yml"
PROMPT, OUTPUT, REQUESTS, REPETITIONS = 64, 32, 4, 3  # the last two as the collection has them
MAX_OVERHEAD = 2.0  # percent, unless rates by hand differ more among themselves
# Two cores for everything: what differs by less is no regression here.
LIMITS = {"regression_percent": 30}
SETTINGS = {
    "benchmark_prompt_tokens": [PROMPT],
    "benchmark_output_tokens": OUTPUT,
    "verify_limits": LIMITS,
}
# Looks at every command line until it is told to end: how many had the key, and how many were of the generator.
WATCH = r"""
import pathlib, time
key = pathlib.Path("/etc/sparkmatrix/engine-key.env").read_text().split('"')[1].encode()
leaks, generators = set(), set()
while not pathlib.Path("/tmp/over").exists():
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if key in words:
            leaks.add(words)
        if b"sparkmatrix-benchmark-" in words:
            generators.add(path)
    time.sleep(0.1)
print(len(leaks), len(generators))
"""
BY_HAND = f"""
set -e
export OPENAI_API_KEY=$(sudo cut -d'"' -f2 /etc/sparkmatrix/engine-key.env) HF_HUB_OFFLINE=1
cd $(mktemp -d)
for seed in 901 902 903 904; do  # the first one warms up
  /opt/sparkmatrix/engine/bin/vllm bench serve --base-url http://127.0.0.1:8000 --model tiny-llama \\
    --tokenizer /opt/sparkmatrix/models/tiny-llama --backend openai --endpoint /v1/completions --dataset-name random \\
    --ignore-eos --random-input-len {PROMPT} --random-output-len {OUTPUT} --num-prompts {REQUESTS} \\
    --max-concurrency 1 --seed $seed --temperature 0 --save-result --result-filename $seed.json >&2
  python3 -c "import json; print(json.load(open('$seed.json'))['output_throughput'])"
done
"""
LEFT = "ls -d /tmp/sparkmatrix-[b]enchmark-* 2>/dev/null; pgrep -fa '[s]parkmatrix-benchmark-'"
BUSY = "sudo systemd-run --unit lab-busy sh -c 'for i in 1 2 3 4 5 6; do while :; do :; done & done; wait'"


def measured(here: staying_up.Cluster, name: str, concurrency: list[int], fails: str = "") -> list[dict[str, Any]]:
    """The points that the head has kept of the run."""
    options = ("--tags", "serving", "-e", json.dumps({**SETTINGS, "benchmark_concurrency": concurrency}))
    here.site(f"benchmark-{name}", PLAYBOOK, *options, fails=fails)
    kept = here.node(HEAD, "sudo sh -c 'cat $(ls /var/lib/sparkmatrix/verdicts/*-benchmark.json | tail -n 1)'")
    run = json.loads(kept)
    points: list[dict[str, Any]] = run["serving"]
    if [(point["concurrency"], point["repetitions"], point["failed"]) for point in points] != [
        (wanted, REPETITIONS, 0) for wanted in concurrency
    ]:
        raise LabError(f"kept of {name}: {points}")
    outcomes = {verdict["check"]: verdict["outcome"] for verdict in run["verdicts"]}
    say(f"   {name}: {[point['output_rate'] for point in points]} tokens/s; {outcomes}")
    return points


def first(here: staying_up.Cluster) -> tuple[dict[str, Any], str]:
    """The first point of a sweep, and what the watcher saw meanwhile."""
    seen: list[str] = []
    here.node(HEAD, "sudo rm -f /tmp/over")
    watcher = threading.Thread(target=lambda: seen.append(here.node(HEAD, "sudo python3 -", data=WATCH.encode())))
    watcher.start()
    try:
        points = measured(here, "first", [1, 2])
    finally:
        here.node(HEAD, "sudo touch /tmp/over")
        watcher.join()
    return points[0], seen[0].strip()


def check(here: staying_up.Cluster) -> dict[str, Any]:
    point, seen = first(here)
    leaks, generators = map(int, seen.split())
    if leaks or not generators:
        raise LabError(f"{leaks} commands had the key; {generators} of the generator were seen")
    left = here.node(HEAD, f'sudo sh -c "{LEFT}"', check=False)
    if left.strip():
        raise LabError(f"left on {HEAD}: {left}")
    _warm, *rates = map(float, here.node(HEAD, BY_HAND).split())
    again = measured(here, "again", [1])[0]
    ours = (point["output_rate"] + again["output_rate"]) / 2
    spread = (max(rates) - min(rates)) / median(rates) * 100
    overhead = (1 - ours / median(rates)) * 100
    result = {
        "ours": ours,
        "by_hand": rates,
        "overhead_percent": round(overhead, 2),
        "spread_percent": round(spread, 2),
    }
    say(f"   {json.dumps(result)}")
    if overhead > max(MAX_OVERHEAD, spread):
        raise LabError(f"the rate is {overhead:.1f} % below that of the generator by hand: {result}")
    here.node(HEAD, BUSY)
    try:
        slow = measured(here, "busy", [1], fails="These checks failed:")[0]
    finally:
        here.node(HEAD, "sudo systemctl stop lab-busy", check=False)
    if "tokens/s" not in cluster.log_tail("benchmark-busy", 400) or slow["output_rate"] > 0.7 * again["output_rate"]:
        raise LabError(f"a busy machine was as fast: {slow['output_rate']}")
    here.site("benchmark-stop", "playbooks/stop.yml")
    options = ("--tags", "serving", "-e", json.dumps(SETTINGS))
    refused = here.site("benchmark-stopped", PLAYBOOK, *options, fails="Stopped by stop.yml")
    if refused.seconds > 120:
        raise LabError(f"a stopped engine was refused after {refused.seconds:.0f} s only")
    return {**result, "busy": slow["output_rate"]}


def main() -> int:
    here = staying_up.Cluster(cluster.options(__doc__).parse_args().beside, "native")
    result: dict[str, Any] = {}
    problem = ""
    try:
        cluster.build()
        here.boot()
        here.site("benchmark-site")
        result = check(here)
    except (LabError, subprocess.SubprocessError) as exc:
        problem = str(exc)
        print(f"FAILED: {problem}")
    finally:
        here.down()
    print(json.dumps({"benchmark": result, "problem": problem}))
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
