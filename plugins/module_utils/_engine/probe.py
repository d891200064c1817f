# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Ask an OpenAI-compatible engine for tokens, for an embedding, or for a ranking.

That is the only proof that it serves: its ``/health`` says 200 while dead. Used by the module ``engine_probe`` and, on
the nodes, as ``sparkmatrix-node probe``. Tokens are streamed, so that the first one can be timed; time limits hold for
the whole answer.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import math
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import (
    api_paths,
    document,
    json_text,
    listening,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Count, Number, Words
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.systemd import Unit
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import names as engine_names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.causes import explain
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.engine_json import Description
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Offer

KEY_VARIABLE = "VLLM_API_KEY"
PROMPT = "the quick brown fox"
# What a request to try it with has beside the model.
EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "generate": {"messages": [{"role": "user", "content": "Hello"}]},
    "embed": {"input": "Hello"},
    "rank": {"query": "Hello", "documents": ["Good day", "Goodbye"]},
}
RANKED = ("the lazy dog", "a bright day")
_ENGINE = engine_names.Names().unit
# Nobody's key: long enough to be one, and the same in every log.
WRONG_KEY = "not-the-key-of-this-engine"
OPEN = "Anybody on this node can use the engine. Restart it so that it reads its key: systemctl restart {}"
MAX_BODY = 4 * 1024 * 1024  # bytes
MAX_STREAM = 16 * MAX_BODY  # of an answer that somebody reads: some 200 bytes a token
METRICS_TIMEOUT_S = 4.0  # TensorRT-LLM waits 2 s for an iteration
POLL_S = 1.0
LISTED_S = 5.0


class ProbeError(SparkError):
    """A request that did not give tokens. ``kind``: refused, timeout, status, garbage, empty, stranger, name (it has
    other models); ``status``: HTTP's."""

    def __init__(self, kind: str, found: str, where: str, status: int = 0) -> None:
        super().__init__(found, where)
        self.kind = kind
        self.status = status


@dataclass(frozen=True)
class Target:
    host: str
    port: int
    model: str
    key: str = ""
    task: str = "generate"  # of api_paths.PROBED

    @property
    def where(self) -> str:
        return f"http://{self.host}:{self.port}"


def target_of(told: Described | Description | Offer) -> Target:
    """Whatever says where a model is, with the key that it is asked with now."""
    return Target(told.host, told.port, told.model, read_key(told.key_file) if told.key else "", told.task)


@dataclass(frozen=True)
class Answer:
    """Times in seconds. ``tokens_per_s`` is what a user sees: all tokens over the whole time of the request.

    An embedding has ``dimensions`` and a ranking ``scores``, and no tokens. ``measured``: all of it in words.
    """

    model: Words
    text: Words
    completion_tokens: Count
    seconds: Number
    first_token_s: Number
    tokens_per_s: Number
    finish_reason: Words = ""
    dimensions: Count = 0
    scores: Count = 0
    measured: Words = ""

    def __post_init__(self) -> None:
        if not self.measured:
            object.__setattr__(self, "measured", self._in_words())

    def _in_words(self) -> str:
        if self.dimensions:
            return f"an embedding of {self.dimensions} numbers after {self.seconds:.2f} s"
        if self.scores:
            return f"{self.scores} texts ranked after {self.seconds:.2f} s"
        unit = "token" if self.completion_tokens == 1 else "tokens"
        rate = f"{self.completion_tokens} {unit} in {self.seconds:.2f} s, {self.tokens_per_s:.1f} tokens/s"
        return f"{rate}, the first after {self.first_token_s:.2f} s"


@dataclass(frozen=True)
class Question:
    prompt: str = PROMPT
    max_tokens: int = 1  # exactly so many; 0: as many as the model says
    timeout_s: float = 60.0


