# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Load a service with ``vllm bench serve``, several times in a row, and read what it measured.

It runs where the engine runs: in its Python environment as the service user, or in its container. One process does all
repetitions, since the generator takes longer to start than to measure. Its figures are in the file that it writes, the
same for vLLM 0.20 to 0.33, for the copy of it that TensorRT-LLM brings, and for the static ``vllm-bench``. It ends with
whoever started it.
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.cache import Cache
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Count, Number, Word, Words
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.probe import Target

KEY_VARIABLE = "OPENAI_API_KEY"  # where the generator looks for the key; an option would be in the list of processes
# stdin: a job as one line of JSON, then nothing until whoever asked has ended, and with it this and what it started.
# stdout: a line of JSON per run. What the generator prints goes to stderr.
DRIVER = r"""
import importlib.util, json, os, runpy, shutil, subprocess, sys, tempfile, threading
line = b""
while not line.endswith(b"\n"):
    line += os.read(0, 65536) or sys.exit(3)
job, started, place = json.loads(line), [], tempfile.mkdtemp(prefix="sparkmatrix-benchmark-")
def end(code):
    shutil.rmtree(place, ignore_errors=True)
    sys.stdout.flush()
    os._exit(code)
def watch():
    while os.read(0, 1):
        pass
    for process in started:
        process.kill()
    end(3)
threading.Thread(target=watch, daemon=True).start()
told = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
def tell(found):
    told.write(json.dumps(found) + "\n")
    told.flush()
def own(words):
    sys.argv = ["vllm", "bench", "serve", *words]
    vllm()
COPY = "tensorrt_llm.serve.scripts.benchmark_serving"
def copy(words):
    # Without the option it would download prompts.
    sys.argv = [COPY, *words, *(["--random-ids"] if "random" in words else [])]
    runpy.run_module(COPY, run_name="__main__")
def other(words):
    started[:] = [subprocess.Popen([job["program"], *words], stdin=subprocess.DEVNULL)]
    if started[0].wait():
        raise RuntimeError("exit code %d" % started[0].returncode)
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "*"  # a proxy would get the key, and measure itself
try:
    if not job["program"]:
        os.environ.pop("VLLM_USE_RUST_BENCH", None)  # it would replace this process
        try:
            from vllm.entrypoints.cli.main import main as vllm
        except ImportError as exc:
            try:
                found = importlib.util.find_spec(COPY)
            except ImportError:
                found = None
            if not found:
                tell({"missing": str(exc)})
                end(0)
            own = copy
    for number, run in enumerate(job["runs"]):
        words = [*run["words"], "--result-dir", place, "--result-filename", "%d.json" % number]
        if run["prompts"]:
            with open(place + "/prompts.json", "w", encoding="utf-8") as file:
                json.dump([{"conversations": [{"value": one}, {"value": ""}]} for one in run["prompts"]], file)
            words += ["--dataset-path", file.name]
        (other if job["program"] else own)(words)
        with open("%s/%d.json" % (place, number), encoding="utf-8") as file:
            found = json.load(file)
        tell({name: found.get(name) for name in job["fields"]})
except BaseException as exc:
    tell({"broken": "%s: %s" % (type(exc).__name__, exc)})
finally:
    end(0)
"""
TIMES = ("ttft", "tpot")
PERCENTILES = ("median", "p90", "p99")
FIELDS = (
    "num_prompts",
    "completed",
    "output_throughput",
    "request_goodput",
    "spec_decode_acceptance_rate",
    *(f"{name}_{time}_ms" for time in TIMES for name in PERCENTILES),
)
SHOWN = 6  # lines of what the generator said
MAX_BYTES = 4 * 1024 * 1024
# Prompts of a service that drafts: of random words every draft would be wrong, or every one right.
SENTENCES = (
    "The first machine keeps the list of what has to be done, and reads it to the others every morning.",
    "In the evening the harbour is quiet, and only the ferry to the island still has its lights on.",
    "She measured the board twice, cut it once, and found that the shelf was too short all the same.",
    "A good explanation begins with an example, and ends before the reader has stopped to think.",
    "The train was late because a tree had fallen across the line somewhere north of the river.",
    "When the price of copper rose, the small foundry at the end of the road hired three more people.",
    "He wrote the function in an hour, and spent two days on the case that nobody had thought of.",
    "Bread needs flour, water, salt and time, and the last of these is what most bakers lack.",
    "The museum keeps the old maps in a dark room, where they are shown for ten minutes at a time.",
    "Nobody knew why the bridge hummed in a west wind until a student hung a microphone under it.",
    "The committee agreed on the colour of the wall, and put off the question of the roof.",
    "Every autumn the geese come over the house in a long line, a little later than the year before.",
)
CHARACTERS = 4.5  # of a token of plain English, about


