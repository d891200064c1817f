#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Five minutes of an agent, with a restart of the engine in the middle: for how many seconds does it wait?

    tests/bench/agent_minutes.py --url https://10.0.0.11:8443/v1 --model NAME --key-file FILE \\
        --restart "ssh spark1 sudo systemctl kill --signal=KILL sparkmatrix-engine"

Ten turns, each of which adds a tenth of the context to what was said before, which an agent sends again every time. A
turn begins half a minute after the one before, or when that has ended. It waits from question to first word, and asks
again after an error, but not in its first turn: at first half a second later, then twice as long, at most 8 s. What an
endpoint does about restarts (``gateway_hold``, ``engine_prefix_cache_gb``) is set there; run it once with and once
without. Needs Python alone; the authority of an https endpoint is read from SSL_CERT_FILE. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ANSWER = 32  # tokens
FIRST_S, MOST_S, GIVES_UP_S = 0.5, 8.0, 1800.0
WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog", "four", "small", "machines", "share", "model")
LETTERS = (1.0, 8.0)  # of a token, at least and at most


def ask(url: str, key: str, model: str, messages: list[Any]) -> tuple[float, str, int]:
    """When the first word came, the answer, and the tokens of the prompt. Raises :class:`OSError`, or
    :class:`ValueError` where a stream that had begun is not whole."""
    body = {"model": model, "messages": messages, "max_tokens": ANSWER, "temperature": 0, "ignore_eos": True}
    body.update(stream=True, stream_options={"include_usage": True})
    fields = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode(), fields)
    first, said, prompt, whole = 0.0, "", 0, False
    with urllib.request.urlopen(request, timeout=GIVES_UP_S) as answer:
        for line in answer:
            if not line.startswith(b"data: "):
                continue
            if line.strip() == b"data: [DONE]":
                whole = True
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise ValueError(event["error"]["message"])
            prompt = (event.get("usage") or {}).get("prompt_tokens", prompt)
            for choice in event["choices"]:
                said += choice["delta"].get("content") or ""
                first = first or time.monotonic()
    if not whole or not first:
        raise ValueError("the answer is not whole")
    return first, said, prompt


def turn(asked: argparse.Namespace, key: str, messages: list[Any], patient: bool) -> tuple[dict[str, Any], str]:
    began, pause, errors = time.monotonic(), FIRST_S, []
    while True:
        try:
            first, said, prompt = ask(asked.url, key, asked.model, messages)
            break
        except urllib.error.HTTPError as exc:
            errors.append(f"{exc.code} {exc.read()[:60].decode(errors='replace')}")
            patient = patient and exc.code >= 500
        except (OSError, ValueError, http.client.HTTPException) as exc:
            errors.append(f"{type(exc).__name__}: {exc}")
        if not patient or time.monotonic() - began > GIVES_UP_S:
            raise SystemExit(f"no answer within {time.monotonic() - began:.0f} s: {errors[-1]}")
        time.sleep(pause)
        pause = min(2 * pause, MOST_S)
    return {"waited_s": round(first - began, 2), "prompt": prompt, "errors": errors}, said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="up to /v1")
    parser.add_argument("--model", required=True)
    parser.add_argument("--key-file", type=Path, help="none: the endpoint wants no key")
    parser.add_argument("--restart", default="", metavar="COMMAND", help="is started with the middle turn")
    parser.add_argument("--context", type=int, default=20_000, metavar="TOKENS", help="in all (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=300.0, help="for all turns (default: %(default)s)")
    asked = parser.parse_args()
    key = asked.key_file.read_text().strip() if asked.key_file else "none"
    chance = random.Random(time.time_ns())  # no cache has it from an earlier run
    letters_per_token, added = 3.0, 0
    messages: list[Any] = []
    turns: list[dict[str, Any]] = []
    restart: subprocess.Popen[bytes] | None = None
    began = time.monotonic()
    for number in range(asked.turns):
        time.sleep(max(0.0, began + number * asked.seconds / asked.turns - time.monotonic()))
        left = asked.context * (number + 1) / asked.turns - (turns[-1]["prompt"] + ANSWER if turns else 0) - ANSWER
        text = ""
        while len(text) < left * letters_per_token:
            text += f"{chance.choice(WORDS)} "
        messages.append({"role": "user", "content": text or "go on"})
        added += len(text)
        if asked.restart and number == asked.turns // 2:
            restart = subprocess.Popen(shlex.split(asked.restart), stdout=sys.stderr)
        found, said = turn(asked, key, messages, bool(turns))
        messages.append({"role": "assistant", "content": said})
        letters_per_token = min(max(added / max(found["prompt"] - ANSWER * number, 1), LETTERS[0]), LETTERS[1])
        turns.append(found)
        print(f"turn {number + 1}: {found}", file=sys.stderr, flush=True)
    code = restart.wait() if restart else 0
    total = round(sum(one["waited_s"] for one in turns), 1)
    result = {"waited_s": total, "restart_exit": code, "errors": sum(len(one["errors"]) for one in turns)}
    print(json.dumps({**result, "seconds": round(time.monotonic() - began, 1), "turns": turns}))


if __name__ == "__main__":
    main()
