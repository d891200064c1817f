#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The programs of docs/examples, and the requests of verify.yml, against vLLM on this machine's processors, with tiny
random models. No nodes.

Usage: test_examples.py [MODEL ...], of chat, vision, embedding, reranker
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / name) for name in ("tests/lab", "collections")]

import cluster
import families
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import smoke
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.probe import Target
from cluster import ROOT
from test_families import vision

EXAMPLES = ROOT / "docs/examples"
PORT = 18321
KEY = "sk-examples"
START_S = 300
CONTEXT = 1024
# A grey picture of 32 x 32.
PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAACAAAAAgCAAAAABWESUoAAAAF0lEQVR42mNoIAAYRhWMKhhVMKpgpCoAAHRaAP95AdHHAAAAAElFTkSuQmCC"
)
POOLING = ("--runner", "pooling")


@dataclass(frozen=True)
class Case:
    """``model``: of families.py, or the one that the lab has; ``options`` of vLLM; ``calls``: an example with its words
    and what its output has to hold; ``requests``: what verify finds of each kind. A random model
    may write for ever, which is not judged."""

    model: str
    options: Sequence[str]
    calls: Sequence[tuple[Sequence[str], str, str]]
    requests: Sequence[str]
    task: str = "generate"


CASES = {
    "chat": Case(
        "",
        ("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        (
            (("chat.py", "Hello"), "", ""),
            (("chat.sh", 'A "quoted" question'), "", '"finish_reason"'),
            (("json_schema.py",), "", "'stars'"),
            (("tools.py",), "", ""),
            (("batch.py",), "one\n\ntwo\nthree\n", '"prompt": "three", "answer"'),
        ),
        ("chat ok", "stream ok", "tool ok", "json ok", "vision not offered"),
    ),
    "vision": Case(
        "qwen3-vl",
        ('--limit-mm-per-prompt={"image": 1, "video": 0}',),
        ((("vision.py",), "", ""),),
        ("chat ok", "stream ok", "tool not offered", "json ok", "vision ok"),
    ),
    "embedding": Case(
        "qwen3",
        (*POOLING, "--convert", "embed"),
        ((("embeddings.py",), "", "a cat sleeps"),),
        ("embedding ok",),
        "embed",
    ),
    "reranker": Case(
        "qwen3",
        (*POOLING, "--hf-overrides", json.dumps(families.RERANKER)),
        ((("rerank.py",), "", "a cat sleeps"),),
        ("rerank ok",),
        "rank",
    ),
}


def environment(directory: str) -> dict[str, str]:
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    own = {"HOME": directory, "PYTHONPATH": str(vision()), "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_API_KEY": KEY}
    return {**os.environ, **quiet, **own, "PYTHONDONTWRITEBYTECODE": "1"}


@contextlib.contextmanager
def served(python: str, model: pathlib.Path, options: Sequence[str], directory: str) -> Iterator[None]:
    # families.py gives the compiled operators of torchvision their names, in every process of the engine.
    site = pathlib.Path(directory) / "site"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(
        f"import sys; sys.path.append({str(ROOT / 'tests/lab')!r})\nimport families; families.without_operators()\n"
    )
    own = environment(directory)
    own["PYTHONPATH"] = f"{site}:{own['PYTHONPATH']}"
    serve = [python, "-m", "vllm.entrypoints.cli.main", "serve", str(model), "--served-model-name", model.name]
    sizes = ["--enforce-eager", "--dtype=bfloat16", f"--max-model-len={CONTEXT}", "--kv-cache-memory-bytes=67108864"]
    at = ["--host", "127.0.0.1", "--port", str(PORT), *options]
    log = pathlib.Path(directory) / f"{model.name}.log"
    with log.open("w") as stream:
        process = subprocess.Popen([*serve, *sizes, *at], cwd=directory, env=own, stdout=stream, stderr=stream)
    try:
        until = time.monotonic() + START_S
        while not answers():
            if process.poll() is not None or time.monotonic() > until:
                raise cluster.LabError(f"vLLM did not start:\n{log.read_text(errors='replace')[-3000:]}")
            time.sleep(1)
        yield
    finally:
        process.terminate()
        process.wait(60)


def answers() -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def ask(python: str, words: Sequence[str], said: str, expected: str, directory: str) -> None:
    name, *arguments = words
    if name == "vision.py":
        picture = pathlib.Path(directory) / "picture.png"
        picture.write_bytes(PICTURE)
        arguments = [str(picture), "What is this?"]
    own = {
        **os.environ,
        "OPENAI_BASE_URL": f"http://127.0.0.1:{PORT}/v1",
        "OPENAI_API_KEY": KEY,
        "NO_PROXY": "127.0.0.1",
    }
    program = "sh" if name.endswith(".sh") else python
    done = subprocess.run(
        [program, str(EXAMPLES / name), *arguments], input=said, capture_output=True, text=True, env=own, check=False
    )
    if done.returncode or not done.stdout.strip() or expected not in done.stdout:
        raise cluster.LabError(f"{name} ended with {done.returncode}: {done.stdout[-800:]}{done.stderr[-1500:]}")
    print(f"   {name}: {' '.join(done.stdout.split())[:100]}", flush=True)


def verify(model: str, case: Case) -> None:
    tried = smoke.run(Target("127.0.0.1", PORT, model, KEY, case.task), CONTEXT, START_S)
    for trial in tried:
        print(f"   {trial.kind} {trial.outcome}: {trial.found[:400]}", flush=True)
    found = [f"{trial.kind} {trial.outcome}" for trial in tried]
    if [a for a, b in zip(found, case.requests, strict=True) if a not in (b, b.replace(" ok", f" {smoke.NOT_JUDGED}"))]:
        raise cluster.LabError(f"verify found {found}, expected {list(case.requests)}")


def main(wanted: Sequence[str]) -> int:
    cache = cluster.cache()
    subprocess.run([sys.executable, str(ROOT / "tests/lab/engine_env.py"), "--cache", str(cache)], check=True)
    python = str(cache / "engine/bin/python")
    tiny = cache / "models/tiny-llama"
    try:
        with tempfile.TemporaryDirectory() as directory:
            for name in wanted or CASES:
                case = CASES[name]
                print(f"-- {name}", flush=True)
                model = pathlib.Path(directory) / name if case.model else tiny
                if case.model:
                    make = f"import families; families.make({str(tiny)!r}, {str(model)!r}, {case.model!r})"
                    own = environment(directory)
                    own["PYTHONPATH"] = f"{ROOT / 'tests/lab'}:{own['PYTHONPATH']}"
                    subprocess.run(
                        [python, "-c", f"import families; families.without_operators(); {make}"], env=own, check=True
                    )
                with served(python, model, case.options, directory):
                    for words, said, expected in case.calls:
                        ask(python, words, said, expected, directory)
                    verify(model.name, case)
    except (cluster.LabError, subprocess.SubprocessError) as exc:
        print(f"FAILED: {exc}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
