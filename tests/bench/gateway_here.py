# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The gateway as the role renders it, with nginx, relay and a stand-in for an engine as processes of this machine.

The socket of the relay stays while the relay is started anew, as systemd has it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "collections"))

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import keys, names, status
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.settings import Engine, Settings
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils import _node_program
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._gateway import render

KEY = "key-of-a-client-0123456789"
ENGINE_KEY = "key-of-the-engine-0123456789"


class Kept:
    """A process that is started again whenever it ends."""

    def __init__(self, start: Any, pause_s: float = 0.2) -> None:
        self.start, self.pause_s, self.over = start, pause_s, False
        self.process: subprocess.Popen[bytes] = start()
        threading.Thread(target=self._keep, daemon=True).start()

    def _keep(self) -> None:
        while not self.over:
            self.process.wait()
            time.sleep(self.pause_s)
            if not self.over:
                self.process = self.start()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)

    def end(self) -> None:
        self.over = True
        self.kill()


class Here:
    def __init__(
        self, at: str, nginx: str, engine: Sequence[str], port: int, engine_port: int, **settings: Any
    ) -> None:
        self.at, self.port, self.engine_port = at, port, engine_port
        wanted = Settings(
            ("127.0.0.1",), (Engine("chat", "tiny", port=engine_port),), tls="off", requests_per_minute=0,
            concurrent_requests=0, keys=(), **settings,
        )  # fmt: skip
        for path, text in render.files(wanted).items():
            if path.startswith(names.ETC):
                self.write(path.rpartition("/")[2], text)
        told = json.loads(Path(at, "relay.json").read_text())
        told["engines"][0]["key"] = ENGINE_KEY
        self.write("relay.json", json.dumps(told))
        self.write("listen.conf", f"listen 127.0.0.1:{port};\n")
        self.write("keys.conf", keys.clients_conf({"alice": KEY, "probe": f"{KEY}-of-the-probe"}))
        self.write("configuration.conf", "return 200 x;\n")
        Path(at, "run").mkdir()
        program = Path(at, "sparkmatrix-node")
        program.write_bytes(_node_program.build())
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(f"{at}/relay.sock")
        self.socket.listen(4096)
        self.own: list[Kept] = []
        self.engine = self.kept(lambda: subprocess.Popen([*engine, str(engine_port)]))
        self.relay = self.kept(lambda: self._relay(program))
        nginx_argv = [
            nginx,
            "-p",
            at,
            "-c",
            f"{at}/nginx.conf",
            "-e",
            f"{at}/error.log",
            "-g",
            "daemon off; user root;",
        ]
        self.nginx = subprocess.Popen(nginx_argv)
        self.wait()

    def write(self, name: str, text: str) -> None:
        text = text.replace(names.RELAY_SOCKET, f"{self.at}/relay.sock").replace(names.RUN, f"{self.at}/run")
        text = text.replace(names.ETC, self.at).replace(
            "syslog:server=unix:/dev/log,nohostname,", f"{self.at}/access.log "
        )
        text = text.replace(" tag=sparkmatrix_gateway", "")
        Path(self.at, name).write_text(text)

    def kept(self, start: Any) -> Kept:
        self.own.append(Kept(start))
        return self.own[-1]

    def _relay(self, program: Path) -> subprocess.Popen[bytes]:
        hand_over = (
            f"import os, runpy; os.dup2({self.socket.fileno()}, 3);"
            " os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1');"
            f" runpy.run_path({str(program)!r}, run_name='__main__')"
        )
        os.set_inheritable(self.socket.fileno(), True)
        return subprocess.Popen(
            [sys.executable, "-c", hand_over, "relay", "--config", f"{self.at}/relay.json"],
            pass_fds=(self.socket.fileno(),),
        )

    def wait(self) -> None:
        if not self._answers(self.port):
            raise SystemExit("the gateway did not come up")

    def serves(self) -> None:
        """Wait until an answer comes through all three."""
        self._answers(self.engine_port)

    def _answers(self, port: int) -> bool:
        until = time.monotonic() + 30
        while time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                if self.counts() is not None:
                    return True
            time.sleep(0.02)
        return False

    def counts(self) -> status.Relayed | None:
        return status.relay(f"{self.at}/relay.sock")

    def end(self) -> None:
        for one in self.own:
            one.end()
        self.nginx.send_signal(signal.SIGTERM)
        self.nginx.wait(10)


@contextlib.contextmanager
def gateway(*arguments: Any, **settings: Any) -> Iterator[Here]:
    made = Here(*arguments, **settings)
    try:
        yield made
    finally:
        made.end()
