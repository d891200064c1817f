"""A stand-in for an engine: the same paths and errors, a chunk every 100 ms, on loopback.

engine.py PORT MODEL KEY_FILE; it also serves an adapter of its model, MODEL-lora.
"""

import itertools
import json
import pathlib
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT, MODEL = int(sys.argv[1]), sys.argv[2]
KEY = pathlib.Path(sys.argv[3]).read_text().split('"')[1]
MODELS = (MODEL, f"{MODEL}-lora")
CLOSED = ("/invocations", "/tokenize", "/metrics", "/version", "/ping")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_arguments):
        pass

    def say(self, status, document):
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self):
        if self.path.startswith(CLOSED):
            self.say(200, {"secret": "what no client may see"})  # guarded by no key, as in vLLM
        elif self.headers.get("Authorization") != f"Bearer {KEY}":
            self.say(401, {"error": "Unauthorized"})
        elif self.path.split("?")[0] == "/v1/models":
            seen = {name.lower(): value for name, value in self.headers.items()}
            self.say(200, {"data": [{"id": name, "seen": seen} for name in MODELS], "path": self.path, "seen": seen})
        else:
            self.say(404, {"error": {"message": "not here"}})

    def do_POST(self):
        text = self.rfile.read(int(self.headers["Content-Length"]))
        paths = ("/v1/chat/completions", "/v1/embeddings", "/v1/score")
        if self.path not in paths or self.headers.get("Authorization") != f"Bearer {KEY}":
            self.do_GET()
            return
        body = json.loads(text)
        if body["model"] not in MODELS:
            self.say(404, {"error": {"message": f"The model `{body['model']}` does not exist."}})
        elif body.get("stream"):
            self.stream(body.get("max_tokens", 5), body.get("until"))
        else:
            self.say(200, {"engine": MODEL, "model": body["model"], "bytes": len(text)})

    def stream(self, count, until):
        """``until``: a file for whose coming the last token waits."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in itertools.count():
            if number >= count and (not until or pathlib.Path(until).exists()):
                break
            self.event({"model": MODEL, "choices": [{"index": 0, "delta": {"content": f"w{number} "}}]})
            time.sleep(0.1)
        self.event({"model": MODEL, "choices": [], "usage": {"completion_tokens": count}})
        self.write(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def event(self, document):
        self.write(b"data: " + json.dumps(document).encode() + b"\n\n")

    def write(self, data):
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