@dataclass(frozen=True)
class Point:
    """``requests`` of one repetition, ``concurrency`` of them at a time. Each repetition has a seed of its own, so that
    no prompt is in the cache of the one before. ``text``: plain English instead of random tokens."""

    concurrency: int
    prompt_tokens: int
    output_tokens: int
    requests: int
    repetitions: int
    seed: int
    text: bool = False


@dataclass(frozen=True)
class Generator:
    """How the generator is started, and by which tokenizer it makes prompts.

    ``program``: a static one on the node itself; empty for the engine's own. ``user`` is empty for the user that asks;
    ``environment`` does not count in a ``container``. ``tokenizer``: a path, or a name of the hub with its ``revision``
    in the ``cache``.
    """

    tokenizer: str
    python: str = "python3"
    container: str = ""
    user: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    program: str = ""
    revision: str = ""
    cache: str = ""
    tokenizer_mode: str = ""
    remote_code: bool = False


@dataclass(frozen=True)
class Load:
    """Who is asked, and how. ``timeout_s``: of all repetitions."""

    target: Target
    generator: Generator
    point: Point
    timeout_s: float = 900


@dataclass(frozen=True)
class Repetition:
    """What the generator measured. Times in ms; rates per second. ``acceptance``: share of drafted tokens, None where
    nothing is drafted."""

    requests: Count
    failed: Count
    output_rate: Number
    ttft_ms: Mapping[Word, Number]
    tpot_ms: Mapping[Word, Number]
    goodput: Number
    acceptance: Optional[Number] = None


@dataclass(frozen=True)
class Outcome:
    """``missing``: why there is no generator. ``broken``: why it ended early. ``lines``: what it said last."""

    repetitions: tuple[Repetition, ...] = ()
    missing: Words = ""
    broken: Words = ""
    lines: tuple[Words, ...] = ()


def words(load: Load, seed: int, requests: int) -> list[str]:
    """Options of the generator; the key is none of them."""
    target, generator, point = load.target, load.generator, load.point
    host = f"[{target.host}]" if ":" in target.host else target.host
    made = ["--base-url", f"http://{host}:{target.port}", "--model", target.model, "--tokenizer", tokenizer(generator)]
    if generator.tokenizer_mode:
        made += ["--tokenizer-mode", generator.tokenizer_mode]
    if generator.remote_code:
        made.append("--trust-remote-code")
    if point.text:
        made += ["--backend", "openai-chat", "--endpoint", "/v1/chat/completions", "--dataset-name", "sharegpt"]
        made += ["--sharegpt-output-len", str(point.output_tokens)]
    else:
        # As many tokens as asked for, so that runs compare.
        made += ["--backend", "openai", "--endpoint", "/v1/completions", "--dataset-name", "random", "--ignore-eos"]
        made += ["--random-input-len", str(point.prompt_tokens), "--random-output-len", str(point.output_tokens)]
    made += ["--num-prompts", str(requests), "--max-concurrency", str(point.concurrency)]
    made += ["--seed", str(seed), "--temperature", "0", "--percentile-metrics", ",".join(TIMES)]
    made += ["--metric-percentiles", "90,99", "--save-result", "--disable-tqdm"]
    return made


def tokenizer(generator: Generator) -> str:
    """The directory of a pinned model in the cache: the generator would look for the branch ``main`` of the name."""
    name, revision = generator.tokenizer, generator.revision
    if name.startswith("/") or not generator.cache or not re.fullmatch("[0-9a-f]{40}", revision):
        return name
    place = Cache(generator.cache).snapshot(name, revision)
    return str(place) if place.is_dir() else name


def prompts(point: Point, seed: int, requests: int) -> list[str]:
    """Plain English of about the wanted length, another one for every request and seed."""
    made = []
    for number in range(requests):
        chosen = random.Random(seed * 65537 + number)  # noqa: S311 -- no secret
        text = f"Letter {seed}-{number}. Continue this letter with as many details as you can.\n"
        while len(text) < point.prompt_tokens * CHARACTERS:
            text += f"{chosen.choice(SENTENCES)} "
        made.append(text)
    return made


