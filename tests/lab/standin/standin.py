#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""An engine without a GPU, for the lab: vLLM, SGLang or TensorRT-LLM by the name it is called with.

It refuses every command line that the real parser refuses (the option table of the engine's version is in the image),
waits for its peers at the rendezvous address, serves the same endpoints, and stops as the real one does:

- vLLM: the head is gone at once, a headless rank takes its time; a lost rank shows in no ``/health``, requests hang,
  and after VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS the head dies. A rank without its head stays.
- SGLang: the head answers what it has begun, then tells the others; these ignore SIGTERM and answer 200 on ``/health``.
- TensorRT-LLM: one process; over several nodes those that its launcher makes of an MPI job, by the real Open MPI. Every
  token asks all ranks, so a lost one would show even if mpirun did not end the others. ``trtllm-serve`` alone refuses.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TABLES = pathlib.Path(os.environ.get("STANDIN_TABLES", "/opt/standin"))
WORD = "fox "
WORKER_STOP_S = 2.0
# What the launcher takes from the environment of trtllm-serve, which is no process of the MPI job.
OF_MPI = ("OMPI_", "PMIX_", "PMI_", "SLURM_", "MPI_", "UCX_", "I_MPI_", "HYDRA_", "KMP_", "MPICH_", "MV2_", "CRAY_")
WORLD = "tllm_mpi_size"
LEADER = "TLLM_SPAWN_PROXY_PROCESS_IPC_ADDR"
OWN = ("node_rank", "headless", "data_parallel_start_rank", "host", "port", "api_server_count")


class Refused(Exception):
    """What the real engine prints when it ends at once."""


# --- the command line ------------------------------------------------------------------------------------------------


def parser(engine: str, prog: str) -> argparse.ArgumentParser:
    table = json.loads(next(TABLES.glob(f"{engine}-*.json")).read_text())
    made = argparse.ArgumentParser(prog=prog, usage="%(prog)s [options]")
    if engine != "sglang":
        made.add_argument("model")
    aliases: dict[str, list[str]] = {}
    for alias, name in table["aliases"].items():
        aliases.setdefault(name, []).append(alias)
    for name, kind in table["options"].items():
        if name in ("--help", "-h"):
            continue
        names, dest = [name, *aliases.get(name, [])], name.lstrip("-").replace("-", "_")
        choices = table["values"].get(name) or (kind if isinstance(kind, list) else None)
        if kind == "flag":
            made.add_argument(*names, dest=dest, action="store_true", default=None)
            opposite = table["opposites"].get(name)
            if opposite and opposite not in table["options"]:
                made.add_argument(opposite, dest=dest, action="store_false", default=None)
        elif kind == "list":
            made.add_argument(*names, dest=dest, nargs="+", choices=choices)
        else:
            types: dict[str, Any] = {"int": int, "float": float, "json": json.loads, "size": size}
            convert = types.get(kind, str) if isinstance(kind, str) else str
            made.add_argument(*names, dest=dest, type=convert, choices=choices)
    return made


def size(text: str) -> Any:
    factor = {"k": 1000, "K": 1024, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30}.get(text[-1:], 0)
    return text if text == "auto" else int(float(text[:-1]) * factor) if factor else int(text)


def plain(engine: str, words: list[str]) -> list[str]:
    """vLLM takes ``_`` for ``-`` in names, and ``--option.key value`` for JSON."""
    if engine != "vllm":
        return words
    made: list[str] = []
    skip = False
    for number, word in enumerate(words):
        if skip:
            skip = False
        elif word.startswith("--"):
            name, equals, value = word.partition("=")
            base, dot, key = name.partition(".")
            if dot and not equals:
                value, skip = (words[number + 1] if number + 1 < len(words) else ""), True
            made.append(base.replace("_", "-") + (equals + value if equals and not dot else ""))
            made += [json.dumps({key: value})] if dot else []
        else:
            made.append(word)
    return made


ARCHITECTURE = "LlamaForCausalLM"


class Job:
    """What the options mean."""

    def __init__(self, engine: str, words: list[str]) -> None:
        self.engine = engine
        names = {"vllm": "vllm serve", "sglang": "sglang serve", "tensorrt-llm": "trtllm-serve"}
        self.args = parser(engine, names[engine]).parse_args(plain(engine, words))
        get = self.get
        self.model = str(get("model_path") or get("model"))
        if self.model.startswith("/"):
            config = pathlib.Path(self.model) / "config.json"
            if not config.is_file():
                raise Refused(f"OSError: Invalid repository ID or local directory specified: '{self.model}'")
            known = json.loads(config.read_text()).get("architectures") or [ARCHITECTURE]
            if ARCHITECTURE not in known:
                raise Refused(f"ValueError: Model architectures {known} are not supported for now.")
        self.served = str(get("served_model_name") or self.model)
        if isinstance(get("served_model_name"), list):
            self.served = get("served_model_name")[0]
        if engine == "tensorrt-llm" and not get("served_model_name"):
            self.served = self.model.rstrip("/").rpartition("/")[2]
        self.host = str(get("host") or ("localhost" if engine == "tensorrt-llm" else "127.0.0.1"))
        self.port = int(get("port") or (30000 if engine == "sglang" else 8000))
        self.tensor = int(get("tensor_parallel_size") or get("tp_size") or 1)
        self.pipeline = int(get("pipeline_parallel_size") or get("pp_size") or 1)
        self.ranks, self.rank, self.meeting = self._group()

    def get(self, name: str) -> Any:
        return getattr(self.args, name, None)

    def _group(self) -> tuple[int, int, str]:
        """(ranks, own number, address where they meet); every rank has one GPU."""
        get, world = self.get, self.tensor * self.pipeline
        if self.engine == "tensorrt-llm":
            found = int(os.environ.get(WORLD, "1")) if os.environ.get(LEADER) else 1
            if world != found:
                raise Refused(f"RuntimeError: MPI world size {found} is not tp_size * pp_size; start it with mpirun")
            return 1, 0, os.environ.get(LEADER, "")
        nodes, rank = int(get("nnodes") or 1), int(get("node_rank") or 0)
        if self.engine == "vllm" and int(get("data_parallel_size") or 1) > 1:
            if int(get("data_parallel_size_local") or 0) != 1:
                raise Refused("ValueError: more data parallel engines than GPUs on this node")
            first = int(get("data_parallel_start_rank") or 0)
            address = f"{get('data_parallel_address') or '127.0.0.1'}:{get('data_parallel_rpc_port') or 29550}"
            return int(get("data_parallel_size")), first, address
        if world % nodes or world // nodes > 1:
            raise Refused(
                f"ValueError: World size ({world}) is larger than the number of available GPUs (1) in this node"
            )
        if not 0 <= rank < nodes:
            raise Refused(f"ValueError: node_rank {rank} of {nodes}")
        if self.engine == "vllm":
            if rank and not get("headless"):
                raise Refused("ValueError: only the first node serves; use --headless")
            return nodes, rank, f"{get('master_addr') or '127.0.0.1'}:{get('master_port') or 29501}"
        if self.pipeline > 1 and not get("disable_overlap_schedule"):
            raise Refused("AssertionError: Pipeline parallelism is not compatible with overlap schedule.")
        if nodes > 1 and not get("dist_init_addr"):
            raise Refused("AssertionError: dist_init_addr is needed for several nodes")
        return nodes, rank, str(get("dist_init_addr") or "")

    def common(self) -> str:
        """What has to be the same on every rank."""
        return json.dumps({k: v for k, v in vars(self.args).items() if k not in OWN}, sort_keys=True, default=str)


# --- ranks meet ------------------------------------------------------------------------------------------------------


class Group:
    """The head's connections to the other ranks, or a rank's to its head."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.peers: dict[int, socket.socket] = {}
        self.lost = threading.Event()
        host, _, port = job.meeting.rpartition(":")
        self.place = (host, int(port or 0))

    def gather(self) -> None:
        with socket.create_server(self.place) as server:
            say(f"waiting for {self.job.ranks - 1} ranks at {self.job.meeting}")
            while len(self.peers) < self.job.ranks - 1:
                connection, _address = server.accept()
                hello = json.loads(connection.makefile().readline())
                if hello["common"] != self.job.common():
                    raise Refused(f"RuntimeError: rank {hello['rank']} was started with other arguments")
                if hello["rank"] in self.peers or not 0 < hello["rank"] < self.job.ranks:
                    raise Refused(f"RuntimeError: rank {hello['rank']} joined twice")
                self.peers[hello["rank"]] = connection
        self.tell("go")
        for connection in self.peers.values():
            threading.Thread(target=self._watch, args=(connection,), daemon=True).start()

    def _watch(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection.recv(1)
        self.lost.set()

    def tell(self, word: str) -> None:
        for connection in self.peers.values():
            with contextlib.suppress(OSError):
                connection.sendall(f"{word}\n".encode())

    def join(self) -> None:
        deadline = time.monotonic() + 600
        while True:
            with contextlib.suppress(OSError):
                connection = socket.create_connection(self.place, timeout=5)
                break
            if time.monotonic() > deadline:
                raise Refused(f"torch.distributed.DistNetworkError: no head at {self.job.meeting} within 600 s")
            time.sleep(0.2)
        connection.settimeout(None)
        hello = {"rank": self.job.rank, "common": self.job.common()}
        connection.sendall(json.dumps(hello).encode() + b"\n")
        lines = connection.makefile()
        if lines.readline().strip() != "go":
            raise Refused("RuntimeError: Connection closed by peer")
        say(f"rank {self.job.rank} is ready")
        if lines.readline().strip() == "stop":
            os._exit(0)
        say("the head has gone; waiting")  # as the real ones do
        threading.Event().wait()


# --- TensorRT-LLM over several nodes ----------------------------------------------------------------------------------


class Mpi:
    """As much of MPI as is needed to ask all ranks for something."""

    ASK, ANSWER = 1, 2

    def __init__(self) -> None:
        self.lib = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
        self.lib.MPI_Init(None, None)
        self.world, self.int = self._handle("ompi_mpi_comm_world"), self._handle("ompi_mpi_int")
        self.size, self.rank = ctypes.c_int(), ctypes.c_int()
        self.lib.MPI_Comm_size(self.world, ctypes.byref(self.size))
        self.lib.MPI_Comm_rank(self.world, ctypes.byref(self.rank))

    def _handle(self, name: str) -> ctypes.c_void_p:
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(self.lib, name)))

    def send(self, value: int, to: int, tag: int) -> None:
        self.lib.MPI_Send(ctypes.byref(ctypes.c_int(value)), 1, self.int, to, tag, self.world)

    def receive(self, source: int, tag: int) -> int:
        """Without the busy waiting of MPI_Recv."""
        there, value = ctypes.c_int(0), ctypes.c_int(0)
        while not there.value:
            self.lib.MPI_Iprobe(source, tag, self.world, ctypes.byref(there), None)
            time.sleep(0 if there.value else 0.005)
        self.lib.MPI_Recv(ctypes.byref(value), 1, self.int, source, tag, self.world, None)
        return value.value

    def ask_all(self, value: int) -> None:
        for rank in range(1, self.size.value):
            self.send(value, rank, self.ASK)
        for rank in range(1, self.size.value if value else 1):
            self.receive(rank, self.ANSWER)


def launcher(words: list[str]) -> int:
    """``trtllm-llmapi-launch``: on rank 0 ``trtllm-serve`` and the leader, which it reaches by TCP; else a worker."""
    size = os.environ.get("OMPI_COMM_WORLD_SIZE", "1")
    if int(os.environ.get("OMPI_COMM_WORLD_RANK", "0")):
        mpi = Mpi()
        say(f"rank {mpi.rank.value} of {mpi.size.value} on {socket.gethostname()}: worker")
        while mpi.receive(0, mpi.ASK):
            mpi.send(1, 0, mpi.ANSWER)
        mpi.lib.MPI_Finalize()
        return 0
    with socket.create_server(("127.0.0.1", 0)) as server:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(OF_MPI)}
        environment |= {LEADER: f"tcp://127.0.0.1:{server.getsockname()[1]}", WORLD: size}
        serve = subprocess.Popen(" ".join(words).split(), env=environment)
        mpi = Mpi()
        say(f"rank 0 of {mpi.size.value} on {socket.gethostname()}: leader")
        lead(server, mpi, serve)
    mpi.ask_all(0)
    mpi.lib.MPI_Finalize()
    return serve.returncode


def lead(server: socket.socket, mpi: Mpi, serve: subprocess.Popen[bytes]) -> None:
    streams: list[socket.socket] = [server]
    while serve.poll() is None:
        for ready in select.select(streams, [], [], 0.1)[0]:
            if ready is server:
                streams.append(server.accept()[0])
            elif ready.recv(1):
                mpi.ask_all(1)
                ready.sendall(b"1")
            else:
                streams.remove(ready)


# --- the API ---------------------------------------------------------------------------------------------------------


class Api(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    job: Job
    group: Group
    tokens = 0
    told = 0  # of the tokens
    busy = 0

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def reply(self, status: int, body: Any, kind: str = "application/json") -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def wait_for_ranks(self) -> None:
        """With a rank lost nothing is computed, and the engine ends itself after its own time limit."""
        if self.job.meeting.startswith("tcp://"):
            host, _, port = self.job.meeting[len("tcp://") :].rpartition(":")
            with socket.create_connection((host, int(port))) as leader:
                leader.sendall(b"1")
                if not leader.recv(1):
                    raise ConnectionError("the leader has gone")
        if self.group.lost.is_set():
            time.sleep(float(os.environ.get("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "300")))
            say("RuntimeError: RPC call to execute_model timed out.")
            os._exit(1)

    def allowed(self) -> bool:
        key = os.environ.get("VLLM_API_KEY") if self.job.engine == "vllm" else None
        if key and self.path.startswith("/v1") and self.headers.get("Authorization") != f"Bearer {key}":
            self.reply(401, {"error": "Unauthorized"})
            return False
        return True

    def iterations(self) -> list[dict[str, int]]:
        """TensorRT-LLM: those since it was asked last, and none at all unless its file of options says so."""
        told, Api.told = Api.told, Api.tokens
        config = self.job.get("config") or self.job.get("extra_llm_api_options")
        text = pathlib.Path(config).read_text() if config else ""
        if "enable_iter_perf_stats: true" not in text.splitlines():
            return []
        return [{"iter": number} for number in range(told + 1, Api.told + 1)]

    def do_GET(self) -> None:
        if self.allowed():
            self.get()

    def get(self) -> None:
        engine, path = self.job.engine, self.path.partition("?")[0]
        if self.job.rank:  # SGLang's other ranks
            return self.reply(200, "") if path.startswith("/health") else self.reply(404, {"detail": "Not Found"})
        if path == "/health_generate" and engine == "vllm":
            return self.reply(404, {"detail": "Not Found"})
        if path == "/health_generate" or (path == "/health" and engine == "sglang"):
            self.wait_for_ranks()
            Api.tokens += 1
            return self.reply(200, "")
        if path == "/health":
            return self.reply(200, "")
        if path == "/v1/models":
            return self.reply(200, {"object": "list", "data": [{"id": self.job.served, "object": "model"}]})
        if path == "/metrics" and engine == "tensorrt-llm":
            return self.reply(200, self.iterations())
        if path == "/metrics" and (engine == "vllm" or self.job.get("enable_metrics")):
            labels = f'{{model_name="{self.job.served}"}}'
            name = "vllm" if engine == "vllm" else "sglang"
            text = (
                f"{name}:generation_tokens_total{labels} {Api.tokens}\n{name}:num_requests_running{labels} {Api.busy}\n"
            )
            return self.reply(200, text, "text/plain")
        return self.reply(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        if self.allowed():
            self.post()

    def post(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        try:
            body = json.loads(self.rfile.read(length))
            count, model = int(body.get("max_tokens") or 16), body.get("model")
        except (ValueError, AttributeError):
            return self.reply(400, {"error": {"message": "no JSON", "code": 400}})
        if self.path != "/v1/chat/completions":
            return self.reply(404, {"detail": "Not Found"})
        if model != self.job.served:
            return self.reply(404, {"error": {"message": f"The model `{model}` does not exist.", "code": 404}})
        if not body.get("messages"):
            return self.reply(400, {"error": {"message": "no messages", "code": 400}})
        Api.busy += 1
        try:
            self.wait_for_ranks()
            self.generate(body, count)
        finally:
            Api.busy -= 1

    def generate(self, body: dict[str, Any], count: int) -> None:
        usage = {"prompt_tokens": 4, "completion_tokens": count, "total_tokens": count + 4}
        base = {"id": "chatcmpl-1", "model": self.job.served}
        if not body.get("stream"):
            Api.tokens += count
            message = {"role": "assistant", "content": WORD * count}
            choice = {"index": 0, "message": message, "finish_reason": "length"}
            return self.reply(200, {**base, "object": "chat.completion", "choices": [choice], "usage": usage})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

        def event(document: Any) -> None:
            text = document if isinstance(document, str) else json.dumps(document)
            self.wfile.write(f"data: {text}\n\n".encode())
            self.wfile.flush()

        base["object"] = "chat.completion.chunk"
        event({**base, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
        for number in range(count):
            time.sleep(0.01)
            Api.tokens += 1
            last = "length" if number == count - 1 else None
            event({**base, "choices": [{"index": 0, "delta": {"content": WORD}, "finish_reason": last}]})
        if (body.get("stream_options") or {}).get("include_usage"):
            event({**base, "choices": [], "usage": usage})
        event("[DONE]")
        return None


# --- one process -----------------------------------------------------------------------------------------------------


def say(text: str) -> None:
    print(text, flush=True)


def stop(job: Job, group: Group) -> None:
    if job.engine == "sglang":
        if job.rank:
            say("ignoring SIGTERM until the head says so")
            return
        while Api.busy:
            time.sleep(0.05)
        group.tell("stop")
    elif job.rank:
        time.sleep(WORKER_STOP_S)
    os._exit(0)


def run(engine: str, words: list[str]) -> None:
    job = Job(engine, words)
    group = Group(job)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=stop, args=(job, group), daemon=True).start())
    time.sleep(float(os.environ.get("STANDIN_LOAD_S", "1")))
    handler = type("Handler", (Api,), {"job": job, "group": group})
    if job.rank == 0 or engine == "sglang":
        if job.rank == 0 and job.ranks > 1:
            group.gather()
        server = ThreadingHTTPServer((job.host, job.port), handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        say("Application startup complete." if engine != "sglang" else "The server is fired up and ready to roll!")
    if job.rank:
        group.join()
    while True:
        time.sleep(3600)


def main(argv: list[str]) -> int:
    program = os.path.basename(argv[0])
    try:
        if program == "trtllm-serve":
            run("tensorrt-llm", argv[1:])
        elif program == "trtllm-llmapi-launch":
            return launcher(argv[1:])
        elif program in ("vllm", "sglang") and argv[1:2] == ["serve"]:
            run(program, argv[2:])
        else:
            raise Refused(f"{program}: error: invalid choice: {argv[1:2]}")
    except Refused as exc:
        print(exc, file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
