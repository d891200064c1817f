#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""An engine that takes any command line, for the lab: what a recipe's own command starts, under whichever name.

It writes its words and its environment to a file of the node, waits for its peers at the head, answers ``/health``,
``/v1/models`` and chat, streamed or not, and notices nothing of a rank that is lost: a token then never comes, and
only whoever looks at the ranks can tell. Each event of a stream has the request's own id, and when this answer to it
began, so that two answers to one request can be told apart. Which rank it is, how many there are, and where they meet,
it takes from the options by which vLLM, SGLang, TensorFold and others say so, or from the variables of torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import random
import re
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# A directory of the node that every container of an engine may write into.
RECORD = "/var/lib/sparkmatrix/kernels/standin.json"
WORD = "fox "
# By what is asked for, the options that say it, without dashes and underscores, and variables.
NAMES = {
    "rank": (("noderank", "rank", "machinerank"), ("NODE_RANK", "RANK")),
    "nodes": (("nnodes", "worldsize", "nummachines"), ("NNODES", "WORLD_SIZE")),
    "tensor": (("tensorparallelsize", "tpsize", "tp"), ()),
    "pipeline": (("pipelineparallelsize", "ppsize", "pp"), ()),
    "head": (("masteraddr", "master", "distinitaddr", "dataparalleladdress", "mainprocessip"), ("MASTER_ADDR",)),
    "meeting": (("masterport", "dataparallelrpcport"), ("MASTER_PORT",)),
    "host": (("host",), ("HOST",)),
    "port": (("port", "apiport"), ("PORT",)),
    "served": (("servedmodelname", "modelname", "alias", "name"), ("SERVED_NAME", "SERVED_MODEL_NAME")),
    "model": (("model", "modelpath", "m", "hf", "hfrepo"), ("MODEL_ID", "MODEL")),
}


def options(words: list[str]) -> dict[str, str]:
    """The first value of each option, by its name without dashes and underscores; ``""``: the first word of none."""
    found: dict[str, str] = {}
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if not re.match(r"--?[A-Za-z]", word):
            if word not in ("serve", "server", "run") and not word.startswith("-"):
                found.setdefault("", word)
            continue
        name, equals, value = word.partition("=")
        if not equals and position < len(words) and not words[position].startswith("-"):
            value, position = words[position], position + 1
        found.setdefault(re.sub(r"[-_]", "", name).lower(), value)
    return found


class Job:
    def __init__(self, words: list[str], environment: dict[str, str]) -> None:
        given = options(words)

        def value(what: str, fallback: str) -> str:
            names, variables = NAMES[what]
            found = [given[name] for name in names if given.get(name)]
            return next(iter([*found, *(environment[name] for name in variables if environment.get(name))]), fallback)

        self.rank = int(value("rank", "0"))
        parallel = int(value("tensor", "1")) * int(value("pipeline", "1"))
        self.nodes = int(value("nodes", str(parallel)))
        head, _colon, port = value("head", "127.0.0.1").removeprefix("tcp://").partition(":")
        self.meeting = (head, int(port or value("meeting", "29501")))
        self.place = (value("host", "127.0.0.1"), int(value("port", "8000")))
        self.model = value("model", given.get("", "model"))
        self.served = value("served", self.model).split()[0]