def read_key(path: str) -> str:
    """The key from a file of its own: ``VLLM_API_KEY="value"`` as systemd reads it, or the bare value."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as exc:
        raise SparkError("the key file does not exist", path, "Run the engine layer") from exc
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "not text"
        raise SparkError(f"the key file cannot be read ({reason})", path, "Read it as root: sudo") from exc
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("#", ";"))]
    for line in lines:
        name, separator, value = line.partition("=")
        if separator and name.strip() == KEY_VARIABLE:
            return value.strip().strip("\"'")
    if len(lines) == 1 and "=" not in lines[0].rstrip("="):
        return lines[0]
    raise SparkError(f"the key file holds no {KEY_VARIABLE}", path, "Run the engine layer, which writes it again")


def ask(
    target: Target,
    question: Question,
    clock: Callable[[], float] = time.monotonic,
    hear: Callable[[str], None] = lambda _text: None,
) -> Answer:
    """One streamed chat completion, one embedding, or one ranking. ``hear``: each piece of the answer as it comes,
    empty where the model thinks.

    Raises :class:`ProbeError`, also for an answer without a single token or number.
    """
    if target.task == "embed":
        return _embed(target, question)
    if target.task == "rank":
        return _rank(target, question)
    body = {
        "model": target.model,
        "messages": [{"role": "user", "content": question.prompt}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if question.max_tokens:
        # An extension of vLLM and SGLang: as many tokens as asked for, so that rates compare.
        body.update(max_tokens=question.max_tokens, ignore_eos=True)
    limit = _Limit(question.timeout_s, clock, MAX_BODY if question.max_tokens else MAX_STREAM)
    started = clock()
    first = 0.0
    text, tokens, chunks, finish, model = "", 0, 0, "", ""
    for event in _events(target, body, limit):
        if isinstance(event.get("error"), Mapping):
            raise ProbeError("status", f"the engine said: {event['error'].get('message')}", target.where)
        model = str(event.get("model") or model)
        usage = event.get("usage")
        if isinstance(usage, Mapping):
            tokens = _count(usage.get("completion_tokens"))
        for choice in event.get("choices") or []:
            delta = choice.get("delta") if isinstance(choice, Mapping) else None
            if not isinstance(delta, Mapping):
                raise ProbeError("garbage", "the answer has a choice without a delta", target.where)
            finish = str(choice.get("finish_reason") or finish)
            said = str(delta.get("content") or "")
            content = said or str(delta.get("reasoning_content") or delta.get("reasoning") or "")
            if "role" in delta and not content:
                continue
            chunks += 1
            first = first or clock() - started
            text += content
            hear(said)
    seconds = max(clock() - started, 1e-6)
    if not chunks and not tokens:
        raise ProbeError("empty", "the answer has no token", target.where)
    tokens = tokens or chunks
    return Answer(
        model=model,
        text=text,
        completion_tokens=tokens,
        seconds=round(seconds, 4),
        first_token_s=round(first or seconds, 4),
        tokens_per_s=round(tokens / seconds, 3),
        finish_reason=finish,
    )


def _embed(target: Target, question: Question) -> Answer:
    """The vector of the prompt."""
    body = {"model": target.model, "input": question.prompt, "encoding_format": "float"}
    said, seconds = exchange(target, api_paths.PROBED[target.task], body, question.timeout_s, "embedding")
    try:
        vector = said["data"][0]["embedding"]
    except (KeyError, IndexError, TypeError) as exc:
        raise ProbeError("garbage", f"the answer is no embedding: {said!r:.80}", target.where) from exc
    _check_numbers(vector, "embedding", target)
    return Answer(target.model, "", 0, seconds, seconds, 0.0, dimensions=len(vector))


def _rank(target: Target, question: Question) -> Answer:
    """How well two short texts answer the prompt; what the scores are does not matter."""
    body = {"model": target.model, "query": question.prompt, "documents": list(RANKED)}
    said, seconds = exchange(target, api_paths.PROBED[target.task], body, question.timeout_s, "ranking")
    try:
        scores = [result["relevance_score"] for result in said["results"]]
    except (KeyError, TypeError) as exc:
        raise ProbeError("garbage", f"the answer is no ranking: {said!r:.80}", target.where) from exc
    _check_numbers(scores, "ranking", target)
    return Answer(target.model, "", 0, seconds, seconds, 0.0, scores=len(scores))


def exchange(
    target: Target, path: str, body: Mapping[str, Any] | None, timeout_s: float, what: str
) -> tuple[dict[str, Any], float]:
    """One request and its answer, which is no stream: (JSON object, seconds)."""
    limit = _Limit(timeout_s, time.monotonic)
    started = limit.clock()
    exchange = _Exchange(target, path, body, limit)
    try:
        text = "\n".join(exchange.lines())
    finally:
        exchange.close()
    seconds = round(max(limit.clock() - started, 1e-6), 4)
    return _document(text, what, target), seconds


def _check_numbers(numbers: Any, what: str, target: Target) -> None:
    """NaN is what a broken kernel gives, and no JSON."""
    if not isinstance(numbers, list) or not all(isinstance(x, (int, float)) and math.isfinite(x) for x in numbers):
        raise ProbeError("garbage", f"the {what} is no list of numbers", target.where)
    if not numbers:
        raise ProbeError("empty", f"the {what} has no number", target.where)


def status_without_access(target: Target) -> int:
    """The HTTP status that a request with a wrong key gets; anything but 401 or 403 means that anybody may ask."""
    stranger = Target(target.host, target.port, target.model, WRONG_KEY)
    try:
        _Exchange(stranger, api_paths.MODELS, None, _Limit(10.0, time.monotonic)).close()
    except ProbeError as exc:
        if exc.status:
            return exc.status
        raise
    return int(http.client.OK)


def model_list(target: Target, timeout_s: float = LISTED_S) -> dict[str, Any]:
    """What ``/v1/models`` says."""
    return exchange(target, api_paths.MODELS, None, timeout_s, "list of models")[0]


def listed(target: Target, timeout_s: float = LISTED_S) -> None:
    """Raise :class:`SparkError` unless the engine answers at once, with the model in its list.

    No rank is asked, so a busy engine answers too, and so does one whose ranks are dead: that is what a keeper sees.
    """
    models = model_list(target, timeout_s).get("data")
    names = [one.get("id") for one in models if isinstance(one, Mapping)] if isinstance(models, list) else []
    if target.model not in names:
        raise ProbeError(
            "name" if names else "garbage", f"its models are {', '.join(map(str, names)) or 'none'}", target.where
        )


def ready(target: Target, path: str) -> None:
    """Raise :class:`SparkError` unless this path of it answers, and where it has models under other names only. One
    without such a path, or without a list of models, is taken as it is: a token tells."""
    try:
        _Exchange(target, path, None, _Limit(LISTED_S, time.monotonic)).close()
    except ProbeError as exc:
        if exc.status != http.client.NOT_FOUND:
            raise
    try:
        listed(target)
    except ProbeError as exc:
        if exc.kind == "name":
            raise


class _Limit:
    """What is left of the time for a whole request, and the most bytes of its answer."""

    def __init__(self, seconds: float, clock: Callable[[], float], most: int = MAX_BODY) -> None:
        self.clock, self.most = clock, most
        self.deadline = clock() + seconds

    def left(self, target: Target) -> float:
        left = self.deadline - self.clock()
        if left <= 0:
            raise ProbeError("timeout", "no complete answer within the time limit", target.where)
        return left


def connect(connection: http.client.HTTPConnection, with_key: bool) -> None:
    """Any account may listen on a port that is free: a key goes to the engine, or to the gateway, and to nobody else.

    Looked at before and after connecting, since who listens may change in between.
    """
    if with_key:
        _refuse_strangers(connection, connection.host)
    connection.connect()
    if with_key:
        there = connection.sock.getpeername()[0]  # the host may be a name
        _refuse_strangers(connection, there)
        here = connection.sock.getsockname()[0] == there
        if here and not listening.holders(Machine(), there, connection.port):
            raise ConnectionRefusedError


def metrics(target: Target) -> str:
    """The engine's ``/metrics``; empty where there is none."""
    connection = http.client.HTTPConnection(target.host, target.port, timeout=METRICS_TIMEOUT_S)
    try:
        connect(connection, bool(target.key))
        headers = {"Authorization": f"Bearer {target.key}"} if target.key else {}
        connection.request("GET", "/metrics", headers=headers)
        response = connection.getresponse()
        return response.read(MAX_BODY).decode("utf-8", "replace") if response.status == http.client.OK else ""
    except (OSError, http.client.HTTPException, SparkError):
        return ""
    finally:
        connection.close()


