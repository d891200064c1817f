#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""How much the log probabilities of an engine differ from themselves: the noise that a golden answer has to allow.

    golden_noise.py --port 8000 --model NAME --batches 1 8 32 --runs 5 --save tp1.json
    golden_noise.py --port 8001 --model NAME --against tp1.json       # the same weights, other TP, dtype or version

Asks the questions of ``_engine/golden.py`` while so many requests less one run beside them, and compares each run with
the first one alone, or with that of another engine. One line per batch: mean of all runs and the largest (nats), the
surest token that is another one, what the product would record as noise, and what it would find. Needs Python's
standard library only; the key of the engine is read from ``--key-file``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "ansible_collections.sparkmatrix.cluster"


def collection() -> None:
    """The checkout as the package that it is installed as, on a machine that has no Ansible."""
    import types  # noqa: PLC0415

    for number, name in enumerate(PACKAGE.split("."), 1):
        whole = ".".join(PACKAGE.split(".")[:number])
        sys.modules[whole] = made = types.ModuleType(name)
        made.__path__ = [str(ROOT)] if whole == PACKAGE else []


collection()
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import api_paths, document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import golden, probe

FILLER = "Tell a long story about number {} of the machines, and about what it saw. "


class Beside:
    """Requests of others, as many at a time, as long as it is open."""

    def __init__(self, target: probe.Target, count: int) -> None:
        self.target, self.ended = target, threading.Event()
        self.threads = [threading.Thread(target=self._ask, args=(number,), daemon=True) for number in range(count)]

    def __enter__(self) -> None:
        for thread in self.threads:
            thread.start()

    def __exit__(self, *_exc: object) -> None:
        self.ended.set()
        for thread in self.threads:
            thread.join()

    def _ask(self, number: int) -> None:
        turn = 0
        while not self.ended.is_set():
            turn += 1
            prompt = f"{turn} {FILLER.format(number)}" * (1 + number % 4)
            body = {"model": self.target.model, "prompt": prompt, "max_tokens": 32 + number, "temperature": 0.7}
            try:
                probe.exchange(self.target, api_paths.COMPLETIONS, body, 300.0, "completion")
            except SparkError as exc:
                sys.stderr.write(f"beside: {exc}\n")
                return


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--key-file", default="")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--against", type=Path)
    options = parser.parse_args(argv)
    key = probe.read_key(options.key_file) if options.key_file else ""
    target = probe.Target(options.host, options.port, options.model, key)
    now = datetime.now(timezone.utc).isoformat()
    asked = golden.ask(target, golden.Record("weights", "", f"port {options.port}", now))
    before = asked
    if options.against:
        before = document.load(golden.Record, json.loads(options.against.read_text(encoding="utf-8")))
    if options.save:
        options.save.write_text(json.dumps(document.plain(asked)), encoding="utf-8")
    say(f"{'batch':>5} {'mean':>7} {'most':>7} {'ahead':>7} {'noise':>7} {'tokens':>6}  found")
    for batch in options.batches:
        runs = []
        with Beside(target, batch - 1):
            for _run in range(options.runs):
                record = golden.numbers(target, asked)
                runs.append((record, golden.distance([*before.plain, *before.chat], [*record.plain, *record.chat])))
        found = sorted({one.rule for record, _apart in runs for one in golden.compare(before, record)})
        means = [apart.mean for _record, apart in runs]
        ahead = max(apart.most for _record, apart in runs)
        noise = max(record.noise for record, _apart in runs)
        positions = min(apart.positions for _record, apart in runs)
        figures = f"{batch:5} {statistics.mean(means):7.4f} {max(means):7.4f} {ahead:7.3f} {noise:7.4f} {positions:6}"
        say(f"{figures}  {', '.join(found) or 'as good as before'}")
    template = asked.chat[0].prompt_tokens if asked.chat else 0
    say(f"{asked.tokens_per_s} tokens/s, {dict(asked.tried)}, a question of {template} tokens")
    return 0


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