def job(load: Load) -> dict[str, Any]:
    """One run to warm up, of which nothing is kept (a first request may compile for minutes), then the repetitions."""
    point, runs = load.point, []
    for number in range(point.repetitions + 1):
        seed, requests = point.seed + number, point.requests if number else point.concurrency
        runs.append(
            {
                "words": words(load, seed, requests),
                "prompts": prompts(point, seed, requests) if point.text else [],
            }
        )
    return {"program": load.generator.program, "fields": FIELDS, "runs": runs}


def measure(load: Load) -> Outcome:
    key = load.target.key
    said, err, late = _run(load.generator, job(load), key, load.timeout_s)
    lines = [line for line in err.splitlines() if line.strip()]
    if key:
        lines = [line.replace(key, "***") for line in lines]
    found = read(said)
    if late:
        return Outcome(found.repetitions, "", f"it was not done after {load.timeout_s:.0f} s", tuple(lines[-SHOWN:]))
    told = [line for line in lines if line.startswith("Error ")] or (lines if found.missing or found.broken else [])
    return Outcome(found.repetitions, found.missing, found.broken, tuple(told[-SHOWN:]))


def read(said: str) -> Outcome:
    """What the driver printed; the first run only warmed up."""
    runs: list[Repetition] = []
    missing = broken = ""
    for line in said.splitlines():
        try:
            found = json_text.mapping(line)
            if "missing" in found or "broken" in found:
                missing, broken = str(found.get("missing") or ""), str(found.get("broken") or "")
            else:
                runs.append(repetition(found))
        except (*json_text.DAMAGE, SparkError) as exc:
            broken = f"its figures are not understood ({exc})"
    if not (missing or broken or runs):
        broken = "it ended without a word"
    return Outcome(tuple(runs[1:]), missing, broken)


def repetition(found: Mapping[str, Any]) -> Repetition:
    requests, completed = int(_number(found, "num_prompts")), int(_number(found, "completed"))
    drafts = found.get("spec_decode_acceptance_rate") is not None
    return Repetition(
        requests=requests,
        failed=max(requests - completed, 0),  # "failed" is in the files of newer versions only
        output_rate=_number(found, "output_throughput"),
        ttft_ms={name: _number(found, f"{name}_ttft_ms") for name in PERCENTILES},
        tpot_ms={name: _number(found, f"{name}_tpot_ms") for name in PERCENTILES},
        goodput=_number(found, "request_goodput"),
        acceptance=_number(found, "spec_decode_acceptance_rate") / 100 if drafts else None,
    )


def _number(found: Mapping[str, Any], name: str) -> float:
    """0 for what a version does not say, and for the mean of nothing (NaN), which is no JSON for others."""
    number = float(found.get(name) or 0)
    return number if math.isfinite(number) else 0.0


def _run(place: Generator, work: Mapping[str, Any], key: str, timeout_s: float) -> tuple[str, str, bool]:
    """(what the driver said, what the generator printed, whether it took too long)"""
    environment = {"PATH": os.defpath, **({} if place.container else place.environment), "HF_HUB_OFFLINE": "1"}
    if key:
        environment[KEY_VARIABLE] = key
    argv = [place.python, "-c", DRIVER]
    options: dict[str, Any] = {}
    if place.container:
        argv = ["docker", "exec", "-i", "-e", KEY_VARIABLE, "-e", "HF_HUB_OFFLINE", place.container, *argv]
    elif place.user:
        options = {"user": place.user, "group": place.user, "extra_groups": []}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            # module.run_command can neither change the user, nor keep stdin open.
            process = subprocess.Popen(  # pylint: disable=ansible-bad-function
                argv, env=environment, cwd="/", stdin=subprocess.PIPE, stdout=out, stderr=err, **options
            )
        except (OSError, LookupError) as exc:
            raise SparkError(
                f"the load generator cannot be started ({exc})",
                argv[0],
                "Run the engine layer, which makes what it needs",
            ) from exc
        late = False
        with process:
            try:
                if process.stdin:
                    process.stdin.write(json.dumps(work).encode() + b"\n")
                    process.stdin.flush()
                process.wait(timeout_s)
            except BrokenPipeError:
                pass  # it has ended; what it said tells why
            except subprocess.TimeoutExpired:
                late = True
            finally:
                _close(process)
        return _text(out), _text(err), late


def _close(process: subprocess.Popen[bytes]) -> None:
    """Without stdin the driver ends, in a container too, which a signal to Docker's client would not reach."""
    try:
        if process.stdin:
            process.stdin.close()
    except OSError:
        pass
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()


def _text(file: Any) -> str:
    """The end of what is in it."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - MAX_BYTES, 0))
    return str(file.read().decode("utf-8", "replace"))