def _refuse_strangers(connection: http.client.HTTPConnection, address: str) -> None:
    who = listening.stranger(Machine(), address, connection.port)
    if who:
        where = f"http://{connection.host}:{connection.port}"
        found = f"the port belongs to {who}, not to the engine: it gets no key. Stop it"
        raise ProbeError("stranger", found, where)


class _Exchange:
    """One request and its response. The socket is kept by hand, since http.client lets go of it early."""

    def __init__(self, target: Target, path: str, body: Mapping[str, Any] | None, limit: _Limit) -> None:
        self.target, self.limit = target, limit
        headers = {"Accept": "text/event-stream"}
        if target.key:
            headers["Authorization"] = f"Bearer {target.key}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        self.connection = http.client.HTTPConnection(target.host, target.port, timeout=limit.left(target))
        try:
            connect(self.connection, bool(target.key))
            payload = None if body is None else json.dumps(body).encode()
            self.connection.request("GET" if body is None else "POST", path, body=payload, headers=headers)
            self.socket = self.connection.sock
            self.socket.settimeout(limit.left(target))
            self.response = self.connection.getresponse()
            if self.response.status != http.client.OK:
                raise ProbeError("status", _complaint(self.response), target.where, self.response.status)
        except Exception as exc:
            self.connection.close()
            raise _translated(exc, target) from exc

    def lines(self) -> Iterator[str]:
        """Each read is one ``recv`` with the time that is left, so a peer that drips bytes cannot stretch it."""
        pending, size = b"", 0
        while True:
            try:
                self.socket.settimeout(self.limit.left(self.target))
                chunk = self.response.read1(65536)
            except Exception as exc:
                raise _translated(exc, self.target) from exc
            size += len(chunk)
            if size > self.limit.most:
                raise ProbeError("garbage", f"the answer is longer than {self.limit.most} bytes", self.target.where)
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                yield line.decode("utf-8", "replace").strip()
            if not chunk:
                if pending:
                    yield pending.decode("utf-8", "replace").strip()
                return

    def close(self) -> None:
        self.response.close()
        self.connection.close()