class Ranks:
    """The head's connections to the others, or a rank's to its head."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.lost = threading.Event()
        self.peers: list[socket.socket] = []

    def gather(self) -> None:
        if self.job.nodes < 2:
            return
        with socket.create_server(self.job.meeting) as server:
            say(f"waiting for {self.job.nodes - 1} ranks at {self.job.meeting}")
            while len(self.peers) < self.job.nodes - 1:
                self.peers.append(server.accept()[0])
        for peer in self.peers:
            peer.sendall(b"go")
            threading.Thread(target=self.watch, args=(peer,), daemon=True).start()

    def watch(self, peer: socket.socket) -> None:
        with contextlib.suppress(OSError):
            peer.recv(1)
        self.lost.set()

    def join(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                head = socket.create_connection(self.job.meeting, timeout=5)
                break
            time.sleep(0.2)
        head.settimeout(None)
        if head.recv(2) != b"go":
            sys.exit("the head has gone before all ranks were there")
        say(f"rank {self.job.rank} is ready")
        head.recv(1)
        say("the head has gone; waiting")
        threading.Event().wait()


class Api(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    job: Job
    ranks: Ranks

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def reply(self, status: int, body: Any, kind: str = "application/json") -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path in ("/health", "/ready", "/v1/health", "/healthz", "/"):
            return self.reply(200, {"status": "ok"})
        if path == "/v1/models":
            return self.reply(200, {"object": "list", "data": [{"id": self.job.served, "object": "model"}]})
        return self.reply(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        ranks = [{"index": number, "relevance_score": 0.5} for number in range(len(body.get("documents") or []))]
        if self.path not in ("/v1/chat/completions", "/v1/completions", *(["/v1/rerank"] if ranks else [])):
            return self.reply(404, {"detail": "Not Found"})
        if body.get("model") != self.job.served:
            return self.reply(404, {"error": {"message": f"The model `{body.get('model')}` does not exist."}})
        if self.ranks.lost.is_set():
            threading.Event().wait()
        if ranks:
            return self.reply(200, {"model": self.job.served, "results": ranks})
        chat, count = self.path.startswith("/v1/chat"), int(body.get("max_tokens") or 16)
        usage = {"prompt_tokens": 4, "completion_tokens": count, "total_tokens": count + 4}
        kind = "chat.completion" if chat else "text_completion"
        name = self.headers.get("X-Request-Id") or "1"
        base = {"id": f"cmpl-{name}", "created": time.time_ns(), "model": self.job.served, "object": kind}
        if not body.get("stream"):
            said = {"message": {"role": "assistant", "content": WORD * count}} if chat else {"text": WORD * count}
            return self.reply(
                200, {**base, "choices": [{"index": 0, **said, "finish_reason": "length"}], "usage": usage}
            )
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        base["object"] = f"{kind}.chunk" if chat else kind
        said = {"delta": {"content": WORD}} if chat else {"text": WORD}
        asked = body.get("stream_options") or {}
        pace = float(os.environ.get("STANDIN_TOKEN_S", "0.01"))
        for number in range(count):
            time.sleep(2 * pace * random.random())
            last = "length" if number == count - 1 else None
            so_far = (
                {"usage": {**usage, "completion_tokens": number + 1}} if asked.get("continuous_usage_stats") else {}
            )
            self.event(json.dumps({**base, "choices": [{"index": 0, **said, "finish_reason": last}], **so_far}))
        if asked.get("include_usage"):
            self.event(json.dumps({**base, "choices": [], "usage": usage}))
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")
        return None

    def event(self, text: str) -> None:
        data = f"data: {text}\n\n".encode()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))


def say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    record = pathlib.Path(os.environ.get("STANDIN_RECORD", RECORD))
    with contextlib.suppress(OSError):
        record.write_text(json.dumps({"argv": sys.argv, "environment": dict(os.environ), "directory": os.getcwd()}))
    held = bytearray(int(os.environ.get("STANDIN_MB", "0")) << 20)
    held[::4096] = b"x" * len(held[::4096])  # touched, so that the machine gives it up
    job = Job(sys.argv[1:], dict(os.environ))
    say(f"{pathlib.Path(sys.argv[0]).name}: rank {job.rank} of {job.nodes}")
    ranks = Ranks(job)
    if job.rank:
        ranks.join()
    ranks.gather()
    Api.job, Api.ranks = job, ranks
    ThreadingHTTPServer.daemon_threads = True
    say(f"serving {job.served} at {job.place}")
    ThreadingHTTPServer(job.place, Api).serve_forever()


if __name__ == "__main__":
    main()
