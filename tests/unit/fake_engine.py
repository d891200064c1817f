# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""An HTTP server that answers like vLLM's chat endpoint, or badly in a chosen way. Listens on loopback."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "sekret-key-of-the-test"
MODEL = "tiny"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
        return port


def chunk(text: str, finish: str | None = None, **extra: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return {"id": "x", "object": "chat.completion.chunk", "model": MODEL, "choices": [choice], **extra}


class FakeEngine(ThreadingHTTPServer):
    """``mode`` may be changed between requests. ``requests`` holds (method, path, body)."""

    daemon_threads = True

    def __init__(self, mode: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.mode = mode
        self.requests: list[tuple[str, str, dict[str, Any]]] = []
        self.released = threading.Event()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeEngine

    def log_message(self, *_arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.answer({})

    def do_POST(self) -> None:
        self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def answer(self, body: dict[str, Any]) -> None:
        self.server.requests.append((self.command, self.path, body))
        mode = self.server.mode
        if mode == "hang":
            self.server.released.wait(20)
            self.close_connection = True
        elif mode == "500":
            self.send(500, b'{"error":{"message":"EngineCore encountered an issue."}}')
        elif mode == "503-html":
            self.send(503, b"<html>busy</html>")
        elif mode == "404":
            self.send(404, b'{"error":{"message":"The model `tiny` does not exist."}}')
        elif mode == "not-http":
            self.wfile.write(b"SSH-2.0-OpenSSH\r\n\r\n")
            self.close_connection = True
        elif mode != "open" and self.headers.get("Authorization") != f"Bearer {KEY}":
            self.send(401, b'{"error":"Unauthorized"}')
        elif self.command == "GET":
            self.send(200, json.dumps({"data": [{"id": MODEL}]}).encode())
        elif self.path == "/v1/embeddings":
            vector = {"no-vector": {}, "no-numbers": ["a"], "nan": [1.0, float("nan")], "no-number": []}
            data = [{"embedding": vector.get(mode, [0.1, -2, 3e-5])}]
            self.send(200, b"<html>" if mode == "html" else json.dumps({"model": MODEL, "data": data}).encode())
        elif self.path == "/v1/rerank":
            scores = {"nan": [float("nan")], "no-number": []}.get(mode, [0.2, 0.1])
            results = [{"index": number, "relevance_score": score} for number, score in enumerate(scores)]
            answer: Any = {"no-vector": {"results": [{}]}, "list": []}.get(mode, {"model": MODEL, "results": results})
            self.send(200, b"<html>" if mode == "html" else json.dumps(answer).encode())
        else:
            self.stream(mode, body.get("max_tokens", 1))

    def send(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def stream(self, mode: str, tokens: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        role = {"model": MODEL, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
        words: list[Any] = [
            chunk(f"w{number} ", "length" if number == tokens - 1 else None) for number in range(tokens)
        ]
        usage = {"model": MODEL, "choices": [], "usage": {"completion_tokens": tokens}}
        events: list[Any] = {
            "empty-choices": [{"model": MODEL, "choices": []}],
            "zero-tokens": [role, {"model": MODEL, "choices": [], "usage": {"completion_tokens": 0}}],
            "no-usage": [role, *words],
            "reasoning": [role, {"choices": [{"delta": {"reasoning_content": "hm"}}]}, usage],
            "thinking": [
                role,
                {"choices": [{"delta": {"reasoning": "hm"}}]},
                chunk("\n\nIt is \x1b[2J"),
                chunk("4"),
                usage,
            ],
            "error-event": [role, {"error": {"message": "the engine core died"}}],
            "no-delta": [{"choices": [{"text": "old style"}]}],
            "not-an-object": [[1, 2]],
            "choices-text": [{"choices": "none"}],
        }.get(mode, [role, *words, usage])
        for event in events:
            if mode == "slow":
                time.sleep(0.15)
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            self.wfile.flush()
            if mode == "cut" or (mode == "cut later" and event is words[0]):
                return
            if mode == "truncated-json":
                self.wfile.write(b'data: {"choices": [{"del\n\n')
                return
        if mode == "drip":
            for _ in range(100):
                self.wfile.write(b":")
                self.wfile.flush()
                time.sleep(0.05)
        if mode == "flood":
            with contextlib.suppress(OSError):
                for _ in range(80):
                    self.wfile.write(b"x" * 65536)
        self.wfile.write(b": comment\n\ndata: [DONE]\n\n")


@contextlib.contextmanager
def fake_engine(mode: str = "good") -> Iterator[FakeEngine]:
    engine = FakeEngine(mode)
    thread = threading.Thread(target=engine.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield engine
    finally:
        engine.released.set()
        engine.shutdown()
        engine.server_close()
        thread.join()