def _events(target: Target, body: Mapping[str, Any], limit: _Limit) -> Iterator[dict[str, Any]]:
    """The JSON of each ``data:`` line (server-sent events), until ``[DONE]``."""
    exchange = _Exchange(target, api_paths.PROBED["generate"], body, limit)
    done = False
    try:
        for line in exchange.lines():
            if not line.startswith("data:"):
                continue
            data = line[len("data:") :].strip()
            if data == "[DONE]":
                done = True
                break
            yield _object(data, target)
    finally:
        exchange.close()
    if not done:
        raise ProbeError("garbage", "the answer ends in the middle", target.where)


def _translated(exc: Exception, target: Target) -> ProbeError:
    if isinstance(exc, ProbeError):
        return exc
    if isinstance(exc, (socket.timeout, TimeoutError)):
        return ProbeError("timeout", "no complete answer within the time limit", target.where)
    if isinstance(exc, ConnectionRefusedError):
        return ProbeError("refused", "nothing listens there", target.where)
    return ProbeError("garbage", f"the connection broke ({type(exc).__name__}: {exc})", target.where)


def _complaint(response: http.client.HTTPResponse) -> str:
    """``HTTP 404 Not Found: <what the engine says>`` from OpenAI's error object, or the beginning of the body."""
    text = response.read(4096).decode("utf-8", "replace")
    with contextlib.suppress(SparkError):
        told = json_text.mapping(text)
        error = told.get("error")
        text = str(error.get("message") if isinstance(error, Mapping) else error or told.get("detail") or text)
    said = " ".join(text.split())[:300]
    return f"HTTP {response.status} {response.reason}" + (f": {said}" if said else "")


def _object(data: str, target: Target) -> dict[str, Any]:
    event = _document(data, "chat completion", target)
    if not isinstance(event.get("choices") or [], list):
        raise ProbeError("garbage", f"the answer is no chat completion: {data[:80]!r}", target.where)
    return event


def _document(text: str, what: str, target: Target) -> dict[str, Any]:
    try:
        return json_text.mapping(text)
    except SparkError as exc:
        raise ProbeError("garbage", f"the answer is no {what}: {text[:80]!r}", target.where) from exc


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


# -- waiting for an engine that starts --------------------------------------------------------------------------------


def wait_ready(
    target: Callable[[], Target],
    question: Question,
    unit: str,
    timeout_s: float,
    machine: Machine,
) -> Answer:
    """Ask until tokens come. Ends early, with the cause from the journal, when the unit has died or was restarted.

    ``target`` is called for each attempt, since the key file may be written while the unit starts.
    """
    clock = machine.clock
    deadline = clock() + timeout_s
    baseline = machine.unit(unit) if unit else Unit(active="active")
    while True:
        left = max(deadline - clock(), 0.001)
        limited = replace(question, timeout_s=min(question.timeout_s, left))
        try:
            return ask(target(), limited, clock)
        except ProbeError as exc:
            last = exc
        if unit:
            state = machine.unit(unit)
            if dead(baseline, state):
                failed = baseline if state.restarts > baseline.restarts else state
                found = f"the engine died while it started ({describe(state)})"
                raise SparkError(found, unit, explain(unit, machine.runner, failed.invocation))
        if last.status in (http.client.UNAUTHORIZED, http.client.NOT_FOUND, http.client.BAD_REQUEST):
            raise SparkError(last.found, last.where, refused(last.status, unit)) from last
        if clock() >= deadline:
            remedy = explain(unit, machine.runner, baseline.invocation) if unit else "See its log"
            raise SparkError(f"no token within {timeout_s:g} s; last: {last.found}", last.where, remedy) from last
        machine.sleep(POLL_S)


def dead(baseline: Unit, state: Unit) -> bool:
    return state.stopped or state.sub == "auto-restart" or state.restarts > baseline.restarts


def describe(state: Unit) -> str:
    status = f", exit status {state.exit_status}" if state.exit_status else ""
    return f"{state.active}/{state.sub}, Result={state.result}{status}, {state.restarts} restarts"


def refused(status: int, unit: str = "") -> str:
    if status == http.client.UNAUTHORIZED:
        return f"The running engine has another key: restart it, systemctl restart {unit or _ENGINE}"
    return "The running engine is not the planned one: run the engine layer"


# -- sparkmatrix-node probe -------------------------------------------------------------------------------------------

HELP = "ask the engine on this node for tokens"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--timeout", type=float, default=60, help="seconds")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--config", default="", help=argparse.SUPPRESS)
    engine_names.choose(parser)


def run(arguments: argparse.Namespace) -> int:
    try:
        config = read_config(arguments.config or engine_names.Names(arguments.service).description)
        answer = ask(target_of(config), Question(arguments.prompt, arguments.max_tokens, arguments.timeout))
    except SparkError as exc:
        if arguments.json:
            _say(json.dumps({"ok": False, "error": str(exc)}))
        else:
            _say(f"The engine gives no answer. {exc}")
        return 1
    if arguments.json:
        told = {name: getattr(config, name) for name in ("engine", "backend", "endpoint", "recipe", "nodes")}
        _say(json.dumps({"ok": True, **told, **asdict(answer)}))
    else:
        if answer.text:
            _say(answer.text)
        _say(f"-- {answer.model}: {answer.measured}")
    return 0


@dataclass(frozen=True)
class Described:
    """What the engine layer wrote about a service, or the layer gateway about the gateway, for whoever asks it."""

    host: str
    port: int
    model: str
    key_file: str
    key: bool = True  # it asks for one
    task: str = "generate"
    models: tuple[str, ...] = ()  # all of a gateway
    endpoints: tuple[str, ...] = ()
    endpoint: str = ""
    engine: str = ""
    backend: str = ""
    recipe: str = ""
    nodes: int = 0
    instance: str = ""


def read_config(path: str) -> Described:
    try:
        text = Path(path).read_bytes()
    except FileNotFoundError as exc:
        several = [name for name in engine_names.instances() if name]
        remedy = f"There are several: --service {' or '.join(several)}" if several else "Ask the head (spark_rank 0)"
        raise SparkError("no engine serves on this node", path, remedy) from exc
    except OSError as exc:
        raise SparkError(f"cannot be read ({exc.strerror})", path, "Run as root: sudo") from exc
    with json_text.Reading("the description of the engine is damaged", path, "Run the engine layer"):
        return document.load_known(Described, json_text.mapping(text))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
